"""Tickets: requests that written bytes become durable. `store.disk.flusher` serves them.

They have a file of their own because one is made for every turn: in the compiled build they are native.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Syncable", "Ticket"]


class Syncable(Protocol):
    """A writer whose bytes are written now and made durable later. Any thread may use its members."""

    name: str

    @property
    def written(self) -> int:
        """Position up to which bytes are written; never decreases."""
        ...

    @property
    def synced(self) -> int:
        """Position up to which bytes are durable; never decreases, never passes ``written``."""
        ...

    def sync(self) -> None:
        """Make all bytes durable that were written before the call. Raises `SyncFailedError`.

        After a failure the next call writes the same bytes again before it syncs, or fails again.
        """
        ...


class Ticket:
    """A request to make each `Syncable` durable up to a position."""

    __slots__ = ("waits",)

    def __init__(self, *waits: tuple[Syncable, int]) -> None:
        self.waits = waits

    def joined(self, other: Ticket | None) -> Ticket:
        """One ticket that waits for both."""
        return self if other is None else Ticket(*self.waits, *other.waits)

    def is_done(self) -> bool:
        """True if all its positions are durable already."""
        return all(syncable.synced >= position for syncable, position in self.waits)
