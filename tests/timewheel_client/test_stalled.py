"""Peers that stop in the middle: they do not read, do not answer, vanish without a word, or come back later."""

from __future__ import annotations

import asyncio
import socket

import pytest

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.support.fake_broker import FakeBroker
from tests.support.group_broker import GroupBroker, take
from tests.support.wait import until
from timewheel_client import (
    ClosedError,
    ConnectionFailedError,
    Consumer,
    NoRouteError,
    Producer,
    RequestTimeoutError,
    SendError,
)
from timewheel_client.net.connection import ClientConnection
from timewheel_client.net.connection_table import ConnectionTable

pytestmark = pytest.mark.alone  # its timeouts are some tens of milliseconds

SEND = RequestCode.SEND_MESSAGE_V2


def stored(command: RemotingCommand) -> RemotingCommand:
    return command.reply(ext={"msgId": "A" * 32, "queueId": command.ext["e"], "queueOffset": "7"})


def storing() -> FakeBroker:
    broker = FakeBroker({"t": 1})
    broker.handlers[SEND] = stored
    return broker


def stall(broker: FakeBroker) -> None:
    """From now on it reads nothing, on no connection."""
    for transport in broker.transports:
        transport.pause_reading()


@pytest.mark.asyncio
async def test_a_broker_that_does_not_read_holds_neither_send_nor_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send took 20 s with ``timeout_ms=2000``: it waited for the socket to be writable, and nobody counted that."""
    monkeypatch.setattr("timewheel_client.net.connection.CLOSE_TIMEOUT_MS", 50)
    monkeypatch.setattr("timewheel_client.net.client_core.UNREGISTER_TIMEOUT_MS", 50)
    async with storing() as broker:
        producer = await Producer(broker.address, timeout_ms=1_000, attempt_timeout_ms=500).start()
        await producer.send("t", b"")
        stall(broker)
        clock = asyncio.get_running_loop().time
        began = clock()
        sends = [producer.send("t", bytes(1 << 20)) for _ in range(20)]
        errors = await asyncio.gather(*sends, producer.send_oneway("t", b"x"), return_exceptions=True)
        assert {type(error) for error in errors[:20]} <= {RequestTimeoutError, ConnectionFailedError}
        assert clock() - began < 10, "one after the other: 20 s"
        began = clock()
        await producer.close()
        assert clock() - began < 10, "it waited for the socket for ever"
        for _ in range(2):
            await producer.close()


@pytest.mark.asyncio
async def test_a_name_server_that_does_not_answer_holds_no_send() -> None:
    async with storing() as broker, Producer(broker.address, timeout_ms=50) as producer:
        broker.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None
        for call in (producer.send("t", b""), producer.send_oneway("t", b""), producer.queues("t")):
            with pytest.raises(RequestTimeoutError, match="in time"):
                await call


@pytest.mark.asyncio
async def test_sends_in_flight_at_the_close_fail_and_are_not_cancelled() -> None:
    async with storing() as broker:
        broker.handlers[SEND] = lambda _: None
        producer = await Producer(broker.address).start()
        sends = [asyncio.ensure_future(producer.send("t", b"")) for _ in range(3)]
        await until(lambda: len(broker.of(SEND)) == 3)
        await producer.close()
        for send in sends:
            with pytest.raises((ClosedError, ConnectionFailedError)):
                await send


@pytest.mark.asyncio
async def test_who_waits_for_a_connect_or_a_route_at_the_close_is_told_so() -> None:
    """Closing cancels the connect that they share; they are not cancelled themselves."""
    table = ConnectionTable()
    silent = socket.create_server(("127.0.0.1", 0), backlog=0)
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    filler = socket.create_connection(silent.getsockname())  # the queue of waiting connects is full
    waiting = [asyncio.ensure_future(table.get(address)) for _ in range(2)]
    await asyncio.sleep(0)
    await table.close()
    for one in waiting:
        error = (await asyncio.gather(one, return_exceptions=True))[0]
        assert isinstance(error, ClosedError | ClientConnection), error
    silent.close()
    filler.close()


@pytest.mark.asyncio
async def test_a_connection_whose_peer_says_nothing_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel_client.net.connection.MUTE_MS", 200)
    async with storing() as broker:
        table = ConnectionTable()
        await table.request(broker.address, 10)
        first = broker.transports[0]
        broker.handlers[10] = lambda _: None
        with pytest.raises(RequestTimeoutError):
            await table.request(broker.address, 10, timeout_ms=5)  # too short a silence to tell
        await table.request(broker.address, 11)
        assert broker.connects == 1
        stall(broker)
        with pytest.raises(RequestTimeoutError):
            await table.request(broker.address, 11, timeout_ms=300)
        await table.request(broker.address, 11)
        assert broker.connects == 2
        assert len(table._leaving) == 1
        first.resume_reading()
        await table.close()


@pytest.mark.asyncio
async def test_a_slow_peer_that_says_something_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel_client.net.connection.MUTE_MS", 200)
    async with storing() as broker:
        table = ConnectionTable()
        broker.handlers[10] = lambda _: None

        async def talk() -> None:
            while True:
                await table.request(broker.address, 11)

        talking = asyncio.ensure_future(talk())
        with pytest.raises(RequestTimeoutError):
            await table.request(broker.address, 10, timeout_ms=600)
        talking.cancel()
        assert broker.connects == 1
        await table.close()


@pytest.mark.asyncio
async def test_a_consumer_behind_a_half_open_connection_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat is the probe: pulls wait for half a minute and tell nothing."""
    monkeypatch.setattr("timewheel_client.net.connection.MUTE_MS", 20)
    monkeypatch.setattr("timewheel_client.net.connection_table.REQUEST_TIMEOUT_MS", 30)
    monkeypatch.setattr("timewheel_client.net.client_core.HEARTBEAT_MS", 20)
    monkeypatch.setattr("timewheel_client.net.client_core.HEARTBEAT_TIMEOUT_MS", 60)
    monkeypatch.setattr("timewheel_client.consuming.queue_reader.ERROR_PAUSE_MS", 1)
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker, Consumer(broker.address, "g", "t") as consumer:
        await until(lambda: len(broker.held) == 2)
        broker.held.clear()
        connects = broker.connects
        stall(broker)
        await until(lambda: broker.connects > connects and len(broker.held) == 2)
        for transport in broker.transports[:-1]:
            transport.abort()
        broker.transports = broker.transports[-1:]
        broker.put("t", 0, b"after")
        assert (await take(consumer, 1))[0].body == b"after"


@pytest.mark.asyncio
async def test_the_kernel_probes_connections() -> None:
    async with FakeBroker() as broker:
        connection = await ClientConnection.open(broker.address)
        assert connection._transport is not None
        plain = connection._transport.get_extra_info("socket")
        assert plain.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        await connection.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("fixed", [{}, {"queue": 0}, {"sharding_key": "k"}])
async def test_a_send_outlives_the_restart_of_its_broker(
    fixed: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tries were used up within 0.3 s, whatever ``timeout_ms`` said."""
    monkeypatch.setattr("timewheel_client.net.tries.RETRY_PAUSE_MS", 1)
    monkeypatch.setattr("timewheel_client.net.tries.MAX_PAUSE_MS", 5)
    async with storing() as broker:
        async with Producer(broker.address) as producer:
            await producer.send("t", b"before")
            await broker.stop()
            tries = 0
            choose = producer._tries.choose

            def counted(*arguments: object) -> object:
                nonlocal tries
                tries += 1
                return choose(*arguments)  # type: ignore[arg-type]

            monkeypatch.setattr(producer._tries, "choose", counted)
            sending = asyncio.ensure_future(producer.send("t", b"meanwhile", **fixed))  # type: ignore[arg-type]
            await until(lambda: tries > 10)
            del broker.handlers[SEND]
            starting = iter([14, 2, 14])
            broker.handlers[SEND] = lambda command: (
                command.reply(code, "not yet") if (code := next(starting, 0)) else stored(command)
            )
            broker.topics.clear()  # it has not registered itself yet
            await broker.listen()
            await until(lambda: len(broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) > 3)
            broker.topics["t"] = 1
            assert (await sending).status == "SEND_OK"
        ids = {command.ext["i"] for command in broker.of(SEND) if command.body == b"meanwhile"}
        assert len(ids) == 1  # the same id each time: who gets it twice can tell


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [2, 14])
async def test_a_broker_that_says_not_now_is_asked_until_the_time_is_up(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timewheel_client.net.tries.RETRY_PAUSE_MS", 1)
    async with storing() as broker:
        broker.handlers[SEND] = lambda command: command.reply(code, "not now")
        async with Producer(broker.address, timeout_ms=600) as producer:
            with pytest.raises(SendError, match="not now"):
                await producer.send("t", b"")
            assert len(broker.of(SEND)) > 3
        broker.requests.clear()
        async with Producer(broker.address, attempts=2) as producer:
            with pytest.raises(SendError, match="not now"):
                await producer.send("t", b"")
            assert len(broker.of(SEND)) == 2


@pytest.mark.asyncio
async def test_one_attempt_is_one_attempt() -> None:
    async with storing() as broker:
        broker.handlers[SEND] = lambda _: broker.drop_connections()
        async with Producer(broker.address, attempts=1) as producer:
            with pytest.raises(ConnectionFailedError):
                await producer.send("t", b"")
        assert len(broker.of(SEND)) == 1


@pytest.mark.asyncio
async def test_a_topic_that_never_was_is_an_error_at_once() -> None:
    async with storing() as broker, Producer(broker.address) as producer:
        with pytest.raises(NoRouteError):
            await producer.send("nowhere", b"")
        assert len(broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2  # of it and of the template
