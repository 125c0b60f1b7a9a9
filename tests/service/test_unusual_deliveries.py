"""Deliveries that brokers treat unlike others: no body, empty properties, no clear answer. None is dropped.

A client's batch may have a message without a body. Alone, brokers do not store it, so the service sends it as a batch
of one, to the cluster's brokers and to brokers of ours alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_plugin.due_record import due_record
from broker_plugin.plugin import DelayPlugin
from remoting.command import RemotingCommand
from remoting.messages.message import Message, StoredMessage, decode_record, encode_record
from remoting.messages.properties import get_property, parse_properties
from service.link.cluster import ClusterLink
from service.link.parcels import Parcel, Spread, kind_of
from service.running import target
from service.running.entries import REJECTED_TOPIC, rejected_again, rolled_of, waiting_of
from tests.broker.core_rig import Client, Rig, properties
from tests.service.target_world import NAME, TargetWorld, names
from tests.service.test_parcels import in_world, message, together
from tests.support.simdisk import SimDisk
from timewheel_client.net.connection import ClientConnection
from timewheel_client.values.routes import MessageQueue

_HOST = bytes(8)
_SMALL = {"mappedFileSizeCommitLog": 1_000_000, "mappedFileSizeConsumeQueue": 6_000, "timewheelSegmentBytes": 1_000_000}
_OF_A_BATCH = {"UNIQ_KEY": "u", "CLUSTER": "theirs", "MSG_REGION": "r", "TRACE_ON": "false"}


def delivery(body: bytes = b"x", **values: str) -> StoredMessage:
    text = properties(TW_TOPIC="orders", TW_DELIVER_MS=1, **values)
    entry = Message("TIMEWHEEL", 0, 3, 0, 5, _HOST, 0, 0, body, text)
    return decode_record(waiting_of(decode_record(encode_record(entry, _HOST, 1)), NAME).record)


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Client]:
    """A client of a broker of ours; each topic has a first message."""
    rig = Rig(tmp_path / "store", DelayPlugin(), files=SimDisk(), **_SMALL)
    client = rig.client()
    for topic in ("orders", REJECTED_TOPIC, "TIMEWHEEL"):
        client.send(topic)
    yield client
    rig.close()


def connection_to(client: Client, replies: list[RemotingCommand]) -> ClientConnection:
    """A connection of the service to a broker of ours, which answers at once."""

    def request_now(code: int, ext: dict[str, str], body: bytes, **_: Any) -> asyncio.Future[RemotingCommand]:
        replies.append(client.ask(code, ext, body))
        reply: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        reply.set_result(replies[-1])
        return reply

    return cast(ClientConnection, SimpleNamespace(request_now=request_now))


def delivered_to(client: Client, *messages: StoredMessage) -> RemotingCommand:
    """The answer of a broker of ours to one request."""
    replies: list[RemotingCommand] = []

    async def send() -> None:
        link, queue = ClusterLink("127.0.0.1:1", "TIMEWHEEL"), (messages[0].topic, "b", 0)
        link.deliver_now(connection_to(client, replies), queue, messages, lambda: True)

    asyncio.run(send())
    (reply,) = replies
    return reply


# ------------------------------------------------------------------------------------------ brokers of ours


def test_a_broker_of_ours_keeps_in_a_batch_what_the_entry_got_from_its_broker(ours: Client) -> None:
    one = delivery(**_OF_A_BATCH)
    assert kind_of(one) is not None
    assert delivered_to(ours, one, one).code == 0
    for stored in ours.messages("orders")[1:]:
        assert stored.properties == one.properties


@pytest.mark.parametrize("topic", ["orders", REJECTED_TOPIC])
def test_a_message_without_a_body_is_stored(ours: Client, topic: str) -> None:
    one = delivery(b"", UNIQ_KEY="u")
    if topic == REJECTED_TOPIC:
        one = rejected_again(one, "topic orders does not exist")
    assert delivered_to(ours, one).code == 0
    _, stored = ours.messages(topic)
    assert (stored.body, stored.flag, stored.born_ms, stored.properties) == (b"", 3, 5, one.properties)


def test_an_entry_without_a_body_can_be_stored_again(ours: Client) -> None:
    """It was not, and the cluster deleted it in the end."""
    one, replies = delivery(b"", UNIQ_KEY="u"), []

    async def roll() -> None:
        link, text = ClusterLink("127.0.0.1:1", "TIMEWHEEL"), rolled_of(one, 7, 1, 7)
        link.send_now(connection_to(ours, replies), ("TIMEWHEEL", "b", 0), text, one.body, like=one)

    asyncio.run(roll())
    assert [reply.code for reply in replies] == [0]
    _, stored = ours.messages("TIMEWHEEL")
    assert (stored.body, stored.flag) == (b"", 3)
    assert parse_properties(stored.properties) == parse_properties(rolled_of(one, 7, 1, 7))


@pytest.mark.parametrize("char", ["x", "\u20ac"])
def test_what_has_no_body_leaves_room_for_what_brokers_add_in_a_batch(char: str) -> None:
    """They write the length of all properties as a short, unchecked. With too long ones, none of the sender's go on."""
    bare = properties(TW_TOPIC="orders", TW_DELIVER_MS=1_800_000_000_000, big="y")
    rejected = 0
    for size in (100, 20_000, *range(31_400, 32_768, 7)):
        some, rest = divmod(size - len(bare), len(char.encode()))
        text = bare[:-1] + char * some + "x" * rest + "\x02"
        entry = decode_record(encode_record(Message("TIMEWHEEL", 0, 3, 0, 5, _HOST, 0, 0, b"", text), _HOST, 1))
        waiting = waiting_of(entry, NAME)
        one = decode_record(waiting.record)
        rejected += bool(waiting.rejected)
        texts = [one.properties, rejected_again(decode_record(waiting.record), "\u20ac" * 400).properties]
        if not waiting.rejected:
            assert not rejected, "the limit is one of length"
            texts.append(rolled_of(one, 10**15, 10**15, 10**15))
        assert max(len(each.encode()) for each in texts) <= 32_000
        assert get_property(texts[1], "TW_REASON") and get_property(texts[1], "TW_DELAY_ID")
    assert 0 < rejected < 190


# ------------------------------------------------------------------------------------------ what may go together


@pytest.mark.parametrize(
    "text", ["CLUSTER\x01\x02UNIQ_KEY\x01u\x02", "CLUSTER\x01c\x02UNIQ_KEY\x01\x02", "CLUSTER\x01c\x02UNIQ_KEY\x01"]
)
def test_an_empty_value_counts_as_none(text: str) -> None:
    """A broker adds it to a message that goes alone."""
    assert kind_of(message(text)) is None


def test_a_message_without_a_body_proves_nothing_about_keys() -> None:
    """It went in a batch, and in a batch a compacted topic takes messages without keys that nobody ever reads."""
    spread, among = Spread(), [MessageQueue("T", "b", 0)]
    kinds = []
    for body in (b"", b"x", b"x"):
        parcel = Parcel(0, 1, message("CLUSTER\x01c\x02UNIQ_KEY\x01u\x02", body), REJECTED_TOPIC)
        spread.aim(parcel, among, False, 0)
        spread.answered([parcel], True, 0)
        kinds.append(parcel.kind)
    assert kinds[:2] == [None, None]
    assert kinds[2] is not None


# ------------------------------------------------------------------------------------------ no clear answer


async def put(world: TargetWorld, now_ms: int, *offsets: int) -> list[str]:
    """Deliver what is due, as the cache does, after a time in which all brokers have answered their probes."""
    await world.end_all()
    world.target._suspects._asking.clear()
    world.shard.lease.renew(now_ms)
    entries = together(world, *offsets)
    return names(await asyncio.to_thread(world.target.put_batch, [due_record(entry, 1) for entry in entries]))


def unclear(world: TargetWorld, wrong: Sequence[bytes]) -> None:
    """From now on no request that carries one of these is stored or answered clearly."""
    answer = (1, "java.lang.NullPointerException")
    world.refuses = lambda many: answer if any(one.body in wrong for one in many) else None


def searched(world: TargetWorld) -> None:
    """All target queues were read, and what is in doubt was not found."""
    for queue in set(world.shard.lost.values()):
        world.shard.scanned(queue, [], list(world.shard.lost))


def test_a_message_without_a_clear_answer_brings_others_into_doubt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache tries it every 5 s, for ever."""

    async def story(world: TargetWorld) -> None:
        now_ms, disturbed = 0, 0
        monkeypatch.setattr(target, "mono_ms", lambda: now_ms)
        unclear(world, [b"3"])
        for turn in range(12):
            others = range(100 + 3 * turn, 103 + 3 * turn)
            first, *rest = await put(world, now_ms, 3, *others)
            assert first == "UNKNOWN_ERROR"
            disturbed += rest != ["PUT_OK"] * 3
            searched(world)
            now_ms += 5000
        assert disturbed == 1
        assert 3 in world.requests[-2:], "batches go on"

    in_world(story)


def test_a_message_that_went_alone_without_a_clear_answer_joins_no_batch() -> None:
    async def story(world: TargetWorld) -> None:
        unclear(world, [b"3"])
        assert await put(world, 0, 3) == ["UNKNOWN_ERROR"]
        searched(world)
        assert await put(world, 0, 3, 4, 5) == ["UNKNOWN_ERROR", "PUT_OK", "PUT_OK"]
        assert sorted(world.requests) == [1, 1, 2]

    in_world(story)


def test_a_search_may_take_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is too large for its broker was sent as a batch again after each long search, for ever."""

    async def story(world: TargetWorld) -> None:
        now_ms = 0
        monkeypatch.setattr(target, "mono_ms", lambda: now_ms)
        world.refuses = lambda many: (1, "java.lang.RuntimeException: message body size exceeded") if many[1:] else None
        assert await put(world, now_ms, 1, 2) == ["UNKNOWN_ERROR"] * 2
        for _ in range(3):
            now_ms += 4900
            assert await put(world, now_ms, 1, 2) == ["UNKNOWN_ERROR"] * 2
        searched(world)
        assert await put(world, now_ms, 1, 2) == ["PUT_OK"] * 2
        assert world.requests == [2, 1, 1]

    in_world(story)
