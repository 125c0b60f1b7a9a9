"""A bulk cancel of thousands in the world of `tests.service.cluster_world`, and owners that are killed in its midst.

The one who cancels lists what waits in due order and gives a command for each, as `ServiceClient.change_matching` and
the door do. An owner is killed at a chosen step: after so many commands or verdicts are stored, or when it has read so
many of them, before or behind what it was writing.
"""

from __future__ import annotations

from collections.abc import Callable

from service.core.calm import Calm
from service.core.lines import Line, LineKind
from service.core.shard import Shard
from tests.service.cluster_world import Node, World, assign

__all__ = ["BulkWorld", "bulk_story"]

BEGIN_MS, DUE_FROM_MS, DUE_TO_MS = 6_000, 6_500, 30_000
AT_ONCE, EVERY_MS = 32, 700
PULLED = 512


class BulkWorld(World):
    """The world, with longer pulls, and a step at which something happens."""

    def __init__(
        self, seed: int, shard: Callable[[str], Shard] = Shard, calm: Callable[[], Calm] = Calm, step: int = 0
    ) -> None:
        super().__init__(seed, shard, calm)
        self.quiet = True
        self._left = self._step = step
        self.kills = 0

    def pulled(self, begin: int) -> tuple[list[Line], int, int]:
        lines = self.entry_log[begin : begin + PULLED]
        return lines, begin + len(lines), len(self.entry_log)

    def append(self, line: Line) -> int:
        """Store a record. After so many of the bulk's, the owner is killed, before or after it has the answer."""
        offset = super().append(line)
        if line.kind in (LineKind.CANCEL, LineKind.VERDICT) and self._step:
            self._left -= 1
            if not self._left:
                self._left = self._step
                self.at(self.now + self.random.choice((0, 1, 30, 300)), self.kill_owner)
        return offset

    def kill_owner(self) -> None:
        """Kill the one that is told to own the shard, start another, and tell them some time later."""
        for node in [node for node in self.nodes if node.assigned and not node.dead][:1]:
            node.dead = True
            self.kills += 1
            BulkNode(self, f"n{len(self.nodes)}")
            self.at(self.now + self.random.randrange(500), lambda: assign(self, lying=False))

    def cancel(self, entries: list[int]) -> None:
        """Give a command for each of some entries."""
        for entry in entries:
            self.verdicts[len(self.entry_log)] = []
            self.append(Line(-1, LineKind.CANCEL, about=entry))


class BulkNode(Node):
    """An instance that looks only at what is due: there are thousands."""

    def looked_at(self) -> list[int]:
        return [offset for offset, due_ms in self.pending.items() if due_ms <= self.world.now]


def bulk_story(world: BulkWorld, count: int, share: int = 2, again: bool = True) -> dict[str, int]:
    """Entries, a cancel of each ``share``-th, kills; then peace. ``again``: the whole call is made once more."""
    draw = world.random
    for number in range(3):
        BulkNode(world, f"n{number}")
    assign(world, lying=False)
    for number in range(count):
        due_ms = draw.randrange(DUE_FROM_MS, DUE_TO_MS)
        world.at(number * 4_000 // count, lambda due_ms=due_ms: world.send(due_ms))  # type: ignore[misc]
    world.run(BEGIN_MS)
    chosen = sorted((entry for entry in world.due if entry % share == 0), key=lambda entry: world.due[entry])
    at = BEGIN_MS
    for _ in range(2 if again else 1):
        for begin in range(0, len(chosen), AT_ONCE):
            some = chosen[begin : begin + AT_ONCE]
            world.at(at, lambda some=some: world.cancel(some))  # type: ignore[misc]
            at += EVERY_MS
    world.run(max(at, DUE_TO_MS) + 1_000)
    world.faulty = False
    world._step = 0
    assign(world, lying=False)
    for _ in range(60):
        world.run(world.now + 1_000)
        if not world.verdict()["lost"] and not world.wrong():
            break
    return world.verdict()
