"""What a finding can be: which promise of docs/reliability.md, or which rule beside them, was broken.

A planted bug counts as found only by a finding of a kind that it names (`tests.simulation.planted`), so a kind says
what went wrong for those who use the broker, not which part of it noticed.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Kind", "Violation"]


class Kind(Enum):
    """The kinds of findings."""

    LOST = "promise 1, lost"
    TWICE = "promise 2, stored twice"
    EARLY = "promise 3, early"
    ORDER = "promise 4, out of order"
    COMMAND = "promise 5, a cancel or a move does not hold"
    BATCH = "promise 6, part of a refused batch"
    REFUSED = "promise 7, refused and delivered"
    CONTENT = "delivered otherwise than it was sent"
    TRANSACTION = "a half message has a wrong end"
    QUEUES = "consumers do not get what the log has"
    ANSWER = "an answer that cannot be"
    HELD = "a popped message has a second holder"
    BLOCKED = "what is popped in order passes what somebody has"
    REPEATED = "what was acknowledged comes again"
    NAMES = "a topic or a group is not as it was answered"
    CHECK = "a part's own check"
    DURABLE = "a start builds on what a power cut may take"
    UNPINNED = "retention may delete what is needed"
    START = "a start is refused"
    STUCK = "no progress"
    ERROR = "an exception that nobody expects"


class Violation(BaseException):
    """A promise was broken. No `Exception`: nothing in the product may catch it."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(f"{kind.value}: {text}")
        self.kind = kind
