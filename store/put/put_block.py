"""`PutBlock`: due records delivered together, and copies of popped ones, as columns instead of an object for each.

A delivery reads topic, queue, tags code and keys out of the record's bytes, and writes three numbers into them (queue
offset, position, store time). For one record that takes five microseconds of Python. Records with the same property
names in the same order, as one kind of producer sends them, are handled together by some NumPy calls. Their bodies,
topics, queues and property values may differ, also in length.

A block finds in its records what `store.put.put_record.put_record_of` finds in each (a test compares). Records with
anything unusual make no block: they go one by one.

>>> from store.put.put_block import PutBlock
>>> from store.disk.slab import Slab
>>> PutBlock.of(Slab.of([b"no", b"records"]), 0) is None
True
"""

from __future__ import annotations

import numpy as np

from remoting.layout import (
    BODY_AT,
    BODY_BYTES_AT,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_V1,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_ID_AT,
    RECORD_BYTES_MIN,
    STORE_HOST_AT,
    STORE_MS_AT,
    SYS_FLAG_AT,
    TOPIC_LENGTH_BYTES,
)
from remoting.layout.table import LONG
from remoting.messages.checksum import crc32
from remoting.messages.message import tag_hash
from remoting.messages.properties import KEYS, TAGS, TW_ID, UNIQ_KEY
from store.derived.dispatch import SCHEDULE_TOPIC, UNQUEUED_BIT
from store.derived.key_rows import delay_id_hashes, key_base
from store.disk.slab import Slab
from store.put.put_columns import Longs, PutColumns, unaligned

__all__ = ["PutBlock"]

_UNUSUAL_FLAGS = HOSTS_V6 | UNQUEUED_BIT
"""Hosts in IPv6, and the bit whose records `store.derived.dispatch.as_queued` must change."""
_QUEUES_MAX = 32
"""A block that goes to more queues than this saves no time."""
_UNIQ_KEY, _KEYS, _TAGS, _TW_ID = (name.encode() for name in (UNIQ_KEY, KEYS, TAGS, TW_ID))


class PutBlock(PutColumns):
    """Due records, queue by queue; see `store.put.put_columns.PutColumns` for the columns that are not here.

    The records of a queue keep their order and stand side by side, so that a pull of the queue reads one piece of the
    CommitLog.

    ==============  ================================================================================
    ``topics``      list of str, the topic inside each record; or of one, if it is the same in all
    ``keys``        columns of what the key index gets: UNIQ_KEY, then KEYS (one word), if there is any
    ``delay_ids``   column of delay ids, which the key index gets too; empty if the messages have none
    ==============  ================================================================================
    """

    __slots__ = ("delay_ids", "keys", "topics")

    def __init__(
        self, data: bytearray, sizes: Longs, topics: list[str], queues: list[tuple[str, int, int]], texts: _Texts
    ) -> None:
        super().__init__()
        self.guarded = True
        self.data_bytes = len(data)
        self._data = data
        self._store_ms_at = STORE_MS_AT
        self._starts = np.cumsum(sizes) - sizes
        self.sizes = sizes
        self.topics = topics
        self.queues = queues
        self.keys = texts.keys
        self.delay_ids = texts.delay_ids
        self.tags_codes = np.zeros(len(sizes), np.int64)
        if _TAGS in texts.names:
            tags = texts.values(_TAGS)
            codes = {tag: tag_hash(tag.decode()) for tag in set(tags)}
            self.tags_codes[:] = [codes[tag] for tag in tags]
        self._hash_keys()

    def _hash_keys(self) -> None:
        """Make the rows of the key index: for each message its keys, then its delay id if it has one."""
        count, width = len(self.sizes), len(self.keys) + bool(self.delay_ids)
        bases = list(map(key_base, self.topics)) * (count if len(self.topics) == 1 else 1)
        hashes = np.empty((count, width), np.uint32)
        for column, own in enumerate(self.keys):
            hashes[:, column] = list(map(crc32, own, bases))
        if self.delay_ids:
            hashes[:, width - 1] = delay_id_hashes(self.delay_ids)
        self.hashes = hashes.reshape(-1)
        self.owners = np.repeat(np.arange(count), width)

    @classmethod
    def of(cls, slab: Slab, due_ms: int, host: bytes | None = None) -> PutBlock | None:
        """Make a block of finished records; None if they do not look alike, or have anything unusual.

        ``due_ms`` (epoch ms) is the due time of the last one. ``host`` (8 bytes, IPv4 and port), if given, is written
        into them as store host.
        """
        data = slab.data
        starts, sizes = np.array(slab.starts, np.int64), np.array(slab.sizes, np.int64)
        # So that the reads of fixed fields below stay within their records.
        if int(sizes.min()) < RECORD_BYTES_MIN:
            return None
        words = unaligned(data, ">u4")
        body_sizes = words[starts + BODY_BYTES_AT].astype(np.int64)
        if (
            (words[starts + MAGIC_AT] != MAGIC_V1).any()
            or (words[starts + SYS_FLAG_AT] & _UNUSUAL_FLAGS).any()
            or (body_sizes > sizes - RECORD_BYTES_MIN).any()
        ):
            return None
        topics_at = starts + BODY_AT + body_sizes
        topic_sizes = np.frombuffer(data, np.uint8)[topics_at]
        texts_at = topics_at + (TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES) + topic_sizes
        ends = starts + sizes
        # The first test keeps the second one within the records.
        if (texts_at >= ends).any() or (
            unaligned(data, ">u2")[texts_at - PROPERTIES_LENGTH_BYTES] != ends - texts_at
        ).any():
            return None
        is_one = bool((topic_sizes == topic_sizes[0]).all()) and _are_equal(
            data, topics_at[:, np.newaxis], [TOPIC_LENGTH_BYTES + int(topic_sizes[0])]
        )
        spans = list(
            zip((topics_at + TOPIC_LENGTH_BYTES).tolist(), (texts_at - PROPERTIES_LENGTH_BYTES).tolist(), strict=True)
        )
        try:
            topics = [data[at:end].decode() for at, end in (spans[:1] if is_one else spans)]
        except UnicodeDecodeError:
            return None
        # The queue id is a signed int: read as int32 first, then widened.
        order, queues = _by_queue(topics, words[starts + QUEUE_ID_AT].astype(np.int32).astype(np.int64))
        if len(queues) > _QUEUES_MAX or SCHEDULE_TOPIC in topics:
            return None
        texts = _Texts.of(data, texts_at[order], ends[order])
        if texts is None:
            return None
        if not is_one:
            topics = [topics[row] for row in order.tolist()]
        view = memoryview(data)
        # A bytearray, not bytes: queue offsets and positions are written into it later, without a copy.
        joined = bytearray().join(
            [view[at:end] for at, end in zip(starts[order].tolist(), ends[order].tolist(), strict=True)]
        )
        block = cls(joined, sizes[order], topics, queues, texts)
        block.due_ms = due_ms
        if host is not None:
            unaligned(joined, ">i8")[block._starts + STORE_HOST_AT] = LONG.unpack(host)[0]
        return block

    @classmethod
    def of_made(cls, data: bytearray, sizes: Longs, topic: str, texts: list[bytes], due_ms: int) -> PutBlock | None:
        """Make a block of records that the caller has just made, back to back, for queue 0 of a topic; None as `of`.

        ``texts`` are their property texts, as far as there are tags and keys in them, each with a separator at its end.
        The records are not looked at again; ``data`` belongs to the block from now on.
        """
        text = b"".join(texts)
        found = _Texts.split(text, np.cumsum(list(map(len, texts)))) if text else None
        if found is None:
            return None
        block = cls(data, sizes, [topic], [(topic, 0, len(texts))], found)
        block.due_ms = due_ms
        return block


class _Texts:
    """Property texts with the same names in the same order."""

    __slots__ = ("_ends", "_starts", "_text", "delay_ids", "keys", "names")

    def __init__(self, text: bytes, names: list[bytes], starts: Longs, ends: Longs) -> None:
        self._text = text
        self._starts = starts  # of the values: a row for each text, a column for each name
        self._ends = ends
        self.names = {name: column for column, name in enumerate(names)}  # the last of two with one name counts
        self.keys = [self.values(name) for name in (_UNIQ_KEY, _KEYS) if name in self.names]
        self.delay_ids = self.values(_TW_ID) if _TW_ID in self.names else []

    @classmethod
    def of(cls, data: bytes, texts_at: Longs, texts_end: Longs) -> _Texts | None:
        """Split texts into columns that stand at these places; None as `split`."""
        view = memoryview(data)
        text = b"".join([view[at:end] for at, end in zip(texts_at.tolist(), texts_end.tolist(), strict=True)])
        return cls.split(text, np.cumsum(texts_end - texts_at))

    @classmethod
    def split(cls, text: bytes, text_ends: Longs) -> _Texts | None:
        """Split joined texts into columns; None if their names differ, or if a text has anything unusual."""
        # The trick: all texts are joined, and NumPy finds the separators (bytes 1 and 2) of all of them at once. Texts
        # with the same names have the same number of separators, so their places form matrices: a row for each text,
        # a column for each property. Comparing columns then proves that the names are the same, without a loop in
        # Python over texts or properties.
        flat = np.frombuffer(text, np.uint8)
        count = len(text_ends)
        ones, twos = np.flatnonzero(flat == 1), np.flatnonzero(flat == 2)
        if len(ones) != len(twos) or not len(twos) or len(twos) % count or not text.isascii():
            return None
        name_ends, value_ends = ones.reshape(count, -1), twos.reshape(count, -1)
        # Without a separator at its end, the last value of a text would run into the next text.
        if (value_ends[:, -1] != text_ends - 1).any():
            return None
        name_starts = np.empty_like(value_ends)
        name_starts[:, 1:] = value_ends[:, :-1] + 1
        name_starts[0, 0], name_starts[1:, 0] = 0, text_ends[:-1]
        name_sizes = name_ends - name_starts
        # Pairs without name or value count as absent elsewhere (`get_property`), so such a text is unusual.
        if (name_sizes != name_sizes[0]).any() or name_sizes[0].min() < 1 or (value_ends - name_ends < 2).any():
            return None
        sizes = name_sizes[0].tolist()
        if not _are_equal(text, name_starts, sizes):
            return None
        names = [text[at : at + size] for at, size in zip(name_starts[0].tolist(), sizes, strict=True)]
        if not (_UNIQ_KEY in names or _KEYS in names or _TW_ID in names):
            return None
        texts = cls(text, names, name_ends + 1, value_ends)
        # The `.version` of a moved message's id is no part of its key, and KEYS with a blank are several keys.
        if b"." in b"".join(texts.delay_ids) or (_KEYS in names and b" " in b"".join(texts.keys[-1])):
            return None
        return texts

    def values(self, name: bytes) -> list[bytes]:
        """The values of a name, one for each text."""
        column, text = self.names[name], self._text
        starts, ends = self._starts[:, column].tolist(), self._ends[:, column].tolist()
        return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _by_queue(topics: list[str], queue_ids: Longs) -> tuple[Longs, list[tuple[str, int, int]]]:
    """The rows ordered by queue; and (topic, queue id, number of rows) of each queue. ``topics``: one, or one a row."""
    names: list[tuple[str, int]] = []
    codes = queue_ids
    if len(topics) > 1:
        numbers: dict[tuple[str, int], int] = {}
        codes = np.array(
            [numbers.setdefault(queue, len(numbers)) for queue in zip(topics, queue_ids.tolist(), strict=True)]
        )
        names = list(numbers)
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    begins = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist()]
    found = codes[begins].tolist()
    ends = [*begins[1:], len(codes)]
    return order, [
        (*(names[code] if names else (topics[0], code)), end - begin)
        for code, begin, end in zip(found, begins, ends, strict=True)
    ]


def _are_equal(text: bytes | bytearray, starts: Longs, sizes: list[int]) -> bool:
    """True if all rows have the same bytes in each column: ``starts`` has shape (rows, columns), ``sizes`` (columns).
    Compares 8 bytes at a time as one integer; shorter columns by 4, 2 or 1. The last integer of a column ends with the
    column, so it may overlap the one before.
    """
    columns: dict[int, list[tuple[int, int]]] = {}
    for column, size in enumerate(sizes):
        width = next(width for width in (8, 4, 2, 1) if width <= size)
        columns.setdefault(width, []).extend((column, at) for at in (*range(0, size - width, width), size - width))
    for width, places in columns.items():
        found = unaligned(text, f"u{width}")[starts[:, [column for column, _ in places]] + [at for _, at in places]]
        if (found != found[0]).any():
            return False
    return True
