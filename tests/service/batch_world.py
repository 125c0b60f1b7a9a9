"""The cluster in virtual time with deliveries in batches: refused for one message, cut in the middle, answered late.

A batch that has an entry of `ILLEGAL` is refused as a whole; alone, that entry is stored. A broker may also die over a
batch: then it has stored the first of its entries, or all, or none, and the connection breaks. All other faults are
those of `tests.service.cluster_world`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from service.core.calm import Calm
from service.core.progress import TargetQueue
from service.core.shard import MaySend, Shard
from tests.service.cluster_world import Broker, Node, World

BATCH_MAX = 8
ILLEGAL = 7
"""Every so many entries, one is refused in a batch."""
CUT = 0.05
"""Share of batches over which the broker dies."""


def _not_stored(shard: Shard, offsets: Iterable[int]) -> None:
    """Note that the target has stored none of these."""
    for offset in offsets:
        shard.refused(offset)


class BatchNode(Node):
    """An instance that sends what is due together as one request."""

    def deliver(self) -> None:
        shard, world = self.shard, self.world
        assert shard is not None
        going: dict[str, list[int]] = {}
        for offset in self.looked_at():
            admission = shard.may_send(offset, self.pending[offset], world.now, world.now, ("T",))
            if admission is MaySend.ALREADY:
                del self.pending[offset]
            elif admission is MaySend.GO:
                name = world.random.choice(sorted(world.targets)) if not going else next(iter(going))
                going.setdefault(name, []).append(offset)
        for name, offsets in going.items():
            broker = world.targets[name]
            (queue,) = broker.queues
            if not shard.is_named(queue):
                self.aim(shard, broker, queue)
                continue
            while offsets:
                self.put_batch(shard, broker, queue, offsets[:BATCH_MAX])
                del offsets[:BATCH_MAX]

    def put_batch(self, shard: Shard, broker: Broker, queue: TargetQueue, offsets: list[int]) -> None:
        world = self.world
        for offset in offsets:
            shard.sending([offset], queue)

        def execute() -> list[int] | None:
            """The queue offsets; none of a batch that is refused; None: the broker died over it."""
            if len(offsets) > 1 and any(offset % ILLEGAL == 0 for offset in offsets):
                return []
            count = len(offsets)
            if world.faulty and world.random.random() < CUT:
                count = world.random.randrange(count + 1)
                for offset in offsets[:count]:
                    world.deliver(queue, offset)
                return None
            world.batches += count > 1
            return [world.deliver(queue, offset) for offset in offsets]

        def answered(places: list[int] | None) -> None:
            if places is None:
                self.broken(shard, broker, offsets)
            elif places:
                shard.acknowledged(offsets, queue, places[0])  # the answer names the place of the first
            else:
                self.refused(shard, broker, queue, offsets)

        self.ask(broker, execute, answered, lambda: self.lost(shard, broker, offsets))

    def lost(self, shard: Shard, broker: Broker, offsets: list[int]) -> None:
        """The batch got no answer."""
        for offset in offsets:
            shard.lose(offset)
        self.calm.disturbed(broker.name, self.world.now)

    def broken(self, shard: Shard, broker: Broker, offsets: list[int]) -> None:
        """The connection broke."""
        self.lost(shard, broker, offsets)

    def refused(self, shard: Shard, broker: Broker, queue: TargetQueue, offsets: list[int]) -> None:
        """The batch was refused for the sake of a message: each goes alone."""
        world = self.world
        _not_stored(shard, offsets)
        for offset in sorted(self.pending.keys() & set(offsets)):
            if shard.may_send(offset, self.pending[offset], world.now, world.now, ("T",)) is MaySend.GO:
                self.put_batch(shard, broker, queue, [offset])


class SendsLostAgain(BatchNode):
    """A batch whose answer was lost is sent again without a search."""

    def lost(self, shard: Shard, broker: Broker, offsets: list[int]) -> None:
        del broker
        _not_stored(shard, offsets)


class LooksForTheFirst(BatchNode):
    """Of a batch whose answer was lost, only the first message is looked for."""

    def lost(self, shard: Shard, broker: Broker, offsets: list[int]) -> None:
        super().lost(shard, broker, offsets[:1])
        _not_stored(shard, offsets[1:])


class BelievesAllOrNothing(BatchNode):
    """A batch over which the connection broke counts as not stored: a broker stores all of it or nothing."""

    def broken(self, shard: Shard, broker: Broker, offsets: list[int]) -> None:
        del broker
        _not_stored(shard, offsets)


class DropsTheRest(BatchNode):
    """A batch refused for one message drops the others."""

    def refused(self, shard: Shard, broker: Broker, queue: TargetQueue, offsets: list[int]) -> None:
        for offset in offsets:
            if offset % ILLEGAL:
                shard.acknowledged([offset], queue, 0)
            else:
                shard.refused(offset)
                self.put_batch(shard, broker, queue, [offset])


class DoesNotLookAgain(BatchNode):
    """What was refused in a batch is sent alone a while later, and nobody asks whether it still may be."""

    def lost(self, shard: Shard, broker: Broker, offsets: list[int]) -> None:
        super().lost(shard, broker, [offset for offset in offsets if offset in shard._in_flight])

    def refused(self, shard: Shard, broker: Broker, queue: TargetQueue, offsets: list[int]) -> None:
        for offset in offsets:
            shard.refused(offset)

        def later() -> None:
            if self.shard is shard and not self.dead:
                for offset in offsets:
                    self.ask(
                        broker,
                        lambda offset=offset: self.world.deliver(queue, offset),  # type: ignore[misc]
                        lambda at, offset=offset: shard.acknowledged([offset], queue, at),  # type: ignore[misc]
                    )

        self.world.at(self.world.now + 400, lambda: self.when_running(later))


BUGS: dict[str, tuple[type[BatchNode], str]] = {
    "a lost batch is sent again": (SendsLostAgain, "twice"),
    "only its first message is looked for": (LooksForTheFirst, "twice"),
    "all or nothing is believed": (BelievesAllOrNothing, "twice"),
    "the rest is dropped": (DropsTheRest, "lost"),
    "alone without a look": (DoesNotLookAgain, "twice"),
}
"""Name to (the instance with the bug, the violation that it plants)."""


class BatchWorld(World):
    """A world whose instances deliver in batches; entries are due at few times, so that many are due together."""

    def __init__(
        self,
        seed: int,
        node: type[BatchNode] = BatchNode,
        shard: Callable[[str], Shard] = Shard,
        calm: Callable[[], Calm] = Calm,
    ) -> None:
        super().__init__(seed, shard, calm)
        self._node = node
        self.batches = 0
        """Batches of more than one message that were stored."""

    def add_node(self, name: str) -> Node:
        return self._node(self, name)

    def send(self, due_ms: int) -> None:
        super().send(-(-due_ms // 3000) * 3000)
