"""Requests that are written only if their sender still may, asked right before the system call that writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container

__all__ = ["GuardedFrames"]

_AT_ONCE_BYTES = 32 << 10


class GuardedFrames:
    """Frames that wait to be written, in order, each with what says whether it may be.

    A connection takes a few at a time and only while nothing waits in its transport: the transport writes later what
    the peer does not take in at once, and asks nobody then.
    """

    def __init__(self) -> None:
        self._frames: deque[tuple[int, bytes, Callable[[], bool]]] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, opaque: int, frame: bytes, may: Callable[[], bool]) -> None:
        """Add a request: its number, its frame, whether it may be written."""
        self._frames.append((opaque, frame, may))

    def take(self, waiting: Container[int]) -> tuple[list[bytes], list[int]]:
        """Take the next ones: frames to be written now, some 32 KiB, and numbers of requests that may not be.

        A request that is not among ``waiting`` is dropped: it took too long, and its sender has been told so.
        """
        frames: list[bytes] = []
        refused: list[int] = []
        size = 0
        while self._frames and size < _AT_ONCE_BYTES:
            opaque, frame, may = self._frames.popleft()
            if opaque not in waiting:
                continue
            if may():
                frames.append(frame)
                size += len(frame)
            else:
                refused.append(opaque)
        return frames, refused
