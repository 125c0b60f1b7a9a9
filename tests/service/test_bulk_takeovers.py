"""A bulk cancel of thousands while owners are killed in its midst: every verdict that was told is true.

Told ``done``: never delivered. Told ``too_late``: delivered. Each command has one verdict in the end, nothing that
nobody cancelled is lost, nothing goes out twice.
"""

from __future__ import annotations

import os

import pytest

from service.core import commands
from tests.service.bulk_world import BulkWorld, bulk_story
from tests.service.planted import BUGS

FAIR = {"lost": 0, "early": 0, "twice": 0, "undead": 0, "wrong": 0}
STEPS = int(os.environ.get("BULK_STEPS", "4"))
COUNT = 2000


@pytest.mark.parametrize("nth", range(STEPS))
def test_owners_are_killed_at_each_step(nth: int) -> None:
    """Every 300 to 1,900 records of the bulk the owner dies: each time somewhere else."""
    step = 300 + (nth * 397) % 1600
    world = BulkWorld(1000 + nth, step=step)
    assert bulk_story(world, COUNT) == FAIR, f"seed {1000 + nth}, step {step}"
    assert world.kills >= 2
    told = {verdict for verdicts in world.verdicts.values() for verdict in verdicts}
    assert {"done", "already"} <= told <= {"done", "already", "too_late"}


@pytest.mark.parametrize("seed", range(2))
def test_when_more_are_cancelled_than_are_known(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Of what was forgotten nobody says that it was delivered, nor that it was not."""
    monkeypatch.setattr(commands, "CANCELLED_MAX", 300)
    world = BulkWorld(2000 + seed, step=700)
    world.forgetful = True
    assert bulk_story(world, COUNT) == FAIR
    told = [verdict for verdicts in world.verdicts.values() for verdict in verdicts]
    assert told.count("unknown") and told.count("already")


@pytest.mark.parametrize("name", ["decided in doubt", "cancelled and delivered"])
def test_a_planted_bug_is_found(name: str) -> None:
    shard, violation = BUGS[name]
    for seed in range(10):
        if bulk_story(BulkWorld(3000 + seed, shard, step=500), 600)[violation]:
            return
    raise AssertionError(f"{name!r} was not found by {violation!r} in 10 stories")
