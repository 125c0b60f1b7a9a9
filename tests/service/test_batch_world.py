"""Deliveries in batches in the simulated cluster: 0 lost, 0 early, 0 twice; and rules that are broken are found."""

from __future__ import annotations

import pytest

from tests.service.batch_world import BUGS, BatchWorld
from tests.service.cluster_world import story
from tests.support.examples import seeds

BEGIN = 123_200_000
STORIES = 30
"""Most stories that a bug may take to be found."""


def test_nothing_is_lost_early_or_twice() -> None:
    batches, told = 0, seeds(20, BEGIN)
    for seed in told:
        world = BatchWorld(seed)
        assert not any(story(world).values()), f"seed {seed}"
        batches += world.batches
    assert batches > 10 * len(told), "few batches: the world shows nothing"


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    node, violation = BUGS[name]
    for seed in range(BEGIN, BEGIN + STORIES):
        if story(BatchWorld(seed, node))[violation]:
            return
    raise AssertionError(f"{name!r} was not found by {violation!r} in {STORIES} stories")
