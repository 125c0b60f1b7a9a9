"""What earlier runs have counted: up to which position, and which messages are finished.

A message is finished when its first delivery is in a closed segment. No later record changes its figures: a further
delivery is a repeat. Only the ids of finished messages are kept, to recognize them. Our broker uses consecutive ids, so
they form ranges, with a hole for each message that waits::

    (0, 1 … 70,000) delivered, but for 512 and 9,001      ►    1-511   513-9,000   9,002-70,000

Ids of Apache's messages are hashes. Each is kept, 16 bytes long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.lateness.counting.grouping import Longs

__all__ = ["CLOSED_ROWS", "OPEN_ROWS", "Counted", "FinishedIds", "finished_rows"]

CLOSED_ROWS, OPEN_ROWS = "closed", "open"
"""Tables of `FINE_SCHEMA` beside the sums: ids that are finished now; packed rows of messages that are not."""
_HASHED = "S16"
_BY_HASH = -1

Hashes = NDArray[np.bytes_]


def _none() -> Hashes:
    return np.empty(0, _HASHED)


def _hashes(high: Longs, low: Longs) -> Hashes:
    """Both numbers as 16 bytes, which sort and compare as one value; all have one length, so zeros at the end count."""
    pairs: Hashes = np.stack([high, low], axis=1).astype(">i8").view(_HASHED).reshape(len(high))
    return pairs


@dataclass(frozen=True)
class FinishedIds:
    """The ids of one source's finished messages: ``ranges`` by the first number of the id (begins, ends; ascending)."""

    ranges: Mapping[int, tuple[Longs, Longs]] = field(default_factory=dict)
    hashed: Hashes = field(default_factory=_none)

    def holds(self, high: Longs, low: Longs) -> NDArray[np.bool_]:
        """Which of these ids are finished."""
        found = np.zeros(len(high), np.bool_)
        for number, (begins, ends) in self.ranges.items():
            mine = np.flatnonzero(high == number)
            place = np.searchsorted(begins, low[mine], side="right") - 1
            found[mine] = (place >= 0) & (low[mine] < ends[place])
        mine = np.flatnonzero(high < 0)
        if len(mine) and len(self.hashed):
            found[mine] = np.isin(_hashes(high[mine], low[mine]), self.hashed)
        return found

    def plus(self, high: Longs, low: Longs) -> FinishedIds:
        """These and more.

        >>> more = FinishedIds().plus(np.array([0, 0, 3]), np.array([5, 4, 5]))
        >>> {number: (begins.tolist(), ends.tolist()) for number, (begins, ends) in more.ranges.items()}
        {0: ([4], [6]), 3: ([5], [6])}
        """
        ranges = dict(self.ranges)
        for number in np.unique(high[high >= 0]).tolist():
            fresh = low[high == number]
            begins, ends = ranges.get(number, (fresh[:0], fresh[:0]))
            ranges[number] = _joined(np.concatenate([begins, fresh]), np.concatenate([ends, fresh + 1]))
        mine = high < 0
        hashed = np.union1d(self.hashed, _hashes(high[mine], low[mine])) if mine.any() else self.hashed
        return FinishedIds(ranges, hashed)

    def rows(self) -> Iterator[tuple[int, Longs, Longs]]:
        """As columns for a table: first number, begins, ends; of hashes `_BY_HASH` and both their halves."""
        for number, (begins, ends) in sorted(self.ranges.items()):
            yield number, begins, ends
        if len(self.hashed):
            pairs = np.ascontiguousarray(self.hashed).view(">i8").reshape(-1, 2).astype(np.int64)
            yield _BY_HASH, pairs[:, 0], pairs[:, 1]

    @staticmethod
    def of(rows: Iterable[tuple[int, Longs, Longs]]) -> FinishedIds:
        """Read them back."""
        ranges, hashed = {}, _none()
        for number, one, other in rows:
            if number == _BY_HASH:
                hashed = _hashes(one, other)
            else:
                ranges[number] = (one, other)
        return FinishedIds(ranges, hashed)


def _joined(begins: Longs, ends: Longs) -> tuple[Longs, Longs]:
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(begins), np.bool_)
    first[1:] = begins[1:] > ends[:-1]
    starts = np.flatnonzero(first)
    return begins[starts], ends[np.append(starts[1:], len(begins)) - 1]


@dataclass(frozen=True)
class Counted:
    """By source number: the CommitLog position up to which all segments are closed now, and what was finished before.

    Sums of what this run finishes bear the source's number; sums of what may change yet bear it plus the number of
    sources.
    """

    ends: Sequence[int]
    finished: Sequence[FinishedIds]

    @property
    def sources(self) -> int:
        """How many there are."""
        return len(self.ends)

    def in_closed(self, rows: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Which rows stand in a segment that is closed; rows of a delay store stand in none."""
        found: NDArray[np.bool_] = rows["offset"] < np.asarray(self.ends, np.int64)[rows["source"]]
        return found

    def known(self, rows: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Which rows speak of messages that were finished before."""
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
    """What was finished before, and what rows of `CLOSED_ROWS` say besides."""
    found = list(before)
    for source, key, packed in zip(*(table[name].to_pylist() for name in ("source", "key", "packed")), strict=True):
        del key
        high, low = np.frombuffer(packed, np.int64).reshape(2, -1)
        found[source] = found[source].plus(high, low)
    return found
