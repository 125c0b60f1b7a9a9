"""What one run is asked to do, and the order in which it looks at a store that may be live.

First the moment of the reading is fixed, then the delay stores are looked at, then the ends of the CommitLogs. What is
delivered between the two looks is seen in both stores, which is a delivery, and never in neither, which would be a
loss. What comes due after the moment of the reading is pending, however long the looks take.
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
"""So many bytes of log are a byte of the Parquet that ``--follow`` makes of them: 300 and 20 a record."""


@dataclass(slots=True)
class Job:
    """Everything that one run is asked to do; times are epoch ms.

    ``as_of_ms`` parts pending from overdue. None: now, as `look_at_delay_stores` finds it before it looks.
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
    """What the result says of the run (`bench.lateness.about`)."""
    check_crc: bool = False
    fail_on_damage: bool = False
    split_bytes: int = 0
    """Bytes of a segment for one task; 0: by the size of the log (`split_bytes_for`)."""
    task_bytes: int = TASK_BYTES
    """Memory that a task may take."""
    rows: Any = None
    """Rows of the logs that are there already (Spark's DataFrame, ``--follow``), in place of reading them."""
    rows_bytes: int = 0
    """What these rows take on disk; they may be of more log than is still there."""
    plans: list[LogPlan] = field(default_factory=list)
    counted: Counted | None = None
    """What earlier runs have counted (`bench.lateness.state`)."""
    to_read: list[LogPlan] = field(default_factory=list)
    """With ``counted``: what is left of ``plans`` to read."""
    open_rows: Any = None
    """Rows of `DELAY_SCHEMA` that earlier runs have kept, as an Arrow table."""
    counted_to: Sequence[int] = ()
    """Up to which position of each log earlier runs have counted."""
    begins: Sequence[int] = ()
    """With ``counted``: where the log of each source began when it was counted first."""
    delay_stores: list[list[SpillFile]] | None = None
    """The files of each source's delay store, where they have been looked at already."""

    @property
    def bytes_to_read(self) -> int:
        """Bytes of the logs that earlier runs have not counted, and of the delay stores; after `look_at_logs`."""
        ends = self.counted_to or [0] * len(self.sources)
        logs = zip(self.plans, ends, strict=True)
        size = sum(segment.end for plan, end in logs for segment in plan.segments if segment.base >= end)
        return size + sum(file.size for file in self._spill_files())

    @property
    def log_bytes(self) -> int:
        """Bytes of all logs, as `look_at_logs` found them."""
        return sum(segment.end for plan in self.to_read or self.plans for segment in plan.segments)

    @property
    def counted_bytes(self) -> int:
        """Bytes of all logs, and of as much log as other rows would be of: those that are there already, those that
        wait in delay stores, and those that earlier runs have kept."""
        size = max(self.log_bytes, self.rows_bytes * _LOG_PER_ROWS)
        size += sum(file.size if file.rows is None else file.rows * LOG_BYTES_A_ROW for file in self._spill_files())
        return size + (0 if self.open_rows is None else len(self.open_rows) * LOG_BYTES_A_ROW)

    def _spill_files(self) -> list[SpillFile]:
        return [file for files in self.delay_stores or () for file in files]

    @property
    def parts(self) -> int:
        """Into how many parts the rows of this job go."""
        return parts_for(self.counted_bytes, self.task_bytes)

    @property
    def choice(self) -> Choice:
        """What of the reading counts."""
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
    """What consumers saw: ``sums`` as `Engine.sums` gives them, of end-to-end lateness; ``repeated`` by source number;
    ``unmatched``: receipts that lead to no delivery."""

    sums: Any
    repeated: Mapping[int, int]
    unmatched: int


class Engine(Protocol):
    """What reads the logs of a job and adds up: Spark, or processes of this machine. Both find the same."""

    def sums(self, job: Job) -> Any:
        """Every histogram, count and note of a job whose stores and logs have been looked at, as one Arrow table."""
        ...

    def pieces(self, job: Job) -> Any:
        """The unmerged sums of a job with ``counted``, as `bench.lateness.counting.closing` gives them."""
        ...

    def receipts(self, job: Job, hosts: Mapping[int, Iterable[str]]) -> Receipts:
        """Join what consumers recorded with the deliveries that `sums` has found; ``hosts`` by source number."""
        ...


def split_bytes_for(log_bytes: int) -> int:
    """How much log one task reads: 32 MB, more where that would make too many tasks (each sends to each part).

    >>> split_bytes_for(10 << 30) >> 20, split_bytes_for(30 << 40) >> 20
    (32, 1024)
    """
    size = _SPLIT_BYTES
    while size < _SPLIT_BYTES_MAX and log_bytes > size * _SPLITS_WANTED:
        size *= 2
    return size


def look_at_delay_stores(job: Job) -> None:
    """Fix the moment of the reading, then what there is to read of the delay stores: before any log is looked at."""
    if job.as_of_ms is None:
        job.as_of_ms = time.time_ns() // 1_000_000
    job.delay_stores = [
        plan_spill(root_of(source), storage_for(source.path, source.storage)) if source.kind == "timewheel" else []
        for source in job.sources
    ]


def look_at_logs(job: Job) -> None:
    """Fix what there is to read of the logs; looks at the delay stores first if nobody has."""
    if job.delay_stores is None:
        look_at_delay_stores(job)
    ends = job.counted_to or [0] * len(job.sources)
    job.plans = [plan_log(one.path, one.storage, end) for one, end in zip(job.sources, ends, strict=True)]


def root_of(source: LogSource) -> str:
    """The store that a source belongs to, where its path is the CommitLog folder."""
    if storage_for(source.path, source.storage).is_folder(f"{source.path}/commitlog"):
        return source.path
    return source.path.rpartition("/")[0] or "."


def reading_options(job: Job, number: int) -> dict[str, str]:
    """The options of `bench.lateness.logs.reading.Settings` with which the log of a source is read."""
    source = job.sources[number]
    return {
        "rows": "packed",
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
