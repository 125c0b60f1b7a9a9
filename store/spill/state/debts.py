"""`Debts`: cancels that the journal owes, as something that the flusher can sync."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Debts"]


class Debts:
    """Counts cancels that could not be written; a `store.disk.flusher.Syncable`.

    ``written`` counts all that were ever owed, ``synced`` those of which it is known that they are durable. ``settle``
    writes what is owed, ``sync_journal`` makes it durable; both raise StoreError.
    """

    name = "cancels that the journal owes"

    def __init__(self, settle: Callable[[], None], sync_journal: Callable[[], None]) -> None:
        self._settle = settle
        self._sync_journal = sync_journal
        self.written = 0
        self.synced = 0

    def sync(self) -> None:
        """Write them, and make them durable. Raises StoreError: try again."""
        count = self.written
        self._settle()
        self._sync_journal()
        self.synced = count
