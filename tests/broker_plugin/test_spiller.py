"""The spiller asks for the checkpoint that lets files go, idle or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_plugin.spiller import IDLE_MS, PAUSE_MS, REST_BLOCK_MS, REST_LOOK_MS, REST_MAX_MS, TIDY_EVERY_MS, Spiller


class Spill:
    def __init__(self, more: bool, unsaved: bool, now_ms: int = 5) -> None:
        self.now_ms = now_ms
        self.more = more
        self.unsaved = unsaved
        self.pending_count = 3
        self.steps: list[tuple[int, bool]] = []

    def spill_step(self, now_ms: int, *, patient: bool) -> bool:
        assert now_ms == self.now_ms
        self.steps.append((now_ms, patient))
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
    wake_ms = Spiller(spill, lambda: False, checkpoint).step(5)
    assert wake_ms == (5 if more else 5 + PAUSE_MS)
    assert checkpoint.touched == unsaved


def test_it_looks_less_often_while_nothing_changes() -> None:
    spill: Any = Spill(more=False, unsaved=False)
    spiller = Spiller(spill, lambda: False, Checkpoint())  # type: ignore[arg-type]
    assert [spiller.step(5), spiller.step(5)] == [5 + PAUSE_MS, 5 + IDLE_MS]
    spill.pending_count += 1
    assert [spiller.step(5), spiller.step(5)] == [5 + PAUSE_MS, 5 + IDLE_MS]


@pytest.mark.parametrize("more", [False, True])
def test_what_is_old_is_removed_also_while_there_is_more_to_do(more: bool) -> None:
    spill: Any = Spill(more, unsaved=False)
    spiller = Spiller(spill, lambda: False, Checkpoint())  # type: ignore[arg-type]
    told: list[int] = []
    spiller.tidy = told.append
    times = [TIDY_EVERY_MS + 5, TIDY_EVERY_MS + 6, 2 * TIDY_EVERY_MS + 4, 2 * TIDY_EVERY_MS + 5, 3]
    for spill.now_ms in times:
        spiller.step(spill.now_ms)
    assert told == [times[0], times[3], times[4]]  # the last one: the clock was set back


class Day:
    """A spiller that is stepped when it wants to be; a step with patient work takes a millisecond."""

    def __init__(self) -> None:
        self.late: Callable[[int], bool] = lambda _: False
        self.spill: Any = Spill(more=False, unsaved=False)
        self.spiller = Spiller(self.spill, lambda: self.late(self.spill.now_ms), Checkpoint())  # type: ignore[arg-type]

    def worked_ms(self, length_ms: int) -> int:
        """Let time pass, with copies to do all the time; returns how much of it they had."""
        spill, worked = self.spill, 0
        end_ms = spill.now_ms + length_ms
        while spill.now_ms < end_ms:
            seen = len(spill.steps)
            wake_ms = self.spiller.step(spill.now_ms)
            if len(spill.steps) > seen and spill.steps[-1][1]:
                spill.now_ms += 1
                worked += 1
            else:
                spill.now_ms = max(wake_ms, spill.now_ms + 1)
        return worked


def test_patient_work_rests_while_deliveries_are_late_but_not_for_ever() -> None:
    """A flood of messages that are due much later leaves gigabytes to copy; a hot second must not share with that."""
    day = Day()
    assert day.worked_ms(5_000) == 5_000
    day.late = lambda _: True
    assert day.worked_ms(REST_MAX_MS) < 10
    assert day.worked_ms(100_000) == pytest.approx(50_000, abs=2 * REST_BLOCK_MS), "then half of the time"
    day.late = lambda _: False
    assert day.worked_ms(10_000) > 9_990
    day.late = lambda _: True
    assert day.worked_ms(5_000) < 10, "what was worked may be rested"
    day.spill.now_ms -= 3_600_000  # the clock was set back
    assert day.worked_ms(3_000) < 10
    day.late = lambda _: False
    assert day.worked_ms(5_000) > 4_990


def test_short_spells_of_lateness_cost_a_hot_second_no_rest() -> None:
    day = Day()
    day.late = lambda now_ms: now_ms % 5 < 2
    assert day.worked_ms(10 * REST_MAX_MS) > 3 * REST_MAX_MS
    day.late = lambda _: True
    assert day.worked_ms(REST_MAX_MS // 2) < 10


def test_a_spiller_that_rests_looks_soon_whether_it_may_go_on_and_at_the_rest_as_seldom_as_ever() -> None:
    day = Day()
    day.late = lambda _: True
    day.worked_ms(1_000)
    steps = [now_ms for now_ms, _ in day.spill.steps]
    assert len(steps) <= 2 + 1_000 // PAUSE_MS
    assert day.spiller.step(day.spill.now_ms) == day.spill.now_ms + REST_LOOK_MS
    day.late = lambda _: False
    before = len(day.spill.steps)
    day.spiller.step(day.spill.now_ms)
    assert day.spill.steps[before:] == [(day.spill.now_ms, True)]
    day.late = lambda _: True
    day.spill.more = True
    day.spill.now_ms += IDLE_MS
    assert day.spiller.step(day.spill.now_ms) == day.spill.now_ms
