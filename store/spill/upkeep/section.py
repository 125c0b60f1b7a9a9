"""The delay store's section of the checkpoint: which records are done, and how much of the journal it covers."""

from __future__ import annotations

from store.disk.errors import StoreError
from store.spill.journal.journal import Journal
from store.spill.state.spill_state import SpillState
from store.spill.upkeep.housekeeping import Housekeeping
from store.spill.upkeep.opening import encode_section

__all__ = ["SpillSection"]


class SpillSection:
    """Makes the section, and allows the removal of finished files when it is durable."""

    def __init__(self, state: SpillState, journal: Journal, housekeeping: Housekeeping) -> None:
        self._state = state
        self._journal = journal
        self._housekeeping = housekeeping
        self._end = 0
        self._no = state.directory.checkpoint_no
        self._finished: set[int] = set()
        self._done: dict[int, bytes] = {}

    def snapshot(self) -> bytes:
        """Make the checkpoint section: the done-sets of all files, and the journal position that they include.

        The journal below that position must be durable before the checkpoint is written. The caller holds the lock.
        """
        state = self._state
        state.unsaved = False
        busy = self._housekeeping.busy
        finished = {run.no for run in state.runs if not run.live and run.no not in busy}
        finished |= {segment.no for segment in self._journal.finished() if segment.no not in busy}
        self._finished = finished
        self._done = {no: source.done.encode() for no, source in state.sources.items()}
        # The caller has the delivery lock, so no cancel or move below this position is missing in the done-sets.
        self._end = self._journal.written
        self._no += 1
        return encode_section(self._end, self._done, self._no)

    def durable(self) -> None:
        """Note that the checkpoint with the last snapshot is durable: files that were finished in it may be removed.

        Raises StoreError if the journal is not durable as far as the snapshot says.
        """
        if self._journal.synced < self._end:
            raise StoreError(
                f"a checkpoint was written that covers the journal up to {self._end}, "
                f"but it is durable only up to {self._journal.synced}"
            )
        with self._state.lock:
            self._state.directory.checkpoint_no = self._no
            for no, encoded in self._done.items():
                source = self._state.sources.get(no)
                if source is not None:
                    source.saved = encoded
            self._done = {}
            self._housekeeping.removable |= self._finished
            self._finished = set()
