"""Pops in order in the simulation: what a group knows that always pops in order, and what must not be because of it.

No copies are made: while a message of a queue is neither acknowledged nor due, the queue gives the group nothing; then
what was not acknowledged comes again, from the lowest on. So each answer must agree with what is known of its queue.

==============  ======================================================================================================
one holder      nobody is given a message that somebody holds
no repeat       what was acknowledged, and answered, is given to nobody
blocked         nobody is given anything of a queue of which somebody holds a message
in order        what is given goes up, and nothing behind a message that was given before and is not acknowledged,
                unless that comes with it
none lost       in the end each message was acknowledged, or comes
==============  ======================================================================================================

What a power cut may take is known again as soon as the message comes again: there is no copy beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tests.broker.pop_client import Popped
from tests.simulation.kinds import Kind, Violation
from tests.simulation.pops import Pops, number_of

__all__ = ["ORDERED", "Ordered"]

ORDERED = "ordered"
_NOBODY = "0 -1"
"""The handle of no pop."""


class Ordered(Pops):
    """What the consumers of the group know."""

    def __init__(self) -> None:
        super().__init__()
        self.first_ms = 0  # the first pop time that the present broker gives

    @staticmethod
    def same(handle: str, known: str) -> bool:
        """Whether two handles name the same pop: a change keeps its time."""
        return handle.split(" ")[1:2] == known.split(" ")[1:2]

    def opened(self, now_ms: int) -> None:
        """A broker has started: it pops from the next millisecond on."""
        super().opened(now_ms)
        self.first_ms = now_ms + 1

    def popped(
        self, got: Sequence[Popped], until_ms: int, now_ms: int, ends: tuple[int, int], gone: Collection[int]
    ) -> None:
        """A consumer has got messages, perhaps of several queues."""
        queues: dict[tuple[str, int], dict[int, int]] = {}
        for one in got:
            queues.setdefault((one.topic, one.queue_id), {})[number_of(one)] = one.offset
        for (topic, queue_id), given in queues.items():
            self._judge(topic, queue_id, given, now_ms, ends, gone)
        for one in got:
            held = self.of(number_of(one))
            held.acked = held.maybe = False
            held.loose = one.topic in self.going or number_of(one) in gone
            held.until_ms, held.handle, held.ends = until_ms, one.handle, ends
            held.place = one.topic, one.queue_id, one.offset

    def _judge(
        self,
        topic: str,
        queue_id: int,
        given: Mapping[int, int],
        now_ms: int,
        ends: tuple[int, int],
        gone: Collection[int],
    ) -> None:
        """Hold what a queue has given (offsets by number) against what is known of it."""
        where = f"{topic}/{queue_id} gives {[*given]} at {now_ms}"
        offsets = [*given.values()]
        if offsets != sorted(offsets):
            raise Violation(Kind.BLOCKED, f"{where}: not in order, {offsets}")
        for number, held in self.held.items():
            if held.loose or held.place[:2] != (topic, queue_id):
                continue
            again = number in given
            if held.acked:
                if again:
                    raise Violation(Kind.REPEATED, f"{where}: message {number} was acknowledged, and answered")
                continue
            waits = not held.maybe and number not in gone
            if now_ms < held.until_ms != self.first_ms and (again or waits):
                kind = Kind.HELD if again else Kind.BLOCKED
                raise Violation(kind, f"{where}: message {number} is held until {held.until_ms}")
            if not again:
                if held.place[2] < offsets[-1] and waits:
                    raise Violation(Kind.BLOCKED, f"{where}: message {number} was not acknowledged, and is passed over")
                # Of what waits on the handles of before are worth nothing, unless a power cut takes this pop.
                held.handle, held.ends = _NOBODY, ends
