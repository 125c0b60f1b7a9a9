"""Reads a CommitLog as rows, without Spark: one task reads one split and yields Arrow batches.

Both engines call it, on Spark's executors and in processes of this machine (`bench.lateness.engines.shares`), and so
does the Spark data source (`bench.lateness.engines.source`). `Settings` are the options of a reading, `Task` is the
share of one call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bench.lateness.logs.delays import NO_DUE, ORDINARY, Delays, Reading, TopicNames, read_delays, topic_id
from bench.lateness.logs.lean import LEAN_BODY_BYTES
from bench.lateness.logs.planning import SPLIT_BYTES, LogPlan, Split, plan_from_json, plan_log
from bench.lateness.logs.records import Gap, Heads, LogSegment, SplitReader
from bench.lateness.logs.schemas import (
    DELAY_SCHEMA,
    GAP,
    RECORD_SCHEMA,
    STATISTICS,
    TOPIC_NAME,
    arrow_schema,
)
from bench.lateness.logs.storage import LogMovedError, StorageError, storage_for

__all__ = [
    "APACHE_LEVELS",
    "SCHEMAS",
    "DamagedLogError",
    "Settings",
    "Task",
    "batch_tasks",
    "parse_levels",
    "read_task",
]

APACHE_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL_MS_MAX = 10_000 * 365 * 86_400_000
SCHEMAS = {"records": RECORD_SCHEMA, "delays": DELAY_SCHEMA}
_STAGES = np.array(["ordinary", "accepted", "delivered", "cancelled", "", "accepted"])
_KINDS = np.array(["", "timed", "level"])


class DamagedLogError(Exception):
    """A region of a log holds no records, and the option ``failOnDamage`` is set."""


def parse_levels(text: str) -> tuple[int, ...]:
    """Read the levels of a ``messageDelayLevel`` into milliseconds. Raises ValueError for any other text.

    >>> parse_levels("1s 5m")
    (1000, 300000)
    """
    wrong = f"delay levels {text!r:.200}: numbers with s, m, h or d are expected, as in '1s 5s 10s'"
    try:
        found = tuple(int(item[:-1]) * _UNITS_MS[item[-1]] for item in text.split())
    except (KeyError, ValueError) as error:
        raise ValueError(wrong) from error
    if not found or not all(0 <= delay_ms <= _LEVEL_MS_MAX for delay_ms in found):
        raise ValueError(wrong)
    return found


@dataclass(frozen=True)
class Settings:
    """The options of one reading, parsed."""

    path: str
    rows: str
    split_bytes: int
    check_crc: bool
    fail_on_damage: bool
    levels: tuple[int, ...]
    own_levels: bool | None
    storage: str
    plan: str
    number: int
    progress: str
    parts: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        """Read the options; their names are in any case. Raises ValueError for a missing path or a wrong value."""
        values = {name.lower(): value for name, value in options.items()}
        rows = values.get("rows", "records")
        if rows not in SCHEMAS:
            raise ValueError(f"option rows={rows!r}: one of {', '.join(SCHEMAS)} is expected")
        if not values.get("path"):
            raise ValueError("rocketmq-commitlog: no path; give one with .load(PATH)")
        own = values.get("ownlevels")
        return cls(
            values["path"],
            rows,
            int(values.get("splitbytes", SPLIT_BYTES)),
            values.get("checkcrc", "false") == "true",
            values.get("failondamage", "false") == "true",
            parse_levels(values.get("levels", APACHE_LEVELS)),
            None if own is None else own == "true",
            values.get("storage", ""),
            values.get("plan", ""),
            int(values.get("number", 0)),
            values.get("progress", ""),
            int(values.get("parts", 2)),
        )

    def log_plan(self) -> LogPlan:
        """The plan among the options, or a new one of the present log. Raises StorageError."""
        return plan_from_json(self.plan) if self.plan else plan_log(self.path, self.storage)

    def reading(self, folder: str) -> Reading:
        """How to read the records of the log in ``folder``. Raises StorageError."""
        own = self.own_levels
        if own is None:
            own = storage_for(folder, self.storage).is_folder(f"{folder.rpartition('/')[0]}/timewheel")
        progress = {int(level): number for level, number in json.loads(self.progress or "{}").items()}
        return Reading(self.levels, own, progress)


@dataclass(frozen=True)
class Task:
    """The share of one call: a split, or the missing segments that the plan found.

    ``aligned``: a record starts at the begin of the split.
    """

    split: Split | None
    reading: Reading
    missing: tuple[tuple[str, int], ...] = ()
    aligned: bool = False


def batch_tasks(settings: Settings) -> list[Task]:
    """One task for each split, and one for missing segments. Raises StorageError."""
    plan = settings.log_plan()
    reading = settings.reading(plan.folder)
    tasks = [Task(split, reading) for split in plan.splits(settings.split_bytes)]
    if plan.missing or not tasks:
        tasks.append(Task(None, reading, plan.missing))
    return tasks


def read_task(settings: Settings, task: Task, told: Callable[[int], None] = lambda _: None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, in the form of the settings; ``told`` is called with the number of bytes read.

    Raises DamagedLogError at a damaged region if the settings demand it, LogMovedError if the segment is gone (in an
    object store at any of its requests) or has become shorter meanwhile, OSError or StorageError if it cannot be read.
    """
    rows = _RecordRows() if settings.rows == "records" else _DelayRows(settings.number)
    for path, size in task.missing:
        yield rows.gap(path, Gap(0, size, "a segment is missing", False))
    if task.split is None:
        return
    segment = task.split.segment
    storage = storage_for(segment.path, settings.storage)
    try:
        file = storage.open(segment.path, task.split.stop)
    except StorageError as error:
        raise LogMovedError(str(error)) from error
    try:
        reader = SplitReader(
            file.read,
            segment,
            task.split.begin,
            task.split.stop,
            check_crc=settings.check_crc,
            begin_is_record=task.aligned,
            lean_bytes=LEAN_BODY_BYTES if file.skips else 0,
        )
        names = TopicNames()
        for data, heads in reader.chunks():
            told(min(int(heads.places[-1] + heads.sizes[-1]), task.split.stop) - task.split.begin)
            yield from rows.add(heads, read_delays(data, heads, task.reading, names), segment)
    finally:
        file.close()
    for gap in reader.gaps:
        if settings.fail_on_damage and not gap.torn:
            raise DamagedLogError(f"{segment.path} at {gap.offset}: {gap.size} bytes: {gap.why}")
        yield rows.gap(segment.path, gap)
    yield from rows.finish(segment, task.split.begin)


def _batch(schema: pa.Schema, columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """A batch with these columns; all others are null."""
    arrays = []
    for column in schema:
        value = columns.get(column.name)
        if value is None:
            arrays.append(pa.nulls(count, column.type))
        elif isinstance(value, pa.Array):
            arrays.append(value.cast(column.type))
        elif isinstance(value, np.ndarray):
            arrays.append(pa.array(value).cast(column.type))
        else:
            arrays.append(pa.array([value] * count, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _coded(codes: np.ndarray[Any, Any], names: list[bytes]) -> pa.Array:
    texts = pa.array([name.decode("utf-8", "replace") for name in names], pa.string())
    return texts.take(pa.array(codes))


def _dues(due_ms: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(due_ms, pa.int64(), mask=due_ms == NO_DUE)


class _RecordRows:
    """Makes a row of each record."""

    def __init__(self) -> None:
        self._schema = arrow_schema(RECORD_SCHEMA)

    def add(self, heads: Heads, delays: Delays, segment: LogSegment) -> Iterator[pa.RecordBatch]:
        """One batch with a row for each record of a chunk."""
        none = delays.stage == ORDINARY
        yield _batch(
            self._schema,
            {
                "file": segment.path,
                "offset": heads.places + segment.base,
                "size": heads.sizes,
                "topic": _coded(delays.topics, delays.names),
                "queue_id": heads.queue_id,
                "queue_offset": heads.queue_offset,
                "sys_flag": heads.sys_flag,
                "born_ms": heads.born_ms,
                "store_ms": heads.store_ms,
                "reconsume_times": heads.reconsume_times,
                "body_bytes": heads.body_bytes,
                "stage": pa.array(_STAGES[delays.stage]),
                "kind": pa.array(_KINDS[delays.kind], mask=none),
                "level": pa.array(delays.level, mask=none),
                "due_ms": _dues(delays.due_ms),
                "requested_ms": pa.array(delays.requested_ms, mask=none | (delays.due_ms == NO_DUE)),
                "id_hi": pa.array(delays.id_hi, mask=none),
                "id_lo": pa.array(delays.id_lo, mask=none),
            },
            len(heads),
        )

    def gap(self, path: str, gap: Gap) -> pa.RecordBatch:
        """One row for bytes that are not records; ``path`` is the segment."""
        base = int(path.rpartition("/")[2])
        why = "torn" if gap.torn else gap.why
        return _batch(self._schema, {"file": path, "offset": base + gap.offset, "size": gap.size, "damage": why}, 1)

    def finish(self, segment: LogSegment, begin: int) -> Iterator[pa.RecordBatch]:
        """Yield nothing: `add` has yielded all rows."""
        del segment, begin
        yield from ()


class _DelayRows:
    """Makes a row of each record about a delay; at the end, notes about the split."""

    def __init__(self, number: int) -> None:
        self._schema = arrow_schema(DELAY_SCHEMA)
        self._number = number
        self._ids = np.empty(0, np.int64)
        self._used: set[int] = set()
        self._names: list[bytes] = []
        self._records = self._bytes = self._steps_back = 0
        self._first: int | None = None
        self._last = self._min = self._max = 0
        self._hosts: set[bytes] = set()

    def _count(self, heads: Heads) -> None:
        stored = heads.store_ms
        low, high = int(stored.min()), int(stored.max())
        if self._first is None:
            self._first, self._min, self._max = int(stored[0]), low, high
        elif stored[0] < self._last:
            self._steps_back += 1
        self._steps_back += int(np.count_nonzero(stored[1:] < stored[:-1]))
        self._min, self._max = min(self._min, low), max(self._max, high)
        self._last = int(stored[-1])
        self._records += len(heads)
        self._bytes += int(heads.sizes.sum())

    def add(self, heads: Heads, delays: Delays, segment: LogSegment) -> Iterator[pa.RecordBatch]:
        """At most one batch, with a row for each record of a chunk that was delayed."""
        self._count(heads)
        self._hosts |= delays.hosts
        some = np.flatnonzero(delays.stage)
        if not len(some):
            return
        self._names = delays.names
        if len(delays.names) > len(self._ids):
            self._ids = np.array([topic_id(name) for name in delays.names], np.int64)
        topics = delays.topics[some]
        self._used.update(np.unique(topics).tolist())
        yield _batch(
            self._schema,
            {
                "source": np.full(len(some), self._number, np.int32),
                "stage": delays.stage[some],
                "kind": delays.kind[some],
                "level": delays.level[some],
                "id_hi": delays.id_hi[some],
                "id_lo": delays.id_lo[some],
                "topic_id": self._ids[topics],
                "due_ms": _dues(delays.due_ms[some]),
                "requested_ms": delays.requested_ms[some],
                "offset": heads.places[some] + segment.base,
                "store_ms": heads.store_ms[some],
            },
            len(some),
        )

    def _note(self, stage: int, text: str, topic: int = 0) -> pa.RecordBatch:
        values = {"source": self._number, "stage": stage, "text": text, "topic_id": topic, "id_hi": 0, "id_lo": 0}
        return _batch(self._schema, values, 1)

    def gap(self, path: str, gap: Gap) -> pa.RecordBatch:
        """One note about bytes that are not records; ``path`` is the segment."""
        value = {"file": path, "offset": gap.offset, "bytes": gap.size, "why": gap.why, "torn": gap.torn}
        return self._note(GAP, json.dumps(value))

    def finish(self, segment: LogSegment, begin: int) -> Iterator[pa.RecordBatch]:
        """One note for each topic seen, and one with the statistics of the split, which starts at byte ``begin``."""
        for number in sorted(self._used):
            name = self._names[number]
            yield self._note(TOPIC_NAME, name.decode("utf-8", "replace"), topic_id(name))
        if self._records:
            value: dict[str, Any] = {
                "position": segment.base + begin,
                "records": self._records,
                "bytes": self._bytes,
                "first_ms": self._first,
                "last_ms": self._last,
                "min_ms": self._min,
                "max_ms": self._max,
                "steps_back": self._steps_back,
            }
            value["hosts"] = sorted(host.hex().upper() for host in self._hosts)
            yield self._note(STATISTICS, json.dumps(value))
