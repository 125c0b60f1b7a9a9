"""The simulated cluster, with verdicts that rot in the broker's log: the next reader may find any of them unreadable.

A command whose verdict cannot be read is decided once more, unless a later command on the same entry has changed that:
then it was decided before. So besides the usual ledger there is one more violation: ``again``, an earlier command that
is carried out after a later one whose verdict everybody can read. By hand, any number of stories::

    python -m tests.service.rotten_verdicts FIRST COUNT [resuming]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from service.core.calm import Calm
from service.core.commands import CommandVerdict
from service.core.lines import Line, LineKind
from service.core.shard import Shard
from tests.service.cluster_world import HarshWorld, World, resuming, story

__all__ = ["HarshRottenVerdicts", "RottenVerdicts"]

EVERY_MS = 1500
"""How often one of the last verdicts may rot."""
SOON_MS = 300
RECENT = 60


class RottenVerdicts(World):
    """Some of the last verdicts rot every second or two, others just after they were written; moves come in pairs."""

    def __init__(self, seed: int, shard: Callable[[str], Shard] = Shard, calm: Callable[[], Calm] = Calm) -> None:
        super().__init__(seed, shard, calm)
        self.rotten: set[int] = set()
        self.share = (0.1, 0.3, 0.6)[seed % 3]
        self.again = 0
        self._changed: dict[int, list[tuple[int, int]]] = {}  # origin to verdicts that changed it, with their commands
        for when in range(3000, 90_000, EVERY_MS):
            self.at(when + self.random.randrange(EVERY_MS), self.rot)

    def rot(self) -> None:
        """One of the last verdicts."""
        recent = [line.offset for line in self.entry_log[-RECENT:] if line.kind is LineKind.VERDICT]
        if recent and self.random.random() < self.share:
            self.rotten.add(self.random.choice(recent))

    def command(self) -> None:
        """Most moves are followed by another one of the same entry."""
        at = len(self.entry_log)
        super().command()
        is_move = at < len(self.entry_log) and self.entry_log[at].kind is LineKind.MOVE
        if is_move and self.random.random() < 0.6:
            self.verdicts[len(self.entry_log)] = []
            due_ms = self.now + self.random.randrange(25_000)
            self.append(Line(-1, LineKind.MOVE, due_ms, about=self.entry_log[at].about))

    def append(self, line: Line) -> int:
        """Some verdicts rot before the next owner reads them."""
        offset = super().append(line)
        if line.kind is LineKind.VERDICT:
            is_valid = line.generation == self._owner
            if is_valid and line.verdict == CommandVerdict.DONE.value and line.entry >= 0:
                self._note(offset, line.about, self.origin[line.entry])
            if self.random.random() < self.share / 2:
                self.at(self.now + self.random.randrange(SOON_MS), lambda: self.rotten.add(offset))
        return offset

    def _note(self, verdict: int, command: int, origin: int) -> None:
        earlier = self._changed.setdefault(origin, [])
        self.again += any(command < later and at not in self.rotten for at, later in earlier)
        earlier.append((verdict, command))

    def pulled(self, begin: int) -> tuple[list[Line], int, int]:
        """What has rotted is damaged for every reader from then on."""
        lines, next_offset, end = super().pulled(begin)
        return (
            [Line(line.offset, damaged=True) if line.offset in self.rotten else line for line in lines],
            next_offset,
            end,
        )

    def wrong(self) -> int:
        """Not counted: a command may have two verdicts, of which one cannot be read."""
        return 0

    def verdict(self) -> dict[str, int]:
        """As ever, and the commands that were carried out after a later one."""
        return {**super().verdict(), "again": self.again}


class HarshRottenVerdicts(RottenVerdicts, HarshWorld):
    """Many requests fail, too, and much is rolled."""


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    unfair = begun = rotted = anew = 0
    for seed in range(first, first + count):
        for kind in (RottenVerdicts, HarshRottenVerdicts):
            world = resuming(kind(seed)) if sys.argv[3:] else kind(seed)
            verdict = story(world)
            begun, rotted = begun + world.begun_early, rotted + len(world.rotten)
            anew += world.begun_anew
            if any(verdict.values()):
                unfair += 1
                print(seed, kind.__name__, verdict, flush=True)
    print(f"{unfair} of {2 * count} stories from {first} on are not fair; {rotted} verdicts rotted")
    print(f"{begun} ownerships began before the older part was read, {anew} attempts began anew")
