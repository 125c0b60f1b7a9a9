"""The ledger of the simulated cluster: 0 lost, 0 early, 0 twice, whatever happens; and planted bugs are found."""

from __future__ import annotations

import pytest

from tests.service.cluster_world import HarshWorld, World, story
from tests.support.examples import seeds

FAIR = {"lost": 0, "early": 0, "twice": 0, "undead": 0, "wrong": 0}


@pytest.mark.parametrize("seed", seeds(20))
def test_nothing_is_lost_early_or_twice(seed: int) -> None:
    assert story(World(seed)) == FAIR


@pytest.mark.parametrize("seed", seeds(4))
def test_nor_when_a_quarter_of_all_requests_fails(seed: int) -> None:
    assert story(HarshWorld(seed)) == FAIR
