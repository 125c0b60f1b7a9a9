"""What became of each message, and how many messages share each figure: NumPy over the rows of one part.

The rows of a part (`bench.lateness.packing`) hold every row of the ids in it, from logs and delay stores. Sorted by
id and position each message is a run of neighbours, and what it takes to know its state are sums, firsts and lasts of
runs::

    source, id     position   stage       due          state      store_ms   due_ms
    0, 71          12,000     ACCEPTED    null
    0, 71          90,300     DELIVERED   1,000    ►   delivered  1,004      1,000     1 repeat: the first one counts
    0, 71          91,500     DELIVERED   1,000
    0, 72          3          LIVE        5,000    ►   overdue    null       5,000     if it is later than 5,000 now

Cost: one sort of a part, less than a microsecond a message for all of it. Memory: a part, some times over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.lateness.buckets import lateness_class
from bench.lateness.delays import ACCEPTED, CANCELLED, DELIVERED, LIVE, SEEN
from bench.lateness.packing import NONE, Columns, unpack
from bench.lateness.result import MS_IN_SECOND, REQUESTED, TOPIC
from bench.lateness.schemas import FINE_SCHEMA, MESSAGE_SCHEMA, arrow_schema

__all__ = [
    "BOUNDS",
    "COUNT_ROWS",
    "LATEST_ROWS",
    "NOTE_ROWS",
    "SECOND_ROWS",
    "STATES",
    "Choice",
    "add_up",
    "settle",
    "settle_and_add_up",
]

COUNT_ROWS, NOTE_ROWS, SECOND_ROWS, LATEST_ROWS = "counts", "notes", "second", "latest"
"""Beside the names of histograms: what a row of `FINE_SCHEMA` may belong to."""
STATES = ("delivered", "pending", "overdue", "lost", "cancelled", "unknown", "undated", "outside")
_ROWS_AT_ONCE = 1 << 20
BOUNDS = np.array([0, *(step * 10**power for power in range(18) for step in (1, 2, 5))])

Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Choice:
    """What of a reading counts: the moment that parts pending from overdue, and bounds of the due time (epoch ms).

    ``given_back`` are the numbers of sources in which a finished message may have left no trace.
    """

    as_of_ms: int
    since_ms: int | None = None
    until_ms: int | None = None
    given_back: Sequence[int] = ()

    def holds(self, due_ms: Longs) -> NDArray[np.bool_]:
        """Which due times are within the bounds."""
        chosen = np.ones(len(due_ms), np.bool_)
        if self.since_ms is not None:
            chosen &= due_ms >= self.since_ms
        if self.until_ms is not None:
            chosen &= due_ms < self.until_ms
        return chosen


def settle(batches: Iterable[pa.RecordBatch], choice: Choice) -> Iterator[pa.RecordBatch]:
    """One row of `MESSAGE_SCHEMA` for each message of a part, given as batches of `PACKED_SCHEMA`; notes stay."""
    packed: list[bytes] = []
    for batch in batches:
        texts = batch.column("text")
        if texts.null_count < len(texts):
            notes = batch.filter(pc.is_valid(texts))
            values = {name: notes.column(name) for name in ("source", "stage", "topic_id", "text")}
            yield _batch(_MESSAGE, values, len(notes))
        packed += [value.as_py() for value in batch.column("packed") if value.is_valid]
    rows = unpack(packed)
    packed.clear()
    if len(rows["source"]):
        yield _messages(rows, choice)


def settle_and_add_up(batches: Iterable[pa.RecordBatch], choice: Choice) -> Iterator[pa.RecordBatch]:
    """`settle` and `add_up` in one task."""
    return add_up(settle(batches, choice))


def _in_order(rows: Columns) -> NDArray[np.intp]:
    """The order by source, id and position; where ids come once, as nearly all do in a busy log, one sort finds it."""
    if all(rows[name].min() == rows[name].max() for name in ("source", "id_hi")):
        order = np.argsort(rows["id_lo"])
        numbers = rows["id_lo"][order]
        if (numbers[1:] != numbers[:-1]).all():
            return order
    return np.lexsort([rows[name] for name in ("offset", "id_lo", "id_hi", "source")])


def _messages(rows: Columns, choice: Choice) -> pa.RecordBatch:
    order = _in_order(rows)
    rows = {name: column[order] for name, column in rows.items()}
    stage = rows["stage"]
    count = len(stage)
    fresh = np.ones(count, np.bool_)
    fresh[1:] = False
    for name in ("source", "id_hi", "id_lo"):
        fresh[1:] |= rows[name][1:] != rows[name][:-1]
    starts = np.flatnonzero(fresh)
    place = np.arange(count)
    delivery = stage == DELIVERED
    first = np.minimum.reduceat(np.where(delivery, place, count), starts)
    lives = np.maximum.reduceat(np.where(stage == LIVE, place, -1), starts)
    accepted = np.minimum.reduceat(np.where((stage == ACCEPTED) | (stage == SEEN), place, count), starts)
    waits = np.maximum.reduceat((stage == ACCEPTED) | (stage == LIVE), starts)
    cancels = np.maximum.reduceat(stage == CANCELLED, starts)
    deliveries = np.add.reduceat(delivery.astype(np.int64), starts)
    # One place more, for what is not there.
    dues = np.append(rows["due_ms"], NONE)
    due_ms = dues[first]
    for other in (lives, accepted):
        due_ms = np.where(due_ms == NONE, dues[other], due_ms)
    source, id_hi = rows["source"][starts], rows["id_hi"][starts]
    came, dated, late = deliveries > 0, due_ms != NONE, due_ms <= choice.as_of_ms
    states = [
        (dated & ~choice.holds(due_ms), "outside"),
        (came & ~dated, "undated"),
        (came, "delivered"),
        (cancels, "cancelled"),
        (waits & ~dated, "undated"),
        (waits & late, "overdue"),
        (waits, "pending"),
        (np.isin(source, list(choice.given_back)) & (id_hi == 0), "unknown"),
    ]
    state = np.select([holds for holds, _ in states], [STATES.index(name) for _, name in states], STATES.index("lost"))
    delivered, overdue = (state == STATES.index(name) for name in ("delivered", "overdue"))
    store_ms = np.append(rows["store_ms"], NONE)[first]
    lateness_ms = np.where(delivered, store_ms, choice.as_of_ms) - np.where(dated, due_ms, 0)
    highest = {name: np.maximum.reduceat(rows[name], starts) for name in ("kind", "level", "topic_id", "requested_ms")}
    values = {
        "source": source,
        "state": pa.array(STATES).take(pa.array(state)),
        "offset": _nullable(np.append(rows["offset"], NONE)[first]),
        "store_ms": _nullable(store_ms),
        "due_ms": _nullable(due_ms),
        "kind": highest["kind"],
        "level": highest["level"],
        "topic_id": _nullable(highest["topic_id"]),
        "requested_ms": _nullable(highest["requested_ms"]),
        "lateness_ms": pa.array(lateness_ms, mask=~(delivered | overdue)),
        "censored": pa.array(overdue),
        "repeats": np.maximum(deliveries - 1, 0),
    }
    return _batch(_MESSAGE, values, len(starts))


def _nullable(values: NDArray[np.signedinteger]) -> pa.Array:
    return pa.array(values, mask=values == NONE)


def add_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add up messages by every grouping: batches of `MESSAGE_SCHEMA` in, sums of `FINE_SCHEMA` out."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= _ROWS_AT_ONCE:
            yield from _sums(pa.Table.from_batches(held))
            held = []
    if held:
        yield from _sums(pa.Table.from_batches(held))


def _sums(found: pa.Table) -> Iterator[pa.RecordBatch]:
    noted = pc.is_valid(found["text"])
    yield from _notes(found.filter(noted))
    messages = found.filter(pc.invert(noted))
    if not len(messages):
        return
    early = pc.less(messages["lateness_ms"], 0).cast(pa.int64())
    states = {"source": messages["source"], "text": messages["state"], "key": early}
    yield from _grouped(COUNT_ROWS, states, messages["repeats"])
    timed = messages.filter(pc.is_valid(messages["lateness_ms"]))
    if not len(timed):
        return
    yield from _latest(timed)
    waiting = timed["censored"].to_numpy()
    classes = lateness_class(timed["lateness_ms"].to_numpy(), waiting)
    late = {"source": timed["source"], "lateness_ms": pa.array(classes), "censored": timed["censored"]}
    due_ms = np.asarray(timed["due_ms"])
    yield from _grouped(TOPIC, late | {name: timed[name] for name in ("topic_id", "kind", "level")})
    yield from _grouped(MS_IN_SECOND, late | {"key": pa.array(due_ms % 1000)})
    yield from _grouped(SECOND_ROWS, late | {"key": pa.array(due_ms // 1000)})
    yield from _grouped(REQUESTED, late | {"key": _classes(timed["requested_ms"])})


def _latest(timed: pa.Table) -> Iterator[pa.RecordBatch]:
    """The exact largest lateness by source, of what was delivered and of what still waits."""
    most = timed.group_by(["source", "censored"], use_threads=False).aggregate([("lateness_ms", "max")])
    values = {name: most[name].combine_chunks() for name in ("source", "censored")}
    values |= {"lateness_ms": most["lateness_ms_max"].combine_chunks(), "table": pa.repeat(LATEST_ROWS, len(most))}
    yield _batch(_FINE, values | {"count": np.ones(len(most), np.int64)}, len(most))


def _classes(requested: pa.ChunkedArray) -> pa.Array:
    """The lower bounds of the classes 0, 1, 2, 5, 10, 20, 50, … that the delays belong to."""
    known = np.asarray(pc.is_valid(requested))
    values = np.asarray(requested.fill_null(0))
    classes = BOUNDS[np.maximum(np.searchsorted(BOUNDS, values, side="right") - 1, 0)]
    return pa.array(classes, mask=~known)


def _grouped(table: str, columns: dict[str, Any], repeats: Any = None) -> Iterator[pa.RecordBatch]:
    names = list(columns)
    rows = pa.table(columns | {"repeats": pa.nulls(len(columns["source"]), pa.int64()) if repeats is None else repeats})
    added = rows.group_by(names, use_threads=False).aggregate([([], "count_all"), ("repeats", "sum")])
    values = {name: added[name].combine_chunks() for name in names}
    values |= {"count": added["count_all"].combine_chunks(), "repeated": added["repeats_sum"].combine_chunks()}
    yield _batch(_FINE, {"table": pa.repeat(table, len(added)), **values}, len(added))


def _notes(found: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in found.to_batches():
        values = {name: batch.column(name) for name in ("source", "topic_id", "text")}
        values |= {"key": batch.column("stage"), "table": pa.repeat(NOTE_ROWS, len(batch))}
        yield _batch(_FINE, values | {"count": np.ones(len(batch), np.int64)}, len(batch))


_MESSAGE, _FINE = arrow_schema(MESSAGE_SCHEMA), arrow_schema(FINE_SCHEMA)


def _batch(schema: pa.Schema, values: dict[str, Any], count: int) -> pa.RecordBatch:
    """A batch from what is known; all other columns are null."""
    arrays = []
    for column in schema:
        value = values.get(column.name)
        if value is None:
            arrays.append(pa.nulls(count, column.type))
        else:
            arrays.append((value if isinstance(value, pa.Array) else pa.array(value)).cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
