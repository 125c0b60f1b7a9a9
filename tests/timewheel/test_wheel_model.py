"""The wheel against a sorted list, at sizes where every boundary is a few milliseconds away."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sortedcontainers import SortedList

from tests.support.examples import examples
from timewheel import TimingWheel
from timewheel.check import problems_of

near = st.integers(-3, 40)
far = st.one_of(st.integers(0, 300), st.integers(0, 5_000), st.integers(0, 2**47))


class WheelAgainstSortedList(RuleBasedStateMachine):
    """Every rule is done to the wheel and to a list of (due, sequence, item) that is kept in order."""

    wheel: TimingWheel
    now_ms: int

    @initialize(
        slot_bits=st.integers(1, 3),
        levels=st.integers(2, 4),
        slot_limit=st.integers(1, 6),
        now_ms=st.one_of(st.integers(0, 70), st.integers(0, 2**45)),
    )
    def start(self, slot_bits: int, levels: int, slot_limit: int, now_ms: int) -> None:
        self.wheel = TimingWheel(now_ms, slot_bits, levels, slot_limit)
        self.now_ms = now_ms
        self.sequence = 0
        self.model: Any = SortedList()
        self.live: dict[int, tuple[int, int, int]] = {}
        self.gone: list[int] = []

    def add(self, handle: int, due_ms: int, item: int) -> None:
        assert handle and handle not in self.live and handle not in self.gone
        self.sequence += 1
        self.live[handle] = (due_ms, self.sequence, item)
        self.model.add((due_ms, self.sequence, item, handle))

    def drop(self, handle: int) -> int:
        due_ms, sequence, item = self.live.pop(handle)
        self.model.remove((due_ms, sequence, item, handle))
        self.gone.append(handle)
        return item

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.live)))

    @rule(delay=st.one_of(near, far), item=st.integers(0, 2**128 - 1))
    def insert(self, delay: int, item: int) -> None:
        self.add(self.wheel.insert(self.now_ms + delay, item), self.now_ms + delay, item)

    @rule(delays=st.lists(st.one_of(near, far), max_size=12), ordered=st.booleans())
    def insert_many(self, delays: list[int], ordered: bool) -> None:
        dues = [self.now_ms + delay for delay in (sorted(delays) if ordered else delays)]
        handles = self.wheel.insert_many(dues, list(range(len(dues))))
        for handle, due_ms, item in zip(handles, dues, range(len(dues)), strict=True):
            self.add(handle, due_ms, item)

    @rule(delay=st.one_of(near, far), count=st.integers(2, 25))
    def insert_equal(self, delay: int, count: int) -> None:
        for item in range(count):
            self.insert(delay, item)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        handle = self.pick(data)
        self.drop(handle)
        assert self.wheel.cancel(handle)
        assert not self.wheel.cancel(handle)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), delay=st.one_of(near, far))
    def move(self, data: st.DataObject, delay: int) -> None:
        handle = self.pick(data)
        item = self.drop(handle)
        moved = self.wheel.move(handle, self.now_ms + delay)
        assert not self.wheel.move(handle, 0)
        self.add(moved, self.now_ms + delay, item)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def a_stale_handle_is_refused(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.gone))
        assert not self.wheel.cancel(handle)
        assert self.wheel.move(handle, self.now_ms) == 0

    @rule(step=st.one_of(st.integers(0, 3), near, far), limit=st.integers(1, 7), once=st.booleans())
    def advance(self, step: int, limit: int, once: bool) -> None:
        self.now_ms = max(self.now_ms + step, 0)
        self.drain(limit, 1 if once else 10_000)

    @rule(step=st.integers(0, 5_000), limit=st.integers(1, 7))
    def clock_goes_back(self, step: int, limit: int) -> None:
        self.now_ms = max(self.now_ms - step, 0)
        self.drain(limit, 10_000)

    @precondition(lambda self: self.live)
    @rule(limit=st.integers(1, 7))
    def go_to_the_next_wake(self, limit: int) -> None:
        wake_ms = self.wheel.next_wake_ms()
        assert wake_ms is not None
        self.now_ms = max(self.now_ms, wake_ms)
        self.drain(limit, 10_000)

    @precondition(lambda self: self.live)
    @rule(limit=st.integers(1, 7), rearm=near)
    def fire_and_rearm(self, limit: int, rearm: int) -> None:
        self.now_ms = max(self.now_ms, self.model[0][0])
        _, items = self.drain(limit, 1)
        for item in items:
            self.insert(rearm, item)

    def drain(self, limit: int, calls: int) -> tuple[list[int], list[int]]:
        dues: list[int] = []
        items: list[int] = []
        for _ in range(calls):
            dues, items = self.wheel.advance(self.now_ms, limit)
            assert len(dues) == len(items) <= limit
            expected = [key for key in self.model[:limit] if key[0] <= self.now_ms]
            assert list(zip(dues, items, strict=True)) == [(key[0], key[2]) for key in expected]
            for key in expected:
                self.drop(key[3])
            if not dues:
                break
        return dues, items

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "wheel"):
            return
        assert problems_of(self.wheel) == []
        assert len(self.wheel) == len(self.model)
        wake_ms = self.wheel.next_wake_ms()
        assert (wake_ms is None) == (not self.model)
        if wake_ms is not None:
            assert wake_ms <= self.model[0][0]

    def teardown(self) -> None:
        if not hasattr(self, "wheel"):
            return
        # Sleeping until each next wake gets at everything, at its millisecond, in few steps.
        for _ in range(100 * len(self.model) + 10):
            wake_ms = self.wheel.next_wake_ms()
            if wake_ms is None:
                break
            self.now_ms = max(self.now_ms, wake_ms)
            self.drain(5, 10_000)
        assert not self.model
        assert problems_of(self.wheel) == []


class TestWheelAgainstSortedList(WheelAgainstSortedList.TestCase):
    settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
