"""Counts each closed segment of a log only once: a run keeps its sums, and the next run reads only new segments.

::

    STATE: sums, finished ids, open rows ─┐
    new closed segments, the open one, ───┴─► parts ─┬─► sums of what is finished now ─► STATE'
    delay store                                      ├─► rows of closed segments that wait ─► STATE'
                                                     └─► sums of what may change yet ─┐
                                     sums of all that is finished ────────────────────┴─► the result

The last segment of a log is open, and each run reads it. Sums are additive, so a delivery that comes days late adds to
the minute in which it was due. A new state is written beside the old one, and becomes valid when one file is replaced
(`bench.lateness.state.record`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from secrets import token_hex
from types import TracebackType
from typing import Self
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.lateness.counting.closing import ENDED_MS
from bench.lateness.counting.counted import CLOSED_ROWS, OPEN_ROWS, Counted, FinishedIds, finished_rows
from bench.lateness.counting.latest import said_of
from bench.lateness.counting.merging import merge
from bench.lateness.counting.minutes import coarser, last_minute_of
from bench.lateness.counting.settle import NOTE_ROWS, PAIR_ROWS, SECOND_ROWS
from bench.lateness.engines.job import Engine, Job, root_of
from bench.lateness.logs.delays import ACCEPTED, LEVEL, SEEN
from bench.lateness.logs.packing import NONE, unpack
from bench.lateness.logs.planning import LogPlan
from bench.lateness.logs.progress import queue_progress
from bench.lateness.logs.schemas import DELAY_SCHEMA, FINE_SCHEMA, STATISTICS, arrow_schema, make_batch
from bench.lateness.logs.sources import LogSource
from bench.lateness.logs.storage import storage_for, without_login
from bench.lateness.state.days import DAY_S, Added, Place, Settled, add_up_days, settled_from, settled_table
from bench.lateness.state.folder import ChangedError, Folder, StateError, checksum, folder_for
from bench.lateness.state.identity import changed, identity_of
from bench.lateness.state.ids import (
    Fresh,
    finished_from,
    fresh_hashes,
    hashes_bytes,
    hashes_count,
    hashes_in_files,
    hashes_of,
    ranges_table,
)
from bench.lateness.state.record import NAME, Kept, OfSource, Record, read_record, remove_unlisted, write_record
from bench.lateness.state.small import condensed, notes_by_end, places_of

__all__ = ["StateFolder"]

_FINE, _DELAY = arrow_schema(FINE_SCHEMA), arrow_schema(DELAY_SCHEMA)
_JOINED_BYTES_MAX = 256 << 20
"""Files of hashes do not become larger by joining."""
_HASHES_BYTES_MAX, _HASH_BYTES = 128 << 20, 16
"""What a night adds is written in files of this size, one after the other."""
_TIMES_AS_LARGE = 2
"""Two files are joined if the older one is less than so many times as large as the newer, so each is rewritten
rarely."""


class StateFolder:
    """An open, locked state: ``with StateFolder(path, options, sources) as state``."""

    def __init__(self, path: str, options: str, sources: Sequence[LogSource], folder: Folder | None = None) -> None:
        """Lock and read the state. Raises StateError if it cannot be used for these sources."""
        self._path = path
        self._sources = sources
        self._folder = folder or folder_for(path, options)
        try:
            self._folder.lock()
            levels = sources[0].levels
            self._record = read_record(path, self._folder, levels, [(one.name, one.kind) for one in sources])
            if self._folder.locks:
                # Without a lock they may belong to a run at work; the next change of the state removes them.
                remove_unlisted(self._folder, self._record)
        except OSError as error:
            self._folder.close()
            raise StateError(f"--state {path}: {error.strerror or error}") from error
        except BaseException:
            self._folder.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.close()

    def end_of(self, number: int) -> int:
        """The CommitLog position up to which a source is counted."""
        return self._record.sources[number].end

    def narrow(self, job: Job) -> None:
        """Restrict a job, after `look_at_logs`, to what is not counted yet.

        Raises StateError if a counted part of a log has changed, OSError or StorageError if a log cannot be read.
        """
        assert job.delay_stores is not None
        ends, begins, job.to_read = [], [], []
        for source, old, plan, files in zip(
            job.sources, self._record.sources, job.plans, job.delay_stores, strict=True
        ):
            self._check(source, old, plan, files[0].store_id.hex() if files else "")
            floor = max(old.begin, old.end)
            cut = plan.begin > floor and self._record.generation > 0
            begins.append(plan.begin if cut or not self._record.generation else old.begin)
            missing = tuple((path, size) for path, size in plan.missing if int(path.rpartition("/")[2]) >= floor)
            if cut:
                missing = ((f"{plan.folder}/{floor:020d}", plan.begin - floor), *missing)
            segments = tuple(one for one in plan.segments if one.base >= old.end)
            job.to_read.append(replace(plan, segments=segments, missing=missing))
            ends.append(max([old.end, *(one.base for one in plan.segments if one.last)]))
        job.begins = begins
        job.counted = Counted(ends, self._finished())
        job.open_rows = self._open_rows(job)

    def _check(self, source: LogSource, old: OfSource, plan: LogPlan, store_id: str) -> None:
        if old.store_id and store_id and old.store_id != store_id:
            raise StateError(f"--state {self._path} is another store's: {source.path} has id {store_id}")
        why = ""
        if old.end and plan.end <= old.end:
            why = f"the log in {plan.folder} ends at {plan.end:,}, and was counted up to {old.end:,}"
        else:
            why = changed(storage_for(source.path, source.storage), plan, old.segments)
        if why:
            raise StateError(
                f"--state {self._path}: {why}: the store was cut or repaired, or is another one; what was counted of "
                "it cannot be taken back: give a new folder, which counts what is still there"
            )

    def count(self, engine: Engine, job: Job) -> pa.Table:
        """Count new segments and keep the finished messages; return the results of everything, as `Engine.sums` does.

        Raises StateError, ChangedError, and the errors of the engine.
        """
        assert job.counted is not None
        raw = engine.pieces(job)
        tables = raw["table"]
        opened = raw.filter(pc.equal(tables, OPEN_ROWS))
        notes = raw.filter(pc.equal(tables, NOTE_ROWS))
        others = raw.filter(pc.invert(pc.is_in(tables, pa.array([OPEN_ROWS, CLOSED_ROWS, NOTE_ROWS]))))
        for_good, for_now = notes_by_end(notes, job.counted.ends)
        mine = pc.less(others["source"], job.counted.sources)
        rest = others.filter(pc.invert(mine))
        shifted = pc.cast(pc.subtract(rest["source"], job.counted.sources), pa.int32())
        rest = rest.set_column(0, "source", shifted)
        fresh = others.filter(mine)
        packed = pc.is_valid(fresh["packed"])
        small = condensed(pa.concat_tables([self._small(), fresh.filter(pc.invert(packed)), for_good]))
        kept = [self._table(one) for one in self._record.sums]
        # In version 1 the pairs are among the sums: they go to their days like new ones.
        pairs = pa.concat_tables([_pairs(one) for one in (*kept, fresh)])
        kept = [_without_seconds(one) for one in kept]
        sums = pa.Table.from_batches(merge(_without_seconds(fresh.filter(packed)).to_batches()), _FINE)
        added = add_up_days(self._settled(), self._day, pairs, _pairs(rest), DAY_S)
        if not self._record.generation or list(job.counted.ends) != [one.end for one in self._record.sources]:
            shown = places_of(condensed(pa.concat_tables([small, rest.filter(pc.is_null(rest["packed"]))])))
            finished = finished_rows(raw, job.counted.finished)
            assert job.as_of_ms is not None
            last_ms = last_minute_of(pa.concat_tables([*kept, sums]), job.as_of_ms)
            self._keep(job, sums, last_ms, added, small, opened, finished, shown, _records(for_good))
        self._tell(job, _records(notes))
        others = pa.concat_tables([*kept, sums, small, _without_seconds(rest), for_now])
        return pa.concat_tables([pa.Table.from_batches(merge(others.to_batches()), _FINE), added.rows])

    def said(self) -> dict[tuple[int, int], list[str | None]]:
        """Topic, key and id of the latest messages, by source number and place: their records may be gone by now."""
        return self._record.said

    def _tell(self, job: Job, records: int) -> None:
        record = self._record
        job.about = {**job.about, "state": {
            "folder": without_login(self._path),
            "generation": record.generation,
            "records_read": records,
            "records_counted": record.records,
        }}  # fmt: skip

    def _keep(
        self,
        job: Job,
        sums: pa.Table,
        last_ms: int | None,
        added: Added,
        small: pa.Table,
        opened: pa.Table,
        finished: list[FinishedIds],
        shown: list[tuple[int, int]],
        records: int,
    ) -> None:
        """Make the next state: write its files, then the record that names them, then remove all others."""
        assert job.counted is not None
        old = self._record
        number = old.generation + 1
        # Without a lock, another run may be making files with the same number.
        lead = f"{number:010d}" if self._folder.locks else f"{number:010d}-{token_hex(8)}"
        days = {day: self._write(f"{lead}-day{day}.parquet", _parquet(pairs)) for day, pairs in added.files.items()}
        rows = unpack([value.as_py() for value in opened["packed"]])
        batch = make_batch(_DELAY, dict(rows), len(rows["source"]))
        record = Record(
            old.levels,
            [self._source(job, place) for place in range(len(job.sources))],
            number,
            old.records + records,
            self._sums(sums, last_ms, lead),
            self._write(f"{lead}-open.parquet", _parquet(pa.Table.from_batches([batch]))),
            self._write(f"{lead}-finished.parquet", _parquet(ranges_table(finished))),
            self._hashes(fresh_hashes(finished, job.counted.finished), lead),
            self._write(f"{lead}-small.parquet", _parquet(small)),
            self._write(f"{lead}-days.parquet", _parquet(settled_table(added.settled))),
            dict(sorted((old.pairs | days).items())),
            {place: old.said.get(place) or self._said(job, *place) for place in shown},
        )
        try:
            version = self._folder.version(NAME)
            sources = [(one.name, one.kind) for one in self._sources]
            present = read_record(self._path, self._folder, old.levels, sources)
            if present.generation != old.generation:
                raise ChangedError(f"--state {self._path}: another run has written it meanwhile; begin again")
            write_record(self._folder, record, version)
            self._record = record
            remove_unlisted(self._folder, record)
        except OSError as error:
            raise StateError(f"--state {self._path}: {NAME} cannot be written ({error.strerror or error})") from error

    def _sums(self, sums: pa.Table, last_ms: int | None, lead: str) -> list[Kept]:
        """The files of sums with these added; small files are joined with them, and old minutes become hours then."""
        files, first_version = list(self._record.sums), self._record.days is None
        if not len(sums) and not first_version:
            return files
        data = _parquet(sums)
        while files and (first_version or files[-1].size < _TIMES_AS_LARGE * len(data)):
            both = pa.concat_tables([_without_seconds(self._table(files.pop())), sums])
            sums = coarser(pa.Table.from_batches(merge(both.to_batches()), _FINE), last_ms)
            data = _parquet(sums)
        return [*files, self._write(f"{lead}-sums.parquet", data)]

    def _hashes(self, fresh: Fresh, lead: str) -> list[Kept]:
        """The files of hashes with these added; in version 2 hashes are among the ranges, and go with the new ones."""
        files = list(self._record.hashes)
        mixed = hashes_of(self._table(self._record.finished)) if self._record.finished else {}
        rows = _HASHES_BYTES_MAX // _HASH_BYTES
        if hashes_count(fresh) > rows:
            parts = list[Kept]()
            for number, some in enumerate(hashes_in_files(fresh, rows)):
                parts.append(self._write(f"{lead}-hashes{number}.parquet", hashes_bytes(some)))
            if mixed:
                parts.append(self._write(f"{lead}-hashes.parquet", hashes_bytes(mixed)))
            return [*files, *parts]
        new = next(hashes_in_files(fresh, rows), {})
        data = hashes_bytes(mixed, new)
        while len(data) and files and files[-1].size < min(_TIMES_AS_LARGE * len(data), _JOINED_BYTES_MAX - len(data)):
            mixed, new = hashes_of(self._table(files.pop())), hashes_of(pq.read_table(pa.BufferReader(data)))
            data = hashes_bytes(mixed, new)
        return [*files, self._write(f"{lead}-hashes.parquet", data)] if len(data) else files

    def _settled(self) -> dict[Place, Settled]:
        return settled_from(self._table(self._record.days).cast(_FINE)) if self._record.days else {}

    def _day(self, day: int) -> pa.Table:
        return self._table(self._record.pairs[day]).cast(_FINE)

    def _source(self, job: Job, number: int) -> OfSource:
        """The record of a source for the next state; segments that are gone are left out."""
        assert job.counted is not None
        assert job.delay_stores is not None
        source, plan, old = job.sources[number], job.plans[number], self._record.sources[number]
        storage, files = storage_for(source.path, source.storage), job.delay_stores[number]
        end = job.counted.ends[number]
        known = {one.base: old.segments.get(one.base) for one in plan.segments if one.base < end}
        places = {one.base: one for one in plan.segments}
        segments = {base: one or identity_of(storage, places[base]) for base, one in known.items()}
        store_id = files[0].store_id.hex() if files else old.store_id
        return OfSource(source.name, source.kind, store_id, job.begins[number], end, segments)

    def _said(self, job: Job, number: int, place: int) -> list[str | None]:
        return list(said_of(job.sources[number], job.plans[number], place))

    def _write(self, name: str, data: bytes | pa.Buffer) -> Kept:
        try:
            self._folder.write(name, data)
        except OSError as error:
            raise StateError(f"--state {self._path}: {name} cannot be written ({error.strerror or error})") from error
        return Kept(name, len(data), crc32(data))

    def _table(self, kept: Kept) -> pa.Table:
        try:
            data = self._folder.read(kept.name)
        except OSError as error:
            raise StateError(f"--state {self._path}: {kept.name} cannot be read ({error.strerror or error})") from error
        if (len(data), crc32(data)) != (kept.size, kept.crc):
            raise StateError(f"--state {self._path}: {kept.name} is damaged; bring it back, or give a new folder")
        return pq.read_table(pa.BufferReader(data))

    def _small(self) -> pa.Table:
        return self._table(self._record.small).cast(_FINE) if self._record.small else _FINE.empty_table()

    def _finished(self) -> list[FinishedIds]:
        ranges = self._table(self._record.finished) if self._record.finished else None
        return finished_from(ranges, [self._here(one) for one in self._record.hashes], len(self._sources))

    def _here(self, kept: Kept) -> str:
        """The path of a file on this machine, after a look at its bytes."""
        try:
            path = self._folder.here(kept.name)
            size, crc = checksum(path)
        except OSError as error:
            raise StateError(f"--state {self._path}: {kept.name} cannot be read ({error.strerror or error})") from error
        if (size, crc) != (kept.size, kept.crc):
            raise StateError(f"--state {self._path}: {kept.name} is damaged; bring it back, or give a new folder")
        return path

    def _open_rows(self, job: Job) -> pa.Table:
        """Rows that wait. Level messages below the progress of their queue are finished by now, and become `SEEN`. So
        do Apache's messages that were due long ago and whose record is deleted: its broker delivers from its log."""
        assert job.as_of_ms is not None
        if self._record.open is None:
            return _DELAY.empty_table()
        table = self._table(self._record.open).cast(_DELAY)
        stage = np.asarray(table["stage"]).copy()  # what Arrow gives may be read only
        source, level, low, kind = (np.asarray(table[name]) for name in ("source", "id_hi", "id_lo", "kind"))
        offset, due_ms = (np.asarray(table[name]) for name in ("offset", "due_ms"))
        for number, (one, plan) in enumerate(zip(self._sources, job.plans, strict=True)):
            if one.kind == "apache":
                gone = (offset < plan.begin) & (due_ms != NONE) & (due_ms <= job.as_of_ms - ENDED_MS)
                stage[(source == number) & gone & (stage == ACCEPTED)] = SEEN
            progress = queue_progress(root_of(one), one.storage) if one.kind == "timewheel" else {}
            for queue, done in progress.items():
                mine = (source == number) & (kind == LEVEL) & (level == int(queue)) & (low < done)
                stage[mine & (stage == ACCEPTED)] = SEEN
        return table.set_column(1, "stage", pa.array(stage, pa.int32()))


def _records(notes: pa.Table) -> int:
    seen = notes.filter(pc.equal(notes["key"], STATISTICS))
    return sum(int(json.loads(text)["records"]) for text in seen["text"].to_pylist())


def _pairs(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(table["table"], PAIR_ROWS))


def _without_seconds(table: pa.Table) -> pa.Table:
    """The rows that are not kept by day."""
    return table.filter(pc.invert(pc.is_in(table["table"], pa.array([PAIR_ROWS, SECOND_ROWS]))))


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())
