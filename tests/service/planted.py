"""Bugs that are planted into the core, each with the violation that it must be found by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from service.core.calm import Calm
from service.core.commands import Decision
from service.core.lease import Timing
from service.core.lines import Line, LineKind
from service.core.progress import Picture, TargetQueue
from service.core.shard import MaySend, Shard
from service.core.states import OwnerState

__all__ = ["BUGS", "AlwaysCalm"]


class AlwaysCalm(Calm):
    def is_calm(self, broker: str, mono_ms: int) -> bool:
        del broker, mono_ms
        return True


class NoFence(Shard):
    """The new owner does not wait."""

    def __init__(self, name: str, timing: Timing | None = None) -> None:
        super().__init__(name, timing)
        self.timing.lease_ms = self.timing.drift_ms = self.timing.settle_ms = 0


class NoLease(Shard):
    """An owner delivers however long ago it has read its queue."""

    def may_send(self, offset: int, due_ms: int, wall_ms: int, mono_ms: int, topics: Collection[str]) -> MaySend:
        self.lease.renew(mono_ms)
        return super().may_send(offset, due_ms, wall_ms, mono_ms, topics)


class RenewsUnread(Shard):
    """The lease is renewed by any answer, whether the queue was read to its end or not."""

    def end_seen(self, asked_ms: int, end: int) -> None:
        del end
        self.lease.renew(asked_ms)

    def read(self, lines: Sequence[Line], next_offset: int, mono_ms: int) -> list[Line]:
        # slow to read: what is behind the first sixteenth comes with a later pull
        return super().read(lines[:4], lines[3].offset + 1 if len(lines) > 4 else next_offset, mono_ms)


class NoDoubts(Shard):
    """Nobody looks for what the predecessor has delivered since its last progress."""

    def settle(self, picture: Picture, wall_ms: int) -> None:
        super().settle(picture, wall_ms)
        self.doubts = []


class ForgetsOldDoubts(Shard):
    """What the predecessor had not yet looked for is nobody's business any more."""

    def settle(self, picture: Picture, wall_ms: int) -> None:
        picture.doubts = []
        super().settle(picture, wall_ms)


class ForgetsWhatItFound(Shard):
    """The progress says how far a target queue was searched, and not what was found there."""

    def searched(self, queue: TargetQueue, delivered: Iterable[int], until: int) -> None:
        del delivered
        super().searched(queue, (), until)


class SearchesTooFar(Shard):
    """The progress says that a little more of a target queue was searched than was."""

    def searched(self, queue: TargetQueue, delivered: Iterable[int], until: int) -> None:
        super().searched(queue, delivered, until + 2)


class SendsLostAgain(Shard):
    """A delivery whose answer was lost is sent again at once."""

    def lose(self, offset: int) -> None:
        self._in_flight.pop(offset)


class TailsTooFar(Shard):
    """A tail moves past deliveries that are under way."""

    def _raise_tail(self, queue: TargetQueue) -> None:
        self.tails[queue] = max(self.tails.get(queue, 0), self._top.get(queue, 0))


class NamesTooLate(Shard):
    """A target queue is used before the progress names it."""

    def is_named(self, queue: TargetQueue) -> bool:
        return queue in self.tails

    def sending(self, offsets: Collection[int], queue: TargetQueue) -> None:
        self._named |= {queue}
        super().sending(offsets, queue)


class IgnoresTakeovers(Shard):
    """An owner goes on although it has read somebody else's takeover."""

    def _see_takeover(self, line: Line, generation: int, mono_ms: int) -> None:
        if line.owner == self.owner or self.state in (OwnerState.TAKING_OVER, OwnerState.FOLLOWER):
            super()._see_takeover(line, generation, mono_ms)


class ForgetsDone(Shard):
    """The progress is read, and what it says is done is not."""

    def load(self, picture: Picture, first_offset: int) -> None:
        del picture
        super().load(Picture(), first_offset)

    def settle(self, picture: Picture, wall_ms: int) -> None:
        picture.done = type(picture.done)()
        super().settle(picture, wall_ms)


class ReadsFromNow(Shard):
    """A new owner reads its queue from the last takeover on."""

    def load(self, picture: Picture, first_offset: int) -> None:
        super().load(picture, max(first_offset, picture.generation))


class EarlyBird(Shard):
    """An entry is delivered when it is read."""

    def may_send(self, offset: int, due_ms: int, wall_ms: int, mono_ms: int, topics: Collection[str]) -> MaySend:
        del due_ms
        return super().may_send(offset, 0, wall_ms, mono_ms, topics)


class TrustsAnyRelease(Shard):
    """Once somebody has released the shard, no later owner counts."""

    def _see_takeover(self, line: Line, generation: int, mono_ms: int) -> None:
        before = self.takeovers.is_released
        super()._see_takeover(line, generation, mono_ms)
        self.takeovers.is_released = before


class FinishesRefused(Shard):
    """What is lost counts as delivered."""

    def lose(self, offset: int) -> None:
        queue = self._in_flight[offset]
        super().lose(offset)
        self.scanned(queue, [offset], [offset])


class ReleasesEarly(Shard):
    """A shard is released while deliveries are under way."""

    @property
    def may_release(self) -> bool:
        return self.state is OwnerState.RELEASING


class RollsForAnybody(Shard):
    """A roll counts, whoever wrote it."""

    def _control(self, line: Line) -> bool:
        if line.kind is LineKind.ROLL:
            line = Line(line.offset, line.kind, line.due_ms, generation=self.takeovers.generation, about=line.about)
        return super()._control(line)


class DeliversWhatItRolls(Shard):
    """An entry whose roll got no answer is delivered all the same."""

    def roll(self, offset: int, due_ms: int) -> Line | None:
        line = super().roll(offset, due_ms)
        self._held.pop(offset, None)
        return line


class ForgetsRolled(Shard):
    """What was rolled and then read again by another owner is taken for done."""

    def _control(self, line: Line) -> bool:
        rolled = line.about in self.done
        return super()._control(line) and not rolled


class DecidesInDoubt(Shard):
    """A verdict is given while nobody knows whether the entry was delivered."""

    def decide(self, command: int, entry: int, due_ms: int) -> Decision | None:
        del due_ms
        return super().decide(command, entry, 1 << 60)


class DeliversWhatItCancels(Shard):
    """An entry is delivered while its cancellation is on the way."""

    def decide(self, command: int, entry: int, due_ms: int) -> Decision | None:
        found = super().decide(command, entry, due_ms)
        self._held.pop(entry, None)
        return found


class VerdictsOfAnybody(Shard):
    """A verdict counts, whoever wrote it."""

    def _control(self, line: Line) -> bool:
        if line.kind is LineKind.VERDICT:
            self._see_verdict(line)
        return super()._control(line)


class ForgetsCancelled(Shard):
    """That an entry was cancelled is not in the progress."""

    def load(self, picture: Picture, first_offset: int) -> None:
        picture.cancelled = []
        super().load(picture, first_offset)

    def settle(self, picture: Picture, wall_ms: int) -> None:
        picture.cancelled = []
        super().settle(picture, wall_ms)


class ForgetsMoves(Shard):
    """A move holds for the owner that decided it, and for nobody after it."""

    def _see_verdict(self, line: Line) -> None:
        if line.generation == self.generation or not line.due_ms:
            super()._see_verdict(line)


BUGS: dict[str, tuple[Callable[[str], Shard], str]] = {
    "no fence": (NoFence, "twice"),
    "no lease": (NoLease, "twice"),
    "lease without reading": (RenewsUnread, "twice"),
    "no doubts": (NoDoubts, "twice"),
    "old doubts forgotten": (ForgetsOldDoubts, "twice"),
    "found is forgotten": (ForgetsWhatItFound, "twice"),
    "searched too far": (SearchesTooFar, "twice"),
    "lost is sent again": (SendsLostAgain, "twice"),
    "tails too far": (TailsTooFar, "twice"),
    "named too late": (NamesTooLate, "twice"),
    "takeovers ignored": (IgnoresTakeovers, "twice"),
    "done forgotten": (ForgetsDone, "twice"),
    "released early": (ReleasesEarly, "twice"),
    "any release": (TrustsAnyRelease, "twice"),
    "any roll": (RollsForAnybody, "twice"),
    "rolled and delivered": (DeliversWhatItRolls, "twice"),
    "rolled is done": (ForgetsRolled, "lost"),
    "read from now": (ReadsFromNow, "lost"),
    "lost is done": (FinishesRefused, "lost"),
    "early": (EarlyBird, "early"),
    "decided in doubt": (DecidesInDoubt, "undead"),
    "cancelled and delivered": (DeliversWhatItCancels, "undead"),
    "verdicts of anybody": (VerdictsOfAnybody, "wrong"),
    "cancelled forgotten": (ForgetsCancelled, "wrong"),
    "moves forgotten": (ForgetsMoves, "early"),
}
"""Name to (the core with the bug, the violation that it plants)."""
