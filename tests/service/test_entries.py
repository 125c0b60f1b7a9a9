"""What an entry is delivered as, and what is rejected: whatever stands in its properties, nobody stumbles over it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.messages.message import Message, StoredMessage, decode_record, encode_record
from remoting.messages.properties import get_property, parse_properties
from service.core.lines import LineKind
from service.running.entries import (
    REJECTED_TOPIC,
    control,
    delay_id_of,
    due_of,
    line_of,
    moved_record,
    own_record,
    rejected_again,
    rejected_of,
    rolled_of,
    waiting_of,
)

SHARD = "broker-a/3"
STORE_MS = 1_700_000_000_000
HOST = bytes(8)


def entry(text: str, body: bytes = b"body", offset: int = 17, topic: str = "TIMEWHEEL") -> StoredMessage:
    """As a broker stores it."""
    stored = decode_record(encode_record(Message(topic, 3, 5, 0, 4, HOST, 0, 0, body, text), HOST, STORE_MS))
    stored.queue_offset = offset
    return stored


def text_of(**properties: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TW_DELIVER_MS": "1800000000000"}, 1_800_000_000_000),
        ({"TW_DELIVER_MS": "5"}, 5),
        ({"TW_DELAY_MS": "250"}, STORE_MS + 250),
        ({"TW_DELIVER_MS": "7", "TW_DELAY_MS": "250", "__STARTDELIVERTIME": "9"}, 7),
        ({"__STARTDELIVERTIME": "1800000000001"}, 1_800_000_000_001),
        ({"TIMER_DELAY_SEC": "3"}, STORE_MS + 3000),
        ({"TIMER_DELIVER_MS": "1800000000002"}, 1_800_000_000_002),
    ],
)
def test_due_times(properties: dict[str, str], due_ms: int) -> None:
    waiting = waiting_of(entry(text_of(TW_TOPIC="orders", **properties)), SHARD)
    assert (waiting.offset, waiting.due_ms, waiting.rejected) == (17, due_ms, "")
    delivery = decode_record(waiting.record)
    assert (delivery.topic, delivery.flag, delivery.born_ms, delivery.body) == ("orders", 5, 4, b"body")
    assert due_of(delivery.properties) == due_ms
    assert delay_id_of(delivery.properties, SHARD) == 17
    assert delay_id_of(delivery.properties, "broker-a/30") == -1
    left = parse_properties(delivery.properties)
    assert set(left) <= {"TW_DELAY_ID", "TW_DUE_MS", "__STARTDELIVERTIME"}


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        ("TIMER_DELAY_SEC", "3600", STORE_MS),
        ("TIMER_DELAY_MS", "3600000", STORE_MS),
        ("TIMER_DELIVER_MS", "1700000000900", 1_700_000_000_900),
        ("TW_DELAY_MS", "250", STORE_MS + 250),
    ],
)
def test_a_delay_that_apaches_timer_has_waited_for_is_over(name: str, value: str, due_ms: int) -> None:
    """It leaves the sender's property in the message, and notes in another one until when it kept it."""
    text = text_of(TW_TOPIC="orders", **{name: value}, TIMER_OUT_MS="1699999999000", TIMER_DEQUEUE_MS="1700000000000")
    waiting = waiting_of(entry(text), SHARD)
    assert (waiting.due_ms, waiting.rejected) == (due_ms, "")
    left = parse_properties(decode_record(waiting.record).properties)
    assert set(left) == {"TW_DELAY_ID", "TW_DUE_MS"}, "with TIMER_OUT_MS, no delay would count again"


def test_what_apaches_broker_has_added_to_an_entry_does_not_reach_consumers() -> None:
    """Its timer leaves the entry topic in REAL_TOPIC: consumers of ``orders`` read that a message is of TIMEWHEEL."""
    added = {"REAL_TOPIC": "TIMEWHEEL", "REAL_QID": "3", "TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "2"}
    added |= {"TIMER_OUT_MS": "3", "TIMER_ROLL_TIMES": "4", "__CRC32#": "0000000005"}
    added |= {"INNER_NUM": "3", "INNER_BASE": "7"}
    text = text_of(TW_TOPIC="orders", TW_DELAY_MS="1", own="x", REAL_TOPICS="y", **added)
    for reads in (waiting_of(entry(text), SHARD), rejected_of(entry(text), SHARD, "why")):
        left = parse_properties(decode_record(reads.record).properties)
        assert not left.keys() & added.keys()
        assert (left["own"], left["REAL_TOPICS"]) == ("x", "y")


@pytest.mark.parametrize(
    ("start", "stays"), [(str(STORE_MS + 9), True), (str(STORE_MS + 10), False), ("soon", False), ("", False)]
)
def test_nothing_that_a_broker_of_ours_would_delay_by_stays_in_a_delivery(start: str, stays: bool) -> None:
    """The target may be at one, the entry topic at one of Apache's: the message came late, or never."""
    waiting = waiting_of(entry(text_of(TW_TOPIC="orders", TW_DELAY_MS="9", __STARTDELIVERTIME=start)), SHARD)
    assert ("__STARTDELIVERTIME" in decode_record(waiting.record).properties) == stays
    now = decode_record(moved_record(waiting.record, STORE_MS))
    assert "__STARTDELIVERTIME" not in now.properties


def test_a_message_that_a_broker_refuses_for_a_nul_is_rejected_without_it() -> None:
    """Apache's brokers take it. Those of ours do not, in the topic of rejected messages, too: it waited for ever."""
    made = entry(text_of(TW_TOPIC="orders", TW_DELIVER_MS="7", A="b\0c", **{"D\0E": "f"}))
    delivery = decode_record(waiting_of(made, SHARD).record)
    assert parse_properties(delivery.properties)["A"] == "b\0c"
    text = rejected_again(delivery, "MESSAGE_ILLEGAL").properties
    assert "\0" not in text and get_property(text, "A") == "b c" and get_property(text, "D E") == "f"
    assert delay_id_of(text, SHARD) == 17


@pytest.mark.parametrize("store_ms", [-(1 << 56), -(1 << 63), 1 << 61, (1 << 63) - 1])
@pytest.mark.parametrize("when", [{}, {"TW_DELAY_MS": "50"}, {"TIMER_DELAY_SEC": "1"}, {"TW_DELIVER_MS": "7"}])
def test_a_store_time_that_has_rotted(store_ms: int, when: dict[str, str]) -> None:
    """No checksum covers it. The cache takes no such due time: the shard read nothing behind it any more, for ever."""
    made = entry(text_of(TW_TOPIC="orders", **when))
    made.store_ms = store_ms
    waiting = waiting_of(made, SHARD)
    assert waiting.due_ms == (7 if "TW_DELIVER_MS" in when else 0)
    assert bool(waiting.rejected) == ("TW_DELIVER_MS" not in when)
    delivery = decode_record(waiting.record)
    assert (due_of(delivery.properties), delivery.topic) == (
        waiting.due_ms,
        REJECTED_TOPIC if waiting.rejected else "orders",
    )


def test_a_committed_transaction_goes_out_as_an_ordinary_message() -> None:
    """Apache's brokers leave TRAN_MSG in what was committed: sent once more with it, it is a half message again."""
    text = text_of(TRAN_MSG="true", PGROUP="g", __transactionId__="A1", TW_TOPIC="orders", TW_DELAY_MS="1")
    left = parse_properties(decode_record(waiting_of(entry(text), SHARD).record).properties)
    assert left.keys() == {"PGROUP", "__transactionId__", "TW_DELAY_ID", "TW_DUE_MS"}


def test_what_the_sender_gave_stays() -> None:
    given_ = text_of(UNIQ_KEY="A1", KEYS="k1 k2", TAGS="t", own="x", TW_TOPIC="orders", TW_DELAY_MS="1")
    delivery = decode_record(waiting_of(entry(given_), SHARD).record)
    left = parse_properties(delivery.properties)
    assert {name: left[name] for name in ("UNIQ_KEY", "KEYS", "TAGS", "own")} == {
        "UNIQ_KEY": "A1",
        "KEYS": "k1 k2",
        "TAGS": "t",
        "own": "x",
    }


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"TW_DELAY_MS": "1"}, "TW_TOPIC is missing"),
        ({"TW_TOPIC": "orders"}, "no due time"),
        ({"TW_TOPIC": "orders", "TW_DELIVER_MS": "-1"}, "'-1'"),
        ({"TW_TOPIC": "orders", "TW_DELIVER_MS": "9" * 30}, "year 9999"),
        ({"TW_TOPIC": "orders", "TW_DELAY_MS": "253402300799999"}, "year 9999"),
        ({"TW_TOPIC": "orders", "__STARTDELIVERTIME": "soon"}, "__STARTDELIVERTIME"),
        ({"TW_TOPIC": "a b", "TW_DELAY_MS": "1"}, "'a b'"),
        ({"TW_TOPIC": "a\x01b", "TW_DELAY_MS": "1"}, "is not a topic name"),
        ({"TW_TOPIC": "x" * 128, "TW_DELAY_MS": "1"}, "is not a topic name"),
        ({"TW_TOPIC": "TIMEWHEEL", "TW_DELAY_MS": "1"}, "the entry topic or a system topic"),
        ({"TW_TOPIC": "%RETRY%g", "TW_DELAY_MS": "1"}, "the entry topic or a system topic"),
        ({"TW_TOPIC": "SCHEDULE_TOPIC_XXXX", "TW_DELAY_MS": "1"}, "the entry topic or a system topic"),
        ({"TW_TOPIC": "TIMEWHEEL_PROGRESS", "TW_DELAY_MS": "1"}, "the service's own"),
    ],
)
def test_rejections_say_why(properties: dict[str, str], why: str) -> None:
    waiting = waiting_of(entry(text_of(**properties)), SHARD)
    assert why in waiting.rejected
    delivery = decode_record(waiting.record)
    assert (delivery.topic, delivery.body, waiting.due_ms) == (REJECTED_TOPIC, b"body", STORE_MS)
    assert why in (get_property(delivery.properties, "TW_REASON") or "")
    assert delay_id_of(delivery.properties, SHARD) == 17


NAMES = ("TW_TOPIC", "TW_DELIVER_MS", "TW_DELAY_MS", "TW_KIND", "TW_ABOUT", "TW_GENERATION", "TW_DELAY_ID", "TW_DUE_MS")
VALUES = st.one_of(
    st.sampled_from(["", "orders", "0", "1" * 40, "-5", "٣", "\x01", "a\x01b", "roll", "takeover", "\0", "é" * 400]),
    st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), max_size=20),
)


@given(st.lists(st.tuples(st.one_of(st.sampled_from(NAMES), VALUES), VALUES), max_size=12), st.booleans())
def test_nobody_stumbles_over_hostile_properties(pairs: list[tuple[str, str]], cut: bool) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    message = entry(text[:-1] if cut else text)
    line_of(message)
    waiting = waiting_of(message, SHARD)
    delivery = decode_record(waiting.record)
    assert delay_id_of(delivery.properties, SHARD) == 17, "a sender cannot pretend to be another entry"
    assert due_of(delivery.properties) == waiting.due_ms >= 0
    assert delivery.body == b"body"
    rejected_again(delivery, "why\x01\x02 not")
    assert delay_id_of(delivery.properties, SHARD) == 17


def test_properties_without_room_are_rejected_not_dropped() -> None:
    text = text_of(TW_TOPIC="orders", TW_DELAY_MS="1", big="x" * 32_725)
    waiting = waiting_of(entry(text), SHARD)
    delivery = decode_record(waiting.record)
    assert waiting.rejected and delivery.topic == REJECTED_TOPIC and delivery.body == b"body"
    assert delay_id_of(delivery.properties, SHARD) == 17


@pytest.mark.parametrize("topic", ["o", "o" * 127])
@pytest.mark.parametrize("char", ["x", "\u20ac"])
def test_what_is_not_rejected_has_room_for_a_roll(topic: str, char: str) -> None:
    """A roll is longer than its entry. Without room it was refused, and the cluster deleted the entry in the end."""
    bare = text_of(TW_TOPIC=topic, TW_DELIVER_MS="1800000000000", big="")
    rejected = 0
    for size in range(32_767 - 400, 32_768):
        some, rest = divmod(size - len(bare), len(char.encode()))
        waiting = waiting_of(entry(bare[:-1] + char * some + "x" * rest + "\x02"), SHARD)
        if waiting.rejected:
            rejected += 1
        else:
            assert not rejected, "the limit is one of length"
            entry(rolled_of(decode_record(waiting.record), 10**15, 10**15, 10**15))
    assert 0 < rejected < 400


@pytest.mark.parametrize("shard", [SHARD, "b" * 120 + "/3"])
@pytest.mark.parametrize("due", ["0", "nonsense"])
def test_what_waits_has_room_for_every_time_that_it_may_be_moved_to(shard: str, due: str) -> None:
    """What is overdue waits while its topic takes no writes. Moved, its time has more digits, and it may be rolled."""
    bare = text_of(TW_TOPIC="orders", TW_DELIVER_MS=due, big="")
    for size in range(32_767 - 600, 32_768):
        waiting = waiting_of(entry(bare[:-1] + "x" * (size - len(bare)) + "\x02", topic="T" * 120), shard)
        moved = decode_record(moved_record(waiting.record, 253_402_300_799_999))
        if not waiting.rejected:
            entry(rolled_of(moved, 10**15, 10**15, 10**15))


def test_what_is_rejected_later_has_room_for_the_reason() -> None:
    """A broker refuses more than 32,767 bytes of properties, for ever: the message stood in no topic."""
    bare = text_of(TW_TOPIC="orders", TW_DELIVER_MS="1800000000000", big="")
    for size in (100, 30_000, *range(32_767 - 400, 32_768)):
        waiting = waiting_of(entry(bare[:-1] + "x" * (size - len(bare)) + "\x02", topic="OTHER"), SHARD)
        if waiting.rejected:
            continue
        delivery = rejected_again(decode_record(waiting.record), "topic orders does not exist " + "\u20ac" * 400)
        encode_record(delivery.message(), bytes(8))
        names = parse_properties(delivery.properties)
        assert delivery.topic == REJECTED_TOPIC and "does not exist" in names["TW_REASON"]
        assert delay_id_of(delivery.properties, SHARD, "OTHER") == 17
        assert (names["TW_REJECTED_TOPIC"], names["TW_DUE_MS"]) == ("orders", "1800000000000")
        assert ("big" in names) == (size <= 30_000)


def test_records_of_the_service_are_told_from_entries() -> None:
    takeover = line_of(entry(control(LineKind.TAKEOVER, TW_OWNER="me")))
    assert (takeover.kind, takeover.owner) == (LineKind.TAKEOVER, "me")
    release = line_of(entry(control(LineKind.RELEASE, TW_GENERATION=5)))
    assert (release.kind, release.generation) == (LineKind.RELEASE, 5)
    assert line_of(entry(text_of(TW_KIND="nonsense"))).kind is LineKind.ENTRY
    assert line_of(entry(text_of(TW_KIND="release", TW_GENERATION="-1"))).generation == -1


@pytest.mark.parametrize(
    "text",
    ["", "TW_KINE\x01takeover\x02", "TW_KIND\x01takeovex\x02", "TW_KIND\x01takeover\x02TW_OWNER\x01xx\x02", "\x00"],
)
def test_a_takeover_record_whose_properties_rot_is_known_by_its_body(text: str) -> None:
    """No checksum covers properties: who reads an entry there does not know that somebody else has taken over."""
    _, body = own_record(LineKind.TAKEOVER, TW_OWNER="me#1")
    line = line_of(entry(text, body))
    assert (line.kind, line.owner, line.offset) == (LineKind.TAKEOVER, "me#1", 17)
    assert line_of(entry(text_of(TW_TOPIC="orders"), body)).kind is LineKind.ENTRY, "what a sender sends is no takeover"


def test_a_verdict_whose_due_time_rots_moves_nothing_to_another_time() -> None:
    """A flipped bit in a digit would bring its entry early."""
    fields = {
        "TW_GENERATION": 3,
        "TW_ABOUT": 9,
        "TW_ENTRY": 7,
        "TW_VERDICT": "done",
        "TW_DELIVER_MS": 1_800_000_000_000,
    }
    text, body = own_record(LineKind.VERDICT, **fields)
    for at in range(len(text)):
        line = line_of(entry(text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :], body))
        assert (line.kind, line.due_ms, line.generation) == (LineKind.VERDICT, 1_800_000_000_000, 3)


def test_a_takeover_record_of_an_earlier_program_is_damaged_without_its_properties() -> None:
    whole = control(LineKind.TAKEOVER, TW_OWNER="me#1")
    assert line_of(entry(whole, b"takeover")).owner == "me#1"
    assert line_of(entry("", b"takeover")).damaged
    assert not line_of(entry(text_of(TW_TOPIC="orders"), b"takeover")).damaged


def test_a_roll_is_delivered_like_its_entry() -> None:
    given_ = text_of(UNIQ_KEY="A1", TAGS="t", TW_TOPIC="orders", TIMER_DELAY_SEC="3")
    first = decode_record(waiting_of(entry(given_), SHARD).record)
    roll = entry(rolled_of(first, 17, 9, 12), offset=40)
    line = line_of(roll)
    assert (line.kind, line.about, line.entry, line.generation) == (LineKind.ROLL, 17, 12, 9)
    waiting = waiting_of(roll, SHARD)
    again = decode_record(waiting.record)
    assert (waiting.due_ms, again.topic, again.body) == (STORE_MS + 3000, "orders", b"body")
    assert delay_id_of(again.properties, SHARD) == 40
    left = parse_properties(again.properties)
    assert (left["UNIQ_KEY"], left["TAGS"]) == ("A1", "t")
    assert "TW_KIND" not in left and "TW_ABOUT" not in left


def test_a_moved_entry_is_the_same_in_everything_but_its_due_time() -> None:
    given_ = text_of(UNIQ_KEY="A1", TAGS="t", TW_TOPIC="orders", TW_DELIVER_MS="1700000005000", other="x\u20acy")
    first = waiting_of(entry(given_, b"\x00\xffbody"), SHARD).record
    moved = decode_record(moved_record(first, 1_700_000_009_000))
    before = decode_record(first)
    assert due_of(moved.properties) == 1_700_000_009_000
    assert parse_properties(moved.properties) == {**parse_properties(before.properties), "TW_DUE_MS": "1700000009000"}
    assert (moved.topic, moved.body, moved.born_ms) == (before.topic, before.body, before.born_ms)


@pytest.mark.parametrize(("text", "by_ms"), [("-5", -5), ("7", 7), ("+7", 0), ("--5", 0), ("", 0), ("\u0665", 0)])
def test_the_interval_of_a_move(text: str, by_ms: int) -> None:
    line = line_of(entry(text_of(TW_KIND="move", TW_ABOUT="3", TW_BY_MS=text)))
    assert (line.kind, line.about, line.by_ms) == (LineKind.MOVE, 3, by_ms)
