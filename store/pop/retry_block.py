"""Copies of many popped messages at once, for the retry topic: columns instead of an object for each message.

A hundred thousand times may end in one millisecond. `broker.pop.retry_record.revived` makes an object for each copy.
Here some NumPy calls look at all records of a slice, all copies are joined by one call, and they go to the store as one
`PutBlock`, which takes tags and keys from the same texts. They are, byte for byte, those that ``revived`` makes (a test
compares); anything unusual is no block, and goes that way.
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
from store.put.put_block import PutBlock
from store.put.put_columns import Longs, unaligned

__all__ = ["Copied", "Copies", "copies_of"]

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
    ``tails``       list of bytes, the properties TW_POP and 1ST_POP_TIME of each copy (`Copied.add`)
    ``firsts``      list of int, how many of these bytes are 1ST_POP_TIME, which comes last
    ==============  ================================================================================
    """

    __slots__ = ("data", "firsts", "places", "sizes", "tails")

    def __init__(self) -> None:
        self.data = b""
        self.places: list[int] = []
        self.sizes: list[int] = []
        self.tails: list[bytes] = []
        self.firsts: list[int] = []

    def add(self, name: int, offsets: list[int], pop_ms: int, positions: list[tuple[int, int]]) -> None:
        """Add messages of one pop: the name of its batch, their numbers in the queue, places and sizes."""
        lead, first = f"{TW_POP}\x01{name:x}.", f"{FIRST_POP_TIME}\x01{pop_ms}\x02"
        self.tails += [f"{lead}{offset:x}\x02{first}".encode() for offset in offsets]
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
    sizes = np.array(copied.sizes, np.int64)
    starts = np.cumsum(sizes) - sizes
    found = None if name is None else _places(copied, starts, sizes)
    if found is None or name is None:
        return None
    topics_at, texts_at = found
    data, ends = copied.data, starts + sizes
    words, longs = unaligned(data, ">u4"), unaligned(data, ">i8")
    tries = words[starts + _TRIES_AT].astype(np.int64)
    if (tries >= _TRIES_MAX).any():  # also those below zero
        return None
    view, begins, bodies_end = memoryview(data), starts.tolist(), topics_at.tolist()
    crcs, proofs = words[starts + _CRC_AT].tolist(), longs[starts + PREPARED_OFFSET_AT].tolist()
    if not _are_whole(view, begins, bodies_end, ends.tolist(), crcs, proofs):
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
    parts: list[bytes | memoryview] = []
    for begin, end, own in zip(begins, bodies_end, behind, strict=True):
        parts.append(view[begin:end])
        parts.append(own)
    new_sizes = topics_at - starts + np.array(list(map(len, behind)), np.int64)
    sums = np.array(list(map(crc32, behind)), np.int64) + PLAIN
    return Copies(_numbered(parts, new_sizes, sums, tries + 1), new_sizes, topic, texts)


def _are_whole(
    view: memoryview, begins: list[int], bodies_end: list[int], ends: list[int], crcs: list[int], proofs: list[int]
) -> bool:
    """True if the checksums of all records are right."""
    for begin, body_end, end, crc, proof in zip(begins, bodies_end, ends, crcs, proofs, strict=True):
        if crc32(view[begin + BODY_AT : body_end]) & _CRC_MASK != crc:
            return False
        if is_proof(proof) and crc32(view[body_end:end]) != proof & 0xFFFFFFFF:
            return False
    return True


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


def _numbered(parts: list[bytes | memoryview], sizes: Longs, sums: Longs, tries: Longs) -> bytearray:
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


def _places(copied: Copied, starts: Longs, sizes: Longs) -> tuple[Longs, Longs] | None:
    """Find where topic and property text of each record begin; None if a record is misplaced or of an unusual form."""
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
    return topics_at, texts_at


def _plain(text: bytes) -> bytes | None:
    """A property text without what only a broker sets, ready for more behind it; None if it is not plain ASCII."""
    if not text.isascii():
        return None
    if _OWN in text or _CK in text:
        text = without_own(text.decode()).encode()
    return text + b"\x02" if text and text[-1] != 2 else text
