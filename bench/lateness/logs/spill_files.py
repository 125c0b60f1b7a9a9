"""Reads the delay store's files as they are at one moment, without its objects, which take locks and repair files.

Only the decoders of `store.spill` are used (manifest, frames, pages, done-sets). While a record moves from the journal
into a run it may be in two files. Then it is read twice with one id, which the computation expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.lateness.logs.progress import Done, done_sets, whole_file
from bench.lateness.logs.storage import Storage, StorageError, StoredFile
from remoting.errors import RecordError
from remoting.layout import (
    FILE_HEADER_BYTES,
    FRAME,
    FRAME_BYTES,
    FRAME_KIND_AT,
    FRAME_LENGTH_AT,
    FRAME_ROW_BYTES,
    MANIFEST,
    RECORD,
)
from remoting.layout.table import LITTLE_INT
from remoting.messages.record import record_fields, record_size
from store.disk.errors import StoreError
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import (
    CANCEL,
    END,
    FRAME_MAGIC,
    ROW_DTYPE,
    frame_seed,
    page_seed,
    read_column_page,
    read_frame,
    read_place_page,
)
from store.spill.rows.manifest import Manifest
from store.spill.rows.run_shape import RunShape

__all__ = ["Look", "Rows", "SpillFile", "SpillMovedError", "plan_spill", "read_spill_file"]

_PLAN_TRIES = 5
_WINDOW, _LOOK_BYTES = 4 << 20, 64 << 10
_BORN_MS = RECORD.picked("born_ms")
_FRAME_MAGIC = FRAME_MAGIC.to_bytes(4, "little")
_KIND_AND_COUNT = FRAME.picked("kind", "count")
_FRAME_PLACE = FRAME.picked("magic", "length", "position")
_STORE_ID = slice(MANIFEST.at("store_id"), MANIFEST.at("epoch"))
_KEY_MAX = (1 << 63) - 1

Longs = NDArray[np.int64]


class SpillMovedError(StorageError):
    """A planned file is gone: the broker has moved or finished the messages in it. Plan again."""


@dataclass(frozen=True)
class SpillFile:
    """One file of the delay store: a journal segment (``shape`` is None) or a run, and which of its records count.

    ``own``: of a segment (upper due, upper id), of a run (first, end); ``done``: its encoded done-set, or empty;
    ``data``: for an index, the path of the segment with the records; ``filled``: bytes of a segment before the zeros
    that it is filled up with.
    """

    path: str
    number: int
    store_id: bytes
    base: int
    size: int
    own: tuple[int, int]
    shape: bytes | None
    done: bytes
    data: str = ""
    filled: int = 0

    @property
    def rows(self) -> int | None:
        """How many messages a run has at most; None for a segment."""
        return None if self.shape is None else self.own[1] - self.own[0]

    def bytes_to_read(self, as_of_ms: int) -> int:
        """Bytes that a reading takes: of a segment up to its zeros, of a run its pages, and the records that are
        overdue at ``as_of_ms``, estimated as if due times were spread evenly."""
        if self.shape is None:
            return self.filled
        shape, done = RunShape.unpack(self.shape), DoneSet.decode(self.done)[0] if self.done else DoneSet()
        due = (as_of_ms + 1 - shape.due_min) / (shape.due_max + 1 - shape.due_min) * shape.count
        late = max(0, min(shape.count, int(due)) - done.count)
        begin, end = _pages(shape, self.own, done)
        return (end - begin) * shape.page_bytes + (0 if shape.is_index else shape.data_bytes * late // shape.count)


@dataclass(slots=True)
class Rows:
    """Records of a file, or its cancels, or (``damage``) a part of it that cannot be read."""

    dues: Longs = field(default_factory=lambda: np.empty(0, np.int64))
    ids: Longs = field(default_factory=lambda: np.empty(0, np.int64))
    versions: Longs = field(default_factory=lambda: np.empty(0, np.int64))
    live: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    overdue: dict[int, Any] = field(default_factory=dict)
    """What `Look.take` picked from a record, by place of its row."""
    cancels: bool = False
    damage: dict[str, Any] | None = None


def _topic_and_birth(record: bytes) -> tuple[bytes, int]:
    topic, _, _ = record_fields(record)
    return topic.encode(), int(_BORN_MS.unpack_from(record)[0])


@dataclass(frozen=True)
class Look:
    """Which records of a delay store are read: those of messages that wait and were due by ``as_of_ms``; with ``ids``
    only those of these messages, and nothing behind the last of them. ``take`` picks what is kept of a record."""

    as_of_ms: int
    take: Callable[[bytes], Any] = _topic_and_birth
    ids: Longs | None = None

    def places(self, rows: Rows) -> Longs:
        """The places of the rows whose records are read."""
        found = rows.live & (rows.dues <= self.as_of_ms)
        return np.flatnonzero(found if self.ids is None else found & np.isin(rows.ids, self.ids))


def joined(rows: Iterator[Rows], at_least: int = 16_384) -> Iterator[Rows]:
    """Join rows into larger pieces: a frame has few rows, and a piece costs as much as thousands of rows."""
    kept: dict[bool, list[Rows]] = {False: [], True: []}
    for part in rows:
        if part.damage is not None:
            yield part
            continue
        some = kept[part.cancels]
        some.append(part)
        if sum(len(one.ids) for one in some[-256:]) >= at_least or len(some) >= at_least:
            yield _join(some)
            some.clear()
    for some in kept.values():
        if some:
            yield _join(some)


def _join(parts: list[Rows]) -> Rows:
    overdue: dict[int, Any] = {}
    before = 0
    for part in parts:
        overdue |= {before + index: value for index, value in part.overdue.items()}
        before += len(part.ids)
    return Rows(
        np.concatenate([part.dues for part in parts]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.versions for part in parts]),
        np.concatenate([part.live for part in parts]),
        overdue,
        parts[0].cancels,
    )


def plan_spill(store: str, storage: Storage) -> list[SpillFile]:
    """List the present files of a store's delay store, none without one. Raises StoreError or StorageError.

    The manifest is read before and after the checkpoint: if it is the same, both belong together. Raises
    SpillMovedError if it changes in every one of `_PLAN_TRIES` tries.
    """
    folder = f"{store}/timewheel/delay"
    for _ in range(_PLAN_TRIES):
        before = _manifests(storage, folder)
        if not before:
            return []
        done = done_sets(storage, store)
        if _manifests(storage, folder) == before:
            return _files(storage, folder, _better(folder, before), done)
    raise SpillMovedError(f"{folder}: the manifest changed {_PLAN_TRIES} times while it was read")


def _manifests(storage: Storage, folder: str) -> dict[str, bytes]:
    """The manifest and its copy, if they exist."""
    sizes = storage.sizes(folder)
    names = [name for name in ("manifest", "manifest.copy") if name in sizes]
    return {name: whole_file(storage, f"{folder}/{name}", sizes[name]) for name in names}


def _better(folder: str, found: dict[str, bytes]) -> Manifest:
    """The later one of manifest and copy, or the one that is whole, as a broker chooses at its start."""
    whole: list[Manifest] = []
    problem: StoreError | None = None
    for name, data in found.items():
        try:
            whole.append(Manifest.decode(data, data[_STORE_ID], PurePosixPath(f"{folder}/{name}")))  # type: ignore[arg-type]
        except StoreError as error:
            problem = problem or error
    if not whole:
        assert problem is not None
        raise problem
    return max(whole, key=lambda manifest: manifest.generation)


def _files(storage: Storage, folder: str, manifest: Manifest, done: Done) -> list[SpillFile]:
    files = []
    for entry in manifest.segments:
        own = (int(entry.upper[0]), int(entry.upper[1]))
        path = f"{folder}/journal/{entry.no:010d}"
        known = done.sets.get(entry.no, b"")
        filled = _filled(storage, path, entry.base, entry.size, done.position)
        files.append(
            SpillFile(path, entry.no, manifest.store_id, entry.base, entry.size, own, None, known, filled=filled)
        )
    for run in manifest.runs:
        path = f"{folder}/runs/{run.no:010d}"
        own = (run.first, run.end)
        size = run.shape.file_bytes
        known = done.sets.get(run.no, b"")
        data_path = f"{folder}/journal/{run.data.no:010d}" if run.data is not None else ""
        files.append(SpillFile(path, run.no, manifest.store_id, 0, size, own, run.shape.pack(), known, data_path))
    return files


def _filled(storage: Storage, path: str, base: int, size: int, position: int) -> int:
    """Where the frames of a segment end. Those before the journal ``position`` are known to be there."""
    at = max(min(position - base, size), FILE_HEADER_BYTES)
    begin, data, step = at, b"", _LOOK_BYTES
    while at + FRAME_BYTES <= size:
        if at + FRAME_BYTES > begin + len(data):
            try:
                begin, data, step = at, storage.peek(path, at, step), _WINDOW
            except StorageError as error:
                raise SpillMovedError(f"{path}: {error}") from error
            if len(data) < FRAME_BYTES:
                break
        magic, length, place = _FRAME_PLACE.unpack_from(data, at - begin)
        if magic != FRAME_MAGIC or place != base + at or length < FRAME_BYTES:
            break
        at += length
    return min(at, size)


def read_spill_file(storage: Storage, file: SpillFile, look: Look) -> Iterator[Rows]:
    """Yield the records and cancels of one file.

    Raises SpillMovedError if the file is gone, StoreError or StorageError if it cannot be read.
    """
    with ExitStack() as stack:
        try:
            handle = stack.enter_context(closing(storage.open(file.path)))
            records = stack.enter_context(closing(storage.open(file.data))) if file.data else handle
        except StorageError as error:
            raise SpillMovedError(f"{file.path}: {error}") from error
        done = DoneSet.decode(file.done)[0] if file.done else DoneSet()
        if file.shape is None:
            yield from joined(_segment(handle, file, done, look))
        else:
            yield from joined(_run(handle, records, file, done, look))


def _segment(handle: StoredFile, file: SpillFile, done: DoneSet, look: Look) -> Iterator[Rows]:
    seed = frame_seed(file.store_id)
    position, ordinal = FILE_HEADER_BYTES, 0
    while position + FRAME_BYTES <= file.size:
        data = handle.read(position, min(_WINDOW, file.size - position))
        at = 0
        while (frame := read_frame(data, at, file.base + position + at, seed)) is not None:
            if frame.kind == END:
                return
            if at + frame.length > len(data):
                break
            rows = _frame_rows(data, at, frame.kind, frame.count)
            if frame.kind != CANCEL:
                ordinals = np.arange(ordinal, ordinal + frame.count, dtype=np.int64)
                _mark_live(rows, ordinals, file, done)
                begin = at + FRAME_BYTES + frame.count * FRAME_ROW_BYTES
                _read_overdue(rows, _starts(data, at, frame.count) + begin, data, look)
                ordinal += frame.count
            if frame.count:
                yield rows
            at += frame.length
        if not at:
            more = LITTLE_INT.unpack_from(data, FRAME_LENGTH_AT)[0] if len(data) >= FRAME_BYTES else 0
            if not len(data) < more <= file.size - position or data[:FRAME_KIND_AT] != _FRAME_MAGIC:
                return
            data = handle.read(position, more)
            if read_frame(data, 0, file.base + position, seed) is None:
                return
            yield from _one_large_frame(data, ordinal, file, done, look)
            ordinal += _frame_ordinals(data)
            at = more
        position += at


def _frame_ordinals(data: bytes) -> int:
    kind, count = _KIND_AND_COUNT.unpack_from(data)
    return 0 if kind == CANCEL else int(count)


def _one_large_frame(data: bytes, ordinal: int, file: SpillFile, done: DoneSet, look: Look) -> Iterator[Rows]:
    kind, count = _KIND_AND_COUNT.unpack_from(data)
    rows = _frame_rows(data, 0, kind, count)
    if kind != CANCEL:
        _mark_live(rows, np.arange(ordinal, ordinal + count, dtype=np.int64), file, done)
        _read_overdue(rows, _starts(data, 0, count) + FRAME_BYTES + count * FRAME_ROW_BYTES, data, look)
    yield rows


def _frame_rows(data: bytes, at: int, kind: int, count: int) -> Rows:
    table = np.frombuffer(data, ROW_DTYPE, count, at + FRAME_BYTES)
    rows = Rows(
        table["due"].astype(np.int64),
        table["id"].astype(np.int64),
        table["version"].astype(np.int64),
        np.zeros(count, np.bool_),
    )
    rows.cancels = kind == CANCEL
    return rows


def _starts(data: bytes, at: int, count: int) -> Longs:
    sizes = np.frombuffer(data, ROW_DTYPE, count, at + FRAME_BYTES)["size"].astype(np.int64)
    starts: Longs = np.cumsum(sizes) - sizes
    return starts


def _mark_live(rows: Rows, ordinals: Longs, file: SpillFile, done: DoneSet) -> None:
    if file.shape is None:
        due, id_ = file.own
        own = (rows.dues < due) | ((rows.dues == due) & (rows.ids < id_))
        if (due, id_) == (_KEY_MAX, _KEY_MAX):
            own[:] = rows.dues < _KEY_MAX  # the others are holes that a repair has left
    else:
        first, end = file.own
        own = (ordinals >= first) & (ordinals < end)
    rows.live = own & ~done.mask(ordinals)


def _read_overdue(rows: Rows, starts: Longs, data: bytes, look: Look) -> None:
    """Read the overdue records that ``look`` chooses; other records are not read.

    A message whose record is damaged waits all the same: its due time and id have a checksum of their own.
    """
    for index in look.places(rows).tolist():
        begin = int(starts[index])
        with suppress(RecordError):
            rows.overdue[index] = look.take(data[begin : begin + record_size(data, begin)])


def _pages(shape: RunShape, own: tuple[int, int], done: DoneSet) -> tuple[int, int]:
    """The pages of a run with rows that are its own and not done: from, before."""
    first, end = own
    begin = max(first, min(done.prefix, shape.count)) // shape.rows_per_page
    return begin, max(begin, -(-min(end, shape.count) // shape.rows_per_page))


def _run(handle: StoredFile, records: StoredFile, file: SpillFile, done: DoneSet, look: Look) -> Iterator[Rows]:
    assert file.shape is not None
    shape = RunShape.unpack(file.shape)
    seed = page_seed(file.store_id, file.number)
    read = read_place_page if shape.is_index else read_column_page
    for number in range(*_pages(shape, file.own, done)):
        at = FILE_HEADER_BYTES + number * shape.page_bytes
        try:
            data = handle.read(at, shape.page_bytes)
            page = read(data, number, seed, PurePosixPath(file.path), at)  # type: ignore[arg-type]
        except StoreError as error:
            why = str(error)
            yield Rows(damage={"file": file.path, "offset": at, "bytes": shape.page_bytes, "why": why, "torn": False})
            continue
        if look.ids is not None and len(page) and page.dues[0] > look.as_of_ms:
            return
        rows = Rows(page.dues.astype(np.int64), page.ids.astype(np.int64), page.versions.astype(np.int64))
        _mark_live(rows, np.arange(page.first, page.first + len(page), dtype=np.int64), file, done)
        late = look.places(rows)
        if shape.is_index:
            for index in late.tolist():
                with suppress(RecordError):
                    rows.overdue[index] = look.take(records.read(int(page.starts[index]), int(page.sizes[index])))
        elif len(late):
            low, high = int(page.starts[late[0]]), int(page.starts[late[-1]] + page.sizes[late[-1]])
            data = handle.read(low, high - low)
            _read_overdue(rows, page.starts - low, data, look)
        yield rows
