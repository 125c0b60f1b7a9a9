"""Sends become entries: whatever a sender may write comes back out of the entry's delivery."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_plugin.rules.properties import PRECEDENCE
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import SendHeader
from remoting.messages.batch import join_batch, split_batch
from remoting.messages.message import Message, decode_record, encode_record
from remoting.messages.properties import OWN_PROPERTIES, parse_properties
from service.core.lines import LineKind
from service.front.rewriting import SendRefusedError, entry_of
from service.running.entries import DELAY_MS, DELIVER_MS, DUE, SERVICE_PROPERTIES, TOPIC, line_of, waiting_of

ENTRY = "TIMEWHEEL"
NOW_MS = 1_700_000_000_000
STORE_MS = NOW_MS + 1234
HOST = b"\x7f\x00\x00\x01\x00\x00\x27\x74"

texts = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1, max_size=30)
names = texts | st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "__SHARDINGKEY", "TIMER_DELAY_MSX", "XTW_TOPIC"])
due_times = st.one_of(
    st.tuples(st.sampled_from(["__STARTDELIVERTIME", "TIMER_DELIVER_MS"]), st.integers(0, 2 * NOW_MS)),
    st.tuples(st.sampled_from(["TIMER_DELAY_MS", "TIMER_DELAY_SEC"]), st.integers(0, 10**9)),
)
elements = st.tuples(st.lists(st.tuples(names, texts), max_size=3), st.none() | due_times)
OURS = {TOPIC, DELIVER_MS, DELAY_MS, *SERVICE_PROPERTIES}
OF_A_STORE = {"REAL_TOPIC", "REAL_QID", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES"}
"""What an Apache broker adds to an entry: no sender's, so a delivery has none of it."""
TAKEN = {*PRECEDENCE, *OURS, *OF_A_STORE, *OWN_PROPERTIES, "DELAY", "TRAN_MSG", "__CRC32#"}


def text_of(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


def send(text: str, body: bytes = b"body", topic: str = "orders", code: int = 310, **more: int) -> RemotingCommand:
    header = SendHeader("producers", topic, queue_id=3, born_ms=NOW_MS, flag=7, properties=text, **more)
    if code != RequestCode.SEND_MESSAGE:
        header.batch = code == RequestCode.SEND_BATCH_MESSAGE
        return RemotingCommand(code, 1, ext=header.to_v2(), body=body)
    names = {"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId"}
    names |= {"f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties"}
    ext = {names[letter]: value for letter, value in header.to_v2().items() if letter in names}
    return RemotingCommand(code, 1, ext=ext, body=body)


def due_of(name: str, value: int) -> int:
    """When a message is due that a broker stores at STORE_MS."""
    return STORE_MS + value * (1000 if name.endswith("SEC") else 1) if "DELAY" in name else value


def delivered(text: str, body: bytes, flag: int) -> Message:
    """What the service sends out when the entry is due."""
    message = Message(ENTRY, 0, flag, 0, NOW_MS, HOST, 0, 0, body, text)
    stored = decode_record(encode_record(message, HOST, STORE_MS))
    waiting = waiting_of(stored, "broker-a/3")
    assert not waiting.rejected, waiting.rejected
    return decode_record(waiting.record).message()


@given(st.lists(st.tuples(names, texts), max_size=8), due_times, st.binary(max_size=50), st.sampled_from([10, 310]))
def test_what_a_sender_writes_comes_out(
    pairs: list[tuple[str, str]], due: tuple[str, int], body: bytes, code: int
) -> None:
    name, value = due
    own = [(key, word) for key, word in pairs if key not in TAKEN]
    entry = entry_of(send(text_of([*own, (name, str(value))]), body, code=code), ENTRY, NOW_MS)
    assert entry is not None and entry.topic == "orders" and entry.body == body
    header = entry.header
    assert (header.topic, header.default_topic, header.queue_id, header.flag) == (ENTRY, ENTRY, 3, 7)
    assert (header.producer_group, header.born_ms) == ("producers", NOW_MS)
    assert not set(PRECEDENCE) & parse_properties(header.properties).keys()
    message = delivered(header.properties, body, header.flag)
    properties = parse_properties(message.properties)
    assert message.topic == "orders" and message.body == body
    assert int(properties[DUE]) == due_of(name, value)
    assert {key: word for key, word in properties.items() if key not in OURS} == dict(own)


@given(
    st.lists(st.tuples(st.lists(st.tuples(names, texts), max_size=3), st.none() | due_times), min_size=1, max_size=5)
)
def test_a_batch_goes_one_way_as_a_whole(rows: list[tuple[list[tuple[str, str]], tuple[str, int] | None]]) -> None:
    owns = [[(key, word) for key, word in pairs if key not in TAKEN] for pairs, _ in rows]
    batch = [
        (at, b"%d" % at, text_of([*own, *([(due[0], str(due[1]))] if due else [])]))
        for at, (own, (_, due)) in enumerate(zip(owns, rows, strict=True))
    ]
    entry = entry_of(send("", join_batch(batch), code=320), ENTRY, NOW_MS)
    if not any(due for _, due in rows):
        assert entry is None
        return
    assert entry is not None and entry.header.batch and entry.code == RequestCode.SEND_BATCH_MESSAGE
    made = split_batch(entry.body)
    assert len(made) == len(rows)
    for (flag, body, text), own, (_, due), before in zip(made, owns, rows, batch, strict=True):
        assert (flag, body) == before[:2]
        properties = parse_properties(delivered(text, body, flag).properties)
        assert int(properties[DUE]) == (due_of(*due) if due else STORE_MS)
        assert {key: word for key, word in properties.items() if key not in OURS} == dict(own)


@given(st.text(max_size=60), st.binary(max_size=60), st.sampled_from([10, 310, 320]))
def test_any_text_is_passed_on_refused_or_an_entry(text: str, body: bytes, code: int) -> None:
    for properties in (text, f"{text}\x02__STARTDELIVERTIME\x01{text}", f"TIMER_DELAY_MS\x015\x02{text}"):
        try:
            entry = entry_of(send(properties, body, code=code), ENTRY, NOW_MS)
        except SendRefusedError as error:
            assert error.code == ResponseCode.MESSAGE_ILLEGAL
            continue
        if entry is not None and code != 320:
            kept = parse_properties(entry.header.properties)
            assert kept[TOPIC] == "orders" and not set(PRECEDENCE) & kept.keys()


@pytest.mark.parametrize(
    ("properties", "topic"),
    [
        ("", "orders"),
        ("TAGS\x01__STARTDELIVERTIME\x02", "orders"),
        ("__STARTDELIVERTIME\x01soon\x02DELAY\x013\x02", "orders"),
        ("__STARTDELIVERTIME\x015\x02", "%RETRY%consumers"),
        ("__STARTDELIVERTIME\x015\x02", "SCHEDULE_TOPIC_XXXX"),
        ("__STARTDELIVERTIME\x015\x02TW_TOPIC\x01orders\x02", ENTRY),
    ],
)
def test_passed_on_as_it_is(properties: str, topic: str) -> None:
    assert entry_of(send(properties, topic=topic), ENTRY, NOW_MS) is None


@pytest.mark.parametrize(
    ("properties", "topic", "named"),
    [
        ("__STARTDELIVERTIME\x01soon\x02", "orders", "'soon' is not a whole number"),
        ("TIMER_DELAY_MS\x01-5\x02", "orders", "negative"),
        ("TIMER_DELAY_SEC\x01253402300800\x02", "orders", "9999"),
        ("__STARTDELIVERTIME\x015\x02", "no name", "is not a topic name"),
        ("__STARTDELIVERTIME\x015\x02A\x01" + 32_300 * "x", "orders", "bytes of properties"),
    ],
)
def test_refused(properties: str, topic: str, named: str) -> None:
    with pytest.raises(SendRefusedError, match=named) as caught:
        entry_of(send(properties, topic=topic), ENTRY, NOW_MS)
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_batch_with_levels_and_due_times_is_refused() -> None:
    body = join_batch([(0, b"a", "DELAY\x013\x02"), (0, b"b", "__STARTDELIVERTIME\x015\x02")])
    with pytest.raises(SendRefusedError, match="levels"):
        entry_of(send("", body, code=320), ENTRY, NOW_MS)


def test_records_of_the_service_cannot_be_written() -> None:
    text = "TW_KIND\x01takeover\x02TW_OWNER\x01me\x02__STARTDELIVERTIME\x015\x02TW_TOPIC\x01other\x02"
    entry = entry_of(send(text), ENTRY, NOW_MS)
    assert entry is not None
    assert parse_properties(entry.header.properties) == {TOPIC: "orders", DELIVER_MS: "5"}


@pytest.mark.parametrize(
    "text",
    [
        "TW_KIND\x01cancel\x02TW_ABOUT\x0117\x02",
        "TW_KIND\x01takeover\x02TW_OWNER\x01me\x02",
        "TW_TOPIC\x01payroll\x02TW_DELIVER_MS\x011\x02",
        "TW_DELAY_ID\x01broker-a/3/17\x02",
    ],
)
def test_nor_by_the_properties_of_the_request_of_a_batch(text: str) -> None:
    """Apache's brokers add them to those of each message: so anybody could cancel what others sent, or be the owner."""
    body = join_batch([(0, b"a", "__STARTDELIVERTIME\x015\x02"), (0, b"b", "")])
    entry = entry_of(send(f"colour\x01blue\x02{text}", body, code=320), ENTRY, NOW_MS)
    assert entry is not None and parse_properties(entry.header.properties) == {"colour": "blue"}
    for flag, inner, own in split_batch(entry.body):
        stored = Message(ENTRY, 0, flag, 0, NOW_MS, HOST, 0, 0, inner, own + entry.header.properties)
        assert line_of(decode_record(encode_record(stored, HOST, STORE_MS))).kind is LineKind.ENTRY
        message = delivered(own + entry.header.properties, inner, flag)
        assert message.topic == "orders" and parse_properties(message.properties)["colour"] == "blue"


@pytest.mark.parametrize("entry_topic", [ENTRY, "OTHER"])
def test_nobody_writes_progress_through_a_door(entry_topic: str) -> None:
    """The service's account may write it: such a body could call every entry of a shard done, or stop the shard."""
    topic, text = f"{entry_topic}_PROGRESS", "__STARTDELIVERTIME\x015\x02"
    for command in (send(text, topic=topic), send("", join_batch([(0, b"a", text)]), topic, 320)):
        with pytest.raises(SendRefusedError, match="own progress"):
            entry_of(command, entry_topic, NOW_MS)
    assert entry_of(send(text, topic=topic), "ANOTHER", NOW_MS) is not None


def test_a_batch_has_no_due_time_of_its_own() -> None:
    body = join_batch([(0, b"a", "__STARTDELIVERTIME\x015\x02")])
    for text, named in (("TIMER_DELAY_MS\x015\x02", "each of its messages its own"), ("DELAY\x013\x02", "levels")):
        with pytest.raises(SendRefusedError, match=named):
            entry_of(send(text, body, code=320), ENTRY, NOW_MS)


def test_a_half_message_is_known_and_stays_one() -> None:
    entry = entry_of(send("TRAN_MSG\x01true\x02PGROUP\x01g\x02TIMER_DELAY_MS\x015\x02", sys_flag=4), ENTRY, NOW_MS)
    assert entry is not None and entry.half and entry.header.sys_flag == 4
    assert parse_properties(entry.header.properties)["TRAN_MSG"] == "true"
