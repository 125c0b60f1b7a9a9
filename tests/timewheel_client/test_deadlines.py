"""The queue of deadlines ends a request exactly when a timer of its own would, and not one that was answered."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from timewheel_client.net.deadlines import Deadlines


class _Timer:
    def __init__(self, when: float) -> None:
        self._when = when
        self.is_cancelled = False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.is_cancelled = True


class _Loop:
    """The time and the timers of an event loop, moved by hand; it may call a little early, as asyncio's."""

    EARLY_S = 1e-6

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, _Timer, Callable[..., None], tuple[Any, ...]]] = []
        self.made = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[..., None], *args: Any) -> _Timer:
        self.made += 1
        timer = _Timer(when)
        heapq.heappush(self._timers, (when, self.made, timer, call, args))
        return timer

    def go_to(self, moment: float) -> None:
        while self._timers and self._timers[0][0] <= moment:
            when, _, timer, call, args = heapq.heappop(self._timers)
            self.now = max(self.now, when - self.EARLY_S)
            if not timer.is_cancelled:
                call(*args)
        self.now = max(self.now, moment)


def _made(loop: _Loop) -> tuple[Deadlines, dict[int, int], list[tuple[int, float]]]:
    waiting: dict[int, int] = {}
    ended: list[tuple[int, float]] = []

    def expire(opaque: int, code: int, timeout_ms: int) -> None:
        assert (waiting.pop(opaque), code) == (timeout_ms, 10)
        ended.append((opaque, loop.now))

    return Deadlines(cast(asyncio.AbstractEventLoop, loop), waiting, expire), waiting, ended


_SENDS = st.tuples(st.just("send"), st.sampled_from([3_000, 3_000, 3_000, 500, 10_000]))
_REPLIES = st.tuples(st.just("reply"), st.integers(0, 20))
_PAUSES = st.tuples(st.just("pause"), st.sampled_from([0, 1, 499, 501, 2_999, 3_000, 3_001]))


@given(st.lists(st.one_of(_SENDS, _REPLIES, _PAUSES), max_size=60))
def test_a_request_ends_at_its_own_deadline(steps: list[tuple[str, int]]) -> None:
    loop = _Loop()
    deadlines, waiting, ended = _made(loop)
    expected: dict[int, float] = {}
    opaque = 0
    for step, value in steps:
        if step == "send":
            opaque += 1
            waiting[opaque] = value
            expected[opaque] = loop.now + value / 1_000
            deadlines.add(opaque, 10, value)
        elif step == "reply" and waiting:
            answered = list(waiting)[value % len(waiting)]
            del waiting[answered], expected[answered]
        elif step == "pause":
            loop.go_to(loop.now + value / 1_000)
        assert all(expected[number] > loop.now - 1e-9 for number in waiting)
    loop.go_to(loop.now + 100)
    assert not waiting
    assert not len(deadlines)
    assert {number for number, _ in ended} == set(expected)
    assert all(abs(moment - expected[number]) <= 2 * loop.EARLY_S for number, moment in ended)


def test_requests_that_are_answered_in_time_need_one_timer() -> None:
    loop = _Loop()
    deadlines, waiting, ended = _made(loop)
    for opaque in range(10_000):
        waiting[opaque] = 3_000
        deadlines.add(opaque, 10, 3_000)
        if opaque >= 10:
            del waiting[opaque - 10]
        assert len(deadlines) <= 12
        loop.go_to(loop.now + 0.0001)
    waiting.clear()
    loop.go_to(loop.now + 10)
    assert loop.made <= 2
    assert not ended
    assert not len(deadlines)
