"""Which deliveries go in one request, and what becomes of them when its broker answers, refuses or says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.command import RemotingCommand
from remoting.messages.batch import split_batch
from remoting.messages.message import Message, StoredMessage, decode_record, encode_record
from remoting.messages.properties import get_property
from service.link import parcels
from service.link.parcels import BATCH_BYTES, BATCH_MAX, Parcel, Spread, batch_body, groups_of, kind_of
from service.running import target
from service.running.entries import REJECTED_TOPIC
from tests.service.target_world import TargetWorld, names
from timewheel_client.values.errors import ConnectionFailedError
from timewheel_client.values.routes import MessageQueue

_HOST = bytes(8)
_USUAL = "CLUSTER\x01c\x02UNIQ_KEY\x01u\x02KEYS\x01k\x02"


def message(
    text: str = _USUAL, body: bytes = b"x", born_ms: int = 1, sys_flag: int = 0, again: int = 0
) -> StoredMessage:
    made = Message("T", 0, 0, sys_flag, born_ms, _HOST, again, 0, body, text)
    return decode_record(encode_record(made, _HOST, 1))


def in_world(story: Callable[[TargetWorld], Awaitable[None]]) -> None:
    async def run() -> None:
        world = TargetWorld()
        world.routes[REJECTED_TOPIC] = world.topic(REJECTED_TOPIC, "broker-0")
        world.cached["orders"] = world.topic("orders", "broker-0")
        try:
            await world.put(
                world.entry(900, "orders"), world.entry(901, "orders")
            )  # both queues are named, and take these
            del world.requests[:], world.stored[:]
            await story(world)
        finally:
            await world.end_all()

    asyncio.run(run())


def together(world: TargetWorld, *offsets: int, key: str = "") -> list[bytes]:
    return [world.entry(offset, "orders", born_ms=7, key=key) for offset in offsets]


# ------------------------------------------------------------------------------------------ what may go together


@pytest.mark.parametrize(
    "text",
    [
        "UNIQ_KEY\x01u\x02",
        "CLUSTER\x01c\x02",
        "XCLUSTER\x01c\x02UNIQ_KEY\x01u\x02",
        *(
            _USUAL + more
            for more in (
                "WAIT\x01false\x02",
                "WAIT\x01True\x02",
                "DELAY\x013\x02",
                "TIMER_DELAY_MS\x013\x02",
                "TRAN_MSG\x01true\x02",
                "POP_CK\x01x\x02",
                "INNER_NUM\x013\x02",
                "INNER_MULTI_DISPATCH\x01x\x02",
                "__STARTDELIVERTIME\x011\x02",
                "__LITE_TOPIC\x01x\x02",
                "_SYS_MSG_PRIORITY_\x011\x02",
                "A\x01\0\x02",
                f"A\x01{'x' * parcels.TEXT_MAX}\x02",
            )
        ),
    ],
)
def test_what_a_broker_would_treat_otherwise_in_a_batch_goes_alone(text: str) -> None:
    assert kind_of(message()) is not None and kind_of(message(text)) is None


def test_bodies_that_are_empty_or_large_and_messages_sent_back_go_alone() -> None:
    assert kind_of(message(body=b"")) is kind_of(message(body=bytes(parcels.BODY_MAX + 1))) is None
    assert kind_of(message(again=1)) is None
    usual = (
        "A\x01b\x02",
        "__SHARDINGKEY\x01k\x02",
        "WAIT\x01true\x02",
        "XDELAY\x013\x02",
        "MSG_REGION\x01r\x02TRACE_ON\x01true\x02",
    )
    assert all(kind_of(message(_USUAL + more)) for more in usual)


def test_a_kind_is_topic_born_time_and_compression() -> None:
    kinds = {kind_of(each) for each in (message(), message(born_ms=2), message(sys_flag=1), message(sys_flag=0x101))}
    assert len(kinds) == 4 and kind_of(message()) == kind_of(message(body=b"y", sys_flag=2))


_SIZES = st.integers(1, parcels.BODY_MAX)
_MESSAGES = st.lists(
    st.tuples(_SIZES | st.integers(1, 9), st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=150
)


@given(_MESSAGES)
def test_groups_are_of_one_kind_and_queue_bounded_and_in_order(rows: list[tuple[int, int, int, bool]]) -> None:
    every = []
    for number, (size, queue, born_ms, alone) in enumerate(rows):
        parcel = Parcel(number, 1, message(body=bytes(size), born_ms=born_ms), REJECTED_TOPIC)
        parcel.queue, parcel.kind = ("T", "b", queue), None if alone else kind_of(parcel.message)
        every.append(parcel)
    groups = groups_of(every)
    assert sorted(parcel.offset for group in groups for parcel in group) == list(range(len(rows)))
    for queue in range(3):
        offsets = [each.offset for group in groups for each in group if each.queue == ("T", "b", queue)]
        assert offsets == sorted(offsets)
    for group in groups:
        assert len({(each.queue, each.kind) for each in group}) == 1 and len(group) <= BATCH_MAX
        assert len(group) == 1 or (group[0].kind is not None and sum(each.size for each in group) <= BATCH_BYTES)


_TEXTS = st.text(st.characters(blacklist_characters="\0\x01\x02", blacklist_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.lists(st.tuples(_TEXTS, st.binary(min_size=1, max_size=30), st.integers(-(1 << 31), (1 << 31) - 1)), min_size=1)
)
def test_a_batch_has_flag_body_and_properties_of_each_message_as_they_are(rows: list[tuple[str, bytes, int]]) -> None:
    messages = []
    for text, body, flag in rows:
        one = message(f"{_USUAL}A\x01{text}\x02TW_DELAY_ID\x01b/0/7\x02", body)
        one.flag = flag
        messages.append(one)
    found = split_batch(batch_body(messages))
    assert found == [(one.flag, one.body, one.properties) for one in messages]


def test_messages_of_a_kind_share_a_queue_until_a_batch_is_full_and_others_go_in_turns() -> None:
    spread, among = Spread(), [MessageQueue("T", "b", number) for number in range(4)]

    def queues(*born: int) -> list[int]:
        found = []
        for born_ms in born:
            parcel = Parcel(0, 1, message(born_ms=born_ms), REJECTED_TOPIC)
            spread.aim(parcel, among, born_ms < 0, 0)
            assert parcel.queue is not None
            found.append(parcel.queue[2])
        return found

    assert queues(-1, 5, 6, 5, -1, 6) == [0, 1, 2, 1, 3, 2]
    spread.begin()
    assert queues(*[5] * (BATCH_MAX + 1)) == [0] * BATCH_MAX + [1]


# ------------------------------------------------------------------------------------------ what becomes of it


def test_what_is_due_together_goes_in_one_request() -> None:
    async def story(world: TargetWorld) -> None:
        assert names(await world.put(*together(world, *range(1, 9)))) == ["PUT_OK"] * 8
        assert world.requests == [8] and len({queue for queue, _ in world.stored}) == 1
        assert [body for _, body in world.stored] == [b"%d" % offset for offset in range(1, 9)]
        assert not world.shard._in_flight and all(offset in world.shard.done for offset in range(1, 9))
        assert names(await world.put(*together(world, *range(1, 9)))) == ["PUT_OK"] * 8
        assert world.requests == [8], "they are done"

    in_world(story)


def test_one_entry_that_is_there_twice_goes_once() -> None:
    async def story(world: TargetWorld) -> None:
        assert names(await world.put(*together(world, 1, 2, 1))) == ["PUT_OK", "PUT_OK", "UNKNOWN_ERROR"]
        assert world.requests == [2] and len(world.stored) == 2

    in_world(story)


def test_a_message_that_is_not_due_stays_behind() -> None:
    async def story(world: TargetWorld) -> None:
        world.shard.roll(2, 1 << 50)  # it is held
        assert names(await world.put(*together(world, 1, 2, 3))) == ["PUT_OK", "UNKNOWN_ERROR", "PUT_OK"]
        assert world.requests == [2] and [body for _, body in world.stored] == [b"1", b"3"]

    in_world(story)


def test_one_message_that_a_broker_refuses_does_not_hold_up_the_others() -> None:
    async def story(world: TargetWorld) -> None:
        def refuse(many: Sequence[StoredMessage]) -> tuple[int, str] | None:
            wrong = any((one.topic, one.body) == ("orders", b"3") for one in many)
            return (13, "the message is illegal") if wrong else None

        world.refuses = refuse
        every = together(world, *range(1, 6))
        results = names(await world.put(*every))
        assert results == ["PUT_OK", "PUT_OK", "UNKNOWN_ERROR", "PUT_OK", "PUT_OK"]
        assert world.requests == [5, 1, 1, 1, 1, 1]
        assert names(await world.put(*together(world, 6, 7))) == ["PUT_OK"] * 2
        assert world.requests[6:] == [1, 1], "the topic's messages go alone for a while"
        for _ in range(4):
            results = names(await world.put(every[2]))
        assert results == ["PUT_OK"] and world.stored[-1][0][0] == REJECTED_TOPIC
        assert sorted(body for _, body in world.stored) == [b"%d" % offset for offset in range(1, 8)]

    in_world(story)


@pytest.mark.parametrize(
    ("code", "remark", "status"),
    [(2, "[PC_SYNCHRONIZED]broker busy", "UNKNOWN_ERROR"), (16, "no permission of accessKey=me", "NO_PERMISSION")],
)
def test_a_batch_refused_for_another_reason_is_tried_again_later(code: int, remark: str, status: str) -> None:
    async def story(world: TargetWorld) -> None:
        world.refuses = lambda _: (code, remark)
        assert names(await world.put(*together(world, 1, 2))) == [status] * 2
        assert world.requests == [2] and not world.shard._in_flight and not world.shard.lost
        world.refuses = lambda _: None
        assert names(await world.put(*together(world, 1, 2))) == ["PUT_OK"] * 2
        assert world.requests == [2, 2]

    in_world(story)


def test_a_batch_too_large_for_its_broker_is_looked_for_and_goes_one_by_one() -> None:
    """Apache's answer does not say that nothing was stored. As a batch it would be refused for ever."""

    async def story(world: TargetWorld) -> None:
        world.refuses = lambda many: (1, "java.lang.RuntimeException: message body size exceeded") if many[1:] else None
        assert names(await world.put(*together(world, 1, 2))) == ["UNKNOWN_ERROR"] * 2
        queue = world.lost_queues[0]
        assert world.shard.lost == {1: queue, 2: queue}
        assert names(await world.put(*together(world, 1, 2))) == ["UNKNOWN_ERROR"] * 2 and world.stored == []
        world.shard.scanned(queue, [], [1, 2])
        await world.end_all()
        world.target._suspects._asking.clear()
        assert names(await world.put(*together(world, 1, 2))) == ["PUT_OK"] * 2
        assert world.requests == [2, 1, 1]

    in_world(story)


@pytest.mark.parametrize("stored", [(), (1,), (1, 2, 3)])
def test_a_batch_without_an_answer_is_looked_for_message_by_message(
    monkeypatch: pytest.MonkeyPatch, stored: Sequence[int]
) -> None:
    """A broker that was killed may have stored all of it, the first of it, or nothing."""
    monkeypatch.setattr(target, "ANSWER_MS", 50)

    async def story(world: TargetWorld) -> None:
        world.hanging.add("broker-0")
        assert names(await world.put(*together(world, 1, 2, 3))) == ["UNKNOWN_ERROR"] * 3
        (reply,) = world.waiting
        reply.set_exception(ConnectionFailedError("cut"))
        await asyncio.gather(*world.target._under_way)
        (queue,) = set(world.shard.lost.values())
        assert set(world.shard.lost) == {1, 2, 3} and world.lost_queues == [queue] * 3
        assert queue in world.shard.scans() and not world.shard.may_release
        world.hanging.clear()
        assert names(await world.put(*together(world, 1, 2, 3))) == ["UNKNOWN_ERROR"] * 3
        world.shard.scanned(queue, list(stored), [1, 2, 3])
        await world.end_all()
        world.target._suspects._asking.clear()
        assert names(await world.put(*together(world, 1, 2, 3))) == ["PUT_OK"] * 3
        assert [int(body) for _, body in world.stored] == [each for each in (1, 2, 3) if each not in stored]

    in_world(story)


def test_a_batch_whose_owner_stood_still_before_the_write_is_not_written() -> None:
    async def story(world: TargetWorld) -> None:
        world.stands_still = True
        assert names(await world.put(*together(world, 1, 2))) == ["SERVICE_NOT_AVAILABLE"] * 2
        assert world.stored == [] and not world.shard._in_flight and not world.shard.lost

    in_world(story)


def test_messages_without_keys_go_alone_until_their_broker_has_stored_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic with cleanup.policy=COMPACTION refuses one that goes alone; in a batch nobody would ever read it."""

    async def story(world: TargetWorld) -> None:
        now_ms = 0
        world.cached["fresh"] = world.topic("fresh", "broker-0")
        monkeypatch.setattr(target, "mono_ms", lambda: now_ms)
        world.shard.lease.renew(0)

        async def put(*offsets: int, more: str = "") -> None:
            entries = [world.entry(offset, "fresh", born_ms=7, more=more) for offset in offsets]
            assert names(await world.put(*entries)) == ["PUT_OK"] * len(offsets)

        await put(1, 2)
        await put(3, 4)
        await put(5, 6, more="KEYS\x01k\x02")
        assert world.requests == [1, 1, 2, 2]
        now_ms += parcels.PROOF_MS
        await put(7, 8)
        await put(9, 10, more="KEYS\x01k\x02")
        assert world.requests[4:] == [1, 1, 2]

    in_world(story)


def test_the_delay_id_is_in_each_message_of_a_batch() -> None:
    async def story(world: TargetWorld) -> None:
        seen: list[str | None] = []

        def look(many: Sequence[StoredMessage]) -> None:
            for _, _, text in split_batch(batch_body(many)):
                seen.append(get_property(text, "TW_DELAY_ID"))

        world.refuses = look
        await world.put(*together(world, 1, 2, 3, key="k"))
        assert world.requests == [3] and seen == ["broker-e/0/1", "broker-e/0/2", "broker-e/0/3"]

    in_world(story)


def test_a_late_answer_of_a_batch_counts_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "ANSWER_MS", 50)

    async def story(world: TargetWorld) -> None:
        world.hanging.add("broker-0")
        await world.put(*together(world, 1, 2))
        (reply,) = world.waiting
        reply.set_result(RemotingCommand(0, 0, ext={"queueOffset": "9"}))
        await asyncio.gather(*world.target._under_way)
        assert names(await world.put(*together(world, 1, 2))) == ["PUT_OK"] * 2
        assert world.requests == [2] and world.tally.delivered == 4  # two of them were there before

    in_world(story)
