"""Each bug that is planted into the core is found by the violation that it plants; without one nothing is found."""

from __future__ import annotations

import pytest

from service.core.calm import Calm
from service.core.shard import Shard
from tests.service.cluster_world import World, story
from tests.service.planted import BUGS, AlwaysCalm

STORIES = 150
"""Most stories that a bug may take to be found."""
FIRST = {
    "lease without reading": 124_160_028,
    "no lease": 124_160_004,
    "named too late": 700,
    "any roll": 124_160_014,
    "cancelled forgotten": 708,
}
"""Where to begin: not far behind it is a story that shows it."""


@pytest.mark.parametrize("name", [*BUGS, "broker not calm"])
def test_a_planted_bug_is_found(name: str) -> None:
    shard, violation = BUGS.get(name, (Shard, "twice"))
    calm = AlwaysCalm if name == "broker not calm" else Calm
    first = FIRST.get(name, 0)
    for seed in range(first, first + STORIES):
        if story(World(seed, shard, calm))[violation]:
            return
    raise AssertionError(f"{name!r} was not found by {violation!r} in {STORIES} stories")
