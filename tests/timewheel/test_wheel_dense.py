"""Dense random histories: many ties, many runs at once, cancelled timers cleared away while slots are being drained."""

from __future__ import annotations

import random

import pytest
from sortedcontainers import SortedList

import timewheel.dial
import timewheel.wheel
from timewheel import TimingWheel
from timewheel.check import problems_of


@pytest.mark.parametrize("seed", range(50))
def test_dense_histories_agree_with_a_sorted_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (timewheel.dial, timewheel.wheel):
        monkeypatch.setattr(module, "CLEAR_MASK", 1)
    monkeypatch.setattr(timewheel.dial, "_CLEAR_AT_LEAST", 2)
    monkeypatch.setattr(timewheel.dial, "_NEAR_MISSES", 3)
    monkeypatch.setattr(timewheel.dial, "WORN_OUT", 1 << 31 if seed % 2 else 20)
    rng = random.Random(seed)
    now_ms = rng.randrange(1000)
    wheel = TimingWheel(now_ms, rng.randint(1, 2), rng.randint(2, 4), rng.choice((1, 2, 3, 50)))
    span = rng.choice((8, 30, 100))
    model = SortedList()
    live: dict[int, tuple[int, int]] = {}
    for sequence in range(1500):
        choice = rng.random()
        if choice < 0.55 or not live:
            due_ms = now_ms + rng.randrange(-1, span)
            handle = wheel.insert(due_ms, sequence)
            live[handle] = (due_ms, sequence)
            model.add((due_ms, sequence, handle))
        elif choice < 0.75:
            handle = rng.choice(list(live))
            due_ms, item = live.pop(handle)
            model.remove((due_ms, item, handle))
            assert wheel.cancel(handle)
        else:
            now_ms = max(0, now_ms + rng.choice((0, 0, 1, 1, 2, span // 4, -1)))
            limit = rng.choice((1, 2, 5))
            due = [key for key in model[:limit] if key[0] <= now_ms]
            assert wheel.advance(now_ms, limit) == ([key[0] for key in due], [key[1] for key in due])
            for key in due:
                model.remove(key)
                del live[key[2]]
        if sequence % 7 == 0:
            assert problems_of(wheel) == []
        wake_ms = wheel.next_wake_ms()
        assert (wake_ms is None) == (not model)
        assert wake_ms is None or wake_ms <= model[0][0]
