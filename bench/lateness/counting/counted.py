"""What earlier runs have counted: up to which position, and which messages are finished.

A message is finished when its first delivery is in a closed segment. No later record changes its figures: a further
delivery is a repeat. Of finished messages only the ids are kept, to recognize repeats. Our broker uses consecutive ids,
so they form ranges, with a hole for each message that waits::

    (0, 1 … 70,000) delivered, but for 512 and 9,001      ►    1-511   513-9,000   9,002-70,000

Ids of Apache's messages are hashes of 16 bytes; each is kept. They stay in the portions in which they came: the new
ones of a night are not sorted into millions of others, and a search looks into each portion. Those of earlier runs stay
in their files (`bench.lateness.counting.stored`). A process of this machine reads the hashes of one part at a time
(`Counted.of_parts`). On Spark they go through the shuffle, and a task gets those of its part (`Counted.shares`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.lateness.counting.grouping import Longs
from bench.lateness.counting.stored import BY_HASH, Hashes, HashesInOrder, StoredHashes, loaded
from bench.lateness.logs.packing import first_hash

__all__ = [
    "BY_HASH",
    "CLOSED_ROWS",
    "OPEN_ROWS",
    "Counted",
    "FinishedIds",
    "Hashes",
    "finished_rows",
    "in_hash_order",
]

CLOSED_ROWS, OPEN_ROWS = "closed", "open"
"""Tables of `FINE_SCHEMA` beside the sums: ids of messages finished now; packed rows of messages that are not."""
_HASH_BYTES = 16
_SHARE_BYTES = 32 << 20
"""The size of a share in bytes of hashes (`Counted.shares`)."""


def in_hash_order(high: Longs, low: Longs) -> Hashes:
    """`Hashes` from ids in any order."""
    order = np.lexsort([low, high])
    high, low = high[order], low[order]
    fresh = np.ones(len(high), np.bool_)
    fresh[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return high[fresh], low[fresh]


def _cut(known: Hashes, low: int, high: int) -> Hashes:
    begin, end = np.searchsorted(known[0], [low, high]).tolist()
    return known[0][begin:end], known[1][begin:end]


def _share(left: Iterable[Hashes | HashesInOrder], low: int, high: int) -> tuple[Hashes, ...]:
    some = (one.below(high) if isinstance(one, HashesInOrder) else _cut(one, low, high) for one in left)
    return tuple(one for one in some if len(one[0]))


def _among(high: Longs, low: Longs, known: Hashes) -> NDArray[np.bool_]:
    """Which ids are among the known ones. Mostly the loop runs once, because hashes differ in their first halves."""
    found = np.zeros(len(high), np.bool_)
    at = np.searchsorted(known[0], high)
    left = np.flatnonzero(at < len(known[0]))
    while len(left):
        left = left[known[0][at[left]] == high[left]]
        same = known[1][at[left]] == low[left]
        found[left[same]] = True
        left = left[~same]
        at[left] += 1
        left = left[at[left] < len(known[0])]
    return found


@dataclass(frozen=True)
class FinishedIds:
    """The ids of one source's finished messages: ``ranges`` by the first number of the id (begins, ends; ascending);
    ``hashed`` in portions, as they came, in memory or in files."""

    ranges: Mapping[int, tuple[Longs, Longs]] = field(default_factory=dict)
    hashed: tuple[Hashes | StoredHashes, ...] = ()

    def holds(self, high: Longs, low: Longs) -> NDArray[np.bool_]:
        """Which of these ids are finished."""
        found = np.zeros(len(high), np.bool_)
        for number, (begins, ends) in self.ranges.items():
            mine = np.flatnonzero(high == number)
            place = np.searchsorted(begins, low[mine], side="right") - 1
            found[mine] = (place >= 0) & (low[mine] < ends[place])
        mine = np.flatnonzero(high < 0)
        for known in self.hashed if len(mine) else ():
            found[mine] |= _among(high[mine], low[mine], loaded(known))
        return found

    def loaded(self) -> FinishedIds:
        """The same, all of it in memory. Raises StorageError if a file cannot be read."""
        return FinishedIds(self.ranges, tuple(loaded(portion) for portion in self.hashed))

    def plus(self, high: Longs, low: Longs) -> FinishedIds:
        """These ids and more; hashes that are in files already must not be among them: they are not looked for there.

        >>> more = FinishedIds().plus(np.array([0, 0, 3]), np.array([5, 4, 5]))
        >>> {number: (begins.tolist(), ends.tolist()) for number, (begins, ends) in more.ranges.items()}
        {0: ([4], [6]), 3: ([5], [6])}
        """
        ranges = dict(self.ranges)
        for number in np.unique(high[high >= 0]).tolist():
            fresh = low[high == number]
            begins, ends = ranges.get(number, (fresh[:0], fresh[:0]))
            ranges[number] = _joined(np.concatenate([begins, fresh]), np.concatenate([ends, fresh + 1]))
        here = FinishedIds(hashed=tuple(one for one in self.hashed if not isinstance(one, StoredHashes)))
        mine = (high < 0) & ~here.holds(high, low)
        if not mine.any():
            return FinishedIds(ranges, self.hashed)
        return FinishedIds(ranges, (*self.hashed, in_hash_order(high[mine], low[mine])))

    def between(self, low: int, high: int) -> FinishedIds:
        """The same with those hashes alone whose first halves are at least ``low`` and below ``high``; no copies."""
        some = [
            known.between(low, high) if isinstance(known, StoredHashes) else _cut(known, low, high)
            for known in self.hashed
        ]
        return FinishedIds(self.ranges, tuple(one for one in some if isinstance(one, StoredHashes) or len(one[0])))

    def rows(self) -> Iterator[tuple[int, Longs, Longs]]:
        """Yield columns for a table: first number, begins, ends; for hashes `BY_HASH` and both halves."""
        for number, (begins, ends) in sorted(self.ranges.items()):
            yield number, begins, ends
        for portion in self.hashed:
            yield BY_HASH, *loaded(portion)

    @staticmethod
    def of(rows: Iterable[tuple[int, Longs, Longs]]) -> FinishedIds:
        """Read ids from the columns of `rows`; hashes are in ascending order."""
        ranges: dict[int, tuple[Longs, Longs]] = {}
        hashed: list[Hashes] = []
        for number, one, other in rows:
            if number == BY_HASH:
                hashed.append((one, other))
            else:
                ranges[number] = (one, other)
        return FinishedIds(ranges, tuple(hashed))


def _joined(begins: Longs, ends: Longs) -> tuple[Longs, Longs]:
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(begins), np.bool_)
    first[1:] = begins[1:] > ends[:-1]
    starts = np.flatnonzero(first)
    return begins[starts], ends[np.append(starts[1:], len(begins)) - 1]


@dataclass(frozen=True)
class Counted:
    """By source number: the CommitLog position up to which all segments are closed now, and the ids finished before.

    Sums of messages that this run finishes have the source's number. Sums that may still change have this number plus
    the number of sources.
    """

    ends: Sequence[int]
    finished: Sequence[FinishedIds]

    @property
    def sources(self) -> int:
        """The number of sources."""
        return len(self.ends)

    def in_closed(self, rows: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Which rows of a log are in a closed segment. (The ``offset`` of a delay store's row is a version.)"""
        found: NDArray[np.bool_] = rows["offset"] < np.asarray(self.ends, np.int64)[rows["source"]]
        return found

    def of_parts(self, first: int, end: int, parts: int) -> Counted:
        """What it takes to settle the parts from ``first`` to before ``end`` of so many: of the hashes theirs alone."""
        low, high = first_hash(first, parts), first_hash(end, parts)
        return Counted(self.ends, [ids.between(low, high) for ids in self.finished])

    def loaded(self) -> Counted:
        """The same, all hashes in memory. Raises StorageError if a file cannot be read."""
        return Counted(self.ends, [ids.loaded() for ids in self.finished])

    @property
    def hashes(self) -> int:
        """How many hashes are known, of all sources."""
        portions = [portion for ids in self.finished for portion in ids.hashed]
        files = {one.path: one.rows for one in portions if isinstance(one, StoredHashes)}
        return sum(files.values()) + sum(len(one[0]) for one in portions if not isinstance(one, StoredHashes))

    def without_hashes(self) -> Counted:
        """The same with ranges of ids alone, which are few."""
        return Counted(self.ends, [FinishedIds(ids.ranges) for ids in self.finished])

    def plus_hashes(self, hashes: Mapping[int, Sequence[Hashes]]) -> Counted:
        """The same and these hashes, by source."""
        return Counted(
            self.ends,
            [
                FinishedIds(ids.ranges, (*ids.hashed, *hashes.get(source, ())))
                for source, ids in enumerate(self.finished)
            ],
        )

    def shares(self, parts: int) -> Iterator[Counted]:
        """Yield the hashes of all parts, some at once, in memory: part ``n`` is in share ``n * shares // parts``.

        None if there are none. Raises StorageError if a file cannot be read.
        """
        hashes = self.hashes
        count = min(parts, 1 + _HASH_BYTES * hashes // _SHARE_BYTES) if hashes else 0
        if not count:
            return
        bounds = [first_hash(-(-number * parts // count), parts) for number in range(count + 1)]
        left = [
            [HashesInOrder(one) if isinstance(one, StoredHashes) else one for one in ids.hashed]
            for ids in self.finished
        ]
        for low, high in pairwise(bounds):
            yield Counted(self.ends, [FinishedIds({}, _share(some, low, high)) for some in left])

    def known(self, rows: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Which rows are about messages that were finished before."""
        return ids_among(rows, self.finished)


def ids_among(rows: Mapping[str, Any], ids: Sequence[FinishedIds]) -> NDArray[np.bool_]:
    """Which rows have one of these ids, given by source number."""
    found = np.zeros(len(rows["source"]), np.bool_)
    for number, some in enumerate(ids):
        mine = np.flatnonzero(rows["source"] == number)
        if len(mine):
            found[mine] = some.holds(rows["id_hi"][mine], rows["id_lo"][mine])
    return found


def finished_rows(table: pa.Table, before: Sequence[FinishedIds]) -> list[FinishedIds]:
    """The ids finished before, plus those in the rows of a table that belong to `CLOSED_ROWS`.

    A task's hashes are a portion, in ascending order, and stay where they are in the table. None of them is known.
    """
    found = list(before)
    numbers: dict[int, list[Hashes]] = {}
    hashed: dict[int, list[Hashes]] = {}
    for batch in table.to_batches():
        for row in np.flatnonzero(pc.equal(batch["table"], CLOSED_ROWS)).tolist():
            high, low = np.frombuffer(batch["packed"][row].as_buffer(), np.int64).reshape(2, -1)
            end = int(np.searchsorted(high, 0))
            source = batch["source"][row].as_py()
            for some, mine in ((hashed, slice(None, end)), (numbers, slice(end, None))):
                if len(high[mine]):
                    some.setdefault(source, []).append((high[mine], low[mine]))
    for source, parts in numbers.items():
        high, low = (np.concatenate(column) for column in zip(*parts, strict=True))
        found[source] = found[source].plus(high, low)
    for source, parts in hashed.items():
        old = found[source]
        found[source] = FinishedIds(old.ranges, (*old.hashed, *sorted(parts, key=lambda one: int(one[0][0]))))
    return found
