"""Rolls and verdicts are true where they stand in the queue, whatever is read between a look and a decision."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.clerk_world import ClerkWorld
from tests.support.examples import seeds

SEEDS = seeds(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_roll_and_every_verdict_is_true(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = asyncio.run(ClerkWorld(seed, monkeypatch).story())
    assert told.faults == []
    assert told.rolls > 10 and told.changes > 10


@pytest.mark.parametrize("seed", SEEDS)
def test_so_they_are_when_a_quarter_of_everything_fails(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and writes of the cache, connections, pulls; rolls and verdicts get no answer several times in a row."""
    told = asyncio.run(ClerkWorld(seed, monkeypatch, harsh=True).story())
    assert told.faults == []
    assert told.rolls > 3 and told.changes > 10
