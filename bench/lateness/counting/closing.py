"""Settles a part when earlier runs have counted some of the log. A finished message is counted only once.

::

    rows of a part ──► of messages finished before: deliveries are repeats, other rows are ignored
                  └──► of the others: finished now (first delivery in a closed segment) ──► sums that are kept, ids
                                      not yet ──► sums of this result only; rows of closed segments, for the next run

Apache's messages that were cancelled or lost wait for no delivery. They count as finished `ENDED_MS` after they were
due: until then a delivery may be on its way. A delivery that comes still later counts as a repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.lateness.counting.counted import CLOSED_ROWS, OPEN_ROWS, Counted, FinishedIds, Hashes, ids_among
from bench.lateness.counting.settle import COUNT_ROWS, STATES, Choice, messages_of, note_rows, sums_of, unpacked
from bench.lateness.counting.stored import loaded
from bench.lateness.logs.delays import DELIVERED
from bench.lateness.logs.packing import COLUMNS, NONE, Columns, pack_hashes, unpack_hashes
from bench.lateness.logs.schemas import FINE_SCHEMA, KNOWN, arrow_schema, make_batch

__all__ = ["ENDED_MS", "Shared", "close_and_add_up", "close_part", "known_rows"]

ENDED_MS = 3 * 86_400_000
"""As long as Apache's brokers keep a log, and as their timer's longest delay, unless they are told otherwise."""
_ENDS = [STATES.index("cancelled"), STATES.index("lost")]
_FINE = arrow_schema(FINE_SCHEMA)


class Shared(Protocol):
    """What was counted, handed over to the processes of another machine, which read it when they need it."""

    @property
    def value(self) -> Counted:
        """It."""
        ...


def known_rows(batches: Iterable[pa.RecordBatch], share: Shared, parts: int) -> Iterator[pa.RecordBatch]:
    """Pack the hashes of one of `Counted.shares` by part: rows of stage `KNOWN`, for `close_part`.

    ``batches`` say nothing, and are there because Spark's tasks have some.
    """
    for _ in batches:
        pass
    for source, ids in enumerate(share.value.finished):
        for high, low in map(loaded, ids.hashed):
            yield pack_hashes(source, high, low, parts)
    # PySpark keeps it as long as the worker lives, which reads one share after another.
    vars(share).pop("_value", None)


def close_part(batches: Iterable[pa.RecordBatch], choice: Choice, counted: Shared) -> Iterator[pa.RecordBatch]:
    """`close_and_add_up` of a single part, whose known hashes (`known_rows`) are among its rows."""
    hashes: dict[int, list[Hashes]] = {}
    for found in unpacked(_without_known(batches, hashes)):
        if isinstance(found, dict):
            yield from _part(found, choice, counted.value.plus_hashes(hashes))
        else:
            yield from note_rows(found)


def _without_known(batches: Iterable[pa.RecordBatch], hashes: dict[int, list[Hashes]]) -> Iterator[pa.RecordBatch]:
    """The batches without rows of stage `KNOWN`, whose hashes are put into ``hashes``, by source."""
    for batch in batches:
        known = pc.fill_null(pc.equal(batch["stage"], KNOWN), False)
        if not known.true_count:
            yield batch
            continue
        mine = batch.filter(known)
        for source, data in zip(mine["source"].to_pylist(), mine["packed"].to_pylist(), strict=True):
            hashes.setdefault(source, []).append(unpack_hashes(data))
        yield batch.filter(pc.invert(known))


def close_and_add_up(batches: Iterable[pa.RecordBatch], choice: Choice, counted: Counted) -> Iterator[pa.RecordBatch]:
    """Yield sums of `FINE_SCHEMA`, numbered as `bench.lateness.counting.counted.Counted` says, and rows to keep."""
    for found in unpacked(batches):
        if isinstance(found, dict):
            yield from _part(found, choice, counted)
        else:
            yield from note_rows(found)


def _part(rows: Columns, choice: Choice, counted: Counted) -> Iterator[pa.RecordBatch]:
    logged = rows["store_ms"] != NONE
    kept = logged & counted.in_closed(rows)
    known = counted.known(rows)
    delivery = rows["stage"] == DELIVERED
    yield from _repeats(rows, known & delivery & kept, 0)
    yield from _repeats(rows, known & delivery & ~kept, counted.sources)
    if known.all():
        return
    rows = {name: column[~known] for name, column in rows.items()}
    kept, delivery = kept[~known], delivery[~known]
    found = messages_of(rows, choice)
    ends = np.asarray(counted.ends, np.int64)[found["source"]]
    finished = (found["offset"] != NONE) & (found["offset"] < ends)
    finished |= _ended(found, choice)
    ids = _ids(found, finished, counted.sources)
    mine = ids_among(rows, ids)
    # The next run reads deliveries behind the closed segments again, and counts them as repeats of finished messages.
    later = mine & delivery & ~kept
    yield from _repeats(rows, later, 0, -1)
    yield from _repeats(rows, later, counted.sources)
    yield from _ids_kept(found, finished)
    stays = kept & ~mine
    if stays.any():
        packed = b"".join(rows[name][stays].tobytes() for name in COLUMNS)
        yield make_batch(_FINE, {"source": [0], "table": [OPEN_ROWS], "packed": [packed], "count": [1]}, 1)
    found["source"] = np.where(finished, found["source"], found["source"] + counted.sources)
    yield from sums_of(found)


def _ended(found: Columns, choice: Choice) -> NDArray[np.bool_]:
    """Apache's messages of which nothing more is to be expected."""
    long_ago = (found["due_ms"] != NONE) & (found["due_ms"] <= choice.as_of_ms - ENDED_MS)
    ended: NDArray[np.bool_] = np.isin(found["state"], _ENDS) & (found["id_hi"] < 0) & long_ago
    return ended


def _repeats(rows: Columns, some: NDArray[np.bool_], shift: int, sign: int = 1) -> Iterator[pa.RecordBatch]:
    """Count deliveries as repeats of messages that are counted elsewhere; ``sign`` -1 takes them off again."""
    sources, times = np.unique(rows["source"][some], return_counts=True)
    if len(sources):
        values: dict[str, Any] = {"source": sources + shift, "repeated": sign * times}
        values |= {name: np.zeros(len(sources), np.int64) for name in ("key", "count")}
        values |= {"table": pa.repeat(COUNT_ROWS, len(sources)), "text": pa.repeat("delivered", len(sources))}
        yield make_batch(_FINE, values, len(sources))


def _ids(found: Columns, finished: NDArray[np.bool_], sources: int) -> list[FinishedIds]:
    ids = []
    for number in range(sources):
        mine = finished & (found["source"] == number)
        ids.append(FinishedIds().plus(found["id_hi"][mine], found["id_lo"][mine]))
    return ids


def _ids_kept(found: Columns, finished: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    for number in np.unique(found["source"][finished]).tolist():
        mine = finished & (found["source"] == number)
        high, low = found["id_hi"][mine].astype(np.int64), found["id_lo"][mine].astype(np.int64)
        order = np.lexsort([low, high])  # hashes come first, and a part has a range of them: nobody sorts all of them
        packed = high[order].tobytes() + low[order].tobytes()
        values = {"source": [number], "table": [CLOSED_ROWS], "key": [0], "packed": [packed], "count": [1]}
        yield make_batch(_FINE, values, 1)
