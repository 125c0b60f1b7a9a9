"""The sockets: real ones on 127.0.0.1, inside one loop."""

import asyncio
import errno
import socket
import time
from collections.abc import Sequence

import pytest

from broker.net.channel import Channel
from broker.net.dispatcher import Dispatcher
from broker.net.requester import Requester
from broker.net.server import Server
from remoting.command import RemotingCommand, encode_command, request
from remoting.connection import FrameDecoder
from tests.support.wait import until


class Rig:
    """A server that answers by what the code says, and its clients."""

    def __init__(self, **options) -> None:
        self.server = Server(**options)
        self.dispatcher = Dispatcher(lambda: 0)
        self.dispatcher.add(self)
        self.gathered: list = []
        self.turns: list[int] = []
        self.closed: list = []
        self.server.received = self.dispatcher.received
        self.server.end_of_turn = self.end_turn
        self.server.closed_listeners += [self.dispatcher.channel_closed, self.closed.append]
        self.port = self.server.bind("127.0.0.1", 0)

    def handlers(self):
        return {1: self.echo, 2: self.gather, 3: self.big, 4: self.hang_up}

    def echo(self, _channel, command, _now_ms):
        return command.reply(body=command.body)

    def gather(self, channel, command, _now_ms):
        self.gathered.append((channel, command.reply(remark="gathered")))

    def big(self, _channel, command, _now_ms):
        return command.reply(body=bytes(1 << 20))

    def hang_up(self, channel, command, _now_ms):
        channel.send(encode_command(command.reply(remark="bye")))
        channel.close()

    def end_turn(self):
        gathered, self.gathered = self.gathered, []
        if gathered:
            self.turns.append(len(gathered))
        for channel, reply in gathered:
            channel.send(encode_command(reply))

    async def __aenter__(self):
        self.server.open()
        self.server.listen()
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def client(self) -> "Client":
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        return Client(sock)


class Client:
    """A socket that speaks frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.loop = asyncio.get_running_loop()
        self.decoder = FrameDecoder()
        self.came: list[RemotingCommand] = []

    async def send(self, *commands: RemotingCommand) -> None:
        await self.loop.sock_sendall(self.sock, b"".join(map(encode_command, commands)))

    async def reply(self) -> RemotingCommand | None:
        while not self.came:
            data = await asyncio.wait_for(self.loop.sock_recv(self.sock, 1 << 16), 5)
            if not data:
                return None
            self.came += self.decoder.feed(data)
        return self.came.pop(0)

    def close(self) -> None:
        self.sock.close()


def test_requests_are_answered_over_their_own_connection():
    async def run():
        async with Rig() as rig:
            first, second = await rig.client(), await rig.client()
            await first.send(RemotingCommand(1, 1, body=b"one"))
            await second.send(RemotingCommand(1, 2, body=b"two"))
            assert (await second.reply()).body == b"two"
            assert (await first.reply()).body == b"one"
            assert rig.server.connection_count == 2
            first.close()
            second.close()

    asyncio.run(run())


def test_who_gets_in_at_the_first_address_finds_the_others_open():
    """The last address cannot be listened on (somebody else does by now): the first was not opened either."""

    async def run():
        rig = Rig()
        last = rig.server.bind("127.0.0.1", 0)
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.bind(("127.0.0.1", last))
            thief.listen()
            rig.server.open()
            with pytest.raises(OSError, match="in use"):
                rig.server.listen()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", rig.port))
        rig.server.close()

    asyncio.run(run())


def test_the_next_request_of_who_waits_for_replies_is_looked_for_before_the_loop_sleeps():
    async def run():
        async with Rig() as rig:
            first, second = await rig.client(), await rig.client()
            await second.send(RemotingCommand(1, 0))
            await second.reply()
            linger = rig.server._linger
            before = linger.asked
            for number in range(2):
                await first.send(RemotingCommand(1, 1))
                await first.reply()
                assert linger.asked == before + number
            for client in (first, second):  # both are there before the loop goes round
                client.sock.send(encode_command(RemotingCommand(1, 2)))
            await first.reply()
            await second.reply()
            assert linger.asked == before + 1
            first.close()
            second.close()

    asyncio.run(run())


@pytest.mark.pure
def test_calls_keep_the_interpreters_lock_while_another_thread_wants_it_and_only_then(monkeypatch):
    monkeypatch.setattr("remoting.held_calls.CONTENDED_S", 3_600.0)

    async def run():
        async with Rig() as rig:
            client = await rig.client()
            for number in range(20):
                if number == 10:
                    monkeypatch.setattr("remoting.held_calls.CONTENDED_S", -1.0)
                held = rig.server.calls.held_count
                await client.send(RemotingCommand(1, number, body=b"x" * number))
                assert (await client.reply()).body == b"x" * number
                assert (rig.server.calls.held_count > held) == (number >= 10)
            client.close()

    asyncio.run(run())


def test_turns_are_rarer_while_other_threads_are_behind():
    async def run():
        async with Rig() as rig:
            behind = False
            rig.server.pace.yields = lambda: behind
            client = await rig.client()
            for number in range(6):
                behind = number >= 3
                await client.send(RemotingCommand(1, number, body=b"%d" % number))
                assert (await client.reply()).body == b"%d" % number
                if number == 2:
                    assert rig.server.pace.rest_count == 0
            assert rig.server.pace.rest_count >= 3
            client.close()

    asyncio.run(run())


def test_what_one_turn_read_is_gathered_and_answered_together():
    async def run():
        async with Rig() as rig:
            client = await rig.client()
            await client.send(*[RemotingCommand(2, n) for n in range(50)])
            assert [(await client.reply()).opaque for _ in range(50)] == list(range(50))
            assert rig.turns == [50]
            client.close()

    asyncio.run(run())


def test_a_frame_in_small_pieces():
    async def run():
        async with Rig() as rig:
            client = await rig.client()
            for byte in encode_command(RemotingCommand(1, 5, body=b"x" * 20)):
                await client.loop.sock_sendall(client.sock, bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.reply()).body == b"x" * 20
            client.close()

    asyncio.run(run())


def test_a_frame_longer_than_one_read():
    async def run():
        async with Rig() as rig:
            client = await rig.client()
            await client.send(RemotingCommand(1, 5, body=bytes(3 << 20)))
            assert len((await client.reply()).body) == 3 << 20
            client.close()

    asyncio.run(run())


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02\x00\x00\x00\x00", b"\xff" * 64])
def test_garbage_closes_its_connection_and_no_other(garbage):
    async def run():
        async with Rig() as rig:
            bad, good = await rig.client(), await rig.client()
            await bad.loop.sock_sendall(bad.sock, garbage)
            assert await bad.reply() is None
            await good.send(RemotingCommand(1, 1))
            assert (await good.reply()).opaque == 1
            assert len(rig.closed) == 1 and rig.closed[0].closed
            bad.close()
            good.close()

    asyncio.run(run())


def test_who_reads_slowly_is_not_read_from_until_it_has_caught_up():
    async def run():
        async with Rig() as rig:
            client = await rig.client()
            for n in range(40):
                await client.send(RemotingCommand(3, n))
                await asyncio.sleep(0)
            (connection,) = rig.server._connections
            await until(lambda: connection._backlog_bytes > 4 << 20)  # a busy machine takes its time to bring them
            assert connection._backlog_bytes < 64 << 20
            assert not connection._events & 1, "nothing is read any more"
            for n in range(40):
                reply = await client.reply()
                assert reply.opaque == n and len(reply.body) == 1 << 20
            await client.send(RemotingCommand(1, 99))
            assert (await client.reply()).opaque == 99
            client.close()

    asyncio.run(run())


def test_who_never_reads_is_closed():
    async def run():
        async with Rig() as rig:
            client = await rig.client()
            await client.send(*[RemotingCommand(3, n) for n in range(100)])
            await until(lambda: rig.closed)
            client.close()

    asyncio.run(run())


def test_close_comes_after_what_was_sent():
    async def run():
        async with Rig() as rig:
            client = await rig.client()
            await client.send(RemotingCommand(4, 1))
            assert (await client.reply()).remark == "bye"
            assert await client.reply() is None
            client.close()

    asyncio.run(run())


def test_the_silent_are_closed_by_sweeps():
    async def run():
        async with Rig(idle_ms=20_000) as rig:
            quiet, busy = await rig.client(), await rig.client()
            for _ in range(3):
                await busy.send(RemotingCommand(1, 1))
                await busy.reply()
                rig.server.sweep(10_000)
            assert [channel.peer for channel in rig.closed] == [quiet.sock.getsockname()]
            quiet.close()
            busy.close()

    asyncio.run(run())


def test_a_port_in_use_is_named():
    async def run():
        async with Rig() as rig:
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{rig.port}: Address already in use"):
                Server().bind("127.0.0.1", rig.port)

    asyncio.run(run())


def test_a_port_that_somebody_else_listens_on_meanwhile_is_named():
    async def run():
        server = Server()
        port = server.bind("127.0.0.1", 0)
        server.open()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
                server.listen()
        server.close()

    asyncio.run(run())


def test_nobody_gets_in_before_listen():
    server = Server()
    port = server.bind("127.0.0.1", 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)
    server.close()


def test_without_file_descriptors_accepting_pauses_and_goes_on(monkeypatch, caplog):
    monkeypatch.setattr("broker.net.server._NO_FILES_PAUSE_S", 0.01)

    async def run():
        async with Rig() as rig:
            (listener,) = rig.server._listeners
            real, failed = listener._socket, []

            class NoFiles:
                def accept(self):
                    if not failed:
                        failed.append(1)
                        raise OSError(errno.EMFILE, "Too many open files")
                    return real.accept()

                def close(self):
                    real.close()

            listener._socket = NoFiles()
            client = await rig.client()
            await client.send(RemotingCommand(1, 7))
            assert (await client.reply()).opaque == 7
            client.close()

    asyncio.run(run())
    assert "no connections are accepted" in caplog.text


def test_a_requester_keeps_one_connection_and_makes_a_new_one_when_it_is_lost():
    async def run():
        async with Rig() as rig:
            asker = Server()
            asker.open()
            dispatcher = Dispatcher(lambda: 0)
            asker.received = dispatcher.received
            asker.closed_listeners.append(dispatcher.channel_closed)
            requester = Requester(asker, dispatcher)
            address = f"127.0.0.1:{rig.port}"
            asked = [requester.request(address, request(1, body=b"%d" % n)) for n in range(3)]
            assert [reply.body for reply in await asyncio.gather(*asked)] == [b"0", b"1", b"2"]
            assert rig.server.connection_count == 1
            for connection in list(rig.server._connections):
                connection.shut()
            while asker.connection_count:
                await asyncio.sleep(0)
            assert (await requester.request(address, request(1, body=b"again"))).body == b"again"
            rig.server.stop_listening()
            rig.server.close()
            while asker.connection_count:
                await asyncio.sleep(0)
            with pytest.raises(OSError):
                await requester.request(address, request(1))
            asker.close()

    asyncio.run(run())


def test_a_question_is_broken_off_when_the_peer_goes():
    async def run():
        async with Rig() as rig:
            client = await rig.client()
            await client.send(RemotingCommand(1, 1))
            await client.reply()
            (connection,) = rig.server._connections
            asked = asyncio.create_task(rig.dispatcher.ask(connection, 307))
            await asyncio.sleep(0)
            assert (await client.reply()).code == 307
            client.close()
            with pytest.raises(ConnectionError):
                await asked

    asyncio.run(run())


def test_stop_reading_leaves_what_comes_where_it_is():
    async def run():
        async with Rig() as rig:
            client = await rig.client()
            await client.send(RemotingCommand(1, 1))
            await client.reply()
            rig.server.stop_reading()
            await client.send(RemotingCommand(1, 2))
            for _ in range(20):
                await asyncio.sleep(0)
            assert client.came == []
            rig.server.close()
            with pytest.raises(ConnectionError):
                assert await client.reply() is None
                raise ConnectionError
            client.close()

    asyncio.run(run())


def test_a_read_of_thousands_of_requests_is_handled_in_several_turns() -> None:
    """9,000 requests in 256 KiB held the loop for 100 ms and more. They stay in order, and others come in between."""

    async def scenario():
        async with Rig() as rig:
            client, other = await rig.client(), await rig.client()
            asked = [request(2, None, b"", opaque=number, serialize_type=1) for number in range(9_000)]
            await client.send(*asked)
            await other.send(request(1, None, b"x", opaque=1))
            for number in range(9_000):
                assert (await client.reply()).opaque == number
            assert (await other.reply()).body == b"x"
            assert sum(rig.turns) == 9_000
            assert max(rig.turns) <= 2 * 1_024
            await client.send(request(1, None, b"y", opaque=2))
            assert (await client.reply()).body == b"y"
            client.close()
            other.close()

    asyncio.run(scenario())


def test_many_long_reads_do_not_shut_out_who_asks_for_one_thing() -> None:
    """Each had its 10 ms in every round of the loop, and more: with a hundred of them, others waited for seconds."""

    async def scenario() -> None:
        async with Rig() as rig:
            received, handled = rig.server.received, 0

            def slow(channel: Channel, commands: Sequence[RemotingCommand]) -> None:
                nonlocal handled
                handled += len(commands)
                end = time.perf_counter() + 0.0005 * len(commands)
                while time.perf_counter() < end:
                    pass
                received(channel, commands)

            rig.server.received = slow
            greedy = [await rig.client() for _ in range(30)]
            other = await rig.client()
            await asyncio.sleep(0)
            asked = [request(2, None, b"", opaque=number) for number in range(500)]
            for client in greedy:
                await client.send(*asked)
            while handled < 500:
                await asyncio.sleep(0)
            before = handled
            await other.send(request(1, None, b"x", opaque=1))
            assert (await other.reply()).body == b"x"
            assert handled - before < 500, "a round for each of the others would be 30 times 20 and more"
            for client in (*greedy, other):
                client.close()

    asyncio.run(scenario())


def test_who_hangs_up_within_a_long_read_gets_nothing_more() -> None:
    async def scenario():
        async with Rig() as rig:
            client = await rig.client()
            asked = [request(2, None, b"", opaque=number, serialize_type=1) for number in range(3_000)]
            asked[2_000] = request(4, None, b"", opaque=2_000, serialize_type=1)
            await client.send(*asked)
            remarks = []
            while (reply := await client.reply()) is not None:
                remarks.append(reply.remark)
            assert "bye" in remarks
            assert len(remarks) < 2_200
            client.close()

    asyncio.run(scenario())
