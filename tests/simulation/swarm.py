"""What a seed is fond of: each draws which operations, faults and threads are frequent with it, and which never come.

If everything may happen everywhere, what needs five things of one kind in a row hardly ever happens: with one seed the
disk never syncs, with the next one reads fail all the time, with another one the network loop stands still. This is
known as *swarm testing* (Groce and others, 2012); that some threads stand still for long is due to probabilistic
concurrency testing (Burckhardt and others, 2010).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

__all__ = ["Swarm"]

ACTORS = ("loop", "commands", "flusher", "housekeeper", "levels", "sweeper", "recovery", "spiller", "tables", "reviver")
HAPPENS = {
    "send": 46,
    "command": 8,
    "decide": 4,
    "pull": 5,
    "pop": 12,
    "reads": 4,
    "wait": 11,
    "stand still": 3,
    "one stands still": 3,
    "break": 12,
    "power": 3,
    "crash": 2,
    "fail and crash": 4,
    "restart": 2,
    "derive anew": 1,
    "names": 3,
    "lost deliveries": 3,
    "between slices": 7,
    "topic away": 1,
    "roll": 1,
    "level fails": 1,
}
SENDS = {"timed": 45, "batch": 15, "crowd": 12, "now": 14, "level": 6, "half": 5, "wild": 4, "past": 3}
BREAKS = {"clock": 30, "topic": 6, "missing": 4, "room": 10, "disk": 30, "pair": 20}
_SHARES = (0.0, 0.3, 1.0, 1.0, 1.0, 4.0)
_FOCUS = (1.0, 1.0, 1.0, 10.0)


class Swarm:
    """The habits of one seed."""

    def __init__(self, rng: Random) -> None:
        self.happens = _weighed(HAPPENS, rng, ("send", "wait"))
        self.sends = _weighed(SENDS, rng, ("timed",))
        self.breaks = _weighed(BREAKS, rng, ())
        self.calm = rng.random() < 0.4
        """Whether the disk never fails but for crashes, and the clock is never set."""
        if self.calm:
            for name in ("break", "reads", "fail and crash", "level fails"):
                self.happens[name] = 0.0
        self.hostile = rng.choice((0.0, 0.1, 0.6))
        """Share of the messages that have bytes in them that nobody would send."""
        self.clock_at_lock = 0.0 if self.calm else rng.choice((0.0, 0.0, 0.01, 0.05))
        """How often the clock is set while somebody waits to append."""
        self.freeze = rng.choice((0.0, 0.0, 0.02, 0.1))
        """How often a thread stands still in the middle of something, while the others go on."""
        self.actors = {name: rng.choice((1.0, 1.0, 1.0, 0.1, 5.0)) for name in ACTORS}
        self.reread = rng.choice((0.1, 0.1, 0.6)) if not self.calm else 0.0
        """How often reads fail after a crash."""
        self.second = rng.choice((0.0, 0.2, 0.5))
        """Share of the sends that come from a second client, over a connection that may end at any time."""
        self.settings = rng.choice((0.0, 0.0, 0.1, 0.6))
        """How often the next start has other settings."""
        self.batch_acks = 0.0
        """How often several messages are acknowledged by one request."""

    def keep_keys(self, habits: Random) -> dict[str, str]:
        """Have delay keys, and changes of what is pending, in some stories; answers settings of the broker.

        Drawn from a source of its own, so that all other stories stay as they are.
        """
        self.happens["pending"] = float(habits.choice((0, 0, 8, 30)))
        if not self.happens["pending"]:
            return {}
        limits = {"timewheelPendingMax": (0, 0, 0, 6, 15), "timewheelTopicPendingMax": (0, 0, 3, 8)}
        drawn = {name: habits.choice(values) for name, values in limits.items()}
        return {name: str(value) for name, value in drawn.items() if value}

    def keep_order(self, habits: Random) -> None:
        """Have pops in order, and acknowledgements of several messages at once, in some stories; drawn as above."""
        self.happens["pop in order"] = float(habits.choice((0, 0, 8, 30)))
        self.batch_acks = habits.choice((0.0, 0.0, 0.3, 0.7))

    def be_fond_of(self, name: str) -> None:
        """Let one of the things that happen be half of them all."""
        self.happens[name] = 0.0
        self.happens[name] = sum(self.happens.values())

    def draw(self, weights: Mapping[str, float], rng: Random) -> str:
        """One of them, by its weight."""
        left = rng.random() * sum(weights.values())
        name = ""
        for name, weight in weights.items():
            left -= weight
            if left < 0:
                return name
        return name


def _weighed(base: Mapping[str, float], rng: Random, always: tuple[str, ...]) -> dict[str, float]:
    """Weights of one seed: some things never, some four times as often, one perhaps ten times."""
    drawn = {name: weight * rng.choice(_SHARES) for name, weight in base.items()}
    for name in always:
        drawn[name] = max(drawn[name], base[name] * 0.5)
    if not sum(drawn.values()):
        return dict(base)
    focus = rng.choice(list(base))
    drawn[focus] = max(drawn[focus], base[focus]) * rng.choice(_FOCUS)
    return drawn
