"""The ledger of the simulated cluster: 0 lost, 0 early, 0 twice, whatever happens; and planted bugs are found."""

from __future__ import annotations

import os

import pytest

from tests.service.cluster_world import HarshWorld, World, story

SEEDS = int(os.environ.get("SERVICE_SEEDS", "20"))
FAIR = {"lost": 0, "early": 0, "twice": 0, "undead": 0, "wrong": 0}


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_nothing_is_lost_early_or_twice(first: int) -> None:
    for seed in range(first, first + 10):
        assert story(World(seed)) == FAIR, f"seed {seed}"


def test_nor_when_a_quarter_of_all_requests_fails() -> None:
    for seed in range(SEEDS // 5):
        assert story(HarshWorld(seed)) == FAIR, f"seed {seed}"
