"""`Debts`: cancels that the journal could not write yet, as a `Syncable` for the flusher."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from remoting.layout import FRAME_ROW_BYTES
from store.spill.rows.format import CANCEL

if TYPE_CHECKING:
    from threading import RLock

    from store.spill.journal.journal import Journal

__all__ = ["Debts"]


class Debts:
    """Cancels that could not be written; a `store.disk.ticket.Syncable`.

    A refused message must not come back after a crash, so these are written before anything else. ``written`` counts
    all cancels that were ever owed, ``synced`` those that are known to be durable.

    Args:
        journal: writes them.
        lock: the delivery lock; `owe` is called under it.
        append_bytes_max: most bytes of rows in one frame of the journal.
    """

    name = "cancels that the journal owes"

    def __init__(self, journal: Journal, lock: RLock, append_bytes_max: int) -> None:
        self._journal = journal
        self._lock = lock
        self._at_once = append_bytes_max // FRAME_ROW_BYTES
        self.rows: list[tuple[int, int, int]] = []
        """The rows that are owed. Each turn asks whether there are any, so this is no property."""
        self.written = 0
        self.synced = 0

    def owe(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Owe cancels: due time, delay id and version each."""
        before = len(self.rows)
        self.rows += rows
        self.written += len(self.rows) - before

    def settle(self) -> None:
        """Write all owed cancels, and clear what a failed write has left. Raises StoreError: try again."""
        if self._journal.is_torn:
            self._journal.clear()
        with self._lock:
            while self.rows:
                dues, ids, versions = zip(*self.rows[: self._at_once], strict=True)
                self._journal.append(CANCEL, dues, ids, versions, ())
                del self.rows[: len(ids)]

    def sync(self) -> None:
        """Write all owed cancels and make them durable. Raises StoreError: try again."""
        count = self.written  # read before: what is owed from now on may miss this sync
        self.settle()
        self._journal.sync()
        self.synced = count
