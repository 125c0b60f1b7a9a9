"""What a peer may cost the server: memory, connections, time; real sockets on 127.0.0.1, inside one loop."""

import asyncio
import struct

import pytest

from broker.net.flow_control import FlowControl
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from tests.broker.core_rig import Rig as CoreRig
from tests.broker.test_server import Rig
from tests.support.wait import until

MIB = 1 << 20


async def part_of_a_frame(rig, announced, size):
    client = await rig.client()
    await client.loop.sock_sendall(client.sock, struct.pack(">II", announced - 4, 100) + bytes(size))
    return client


def test_a_frame_that_is_announced_costs_nothing_before_it_comes():
    async def run():
        async with Rig(held_max_bytes=MIB) as rig:
            clients = [await part_of_a_frame(rig, 16 * MIB, 100) for _ in range(20)]
            await clients[0].loop.sock_sendall(clients[0].sock, bytes(100_000))
            await until(lambda: rig.server.held_bytes >= 100_000)
            assert rig.server.held_bytes < 110_000 and not rig.closed
            for client in clients:
                client.close()
            await until(lambda: len(rig.closed) == 20)
            assert rig.server.held_bytes == 0

    asyncio.run(run())


def test_unfinished_frames_beyond_the_bound_end_the_connections_with_the_most(caplog):
    async def run():
        async with Rig(held_max_bytes=2 * MIB) as rig:
            small = await part_of_a_frame(rig, 4 * MIB, 300_000)
            await until(lambda: rig.server.held_bytes > 300_000)
            large = [await part_of_a_frame(rig, 4 * MIB, MIB) for _ in range(3)]
            await until(lambda: rig.closed)
            assert rig.server.held_bytes <= 2 * MIB
            await small.loop.sock_sendall(small.sock, bytes(1))
            assert small.sock.getsockname() not in [connection.peer for connection in rig.closed]
            for client in (small, *large):
                client.close()
            await until(lambda: not rig.server.connection_count)
            assert rig.server.held_bytes == 0

    asyncio.run(run())
    assert "connection closed: it held" in caplog.text and "connectionBytesMax=" in caplog.text


def test_a_whole_frame_in_pieces_is_not_counted_any_more():
    async def run():
        async with Rig(held_max_bytes=8 * MIB) as rig:
            client = await rig.client()
            frame = encode_command(RemotingCommand(1, 5, body=bytes(3 * MIB)))
            await client.loop.sock_sendall(client.sock, frame[: 2 * MIB])
            await until(lambda: rig.server.held_bytes > MIB)
            await client.loop.sock_sendall(client.sock, frame[2 * MIB :])
            assert (await client.reply()).opaque == 5
            await until(lambda: rig.server.held_bytes == 0)
            client.close()

    asyncio.run(run())


def test_replies_that_nobody_takes_are_bounded_for_all_together():
    async def run():
        async with Rig(held_max_bytes=8 * MIB) as rig:
            clients = [await rig.client() for _ in range(10)]
            for client in clients:
                await client.send(*[RemotingCommand(3, n) for n in range(30)])
            await until(lambda: len(rig.closed) >= 5)
            assert rig.server.held_bytes <= 8 * MIB
            for client in clients:
                client.close()
            await until(lambda: not rig.server.connection_count)
            assert rig.server.held_bytes == 0

    asyncio.run(run())


def test_when_memory_is_tight_who_takes_nothing_is_not_read_from_and_others_are():
    async def run():
        async with Rig(held_max_bytes=4 * MIB) as rig:
            slow, good = await rig.client(), await rig.client()
            await slow.send(*[RemotingCommand(3, n) for n in range(10)])
            await until(lambda: rig.server.tight or rig.closed)
            assert not rig.closed or rig.closed[0].peer == slow.sock.getsockname()
            (busy,) = [c for c in rig.server._connections if c.peer == slow.sock.getsockname()] or [None]
            assert busy is None or not busy._events & 1
            await good.send(RemotingCommand(1, 1))
            assert (await good.reply()).opaque == 1
            slow.close()
            good.close()

    asyncio.run(run())


def test_who_asks_on_but_takes_nothing_of_what_waits_for_it_is_closed_by_sweeps():
    async def run():
        async with Rig(idle_ms=20_000) as rig:
            slow = await rig.client()
            # Just below what stops reading, and more than the two kernels' buffers take.
            await slow.send(*[RemotingCommand(3, n) for n in range(8)])
            (connection,) = rig.server._connections
            await until(lambda: connection._backlog_bytes)
            for number in range(2):
                await slow.send(RemotingCommand(1, 100 + number))
                await until(lambda: not rig.server._dirty)
                connection.idle = 0
                rig.server.sweep(10_000)
            assert not rig.closed
            rig.server.sweep(10_000)
            assert rig.closed == [connection]
            slow.close()

    asyncio.run(run())


def test_one_connection_too_many_is_turned_away_and_the_log_says_what_to_do(caplog):
    async def run():
        async with Rig(connections_max=2) as rig:
            first, second, third = [await rig.client() for _ in range(3)]
            assert await third.reply() is None
            await second.send(RemotingCommand(1, 7))
            assert (await second.reply()).opaque == 7
            rig.server.sweep(1)
            first.close()
            await until(lambda: rig.closed)
            fourth = await rig.client()
            await fourth.send(RemotingCommand(1, 8))
            assert (await fourth.reply()).opaque == 8
            for client in (second, third, fourth):
                client.close()

    asyncio.run(run())
    assert "1 connections were refused, 2 are open. " in caplog.text and "LimitNOFILE" in caplog.text


@pytest.mark.pure
def test_who_cannot_be_read_in_time_comes_first_in_the_next_slice_and_is_late(monkeypatch):
    monkeypatch.setattr("broker.net.clock._SLICE_S", -1.0)
    monkeypatch.setattr("broker.net.clock._SLICE_EACH_S", -1.0)

    async def run():
        async with Rig() as rig:
            waited: list[tuple[int, int, int]] = []

            def late(channel, commands, waited_ms, waiting):
                waited.append((commands[0].opaque, waited_ms, waiting))
                rig.dispatcher.received(channel, commands)

            rig.server.late = late
            clients = [await rig.client() for _ in range(30)]
            await until(lambda: rig.server.connection_count == 30)
            # All at once: nothing of the loop runs between these.
            for number, client in enumerate(clients):
                client.sock.send(encode_command(RemotingCommand(1, number)))
            for number, client in enumerate(clients):
                assert (await client.reply()).opaque == number
            assert len(waited) == 30 - 8, "the first eight need no look at the clock"
            assert waited[0][2] >= 2
            assert all(ms >= 0 for _, ms, _ in waited)
            assert rig.server._waiting == {}
            for client in clients:
                client.close()

    asyncio.run(run())


def test_sends_that_waited_too_long_are_answered_broker_busy_and_the_rest_is_served(tmp_path):
    rig = CoreRig(tmp_path / "store")
    client = rig.client()
    control = FlowControl(rig.core.dispatcher, 200)

    def bring(waited_ms):
        commands = []
        fields = client.send_fields("T")
        for code, flag in ((RequestCode.SEND_MESSAGE_V2, 0), (RequestCode.SEND_MESSAGE_V2, 2), (0, 0)):
            ext = {name: str(value) for name, value in (fields if code else {}).items()}
            frame = encode_command(RemotingCommand(code or 105, len(commands), flag, ext=ext, body=b"x"))
            commands += FrameDecoder().feed(frame)
        control.late(client.channel, commands, waited_ms, 17)
        rig.core.end_turn()
        return {reply.opaque: reply for reply in client.take()}

    served = bring(200)
    assert served[0].code == 0 and rig.store.max_offset("T", 0) == 2
    refused = bring(201)
    assert refused.keys() == {0, 2}, "a one-way send gets no answer"
    assert refused[0].code == ResponseCode.SYSTEM_BUSY
    assert refused[0].remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 201ms, size of queue: 17"
    )
    assert refused[2].code == served[2].code != ResponseCode.SYSTEM_BUSY
    assert control.refused_count == 2 and rig.store.max_offset("T", 0) == 2
    rig.close()


@pytest.mark.pure
def test_while_too_much_waits_for_a_sync_sends_are_rejected_with_the_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("broker.turns.durable_replies.KEPT_BYTES_MAX", 100)
    rig = CoreRig(tmp_path / "store")
    client, turn = rig.client(), rig.core.turn
    assert client.send("T").code == 0
    assert not turn.refusing, "it is looked at by the clock"
    turn.look_at_disk()
    reply = client.send("T")
    assert reply.code == ResponseCode.SYSTEM_BUSY
    words = "[REJECTREQUEST]system busy, start flow control for a while: "
    assert reply.remark == f"{words}{rig.store.commit_log.end} bytes wait for the disk to sync them, at most 100 may"
    rig.store.commit_log.sync()
    turn.look_at_disk()
    assert client.send("T").code == 0
    rig.close()


def test_large_replies_do_not_gather_until_the_turn_ends():
    class Watching(Rig):
        gathered_most = 0

        def big(self, channel, command, now_ms):
            self.gathered_most = max(self.gathered_most, sum(map(len, channel._out)))
            return super().big(channel, command, now_ms)

    async def run():
        async with Watching() as rig:
            client = await rig.client()
            await client.send(*[RemotingCommand(3, n) for n in range(20)])
            for number in range(20):
                assert (await client.reply()).opaque == number
            assert rig.gathered_most == 0
            client.close()

    asyncio.run(run())


@pytest.mark.pure
def test_consumers_come_first_while_deliveries_are_late_and_nobody_is_left_out(monkeypatch):
    monkeypatch.setattr("broker.net.clock._LATE_SLICE_S", -1.0)
    monkeypatch.setattr("broker.net.clock._LATE_SLICE_EACH_S", -1.0)

    async def run(late):
        async with Rig() as rig:
            order: list[int] = []

            def received(channel, commands):
                order.append(commands[0].opaque)
                channel.state.consumes = commands[0].opaque >= 20
                rig.dispatcher.received(channel, commands)

            rig.server.received = received
            clients = [await rig.client() for _ in range(30)]
            await until(lambda: rig.server.connection_count == 30)
            rig.server.pace.yields = lambda: late
            for _ in range(2):  # the first time nobody is known as a consumer
                order.clear()
                for number, client in enumerate(clients):
                    client.sock.send(encode_command(RemotingCommand(1, number)))
                for number, client in enumerate(clients):
                    assert (await client.reply()).opaque == number
            for client in clients:
                client.close()
            return order

    assert asyncio.run(run(late=False)) == [*range(30)]
    # A turn whose time is over has one consumer and one of the others: in turn, each kind by how long it has waited.
    expected = [number for pair in zip(range(20, 30), range(10), strict=True) for number in pair]
    assert asyncio.run(run(late=True)) == [*expected, *range(10, 20)]


@pytest.mark.pure
@pytest.mark.parametrize("where", ["end of turn", "handling"])
def test_an_error_in_the_rest_of_a_read_ends_nobodys_reading(where):
    async def run():
        async with Rig() as rig:
            errors: list[str] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, found: errors.append(str(found["exception"])))
            failed: set[str] = set()
            inside = False
            go_on = rig.server._go_on

            def watched():
                nonlocal inside
                inside = True
                try:
                    go_on()
                finally:
                    inside = False

            rig.server._go_on = watched

            def fail(place):
                if place == where and inside and place not in failed:
                    failed.add(place)
                    raise RuntimeError(place)

            def received(channel, commands):
                fail("handling")
                rig.dispatcher.received(channel, commands)
                monotonic = asyncio.get_running_loop().time
                end = monotonic() + 0.0003 * len(commands)
                while monotonic() < end:
                    pass

            rig.server.received = received
            usual = rig.server.end_of_turn
            rig.server.end_of_turn = lambda: (usual(), fail("end of turn"))
            clients = [await rig.client() for _ in range(3)]
            for client in clients:
                client.sock.send(encode_command(RemotingCommand(1, 1)) * 300)
            await until(lambda: failed and not rig.server._unfinished)
            await until(lambda: all(connection._events & 1 for connection in rig.server._connections))
            assert errors == [where]
            for client in clients:
                client.close()

    asyncio.run(run())
