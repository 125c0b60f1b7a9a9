"""Records of an entry queue that cannot be read: which of them were takeover records.

A damaged record says nothing of itself. But what an owner writes (rolls, verdicts, its release) names its generation,
which is the offset of its takeover record; and it writes only after it has read that record. So a record that names the
offset of a damaged one, behind the last takeover that could be read, shows that a takeover stood there. Without this,
the copies of what that owner rolled would be void, and their first copies are done: lost.
"""

from __future__ import annotations

from service.core.lines import Line

__all__ = ["DamagedLines"]

DAMAGED_MAX = 65_536
"""Of more than so many the later ones are not remembered."""


class DamagedLines:
    """Remembers offsets of damaged records.

    >>> lines = DamagedLines()
    >>> lines.saw(Line(7, damaged=True))
    >>> [lines.shows_takeover(Line(9, generation=7), seen) for seen in (6, 8)]
    [True, False]
    """

    def __init__(self) -> None:
        self._offsets: set[int] = set()

    def saw(self, line: Line) -> None:
        """A record was read."""
        if line.damaged and len(self._offsets) < DAMAGED_MAX:
            self._offsets.add(line.offset)

    def shows_takeover(self, line: Line, last: int) -> bool:
        """Whether a record shows that its generation is a damaged takeover record behind the last one that was read."""
        return line.generation > last and line.generation in self._offsets
