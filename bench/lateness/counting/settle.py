"""Determines the state of each message, and counts messages by figure: NumPy over the rows of one part.

A part (`bench.lateness.logs.packing`) has all rows of its ids, from logs and delay stores. If each id occurs once, each
row is a message, in any order. Otherwise the rows are sorted by id and position, so those of each message are
neighbours. The state of a message follows from sums, first and last rows of its group::

    source, id     position   stage       due          state      store_ms   due_ms
    0, 71          12,000     ACCEPTED    null
    0, 71          90,300     DELIVERED   1,000    ►   delivered  1,004      1,000     1 repeat: the first one counts
    0, 71          91,500     DELIVERED   1,000
    0, 72          3          LIVE        5,000    ►   overdue    null       5,000     if the reading is after 5,000

Cost: one sort of a part; in all less than a microsecond a message. Memory: several times the part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.lateness.counting.buckets import lateness_class
from bench.lateness.counting.grouping import Longs, Ranked, group, rank
from bench.lateness.counting.latest import late_rows
from bench.lateness.counting.sums import sum_rows, sums_by
from bench.lateness.logs.delays import ACCEPTED, CANCELLED, DELIVERED, LIVE, SEEN
from bench.lateness.logs.packing import NONE, Columns, unpack
from bench.lateness.logs.schemas import FINE_SCHEMA, MESSAGE_SCHEMA, TOPIC_NAME, arrow_schema, make_batch
from bench.lateness.results.result import MINUTE, MS_IN_SECOND, REQUESTED, TOPIC

__all__ = [
    "BOUNDS",
    "COUNT_ROWS",
    "LATEST_ROWS",
    "NOTE_ROWS",
    "PAIR_ROWS",
    "SECOND_ROWS",
    "STATES",
    "Choice",
    "add_up",
    "messages_of",
    "note_rows",
    "settle",
    "settle_and_add_up",
    "sums_of",
    "unpacked",
]

COUNT_ROWS, NOTE_ROWS, SECOND_ROWS, PAIR_ROWS, LATEST_ROWS = "counts", "notes", "second", "pairs", "latest"
"""Tables of `FINE_SCHEMA` beside the histograms. `SECOND_ROWS` have the number of messages due in a second. `PAIR_ROWS`
are sums by second and lateness, which `bench.lateness.counting.merging` uses and drops."""
STATES = ("delivered", "pending", "overdue", "lost", "cancelled", "unknown", "undated", "outside")
_ROWS_AT_ONCE = 1 << 20
_SPAN_MOST = 64
"""A table of seen ids has a byte for each number in their range. It is used if the range is at most this many times the
number of ids."""
BOUNDS = np.array([0, *(step * 10**power for power in range(18) for step in (1, 2, 5))])

_OVERDUE = STATES.index("overdue")
_SUMMED = ("source", "due_ms", "kind", "level", "topic_id", "requested_ms", "lateness_ms", "repeats",
           "id_hi", "id_lo", "place")  # fmt: skip
_MINUTE_MS = 60_000
_TIMES_FEWER = 2
"""Sums by second and lateness are added up further if there are so many times fewer than messages."""


@dataclass(frozen=True)
class Choice:
    """Selects messages: the moment that separates pending from overdue, and bounds of the due time (epoch ms).

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
    """Yield a row of `MESSAGE_SCHEMA` for each message and note of a part, from batches of `PACKED_SCHEMA`."""
    for found in _settled(batches, choice):
        yield _message_rows(found) if isinstance(found, dict) else found


def settle_and_add_up(batches: Iterable[pa.RecordBatch], choice: Choice, buckets: int = 1) -> Iterator[pa.RecordBatch]:
    """`settle` and `add_up` in one task, without a row for each message between them."""
    for found in _settled(batches, choice):
        if isinstance(found, dict):
            yield from sums_of(found, buckets)
        else:
            yield from note_rows(found)


def _settled(batches: Iterable[pa.RecordBatch], choice: Choice) -> Iterator[pa.RecordBatch | Columns]:
    """Notes as rows of `MESSAGE_SCHEMA`; then all messages of the part as columns."""
    for found in unpacked(batches):
        yield messages_of(found, choice) if isinstance(found, dict) else found


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch | Columns]:
    """Notes as rows of `MESSAGE_SCHEMA`; then all rows of the part as columns, if there are any."""
    packed: list[bytes] = []
    named: set[tuple[int, str]] = set()
    for batch in batches:
        texts = batch.column("text")
        if texts.null_count < len(texts):
            notes = _once(batch.filter(pc.is_valid(texts)), named)
            values = {name: notes.column(name) for name in ("source", "stage", "topic_id", "text")}
            yield make_batch(_MESSAGE, values, len(notes))
        packed += [value.as_py() for value in batch.column("packed") if value.is_valid]
    rows = unpack(packed)
    packed.clear()
    if len(rows["source"]):
        yield rows


def _once(notes: pa.RecordBatch, named: set[tuple[int, str]]) -> pa.RecordBatch:
    """Notes without topic names that other notes gave before: each task that reads a log notes all names it finds."""
    kept = []
    for stage, source, text in zip(*(notes[name].to_pylist() for name in ("stage", "source", "text")), strict=True):
        kept.append(stage != TOPIC_NAME or (source, text) not in named)
        if stage == TOPIC_NAME:
            named.add((source, text))
    return notes.filter(pa.array(kept, pa.bool_()))


def _in_order(rows: Columns) -> NDArray[np.intp]:
    """The order by source, id and position. If each id occurs once, as in most busy logs, one sort is enough."""
    if all(rows[name].min() == rows[name].max() for name in ("source", "id_hi")):
        order = np.argsort(rows["id_lo"])
        numbers = rows["id_lo"][order]
        if (numbers[1:] != numbers[:-1]).all():
            return order
    return np.lexsort([rows[name] for name in ("offset", "id_lo", "id_hi", "source")])


def _come_once(rows: Columns) -> bool:
    """Whether each id occurs once, found without a sort: a broker of ours gives consecutive ids.

    False also if the ids are too far apart for a table of those that were seen.
    """
    if any(rows[name].min() != rows[name].max() for name in ("source", "id_hi")):
        return False
    numbers = rows["id_lo"]
    lowest = int(numbers.min())
    span = int(numbers.max()) - lowest + 1
    if span > _SPAN_MOST * len(numbers):
        return False
    seen = np.zeros(span, np.bool_)
    seen[numbers - lowest] = True
    return bool(np.count_nonzero(seen) == len(numbers))


def messages_of(rows: Columns, choice: Choice) -> Columns:
    """The state of each message, a place in `STATES`, and its figures; `NONE` stands for null."""
    # ``reduceat`` reduces the rows of each message, which begin at ``starts``. A row that does not exist has the place
    # ``count`` or -1: both select the element that ``np.append`` adds.
    count = len(rows["stage"])
    starts = np.arange(count)
    if not _come_once(rows):
        order = _in_order(rows)
        rows = {name: column[order] for name, column in rows.items()}
        fresh = np.ones(count, np.bool_)
        fresh[1:] = False
        for name in ("source", "id_hi", "id_lo"):
            fresh[1:] |= rows[name][1:] != rows[name][:-1]
        starts = np.flatnonzero(fresh)
    stage = rows["stage"]
    place = np.arange(count)
    delivery = stage == DELIVERED
    first = np.minimum.reduceat(np.where(delivery, place, count), starts)
    lives = np.maximum.reduceat(np.where(stage == LIVE, place, -1), starts)
    # Rows behind the first delivery are not about this message: a sender may have used its key again.
    told = place <= np.repeat(first, np.diff(starts, append=count))
    accepted = np.minimum.reduceat(np.where(((stage == ACCEPTED) | (stage == SEEN)) & told, place, count), starts)
    stored = np.minimum.reduceat(np.where(stage == ACCEPTED, place, count), starts)
    waits = np.maximum.reduceat((stage == ACCEPTED) | (stage == LIVE), starts)
    cancels = np.maximum.reduceat(stage == CANCELLED, starts)
    deliveries = np.add.reduceat(delivery.astype(np.int64), starts)
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
    return {
        "source": source,
        "state": state.astype(np.int8),
        "offset": np.append(rows["offset"], NONE)[first],
        "store_ms": store_ms,
        "due_ms": due_ms,
        "id_hi": id_hi,
        "id_lo": rows["id_lo"][starts],
        "place": np.append(rows["offset"], NONE)[np.where(came, first, stored)],
        **_highest(rows, told, starts),
        "lateness_ms": np.where(delivered | overdue, lateness_ms, NONE),
        "repeats": np.maximum(deliveries - 1, 0),
    }


def _highest(rows: Columns, told: NDArray[np.bool_], starts: NDArray[np.intp]) -> Columns:
    """Figures that are equal in all rows of a message that have them, from the rows in ``told``."""
    return {
        name: np.maximum.reduceat(np.where(told, rows[name], np.iinfo(rows[name].dtype).min), starts)
        for name in ("kind", "level", "topic_id", "requested_ms")
    }


def _message_rows(found: Columns) -> pa.RecordBatch:
    plain = ("source", "kind", "level", "repeats", "id_hi", "id_lo")
    values: dict[str, Any] = {name: found[name] for name in plain}
    values |= {name: _nullable(column) for name, column in found.items() if name not in (*plain, "state")}
    values["state"] = pa.array(STATES).take(pa.array(found["state"]))
    values["censored"] = pa.array(found["state"] == _OVERDUE)
    return make_batch(_MESSAGE, values, len(found["source"]))


def _nullable(values: NDArray[np.signedinteger]) -> pa.Array:
    return pa.array(values, mask=values == NONE)


def add_up(batches: Iterable[pa.RecordBatch], buckets: int = 1) -> Iterator[pa.RecordBatch]:
    """Add up messages by every grouping: batches of `MESSAGE_SCHEMA` in, sums of `FINE_SCHEMA` out."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        noted = pc.is_valid(batch["text"])
        yield from note_rows(batch.filter(noted))
        held.append(batch.filter(pc.invert(noted)))
        if sum(map(len, held)) >= _ROWS_AT_ONCE:
            yield from sums_of(_columns_of(pa.Table.from_batches(held)), buckets)
            held = []
    if sum(map(len, held)):
        yield from sums_of(_columns_of(pa.Table.from_batches(held)), buckets)


def _columns_of(found: pa.Table) -> Columns:
    columns: Columns = {"state": np.asarray(pc.index_in(found["state"], pa.array(STATES)), np.int8)}
    for name in _SUMMED:
        columns[name] = np.asarray(found[name].cast(pa.int64()).fill_null(NONE))
    return columns


def sums_of(found: Columns, buckets: int = 1) -> Iterator[pa.RecordBatch]:
    """Add up the messages that `messages_of` returned."""
    sources = found["source"]
    for source in np.unique(sources).tolist():
        mine = sources == source
        some = found if mine.all() else {name: column[mine] for name, column in found.items()}
        yield _counts(source, some)
        measured = some["lateness_ms"] != NONE
        if measured.any():
            kept = some if measured.all() else {name: column[measured] for name, column in some.items()}
            yield _latest(source, kept)
            yield late_rows(source, kept, kept["state"] == _OVERDUE)
            yield from _histograms(source, kept, buckets)


def _counts(source: int, found: Columns) -> pa.RecordBatch:
    early = ((found["lateness_ms"] < 0) & (found["lateness_ms"] != NONE)).astype(np.int64)
    columns = [rank(found["state"].astype(np.int64)), rank(early)]
    (state, key), (count, repeated) = group(columns, len(early), (None, found["repeats"]))
    values = {
        "source": np.full(len(key), source),
        "table": pa.repeat(COUNT_ROWS, len(key)),
        "text": pa.array(STATES).take(pa.array(state)),
        "key": key,
        "count": count,
        "repeated": repeated,
    }
    return make_batch(_FINE, values, len(key))


def _latest(source: int, found: Columns) -> pa.RecordBatch:
    """The exact largest lateness of delivered messages, and of overdue ones."""
    waiting = found["state"] == _OVERDUE
    most = {kind: int(found["lateness_ms"][waiting == kind].max()) for kind in set(np.unique(waiting).tolist())}
    values: dict[str, Any] = {"source": [source] * len(most), "table": [LATEST_ROWS] * len(most)}
    values |= {"censored": list(most), "lateness_ms": list(most.values()), "count": [1] * len(most)}
    return make_batch(_FINE, values, len(most))


def _histograms(source: int, found: Columns, buckets: int) -> Iterator[pa.RecordBatch]:
    """Sums by each grouping; the messages due in each second, and the pairs that wait for their total."""
    waiting = found["state"] == _OVERDUE
    rows = len(waiting)
    late = {
        "lateness_ms": rank(lateness_class(found["lateness_ms"], waiting)),
        "censored": rank(waiting.astype(np.int64)),
    }
    second = found["due_ms"] // 1000
    seconds, millisecond = rank(second), rank(found["due_ms"] - second * 1000)
    told = {name: rank(found[name].astype(np.int64)) for name in ("topic_id", "kind", "level")}
    yield from sums_by(source, TOPIC, told | late, rows, buckets)
    yield from sums_by(source, MS_IN_SECOND, {"key": millisecond} | late, rows, buckets)
    yield from sums_by(source, REQUESTED, {"key": _delay_classes(found["requested_ms"])} | late, rows, buckets)
    names = ("key", "lateness_ms", "censored")
    values, (count,) = group([seconds, *late.values()], rows)
    pairs = dict(zip(names, values, strict=True)) | {"count": count}
    yield sum_rows(source, PAIR_ROWS, pairs)
    ranked = {name: rank(pairs[name]) for name in names}
    yield from sums_by(source, SECOND_ROWS, {"key": ranked["key"]}, len(count), buckets, count)
    if _TIMES_FEWER * len(count) > rows:  # in an outage; rows without weights need no order, only a sort
        levels, places = np.unique(seconds.levels // 60 * _MINUTE_MS, return_inverse=True)
        minutes = Ranked(levels, None if seconds.ranks is None or len(levels) == 1 else places[seconds.ranks])
        yield from sums_by(source, MINUTE, {"key": minutes} | late, rows, buckets)
        return
    ranked["key"] = rank(pairs["key"] // 60 * _MINUTE_MS)
    yield from sums_by(source, MINUTE, ranked, len(count), buckets, count)


def _delay_classes(requested_ms: Longs) -> Ranked:
    """The lower bound of each delay's class (0, 1, 2, 5, 10, 20, 50, …); `NONE` stays."""
    ranked = rank(requested_ms)
    classes = BOUNDS[np.maximum(np.searchsorted(BOUNDS, ranked.levels, side="right") - 1, 0)]
    classes = np.where(ranked.levels == NONE, NONE, classes)
    levels, places = np.unique(classes, return_inverse=True)
    return Ranked(levels, None if ranked.ranks is None or len(levels) == 1 else places[ranked.ranks])


def note_rows(found: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Turn notes into rows of `FINE_SCHEMA`, which travel with the sums."""
    if not len(found):
        return
    values = {name: found.column(name) for name in ("source", "topic_id", "text")}
    values |= {"key": found.column("stage"), "table": pa.repeat(NOTE_ROWS, len(found))}
    yield make_batch(_FINE, values | {"count": np.ones(len(found), np.int64)}, len(found))


_MESSAGE, _FINE = arrow_schema(MESSAGE_SCHEMA), arrow_schema(FINE_SCHEMA)
