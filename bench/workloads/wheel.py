"""The timing wheel compared with other timers of Python, in one process: nanoseconds a timer, in turn, repeatedly.

Each part inserts timers with random due times over an hour, fires them as the clock goes on, and cancels them
in random order (heapq by a tombstone; a tombstone's cost at firing is its own). Processor time is measured.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import time
from collections.abc import Callable
from typing import Any

from sortedcontainers import SortedList

from bench.figures.results import Case, Section
from bench.running.session import Session
from bench.workloads import wheel_bench

__all__ = ["PARTS", "run"]

_SPAN_MS = 3_600_000
_STEP_MS = 1_000
_START_MS = 1_700_000_000_000
_MOST_SLOW = 200_000  # of those whose cost a timer hardly depends on the number

Times = dict[str, float]


def run(session: Session) -> Section:
    """Measure each part."""
    section = Section("wheel", "The wheel beside other timers, in one process")
    section.note("loops round the calls are measured with them: about 30 ns; cancelling in heapq marks a dictionary")
    for count in (50_000,) if session.quick else (100_000, 1_000_000):
        case: Case = {"timers": count}
        for repeat in range(session.repeats):
            rng = random.Random(repeat)
            dues = [_START_MS + rng.randrange(_SPAN_MS) for _ in range(count)]
            for name, part in PARTS.items():
                session.say(f"wheel, {count:,} timers: {name} ({repeat + 1} of {session.repeats})")
                gc.collect()
                gc.disable()
                try:
                    times = part(dues, rng)
                finally:
                    gc.enable()
                for metric, nanoseconds in times.items():
                    section.add(name, case, metric, "ns", "lower", round(nanoseconds, 1))
    return section


def _ns(started: int, count: int) -> float:
    return (time.process_time_ns() - started) / count


def _wheel(dues: list[int], rng: random.Random) -> Times:
    found = wheel_bench.wheel_times(dues, list(range(len(dues))), rng)
    return {name: found[f"wheel_{name}_ns"] for name in ("insert", "fire", "cancel")}


def _heap(dues: list[int], rng: random.Random) -> Times:
    """Tuples on a heap, as most write it; a cancelled one is found when it comes up."""
    heap: list[tuple[int, int]] = []
    push, pop = heapq.heappush, heapq.heappop
    started = time.process_time_ns()
    for number, due_ms in enumerate(dues):
        push(heap, (due_ms, number))
    times = {"insert": _ns(started, len(dues))}
    order = list(range(len(dues)))
    rng.shuffle(order)
    cancelled: set[int] = set()
    cancel = cancelled.add
    started = time.process_time_ns()
    for number in order:
        cancel(number)
    times["cancel"] = _ns(started, len(dues))
    return {**times, "fire": _fire(heap, pop, lambda key: key[0], len(dues))}


def _packed_heap(dues: list[int], rng: random.Random) -> Times:
    """Due time and number in one integer: nothing to compare but that."""
    del rng
    heap: list[int] = []
    push, pop = heapq.heappush, heapq.heappop
    started = time.process_time_ns()
    for number, due_ms in enumerate(dues):
        push(heap, due_ms << 20 | number)
    times = {"insert": _ns(started, len(dues))}
    return {**times, "fire": _fire(heap, pop, lambda key: key >> 20, len(dues))}


def _fire(heap: list[Any], pop: Callable[[list[Any]], Any], due_of: Callable[[Any], int], count: int) -> float:
    started = time.process_time_ns()
    now_ms, fired = _START_MS, 0
    while heap:
        while heap and due_of(heap[0]) <= now_ms:
            pop(heap)
            fired += 1
        now_ms += _STEP_MS
    assert fired == count, fired
    return _ns(started, count)


def _sorted_list(dues: list[int], rng: random.Random) -> Times:
    count = min(len(dues), _MOST_SLOW)
    keys = list(zip(dues[:count], range(count), strict=False))
    timers: Any = SortedList()
    started = time.process_time_ns()
    for key in keys:
        timers.add(key)
    times = {"insert": _ns(started, count)}
    started = time.process_time_ns()
    while timers:
        timers.pop(0)
    times["fire"] = _ns(started, count)
    timers = SortedList(keys)
    rng.shuffle(keys)
    started = time.process_time_ns()
    for key in keys:
        timers.remove(key)
    return {**times, "cancel": _ns(started, count)}


def _call_at(dues: list[int], rng: random.Random) -> Times:
    """asyncio's own timers; they fire at a clock that stands beyond all of them."""
    count = min(len(dues), _MOST_SLOW)
    loop = asyncio.new_event_loop()
    fired: list[int] = []
    try:
        base, take = loop.time() + 1000, fired.append
        started = time.process_time_ns()
        handles = [loop.call_at(base + (due_ms - _START_MS) / 1000, take, 1) for due_ms in dues[:count]]
        times = {"insert": _ns(started, count)}
        rng.shuffle(handles)
        started = time.process_time_ns()
        for handle in handles:
            handle.cancel()
        times["cancel"] = _ns(started, count)
        past = loop.time() - 10_000
        for due_ms in dues[:count]:
            loop.call_at(past + (due_ms - _START_MS) / 1000, take, 1)
        started = time.process_time_ns()
        loop.call_soon(loop.stop)
        loop.run_forever()
        while len(fired) < count:
            loop.call_soon(loop.stop)
            loop.run_forever()
        times["fire"] = _ns(started, count)
    finally:
        loop.close()
    return times


PARTS: dict[str, Callable[[list[int], random.Random], Times]] = {
    "timewheel": _wheel,
    "heapq": _heap,
    "packed heapq": _packed_heap,
    "SortedList": _sorted_list,
    "asyncio.call_at": _call_at,
}
