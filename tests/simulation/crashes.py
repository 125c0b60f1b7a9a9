"""Crash points: seed by seed, call by call, every one of them an end of the world that must not matter.

A crash point is (seed, number of a call of the disk). The story of the seed is told once; at each call that is chosen
a second world branches off from it: its disk is what would be found if machine or process died in the middle of this
very call, its ledger what clients know by then. It recovers, goes on, comes to its end (`tests.simulation.life`).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection
from random import Random

from tests.simulation.baton import Deadlock
from tests.simulation.kinds import Kind, Violation
from tests.simulation.life import Aftermath, Life, draw_keep
from tests.simulation.world import World
from tests.support.simdisk import PowerCut

__all__ = ["Finding", "Tally", "replay_line", "run_job", "run_seed"]


class Finding:
    """A promise that was broken: which, where, and how to see it again."""

    def __init__(self, seed: int, call: int | None, error: BaseException) -> None:
        self.seed = seed
        self.call = call
        self.kind = kind_of(error)
        self.text = "".join(traceback.format_exception(error)) if self.kind is Kind.ERROR else str(error)

    def __str__(self) -> str:
        return f"{self.text}\n  again: {replay_line(self.seed, self.call)}"


def kind_of(error: BaseException) -> Kind:
    """What kind of finding an exception is that ended a story."""
    if isinstance(error, Violation):
        return error.kind
    return Kind.STUCK if isinstance(error, Deadlock) else Kind.ERROR


class Tally:
    """What was run."""

    def __init__(self) -> None:
        self.seeds = 0
        self.calls = 0
        self.points = 0
        self.messages = 0
        self.starts = 0
        self.findings: list[Finding] = []

    def add(self, other: Tally) -> None:
        """Add what another one has."""
        self.seeds += other.seeds
        self.calls += other.calls
        self.points += other.points
        self.messages += other.messages
        self.starts += other.starts
        self.findings += other.findings


def replay_line(seed: int, call: int | None) -> str:
    """The command that shows it."""
    return f"python -m tests.simulation --seed {seed}" + ("" if call is None else f" --crash {call}")


def run_job(job: tuple[int, float]) -> Tally:
    """Run a (seed, share of its calls), for a process of its own."""
    logging.getLogger("broker").setLevel(logging.CRITICAL)
    return run_seed(*job)


class _Enough(BaseException):
    """The one crash point that was asked for is done."""


class _Points:
    """The crash points of one seed: at which calls there is one, and the story after each."""

    def __init__(
        self, seed: int, share: float, only: int | None, say: Callable[[str], None] | None, stop_at: Collection[Kind]
    ) -> None:
        self.tally = Tally()
        self._seed = seed
        self._share = share
        self._only = only
        self._say = say
        self._stop_at = stop_at
        self._choose = Random(f"{seed} chosen")

    def probe(self, world: World, call: int) -> None:
        """Before a call of the disk: crash here, if it is one of the points."""
        if self._only is not None:
            if call == self._only:
                self._crash(world, call)
                raise _Enough
            return
        if self._choose.random() < self._share:
            self._crash(world, call)

    def _crash(self, world: World, call: int) -> None:
        rng = Random(f"{self._seed} {call}")
        keep = draw_keep(rng)
        ledger = world.ledger.clone()
        world.note_crash(ledger, keep)
        self.tally.points += 1
        tell = self._say if self._only is not None else None
        if tell is not None:
            tell(
                "-- the process is killed" if keep is None else f"-- the power fails, {keep:.0%} of what is dirty stays"
            )
        story = Aftermath(world, rng, keep, ledger, tell)
        try:
            story.run()
        except PowerCut as error:
            raise AssertionError("a power cut that nobody was ready for") from error
        except (Violation, Deadlock, Exception) as error:
            found = Finding(self._seed, call, error)
            self.tally.findings.append(found)
            if found.kind in self._stop_at:
                raise _Enough from error
        finally:
            self.tally.calls += story.world.calls
            self.tally.starts += story.world.starts
            story.world.disk.fault = None


def run_seed(
    seed: int,
    share: float = 0.0,
    only: int | None = None,
    say: Callable[[str], None] | None = None,
    first: bool = True,
    until: Collection[Kind] = tuple(Kind),
    fond: str = "",
    keys: bool = True,
    order: bool = True,
) -> Tally:
    """Tell a seed's story, with crash points at a share of its calls, or at ``only`` one of them.

    ``first``: stop at the first finding of a kind in ``until``. ``fond``, ``keys``, ``order``: see `Life`. The tally
    has what was run and found.
    """
    points = _Points(seed, share, only, say, until if first else ())
    tally = points.tally
    life = Life(seed, points.probe if share or only is not None else None, say, fond=fond, keys=keys, order=order)
    try:
        life.run()
    except _Enough:
        pass
    except (Violation, Deadlock, Exception) as error:
        tally.findings.append(Finding(seed, None, error))
    finally:
        if life.world.baton is not None:
            life.world.bury()
    if only is not None and not tally.points and not tally.findings:
        raise ValueError(f"seed {seed} has only {life.world.calls} calls of the disk")
    tally.seeds += 1
    tally.calls += life.world.calls
    tally.messages += len(life.world.ledger.sent)
    tally.starts += life.world.starts
    return tally
