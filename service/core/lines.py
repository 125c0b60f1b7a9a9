"""What stands in a shard's entry queue: messages that wait, and records of the service itself.

A record of the service has the property ``TW_KIND``; everything else in the topic is an entry of a sender.

========  ====================================  ========================================================================
kind      further properties                    meaning
========  ====================================  ========================================================================
takeover  ``TW_OWNER``                          from here on the shard belongs to this owner. The record's own offset is
                                                the *generation* of its ownership: later ones are higher
release   ``TW_GENERATION``                     the owner of that generation delivers nothing any more
roll      ``TW_GENERATION`` ``TW_ABOUT``        an entry written again, because the cluster would delete the first copy
          and the entry's own
cancel    ``TW_ABOUT``                          a command: the entry at that offset shall not be delivered
move      ``TW_ABOUT`` ``TW_DELIVER_MS``        a command: it shall be delivered at that time
verdict   ``TW_GENERATION`` ``TW_ABOUT``        what came of the command at that offset
          ``TW_VERDICT``
========  ====================================  ========================================================================

A record that carries a generation counts only if that is the generation of the last takeover before it. So what a
fenced owner wrote too late is void, for every reader, whenever it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Line", "LineKind"]


class LineKind(Enum):
    """The kinds of records in an entry queue; the value is that of the property ``TW_KIND``."""

    ENTRY = ""
    TAKEOVER = "takeover"
    RELEASE = "release"
    ROLL = "roll"
    CANCEL = "cancel"
    MOVE = "move"
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Line:
    """One record of an entry queue, as far as ownership is concerned.

    ==============  ==============================================================================
    ``offset``      int, its place in the queue
    ``kind``        `LineKind`
    ``due_ms``      int, epoch ms, of an entry, a roll or a move
    ``owner``       str, who takes over
    ``generation``  int, under which ownership it was written; -1: a sender wrote it
    ``about``       int, the offset of the record that it is about; -1: none
    ==============  ==============================================================================
    """

    offset: int
    kind: LineKind = LineKind.ENTRY
    due_ms: int = 0
    owner: str = ""
    generation: int = -1
    about: int = -1
