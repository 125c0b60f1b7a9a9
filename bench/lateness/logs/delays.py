"""Reads from each record whether a delayed message was accepted, delivered or cancelled, its id and its due time.

==========================================  ===========  =========================================================
record                                      stage        due time
==========================================  ===========  =========================================================
in ``SCHEDULE_TOPIC_XXXX``                  accepted     stored + delay of the level
copy with ``__TW_LEVEL``, or with           delivered    that of the accepted record
``DELAY`` in its ``REAL_TOPIC``
with ``__TW_ID`` and ``__TW_DUE``           delivered    ``__TW_DUE``
in ``rmq_sys_wheel_timer``                  accepted     ``TIMER_DELIVER_MS``, or stored + ``TIMER_DELAY_…``
the same with ``TIMER_DEL_UNIQKEY``         cancelled
with ``TIMER_OUT_MS`` in ``REAL_TOPIC``     delivered    ``TIMER_DELIVER_MS``, or that of the accepted record
==========================================  ===========  =========================================================

An id has 128 bits. Ours: (0, delay id without its leading bit) and (level, queue offset). Apache's records have no id
of their own, so theirs is a hash of what acceptance and delivery have in common: topic and ``UNIQ_KEY``; for levels
also level, queue, born time, number of retries and CRC of the body.

Nearly all records of a busy log of ours end with the same two properties, so these are compared for thousands of
records at once. Only records without them are searched one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from bench.lateness.logs.records import Heads, Longs, store_hosts
from store.disk.delay_id import DELAY_ID_BASE

__all__ = [
    "ACCEPTED",
    "CANCELLED",
    "DELIVERED",
    "LEVEL",
    "LIVE",
    "NO_DUE",
    "ORDINARY",
    "SEEN",
    "TIMED",
    "Delays",
    "Reading",
    "TopicNames",
    "read_delays",
    "topic_id",
]

ORDINARY, ACCEPTED, DELIVERED, CANCELLED, LIVE, SEEN = 0, 1, 2, 3, 4, 5
"""Stages. An ordinary record has no delay. LIVE waits in a delay store; SEEN was accepted and no longer waits."""
TIMED, LEVEL = 1, 2
"""Kinds."""
NO_DUE = -(1 << 63)
"""Stands for a due time that only the accepted record has."""

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = b"rmq_sys_wheel_timer"
_TOPICS_AT_ONCE = 48
_LAYOUTS_AT_ONCE = 12
_ID_MARK = b"\x02__TW_ID\x01"
_DUE_MARK = b"\x02__TW_DUE\x01"
_DUE_DIGITS = 13
_LONG_HEX = 15
_LEVEL_MOST, _DUE_MOST = (1 << 31) - 1, (1 << 63) - 1
_PAIR = struct.Struct(">qq")
_EIGHT = struct.Struct(">q")


def _hex_values() -> NDArray[np.uint8]:
    table = np.full(256, 255, np.uint8)
    for value, digit in enumerate(b"0123456789abcdef"):
        table[digit] = value
    return table


_HEX = _hex_values()


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a log: ``levels_ms[0]`` is the delay of level 1; ``own_levels``: level and queue offset are the id.

    ``progress``: level to the first queue offset that the broker has not finished. Nothing below it waits.
    """

    levels_ms: tuple[int, ...]
    own_levels: bool
    progress: Mapping[int, int] = field(default_factory=dict)

    def delay_ms(self, level: int) -> int:
        """Delay of a level; levels above the highest have its delay."""
        return self.levels_ms[min(level, len(self.levels_ms)) - 1] if level > 0 else 0


@dataclass(slots=True)
class Delays:
    """The delays in the records of a chunk; one array element a record. ``topics`` are indices of ``names``.

    ``requested_ms`` is the requested delay: due time minus born time, or the delay of the level.
    """

    stage: NDArray[np.int8]
    kind: NDArray[np.int8]
    level: NDArray[np.int32]
    id_hi: Longs
    id_lo: Longs
    due_ms: Longs
    requested_ms: Longs
    topics: NDArray[np.int32]
    names: list[bytes] = field(default_factory=list)
    hosts: set[bytes] = field(default_factory=set)
    """The brokers' addresses (`bench.lateness.logs.records.store_hosts`) in the records."""


def topic_id(name: bytes) -> int:
    """A hash of a topic's name, 64 bits.

    >>> topic_id(b"Orders") == topic_id(b"Orders") != topic_id(b"orders")
    True
    """
    return int(_EIGHT.unpack(blake2b(name, digest_size=8).digest())[0])


class TopicNames:
    """Numbers for topic names, in order of appearance."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, name: bytes) -> int:
        """The number of a name; a new name gets the next number."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self.names)
            self.names.append(name)
        return found

    def code(self, data: bytes, at: Longs, length: Longs) -> NDArray[np.int32]:
        """The number of the name at each place; cheap if there are few different names.

        All places are compared with the first one that has no number yet, byte by byte, and those that match get its
        number. So the loop runs once a name, not once a record.
        """
        raw = np.frombuffer(data, np.uint8)
        codes = np.full(len(at), -1, np.int32)
        left = np.arange(len(at))
        for _ in range(_TOPICS_AT_ONCE):
            if not len(left):
                return codes
            first, size = int(at[left[0]]), int(length[left[0]])
            name = data[first : first + size]
            same = length[left] == size
            for column, byte in enumerate(name):
                same[same] = raw[at[left[same]] + column] == byte
            codes[left[same]] = self.number(name)
            left = left[~same]
        for index in left.tolist():
            codes[index] = self.number(data[at[index] : at[index] + length[index]])
        return codes


def read_delays(data: bytes, heads: Heads, reading: Reading, names: TopicNames) -> Delays:
    """Read the delays of the records of one chunk."""
    count = len(heads)
    topics = names.code(data, heads.topic_at, heads.topic_bytes)
    delays = Delays(
        stage=np.zeros(count, np.int8),
        kind=np.zeros(count, np.int8),
        level=np.zeros(count, np.int32),
        id_hi=np.zeros(count, np.int64),
        id_lo=np.zeros(count, np.int64),
        due_ms=np.full(count, NO_DUE, np.int64),
        requested_ms=np.zeros(count, np.int64),
        topics=topics,
        names=names.names,
        hosts=store_hosts(data, heads),
    )
    rest = _ours_at_once(data, heads, delays)
    _one_by_one(data, heads, delays, rest, reading, names)
    dated = (delays.due_ms != NO_DUE) & (delays.kind == TIMED)
    delays.requested_ms[dated] = delays.due_ms[dated] - heads.born_ms[dated]
    return delays


def _ours_at_once(data: bytes, heads: Heads, delays: Delays) -> Longs:
    """Read deliveries that end with ``__TW_ID`` and a ``__TW_DUE`` of 13 digits; return the places of other records.

    The trick: the id has no fixed width, so each round takes the width of the first record that is left, and reads all
    records that have the id's mark at this distance from their end. Digits become numbers by a matrix product.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = heads.ends
    digits_at = ends - 1 - _DUE_DIGITS
    rest = np.arange(len(heads))
    mine = rest[digits_at - len(_DUE_MARK) - len(_ID_MARK) > heads.properties_at]
    mine = _matching(raw, mine, digits_at - len(_DUE_MARK), _DUE_MARK)
    mine = mine[raw[ends[mine] - 1] == 2]
    if not len(mine):
        return rest
    digits = raw[digits_at[mine, None] + np.arange(_DUE_DIGITS)].astype(np.int64) - 48
    good = ((digits >= 0) & (digits <= 9)).all(axis=1)
    mine, digits = mine[good], digits[good]
    dues = np.full(len(heads), NO_DUE, np.int64)
    dues[mine] = digits @ (10 ** np.arange(_DUE_DIGITS - 1, -1, -1, dtype=np.int64))
    done = np.zeros(len(heads), np.bool_)
    id_end = digits_at - len(_DUE_MARK)
    for _ in range(_LAYOUTS_AT_ONCE):
        if not len(mine):
            break
        first = int(mine[0])
        begin, end = int(heads.properties_at[first]), int(id_end[first])
        width = end - data.rfind(b"\x01", begin, end) - 1
        if not 0 < width <= _LONG_HEX:
            mine = mine[1:]
            continue
        found = mine[id_end[mine] - width - len(_ID_MARK) >= heads.properties_at[mine]]
        found = _matching(raw, found, id_end - width - len(_ID_MARK), _ID_MARK)
        values = _HEX[raw[(id_end[found] - width)[:, None] + np.arange(width)]]
        right = (values < 16).all(axis=1)
        found, values = found[right], values[right].astype(np.int64)
        delays.id_lo[found] = values @ (16 ** np.arange(width - 1, -1, -1, dtype=np.int64))
        done[found] = True
        left = mine[~done[mine]]
        mine = left[1:] if len(left) and left[0] == first else left
    delays.stage[done] = DELIVERED
    delays.kind[done] = TIMED
    delays.due_ms[done] = dues[done]
    return np.flatnonzero(~done)


def _matching(raw: NDArray[np.uint8], some: Longs, at: Longs, text: bytes) -> Longs:
    """Those of ``some`` that have ``text`` at their place ``at``."""
    for column, byte in enumerate(text):
        some = some[raw[at[some] + column] == byte]
    return some


def _one_by_one(data: bytes, heads: Heads, delays: Delays, rest: Longs, reading: Reading, names: TopicNames) -> None:
    begins, ends = heads.properties_at.tolist(), heads.ends.tolist()
    schedule, timer = names.number(SCHEDULE_TOPIC), names.number(TIMER_TOPIC)
    codes = delays.topics.tolist()
    for index in rest.tolist():
        begin, end = begins[index], ends[index]
        code = codes[index]
        if code == schedule:
            _level_accepted(_Record(data, heads, index), delays, reading, names)
        elif code == timer:
            _timer_accepted(_Record(data, heads, index), delays, names)
        elif data.find(b"REAL_TOPIC\x01", begin, end) >= 0:
            record = _Record(data, heads, index)
            # Marks of the other broker are a sender's, as of one who sends a received message again.
            for read in (_ours, _apaches) if reading.own_levels else (_apaches, _ours):
                if delays.stage[index] == ORDINARY:
                    read(record, delays, reading)
        elif data.find(b"__TW_", begin, end) >= 0:
            _ours(_Record(data, heads, index), delays, reading)


class _Record:
    """One record whose properties are looked up one by one, as bytes: the text need not be UTF-8."""

    __slots__ = ("data", "heads", "index", "text")

    def __init__(self, data: bytes, heads: Heads, index: int) -> None:
        self.data = data
        self.heads = heads
        self.index = index
        begin = int(heads.properties_at[index])
        self.text = b"\x02" + data[begin : int(heads.starts[index] + heads.sizes[index] - heads.left_out[index])]

    def value(self, name: bytes) -> bytes:
        """A property's value, empty if there is none; of several with this name, the last that is not empty."""
        pattern = b"\x02" + name + b"\x01"
        end = len(self.text)
        while (at := self.text.rfind(pattern, 0, end)) >= 0:
            begin = at + len(pattern)
            stop = self.text.find(b"\x02", begin)
            value = self.text[begin:] if stop < 0 else self.text[begin:stop]
            if value:
                return value
            end = at + len(pattern) - 1
        return b""

    def number(self, name: bytes, most: int = _DUE_MOST) -> int | None:
        """A property's value as a whole number from zero to ``most``."""
        value = self.value(name)
        number = int(value) if value.isdigit() and len(value) < 19 else -1
        return number if 0 <= number <= most else None

    def _unique(self) -> bytes:
        """``UNIQ_KEY``; without one, other fields that tell the sender's messages apart."""
        heads, index = self.heads, self.index
        key = self.value(b"UNIQ_KEY")
        if key:
            return key
        return b"%d %d %d" % (heads.born_ms[index], heads.crc[index], heads.body_bytes[index])

    def level_key(self, topic: bytes, queue: int, level: int) -> tuple[int, int]:
        """The id of a level message in a log without delay ids."""
        heads, index = self.heads, self.index
        numbers = (queue, level, heads.born_ms[index], heads.reconsume_times[index], heads.crc[index])
        return _hash(b"L", topic, self._unique(), b" ".join(b"%d" % number for number in numbers))

    def timer_key(self, topic: bytes) -> tuple[int, int]:
        """The id of a message of Apache's timer."""
        return _hash(b"T", topic, self._unique())


def _hash(*parts: bytes) -> tuple[int, int]:
    high, low = _PAIR.unpack(blake2b(b"\x01".join(parts), digest_size=16).digest())
    return high | -(1 << 63), low  # below zero, so it differs from every id of ours


def _own_level(level: int, number: int) -> tuple[int, int]:
    return level, number


def _set(delays: Delays, index: int, stage: int, kind: int, key: tuple[int, int]) -> None:
    delays.stage[index] = stage
    delays.kind[index] = kind
    delays.id_hi[index], delays.id_lo[index] = key


def _level_accepted(record: _Record, delays: Delays, reading: Reading, names: TopicNames) -> None:
    heads, index = record.heads, record.index
    level = record.number(b"DELAY", _LEVEL_MOST)
    topic, queue = record.value(b"REAL_TOPIC"), record.number(b"REAL_QID")
    if not level or not topic or queue is None or topic == b"RMQ_SYS_TRANS_HALF_TOPIC":
        return
    if reading.own_levels:
        key = _own_level(int(heads.queue_id[index]) + 1, int(heads.queue_offset[index]))
    else:
        key = record.level_key(topic, queue, level)
    number = int(heads.queue_offset[index])
    finished = number < reading.progress.get(int(heads.queue_id[index]) + 1, 0)
    _set(delays, index, SEEN if finished else ACCEPTED, LEVEL, key)
    delays.level[index] = level
    delays.topics[index] = names.number(topic)
    delays.requested_ms[index] = reading.delay_ms(level)
    delays.due_ms[index] = int(heads.store_ms[index]) + reading.delay_ms(level)


def _timer_accepted(record: _Record, delays: Delays, names: TopicNames) -> None:
    index = record.index
    topic = record.value(b"REAL_TOPIC")
    if not topic:
        return
    cancels = record.value(b"TIMER_DEL_UNIQKEY")
    delays.topics[index] = names.number(topic)
    if cancels:
        unique = cancels.removeprefix(topic + b"+")
        _set(delays, index, CANCELLED, TIMED, _hash(b"T", topic, unique))
        return
    _set(delays, index, ACCEPTED, TIMED, record.timer_key(topic))
    due = record.number(b"TIMER_DELIVER_MS")
    for name, unit in ((b"TIMER_DELAY_MS", 1), (b"TIMER_DELAY_SEC", 1000)):
        delay = record.number(name, _DUE_MOST // 2_000)
        if delay is not None:
            due = int(record.heads.store_ms[index]) + delay * unit
    if due is not None:
        delays.due_ms[index] = due


def _ours(record: _Record, delays: Delays, reading: Reading) -> None:
    index = record.index
    digits, _, _ = record.value(b"__TW_ID").partition(b".")
    due = record.number(b"__TW_DUE")
    if digits and due is not None:
        if len(digits) <= 16 and all(_HEX[digit] < 16 for digit in digits) and int(digits, 16) < DELAY_ID_BASE:
            _set(delays, index, DELIVERED, TIMED, (0, int(digits, 16)))
            delays.due_ms[index] = due
        return
    level, _, number = record.value(b"__TW_LEVEL").partition(b":")
    if level.isdigit() and number.isdigit() and len(level) < 9 and len(number) < 19:
        _set(delays, index, DELIVERED, LEVEL, _own_level(int(level), int(number)))
        delays.level[index] = int(level)
        delays.requested_ms[index] = reading.delay_ms(int(level))


def _apaches(record: _Record, delays: Delays, _reading: Reading) -> None:
    """Apache's deliveries keep the properties of acceptance. A copy in another topic or queue is no delivery."""
    index = record.index
    topic, queue = delays.names[delays.topics[index]], record.number(b"REAL_QID")
    if record.value(b"REAL_TOPIC") != topic or queue != int(record.heads.queue_id[index]):
        return
    level = record.number(b"DELAY", _LEVEL_MOST)
    if level:
        _set(delays, index, DELIVERED, LEVEL, record.level_key(topic, queue, level))
        delays.level[index] = level
    elif record.value(b"TIMER_OUT_MS"):
        _set(delays, index, DELIVERED, TIMED, record.timer_key(topic))
        due = record.number(b"TIMER_DELIVER_MS")
        relative = record.value(b"TIMER_DELAY_SEC") or record.value(b"TIMER_DELAY_MS")
        if due is not None and not relative:
            delays.due_ms[index] = due
