"""The spiller asks for the checkpoint that lets files go, idle or not."""

from __future__ import annotations

from typing import Any

import pytest

from broker_plugin.spiller import IDLE_MS, PAUSE_MS, TIDY_EVERY_MS, Spiller


class Spill:
    def __init__(self, more: bool, unsaved: bool, now_ms: int = 5) -> None:
        self.now_ms = now_ms
        self.more = more
        self.unsaved = unsaved
        self.pending_count = 3

    def spill_step(self, now_ms: int, frontier_ms: int) -> bool:
        assert (now_ms, frontier_ms) == (self.now_ms, 7)
        return self.more


class Checkpoint:
    touched = 0

    def touch(self) -> None:
        self.touched += 1


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("unsaved", [False, True])
def test_a_checkpoint_is_asked_for_also_while_there_is_more_to_do(more: bool, unsaved: bool) -> None:
    """In a flood there always is; segments that an index has taken over would stay in memory until its end."""
    checkpoint: Any = Checkpoint()
    spill: Any = Spill(more, unsaved)
    wake_ms = Spiller(spill, lambda: 7, checkpoint).step(5)
    assert wake_ms == (5 if more else 5 + PAUSE_MS)
    assert checkpoint.touched == unsaved


def test_it_looks_less_often_while_nothing_changes() -> None:
    spill: Any = Spill(more=False, unsaved=False)
    spiller = Spiller(spill, lambda: 7, Checkpoint())  # type: ignore[arg-type]
    assert [spiller.step(5), spiller.step(5)] == [5 + PAUSE_MS, 5 + IDLE_MS]
    spill.pending_count += 1
    assert [spiller.step(5), spiller.step(5)] == [5 + PAUSE_MS, 5 + IDLE_MS]


@pytest.mark.parametrize("more", [False, True])
def test_what_is_old_is_removed_also_while_there_is_more_to_do(more: bool) -> None:
    spill: Any = Spill(more, unsaved=False)
    spiller = Spiller(spill, lambda: 7, Checkpoint())  # type: ignore[arg-type]
    told: list[int] = []
    spiller.tidy = told.append
    times = [TIDY_EVERY_MS + 5, TIDY_EVERY_MS + 6, 2 * TIDY_EVERY_MS + 4, 2 * TIDY_EVERY_MS + 5, 3]
    for spill.now_ms in times:
        spiller.step(spill.now_ms)
    assert told == [times[0], times[3], times[4]]  # the last one: the clock was set back
