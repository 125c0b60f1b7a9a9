"""The engine for logs of up to about a gigabyte: the same functions as on Spark, in processes of this machine.

::

    splits, files of the delay store ──► pack ──► parts ──► settle, add up ──► sums by group ──► by second
    (a process for each core)                     (the same processes)         (here, Arrow)     (here, NumPy)

Java's and Spark's start costs 10 s and more, the work for a small log a second. What reads, packs, settles and adds up
is the code that Spark's tasks run; only the sums of sums are made here, and they are sums of whole numbers, so the
tables are the same to the byte (`tests/bench/test_lateness_spark.py`).

Cost: a microsecond a record, as on Spark. Memory: 70 bytes for each record that speaks of a delay, twice while a part
is settled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.lateness.job import Job, Receipts, reading_options, root_of
from bench.lateness.merging import finish
from bench.lateness.packing import pack
from bench.lateness.reading import Settings, Task, batch_tasks, read_task
from bench.lateness.receipt_lines import RECEIVED_ROWS, read_lines, write_lines
from bench.lateness.schemas import FINE_SCHEMA, MESSAGE_SCHEMA, arrow_schema
from bench.lateness.settle import Choice, add_up, settle, settle_and_add_up
from bench.lateness.spill_files import SpillFile
from bench.lateness.spill_rows import spill_rows
from bench.lateness.storage import storage_for

__all__ = ["LOCAL_BYTES_MAX", "LocalEngine"]

LOCAL_BYTES_MAX = 1 << 30
"""Logs up to this size are read without Spark, unless told otherwise."""
_ALONE_BYTES_MAX = 96 << 20
"""Below it, starting other processes takes longer than the work."""

_MESSAGE = arrow_schema(MESSAGE_SCHEMA)
_FINE = arrow_schema(FINE_SCHEMA)

Given = TypeVar("Given")
Found = TypeVar("Found")
Run = Callable[[Callable[[Given], Found], Sequence[Given]], Iterator[Found]]


@dataclass(frozen=True)
class _LogShare:
    settings: Settings
    task: Task

    @property
    def log_bytes(self) -> int:
        return 0 if self.task.split is None else self.task.split.stop - self.task.split.begin


@dataclass(frozen=True)
class _SpillShare:
    root: str
    storage: str
    file: SpillFile
    number: int
    as_of_ms: int
    parts: int
    log_bytes: int = 0


_Share = _LogShare | _SpillShare
_Part = list[pa.RecordBatch]


class LocalEngine:
    """Runs jobs with as many processes as there are cores; small ones in this process alone."""

    def __init__(
        self,
        processes: int | None = None,
        told: Callable[[int], None] = lambda _: None,
        alone_bytes_max: int = _ALONE_BYTES_MAX,
    ) -> None:
        """``told`` is called with the bytes of log in each share that has been read.

        Logs of at most ``alone_bytes_max`` are read in this process.
        """
        self._alone_bytes_max = alone_bytes_max
        self._processes = processes or len(os.sched_getaffinity(0))
        self._told = told
        self._messages: list[pa.RecordBatch] = []

    def sums(self, job: Job) -> Any:
        """See `bench.lateness.job.Engine`. Errors of the reading come out as they are."""
        shares = _shares(job)
        with _pool(self._processes if job.log_bytes > self._alone_bytes_max else 1) as run:
            parts: list[_Part] = [[] for _ in range(job.parts)]
            for share, batches in zip(shares, run(_read, shares), strict=True):
                self._told(share.log_bytes)
                for batch in batches:
                    for row, number in enumerate(batch.column("part").to_pylist()):
                        parts[number].append(batch.slice(row, 1))
            keep = bool(job.received)
            added: list[pa.Table] = []
            self._messages = []
            for table, messages in run(partial(_settle, choice=job.choice, keep=keep), parts):
                added.append(table)
                self._messages += messages
        return finish(pa.concat_tables(added))

    def receipts(self, job: Job, hosts: Mapping[int, Iterable[str]]) -> Receipts:
        """See `bench.lateness.job.Engine`; writes the receipts as Parquet into the result folder, too."""
        lines = read_lines(job.received)
        found = pa.Table.from_batches(self._messages, _MESSAGE)
        matched, repeated, unmatched = _joined(lines, found, hosts)
        write_lines(lines, job.out / RECEIVED_ROWS)
        return Receipts(finish(pa.Table.from_batches(add_up(matched.to_batches()), _FINE)), repeated, unmatched)


def _shares(job: Job) -> list[_Share]:
    """What there is to read: the splits of each log, and the files of each delay store."""
    assert job.delay_stores is not None
    assert job.as_of_ms is not None
    shares: list[_Share] = []
    for number, (source, files) in enumerate(zip(job.sources, job.delay_stores, strict=True)):
        settings = Settings.of({"path": source.path, **reading_options(job, number)})
        shares += [_LogShare(settings, task) for task in batch_tasks(settings)]
        root = root_of(source)
        shares += [_SpillShare(root, source.storage, file, number, job.as_of_ms, job.parts) for file in files]
    return shares


@contextmanager
def _pool(processes: int) -> Iterator[Run[Any, Any]]:
    """A way to do work: here, or in so many processes; results in the order of the work."""
    if processes < 2:
        yield lambda work, given: map(work, given)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            yield lambda work, given: pool.map(work, given)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _read(share: _Share) -> _Part:
    """Read one share and pack its rows by part."""
    if isinstance(share, _LogShare):
        return list(pack(read_task(share.settings, share.task), share.settings.parts))
    storage = storage_for(share.root, share.storage)
    return list(pack(spill_rows(storage, share.file, share.number, share.as_of_ms), share.parts))


def _settle(part: _Part, choice: Choice, keep: bool) -> tuple[pa.Table, _Part]:
    """Settle the messages of one part and add them up; with ``keep`` answer the messages, too."""
    if not keep:
        return pa.Table.from_batches(settle_and_add_up(part, choice), _FINE), []
    messages = list(settle(part, choice))
    return pa.Table.from_batches(add_up(messages), _FINE), messages


def _joined(
    lines: pa.Table, found: pa.Table, hosts: Mapping[int, Iterable[str]]
) -> tuple[pa.Table, dict[int, int], int]:
    """What `bench.lateness.received.read_received` finds: matched messages, repeats by source, receipts unmatched."""
    receipts: dict[tuple[str, int, int | None], list[int]] = {}
    for text, store_ms, received_ms in zip(*(lines[name].to_pylist() for name in lines.column_names), strict=True):
        host, place = text[:-16].upper(), _position(text[-16:])
        entry = receipts.setdefault((host, place, store_ms), [received_ms, 0])
        entry[0] = min(entry[0], received_ms)
        entry[1] += 1
    delivered = found.filter(pc.fill_null(pc.equal(found["state"], "delivered"), False))
    places = zip(*(delivered[name].to_pylist() for name in ("source", "offset", "store_ms")), strict=True)
    row_of = {place: row for row, place in enumerate(places)}
    known: dict[str, list[int]] = {}
    for number, some in hosts.items():
        for host in some:
            known.setdefault(host, []).append(number)
    rows: list[int] = []
    first: list[int] = []
    repeated = dict.fromkeys(hosts, 0)
    matched = 0
    for (host, place, store_ms), (received_ms, times) in receipts.items():
        ways = [number for number in known.get(host, ()) if (number, place, store_ms) in row_of]
        if len(ways) == 1:
            rows.append(row_of[ways[0], place, store_ms])
            first.append(received_ms)
            repeated[ways[0]] += times - 1
            matched += times
    kept = delivered.take(pa.array(rows, pa.int64()))
    late = pa.array(np.array(first, np.int64) - np.asarray(kept["due_ms"], np.int64), pa.int64())
    kept = kept.set_column(kept.column_names.index("lateness_ms"), "lateness_ms", late)
    return kept, repeated, len(lines) - matched


def _position(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        return -1
