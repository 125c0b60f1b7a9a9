"""Copies of many popped messages at once, for the retry topic: columns instead of an object for each message.

A hundred thousand times may end in one millisecond. `broker.pop.retry_record.revived` makes an object for each copy.
Here some NumPy calls look at all records of a slice, each record is joined once, and the copies go to the store as one
`PutBlock`. They are, byte for byte, those that ``revived`` makes (a test compares); anything unusual is no block, and
goes that way.

Cost of a copy of a kilobyte, read and put included: 9.8 µs in slices of 128, one by one 13.0. Compiled code is as fast
one by one (9.7 µs) as in slices of 128, and takes 7.6 µs in slices of 512.
"""

from __future__ import annotations

import numpy as np

from remoting.errors import MessageError
from remoting.layout import (
    BODY_AT,
    BODY_BYTES_AT,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_V1,
    OFFSET_AT,
    PREPARED_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD,
    RECORD_BYTES_MIN,
    SIZE_AT,
    STORE_MS_AT,
    SYS_FLAG_AT,
)
from remoting.layout.table import SHORT
from remoting.messages.checksum import crc32
from remoting.messages.proof import PLAIN, is_proof
from remoting.messages.properties import FIRST_POP_TIME, OWN_LEAD, POP_CK, TW_POP, get_property, without_own
from remoting.messages.record import MAX_PROPERTIES_BYTES, topic_part
from store.derived.dispatch import UNQUEUED_BIT
from store.disk.slab import Slab
from store.put.put_columns import Longs, unaligned

__all__ = ["Copied", "copied_slab"]

_CRC_AT, _TRIES_AT = RECORD.at("crc"), RECORD.at("reconsume_times")
_UNUSUAL_FLAGS = HOSTS_V6 | UNQUEUED_BIT
_CRC_MASK = 0x7FFFFFFF
_TRIES_MAX = 0x7FFFFFFF
_FIRST, _OWN, _CK = FIRST_POP_TIME.encode(), OWN_LEAD.encode(), POP_CK.encode()
_pack_short = SHORT.pack


class Copied:
    """Records to be copied, one behind the other, and the properties of their copies.

    ==============  ================================================================================
    ``data``        bytes, the records
    ``places``      list of int, where each stands in the CommitLog
    ``sizes``       list of int, bytes of each
    ``marks``       list of bytes, the property TW_POP of each copy (`Copied.add`)
    ``firsts``      list of bytes, the property 1ST_POP_TIME of a message that never was popped before
    ==============  ================================================================================
    """

    __slots__ = ("data", "firsts", "marks", "places", "sizes")

    def __init__(self) -> None:
        self.data = b""
        self.places: list[int] = []
        self.sizes: list[int] = []
        self.marks: list[bytes] = []
        self.firsts: list[bytes] = []

    def add(self, name: int, offsets: list[int], pop_ms: int, positions: list[tuple[int, int]]) -> None:
        """Add messages of one pop: the name of its batch, their numbers in the queue, places and sizes."""
        lead = f"{TW_POP}\x01{name:x}."
        self.marks += [f"{lead}{offset:x}\x02".encode() for offset in offsets]
        self.firsts += [f"{FIRST_POP_TIME}\x01{pop_ms}\x02".encode()] * len(offsets)
        self.places += [position for position, _ in positions]
        self.sizes += [size for _, size in positions]


def copied_slab(copied: Copied, topic: str) -> Slab | None:
    """Make all copies; None if a record is not as most senders write it, or not whole."""
    name = _topic_bytes(topic)
    sizes = np.array(copied.sizes, np.int64)
    starts = np.cumsum(sizes) - sizes
    topics_at = _topics_at(copied, starts, sizes)
    if topics_at is None or name is None:
        return None
    data, view = copied.data, memoryview(copied.data)
    words, longs = unaligned(data, ">u4"), unaligned(data, ">i8")
    crcs, proofs = words[starts + _CRC_AT].tolist(), longs[starts + PREPARED_OFFSET_AT].tolist()
    tries = words[starts + _TRIES_AT].astype(np.int64)
    if (tries >= _TRIES_MAX).any():  # also those below zero
        return None
    parts: list[bytes | memoryview] = []
    new_sizes: list[int] = []
    sums: list[int] = []
    begins, tries_so_far = starts.tolist(), tries.tolist()
    for row, topic_at in enumerate(topics_at.tolist()):
        start = begins[row]
        if crc32(view[start + BODY_AT : topic_at]) & _CRC_MASK != crcs[row]:
            return None
        old = data[topic_at : start + copied.sizes[row]]
        if is_proof(proofs[row]) and crc32(old) != proofs[row] & 0xFFFFFFFF:
            return None
        text = _plain(old[3 + old[0] :])
        if text is None:
            return None
        first = copied.firsts[row]
        if tries_so_far[row] and _FIRST in text and get_property(text.decode(), FIRST_POP_TIME) is not None:
            first = b""
        size = len(text) + len(copied.marks[row]) + len(first)
        if size > MAX_PROPERTIES_BYTES:
            return None
        behind = b"".join((name, _pack_short(size), text, copied.marks[row], first))
        parts.append(view[start:topic_at])
        parts.append(behind)
        new_sizes.append(topic_at - start + len(behind))
        sums.append(PLAIN + crc32(behind))
    return _numbered(parts, new_sizes, sums, tries + 1)


def _numbered(parts: list[bytes | memoryview], sizes: list[int], sums: list[int], tries: Longs) -> Slab:
    """Join the copies, and write into the heads what is new in them."""
    joined = bytearray().join(parts)
    new = np.array(sizes, np.int64)
    starts = np.cumsum(new) - new
    words, longs = unaligned(joined, ">u4"), unaligned(joined, ">i8")
    words[starts + SIZE_AT] = new
    words[starts + QUEUE_ID_AT] = 0
    words[starts + _TRIES_AT] = tries
    longs[starts + QUEUE_OFFSET_AT] = 0
    longs[starts + OFFSET_AT] = 0
    longs[starts + STORE_MS_AT] = 0
    longs[starts + PREPARED_OFFSET_AT] = sums
    return Slab(bytes(joined), starts.tolist(), sizes)


def _topic_bytes(topic: str) -> bytes | None:
    try:
        magic, name = topic_part(topic)
    except MessageError:
        return None
    return name if magic == MAGIC_V1 else None


def _topics_at(copied: Copied, starts: Longs, sizes: Longs) -> Longs | None:
    """Where each record's topic begins; None if one is not what its place says, or not as most are."""
    data = copied.data
    if int(sizes.min()) < RECORD_BYTES_MIN or int(sizes.sum()) != len(data):
        return None
    words, longs = unaligned(data, ">u4"), unaligned(data, ">i8")
    bodies = words[starts + BODY_BYTES_AT].astype(np.int64)
    if (
        (words[starts + SIZE_AT] != sizes).any()
        or (words[starts + MAGIC_AT] != MAGIC_V1).any()
        or (longs[starts + OFFSET_AT] != copied.places).any()
        or (words[starts + SYS_FLAG_AT] & _UNUSUAL_FLAGS).any()
        or (bodies > sizes - RECORD_BYTES_MIN).any()
    ):
        return None
    topics_at = starts + BODY_AT + bodies
    texts_at = topics_at + 3 + np.frombuffer(data, np.uint8)[topics_at]
    ends = starts + sizes
    if (texts_at > ends).any() or (unaligned(data, ">u2")[texts_at - 2] != ends - texts_at).any():
        return None
    if (ends - texts_at > MAX_PROPERTIES_BYTES).any():
        return None
    return topics_at


def _plain(text: bytes) -> bytes | None:
    """A property text without what only a broker sets, ready for more behind it; None if it is not plain ASCII."""
    if not text.isascii():
        return None
    if _OWN in text or _CK in text:
        text = without_own(text.decode()).encode()
    return text + b"\x02" if text and text[-1] != 2 else text
