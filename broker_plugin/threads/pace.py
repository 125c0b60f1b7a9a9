"""How much one slice of work may be, so that the network loop and the other threads keep their turns.

Python runs one thread at a time. A thread that works for 4 ms holds back a network loop that wants the
interpreter after each of its system calls; so while the loop is busy, delivery and recovery work for about
`SLICE_NS` and then really sleep. While nobody else wants to run, short slices would only cost throughput.

Recovery's slices are longer (`LONG_SLICE_NS`): most of what a pause costs it is the wait for the interpreter behind it,
and what it delivers is late already. A message that is on time waits for one slice at most.

Whether somebody wants to run is told by the sleep itself: the kernel wakes a sleeper after 50-100 µs more than it
asked for, but it can go on only when it gets the interpreter back, and from a busy loop it gets it after a
switch interval (0.5 ms).
"""

from __future__ import annotations

__all__ = ["BATCH_MAX", "LONG_SLICE_NS", "SLICE_NS", "Pace"]

SLICE_NS = 500_000
LONG_SLICE_NS = 2_000_000
BATCH_MAX = 512
"""Most records of one batch."""
BATCH_MIN = 96
"""Fewest, if there are so many: enough for a block (`broker_plugin.delivery`), which takes half as long for each.

With fewer, a thread that has fallen behind would deliver one by one, which costs more, and stay behind.
"""
YIELD_S = 0.00005
BUSY_YIELD_S = 0.0003
_CONTENDED_NS = 250_000


class Pace:
    """Batch sizes and pauses of one working thread."""

    __slots__ = ("_batch_max", "_cost_ns", "_fit", "_slice_ns", "busy")

    def __init__(self, batch_max: int = BATCH_MAX, slice_ns: int = SLICE_NS) -> None:
        self._slice_ns = slice_ns
        self._batch_max = self._fit = batch_max
        self._cost_ns = 10_000.0
        self.busy = False
        """Whether another thread wanted the interpreter at the last pause."""

    @property
    def batch(self) -> int:
        """How many records the next batch may have."""
        if not self.busy:
            return self._fit
        return min(self._fit, max(BATCH_MIN, int(self._slice_ns / max(self._cost_ns, 1.0))))

    @property
    def pause_s(self) -> float:
        """How long to sleep between two slices, seconds."""
        return BUSY_YIELD_S if self.busy else YIELD_S

    def worked(self, asked: int, records: int, took_ns: int) -> None:
        """Learn what a batch cost, and how many of the records that were asked for fitted into it.

        The cost is time worked: if what it waited for the interpreter counted, a busy loop would make batches small,
        and small ones, each with its pause and its wait, would go out so much more slowly.
        """
        self._fit = records + records // 8 + 1 if records < asked else min(self._batch_max, 2 * self._fit)
        if records >= BATCH_MIN:
            self._cost_ns += (took_ns / records - self._cost_ns) / 8

    def paused(self, took_ns: int) -> None:
        """Learn how long the last pause really was."""
        self.busy = took_ns > self.pause_s * 1e9 + _CONTENDED_NS
