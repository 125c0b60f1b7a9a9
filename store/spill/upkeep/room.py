"""Refusing sends in time: disk space for new messages, after everything that is promised already.

Each pending message will be written to the CommitLog when it is due; one that is still in the journal may go to a run
before that. Both copies count as used. ``reserve_bytes`` are never given away: deliveries, checkpoints, cancels and the
manifest need them when the disk is nearly full.
"""

from __future__ import annotations

from collections.abc import Callable

from store.disk.errors import StoreFullError

__all__ = ["Room"]

COPIES = 2
"""Writes that a new message has before it: into a run, and into the CommitLog."""


class Room:
    """Bytes that may still be accepted: measured once a second, counted down in between."""

    __slots__ = ("_free_bytes", "_left", "_promised_bytes", "_reserve_bytes")

    def __init__(self, free_bytes: Callable[[], int], promised_bytes: Callable[[], int], reserve_bytes: int) -> None:
        self._free_bytes = free_bytes
        self._promised_bytes = promised_bytes
        self._reserve_bytes = reserve_bytes
        self._left = 0

    def measure(self) -> None:
        """Ask the file system how much is free. Raises StoreError."""
        self._left = self._free_bytes() - self._reserve_bytes - self._promised_bytes()

    def take(self, size: int) -> None:
        """Take ``size`` bytes for new messages. Raises StoreFullError if there is no room for them."""
        if self._left < COPIES * size:
            self.measure()
            if self._left < COPIES * size:
                raise StoreFullError(
                    f"no room for {size} bytes of delayed messages: what is pending and a reserve of "
                    f"{self._reserve_bytes} bytes leave {max(0, self._left)} bytes of the disk"
                )
        self._left -= COPIES * size

    def check_copy(self, size: int) -> None:
        """Raise StoreFullError unless a file of ``size`` bytes, yet to be written, leaves half the reserve free."""
        free = self._free_bytes()
        if free - size < self._reserve_bytes // 2:
            raise StoreFullError(f"{free} bytes of disk left: no room to write {size} bytes of pending messages anew")
