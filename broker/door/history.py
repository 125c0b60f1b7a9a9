"""Lateness of deliveries in the last hours, one histogram a minute, for the page's heat map. In memory only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

__all__ = ["CELLS_MAX", "LatenessHistory"]

CELL_MS = 60_000
CELLS_MAX = 360
"""Minutes that are kept: six hours, 70 KB."""


class LatenessHistory:
    """Histograms of single minutes, computed from one histogram that only grows.

    Args:
        counts: Reads the growing histogram: the count of each class since the start.

    >>> seen = [0, 0]
    >>> history = LatenessHistory(lambda: seen)
    >>> history.sample(60_000); seen[1] = 5; history.sample(61_000)
    >>> history.cells()
    [(60000, [0, 5])]
    """

    def __init__(self, counts: Callable[[], Sequence[int]]) -> None:
        self._counts = counts
        self._before = list(counts())
        self._cells: deque[tuple[int, list[int]]] = deque(maxlen=CELLS_MAX)

    def sample(self, now_ms: int) -> None:
        """Add the counts since the last call to the present minute."""
        counts = list(self._counts())
        new = [now - before for now, before in zip(counts, self._before, strict=True)]
        self._before = counts
        begin_ms = now_ms - now_ms % CELL_MS
        if self._cells and self._cells[-1][0] == begin_ms:
            cell = self._cells[-1][1]
            for place, count in enumerate(new):
                cell[place] += count
        else:
            self._cells.append((begin_ms, new))

    def cells(self) -> list[tuple[int, list[int]]]:
        """List the minutes, oldest first: their begin, epoch ms, and their counts."""
        return [(at_ms, list(counts)) for at_ms, counts in list(self._cells)]
