"""Whoever finds nothing has to show that it would: every planted bug is found by what it does, within `SEEDS` seeds."""

from __future__ import annotations

import pytest

from store.disk.flusher import Flusher
from tests.simulation.crashes import run_seed
from tests.simulation.kinds import Kind
from tests.simulation.plant import ERRORS, SEEDS, Plant, PlantError, swap
from tests.simulation.planted import PLANTED
from tests.simulation.troubles import TROUBLES

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    plant = PLANTED[name]
    others: dict[str, int] = {}
    with plant():
        for seed in plant.seeds():
            tally = run_seed(seed, plant.share, until=plant.kinds, fond=plant.fond, keys=plant.keys, order=plant.order)
            for finding in tally.findings:
                if finding.kind in plant.kinds:
                    assert not ERRORS, f"the plant itself fails: {ERRORS[0]}"
                    return
                others[finding.kind.name] = others.get(finding.kind.name, 0) + 1
    kinds = sorted(kind.name for kind in plant.kinds)
    raise AssertionError(f"{SEEDS} seeds did not find by {kinds} that {name}; other findings: {others}")


@pytest.mark.parametrize("fond", TROUBLES)
def test_troubles_alone_break_nothing(fond: str) -> None:
    """Else a plant might be "found" by what the product does without it."""
    for seed in range(2):
        tally = run_seed(seed, fond=fond, keys=fond.startswith("pending"), order=False)
        assert not tally.findings, "\n".join(map(str, tally.findings))


@pytest.mark.parametrize("wrong", [lambda: None, lambda *_: None.nothing])  # type: ignore[attr-defined]
def test_a_plant_that_only_raises_proves_nothing(wrong: object) -> None:
    """A signature that is stale, an attribute that is gone: no findings, and an error of its own kind."""
    assert callable(wrong)
    with Plant(swap((Flusher, "_sync_periodic", wrong)), Kind.LOST)(), pytest.raises(PlantError):
        run_seed(0, 0.02)
    assert ERRORS
