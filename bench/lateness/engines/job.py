"""The task of one run, and the order in which it looks at a store that may be live.

It first fixes the moment of reading, then lists the delay stores, then finds the ends of the CommitLogs. A message that
is delivered between the last two steps is seen in both stores and counts as delivered. In another order it could be
seen in neither, and count as lost. A message due after the moment of reading is pending, however long the steps take.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.lateness.counting.counted import Counted
from bench.lateness.counting.settle import Choice
from bench.lateness.logs.packing import LOG_BYTES_A_ROW, TASK_BYTES, parts_for
from bench.lateness.logs.planning import LogPlan, plan_log, plan_to_json
from bench.lateness.logs.progress import queue_progress
from bench.lateness.logs.sources import LogSource
from bench.lateness.logs.spill_files import SpillFile, plan_spill
from bench.lateness.logs.storage import storage_for
from bench.lateness.results.expect import Expectation
from bench.lateness.results.target import DEFAULT_TARGET, Target

__all__ = [
    "Engine",
    "Job",
    "Receipts",
    "look_at_delay_stores",
    "look_at_logs",
    "reading_options",
    "root_of",
    "split_bytes_for",
]

_SPLIT_BYTES = 32 << 20
_SPLIT_BYTES_MAX = 1 << 30
_SPLITS_WANTED = 30_000
_LOG_PER_ROWS = 16
"""Bytes of log for a byte of the Parquet that ``--follow`` makes of it: a record has 300 bytes, its row 20."""
_LOG_PER_HASH = 16
"""Bytes of log that make as many parts as a known hash: a task holds the 16 bytes of each up to five times."""


@dataclass(slots=True)
class Job:
    """The task of one run; times are epoch ms.

    ``as_of_ms`` separates pending from overdue. None: `look_at_delay_stores` sets it to the current time.
    """

    sources: Sequence[LogSource]
    out: Path
    received: Sequence[str] = ()
    tables: Sequence[str] = ()
    expectations: Sequence[Expectation] = ()
    target: Target = DEFAULT_TARGET
    since_ms: int | None = None
    until_ms: int | None = None
    as_of_ms: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    """The part of the result about the run (`bench.lateness.about`)."""
    check_crc: bool = False
    fail_on_damage: bool = False
    split_bytes: int = 0
    """Bytes of a segment for one task; 0: by the size of the log (`split_bytes_for`)."""
    task_bytes: int = TASK_BYTES
    """Memory that a task may take."""
    rows: Any = None
    """Rows of the logs that were read before (Spark's DataFrame, ``--follow``); then no log is read."""
    rows_bytes: int = 0
    """Size of these rows on disk; the log that they are from may be gone."""
    plans: list[LogPlan] = field(default_factory=list)
    counted: Counted | None = None
    """What earlier runs have counted (`bench.lateness.state`)."""
    to_read: list[LogPlan] = field(default_factory=list)
    """With ``counted``: the part of ``plans`` that is still to be read."""
    open_rows: Any = None
    """Rows of `DELAY_SCHEMA` that earlier runs have kept, as an Arrow table."""
    counted_to: Sequence[int] = ()
    """The position up to which earlier runs have counted each log."""
    begins: Sequence[int] = ()
    """With ``counted``: where the log of each source began when it was first counted."""
    delay_stores: list[list[SpillFile]] | None = None
    """The files of each source's delay store; None until `look_at_delay_stores`."""

    @property
    def bytes_to_read(self) -> int:
        """Bytes of the logs that earlier runs have not counted, and of the delay stores; after `look_at_logs`."""
        ends = self.counted_to or [0] * len(self.sources)
        logs = zip(self.plans, ends, strict=True)
        size = sum(segment.end for plan, end in logs for segment in plan.segments if segment.base >= end)
        return size + self.waiting_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes to read of the delay stores; after `look_at_delay_stores`."""
        assert self.as_of_ms is not None
        return sum(file.bytes_to_read(self.as_of_ms) for file in self._spill_files())

    @property
    def log_bytes(self) -> int:
        """Bytes of all logs, as `look_at_logs` found them."""
        return sum(segment.end for plan in self.to_read or self.plans for segment in plan.segments)

    @property
    def counted_bytes(self) -> int:
        """Bytes of all logs, plus an estimate for other rows: those that wait in delay stores, and those that earlier
        runs have kept. Rows that were read before count as their log if that is larger."""
        size = max(self.log_bytes, self.rows_bytes * _LOG_PER_ROWS)
        size += sum(file.size if file.rows is None else file.rows * LOG_BYTES_A_ROW for file in self._spill_files())
        return size + (0 if self.open_rows is None else len(self.open_rows) * LOG_BYTES_A_ROW)

    def _spill_files(self) -> list[SpillFile]:
        return [file for files in self.delay_stores or () for file in files]

    @property
    def parts(self) -> int:
        """The number of parts for the rows of this job, and for the hashes that earlier runs have counted."""
        hashes = 0 if self.counted is None else self.counted.hashes
        return parts_for(self.counted_bytes + hashes * _LOG_PER_HASH, self.task_bytes)

    @property
    def choice(self) -> Choice:
        """The moment of reading and the other bounds that select messages."""
        assert self.as_of_ms is not None
        return Choice(self.as_of_ms, self.since_ms, self.until_ms, self._given_back())

    def _given_back(self) -> list[int]:
        """The numbers of the sources in which a finished message may have left no trace."""
        assert self.delay_stores is not None
        return [
            number
            for number, (files, plan) in enumerate(zip(self.delay_stores, self.plans, strict=True))
            if (self.begins[number] if self.begins else plan.begin) > 0
            or min((file.base for file in files if file.shape is None), default=0) > 0
        ]


@dataclass(frozen=True, slots=True)
class Receipts:
    """Receipts of consumers: ``sums`` of end-to-end lateness, in the form of `Engine.sums`; ``repeated`` by source
    number; ``unmatched``: the number of receipts without a delivery; ``ambiguous``: those of them that match several
    sources."""

    sums: Any
    repeated: Mapping[int, int]
    unmatched: int
    ambiguous: int


class Engine(Protocol):
    """Reads the logs of a job and adds up: Spark, or processes of this machine. Both find the same."""

    def sums(self, job: Job) -> Any:
        """All histograms, counts and notes of a job, as one Arrow table; after `look_at_logs`."""
        ...

    def pieces(self, job: Job) -> Any:
        """The unmerged sums of a job with ``counted``, as `bench.lateness.counting.closing` gives them."""
        ...

    def receipts(self, job: Job, hosts: Mapping[int, Iterable[str]]) -> Receipts:
        """Join the receipts with the deliveries that `sums` has found; ``hosts`` are addresses by source number."""
        ...


def split_bytes_for(log_bytes: int) -> int:
    """Bytes of log for one task: 32 MB, or more where that would make too many tasks (each sends to each part).

    >>> split_bytes_for(10 << 30) >> 20, split_bytes_for(30 << 40) >> 20
    (32, 1024)
    """
    size = _SPLIT_BYTES
    while size < _SPLIT_BYTES_MAX and log_bytes > size * _SPLITS_WANTED:
        size *= 2
    return size


def look_at_delay_stores(job: Job) -> None:
    """Fix the moment of reading, then list the files of the delay stores. Call it before `look_at_logs`.

    Raises StoreError or StorageError for a delay store that cannot be read.
    """
    if job.as_of_ms is None:
        job.as_of_ms = time.time_ns() // 1_000_000
    job.delay_stores = [
        plan_spill(root_of(source), storage_for(source.path, source.storage)) if source.kind == "timewheel" else []
        for source in job.sources
    ]


def look_at_logs(job: Job) -> None:
    """Fix which segments to read, up to where; calls `look_at_delay_stores` first if that was not done.

    Raises StoreError or StorageError for a store that cannot be read.
    """
    if job.delay_stores is None:
        look_at_delay_stores(job)
    ends = job.counted_to or [0] * len(job.sources)
    job.plans = [plan_log(one.path, one.storage, end) for one, end in zip(job.sources, ends, strict=True)]


def root_of(source: LogSource) -> str:
    """The store of a source: its path, or the folder above if the path is the CommitLog folder. Raises StorageError."""
    if storage_for(source.path, source.storage).is_folder(f"{source.path}/commitlog"):
        return source.path
    return source.path.rpartition("/")[0] or "."


def reading_options(job: Job, number: int) -> dict[str, str]:
    """The options (`bench.lateness.logs.reading.Settings`) for reading the log of a source. Raises StorageError."""
    source = job.sources[number]
    return {
        "rows": "delays",
        "parts": str(job.parts),
        "number": str(number),
        "plan": plan_to_json((job.to_read or job.plans)[number]),
        "levels": source.levels,
        "storage": source.storage,
        "splitBytes": str(job.split_bytes or split_bytes_for(job.log_bytes)),
        "checkCrc": str(job.check_crc).lower(),
        "failOnDamage": str(job.fail_on_damage).lower(),
        "ownLevels": str(source.kind == "timewheel").lower(),
        "progress": json.dumps(queue_progress(root_of(source), source.storage)),
    }
