"""Troubles of which a story has many if it is fond of them, and none otherwise.

Some mistakes show only after three or four things in a row: a sync fails, the next one succeeds, and then the power
fails. The things of `tests.simulation.swarm.HAPPENS` bring that about once in many stories. Each trouble here brings
one such row about; which messages, threads, calls and ends it has is drawn, as always. Planted bugs name them
(`tests.simulation.plant.Plant`), so that they are found in the first stories from any seed. They stand in a list of
their own: an entry more in ``HAPPENS`` would change all other stories.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from store.disk.errors import StoreError
from tests.simulation.faults import Fault, fails
from tests.simulation.world import QUEUES, TOPICS

if TYPE_CHECKING:
    from tests.simulation.life import Life

__all__ = ["TROUBLES"]


class _Noted:
    """A fault that counts how often it has struck."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self.count = 0

    def __call__(self, operation: str, path: Path) -> None:
        """Fail, or not."""
        try:
            self._fault(operation, path)
        except StoreError:
            self.count += 1
            raise


def _sync_is_made_up_for(story: Life) -> None:
    """One sync of log or journal fails; the next ones succeed, and then the power fails. Or all ends before them."""
    world, rng = story.world, story.rng
    where, kind = rng.choice((("commitlog/", "now"), ("commitlog/", "level"), ("journal/", "timed")))
    for _ in range(rng.randint(1, 4)):
        one = story.of_kind(kind, world.wall_ms)
        world.send([one], rng.choice(TOPICS), rng.randrange(QUEUES), rng.choice((10, 60, 300)))
    world.turns(rng.randint(1, 20), world.wall_ms)
    world.tell(f"one sync of {where!r} fails")
    world.ledger.order_holds = False
    world.fault = fault = _Noted(fails("sync", where, [(0, 1)]))
    for _ in range(150):
        if fault.count:
            break
        world.turns(1, world.wall_ms + 700)
    world.fault = None
    if rng.random() < 0.2:
        world.die(None, rng)
        story.come_back(3, 0.3)
    world.turns(rng.randint(20, 80), world.wall_ms + 1500)
    world.die(rng.choice((0.0, 0.0, 0.3)), rng)
    story.come_back(3, 0.3)


def _write_is_torn(story: Life) -> None:
    """A write of the log tears; what it was about is refused, or cancelled or moved; and soon afterwards all ends."""
    world, rng = story.world, story.rng
    world.turns(30, world.wall_ms + 600)  # what is there is durable by then
    first, topic = world.number + 1, rng.choice(TOPICS)
    held, size = rng.random() < 0.6, rng.choice((10, 60))
    due_ms = world.wall_ms + rng.choice((40, 300))
    for _ in range(rng.randint(3, 8)):
        world.send([("timed", due_ms) if held else ("now", 0)], topic, 0, size, 0)
    if held:
        world.turns(rng.randint(10, 40), world.wall_ms)
        world.wall_ms = max(world.wall_ms, due_ms)
    world.tell("a write of the log fails")
    world.ledger.order_holds = False
    count = rng.choice((1, 1, 2, 3))
    world.fault = fault = _Noted(fails(rng.choice(("write", "write", "full")), "commitlog/", [(0, count)]))
    who = "sweeper" if held else "loop"
    for _ in range(80):
        if fault.count and who not in world.tasks:
            break
        story.only(who, 1)
    if held and rng.random() < 0.8:
        for number in range(first, world.number + 1):
            sent = world.ledger.sent[number]
            if sent.held and sent.state == "acked":
                story.command(number)
        for _ in range(60):
            if not world.commands and "commands" not in world.tasks:
                break
            story.only("commands", 1)
    world.fault = None
    world.die(rng.choice((None, 0.3, 0.5, 0.7)), rng)
    story.come_back(3, 0.3)


def _end_is_torn(story: Life) -> None:
    """The power leaves a part of the last writes, and perhaps the start that clears it cannot sync the log."""
    world, rng = story.world, story.rng
    for _ in range(rng.randint(2, 6)):
        one = story.of_kind(rng.choice(("now", "now", "level", "half")), world.wall_ms)
        world.send([one], rng.choice(TOPICS), rng.randrange(QUEUES), rng.choice((10, 300, 450)))
    world.turns(rng.randint(3, 15), world.wall_ms)
    world.die(rng.choice((0.3, 0.5, 0.7)), rng)
    if rng.random() < 0.5:
        world.tell("a sync of the log fails in the start")
        world.ledger.order_holds = False
        world.fault, world.read_fault = fails("sync", "commitlog/", [(rng.choice((0, 0, 1)), 1)]), None
        try:
            world.boot()
        except StoreError as error:
            world.tell(f"no start: {error}")
            world.fault = None
            world.die(None, rng)
        else:
            world.fault = None
            return
    story.come_back(3, 0.3)


def _batch_is_refused(story: Life) -> None:
    """A batch has messages for now and for later, and the log cannot be written; perhaps all ends soon afterwards."""
    world, rng = story.world, story.rng
    due_ms = world.wall_ms + rng.choice((40, 300, 900, 2500))
    count = rng.randint(2, 9)
    kinds = [("timed", due_ms), ("now", 0), *(rng.choice((("timed", due_ms), ("now", 0))) for _ in range(count))]
    rng.shuffle(kinds)
    world.send(kinds[:count], rng.choice(TOPICS), rng.randrange(QUEUES), rng.choice((0, 10)), rng.randrange(2))
    world.tell("the log cannot be written")
    world.ledger.order_holds = False
    kind, failing = rng.choice(("write", "write", "full")), rng.choice((1, 2, 50))
    world.fault = fault = _Noted(fails(kind, "commitlog/", [(0, failing)]))
    for _ in range(60):
        if fault.count and "loop" not in world.tasks:
            break
        story.only("loop", 1)
    world.turns(rng.randint(0, 10), world.wall_ms)
    world.fault = None
    world.turns(rng.randint(5, 30), world.wall_ms + 600)
    if rng.random() < 0.3:
        world.die(rng.choice((None, 0.0, 0.3)), rng)
        story.come_back(2, 0.3)


def _clock_at_the_lock(story: Life) -> None:
    """Much comes due, and the clock is set while threads wait for the append lock."""
    world, rng = story.world, story.rng
    for _ in range(rng.randint(2, 6)):
        due_ms = world.wall_ms + rng.choice((1, 40, 300))
        world.send([("timed", due_ms)], rng.choice(TOPICS), rng.randrange(QUEUES), 10)
    world.turns(rng.randint(10, 30), world.wall_ms)
    before, world.swarm.clock_at_lock = world.swarm.clock_at_lock, 0.4
    try:
        world.turns(rng.randint(20, 60), world.wall_ms + 400)
    finally:
        world.swarm.clock_at_lock = before


def _pending_and_crash(story: Life) -> None:
    """Delay keys and changes of what is pending; and soon afterwards all ends."""
    world, rng = story.world, story.rng
    for _ in range(rng.randint(1, 3)):
        story.pend_some()
    world.die(rng.choice((None, 0.0, 0.0, 0.3)), rng)
    story.come_back(2, 0.3)
    story.pend_some()


def _all_expires(story: Life) -> None:
    """Retention deletes while those stand still that need what is old; and soon afterwards all ends."""
    world, rng = story.world, story.rng
    for _ in range(rng.randint(1, 4)):
        one = story.of_kind(rng.choice(("level", "level", "half")), world.wall_ms)
        world.send([one], rng.choice(TOPICS), rng.randrange(QUEUES), 10)
    world.turns(rng.randint(10, 40), world.wall_ms + 300)
    names = rng.choice((("levels",), ("levels",), ("flusher",), ("levels", "flusher")))
    world.tell(f"{names} stand still, and all expires")
    for name in names:
        world.frozen[name] = 1 << 30
    story.let_expire()
    for name in names:
        world.frozen.pop(name, None)
    if rng.random() < 0.5:
        world.die(rng.choice((None, 0.0, 0.3)), rng)
        story.come_back(2, 0.3)


TROUBLES: dict[str, Callable[[Life], None]] = {
    "sync is made up for": _sync_is_made_up_for,
    "write is torn": _write_is_torn,
    "end is torn": _end_is_torn,
    "batch is refused": _batch_is_refused,
    "clock at the lock": _clock_at_the_lock,
    "pending and crash": _pending_and_crash,
    "all expires": _all_expires,
}
