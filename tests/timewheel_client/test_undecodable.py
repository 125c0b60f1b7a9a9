"""Records that cannot be read: the good ones beside them arrive, the bad one is reported, and reading goes on."""

from __future__ import annotations

import asyncio
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.messages.message import Message as WireMessage
from remoting.messages.message import decode_record, encode_host, encode_record
from tests.support.group_broker import GroupBroker, take
from tests.support.wait import until
from timewheel_client import Consumer, MessageQueue, ReceivedMessage, UndecodableMessage
from timewheel_client.consuming.pulled import BadRecord, read_pulled

HOST = encode_host("127.0.0.1", 10911)
PULL = RequestCode.PULL_MESSAGE
BODY_AT = 88


def damage_body(record: bytes) -> bytes:
    """A flipped bit in the body: the checksum does not fit."""
    return record[:BODY_AT] + bytes((record[BODY_AT] ^ 1,)) + record[BODY_AT + 1 :]


def damage_size(record: bytes) -> bytes:
    """A length that leads nowhere: where the next record begins is not known."""
    return (len(record) + 7).to_bytes(4, "big") + record[4:]


def damage_magic(record: bytes) -> bytes:
    return record[:4] + b"\0\0\0\0" + record[8:]


def damage_all(record: bytes) -> bytes:
    return b"\xff" * len(record)


def damage_cut(record: bytes) -> bytes:
    return record[:20]


ALL_DAMAGE = [damage_body, damage_size, damage_magic, damage_all, damage_cut]


@pytest.mark.asyncio
@pytest.mark.parametrize("damage", ALL_DAMAGE)
@pytest.mark.parametrize("bad", [0, 3, 5])
async def test_the_good_ones_arrive_and_the_bad_one_is_reported(
    damage: object, bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad record took all others of its pull with it, again and again; some kinds ended the reader without a word."""
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(6):
            broker.put("t", 0, b"%d" % number)
        queue = broker.queues["t", 0]
        queue[bad] = damage(queue[bad])  # type: ignore[operator]
        async with asyncio.timeout(5), Consumer(broker.address, "g", "t", start_from="first") as consumer:
            for message in await take(consumer, 5):
                assert message.body != b"%d" % bad
                await message.ack()
            await until(lambda: "cannot be read and is skipped" in caplog.text)
            assert f"the message at offset {bad} " in caplog.text
            broker.put("t", 0, b"later")
            (message,) = await take(consumer, 1)
            assert message.body == b"later"
            await message.ack()
        assert broker.offsets["t", 0] == 7
        assert [record.levelname for record in caplog.records if "cannot be read" in record.message] == ["ERROR"]


@pytest.mark.asyncio
async def test_what_was_damaged_on_the_way_is_pulled_again_and_nothing_is_lost() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(6):
            broker.put("t", 0, b"%d" % number)
        pull, damaged = broker.pull, False

        def damage_once(command: RemotingCommand) -> RemotingCommand | None:
            nonlocal damaged
            reply = pull(command)
            if reply is not None and not damaged:
                damaged = True
                reply.body = reply.body[:250] + b"\xff" + reply.body[251:]
            return reply

        broker.handlers[PULL] = damage_once
        async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
            assert [message.body for message in await take(consumer, 6)] == [b"%d" % number for number in range(6)]
        assert damaged


@pytest.mark.asyncio
async def test_the_application_may_take_them_and_they_count_as_done_only_then() -> None:
    taken: list[UndecodableMessage] = []
    release = asyncio.Event()

    async def keep(message: UndecodableMessage) -> None:
        taken.append(message)
        await release.wait()

    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(3):
            broker.put("t", 0, b"%d" % number)
        queue = broker.queues["t", 0]
        queue[1] = damage_body(queue[1])
        consumer = Consumer(broker.address, "g", "t", start_from="first", on_undecodable=keep)
        async with consumer:
            for message in await take(consumer, 2):
                await message.ack()
            await until(lambda: len(taken) == 1)
            (bad,) = taken
            assert (bad.queue, bad.queue_offset, bad.log_offset) == (MessageQueue("t", "broker-a", 0), 1, 1000)
            assert bad.raw == queue[1]
            assert "CRC" in bad.reason
            assert consumer.open_count == 1
            release.set()
            await until(lambda: consumer.open_count == 0)
        assert broker.offsets["t", 0] == 3


@pytest.mark.asyncio
async def test_one_that_the_application_could_not_take_stays_open(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: UndecodableMessage) -> None:
        raise OSError("no room")

    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(3):
            broker.put("t", 0, b"%d" % number)
        broker.queues["t", 0][1] = damage_body(broker.queues["t", 0][1])
        async with Consumer(broker.address, "g", "t", start_from="first", on_undecodable=fail) as consumer:
            for message in await take(consumer, 2):
                await message.ack()
            await until(lambda: "no room" in caplog.text)
        assert broker.offsets["t", 0] == 1


@settings(max_examples=200)
@given(
    st.lists(st.binary(max_size=20), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    st.integers(0, 500),
)
def test_any_bytes_are_read_as_far_as_they_are_records(
    bodies: list[bytes], changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(b"".join(encode_record(WireMessage("t", 0, body=body, born_host=HOST), HOST) for body in bodies))
    for at, value in changes:
        data[at % len(data)] = value
    pulled = read_pulled(bytes(data[: len(data) - cut % len(data)]))
    for record in pulled.records:
        assert isinstance(record, BadRecord) or record.size > 0
    if not changes and cut % len(data) == 0:
        assert [getattr(record, "body", None) for record in pulled.records] == bodies


@pytest.mark.asyncio
async def test_a_reader_survives_answers_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel_client.consuming.queue_reader.ERROR_PAUSE_MS", 1)
    monkeypatch.setattr("timewheel_client.consuming.queue_reader.BUSY_PAUSE_MS", 1)
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(4):
            broker.put("t", 0, b"%d" % number)
        pull = broker.pull
        records = broker.queues["t", 0]
        ext = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "4"}
        nonsense = [
            lambda command: command.reply(ext=ext),  # FOUND, and nothing there
            lambda command: command.reply(ext={**ext, "nextBeginOffset": "x"}, body=records[0]),
            lambda command: command.reply(body=records[0]),  # no next offset
            lambda command: command.reply(19, ext=ext),  # not held
            lambda command: command.reply(20, ext=ext),
            lambda command: command.reply(77, "?"),
            lambda command: command.reply(ext={**ext, "nextBeginOffset": "-9"}, body=records[0] + records[0]),
        ]

        def answer(command: RemotingCommand) -> RemotingCommand | None:
            return nonsense.pop(0)(command) if nonsense and command.ext["topic"] == "t" else pull(command)

        broker.handlers[PULL] = answer
        async with asyncio.timeout(5), Consumer(broker.address, "g", "t", start_from="first") as consumer:
            assert [message.body for message in await take(consumer, 4)] == [b"0", b"1", b"2", b"3"]


Answer = Callable[[RemotingCommand, bytes, dict[str, str]], RemotingCommand]
FRUITLESS: dict[str, Answer] = {
    "garbage": lambda command, _, ext: command.reply(ext=ext, body=b"\xff" * 200),
    "a damaged record": lambda command, record, ext: command.reply(ext=ext, body=damage_body(record)),
    "nothing": lambda command, _, ext: command.reply(ext=ext),
    "a record that was had before": lambda command, record, ext: command.reply(ext=ext, body=record),
    "not found, but further on": lambda command, _, ext: command.reply(19, ext=ext),
    "all filtered out, one at a time": lambda command, _, ext: command.reply(20, ext=ext),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", FRUITLESS.values(), ids=FRUITLESS)
async def test_a_broker_whose_answers_bring_nothing_is_asked_more_and_more_rarely(answer: Answer) -> None:
    """It was asked 1,300 to 4,000 times a second, with an error in the log each time."""
    times: list[float] = []
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.put("t", 0, b"x")
        record = broker.queues["t", 0][0]
        pull, enough = broker.pull, asyncio.Event()

        def fruitless(command: RemotingCommand) -> RemotingCommand | None:
            if command.ext["topic"] != "t":
                return pull(command)
            times.append(asyncio.get_running_loop().time())
            if len(times) == 20:
                enough.set()
            next_offset = str(int(command.ext["queueOffset"]) + 1)
            return answer(command, record, {"nextBeginOffset": next_offset, "minOffset": "0", "maxOffset": "99999"})

        broker.handlers[PULL] = fruitless
        async with asyncio.timeout(10), Consumer(broker.address, "g", "t", start_from="first"):
            await enough.wait()
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert min(pauses[-5:]) >= 0.019, pauses
    assert sum(pauses[:4]) < 1, "the first few cost nothing"


@pytest.mark.asyncio
async def test_good_records_behind_bad_ones_are_read_at_full_speed_again() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(200):
            broker.put("t", 0, b"%d" % number)
        queue = broker.queues["t", 0]
        for number in range(5):
            queue[number] = damage_body(queue[number])
        pulls = 0
        pull = broker.pull

        def count(command: RemotingCommand) -> RemotingCommand | None:
            nonlocal pulls
            pulls += command.ext["topic"] == "t"
            return pull(command)

        broker.handlers[PULL] = count
        async with asyncio.timeout(5), Consumer(broker.address, "g", "t", start_from="first") as consumer:
            assert [message.body for message in await take(consumer, 195)] == [b"%d" % n for n in range(5, 200)]
        assert pulls < 20


# ------------------------------------------------------------------------------------------------ compressed bodies


def received(body: bytes, limit: int) -> ReceivedMessage:
    record = encode_record(WireMessage("t", 0, sys_flag=1, born_host=HOST, body=body), HOST)
    return ReceivedMessage(decode_record(record), MessageQueue("t", "a", 0), 0, max_body_bytes=limit)


def test_a_bomb_is_not_blown_up(caplog: pytest.LogCaptureFixture) -> None:
    """597 KiB of zlib took 1.2 GiB; here 97 KiB stand for 100 MiB."""
    bomb = zlib.compress(bytes(100 << 20), 9)
    tracemalloc.start()
    message = received(bomb, 1 << 20)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20  # nothing is decompressed before it is asked for
    assert message.body == bomb
    assert message.compression == "zlib"
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert "cannot be decompressed: it would have more than 1048576 bytes (max_body_bytes)" in caplog.text


@pytest.mark.parametrize(("size", "good"), [(999, True), (1000, True), (1001, False)])
def test_the_limit_of_a_body(size: int, good: bool) -> None:
    packed = zlib.compress(b"x" * size)
    message = received(packed, 1000)
    assert (message.body, message.compression) == ((b"x" * size, "") if good else (packed, "zlib"))


def test_a_body_whose_end_is_missing_stays_as_it_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    packed = zlib.compress(b"x" * 100)[:-3]
    message = received(packed, 1000)
    assert (message.body, message.compression) == (packed, "zlib")
    assert "its end is missing" in caplog.text


def test_numbers_of_any_length_are_no_reason_to_stop() -> None:
    properties = "__STARTDELIVERTIME\x01" + "9" * 5000 + "\x02"
    record = encode_record(WireMessage("t", 0, born_host=HOST, properties=properties), HOST)
    assert ReceivedMessage(decode_record(record), MessageQueue("t", "a", 0), 0).due_ms is None
