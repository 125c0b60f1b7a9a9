"""The contents of a shard's entry queue: entries, which are messages of senders, and records of the service.

A record of the service has the property ``TW_KIND``. Everything else in the topic is an entry.

========  ====================================  ========================================================================
kind      further properties                    meaning
========  ====================================  ========================================================================
takeover  ``TW_OWNER``                          from here on the shard belongs to this owner. The offset of this record
                                                is the *generation* of the ownership; later ones are higher
release   ``TW_GENERATION``                     the owner of that generation delivers no more
roll      ``TW_GENERATION`` ``TW_ABOUT``        an entry stored again, because the cluster would delete the first copy;
          ``TW_ORIGIN`` and the entry's own     ``TW_ORIGIN`` is the offset at which the sender stored it
cancel    ``TW_ABOUT``                          a command: do not deliver the entry at that offset
move      ``TW_ABOUT``, ``TW_DELIVER_MS`` or    a command: deliver it at that time, or that many ms later
          ``TW_BY_MS``
get       ``TW_ABOUT``                          a question: what happened to it?
ask       a body in JSON                        a question about many entries; the answer is the body of its verdict
verdict   ``TW_GENERATION`` ``TW_ABOUT``        the outcome of the command at the offset ``TW_ABOUT`` for the entry at
          ``TW_ENTRY`` ``TW_VERDICT``           ``TW_ENTRY``; ``TW_DELIVER_MS`` is its due time then. ``TW_ORIGIN``
          ``TW_DELIVER_MS`` ``TW_DETAIL``       is the entry that the sender wrote, if that is another offset
          ``TW_ORIGIN``
========  ====================================  ========================================================================

A record with a generation counts only if this is the generation of the last takeover before it. So a record that a
fenced owner wrote too late is void for every reader at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["COMMANDS", "Line", "LineKind"]


class LineKind(Enum):
    """The kinds of records in an entry queue. The value is that of the property ``TW_KIND``."""

    ENTRY = ""
    TAKEOVER = "takeover"
    RELEASE = "release"
    ROLL = "roll"
    CANCEL = "cancel"
    MOVE = "move"
    GET = "get"
    ASK = "ask"
    VERDICT = "verdict"


COMMANDS = frozenset({LineKind.CANCEL, LineKind.MOVE, LineKind.GET, LineKind.ASK})


@dataclass(frozen=True, slots=True)
class Line:
    """One record of an entry queue: the part that matters for ownership.

    ==============  ==============================================================================
    ``offset``      int, its place in the queue
    ``kind``        `LineKind`
    ``due_ms``      int, epoch ms, of an entry, a roll or a move
    ``owner``       str, who takes over
    ``generation``  int, under which ownership it was written; -1: a sender wrote it
    ``about``       int, the offset of the record that it is about; -1: none
    ``entry``       int, of a verdict: the entry; of a roll: the entry that the sender wrote; -1: none
    ``verdict``     str, of a verdict
    ``by_ms``       int, of a move by an interval
    ``origin``      int, of a verdict: the entry that the sender wrote; -1: the same, or none
    ``damaged``     bool, it cannot be read; what it was is not known
    ==============  ==============================================================================
    """

    offset: int
    kind: LineKind = LineKind.ENTRY
    due_ms: int = 0
    owner: str = ""
    generation: int = -1
    about: int = -1
    entry: int = -1
    verdict: str = ""
    by_ms: int = 0
    damaged: bool = False
    origin: int = -1
