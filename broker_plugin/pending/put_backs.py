"""`PutBacks`: replaced messages that must be put back because their replacements were refused.

A message that replaces another by its delay key is journalled, and then its batch is refused. The replaced message,
which was acknowledged, is put back by one more frame of the journal. If the disk refuses that frame too, it is owed. It
is tried again before the next turn with delay keys, before any command, and by the flusher for the refusal: that is
answered only when no crash can bring the replacement back. Until then nobody delivers the message.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from store.disk.errors import StoreError

if TYPE_CHECKING:
    from store.spill.spill_store import SpillStore

__all__ = ["PutBacks"]

_T = TypeVar("_T")


class PutBacks(Generic[_T]):
    """A `store.disk.ticket.Syncable`: ``written`` counts all put-backs ever, ``synced`` those that are durable.

    Args:
        spill: has the messages; its lock is the delivery lock.
        restore: puts one back. Raises StoreError.
        delay_id: the delay id of one.
    """

    name = "messages that are to be put back"

    def __init__(self, spill: SpillStore, restore: Callable[[_T], None], delay_id: Callable[[_T], int]) -> None:
        self._spill = spill
        self._restore = restore
        self._delay_id = delay_id
        self._owed: list[_T] = []
        self.written = 0
        self.synced = 0

    def __len__(self) -> int:
        return len(self._owed)

    def put(self, one: _T) -> None:
        """Put one back, or owe it if that fails. Under the delivery lock."""
        self._owed.append(one)
        self.written += 1
        self._withhold()
        with suppress(StoreError):
            self.settle()

    def settle(self) -> None:
        """Put back what is owed, oldest first. Any thread. Raises StoreError."""
        if not self._owed:
            return
        with self._spill.lock:
            while self._owed:
                self._restore(self._owed[0])
                del self._owed[0]
                self._withhold()

    def _withhold(self) -> None:
        self._spill.withheld = frozenset(map(self._delay_id, self._owed))

    def sync(self) -> None:
        """Put back what is owed, and make that durable. Raises StoreError: try again."""
        count = self.written  # read before: what is added from now on may miss this sync
        self.settle()
        self._spill.journal.sync()
        self.synced = count
