"""Mending the delay store's files: what is damaged is covered, what is whole is kept where it is.

==================  ==================================================================================================
manifest            its copy takes its place (`store.spill.rows.manifest.read_manifest`)
journal segment     a span that is no frame becomes a frame: with the records that are still whole, and with *holes* for
                    the others, rows that no scan and no done-set leads to. So every ordinal stays what it is
run                 cut off: brought to its size; header, trailer and column pages made again from what is known;
                    missing: taken out of the manifest
checkpoint section  missing or an older one: made from what there is; the CommitLog says what was delivered
==================  ==================================================================================================

Everything that is overwritten is put aside first.
"""

from __future__ import annotations

from pathlib import Path

from remoting.layout import (
    FILE_HEADER_BYTES,
    FRAME,
    FRAME_BYTES,
    FRAME_KIND_AT,
    FRAME_ROW_BYTES,
    LITTLE_INT,
    RUN_TRAILER_BYTES,
)
from remoting.messages.checksum import crc32
from remoting.messages.message import MAGIC_V1, MAGIC_V2
from store.disk.aside import AsideDir
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError
from store.disk.files import File, Files
from store.spill.journal.journal import records_are_whole
from store.spill.journal.segment_columns import SegmentColumns
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import (
    CANCEL,
    END,
    FRAME_MAGIC,
    INDEX_MAGIC,
    JOURNAL_MAGIC,
    MOVE,
    ROW,
    RUN_MAGIC,
    Frame,
    column_page,
    file_header,
    frame_count,
    frame_seed,
    page_seed,
    place_page,
    read_column_page,
    read_file_header,
    read_frame,
    read_place_page,
    run_trailer,
)
from store.spill.rows.manifest import Manifest, RunEntry, SegmentEntry, read_manifest
from store.spill.rows.model import DUE_MAX
from store.spill.rows.page_cache import RunPageCache
from store.spill.runs.rebuild import Row, row_of
from store.spill.runs.run import Run
from store.spill.runs.run_writer import run_name
from store.spill.upkeep.opening import decode_section, encode_section

__all__ = ["mended_section", "repair_spill"]

_FRAME = FRAME.struct("magic", "more_zeros")
_MAGIC = FRAME_MAGIC.to_bytes(4, "little")
_RECORD_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


def mended_section(files: Files, path: Path, store_id: bytes, section: bytes | None, aside: AsideDir) -> bytes | None:
    """The checkpoint section that the delay store at ``path`` can be opened with; the one given if that is fine.

    None if none is needed. Raises what the manifest's reading raises.
    """
    manifest, _ = read_manifest(files, path / "manifest", store_id)
    if manifest is None:
        return section
    claim, number, done = 0, 0, dict[int, DoneSet]()
    if section is not None:
        try:
            claim, done, number = decode_section(section)
            if number >= manifest.relied_on:
                return section
            aside.say(
                "the checkpoint is an older one: messages that were cancelled or moved since may come as they were"
            )
        except (StoreCorruptError, StoreFormatError) as error:
            aside.say(f"the checkpoint's section of the delay store cannot be read ({error})")
    elif not manifest.relied:
        return None
    if section is None or not done:
        aside.say(
            "what was delivered is taken from the CommitLog; what was cancelled or moved is known from the journal, "
            "as far as that is still there: messages that were cancelled before may come"
        )
    for entry in manifest.runs:
        if entry.data is not None:
            continue
        punched = _punched(files, path, store_id, entry)
        if punched:
            done.setdefault(entry.no, DoneSet()).add_range(0, punched)
    return encode_section(claim, {no: found.encode() for no, found in done.items()}, manifest.relied_on)


def _punched(files: Files, path: Path, store_id: bytes, entry: RunEntry) -> int:
    """Records at a run's front that were delivered and given back to the file system: their pages are holes."""
    place = path / "runs" / run_name(entry.no)
    if not files.exists(place):
        return 0
    file = files.open(place)
    run = Run(entry.no, file, entry.shape, store_id, RunPageCache(0))
    size = entry.shape.page_bytes
    page = 0
    while page < entry.shape.pages and not any(file.pread(size, FILE_HEADER_BYTES + page * size)):
        page += 1
    count = min(page * run.rows_per_page, entry.shape.count)
    file.close()
    return count


def repair_spill(files: Files, path: Path, store_id: bytes, section: bytes | None, aside: AsideDir) -> None:
    """Mend manifest, journal and runs under ``path``. Raises StoreError if there is no manifest to go by."""
    if not files.exists(path):
        return
    manifest, instead = read_manifest(files, path / "manifest", store_id)
    if manifest is None:
        return
    claim, done, _ = (0, {}, 0) if section is None else decode_section(section)
    if instead:
        kept = aside.move(path / "manifest") if files.exists(path / "manifest") else path / "manifest.copy"
        aside.say(f"{instead}: its copy is used, it is in {kept}")
    before = manifest.encode()
    _Journal(files, path / "journal", store_id, manifest, claim, done, aside).mend()
    _mend_data(files, path / "journal", store_id, manifest, aside)
    for run in list(manifest.runs):
        _mend_run(files, path / "runs", store_id, manifest, run, done.get(run.no), aside)
    if instead or manifest.encode() != before:
        manifest.generation += 1
        for name in ("manifest", "manifest.copy"):
            files.replace_file(path / name, manifest.encode())


def _mend_data(files: Files, path: Path, store_id: bytes, manifest: Manifest, aside: AsideDir) -> None:
    """Mend size and header of segments to which indexes lead, and which are not part of the journal any more."""
    listed = {entry.no for entry in manifest.segments}
    for data in sorted({run.data for run in manifest.runs if run.data is not None and run.data.no not in listed}):
        file = _full_size(files, path / run_name(data.no), data.size, aside)
        _mend_header(file, JOURNAL_MAGIC, store_id, data.no, (data.base, data.size), aside)
        file.close()


def _full_size(files: Files, path: Path, size: int, aside: AsideDir) -> File:
    """Open a file, brought to its size."""
    exists = files.exists(path)
    file = files.open(path, create=True)
    found = file.size()
    if not exists:
        aside.say(f"{path} is missing: what it held is lost")
        file.truncate(size)
        file.sync()
        files.sync_dir(path.parent)
    elif found != size:
        aside.say(f"{path} has {found} bytes, not {size}: it is brought to its size")
        if found > size:
            aside.keep(path, size, file.pread(found - size, size))
        file.truncate(size)
        file.sync()
    return file


def _mend_header(file: File, magic: int, store_id: bytes, no: int, fields: tuple[int, int], aside: AsideDir) -> None:
    data = file.pread(FILE_HEADER_BYTES, 0)
    try:
        if read_file_header(data, magic, store_id, no, file.path) == fields:
            return
    except (StoreCorruptError, StoreFormatError):
        pass
    aside.keep(file.path, 0, data)
    file.pwrite(file_header(magic, store_id, no, *fields), 0)
    file.sync()
    aside.say(f"{file.path} at 0: its header was made again")


class _Journal:
    """The journal under repair."""

    def __init__(
        self,
        files: Files,
        path: Path,
        store_id: bytes,
        manifest: Manifest,
        claim: int,
        done: dict[int, DoneSet],
        aside: AsideDir,
    ) -> None:
        self.files = files
        self.path = path
        self.store_id = store_id
        self.seed = frame_seed(store_id)
        self.manifest = manifest
        self.claim = claim
        self.done = done
        self.aside = aside
        self.epoch = 0

    def mend(self) -> None:
        """Mend every segment, in order."""
        entries = self.manifest.segments
        opened = [_full_size(self.files, self.path / run_name(s.no), s.size, self.aside) for s in entries]
        for file, entry in zip(opened, entries, strict=True):
            _mend_header(file, JOURNAL_MAGIC, self.store_id, entry.no, (entry.base, entry.size), self.aside)
        indexed = {run.data.no for run in self.manifest.runs if run.data is not None}
        used = [self._is_used(file, entry) for file, entry in zip(opened, entries, strict=True)]
        for index, (file, entry) in enumerate(zip(opened, entries, strict=True)):
            self._mend_segment(file, entry, closed=entry.no in indexed or any(used[index + 1 :]))
            file.close()

    def _is_used(self, file: File, entry: SegmentEntry) -> bool:
        """Whether anything was ever written to a segment."""
        return (
            self.claim > entry.base + FILE_HEADER_BYTES or self._search(file, entry, FILE_HEADER_BYTES, 0) is not None
        )

    def _mend_segment(self, file: File, entry: SegmentEntry, closed: bool) -> None:
        position, appended = FILE_HEADER_BYTES, 0
        while True:
            frame = self._frame(file, entry, position)
            if frame is not None and frame.epoch >= self.epoch and frame.first_ordinal == appended:
                self.epoch = frame.epoch
                self._mend_records(file, entry, position, frame)
                position += frame.length
                if frame.kind == END:
                    return
                if frame.kind != CANCEL:
                    appended += frame.count
                continue
            found = self._search(file, entry, position, appended)
            if found is None:
                break
            at, frame = found
            self._cover(file, entry, position, at, appended, frame.first_ordinal - appended)
            appended = frame.first_ordinal
            position = at
        self._mend_end(file, entry, position, appended, closed)

    def _mend_end(self, file: File, entry: SegmentEntry, position: int, appended: int, closed: bool) -> None:
        """No frame follows any more: see to it that the journal goes on where it must."""
        known = self.done.get(entry.no)
        lost = 0 if known is None else max(0, known.top - appended)
        end = entry.size - FRAME_BYTES if closed else max(self.claim - entry.base, position)
        end = min(end, entry.size)
        rest = file.pread(entry.size - end, end)
        if end > position:
            data = file.pread(end - position, position)
            lost = max(lost, len(_records_in(data)))
            if end - position >= FRAME_BYTES + FRAME_ROW_BYTES * max(1, lost):
                self._cover(file, entry, position, end, appended, lost)
                appended += lost
            else:
                end = position
                rest = file.pread(entry.size - end, end)
        closing = b""
        if closed and entry.size - end >= FRAME_BYTES:
            closing = self._encode(END, [], entry.base + end, appended, FRAME_BYTES)
        wanted = closing + bytes(len(rest) - len(closing))
        if rest != wanted:
            self.aside.keep(file.path, end, rest)
            file.pwrite(wanted, end)
            file.sync()
            self.aside.say(f"{file.path} at {end}: {len(rest.rstrip(bytes(1)))} bytes at its end were no frames")

    def _frame(self, file: File, entry: SegmentEntry, position: int) -> Frame | None:
        if position + FRAME_BYTES > entry.size:
            return None
        head = file.pread(FRAME_BYTES, position)
        need = FRAME_BYTES + frame_count(head) * FRAME_ROW_BYTES
        if head[:FRAME_KIND_AT] != _MAGIC or position + need > entry.size:
            return None
        frame = read_frame(file.pread(need, position), 0, entry.base + position, self.seed)
        return None if frame is None or position + frame.length > entry.size else frame

    def _search(self, file: File, entry: SegmentEntry, position: int, appended: int) -> tuple[int, Frame] | None:
        """The first frame behind a position that can follow."""
        data = file.pread(entry.size - position, position)
        at = data.find(_MAGIC)
        while at >= 0:
            frame = self._frame(file, entry, position + at)
            if frame is not None and frame.first_ordinal >= appended and frame.epoch >= self.epoch:
                return position + at, frame
            at = data.find(_MAGIC, at + 1)
        return None

    def _mend_records(self, file: File, entry: SegmentEntry, position: int, frame: Frame) -> None:
        """A damaged record would end the journal if it stands behind the checkpoint: it becomes a hole."""
        if entry.base + position < self.claim or frame.kind in (CANCEL, END):
            return
        data = file.pread(frame.length, position)
        if records_are_whole(data, 0, frame.count, frame.length):
            return
        rows: list[Row] = []
        at = FRAME_BYTES + frame.count * FRAME_ROW_BYTES
        for due, id_, size, version, crc in ROW.iter_unpack(data[FRAME_BYTES:at]):
            record = data[at : at + size]
            at += size
            found = crc32(record)
            rows.append((due, id_, size, version, crc) if found == crc else (DUE_MAX, 0, size, 0, found))
        self.aside.keep(file.path, position, data)
        packed = self._encode(frame.kind, rows, frame.offset, frame.first_ordinal, frame.length, frame.synced)
        file.pwrite(packed, position)
        file.sync()
        count = sum(row[0] == DUE_MAX for row in rows)
        self.aside.say(f"{file.path} at {position}: {count} of {frame.count} pending messages are damaged and lost")

    def _cover(self, file: File, entry: SegmentEntry, position: int, end: int, appended: int, lost: int) -> None:
        """Make one frame of [position, end) that stands for ``lost`` records, with those that are still whole."""
        data = file.pread(end - position, position)
        kept = self.aside.keep(file.path, position, data)
        found = _records_in(data)
        known = self.done.get(entry.no)
        done = 0 if known is None else known.count_range(appended, appended + lost)
        unclear = 0
        if len(found) != lost and (done or len(found) > lost):
            unclear = len(found)
            found = []
        kind, rows = (MOVE, [row for row, _ in found]) if lost else (CANCEL, [(0, 0, 0, 0, 0)])
        records = b"".join(record for _, record in found)
        room = len(data) - FRAME_BYTES - max(1, lost) * FRAME_ROW_BYTES - len(records)
        if lost:
            rows += [(DUE_MAX, 0, 0, 0, 0)] * (lost - len(rows))
            if lost > len(found):
                rows[-1] = (DUE_MAX, 0, room, 0, crc32(bytes(room)))
        packed = self._encode(kind, rows, entry.base + position, appended, len(data))
        file.pwrite(packed + records + bytes(room), position)
        file.sync()
        text = f"{file.path} at {position}: {len(data)} bytes were no frame, their content is in {kept}"
        if lost:
            text += f"; of {lost} messages {len(found)} were whole"
            text += f", {unclear} more may be pending or not, and are only there" if unclear else ""
        else:
            text += "; they held cancels, and what was cancelled there may come after all"
        self.aside.say(text)

    def _encode(
        self, kind: int, rows: list[Row], offset: int, first_ordinal: int, length: int, synced: int = 0
    ) -> bytes:
        packed = b"".join(ROW.pack(*row) for row in rows)
        head = _FRAME.pack(FRAME_MAGIC, kind, 0, length, len(rows), offset, synced, self.epoch, first_ordinal, 0)
        return head + LITTLE_INT.pack(crc32(packed, crc32(head, self.seed))) + packed


def _records_in(data: bytes) -> list[tuple[Row, bytes]]:
    """Every whole finished record in some bytes, with the row that a frame would have for it."""
    places = []
    for magic in _RECORD_MAGICS:
        at = data.find(magic)
        while at >= 0:
            places.append(at - 4)
            at = data.find(magic, at + 1)
    found: list[tuple[Row, bytes]] = []
    behind = 0
    for at in sorted(places):
        if at < behind:
            continue
        row = row_of(data, at)
        if row is not None:
            behind = at + row[2]
            found.append((row, data[at:behind]))
    return found


def _mend_run(
    files: Files,
    path: Path,
    store_id: bytes,
    manifest: Manifest,
    entry: RunEntry,
    done: DoneSet | None,
    aside: AsideDir,
) -> None:
    place = path / run_name(entry.no)
    shape = entry.shape
    if not files.exists(place):
        live = entry.end - entry.first - (0 if done is None else done.count_range(entry.first, entry.end))
        aside.say(
            f"{place} is missing: {live} pending messages, due {shape.due_min} to {shape.due_max} (epoch ms), are lost"
        )
        manifest.runs = [other for other in manifest.runs if other.no != entry.no]
        return
    file = _full_size(files, place, shape.file_bytes, aside)
    reserved = shape.pages if shape.is_index else (shape.data_at - FILE_HEADER_BYTES) // shape.page_bytes
    magic = INDEX_MAGIC if shape.is_index else RUN_MAGIC
    _mend_header(file, magic, store_id, entry.no, (reserved, shape.page_bytes), aside)
    trailer = run_trailer(shape, store_id, entry.no)
    at = shape.file_bytes - RUN_TRAILER_BYTES
    found = file.pread(RUN_TRAILER_BYTES, at)
    if found != trailer:
        aside.keep(place, at, found)
        file.pwrite(trailer, at)
        aside.say(f"{place} at {at}: its trailer was made again")
    data = None if entry.data is None else files.open(path.parent / "journal" / run_name(entry.data.no))
    _mend_pages(file, data, store_id, entry, done, aside)
    file.sync()
    file.close()


def _mend_pages(
    file: File, data: File | None, store_id: bytes, entry: RunEntry, done: DoneSet | None, aside: AsideDir
) -> None:
    shape = entry.shape
    run = Run(entry.no, file, shape, store_id, RunPageCache(1 << 20), entry.first, entry.end)
    read, write = read_column_page, column_page
    columns: SegmentColumns | None = None
    if entry.data is not None and data is not None:
        run.lead_to(entry.data, data)
        read, write = read_place_page, place_page
        columns = SegmentColumns.read(entry.data, data, store_id)
    size, seed = shape.page_bytes, page_seed(store_id, entry.no)
    prefix = 0 if done is None else done.prefix
    for number in range(min(prefix, entry.end) // run.rows_per_page, shape.pages):
        at = FILE_HEADER_BYTES + number * size
        found = file.pread(size, at)
        try:
            page = read(found, number, seed, file.path, at)
            if data is not None and columns is not None and columns.mend_places(page, data):
                aside.keep(file.path, at, found)
                file.pwrite(write(page, number, size, seed), at)
                aside.say(f"{file.path} at {at}: page {number} leads to where its records are now")
            continue
        except StoreError:
            pass
        try:
            page = run.page(number)
        except StoreError:
            count = min(run.rows_per_page, shape.count - number * run.rows_per_page)
            aside.say(f"{file.path} at {at}: page {number} cannot be made again: {count} messages cannot be reached")
            continue
        aside.keep(file.path, at, found)
        file.pwrite(write(page, number, size, seed), at)
        aside.say(f"{file.path} at {at}: page {number} was made again from its records")
