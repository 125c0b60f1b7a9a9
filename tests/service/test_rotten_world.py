"""Takeover and progress records that rot, many at once: the ledger stays fair; and rules that are broken are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.core.lines import Line, LineKind
from service.core.progress import Picture
from service.core.shard import Shard
from service.core.takeovers import Takeovers
from tests.service.cluster_world import World, story
from tests.service.rotten_world import RottenWorld, TornWorld
from tests.support.examples import seeds


@pytest.mark.parametrize("kind", [RottenWorld, TornWorld])
def test_nothing_is_lost_early_or_twice(kind: Callable[[int], World]) -> None:
    for seed in seeds(10):
        assert not any(story(kind(seed)).values()), f"seed {seed}"


class AsRead(Takeovers):
    """What the progress has noted of takeovers does not count, only what can be read."""

    def _adopt(self, picture: Picture, read_to: int) -> None:
        del picture, read_to

    def learn(self, picture: Picture, read_to: int) -> bool:
        del picture, read_to
        return True


class OnlyRecords(AsRead):
    """Nor does what stands behind a takeover record."""

    def begins_at(self, line: Line) -> int:
        return line.offset if line.kind is LineKind.TAKEOVER else -1


@pytest.mark.parametrize(("takeovers", "violation"), [(AsRead, "lost"), (OnlyRecords, "early")])
def test_a_planted_bug_is_found(takeovers: type[Takeovers], violation: str) -> None:
    def make(name: str) -> Shard:
        shard = Shard(name)
        shard.takeovers = takeovers()
        return shard

    for seed in range(40):
        world = RottenWorld(seed)
        world.make_shard = make
        if story(world)[violation]:
            return
    raise AssertionError(f"{takeovers.__name__} was not found by {violation!r} in 40 stories")
