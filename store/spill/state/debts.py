"""`Debts`: cancels that the journal owes, as something that the flusher can sync."""

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
    """Cancels that could not be written; a `store.disk.flusher.Syncable`.

    What was refused must not come back by a crash, so these are written before anything else. ``written`` counts all
    that were ever owed, ``synced`` those of which it is known that they are durable.

    Args:
        journal: owes them.
        lock: the delivery lock; `owe` is called under it.
        append_bytes_max: how large a frame of the journal may be.
    """

    name = "cancels that the journal owes"

    def __init__(self, journal: Journal, lock: RLock, append_bytes_max: int) -> None:
        self._journal = journal
        self._lock = lock
        self._at_once = append_bytes_max // FRAME_ROW_BYTES
        self._rows: list[tuple[int, int, int]] = []
        self.written = 0
        self.synced = 0

    def __len__(self) -> int:
        return len(self._rows)

    def owe(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Owe cancels: due time, delay id and version each."""
        before = len(self._rows)
        self._rows += rows
        self.written += len(self._rows) - before

    def settle(self) -> None:
        """Write them, and clear what a failed write has left. Raises StoreError: try again."""
        if self._journal.is_torn:
            self._journal.clear()
        with self._lock:
            while self._rows:
                dues, ids, versions = zip(*self._rows[: self._at_once], strict=True)
                self._journal.append(CANCEL, dues, ids, versions, ())
                del self._rows[: len(ids)]

    def sync(self) -> None:
        """Write them, and make them durable. Raises StoreError: try again."""
        count = self.written
        self.settle()
        self._journal.sync()
        self.synced = count
