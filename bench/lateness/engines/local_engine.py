"""The engine without Spark: processes of this machine run the same functions and exchange rows in files.

::

    splits, files of the delay store ──► pack ──► DIR/.rows-…/N ──► settle, add up, merge ──► sums ──► the result
    (a process for each core)                     (by part)         (the same processes)

The start of Java and Spark takes 10 s and more, the work for a small log a second. Spark's tasks run the same code on
the same whole numbers. So the tables are the same to the byte (`tests/bench/test_lateness_spark.py`).

Cost: 2 microseconds of processor time a record. Memory: each process holds the rows of one part (128 MB of log) several
times over, however large the log is. Disk: 66 bytes for each record about a delay, in the result folder, until the run
ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from bench.lateness.counting.closing import close_and_add_up
from bench.lateness.counting.counted import Counted
from bench.lateness.counting.merging import Marks, finish, hot_rows, marks_of, merge, spread
from bench.lateness.counting.settle import PAIR_ROWS, Choice, add_up, settle, settle_and_add_up
from bench.lateness.engines.ending import without_sigint
from bench.lateness.engines.job import Job, Receipts
from bench.lateness.engines.shares import RowsShare, Share, packed_rows, shares_of
from bench.lateness.engines.slots import Slot, Slots
from bench.lateness.logs.receipt_lines import RECEIVED_ROWS, read_lines, write_lines
from bench.lateness.logs.schemas import FINE_SCHEMA, MESSAGE_SCHEMA, PACKED_SCHEMA, arrow_schema
from bench.lateness.logs.storage import StorageError

__all__ = ["LOCAL_BYTES_MAX", "LocalEngine"]

LOCAL_BYTES_MAX = 4 << 30
"""Up to this size, logs are read without Spark unless an option asks for Spark."""
_TASKS_A_PROCESS = 2
"""A task merges its sums, so fewer tasks pass on fewer sums. Two a process, because tasks take different times."""
_ALONE_BYTES_MAX = 96 << 20
"""Up to this size of log, starting other processes takes longer than the work."""

_MESSAGE = arrow_schema(MESSAGE_SCHEMA)
_FINE, _PACKED = arrow_schema(FINE_SCHEMA), arrow_schema(PACKED_SCHEMA)

Given = TypeVar("Given")
Found = TypeVar("Found")
Run = Callable[[Callable[[Given], Found], Sequence[Given]], Iterator[Found]]
Counting = Callable[[Callable[[], int]], AbstractContextManager[None]]
"""A context that asks a function for the bytes read so far, as long as it is open."""


@dataclass(frozen=True)
class _Piece:
    """A piece of a file: the packed rows of one share that belong to one part."""

    path: str
    at: int
    size: int


@dataclass(frozen=True)
class _Found:
    """The result of `_read`: notes, and for each part the places of its rows."""

    notes: list[pa.RecordBatch]
    pieces: dict[int, list[_Piece]]


@dataclass(frozen=True)
class _Closing:
    """The task of `_close`: the parts from ``first`` on, of ``count``; notes; what was counted before."""

    parts: list[list[_Piece]]
    notes: list[pa.RecordBatch]
    first: int
    count: int
    counted: Counted


@dataclass(frozen=True)
class _Sums:
    """The result of `_settle`: sums, the file with the pairs of second and lateness, the messages if requested."""

    table: pa.Table
    pairs: str
    messages: list[pa.RecordBatch]


class LocalEngine:
    """Runs jobs with a process for each core; small jobs in this process alone."""

    def __init__(
        self,
        processes: int | None = None,
        counting: Counting = lambda _: nullcontext(),
        alone_bytes_max: int = _ALONE_BYTES_MAX,
    ) -> None:
        """Logs of at most ``alone_bytes_max`` are read in this process; ``counting`` asks for the bytes read."""
        self._alone_bytes_max = alone_bytes_max
        self._processes = processes or len(os.sched_getaffinity(0))
        self._counting = counting
        self._messages: list[pa.RecordBatch] = []

    def sums(self, job: Job) -> Any:
        """See `bench.lateness.engines.job.Engine`. Raises the errors of the reading, and StorageError."""
        return self._work(job, self._in_folder)

    def pieces(self, job: Job) -> Any:
        """See `bench.lateness.engines.job.Engine`. Raises as `sums`."""
        return self._work(job, self._pieces)

    def _work(self, job: Job, work: Callable[..., pa.Table]) -> pa.Table:
        shares = _shares(job)
        processes = self._processes if job.log_bytes > self._alone_bytes_max else 1
        job.out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".rows-", dir=job.out) as folder, _pool(processes) as run:
            try:
                return work(job, Path(folder), shares, run, processes)
            except OSError as error:
                room = "the rows of a log take 66 bytes a record there while it is counted"
                raise StorageError(f"{error.filename or job.out}: {error.strerror}; {room}") from error

    def _read_all(
        self, job: Job, folder: Path, shares: list[Share], run: Run[Any, Any]
    ) -> tuple[list[list[_Piece]], list[pa.RecordBatch]]:
        """Read every share; return for each part the places of its rows, and all notes."""
        notes: list[pa.RecordBatch] = []
        parts: list[list[_Piece]] = [[] for _ in range(job.parts)]
        slots = Slots(str(folder / "read"))
        slots.make(len(shares))
        places = [(share, str(folder / str(number)), slots.of(number)) for number, share in enumerate(shares)]
        with self._counting(slots.sum):
            for found in run(_read, places):
                notes += found.notes
                for number, pieces in found.pieces.items():
                    parts[number] += pieces
        return parts, notes

    def _pieces(self, job: Job, folder: Path, shares: list[Share], run: Run[Any, Any], processes: int) -> pa.Table:
        assert job.counted is not None
        parts, notes = self._read_all(job, folder, shares, run)
        count = len(parts)
        each = max(1, count // (processes * _TASKS_A_PROCESS))
        tasks = [
            _Closing(
                parts[at : at + each],
                notes if at == 0 else [],
                at,
                count,
                job.counted.of_parts(at, min(at + each, count), count),
            )
            for at in range(0, count, each)
        ]
        return pa.concat_tables(run(partial(_close, choice=job.choice), tasks))

    def _in_folder(self, job: Job, folder: Path, shares: list[Share], run: Run[Any, Any], processes: int) -> pa.Table:
        parts, notes = self._read_all(job, folder, shares, run)
        each = max(1, len(parts) // (processes * _TASKS_A_PROCESS))
        tasks = [
            (parts[at : at + each], str(folder / f"pairs-{at}"), notes if at == 0 else [])
            for at in range(0, len(parts), each)
        ]
        self._messages = []
        pairs: list[str] = []

        def sums() -> Iterator[pa.RecordBatch]:
            for some in run(partial(_settle, choice=job.choice, keep=bool(job.received)), tasks):
                self._messages += some.messages
                pairs.append(some.pairs)
                yield from some.table.to_batches()

        merged = _merged(sums())
        marks = marks_of(merged)
        seconds = run(partial(_spread, marks=marks), pairs)
        return pa.concat_tables([merged, _merged(b for table in seconds for b in table.to_batches()), hot_rows(marks)])

    def receipts(self, job: Job, hosts: Mapping[int, Iterable[str]]) -> Receipts:
        """See `bench.lateness.engines.job.Engine`; also writes the receipts as Parquet into the result folder.

        Raises ValueError for a file without receipts' columns, or one that cannot be read.
        """
        lines = read_lines(job.received)
        found = pa.Table.from_batches(self._messages, _MESSAGE)
        matched, repeated, unmatched, ambiguous = _joined(lines, found, hosts)
        write_lines(lines, job.out / RECEIVED_ROWS)
        sums = finish(pa.Table.from_batches(add_up(matched.to_batches()), _FINE))
        return Receipts(sums, repeated, unmatched, ambiguous)


def _shares(job: Job) -> list[Share]:
    """The shares of a job, and one for the rows that earlier runs have kept."""
    shares: list[Share] = [*shares_of(job)]
    if job.open_rows is not None and len(job.open_rows):
        shares.append(RowsShare(job.open_rows.to_batches(), job.parts))
    return shares


@contextmanager
def _pool(processes: int) -> Iterator[Run[Any, Any]]:
    """A ``map`` in this process or in several; results come in the order of the work. An error ends the processes."""
    if processes < 2:
        yield lambda work, given: map(work, given)
        return
    others = active_children()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:

        def run(work: Callable[[Any], Any], given: Iterable[Any]) -> Iterator[Any]:
            with without_sigint():  # the pool starts its processes when there is work
                return pool.map(work, given)

        try:
            yield run
        except BaseException:
            for process in active_children():
                if process not in others:
                    process.terminate()  # its work may take minutes
            pool.shutdown(cancel_futures=True)
            raise


def _read(given: tuple[Share, str, Slot]) -> _Found:
    """Read one share, and write its rows by part into the named file."""
    share, path, slot = given
    found = _Found([], {})
    at = 0
    with open(path, "wb") as file:
        for batch in packed_rows(share, slot.put):
            texts = batch["text"]
            if texts.null_count < len(texts):
                found.notes.append(batch)
                continue
            for number, rows in zip(batch["part"].to_pylist(), batch["packed"], strict=True):
                size = file.write(rows.as_buffer())
                found.pieces.setdefault(number, []).append(_Piece(path, at, size))
                at += size
    slot.put(share.size)
    return found


def _rows_of(pieces: list[_Piece]) -> Iterator[pa.RecordBatch]:
    """The rows of one part, from the files."""
    none = dict.fromkeys(_PACKED.names)
    for piece in pieces:
        with open(piece.path, "rb") as file:
            file.seek(piece.at)
            yield pa.RecordBatch.from_pylist([none | {"packed": file.read(piece.size)}], schema=_PACKED)


def _settle(given: tuple[list[list[_Piece]], str, list[pa.RecordBatch]], choice: Choice, keep: bool) -> _Sums:
    """Settle some parts and add them up; write the pairs into the named file."""
    parts, path, notes = given
    messages: list[pa.RecordBatch] = []

    def sums() -> Iterator[pa.RecordBatch]:
        for part in (notes, *map(_rows_of, parts)):
            if keep:
                settled = list(settle(part, choice))
                messages.extend(settled)
                yield from add_up(settled)
            else:
                yield from settle_and_add_up(part, choice)

    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, _FINE) as pairs:
        return _Sums(_merged(_without_pairs(sums(), pairs)), path, messages)


def _close(given: _Closing, choice: Choice) -> pa.Table:
    """Settle some parts beside what was counted before, whose hashes are read for one part at a time."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield from close_and_add_up(given.notes, choice, given.counted)
        for number, pieces in enumerate(given.parts, given.first):
            if pieces:
                counted = given.counted.of_parts(number, number + 1, given.count).loaded()
                yield from close_and_add_up(_rows_of(pieces), choice, counted)

    return pa.Table.from_batches(batches(), _FINE)


def _without_pairs(batches: Iterable[pa.RecordBatch], pairs: Any) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch["table"][0].as_py() == PAIR_ROWS:
            pairs.write_batch(batch)
        else:
            yield batch


def _spread(path: str, marks: Mapping[int, Marks]) -> pa.Table:
    """The sums of some parts by the class of their second."""
    with pa.OSFile(path, "rb") as file:
        return _merged(spread(pa.ipc.open_stream(file), marks))


def _merged(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(merge(batches), _FINE)


def _joined(
    lines: pa.Table, found: pa.Table, hosts: Mapping[int, Iterable[str]]
) -> tuple[pa.Table, dict[int, int], int, int]:
    """As `received.read_received` on Spark: matched messages, repeats by source, unmatched and ambiguous receipts."""
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
    matched = ambiguous = 0
    for (host, place, store_ms), (received_ms, times) in receipts.items():
        ways = [number for number in known.get(host, ()) if (number, place, store_ms) in row_of]
        if len(ways) == 1:
            rows.append(row_of[ways[0], place, store_ms])
            first.append(received_ms)
            repeated[ways[0]] += times - 1
            matched += times
        elif ways:
            ambiguous += times
    kept = delivered.take(pa.array(rows, pa.int64()))
    late = pa.array(np.array(first, np.int64) - np.asarray(kept["due_ms"], np.int64), pa.int64())
    kept = kept.set_column(kept.column_names.index("lateness_ms"), "lateness_ms", late)
    return kept, repeated, len(lines) - matched, ambiguous


def _position(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        return -1
