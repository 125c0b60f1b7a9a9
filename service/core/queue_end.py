"""Recent reads of a queue's end, for a queue that is read continuously."""

from __future__ import annotations

__all__ = ["FRESH_MS", "QueueEnd"]

FRESH_MS = 6_000
"""The end was seen recently if it was seen within this time, although there is always more to read."""


class QueueEnd:
    """The last time at which a pull reached the end of the queue.

    >>> end = QueueEnd(); end.saw(True, 0); end.saw(False, 100); end.is_there, end.is_fresh(5_999), end.is_fresh(6_000)
    (False, True, False)
    """

    __slots__ = ("_seen_ms", "is_there")

    def __init__(self) -> None:
        self.is_there = False
        """True if the last pull found nothing more: then the next one waits at the broker."""
        self._seen_ms: int | None = None

    def saw(self, is_there: bool, mono_ms: int) -> None:
        """Note whether a pull found nothing more, which means the end."""
        self.is_there = is_there
        if is_there:
            self._seen_ms = mono_ms

    def failed(self) -> None:
        """Note that a pull got no answer."""
        self.is_there, self._seen_ms = False, None

    def is_fresh(self, mono_ms: int) -> bool:
        """True if the end was reached within the last `FRESH_MS`."""
        return self.is_there or (self._seen_ms is not None and mono_ms - self._seen_ms < FRESH_MS)
