"""Pops in the simulation: what consumers that pop know, and what must not be because of it.

Of each message the ledger knows who holds it and until when, as answers have said, and whether an acknowledgement of it
was answered. A kill changes nothing of that. A power cut may take what was not durable, by what the broker itself says;
what was, is held against it. The group pops both topics, and never in order.

==============  ======================================================================================================
never early     a copy does not stand in the log before its holder's time is over
one holder      nobody is given a message that somebody holds
no repeat       what was acknowledged, and answered, is neither copied nor given to anybody
one copy        of what came out of one pop one copy is made, over any crash
none lost       in the end each message was acknowledged, or comes
==============  ======================================================================================================
"""

from __future__ import annotations

import copy
from random import Random
from typing import TYPE_CHECKING, Any

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RecordError
from remoting.messages.properties import TW_POP, get_property
from tests.broker.pop_client import Popped, popped_of
from tests.simulation.kinds import Kind, Violation

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger
    from tests.simulation.world import World

__all__ = ["GROUP", "INVISIBLE_MAX_MS", "Poppers", "Pops", "retry_of"]

GROUP = "popping"
INVISIBLE_MAX_MS = 60_000
_TIMES = (1, 40, 300, 300, 900, 2500, INVISIBLE_MAX_MS)
_RETRY = f"%RETRY%{GROUP}_"


def retry_of(topic: str) -> str:
    """The topic that a copy's topic has the retries of; empty if it is no such topic."""
    return topic.removeprefix(_RETRY) if topic.startswith(_RETRY) else ""


class Held:
    """What is known of one message: until when it is held, by which handle, whether it is acknowledged.

    ``ends`` are how far the journal of pops and the CommitLog were written when this was heard.
    """

    __slots__ = ("acked", "asked", "ends", "handle", "loose", "maybe", "until_ms")

    def __init__(self) -> None:
        self.until_ms = 0
        self.handle = ""
        self.acked = False
        self.loose = False  # the power took what a broker knew of it: it may be given again, beside a copy of it
        self.maybe = False  # an acknowledgement was asked for, and is not known to hold
        self.asked = 0  # requests about it that are not answered
        self.ends = (0, 0)


class Pops:
    """What consumers know; `clone` for a world that branches off."""

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self.exempt: set[str] = set()
        self.going: set[str] = set()  # topics whose deletion is asked for, and not answered
        self._copies: dict[int, str] = {}  # CommitLog offset to mark
        self._marks: dict[str, int] = {}

    def clone(self) -> Pops:
        """The same knowledge."""
        other = Pops()
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

    def popped(self, one: Popped, until_ms: int, now_ms: int, ends: tuple[int, int]) -> int:
        """A consumer has got a message; its number."""
        number = int(one.body.partition(b".")[0])
        held = self.of(number)
        held.loose |= (retry_of(one.topic) or one.topic) in self.going
        if held.loose:
            return number
        if held.acked:
            raise Violation(Kind.REPEATED, f"message {number} was acknowledged, and answered, and comes again")
        if now_ms < held.until_ms:
            text = f"message {number} is held until {held.until_ms}, and given to another one at {now_ms}"
            raise Violation(Kind.HELD, text)
        held.until_ms, held.handle, held.ends = until_ms, one.handle, ends
        return number

    def acked(
        self, number: int, handle: str, reply: RemotingCommand, now_ms: int, ends: tuple[int, int], *, gone: bool
    ) -> None:
        """An acknowledgement was answered; ``gone``: retention has taken the message, so nobody may know of it."""
        held = self.of(number)
        held.asked -= 1
        if held.loose:
            held.maybe = True
        elif reply.code == ResponseCode.SUCCESS and reply.remark is None:
            held.acked, held.ends = True, ends
        elif reply.code == ResponseCode.SUCCESS:
            if handle != held.handle or now_ms >= held.until_ms or held.acked or held.maybe or gone:
                return
            raise Violation(Kind.ANSWER, f"message {number} cannot be acknowledged by its holder: {reply.remark}")
        elif reply.code == ResponseCode.SYSTEM_ERROR:
            held.maybe = True

    def changed(self, number: int, handle: str, until_ms: int, ends: tuple[int, int]) -> None:
        """A change was answered, with another handle; without one if there is nothing to change."""
        held = self.of(number)
        held.asked -= 1
        if handle and not held.acked and not held.loose:
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

    def opened(self) -> None:
        """A broker has started: what it knows is durable."""
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


class Poppers:
    """The clients that pop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.got: list[tuple[int, Popped]] = []

    def pop(self, topic: str, rng: Random, count: int = 0) -> None:
        """Pop something."""
        world = self.world
        fields: dict[str, Any] = {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": -1,
            "maxMsgNums": count or rng.choice((1, 2, 4, 32)),
            "invisibleTime": rng.choice(_TIMES),
            "pollTime": 0,
            "bornTime": world.wall_ms + 86_400_000,  # the clock may be set before it is read
            "initMode": 0,
            "order": "false",
        }
        world.submit(RequestCode.POP_MESSAGE, fields, b"", [], "pop")

    def answer(self, rng: Random) -> None:
        """Acknowledge some of what was got, now or long ago; have some of it longer, or shorter."""
        if not self.got:
            return
        number, one = self.got[-rng.randint(1, min(len(self.got), 40))]
        self.ack(number, one) if rng.random() < 0.7 else self.change(number, one, rng.choice((0, *_TIMES)))

    def ack(self, number: int, one: Popped) -> None:
        """Acknowledge a message."""
        self.world.ledger.pops.of(number).asked += 1
        self.world.tell(f"ack {number} [{one.handle}]")
        self.world.submit(RequestCode.ACK_MESSAGE, _named(one), b"", [number], f"ack {one.handle}")

    def change(self, number: int, one: Popped, invisible_ms: int) -> None:
        """Have it for another time from now on; until it is answered nobody knows for which."""
        held = self.world.ledger.pops.of(number)
        held.asked += 1
        held.until_ms = 0
        self.world.tell(f"change {number} [{one.handle}] to {invisible_ms} ms")
        fields = {**_named(one), "invisibleTime": invisible_ms}
        self.world.submit(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields, b"", [number], f"change {one.handle}")

    def heard(self, kind: str, numbers: list[int], reply: RemotingCommand) -> None:
        """One of these was answered."""
        world = self.world
        pops, ext, now_ms = world.ledger.pops, reply.ext, world.wall_ms
        ends = world.core.processors.pop.journal.written, world.store.commit_log.end  # type: ignore[union-attr]
        world.look()
        what, _, handle = kind.partition(" ")
        if what == "pop":
            if reply.code == ResponseCode.SUCCESS:
                until_ms = int(ext["popTime"]) + int(ext["invisibleTime"])
                try:
                    got = popped_of(reply, GROUP)
                except RecordError as error:
                    raise Violation(Kind.CONTENT, f"what was popped is no whole record: {error}") from error
                found = [(pops.popped(one, until_ms, now_ms, ends), one) for one in got]
                self.got += found
                world.tell(f"popped until {until_ms}: {[(number, one.handle) for number, one in found]}")
                world.wakes["reviver"] = 0
        elif what == "ack":
            world.tell(f"reply to ack {numbers[0]}: {reply.code} {reply.remark or ''}")
            entry = world.ledger.delivered.get(numbers[0])
            gone = entry is not None and entry.offset < world.ledger.begin
            pops.acked(numbers[0], handle, reply, now_ms, ends, gone=gone)
        else:
            world.tell(f"reply to change {numbers[0]}: {reply.code} {ext} {reply.remark or ''}")
            self._changed(numbers[0], handle, reply, ends)

    def _changed(self, number: int, handle: str, reply: RemotingCommand, ends: tuple[int, int]) -> None:
        pops, ext = self.world.ledger.pops, reply.ext
        if reply.code != ResponseCode.SUCCESS:
            pops.changed(number, "", 0, ends)
            return
        (one,) = [one for _, one in self.got if one.handle == handle][-1:]
        parts = handle.split(" ")
        parts[:4] = [str(one.offset), ext["popTime"], ext["invisibleTime"], ext["reviveQid"]]
        changed = Popped(**{**one.__dict__, "handle": " ".join(parts)})
        pops.changed(number, changed.handle, int(ext["popTime"]) + int(ext["invisibleTime"]), ends)
        self.got.append((number, changed))
        self.world.wakes["reviver"] = 0


def _named(one: Popped) -> dict[str, Any]:
    return {
        "consumerGroup": GROUP,
        "topic": one.topic,
        "queueId": one.queue_id,
        "offset": one.offset,
        "extraInfo": one.handle,
    }
