"""The spill store's directory: which files there are according to the manifest, and how they come and go.

::

    manifest              which files there are, and which records each owns (`store.spill.rows.manifest`)
    manifest.copy         the same once more
    removing              numbers of finished files that are being removed (`store.spill.state.removals`)
    journal/0000000001    segments; a file number is never used twice
    runs/0000000002       runs
    …/0000000003.tmp      being written; removed at start
    …/0000000004.aside    was found at a start, listed in no manifest; never touched again

A name without ``.tmp`` is a whole, synced file. It counts from the moment the manifest names it, and is removed only
after the manifest no longer does. So an unlisted file at start is a left-over of a crash. It is removed if its number
stands in ``removing``, else moved aside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from remoting.layout import FILE_HEADER_BYTES
from store.disk.errors import StoreCorruptError, StoreError
from store.disk.file import File
from store.disk.files import Files
from store.spill.journal.segment import JournalSegment
from store.spill.rows.format import INDEX_MAGIC, JOURNAL_MAGIC, RUN_MAGIC, file_header, read_file_header
from store.spill.rows.manifest import DataEntry, Manifest, RunEntry, SegmentEntry, read_manifest
from store.spill.rows.model import LAST_KEY, Key
from store.spill.rows.page_cache import RunPageCache
from store.spill.runs.run import Run
from store.spill.runs.run_writer import run_name
from store.spill.state.removals import read_removals, write_removals

__all__ = ["SpillDirectory"]

_ZERO_BYTES = 256 << 10
_SYNC_EVERY = 16


class SpillDirectory:
    """Files and manifest. Any thread: every change of the manifest is made and written under ``_lock``."""

    def __init__(self, files: Files, path: Path, store_id: bytes) -> None:
        self.files = files
        self.path = path
        self.store_id = store_id
        self.journal_path = path / "journal"
        self.runs_path = path / "runs"
        self.manifest_path = path / "manifest"
        self.copy_path = path / "manifest.copy"
        self.removing_path = path / "removing"
        self.moved_aside: list[Path] = []
        self.checkpoint_no = 0
        """Number of the durable checkpoint section, on which the removal of files relies."""
        self.notes: list[str] = []
        """Damage that was found at the start and repaired."""
        self._lock = threading.Lock()
        self._going: set[int] = set()
        """Numbers of files that the manifest no longer lists (or soon will not), and whose removal is not durable."""
        self.manifest = Manifest(store_id)
        self.before_switch: Callable[[], object] = lambda: None
        """Called before records leave the journal: makes durable what must be by then. If it raises, they stay."""

    def load(self) -> None:
        """Read the manifest (or begin with an empty one) and tidy up what a crash left behind.

        Raises StoreCorruptError if the manifest is damaged, missing, or older than the files beside it.
        """
        for path in (self.path, self.journal_path, self.runs_path):
            self.files.makedirs(path)
        folders = (self.journal_path, self.runs_path)
        found, instead = read_manifest(self.files, self.manifest_path, self.store_id)
        if instead:
            note = f"{instead}: its copy is used"
            if self.files.exists(self.manifest_path):
                kept = self.files.move_aside(self.manifest_path)
                self.moved_aside.append(kept)
                note += f", the old file is kept as {kept}"
            self.notes.append(note)
        if found is not None:
            self.manifest = found
        else:
            for folder in folders:
                lost = [name for name in self.files.listdir(folder) if name.isdecimal()]
                if lost:
                    raise StoreCorruptError(
                        f"{self.manifest_path} at 0: it is missing, but {folder} has files ({lost[0]}, …): bring it "
                        "back from a copy; without it nobody knows which messages of these files are still pending"
                    )
            self.save()  # before the first file: a crash in between must not look like a lost manifest
        finished = read_removals(self.files, self.removing_path, self.manifest.generation)
        listed = (self.segments_in_use(), {r.no for r in self.manifest.runs})
        for folder, numbers in zip(folders, listed, strict=True):
            names = set(map(run_name, numbers))
            for name in self.files.listdir(folder):
                unlisted = name.isdecimal() and name not in names
                if unlisted and int(name) in finished:
                    self.files.remove(folder / name)
                    self._going.add(int(name))
                elif name.endswith(".tmp"):
                    self.files.remove(folder / name)
                elif unlisted:
                    self._refuse_used(folder / name, int(name))
                    self.moved_aside.append(self.files.move_aside(folder / name))
                    # Its number counts as used: no new file may get the name of an old one.
                    self.manifest.next_no = max(self.manifest.next_no, int(name) + 1)

    def _refuse_used(self, path: Path, no: int) -> None:
        """Raise StoreCorruptError if an unlisted segment has frames and the manifest never gave out its number.

        Then the manifest is an older one: the messages in this segment were accepted after it was written.
        """
        if path.parent != self.journal_path or no < self.manifest.next_no:
            return
        file = self.files.open(path)
        used = any(file.pread(FILE_HEADER_BYTES, FILE_HEADER_BYTES))
        file.close()
        if used:
            raise StoreCorruptError(
                f"{self.manifest_path} at 0: it is an older one, it does not list {path}, which holds messages: bring "
                "the right one back"
            )

    def save(self) -> None:
        """Write the manifest. Raises StoreError."""
        with self._lock:
            self._save()

    def _save(self) -> None:
        self.manifest.generation += 1
        data = self.manifest.encode()
        # The manifest first: a copy with a higher generation counts, so a write that fails must not have made one.
        self.files.replace_file(self.manifest_path, data)
        with contextlib.suppress(StoreError):  # only the copy: the next write makes it again
            self.files.replace_file(self.copy_path, data)

    def take_no(self) -> int:
        """A file number that was never used."""
        with self._lock:
            no = self.manifest.next_no
            self.manifest.next_no = no + 1
            return no

    def _open(self, path: Path, size: int) -> File:
        if not self.files.exists(path):
            raise StoreCorruptError(
                f"{path} at 0: it is missing, but the manifest lists it: messages in it are pending"
            )
        file = self.files.open(path)
        if file.size() != size:
            raise StoreCorruptError(
                f"{path} at {min(file.size(), size)}: it has {file.size()} bytes, not {size} as the manifest says"
            )
        return file

    def open_segments(self) -> list[JournalSegment]:
        """Open every listed segment, in journal order; `replay` reads them later. Raises StoreCorruptError."""
        segments = []
        for entry in self.manifest.segments:
            file = self._open(self.journal_path / run_name(entry.no), entry.size)
            segment = JournalSegment(entry.no, entry.base, entry.size, file)
            segment.upper = entry.upper
            segments.append(segment)
        return segments

    def open_runs(self, cache: RunPageCache) -> list[Run]:
        """Open every listed run; only headers are read. Raises StoreCorruptError, StoreFormatError."""
        runs = []
        for entry in self.manifest.runs:
            path = self.runs_path / run_name(entry.no)
            file = self._open(path, entry.shape.file_bytes)
            magic = RUN_MAGIC if entry.data is None else INDEX_MAGIC
            read_file_header(file.pread(FILE_HEADER_BYTES, 0), magic, self.store_id, entry.no, path)
            run = Run(entry.no, file, entry.shape, self.store_id, cache, entry.first, entry.end)
            if entry.data is not None:
                run.lead_to(entry.data, self._open_data(entry.data))
            runs.append(run)
        return runs

    def _open_data(self, entry: DataEntry) -> File:
        """Open the journal segment that an index leads to; its header is read."""
        path = self.journal_path / run_name(entry.no)
        file = self._open(path, entry.size)
        found = read_file_header(file.pread(FILE_HEADER_BYTES, 0), JOURNAL_MAGIC, self.store_id, entry.no, path)
        if found != (entry.base, entry.size):
            raise StoreCorruptError(f"{path} at 32: base {found[0]} and size {found[1]} contradict the manifest")
        return file

    def segments_in_use(self) -> set[int]:
        """Numbers of the segments in the journal, and of those that an index leads to."""
        manifest = self.manifest
        return {s.no for s in manifest.segments} | {r.data.no for r in manifest.runs if r.data is not None}

    def prepare_segment(self, size: int) -> Iterator[Callable[[], JournalSegment] | None]:
        """Make a zero-filled segment in slices; the last value is a function that lists the segment and returns it.

        Raises StoreError.
        """
        no = self.take_no()
        path = self.journal_path / run_name(no)
        temporary = path.with_name(path.name + ".tmp")
        self.files.remove(temporary)
        file = self.files.open(temporary, create=True)
        try:
            for number, at in enumerate(range(0, size, _ZERO_BYTES), 1):
                file.zero(at, min(_ZERO_BYTES, size - at))
                if number % _SYNC_EVERY == 0:
                    file.sync()  # in portions, so that the sync of a send never waits for 64 MiB of zeros
                yield None
            file.sync()
            yield None
        except (StoreError, GeneratorExit):
            file.close()
            with contextlib.suppress(StoreError):  # else the next start removes it
                self.files.remove(temporary)
            raise
        yield partial(self._list_segment, no, size, file, temporary, path)

    def make_segment(self, size: int) -> JournalSegment:
        """Make and list a segment at once, as a hole instead of zeros, because none was prepared in time.

        Raises StoreError.
        """
        no = self.take_no()
        path = self.journal_path / run_name(no)
        temporary = path.with_name(path.name + ".tmp")
        self.files.remove(temporary)
        file = self.files.open(temporary, create=True, size=size)
        return self._list_segment(no, size, file, temporary, path)

    def _list_segment(self, no: int, size: int, file: File, temporary: Path, path: Path) -> JournalSegment:
        with self._lock:
            try:
                listed = self.manifest.segments
                # The base is known only here: an append may have listed a segment while this one was filled with zeros.
                base = listed[-1].base + listed[-1].size if listed else 0
                file.pwrite(file_header(JOURNAL_MAGIC, self.store_id, no, base, size), 0)
                file.sync()
                self.files.rename(temporary, path)
                self.files.sync_dir(self.journal_path)
            except StoreError:
                file.close()
                for left in (temporary, path):
                    with contextlib.suppress(StoreError):  # else the next start removes it, or moves it aside
                        self.files.remove(left)
                raise
            file.close()
            listed.append(SegmentEntry(no, base, size, LAST_KEY))
            try:
                self._save()
            except StoreError:
                listed.pop()
                self._remove_unless_listed(no, path)
                raise
        return JournalSegment(no, base, size, self.files.open(path))

    def _remove_unless_listed(self, no: int, path: Path) -> None:
        """Remove a file after a failed write of the manifest, unless the manifest on disk lists it after all.

        The directory is synced first: only then is it certain which manifest a power cut would leave.
        """
        try:
            self.files.sync_dir(self.path)
            manifest = Manifest.decode(self.files.read_file(self.manifest_path), self.store_id, self.manifest_path)
            if no not in {s.no for s in manifest.segments} | {r.no for r in manifest.runs}:
                self.files.remove(path)
        except StoreError:
            pass  # the file stays; if it is unlisted, the next start moves it aside

    def discard_run(self, no: int) -> None:
        """Remove a run whose `switch` failed or never came, unless the manifest on disk names it."""
        with self._lock:
            if all(entry.no != no for entry in self.manifest.runs):
                self._remove_unless_listed(no, self.runs_path / run_name(no))

    def switch(self, run: RunEntry, uppers: dict[int, Key], ends: dict[int, int]) -> None:
        """List a run and the new bounds of the files that its records came from: one atomic step.

        ``uppers`` are the bounds of segments, ``ends`` those of runs, by file number. Raises StoreError.
        """
        self.before_switch()
        with self._lock:
            before = (self.manifest.segments, self.manifest.runs)
            self._set_bounds([*(entry for entry in before[1] if entry.no != run.no), run], uppers, ends)
            try:
                self._save()
            except StoreError:
                self.manifest.segments, self.manifest.runs = before
                raise

    def switch_back(self, no: int, uppers: dict[int, Key], ends: dict[int, int]) -> None:
        """Undo a `switch` that has failed, or that was not followed by a hand-over in memory. Raises StoreError.

        If the manifest cannot be written now, the next one has it. Until then the one on disk is right as well: the run
        has copies of all the records that it owns there, and their sources stay listed with their done-sets.
        """
        with self._lock:
            self._set_bounds([entry for entry in self.manifest.runs if entry.no != no], uppers, ends)
            self._save()

    def _set_bounds(self, runs: list[RunEntry], uppers: dict[int, Key], ends: dict[int, int]) -> None:
        self.manifest.segments = [
            SegmentEntry(s.no, s.base, s.size, uppers.get(s.no, s.upper)) for s in self.manifest.segments
        ]
        self.manifest.runs = [RunEntry(r.no, r.first, ends.get(r.no, r.end), r.shape, r.data) for r in runs]

    def forget(self, nos: set[int]) -> None:
        """Take finished files out of the manifest, which from now on relies on the checkpoint that has them as done.

        Raises StoreError.
        """
        with self._lock:
            if nos:
                self._going |= nos | {r.data.no for r in self.manifest.runs if r.no in nos and r.data is not None}
                # First: a crash right after the manifest must find their numbers, or it moves 64 MiB aside each.
                write_removals(self.files, self.removing_path, self.manifest.generation + 1, self._going)
            before = (self.manifest.segments, self.manifest.runs, self.manifest.relied, self.manifest.relied_on)
            self.manifest.segments = [entry for entry in before[0] if entry.no not in nos]
            self.manifest.runs = [entry for entry in before[1] if entry.no not in nos]
            self.manifest.relied = True
            self.manifest.relied_on = max(before[3], self.checkpoint_no)
            try:
                self._save()
            except StoreError:
                self.manifest.segments, self.manifest.runs, self.manifest.relied, self.manifest.relied_on = before
                raise

    def remove(self, path: Path) -> None:
        """Remove a file that the manifest no longer lists; durable after `removed`. Raises StoreError."""
        self.files.remove(path)

    def removed(self) -> None:
        """Make removals durable, and repeat those that failed before. Raises StoreError."""
        with self._lock:
            listed = self.segments_in_use() | {run.no for run in self.manifest.runs}
            # A number whose `forget` failed is listed still: its file must stay.
            gone = self._going - listed
        for folder in (self.journal_path, self.runs_path):
            for no in gone:
                self.files.remove(folder / run_name(no))
            self.files.sync_dir(folder)
        with self._lock:
            self._going -= gone
