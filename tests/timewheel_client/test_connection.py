from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from remoting.command import RemotingCommand, encode_command
from remoting.signing import fits
from tests.support.fake_broker import FakeBroker
from timewheel_client import Consumer, Producer
from timewheel_client.net.connection import ClientConnection, split_address
from timewheel_client.net.connection_table import ConnectionTable
from timewheel_client.net.credentials import Credentials, credentials_of
from timewheel_client.values.errors import ClosedError, ConnectionFailedError, NotWrittenError, RequestTimeoutError


def test_split_address() -> None:
    assert split_address("[::1]:9876") == ("::1", 9876)
    for wrong in ("", "host", "host:", ":1", "host:x", "host:0", "host:70000"):
        with pytest.raises(ValueError, match="expected HOST:PORT"):
            split_address(wrong)


@pytest.mark.asyncio
async def test_many_requests_are_in_flight_and_replies_may_come_in_any_order() -> None:
    async with FakeBroker() as broker:
        held: list[RemotingCommand] = []

        def hold(command: RemotingCommand) -> None:
            held.append(command)
            if len(held) == 100:
                for other in reversed(held):
                    broker.transports[0].write(encode_command(other.reply(body=other.body)))

        broker.handlers[10] = hold
        connection = await ClientConnection.open(broker.address)
        replies = await asyncio.gather(*(connection.request(10, None, b"%d" % number) for number in range(100)))
        assert [reply.body for reply in replies] == [b"%d" % number for number in range(100)]
        assert connection.in_flight == 0
        assert connection.local_host == "127.0.0.1"
        await connection.close()
        assert connection.closed


@pytest.mark.asyncio
async def test_what_one_turn_sends_goes_out_as_one_write() -> None:
    async with FakeBroker() as broker:
        connection = await ClientConnection.open(broker.address)
        assert connection._transport is not None
        writes: list[bytes] = []
        write = connection._transport.write

        def counted(data: bytes) -> None:
            writes.append(data)
            write(data)

        connection._transport.write = counted  # type: ignore[method-assign,assignment]
        await asyncio.gather(*(connection.request(10) for _ in range(50)))
        assert len(writes) == 1
        await connection.close()


@pytest.mark.asyncio
async def test_a_request_is_written_only_if_its_sender_may_right_before_the_write() -> None:
    """Between a look and the write all of a turn's requests are made, and a process may stand still."""
    async with FakeBroker() as broker:
        seen: list[bytes] = []
        broker.handlers[10] = lambda command: seen.append(command.body) or command.reply()
        connection = await ClientConnection.open(broker.address)
        allowed = True
        sent = {
            body: connection.request_now(10, {}, body, timeout_ms=5_000, may=may)
            for body, may in ((b"a", lambda: allowed), (b"b", lambda: True), (b"c", None), (b"d", lambda: allowed))
        }
        allowed = False
        for body, reply in sent.items():
            if body in b"ad":
                with pytest.raises(NotWrittenError):
                    await reply
            else:
                assert (await reply).code == 0
        allowed = True
        await connection.request_now(10, {}, b"e", timeout_ms=5_000, may=lambda: allowed)
        assert sorted(seen) == [b"b", b"c", b"e"]
        assert connection.in_flight == 0
        await connection.close()
        with pytest.raises(ConnectionFailedError):
            connection.request_now(10, {}, b"f", timeout_ms=5_000, may=lambda: True)


@asynccontextmanager
async def stuck() -> AsyncIterator[tuple[ClientConnection, FakeBroker]]:
    """A connection in whose transport some bytes wait: its peer reads nothing until its first transport may."""
    async with FakeBroker() as broker:
        connection = await ClientConnection.open(broker.address)
        await connection.request(11)
        broker.transports[0].pause_reading()
        transport = connection._transport
        assert transport is not None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
        broker.transports[0].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        await connection.oneway(12, None, bytes(1_000_000))
        await asyncio.sleep(0)
        assert transport.get_write_buffer_size()
        yield connection, broker
        await connection.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("late", ["not owner", "too late"])
async def test_what_would_wait_in_the_transport_is_not_written_before_its_sender_is_asked(late: str) -> None:
    """The transport writes what waits in it when the peer reads on, also after the process has stood still."""
    async with stuck() as (connection, broker):
        asked: list[bytes] = []
        allowed = True

        def may(body: bytes) -> bool:
            asked.append(body)
            return allowed

        timeout_ms = 20_000 if late == "not owner" else 20
        sent = [
            connection.request_now(10, {}, body, timeout_ms=timeout_ms, may=partial(may, body)) for body in (b"a", b"b")
        ]
        assert not connection.is_writable
        other = await ClientConnection.open(broker.address)
        await other.request(11)  # some turns of the loop
        await other.close()
        assert asked == []
        if late == "not owner":
            allowed = False
            broker.transports[0].resume_reading()
        for reply in sent:
            with pytest.raises(NotWrittenError if late == "not owner" else RequestTimeoutError):
                await reply
        broker.transports[0].resume_reading()
        allowed = True
        await connection.request_now(13, {}, b"c", timeout_ms=20_000, may=partial(may, b"c"))
        assert (len(broker.of(10)), len(broker.of(13))) == (0, 1)
        assert connection.in_flight == 0


@pytest.mark.asyncio
async def test_each_system_call_has_its_own_look() -> None:
    """A hundred requests of one turn were asked about together; a peer takes them in during many turns."""
    async with stuck() as (connection, broker):
        sent = [
            connection.request_now(10, {}, bytes(40_000), timeout_ms=20_000, may=lambda: len(broker.of(10)) < 5)
            for _ in range(100)
        ]
        broker.transports[0].resume_reading()
        results = await asyncio.gather(*sent, return_exceptions=True)
        unwritten = [isinstance(result, NotWrittenError) for result in results]
        assert unwritten == sorted(unwritten)
        assert 5 <= len(broker.of(10)) == unwritten.count(False) < 50


@pytest.mark.asyncio
async def test_nothing_is_handed_to_a_connection_that_has_just_broken(caplog: pytest.LogCaptureFixture) -> None:
    """Each further piece of 32 KiB was, and asyncio logged a warning for nearly each."""
    async with FakeBroker() as broker:
        connection = await ClientConnection.open(broker.address)
        await connection.request(11)
        transport = connection._transport
        assert transport is not None
        transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
        asked: list[int] = []
        sent = [
            connection.request_now(10, {}, bytes(40_000), timeout_ms=20_000, may=lambda: not asked.append(1))
            for _ in range(20)
        ]
        for reply in sent:
            with pytest.raises(ConnectionFailedError):
                await reply
        assert len(asked) == 1 and not caplog.records


@pytest.mark.asyncio
async def test_what_is_kept_back_when_the_connection_closes_is_not_written() -> None:
    async with stuck() as (connection, broker):
        sent = [connection.request_now(10, {}, b"a", timeout_ms=20_000, may=lambda: True) for _ in range(3)]
        closing = asyncio.ensure_future(connection.close())
        await asyncio.sleep(0)
        broker.transports[0].resume_reading()
        await closing
        for reply in sent:
            with pytest.raises(ConnectionFailedError):
                await reply
        assert not broker.of(10) and connection.in_flight == 0


@pytest.mark.asyncio
async def test_with_credentials_every_request_is_signed() -> None:
    async with FakeBroker() as broker:
        seen: list[RemotingCommand] = []
        broker.handlers[10] = lambda command: seen.append(command) or command.reply()  # type: ignore[func-returns-value]
        connection = await ClientConnection.open(broker.address, credentials=Credentials("reader", "a-secret"))
        await connection.oneway(10, {"topic": "T"}, b"body")
        await connection.request(10, {"topic": "T"}, b"body")
        await connection.request(10)
        await connection.close()
        assert [sorted(command.ext) for command in seen] == [["AccessKey", "Signature", "topic"]] * 2 + [
            ["AccessKey", "Signature"]
        ]
        for command in seen:
            assert command.ext["AccessKey"] == "reader"
            assert fits(command.ext["Signature"], command.ext, command.body, "a-secret", command.version)


def test_keys_belong_together_and_the_secret_is_not_shown() -> None:
    assert credentials_of(None, None) is None
    for keys in (("reader", None), (None, "a-secret"), ("", "a-secret")):
        with pytest.raises(ValueError, match=r"belong together: (access|secret)_key is missing"):
            Producer("127.0.0.1:9876", access_key=keys[0], secret_key=keys[1])
        with pytest.raises(ValueError, match="belong together"):
            Consumer("127.0.0.1:9876", "g", "T", access_key=keys[0], secret_key=keys[1])
    assert "a-secret" not in repr(Credentials("reader", "a-secret"))


@pytest.mark.asyncio
async def test_no_reply_in_time() -> None:
    async with FakeBroker() as broker:
        broker.handlers[10] = lambda _: None
        connection = await ClientConnection.open(broker.address)
        with pytest.raises(RequestTimeoutError, match="within 20 ms"):
            await connection.request(10, timeout_ms=20)
        with pytest.raises(TimeoutError):
            await connection.request(10, timeout_ms=1)
        assert connection.in_flight == 0
        await connection.close()


@pytest.mark.asyncio
async def test_a_broken_connection_fails_what_is_in_flight() -> None:
    async with FakeBroker() as broker:
        broker.handlers[10] = lambda _: broker.drop_connections()
        connection = await ClientConnection.open(broker.address)
        with pytest.raises(ConnectionFailedError):
            await connection.request(10)
        with pytest.raises(ConnectionError):
            await connection.request(10)
        with pytest.raises(ConnectionFailedError):
            await connection.oneway(10)


@pytest.mark.asyncio
async def test_garbage_ends_the_connection() -> None:
    async with FakeBroker() as broker:
        broker.handlers[10] = lambda _: broker.transports[0].write(b"HTTP/1.1 200 OK\r\n\r\n")
        connection = await ClientConnection.open(broker.address)
        with pytest.raises(ConnectionFailedError, match="not the protocol"):
            await connection.request(10)


@pytest.mark.asyncio
async def test_nobody_listens() -> None:
    async with FakeBroker() as broker:
        address = broker.address
    with pytest.raises(ConnectionFailedError, match="Connection refused"):
        await ClientConnection.open(address)


@pytest.mark.asyncio
async def test_requests_of_the_peer_are_served() -> None:
    async with FakeBroker() as broker:
        seen: list[int] = []

        def serve(command: RemotingCommand) -> RemotingCommand | None:
            seen.append(command.code)
            if command.code == 1:
                raise RuntimeError("a fault of the handler's")
            return command.reply() if command.code == 40 else None

        connection = await ClientConnection.open(broker.address, on_request=serve)
        await connection.request(10)
        for code in (40, 1, 99):
            broker.transports[0].write(encode_command(RemotingCommand(code, code)))
        await connection.request(10)
        await connection.request(10)
        replies = {command.opaque: command.code for command in broker.requests if command.is_response}
        assert seen == [40, 1, 99]
        assert replies == {40: 0, 1: 3, 99: 3}
        await connection.close()


@pytest.mark.asyncio
async def test_a_slow_peer_makes_writers_wait() -> None:
    async with FakeBroker() as broker:
        connection = await ClientConnection.open(broker.address)
        connection.pause_writing()
        waiting = asyncio.ensure_future(connection.request(10))
        await asyncio.sleep(0)
        assert connection.in_flight == 0
        connection.resume_writing()
        await waiting
        await connection.close()


@pytest.mark.asyncio
async def test_table_shares_a_connection_and_makes_a_new_one_when_it_broke() -> None:
    async with FakeBroker() as broker:
        opened: list[str] = []
        table = ConnectionTable(on_open=opened.append)
        await asyncio.gather(*(table.request(broker.address, 10) for _ in range(10)))
        assert broker.connects == 1
        broker.drop_connections()
        with pytest.raises(ConnectionFailedError):
            await table.request(broker.address, 10)
        await table.request(broker.address, 10)
        assert broker.connects == 2
        assert opened == [broker.address] * 2
        await table.close()
        with pytest.raises(ClosedError):
            await table.get(broker.address)


@pytest.mark.asyncio
async def test_go_away_is_followed_by_the_same_request_on_a_new_connection() -> None:
    async with FakeBroker() as broker:
        broker.handlers[10] = lambda command: command.reply(1500 if broker.connects == 1 else 0)
        table = ConnectionTable()
        assert (await table.request(broker.address, 10)).code == 0
        assert broker.connects == 2
        await table.close()


@pytest.mark.asyncio
async def test_a_failed_connect_fails_all_who_wait_for_it() -> None:
    async with FakeBroker() as broker:
        address = broker.address
    table = ConnectionTable()
    results = await asyncio.gather(*(table.get(address) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, ConnectionFailedError) for result in results)
    await table.close()
