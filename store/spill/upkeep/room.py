"""Refusing in time: room on the disk for what is new, after everything that is promised already.

Each pending message will be written once more, to the CommitLog, when it is due; one that is still in the journal
may also go to a run before that. Both are counted as used. ``reserve_bytes`` are never given away: deliveries,
checkpoints, cancels and the manifest need them when the disk is nearly full.
"""

from __future__ import annotations

from collections.abc import Callable

from store.disk.errors import StoreFullError

__all__ = ["Room"]

COPIES = 2


class Room:
    """Bytes that may still be accepted; measured now and then, counted down in between."""

    __slots__ = ("_free_bytes", "_left", "_promised_bytes", "_reserve_bytes")

    def __init__(self, free_bytes: Callable[[], int], promised_bytes: Callable[[], int], reserve_bytes: int) -> None:
        self._free_bytes = free_bytes
        self._promised_bytes = promised_bytes
        self._reserve_bytes = reserve_bytes
        self._left = 0

    def measure(self) -> None:
        """Ask the file system."""
        self._left = self._free_bytes() - self._reserve_bytes - self._promised_bytes()

    def take(self, size: int) -> None:
        """Count ``size`` bytes of new messages; StoreFullError if there is no room for them."""
        if self._left < COPIES * size:
            self.measure()
            if self._left < COPIES * size:
                raise StoreFullError(
                    f"no room for {size} bytes of delayed messages: what is pending and a reserve of "
                    f"{self._reserve_bytes} bytes leave {max(0, self._left)} bytes of the disk"
                )
        self._left -= COPIES * size

    def check_copy(self, size: int) -> None:
        """StoreFullError unless a file of ``size`` bytes fits beside half the reserve: before it is written."""
        free = self._free_bytes()
        if free - size < self._reserve_bytes // 2:
            raise StoreFullError(f"{free} bytes of disk left: no room to write {size} bytes of pending messages anew")
