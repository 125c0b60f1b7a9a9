"""The read side of the spill store: which messages are pending, their records, its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from store.disk.slab import Slab
from store.spill.journal.journal import Journal
from store.spill.rows.model import DUE_MAX, Columns, Found, Key
from store.spill.state.hidden import HiddenRows, hidden_rows
from store.spill.state.reading import FEW, by_file
from store.spill.state.spill_state import ORDINAL, SpillState
from store.spill.upkeep import checking

__all__ = ["SpillView"]


class SpillView:
    """The reading methods of `store.spill.spill_store.SpillStore`; the table there says which need the lock."""

    def __init__(self, state: SpillState, journal: Journal) -> None:
        self._state = state
        self._journal = journal

    def scan(self, after: Key, until_ms: int, limit: int) -> Columns:
        """Find the first ``limit`` live records with key > ``after`` and due < ``until_ms``, in key order."""
        return self._state.scan(after, until_ms, limit)

    def read(self, refs: Sequence[int], max_bytes: int | None = None) -> list[bytes]:
        """Read finished records, in the order asked; with ``max_bytes`` as many as fit, but at least one.

        Raises RecordCorruptError (its ``ref`` names the record), StoreError for a ref that is no longer pending.
        """
        return self._state.read(refs, max_bytes).records()

    def read_slab(self, refs: Sequence[int], max_bytes: int | None = None) -> Slab:
        """`read` as one piece of bytes with the place of each record in it."""
        return self._state.read(refs, max_bytes)

    def read_outlines(self, refs: Sequence[int], max_bytes: int) -> tuple[list[bytes], list[int]]:
        """Read records and their sizes, in the order asked. Bodies of records above 4 KiB are not read: they are empty.

        As many as fit into ``max_bytes``, a large one counted as 4 KiB, but at least one. Raises RecordCorruptError
        (with ``ref``); of a large record only topic and properties are checked.
        """
        return self._state.read_outlines(refs, max_bytes)

    def versions(self, refs: Sequence[int]) -> list[int]:
        """Read the versions of records that were scanned under this hold of the lock."""
        return self._state.versions(refs)

    def all_wait(self, refs: Sequence[int]) -> bool:
        """True if each of these records still lives where its ref says and is not done."""
        column = np.array(refs, np.int64)
        for no, places in by_file(column):
            source = self._state.sources.get(no)
            ordinals = column[places] & ORDINAL
            if source is None or not source.owns_all(ordinals) or bool(source.done.mask(ordinals).any()):
                return False
        return True

    def find(self, delay_id: int) -> Found | None:
        """Find the highest version of an id; None if it is unknown: it never existed, or its file is gone."""
        return self._state.find(delay_id)

    def is_done(self, ref: int) -> bool:
        """True if a record was marked done."""
        return self._state.home(ref) < 0

    def home(self, ref: int) -> int:
        """The ref of the place where a record lives now, valid while the lock is held; -1 if the record is done.

        Marking that ref done reads no file, so it cannot fail. Raises StoreError if a page could not be read.
        """
        return self._state.home(ref)

    def homes(self, refs: Sequence[int]) -> Sequence[int]:
        """`home` of each record, in the order asked. Raises StoreError if a page could not be read."""
        return refs if len(refs) >= FEW and self.all_wait(refs) else list(map(self._state.home, refs))

    # ------------------------------------------------------------------------------------------------ figures

    @property
    def pending_bytes(self) -> int:
        """Bytes of all pending records, estimated from the average record of each file."""
        return self._state.pending_bytes

    @property
    def promised_bytes(self) -> int:
        """Disk space that pending records will still take, estimated: in the CommitLog, and in a run before that."""
        return self._state.promised_bytes

    @property
    def journal_bytes(self) -> int:
        """Bytes of all journal segments on disk, the one prepared ahead included."""
        return sum(segment.size for segment in list(self._journal.segments))

    @property
    def run_count(self) -> int:
        """Runs on disk."""
        return len(self._state.runs)

    @property
    def hides(self) -> bool:
        """True if a page of a run could neither be read nor made again: scans miss its records. Any thread."""
        return any(run.hides for run in self._state.runs)

    def hidden_rows(self, from_ms: int = 0, to_ms: int = DUE_MAX) -> list[HiddenRows]:
        """Pending records that scans have missed so far because of such a page, of runs with records due in a range.

        ``to_ms`` (epoch ms) is within the range. Any thread; reads all id pages of these runs.
        """
        return hidden_rows(self._state, from_ms, to_ms)

    @property
    def notes(self) -> list[str]:
        """Damage that was found at the start and repaired."""
        return self._state.directory.notes

    @property
    def moved_aside(self) -> list[Path]:
        """Files that were found at start and are in no manifest."""
        return self._state.directory.moved_aside

    def check(self) -> list[str]:
        """Say everything that is wrong, on disk or in memory; reads every file. Empty when nothing is."""
        return checking.check(self._state, self._journal)
