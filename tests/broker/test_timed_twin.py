"""A timed message arrives as the same message does that is sent at once: for whatever stands in its properties.

Each story sends the same messages to a broker with the delay plug-in and to one without. What the second one refuses
the first one refuses, too; what it stores the first one stores, at its time, once, with the same body, header, tag,
keys and properties, but for those that have a time. Which time that is, and which texts have none that can be kept, is
worked out here from the pairs alone.

Two things differ and may: a text that is nearly as long as may be gets longer by what is stamped on it, or shorter by
its times; and a level that is no number refuses a message only if nothing else says when it is due.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode
from remoting.messages.message import (
    MAX_PROPERTIES_BYTES,
    StoredMessage,
    decode_record,
    join_batch,
    message_keys,
    tags_code,
)
from remoting.messages.properties import OWN_PROPERTIES, parse_properties
from store.derived.queue_entries import ENTRY
from tests.broker.core_rig import START_MS, Rig
from tests.support.examples import examples
from tests.support.simdisk import SimDisk

TIMERS = ("__STARTDELIVERTIME", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
OF_LEVELS = ("DELAY", "REAL_TOPIC", "REAL_QID")
HORIZON_MS = 9_000
NEAR = st.sampled_from([-5_000, -1, 0, 1, 2, 40, 999, 1_000, 2_500, HORIZON_MS])
TIMES = NEAR.map(lambda ms: str(START_MS + ms))
NO_TIMES = st.sampled_from(
    ["", "-5", "+5", " 5", "5 ", "1e3", "0x10", "soon", "٣", "1" * 20, "9" * 400, "99999999999999", str(1 << 63)]
)
STRANGE = st.sampled_from(["", " ", "a b", "a  b ", " a", "ü", "漢😀", "x" * 300, "true", "KEYS", "1.5", "é" * 40, "."])
TEXT = st.text(st.characters(blacklist_characters="\0\x01\x02", blacklist_categories=("Cs",)), max_size=12)
PAIRS = st.one_of(
    st.tuples(st.sampled_from(["__STARTDELIVERTIME", "TIMER_DELIVER_MS"]), TIMES),
    st.tuples(st.sampled_from(["__STARTDELIVERTIME", "TIMER_DELIVER_MS"]), TIMES),
    st.tuples(st.sampled_from(["TAGS", "TAGS", "KEYS", "UNIQ_KEY"]), st.sampled_from(["a", "A b", "ü", "x" * 300])),
    st.tuples(st.just("TIMER_DELAY_MS"), st.sampled_from(["0", "1", "40", "0001000"])),
    st.tuples(st.just("TIMER_DELAY_SEC"), st.sampled_from(["0", "1", "3"])),
    st.tuples(st.sampled_from(TIMERS), NO_TIMES),
    st.tuples(st.just("DELAY"), st.sampled_from(["0", "1", "2", "-1", "x", ""])),
    st.tuples(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "__TW_ID", "__TW_DUE", "__TW_POP"]), STRANGE | TEXT),
    st.tuples(
        st.sampled_from(["XKEYS", "KEYSX", "TAGS ", "XTAGS", "", "__TW_", "TIMER_DELAY_MSX", "X__STARTDELIVERTIME"]),
        STRANGE | TIMES,
    ),
    st.tuples(st.sampled_from(["TIMER_DEL_UNIQKEY", "WAIT", "TRACE_ON", "MSG_REGION", "CLUSTER", "h"]), STRANGE | TEXT),
    st.tuples(TEXT, TEXT),
)
LOOKS_MS = (0, 1, 2, 39, 40, 998, 999, 1_000, 1_001, 2_499, 2_500, 2_999, 3_000, HORIZON_MS - 1, HORIZON_MS)
JOINTS = st.sampled_from(["\x02"] * 12 + ["\x02\x02", "\x02\x01", "\x02x\x02", "\x02\x01x\x02"])
ADDED = 200
"""No less than what brokers append to a text."""


@st.composite
def texts(draw: st.DrawFn) -> str:
    pairs = draw(st.lists(PAIRS, max_size=7))
    text = "".join(f"{name}\x01{value}{draw(JOINTS)}" for name, value in pairs)
    if draw(st.integers(0, 3)) == 0:
        text = text.rstrip("\x02")
    if draw(st.integers(0, 11)) == 0:
        size = MAX_PROPERTIES_BYTES - draw(st.integers(-1, 170)) - len(text.encode()) - 6
        text = f"pad\x01{'p' * max(1, size)}\x02{text}"
    return text


class Message:
    """What its sender means by a text, read pair by pair: ``bad`` if its time is none that can be kept."""

    def __init__(self, text: str, now_ms: int) -> None:
        self.text = text
        pairs = [pair.partition("\x01")[::2] for pair in text.split("\x02") if "\x01" in pair]
        self.known = {name: value for name, value in pairs if name and value}
        there = {name for name, _ in pairs}
        self.level = self._level()
        self.due_ms: int | None = None
        self.bad = False
        if self.level:
            return
        for name in TIMERS:
            if name not in there:
                continue
            value = self.known.get(name, "")
            if not (value.isascii() and value.isdigit() and len(value) < 20):
                self.bad = True
            else:
                unit = {"TIMER_DELAY_SEC": 1000, "TIMER_DELAY_MS": 1}.get(name)
                self.due_ms = int(value) if unit is None else now_ms + unit * int(value)
                self.bad = self.due_ms > 253_402_300_799_999
            return

    def _level(self) -> int:
        value = self.known.get("DELAY", "")
        return int(value) if value.isascii() and value.isdigit() else 0

    @property
    def either(self) -> bool:
        """Whether it may be accepted or refused."""
        level = self.known.get("DELAY", "0").removeprefix("-")
        return len(self.text.encode()) > MAX_PROPERTIES_BYTES - ADDED or not (level.isascii() and level.isdigit())


def rigs() -> tuple[Rig, Rig, DelayPlugin]:
    plugin = DelayPlugin()
    values: dict[str, Any] = {
        "mappedFileSizeCommitLog": 400_000,
        "timewheelSegmentBytes": 800_000,
        "maxMessageSize": 100_000,
    }
    values["messageDelayLevel"] = "1s 2s"
    return Rig(Path("/a"), plugin, files=SimDisk(1), **values), Rig(Path("/b"), files=SimDisk(2), **values), plugin


def records(rig: Rig) -> dict[int, list[tuple[StoredMessage, int]]]:
    """By number of the message: what is in queues of clients, with the tag that stands in its queue's entry."""
    found: dict[int, list[tuple[StoredMessage, int]]] = {}
    for queue in rig.store.queues:
        if queue.topic == "SCHEDULE_TOPIC_XXXX" or not queue.count:
            continue
        for offset, size, code in ENTRY.iter_unpack(queue.read(0, queue.count)):
            stored = decode_record(rig.store.commit_log.read(offset, size))
            found.setdefault(int(stored.body.partition(b":")[0]), []).append((stored, code))
    return found


def plain(properties: str, sent: Message) -> dict[str, str]:
    """The pairs that have nothing to do with times, nor a key that the broker made up."""
    made = set() if "UNIQ_KEY" in sent.known else {"UNIQ_KEY"}
    found = parse_properties(properties)
    return {name: value for name, value in found.items() if name not in made.union(TIMERS, OWN_PROPERTIES, OF_LEVELS)}


def send(rig: Rig, texts: list[str], numbers: list[int], how: str) -> list[bool]:
    client = rig.client()
    bodies = [b"%d:" % number + bytes([number % 256]) * (number % 50) for number in numbers]
    if how == "batch":
        body = join_batch(list(zip(numbers, bodies, texts, strict=True)))
        fields = client.send_fields("T", m="true", g=START_MS - 7, e=2)
        return [client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body).code == 0] * len(texts)
    sent = [
        client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", text, g=START_MS - 7, e=2, h=number), body)
        for text, number, body in zip(texts, numbers, bodies, strict=True)
    ]
    rig.core.end_turn()
    codes = {reply.opaque: reply.code for reply in client.take()}
    return [codes[opaque] == 0 for opaque in sent]


def let_pass(rig: Rig, plugin: DelayPlugin | None) -> None:
    for _ in range(100):
        if plugin is not None:
            plugin.sweeper.step(rig.now_ms)
            plugin.recovery.step(rig.now_ms)
            plugin.spiller.step(rig.now_ms)
        rig.deliver_levels()
        rig.store._keeper.finish()
        if plugin is None or not any(one.due_ms <= rig.now_ms for one in plugin.list_pending(None, 1000)):
            return
    raise AssertionError("what is due is not delivered")


def same(mine: tuple[StoredMessage, int], other: tuple[StoredMessage, int], sent: Message) -> None:
    """What comes is what the twin is, and has nothing that would delay it once more."""
    for name in ("topic", "queue_id", "flag", "sys_flag", "born_ms", "born_host", "reconsume_times", "body"):
        assert getattr(mine[0], name) == getattr(other[0], name), name
    assert plain(mine[0].properties, sent) == plain(other[0].properties, sent), repr(sent.text)
    assert sent.level or mine[1] == other[1] == tags_code(mine[0].properties)
    left = parse_properties(mine[0].properties)
    assert not {"TIMER_DELAY_SEC", "TIMER_DELAY_MS"} & left.keys()
    if sent.due_ms is not None:
        times = [int(left[name]) for name in ("__STARTDELIVERTIME", "TIMER_DELIVER_MS") if name in left]
        assert max(times, default=0) <= max(sent.due_ms, START_MS), repr(sent.text)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(texts(), min_size=1, max_size=6), st.sampled_from(["one", "one", "batch"]), st.sampled_from([1, 3, 60]))
def test_a_timed_message_is_its_plain_twin(texts: list[str], how: str, block_min: int) -> None:
    timed, twin, plugin = rigs()
    plugin.deliverer.block_min = block_min
    sent = {number: Message(text, START_MS) for number, text in enumerate(texts, 1)}
    accepted, stored = send(timed, texts, list(sent), how), send(twin, texts, list(sent), how)
    for number, message in sent.items():
        if how == "one" and not message.either:
            assert accepted[number - 1] == (stored[number - 1] and not message.bad), repr(message.text)
    if how == "batch" and not any(message.either for message in sent.values()):
        assert accepted[0] == (stored[0] and not any(message.bad for message in sent.values()))
    for at_ms in LOOKS_MS:
        timed.now_ms = twin.now_ms = START_MS + at_ms
        let_pass(timed, plugin)
        let_pass(twin, None)
        found = records(timed)
        for number, message in sent.items():
            due_ms = START_MS if message.due_ms is None else message.due_ms
            if not message.level:
                wanted = accepted[number - 1] and due_ms <= timed.now_ms
                assert len(found.get(number, ())) == wanted, (at_ms, message.text)
    twins = records(twin)
    for number, copies in records(timed).items():
        assert len(copies) == 1
        if number in twins:
            same(copies[0], twins[number][0], sent[number])
        for key in message_keys(copies[0][0].properties):
            bodies = [decode_record(record).body for record in timed.store.query("T", key, 64, 0, 1 << 60)]
            assert copies[0][0].body in bodies, (key, sent[number].text)
    assert plugin.check() == timed.store.check() == []
    timed.close()
    twin.close()
