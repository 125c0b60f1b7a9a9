"""Copies of many popped messages at once, for the retry topic: columns instead of an object for each message.

A hundred thousand times may end in one millisecond. `broker.pop.retry_record.revived` makes an object for each copy.
Here some NumPy calls look at all records of a slice, all copies are joined by one call, and they go to the store as one
`PutBlock`, which takes tags and keys from the same texts. They are, byte for byte, those that ``revived`` makes (a test
compares); anything unusual is no block, and goes that way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remoting.errors import MessageError
from remoting.layout import (
    BODY_AT,
    BODY_BYTES_AT,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_V1,
    OFFSET_AT,
    PREPARED_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD,
    RECORD_BYTES_MIN,
    SIZE_AT,
    STORE_MS_AT,
    SYS_FLAG_AT,
    TOPIC_LENGTH_BYTES,
)
from remoting.layout.table import SHORT
from remoting.messages.checksum import crc32
from remoting.messages.proof import PLAIN, PLAIN_LEAD, VOUCHER_LEAD
from remoting.messages.properties import FIRST_POP_TIME, OWN_LEAD, POP_CK, TW_POP, get_property, without_own
from remoting.messages.record import MAX_PROPERTIES_BYTES, topic_part
from store.derived.dispatch import UNQUEUED_BIT
from store.disk.slab import Slab
from store.put.put_block import PutBlock
from store.put.put_columns import Longs, unaligned

__all__ = ["Copied", "Copies", "copies_of"]

Words = NDArray[np.uint32]
_CRC_AT, _TRIES_AT = RECORD.at("crc"), RECORD.at("reconsume_times")
_UNUSUAL_FLAGS = HOSTS_V6 | UNQUEUED_BIT
_PLAIN, _VOUCHER = int.from_bytes(PLAIN_LEAD, "big"), int.from_bytes(VOUCHER_LEAD, "big")
_CRC_MASK = 0x7FFFFFFF
_TRIES_MAX = 0x7FFFFFFF
_FIRST, _MARK, _OWN, _CK = FIRST_POP_TIME.encode(), TW_POP.encode(), OWN_LEAD.encode(), POP_CK.encode()
_pack_short = SHORT.pack


class Copied:
    """Records to be copied, and the properties of their copies.

    ==============  ================================================================================
    ``data``        bytes, the records: one behind the other, or a part of the CommitLog
    ``begin``       int, where that part begins; -1: the records alone, in order
    ``places``      list of int, where each stands in the CommitLog
    ``sizes``       list of int, bytes of each
    ``tails``       list of bytes, the properties TW_POP and 1ST_POP_TIME of each copy (`Copied.add`)
    ``firsts``      list of int, how many of these bytes are 1ST_POP_TIME, which comes last
    ==============  ================================================================================
    """

    __slots__ = ("begin", "data", "firsts", "places", "sizes", "tails")

    def __init__(self) -> None:
        self.data = b""
        self.begin = -1
        self.places: list[int] = []
        self.sizes: list[int] = []
        self.tails: list[bytes] = []
        self.firsts: list[int] = []

    def add(self, name: int, offsets: list[int], pop_ms: int, positions: list[tuple[int, int]]) -> None:
        """Add messages of one pop: the name of its batch, their numbers in the queue, places and sizes."""
        first = b"%b\x01%d\x02" % (_FIRST, pop_ms)
        lead, end = b"%b\x01%x." % (_MARK, name), b"\x02" + first
        numbers = (b" %x" * len(offsets) % (*offsets,)).split()
        self.tails += [lead + number + end for number in numbers]
        self.firsts += [len(first)] * len(offsets)
        self.places += [position for position, _ in positions]
        self.sizes += [size for _, size in positions]


class Copies:
    """Copies that were made together: records one behind the other. They are put as a block, or one by one."""

    __slots__ = ("_data", "_sizes", "_texts", "_topic")

    def __init__(self, data: bytearray, sizes: Longs, topic: str, texts: list[bytes]) -> None:
        self._data = data
        self._sizes = sizes
        self._topic = topic
        self._texts = texts

    def block(self, due_ms: int) -> PutBlock | None:
        """Make one put of all, due at ``due_ms`` (epoch ms); None if they do not look alike."""
        return PutBlock.of_made(self._data, self._sizes, self._topic, self._texts, due_ms)

    def records(self) -> list[bytes]:
        """Each by itself, if they were not put as a block."""
        starts = np.cumsum(self._sizes) - self._sizes
        return Slab(bytes(self._data), starts.tolist(), self._sizes.tolist()).records()


def copies_of(copied: Copied, topic: str) -> Copies | None:
    """Make all copies; None if a record is not as most senders write it, or not whole."""
    name = _topic_bytes(topic)
    sizes, places = np.array(copied.sizes, np.int64), np.array(copied.places, np.int64)
    starts = np.cumsum(sizes) - sizes if copied.begin < 0 else places - copied.begin
    found = None if name is None else _places(copied.data, places, starts, sizes)
    if found is None or name is None:
        return None
    topics_at, texts_at = found
    data, ends = copied.data, starts + sizes
    words = unaligned(data, ">u4")
    tries = words[starts + _TRIES_AT].astype(np.int64)
    if (tries >= _TRIES_MAX).any():  # also those below zero
        return None
    bodies_at = (starts + BODY_AT).tolist()
    bodies = [data[at:end] for at, end in zip(bodies_at, topics_at.tolist(), strict=True)]
    if not _are_whole(data, words, starts, topics_at, ends, bodies):
        return None
    texts = _plain_texts(data, texts_at, ends)
    if texts is None:
        return None
    tails = copied.tails
    for row in np.flatnonzero(tries).tolist():
        if _FIRST in texts[row] and get_property(texts[row].decode(), FIRST_POP_TIME) is not None:
            tails[row] = tails[row][: -copied.firsts[row]]
    sizes_of = [len(text) + len(tail) for text, tail in zip(texts, tails, strict=True)]
    if max(sizes_of) > MAX_PROPERTIES_BYTES:
        return None
    behind = [
        b"".join((name, _pack_short(size), text, tail)) for size, text, tail in zip(sizes_of, texts, tails, strict=True)
    ]
    parts: list[bytes] = []
    for begin, body_at, body, own in zip(starts.tolist(), bodies_at, bodies, behind, strict=True):
        parts.append(data[begin:body_at])
        parts.append(body)
        parts.append(own)
    new_sizes = topics_at - starts + np.array(sizes_of, np.int64) + (len(name) + SHORT.size)
    sums = np.array(list(map(crc32, behind)), np.int64) + PLAIN
    return Copies(_numbered(parts, new_sizes, sums, tries + 1), new_sizes, topic, texts)


def _are_whole(data: bytes, words: Words, starts: Longs, bodies_end: Longs, ends: Longs, bodies: list[bytes]) -> bool:
    """True if the checksums of all records are right."""
    sums = np.array(list(map(crc32, bodies)), np.int64)
    if ((sums & _CRC_MASK) != words[starts + _CRC_AT]).any():
        return False
    behind = [data[at:end] for at, end in zip(bodies_end.tolist(), ends.tolist(), strict=True)]
    leads = words[starts + PREPARED_OFFSET_AT]
    wrong = words[starts + PREPARED_OFFSET_AT + 4] != np.array(list(map(crc32, behind)), np.int64)
    return not (wrong & ((leads == _PLAIN) | (leads == _VOUCHER))).any()


def _plain_texts(data: bytes, texts_at: Longs, ends: Longs) -> list[bytes] | None:
    """Return the property texts without what only a broker sets, ready for more behind them; None if one is not plain.

    Nearly always there is nothing to do, which is found out about all of them together.
    """
    texts = [data[at:end] for at, end in zip(texts_at.tolist(), ends.tolist(), strict=True)]
    joined = b"".join(texts)
    ended = bool((np.frombuffer(data, np.uint8)[ends - 1] == 2).all())
    if ended and joined.isascii() and _OWN not in joined and _CK not in joined:
        return texts
    plain: list[bytes] = []
    for text in texts:
        own = _plain(text)
        if own is None:
            return None
        plain.append(own)
    return plain


def _numbered(parts: list[bytes], sizes: Longs, sums: Longs, tries: Longs) -> bytearray:
    """Join the copies, and write into the heads what is new in them."""
    joined = bytearray().join(parts)
    starts = np.cumsum(sizes) - sizes
    words, longs = unaligned(joined, ">u4"), unaligned(joined, ">i8")
    words[starts + SIZE_AT] = sizes
    words[starts + QUEUE_ID_AT] = 0
    words[starts + _TRIES_AT] = tries
    longs[starts + QUEUE_OFFSET_AT] = 0
    longs[starts + OFFSET_AT] = 0
    longs[starts + STORE_MS_AT] = 0
    longs[starts + PREPARED_OFFSET_AT] = sums
    return joined


def _topic_bytes(topic: str) -> bytes | None:
    try:
        magic, name = topic_part(topic)
    except MessageError:
        return None
    return name if magic == MAGIC_V1 else None


def _places(data: bytes, places: Longs, starts: Longs, sizes: Longs) -> tuple[Longs, Longs] | None:
    """Find where topic and property text of each record begin; None if a record is misplaced or of an unusual form."""
    if int(sizes.min()) < RECORD_BYTES_MIN or int(starts.min()) < 0 or int((starts + sizes).max()) > len(data):
        return None
    words, longs = unaligned(data, ">u4"), unaligned(data, ">i8")
    bodies = words[starts + BODY_BYTES_AT].astype(np.int64)
    if (
        (words[starts + SIZE_AT] != sizes).any()
        or (words[starts + MAGIC_AT] != MAGIC_V1).any()
        or (longs[starts + OFFSET_AT] != places).any()
        or (words[starts + SYS_FLAG_AT] & _UNUSUAL_FLAGS).any()
        or (bodies > sizes - RECORD_BYTES_MIN).any()
    ):
        return None
    topics_at = starts + BODY_AT + bodies
    texts_at = topics_at + (TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES) + np.frombuffer(data, np.uint8)[topics_at]
    ends = starts + sizes
    if (texts_at > ends).any() or (unaligned(data, ">u2")[texts_at - PROPERTIES_LENGTH_BYTES] != ends - texts_at).any():
        return None
    if (ends - texts_at > MAX_PROPERTIES_BYTES).any():
        return None
    return topics_at, texts_at


def _plain(text: bytes) -> bytes | None:
    """A property text without what only a broker sets, ready for more behind it; None if it is not plain ASCII."""
    if not text.isascii():
        return None
    if _OWN in text or _CK in text:
        text = without_own(text.decode()).encode()
    return text + b"\x02" if text and text[-1] != 2 else text
