"""Pops in the simulation: what consumers that pop know, and what must not be because of it.

Of each message the ledger knows who holds it and until when, as answers have said, and whether an acknowledgement of it
was answered. A kill changes nothing of that. A power cut may take what was not durable, by what the broker itself says;
what was, is held against it. The group pops both topics, never in order: `tests.simulation.ordered` is about another
group, which always does. `tests.simulation.poppers` has the clients.

==============  ======================================================================================================
never early     a copy does not stand in the log before its holder's time is over
one holder      nobody is given a message that somebody holds, and no handle of before acknowledges or changes it
no repeat       what was acknowledged, and answered, is neither copied nor given to anybody
one copy        of what came out of one pop one copy is made, over any crash
none lost       in the end each message was acknowledged, or comes
==============  ======================================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Self

from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.messages.properties import TW_POP, get_property
from tests.broker.pop_client import Popped
from tests.simulation.kinds import Kind, Violation

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger

__all__ = ["GROUP", "Held", "Pops", "number_of", "retry_of"]

GROUP = "popping"
_RETRY = f"%RETRY%{GROUP}_"


def retry_of(topic: str) -> str:
    """The topic that a copy's topic has the retries of; empty if it is no such topic."""
    return topic.removeprefix(_RETRY) if topic.startswith(_RETRY) else ""


def number_of(one: Popped) -> int:
    """The number of a message that was popped."""
    return int(one.body.partition(b".")[0])


class Held:
    """What is known of one message: until when it is held, by which handle, whether it is acknowledged.

    ``ends`` are how far the journal of pops and the CommitLog were written when this was heard. ``place`` are topic,
    queue and offset of what was popped in order.
    """

    __slots__ = ("acked", "asked", "ends", "handle", "loose", "maybe", "place", "until_ms")

    def __init__(self) -> None:
        self.until_ms = 0
        self.handle = ""
        self.acked = False
        self.loose = False  # the power took what a broker knew of it: it may be given again, beside a copy of it
        self.maybe = False  # an acknowledgement was asked for, and is not known to hold
        self.asked = 0  # requests about it that are not answered
        self.ends = (0, 0)
        self.place = ("", 0, 0)


class Pops:
    """What consumers know; `clone` for a world that branches off."""

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self.exempt: set[str] = set()
        self.going: set[str] = set()  # topics whose deletion is asked for, and not answered
        self._copies: dict[int, str] = {}  # CommitLog offset to mark
        self._marks: dict[str, int] = {}

    def clone(self) -> Self:
        """The same knowledge."""
        other = type(self)()
        other.held = {number: copy.copy(held) for number, held in self.held.items()}
        other.exempt, other.going = set(self.exempt), set(self.going)
        other._copies, other._marks = dict(self._copies), dict(self._marks)
        return other

    def of(self, number: int) -> Held:
        """What is known of a message."""
        return self.held.setdefault(number, Held())

    # ------------------------------------------------------------------------------------------------ what is stored

    def copied(self, offset: int, number: int, topic: str, properties: str, store_ms: int) -> None:
        """A copy of a message stands in the log."""
        mark = f"{topic} {get_property(properties, TW_POP)}"
        if self._copies.get(offset) == mark:
            return  # it stood there before the crash
        self._copies[offset] = mark
        held = self.held.get(number)
        where = f"CommitLog {offset}: a copy of message {number}, mark {mark}"
        if mark in self._marks:
            raise Violation(Kind.REPEATED, f"{where}, is there already, at {self._marks[mark]}")
        self._marks[mark] = offset
        if held is not None and held.acked:
            raise Violation(Kind.REPEATED, f"{where}: it was acknowledged, and answered")
        if held is not None and store_ms < held.until_ms:
            raise Violation(Kind.EARLY, f"{where}: stored at {store_ms}, held until {held.until_ms}")

    # ------------------------------------------------------------------------------------------------ what is heard

    def popped(
        self, got: Sequence[Popped], until_ms: int, now_ms: int, ends: tuple[int, int], gone: Collection[int]
    ) -> None:
        """A consumer has got messages; ``gone`` are those that are not there any more."""
        del gone
        for one in got:
            self._popped(one, until_ms, now_ms, ends)

    def _popped(self, one: Popped, until_ms: int, now_ms: int, ends: tuple[int, int]) -> None:
        number = number_of(one)
        held = self.of(number)
        held.loose |= (retry_of(one.topic) or one.topic) in self.going
        if held.loose:
            return
        if held.acked:
            raise Violation(Kind.REPEATED, f"message {number} was acknowledged, and answered, and comes again")
        if now_ms < held.until_ms:
            text = f"message {number} is held until {held.until_ms}, and given to another one at {now_ms}"
            raise Violation(Kind.HELD, text)
        held.until_ms, held.handle, held.ends = until_ms, one.handle, ends

    @staticmethod
    def same(handle: str, known: str) -> bool:
        """Whether two handles name the same holder."""
        return handle == known

    def _holds(self, held: Held, handle: str, now_ms: int, gone: bool) -> bool:
        """Whether a message is in flight by a handle, as far as anybody knows; ``gone``: it is not there any more."""
        known = not (held.loose or held.acked or held.maybe or gone)
        return known and self.same(handle, held.handle) and now_ms < held.until_ms

    def _obeyed(self, number: int, held: Held, handle: str) -> None:
        """The broker has done what a handle's holder has asked for: it must be the last holder."""
        if held.handle and not held.maybe and not self.same(handle, held.handle):
            raise Violation(Kind.HELD, f"message {number} is held by [{held.handle}], and [{handle}] counts, too")

    def acked(
        self, number: int, handle: str, reply: RemotingCommand, now_ms: int, ends: tuple[int, int], *, gone: bool
    ) -> None:
        """An acknowledgement was answered; ``gone``: the message is not there any more, so nobody may know of it."""
        held = self.of(number)
        held.asked -= 1
        if held.loose:
            held.maybe = True
        elif reply.code == ResponseCode.SUCCESS and reply.remark is None:
            self._obeyed(number, held, handle)
            held.acked, held.ends = True, ends
        elif reply.code == ResponseCode.SUCCESS:
            if self._holds(held, handle, now_ms, gone):
                raise Violation(Kind.ANSWER, f"message {number} cannot be acknowledged by its holder: {reply.remark}")
        elif reply.code == ResponseCode.SYSTEM_ERROR:
            held.maybe = True

    def batch_acked(
        self, number: int, handle: str, good: bool, now_ms: int, ends: tuple[int, int], *, gone: bool
    ) -> None:
        """An acknowledgement among others was answered. Also a good answer does not say whose was of no use."""
        held = self.of(number)
        held.asked -= 1
        if good and self._holds(held, handle, now_ms, gone):
            held.acked, held.ends = True, ends
        elif not held.acked and (not good or held.loose or self.same(handle, held.handle)):
            held.maybe = True

    def changing(self, number: int, handle: str) -> None:
        """A change is asked for: until it is answered nobody knows until when its holder has the message."""
        held = self.of(number)
        held.asked += 1
        if self.same(handle, held.handle):
            held.until_ms = 0

    def changed(self, number: int, before: str, handle: str, until_ms: int, ends: tuple[int, int]) -> None:
        """A change was answered, with another handle; without one if there is nothing to change."""
        held = self.of(number)
        held.asked -= 1
        if handle and not held.acked and not held.loose:
            self._obeyed(number, held, before)
            held.until_ms, held.handle, held.ends = until_ms, handle, ends

    # ------------------------------------------------------------------------------------------------ what happens

    def clock_is_set(self, now_ms: int) -> None:
        """The clock is about to be set: what is over stays over."""
        for held in self.held.values():
            if held.until_ms <= now_ms:
                held.until_ms = 0

    def topic_goes(self, numbers: list[int], topic: str) -> None:
        """A topic is about to be deleted: nobody holds anything of it any more, and a crash may bring it back whole."""
        self.exempt.add(topic)
        self.going.add(topic)
        for number in numbers:
            if number in self.held:
                self._loosen(self.held[number])

    @staticmethod
    def _loosen(held: Held) -> None:
        held.maybe = held.maybe or held.acked
        held.until_ms, held.handle, held.acked, held.loose = 0, "", False, True

    def crashed(self, power: bool, log_synced: int, journal_synced: int) -> None:
        """Everything ended; what of it was durable."""
        for held in self.held.values():
            if held.asked:
                held.maybe, held.asked = True, 0
            if power and (held.ends[0] > journal_synced or held.ends[1] > log_synced):
                self._loosen(held)
        self.going.clear()
        if power:
            self._marks.clear()  # names of batches that nobody remembers are given again

    def opened(self, now_ms: int) -> None:
        """A broker has started, at this time of the clock: what it knows is durable."""
        del now_ms
        for held in self.held.values():
            held.ends = (0, 0)

    def finished(self, ledger: Ledger, begin: int) -> None:
        """All time has passed, and all that can be popped was acknowledged."""
        for number, entry in ledger.delivered.items():
            sent = ledger.sent[number]
            held = self.held.get(number)
            if entry.offset < begin or sent.topic in self.exempt or sent.topic in ledger.fewer:
                continue
            if held is None or not (held.acked or held.maybe):
                raise Violation(Kind.LOST, f"{sent}: it cannot be popped any more, and nobody has acknowledged it")
