"""Deliveries in batches in the simulated cluster: 0 lost, 0 early, 0 twice; and rules that are broken are found."""

from __future__ import annotations

import os

import pytest

from tests.service.batch_world import BUGS, BatchWorld
from tests.service.cluster_world import story

SEEDS = int(os.environ.get("SERVICE_SEEDS", "20"))
BEGIN = 123_200_000
STORIES = 30
"""Most stories that a bug may take to be found."""


@pytest.mark.parametrize("first", range(BEGIN, BEGIN + SEEDS, 10))
def test_nothing_is_lost_early_or_twice(first: int) -> None:
    batches = 0
    for seed in range(first, first + 10):
        world = BatchWorld(seed)
        assert not any(story(world).values()), f"seed {seed}"
        batches += world.batches
    assert batches > 100, "few batches: the world shows nothing"


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    node, violation = BUGS[name]
    for seed in range(BEGIN, BEGIN + STORIES):
        if story(BatchWorld(seed, node))[violation]:
            return
    raise AssertionError(f"{name!r} was not found by {violation!r} in {STORIES} stories")
