"""Bugs that are planted into takeovers that read the older part later, each with the violation that finds it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from service.core.backfill import Backfill
from service.core.commands import CommandTable, Decision
from service.core.done_entries import DoneEntries
from service.core.lines import Line
from service.core.progress import Picture, ProgressRecord
from service.core.shard import MaySend, Shard

__all__ = ["BACKFILL_BUGS"]


class ForgetsOlderMoves(Shard):
    """What the last owner has moved is read with its first due time."""

    def load(self, picture: Picture, first_offset: int) -> None:
        picture.moves = {}
        super().load(picture, first_offset)


class SavesNoMoves(Shard):
    """A move is known to the owner that decided it, and to the one after it; that one does not pass it on."""

    def record(self) -> ProgressRecord | None:
        if self.generation >= 0 and not self.backfill.is_whole:
            self.commands.moves.clear()
        return super().record()


class DeliversUnmoved(Shard):
    """A backfilled entry is delivered although the cache does not have its new due time yet."""

    def _is_busy(self, offset: int) -> bool:
        due_ms = self.commands.changing.pop(offset, None)
        found = super()._is_busy(offset)
        if due_ms is not None:
            self.commands.changing[offset] = due_ms
        return found


class SearchesOnlyForRead(Shard):
    """What the last owner may have delivered is looked for among entries that were read before the begin only."""

    def may_send(self, offset: int, due_ms: int, wall_ms: int, mono_ms: int, topics: Collection[str]) -> MaySend:
        doubts, self.doubts = self.doubts, [] if offset < self.backfill.until else self.doubts
        try:
            return super().may_send(offset, due_ms, wall_ms, mono_ms, topics)
        finally:
            self.doubts = doubts


class DecidesUnread(Shard):
    """A command about an entry that was not read is decided: what was rolled is said to be delivered."""

    def decide(self, command: int, entry: int, due_ms: int) -> Decision | None:
        backfill, self.backfill = self.backfill, Backfill()
        try:
            return super().decide(command, entry, due_ms)
        finally:
            self.backfill = backfill


class LowPassesTheRest(Shard):
    """The progress says of what was not read yet that it is done."""

    def record(self) -> ProgressRecord | None:
        if self.generation >= 0 and not self.backfill.is_whole:
            self.done.raise_to(self.backfill.until)
        return super().record()


class ReadsTooFarOn(Shard):
    """The progress says of some records that they were read, which come only then."""

    def record(self) -> ProgressRecord | None:
        found = super().record()
        if found is not None and found.read >= 0:
            found.read += 8
        return found


class CommandsLeftOut(Shard):
    """Commands without a verdict in the older part get none."""

    def backfilled(self, lines: list[Line], next_offset: int) -> list[Line]:  # type: ignore[override]
        waiting = super().backfilled(lines, next_offset)
        self.backfill.commands.clear()
        return waiting


class RollsLeftOut(Shard):
    """Where an entry of the older part was rolled to is not noted."""

    def backfilled(self, lines: list[Line], next_offset: int) -> list[Line]:  # type: ignore[override]
        waiting = super().backfilled(lines, next_offset)
        del self.backfill.rolls[:], self.backfill.origins[:]
        return waiting


class _AnyRoll(Backfill):
    @staticmethod
    def _is_valid(line: Line, takeovers: object) -> bool:
        del takeovers
        return line.about < line.offset


class AnyOlderRoll(Shard):
    """A roll of the older part counts, whoever wrote it."""

    def _resume(self, picture: Picture, read: int) -> None:
        super()._resume(picture, read)
        self.backfill = _AnyRoll(self.done.low, read)


class OwnsBlind(Shard):
    """A record cannot be read, which may be a verdict on something in the older part; the shard is owned at once."""

    def _cannot_read(self, offset: int, until: int) -> None:
        super()._cannot_read(offset, until)
        self.needs_all = False


class _AnyOrder(CommandTable):
    def saw_verdict(self, line: Line, done: DoneEntries) -> list[int]:
        open_before = {at: (self.asked[at], origin) for at, origin in self._unsure.items() if at != line.about}
        finished = super().saw_verdict(line, done)
        for at, (command, origin) in open_before.items():
            if at in finished:
                finished.remove(at)
                self.asked[at], self._unsure[at] = command, origin
                self._unsure_of.setdefault(origin, []).append(at)
        return finished


class BlindToLaterCommands(Shard):
    """A command whose verdict cannot be read is decided again, also after a later one on its entry."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.commands = _AnyOrder()


BACKFILL_BUGS: dict[str, tuple[Callable[[str], Shard], str]] = {
    "moves not in the progress": (ForgetsOlderMoves, "early"),
    "moves not passed on": (SavesNoMoves, "early"),
    "delivered before it is moved": (DeliversUnmoved, "early"),
    "no search for the older part": (SearchesOnlyForRead, "twice"),
    "decided before it is read": (DecidesUnread, "wrong"),
    "low passes the backfill": (LowPassesTheRest, "lost"),
    "read too far on": (ReadsTooFarOn, "wrong"),
    "older commands left out": (CommandsLeftOut, "wrong"),
    "older rolls left out": (RollsLeftOut, "wrong"),
    "any older roll": (AnyOlderRoll, "wrong"),
    "owned blind": (OwnsBlind, "early"),
    "blind to later commands": (BlindToLaterCommands, "again"),
}
"""Name to (the core with the bug, the violation that it plants)."""
