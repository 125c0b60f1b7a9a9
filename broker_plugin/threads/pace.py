"""Length of one slice of work, so that the network loop and the other threads get their turns.

Python runs one thread at a time. The network loop wants the interpreter after each of its system calls, and a thread
that works for 4 ms makes it wait. So while the loop is busy, delivery and recovery work for about `SLICE_NS` and then
really sleep. While nobody else wants to run, short slices would only cost throughput.

Recovery's slices are longer (`LONG_SLICE_NS`): a pause costs it mainly the wait for the interpreter afterwards, and its
messages are late already. A message that is on time waits for one slice at most.

The sleep itself shows whether another thread wants to run. The kernel wakes a sleeper 50-100 µs after the wanted time,
but it continues only when it has the interpreter again, and a busy loop gives that up after a switch interval (0.5 ms).
"""

from __future__ import annotations

__all__ = ["BATCH_MAX", "LONG_SLICE_NS", "SLICE_NS", "Pace"]

SLICE_NS = 500_000
LONG_SLICE_NS = 2_000_000
BATCH_MAX = 500
"""Most records of one batch.

In most calls NumPy gives the interpreter away if an array has more than 500 elements, and then another thread takes it.
"""
BATCH_MIN = 256
"""Fewest records of a batch, if there are as many.

A batch has costs of its own, so each record of a small one costs more; and the more a record costs, the fewer fit into
a slice. A thread that has fallen behind must not be caught between the two: it would stay behind.
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
        """True if another thread wanted the interpreter at the last pause."""

    @property
    def batch(self) -> int:
        """Most records of the next batch."""
        if not self.busy:
            return self._fit
        return min(self._fit, max(BATCH_MIN, int(self._slice_ns / max(self._cost_ns, 1.0))))

    @property
    def pause_s(self) -> float:
        """Sleep between two slices, seconds."""
        return BUSY_YIELD_S if self.busy else YIELD_S

    def worked(self, asked: int, records: int, took_ns: int) -> None:
        """Learn what a batch cost (ns of processor time), and how many of the ``asked`` records fitted into it.

        Waits for the interpreter do not count as cost. If they did, a busy loop would make batches small, and small
        batches, each with its own pause and wait, would slow the deliveries down further.
        """
        # An eighth more than fitted: so it grows again when records become smaller.
        more = records + records // 8 + 1 if records < asked else 2 * self._fit
        self._fit = min(self._batch_max, more)
        if records >= BATCH_MIN:
            self._cost_ns += (took_ns / records - self._cost_ns) / 8

    def paused(self, took_ns: int) -> None:
        """Learn how long the last pause really was."""
        self.busy = took_ns > self.pause_s * 1e9 + _CONTENDED_NS
