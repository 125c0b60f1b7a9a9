"""Whoever finds nothing has to show that it would: every planted bug is found, within `SEEDS` seeds."""

from __future__ import annotations

import pytest

from tests.simulation.crashes import run_seed
from tests.simulation.planted import LARGER_SHARES, PLANTED, SEEDS, SHARE

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    share = LARGER_SHARES.get(name, SHARE)
    with PLANTED[name]():
        found = next((seed for seed in range(SEEDS) if run_seed(seed, share).findings), None)
    assert found is not None, f"{SEEDS} seeds did not find that {name}"
