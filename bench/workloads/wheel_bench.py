"""The wheel in detail: nanoseconds and bytes a timer. Beside other timers: ``timewheel bench wheel``.

``python -m bench.workloads.wheel_bench [--timers 1000000]`` prints a table; `measure` returns the figures.

Timers with random due times over an hour are inserted one by one, fired in batches of 256 while the clock goes on by a
second a step, inserted again as one sorted sequence in portions of 1024 (as a sweeper arms what it has read), cancelled
in random order; a few are fired one by one, as a sleeper does it: `next_wake_ms`, `advance`. The best of ``repeats``
runs counts. Processor time of the process is measured, so that neighbours on the machine count less; the collector is
off, as after a start of the broker it is frozen. The loops round the calls are measured with them: about 30 ns.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import random
import sys
import time
import tracemalloc
from collections.abc import Callable

from store.disk.delay_id import DELAY_ID_BASE
from timewheel import TimingWheel

__all__ = ["main", "measure", "wheel_times"]

_START_MS = 1_700_000_000_000
_SPAN_MS = 3_600_000
_BATCH = 256
_STEP_MS = 1000


def measure(timers: int = 1_000_000, repeats: int = 3, seed: int = 1) -> dict[str, float]:
    """Return figures by name: ``*_ns`` a timer, ``*_bytes`` a timer (without the item), ``*_us`` a call."""
    rng = random.Random(seed)
    dues = [_START_MS + rng.randrange(_SPAN_MS) for _ in range(timers)]
    items = [DELAY_ID_BASE + number for number in range(timers)]
    figures: dict[str, float] = {}
    gc.disable()
    try:
        for _ in range(repeats):
            for name, value in wheel_times(dues, items, rng).items():
                figures[name] = min(value, figures.get(name, value))
        figures.update(_memory(dues, items))
        figures["wheel_seven_empty_days_us"] = _empty_days_us()
        figures["wheel_longest_call_us"] = min(_longest_call_us(timers) for _ in range(repeats))
        figures["wheel_sleeper_ns"] = min(_sleeper_ns(dues, items) for _ in range(repeats))
    finally:
        gc.enable()
    return figures


def _ns(started: int, count: int) -> float:
    return (time.process_time_ns() - started) / count


def wheel_times(dues: list[int], items: list[int], rng: random.Random) -> dict[str, float]:
    """Return the wheel's own figures, each ``wheel_*_ns``."""
    count = len(dues)
    wheel = TimingWheel(_START_MS)
    insert = wheel.insert
    started = time.process_time_ns()
    for due_ms, item in zip(dues, items, strict=True):
        insert(due_ms, item)
    figures = {"wheel_insert_ns": _ns(started, count)}
    started = time.process_time_ns()
    fired = _fire(wheel)
    figures["wheel_fire_ns"] = _ns(started, count)
    assert fired == count, fired

    # The same wheel again, its columns reused, from a sorted sequence in portions, as a sweeper arms it.
    at_ms = wheel.now_ms
    later = sorted(due_ms - _START_MS + at_ms for due_ms in dues)
    started = time.process_time_ns()
    handles: list[int] = []
    for start in range(0, count, 1024):
        handles += wheel.insert_many(later[start : start + 1024], items[start : start + 1024])
    figures["wheel_insert_many_sorted_ns"] = _ns(started, count)
    rng.shuffle(handles)
    cancel = wheel.cancel
    started = time.process_time_ns()
    for handle in handles:
        cancel(handle)
    figures["wheel_cancel_ns"] = _ns(started, count)
    assert not wheel

    wheel = TimingWheel(_START_MS)
    started = time.process_time_ns()
    handles = []
    for start in range(0, count, 1024):
        handles += wheel.insert_many(dues[start : start + 1024], items[start : start + 1024])
    figures["wheel_insert_many_random_ns"] = _ns(started, count)
    started = time.process_time_ns()
    for handle in handles:
        cancel(handle)
    figures["wheel_cancel_stale_ns"] = _ns(started, count)
    move, count = wheel.move, min(count, 100_000)
    started = time.process_time_ns()
    for handle, due_ms in zip(handles[:count], reversed(dues), strict=False):
        move(handle, due_ms)
    figures["wheel_move_ns"] = _ns(started, count)
    return figures


def _fire(wheel: TimingWheel) -> int:
    now_ms, fired, advance = _START_MS, 0, wheel.advance
    while wheel:
        count = _BATCH
        while count == _BATCH:
            count = len(advance(now_ms, _BATCH)[0])
            fired += count
        now_ms += _STEP_MS
    return fired


def _memory(dues: list[int], items: list[int]) -> dict[str, float]:
    count = min(len(dues), 200_000)

    def traced(fill: Callable[[], object]) -> float:
        tracemalloc.start()
        kept = fill()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del kept
        return size / count

    def fill_wheel() -> object:
        wheel = TimingWheel(_START_MS)
        for due_ms, item in zip(dues[:count], items, strict=False):
            wheel.insert(due_ms + 0, item)
        return wheel

    def fill_heap() -> object:
        heap: list[tuple[int, int, int]] = []
        for sequence in range(count):
            # A due time of its own, as one that comes from a message is.
            heapq.heappush(heap, (int(str(dues[sequence])), sequence, items[sequence]))
        return heap

    return {"wheel_bytes": traced(fill_wheel), "heap_bytes": traced(fill_heap)}


def _empty_days_us() -> float:
    wheel = TimingWheel(_START_MS)
    due_ms = _START_MS + 7 * 86_400_000
    wheel.insert(due_ms, 1)
    started = time.process_time_ns()
    assert wheel.advance(due_ms - 1, 1) == ([], [])
    return (time.process_time_ns() - started) / 1000


def _sleeper_ns(dues: list[int], items: list[int]) -> float:
    """Fire timer by timer, at each next wake, as a thread that sleeps in between does it."""
    count = min(len(dues), 100_000)
    wheel = TimingWheel(_START_MS)
    wheel.insert_many(dues[:count], items[:count])
    started = time.process_time_ns()
    while (wake_ms := wheel.next_wake_ms()) is not None:
        wheel.advance(wake_ms, _BATCH)
    return _ns(started, count)


def _longest_call_us(timers: int) -> float:
    """All timers in one millisecond, then drained in batches: the longest single call of insert or advance."""
    wheel = TimingWheel(_START_MS)
    due_ms, longest, clock = _START_MS + 90_000, 0, time.process_time_ns
    for number in range(timers):
        started = clock()
        wheel.insert(due_ms, number)
        longest = max(longest, clock() - started)
    while wheel:
        started = clock()
        wheel.advance(due_ms, _BATCH)
        longest = max(longest, clock() - started)
    return longest / 1000


def main(arguments: list[str] | None = None) -> int:
    """Print the figures as a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.workloads.wheel_bench", description=__doc__.splitlines()[0])
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    for name, value in measure(options.timers, options.repeats).items():
        sys.stdout.write(f"{name:<32}{value:>10.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
