"""Repairing a damaged journal: whole frames stay, and all losses are reported."""

from __future__ import annotations

from pathlib import Path

from remoting.layout import FILE_HEADER_BYTES, FRAME, FRAME_BYTES, FRAME_KIND_AT, FRAME_ROW_BYTES
from remoting.layout.table import LITTLE_INT
from remoting.messages.checksum import crc32
from remoting.messages.message import MAGIC_V1, MAGIC_V2
from store.disk.aside import AsideDir
from store.disk.file import File
from store.disk.files import Files
from store.spill.journal.journal import records_are_whole
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import (
    CANCEL,
    END,
    FRAME_MAGIC,
    JOURNAL_MAGIC,
    MOVE,
    ROW,
    Frame,
    frame_count,
    frame_seed,
    read_frame,
)
from store.spill.rows.manifest import Manifest, SegmentEntry
from store.spill.rows.model import DUE_MAX
from store.spill.runs.rebuild import Row, row_of
from store.spill.runs.run_writer import run_name
from store.spill.upkeep.repair_files import full_size, mend_header

__all__ = ["JournalRepair"]

_FRAME = FRAME.struct("magic", "more_zeros")
_MAGIC = FRAME_MAGIC.to_bytes(4, "little")
_RECORD_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


class JournalRepair:
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
        """Repair every segment, in order. Raises StoreError."""
        entries = self.manifest.segments
        opened = [full_size(self.files, self.path / run_name(s.no), s.size, self.aside) for s in entries]
        for file, entry in zip(opened, entries, strict=True):
            mend_header(file, JOURNAL_MAGIC, self.store_id, entry.no, (entry.base, entry.size), self.aside)
        indexed = {run.data.no for run in self.manifest.runs if run.data is not None}
        used = [self._is_used(file, entry) for file, entry in zip(opened, entries, strict=True)]
        for index, (file, entry) in enumerate(zip(opened, entries, strict=True)):
            self._mend_segment(file, entry, closed=entry.no in indexed or any(used[index + 1 :]))
            file.close()

    def _is_used(self, file: File, entry: SegmentEntry) -> bool:
        """True if anything was ever written to a segment."""
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
        """Repair what follows the last frame: cover bytes that were acknowledged, zero the others, add the end mark."""
        known = self.done.get(entry.no)
        lost = 0 if known is None else max(0, known.top - appended)
        end = entry.size - FRAME_BYTES if closed else max(self.claim - entry.base, position)
        end = min(end, entry.size)
        rest = file.pread(entry.size - end, end)
        if end > position:
            data = file.pread(end - position, position)
            lost = max(lost, len(records_in(data)))
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
        """The first whole frame at or behind a position that may follow the last one by ordinal and epoch."""
        data = file.pread(entry.size - position, position)
        at = data.find(_MAGIC)
        while at >= 0:
            frame = self._frame(file, entry, position + at)
            if frame is not None and frame.first_ordinal >= appended and frame.epoch >= self.epoch:
                return position + at, frame
            at = data.find(_MAGIC, at + 1)
        return None

    def _mend_records(self, file: File, entry: SegmentEntry, position: int, frame: Frame) -> None:
        """Turn damaged records behind the checkpoint into holes: replay would end the journal at the first of them."""
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
            # A hole keeps the size and the checksum of what stands there, so that the frame counts as whole.
            rows.append((due, id_, size, version, crc) if found == crc else (DUE_MAX, 0, size, 0, found))
        self.aside.keep(file.path, position, data)
        packed = self._encode(frame.kind, rows, frame.offset, frame.first_ordinal, frame.length, frame.synced)
        file.pwrite(packed, position)
        file.sync()
        count = sum(row[0] == DUE_MAX for row in rows)
        self.aside.say(f"{file.path} at {position}: {count} of {frame.count} pending messages are damaged and lost")

    def _cover(self, file: File, entry: SegmentEntry, position: int, end: int, appended: int, lost: int) -> None:
        """Write one frame over [position, end) that has ``lost`` ordinals, with the records that are still whole."""
        data = file.pread(end - position, position)
        kept = self.aside.keep(file.path, position, data)
        found = records_in(data)
        known = self.done.get(entry.no)
        done = 0 if known is None else known.count_range(appended, appended + lost)
        unclear = 0
        if len(found) != lost and (done or len(found) > lost):
            unclear = len(found)
            found = []
        # MOVE, not ACCEPT: a record found here may be a moved one, whose older versions replay must end. A record of
        # version 0 has none. Without records a frame still needs one row: a cancel of id 0, which no message has.
        kind, rows = (MOVE, [row for row, _ in found]) if lost else (CANCEL, [(0, 0, 0, 0, 0)])
        records = b"".join(record for _, record in found)
        room = len(data) - FRAME_BYTES - max(1, lost) * FRAME_ROW_BYTES - len(records)
        if lost:
            rows += [(DUE_MAX, 0, 0, 0, 0)] * (lost - len(rows))
            if lost > len(found):
                # The last hole takes all bytes that are left, so that sizes and checksums are right for replay.
                rows[-1] = (DUE_MAX, 0, room, 0, crc32(bytes(room)))
        packed = self._encode(kind, rows, entry.base + position, appended, len(data))
        file.pwrite(packed + records + bytes(room), position)
        file.sync()
        text = f"{file.path} at {position}: {len(data)} bytes were no frame, their content is in {kept}"
        if lost:
            text += f"; of {lost} messages {len(found)} were whole"
            text += f"; {unclear} more may or may not be pending, and are only in that file" if unclear else ""
        else:
            text += "; they held cancels, so messages cancelled there may be delivered after all"
        self.aside.say(text)

    def _encode(
        self, kind: int, rows: list[Row], offset: int, first_ordinal: int, length: int, synced: int = 0
    ) -> bytes:
        packed = b"".join(ROW.pack(*row) for row in rows)
        head = _FRAME.pack(FRAME_MAGIC, kind, 0, length, len(rows), offset, synced, self.epoch, first_ordinal, 0)
        return head + LITTLE_INT.pack(crc32(packed, crc32(head, self.seed))) + packed


def records_in(data: bytes) -> list[tuple[Row, bytes]]:
    """Every whole finished record in ``data``, each with the row that a frame has for it."""
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
