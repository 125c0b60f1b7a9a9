"""A peer that wishes us ill, or is no broker at all: every call ends in time with an error of ours, and nothing leaks.

It is name server and broker in one. Which requests it answers as it should, and with what the others are answered, is
drawn: garbage, replies with other numbers, half frames, lengths of gigabytes, silence, an end after so many bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from tests.support.fake_broker import FakeBroker
from tests.support.wait import until
from timewheel_client import ClientError, Consumer, Producer
from timewheel_client.values.routes import MAX_QUEUES, route_of

pytestmark = pytest.mark.alone  # its timeouts are some tens of milliseconds

PATIENCE_S = 60
"""Without an end of its own a call would take for ever."""

Answer = Callable[[RemotingCommand, asyncio.Transport], None]


def reply(command: RemotingCommand) -> bytes:
    return encode_command(command.reply(ext={"msgId": "A", "queueId": "0", "queueOffset": "0", "offset": "0"}))


def silence(_: RemotingCommand, __: asyncio.Transport) -> None:
    pass


def sends(data: bytes) -> Answer:
    return lambda _, transport: transport.write(data)


def cut_after(count: int) -> Answer:
    """The first bytes of a good answer, then the end."""

    def answer(command: RemotingCommand, transport: asyncio.Transport) -> None:
        transport.write(reply(command)[:count])
        transport.close()

    return answer


def half(count: int) -> Answer:
    """The first bytes of a good answer, then nothing."""
    return lambda command, transport: transport.write(reply(command)[:count])


def other_number(shift: int) -> Answer:
    def answer(command: RemotingCommand, transport: asyncio.Transport) -> None:
        wrong = command.reply()
        wrong.opaque += shift
        transport.write(encode_command(wrong))

    return answer


def says(code: int, ext: dict[str, str], body: bytes) -> Answer:
    return lambda command, transport: transport.write(encode_command(command.reply(code, "?", ext, body)))


def twice(command: RemotingCommand, transport: asyncio.Transport) -> None:
    transport.write(reply(command) * 2)


def asks_back(command: RemotingCommand, transport: asyncio.Transport) -> None:
    """Requests of its own, with bodies that make no sense, before the answer."""
    for code in (40, 220, 221, 307, 309, 326, 99):
        body = b'{"offsetTable":{{"brokerName":5}:"x"}}' if code == 220 else b"\xff"
        transport.write(encode_command(RemotingCommand(code, 1, ext={"group": "g"}, body=body)))
    transport.write(reply(command))


MAPS = st.dictionaries(
    st.sampled_from(["msgId", "queueId", "queueOffset", "offset", "nextBeginOffset", "recallHandle"]),
    st.sampled_from(["", "x", "-1", "0", "9" * 30, "9" * 5000, "1e9"]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["brokerDatas", "queueDatas", "brokerName", "brokerAddrs", "consumerIdList", "perm", "0"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
ANSWERS = st.one_of(
    st.just(silence),
    st.just(twice),
    st.just(asks_back),
    st.binary(min_size=1, max_size=60).map(sends),
    st.sampled_from([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\4\0\0\0\0"]).map(sends),
    st.sampled_from([b"\0\xff\xff\xff\0\0\0\1", b"\0\0\1\0\2\0\0\0", b"HTTP/1.1 400 \r\n\r\n"]).map(sends),
    st.integers(0, 160).map(cut_after),
    st.integers(1, 160).map(half),
    st.integers(-3, 3).map(other_number),
    st.builds(says, st.sampled_from([0, 1, 2, 14, 17, 19, 20, 21, 22, 24, 27, 1500]), MAPS, st.binary() | JSON),
)


class Hostile(FakeBroker):
    """Answers the n-th request with the n-th of its answers; None: as it should. Behind the last one: as it should."""

    def __init__(self, answers: list[Answer | None]) -> None:
        super().__init__({"t": 1, "%RETRY%g": 1})
        self.answers = iter(answers)
        for code in RequestCode:
            self.handlers[code] = self.act

    def act(self, command: RemotingCommand) -> RemotingCommand | None:
        answer = next(self.answers, None)
        if answer is not None:
            for transport in self.transports[-1:]:
                answer(command, transport)
            return None
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self.route(command)
        if command.code == RequestCode.PULL_MESSAGE:
            return None
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return command.reply(body=b'{"consumerIdList":[]}')
        return command.reply(ext={"msgId": "A", "queueId": "0", "queueOffset": "0", "offset": "0"})


class Surprises(logging.Handler):
    """Collects what the client did not expect: errors that only a log tells of."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.name == "asyncio":
            self.texts.append(self.format(record))

    def check(self) -> None:
        texts, self.texts = self.texts, []
        assert not texts, "\n".join(texts)


SURPRISES = Surprises()


async def nothing_is_left(broker: FakeBroker, before: set[asyncio.Task[object]]) -> None:
    await until(lambda: not broker.transports and asyncio.all_tasks() <= before)
    SURPRISES.check()


@pytest.fixture(scope="module", autouse=True)
def _short() -> object:
    """Patience in milliseconds instead of seconds."""
    patch = pytest.MonkeyPatch()
    for name, ms in {
        "net.connection_table.REQUEST_TIMEOUT_MS": 20,
        "net.connection.CLOSE_TIMEOUT_MS": 20,
        "net.connection.MUTE_MS": 10,
        "net.client_core.UNREGISTER_TIMEOUT_MS": 20,
        "net.client_core.HEARTBEAT_TIMEOUT_MS": 20,
        "net.client_core.REQUEST_TIMEOUT_MS": 20,
        "net.client_core.MISSING_ROUTE_MS": (20, 20),
        "consuming.consumer.LEAVE_MS": 20,
        "consuming.consumer.SETTLE_MS": 20,
        "consuming.queue_reader.ERROR_PAUSE_MS": 2,
        "consuming.queue_reader.BUSY_PAUSE_MS": 2,
        "consuming.queue_reader.SAVE_TIMEOUT_MS": 20,
        "consuming.queue_reader.PULL_TIMEOUT_MS": 30,
        "net.tries.RETRY_PAUSE_MS": 2,
    }.items():
        patch.setattr(f"timewheel_client.{name}", ms)
    for name in ("timewheel_client", "asyncio"):
        logging.getLogger(name).addHandler(SURPRISES)
    yield
    for name in ("timewheel_client", "asyncio"):
        logging.getLogger(name).removeHandler(SURPRISES)
    patch.undo()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.none() | ANSWERS, min_size=1, max_size=8))
def test_a_producer_among_strangers(answers: list[Answer | None]) -> None:
    async def run() -> None:
        async with Hostile(answers) as broker:
            before = asyncio.all_tasks()
            async with (
                asyncio.timeout(PATIENCE_S),
                Producer(broker.address, timeout_ms=60, attempt_timeout_ms=20) as producer,
            ):
                for _ in range(2):
                    with contextlib.suppress(ClientError):
                        result = await producer.send("t", b"x", delay=1)
                        if result.recall_handle:
                            await producer.recall(result)
                with contextlib.suppress(ClientError):
                    await producer.send_batch("t", [b"a", b"b"])
            await nothing_is_left(broker, before)

    asyncio.run(run())


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.none() | ANSWERS, min_size=1, max_size=14))
def test_a_consumer_among_strangers(answers: list[Answer | None]) -> None:
    async def run() -> None:
        async with Hostile(answers) as broker:
            before = asyncio.all_tasks()
            consumer = Consumer(broker.address, "g", "t")
            async with asyncio.timeout(PATIENCE_S):
                with contextlib.suppress(ClientError):
                    async with consumer:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.02):
                                await consumer.__anext__()
            await nothing_is_left(broker, before)

    asyncio.run(run())


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.none() | ANSWERS, min_size=1, max_size=14), st.integers(0, 200))
def test_a_consumer_among_strangers_that_is_cancelled(answers: list[Answer | None], turns: int) -> None:
    async def run() -> None:
        async with Hostile(answers) as broker:
            before = asyncio.all_tasks()

            async def life() -> None:
                async with Consumer(broker.address, "g", "t") as consumer:
                    async for message in consumer:
                        await message.ack()

            async with asyncio.timeout(PATIENCE_S):
                task = asyncio.ensure_future(life())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ClientError):
                    await task
            await nothing_is_left(broker, before)

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ texts and numbers

EVIL = "\x1b]0;renamed\x07\n2026-01-01 ERROR a line of its own\r\u202e"


def route_with(address: str, brokers: int = 1, queues: int = 2) -> bytes:
    names = [f"broker-{number}" for number in range(brokers)]
    document = {
        "brokerDatas": [{"brokerAddrs": {"0": address}, "brokerName": name, "cluster": "c"} for name in names],
        "queueDatas": [
            {"brokerName": name, "perm": 6, "readQueueNums": queues, "writeQueueNums": queues} for name in names
        ],
    }
    return json.dumps(document).encode()


async def error_of_send(broker: FakeBroker) -> ClientError:
    async with Producer(broker.address, timeout_ms=300) as producer:
        with pytest.raises(ClientError) as caught:
            await producer.send("T", b"x")
    return caught.value


def test_what_a_peer_has_written_moves_no_cursor_and_makes_no_line(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with FakeBroker({"T": 1}) as broker:
            broker.handlers[RequestCode.SEND_MESSAGE_V2] = lambda command: command.reply(1, EVIL)
            error = await error_of_send(broker)
            assert str(error).isprintable()
            broker.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda command: command.reply(1, EVIL)
            assert str(await error_of_send(broker)).isprintable()

    asyncio.run(run())
    log = logging.getLogger("timewheel_client")
    with caplog.at_level(logging.INFO, "timewheel_client"):
        log.error("message %s cannot be read", EVIL)
        try:
            raise RuntimeError(EVIL)
        except RuntimeError:
            log.exception("%s failed", EVIL)
    assert "renamed" in caplog.text
    assert all(line.isprintable() for line in caplog.text.split("\n"))
    assert not any(line.startswith("2026-01-01") for record in caplog.records for line in record.message.split("\n"))


@pytest.mark.parametrize("host", ["a..b", "a\x00b", "x" * 70, "\u202e", "-", " ", "a b", "%", "\ud800"])
def test_a_route_to_what_is_no_host_is_an_error_of_ours(host: str) -> None:
    async def run() -> None:
        async with FakeBroker() as broker:
            body = route_with(f"{host}:10911")
            broker.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda command: command.reply(body=body)
            assert str(await error_of_send(broker)).isprintable()

    asyncio.run(run())


def test_a_route_with_more_queues_than_there_can_be_is_not_believed() -> None:
    route_of("T", json.loads(route_with("127.0.0.1:1", 4, MAX_QUEUES)))
    with pytest.raises(ValueError, match="more than 262144 queues"):
        route_of("T", json.loads(route_with("127.0.0.1:1", 5, MAX_QUEUES)))
