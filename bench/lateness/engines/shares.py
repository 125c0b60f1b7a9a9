"""The shares of a job: the part of a log or of a delay store that one task reads, the same on both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from bench.lateness.engines.job import Job, reading_options, root_of
from bench.lateness.logs.packing import pack
from bench.lateness.logs.reading import Settings, Task, batch_tasks, read_task
from bench.lateness.logs.spill_files import SpillFile
from bench.lateness.logs.spill_rows import spill_rows
from bench.lateness.logs.storage import storage_for

__all__ = ["LogShare", "RowsShare", "Share", "SpillShare", "packed_rows", "shares_of"]


@dataclass(frozen=True)
class LogShare:
    """A split of a CommitLog, or its missing segments."""

    settings: Settings
    task: Task

    @property
    def size(self) -> int:
        """Bytes of the CommitLog that the share reads."""
        return 0 if self.task.split is None else self.task.split.stop - self.task.split.begin


@dataclass(frozen=True)
class SpillShare:
    """A file of the delay store of source ``number``."""

    root: str
    storage: str
    file: SpillFile
    number: int
    as_of_ms: int
    parts: int

    @property
    def size(self) -> int:
        """Bytes of the delay store that the share reads."""
        return self.file.bytes_to_read(self.as_of_ms)


@dataclass(frozen=True)
class RowsShare:
    """Rows of `DELAY_SCHEMA` that earlier runs have kept; only the local engine has them as a share."""

    rows: list[pa.RecordBatch]
    parts: int
    size: int = 0


Share = LogShare | SpillShare | RowsShare


def shares_of(job: Job) -> list[LogShare | SpillShare]:
    """The shares of a job's logs and delay stores; those of logs only if their rows were not read before.

    Raises StorageError.
    """
    assert job.delay_stores is not None
    assert job.as_of_ms is not None
    shares: list[LogShare | SpillShare] = []
    for number, (source, files) in enumerate(zip(job.sources, job.delay_stores, strict=True)):
        if job.rows is None:
            settings = Settings.of({"path": source.path, **reading_options(job, number)})
            tasks = batch_tasks(settings)
            settings = replace(settings, plan="")  # the task has its part of it, and there may be many tasks
            shares += [LogShare(settings, task) for task in tasks]
        root = root_of(source)
        shares += [SpillShare(root, source.storage, file, number, job.as_of_ms, job.parts) for file in files]
    return shares


def packed_rows(share: Share, told: Callable[[int], None] = lambda _: None) -> Iterator[pa.RecordBatch]:
    """Read a share: batches of `PACKED_SCHEMA`. ``told`` is called with the number of bytes of a log read so far.

    Raises the errors of `read_task` and `spill_rows`.
    """
    if isinstance(share, LogShare):
        return pack(read_task(share.settings, share.task, told), share.settings.parts)
    if isinstance(share, RowsShare):
        return pack(share.rows, share.parts)
    storage = storage_for(share.root, share.storage)
    return pack(spill_rows(storage, share.file, share.number, share.as_of_ms), share.parts)
