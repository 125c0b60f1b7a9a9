"""The lease of an owner: it may deliver only if it has read its queue to the end within the last 2 s.

::

      asked for the queue's end        answered: nothing there that was not read
    ──┬────────────────────────────────┬──────────────────────┬──────────────► monotonic clock of this machine
      └──────────── LEASE_MS ──────────────────────────────── ┘ from here on nothing is sent

The lease counts from the moment of *asking*, because a takeover that was stored later may be missing in the answer. The
new owner waits from the moment when it has *seen* its own takeover record in the queue, which is after the record was
stored. So it waits longer than the lease of anybody who has not read that record. No clocks of two machines are
compared.
"""

from __future__ import annotations

from collections import deque

__all__ = ["DRIFT_MS", "LEASE_MS", "SETTLE_MS", "Lease", "Timing"]

LEASE_MS = 2000
"""An owner may deliver for this long after it has asked for the end of its queue."""
DRIFT_MS = 200
"""Assumed drift of two monotonic clocks within a lease: a tenth, which no working clock has."""
ENDS_MAX = 16
"""Ends that were asked for and are not read yet, of those that are remembered: more than a lease is long."""
SETTLE_MS = 1000
"""A send that was written before the lease ended is stored by its broker within this time."""


class Timing:
    """The time spans of the protocol, ms; see the constants of the same names."""

    __slots__ = ("drift_ms", "lease_ms", "settle_ms")

    def __init__(self, lease_ms: int = LEASE_MS, drift_ms: int = DRIFT_MS, settle_ms: int = SETTLE_MS) -> None:
        self.lease_ms = lease_ms
        self.drift_ms = drift_ms
        self.settle_ms = settle_ms

    @property
    def fence_ms(self) -> int:
        """A new owner waits for this long after it has read its own takeover record."""
        return self.lease_ms + self.drift_ms + self.settle_ms


class Lease:
    """The right to deliver, renewed by reading.

    A queue that is written to all the time is never read to its present end: when an answer comes, there is more in it.
    So each end that was asked for is remembered until it has been read. It counts from the moment of asking.
    """

    __slots__ = ("_asked_ms", "_ends", "_length_ms")

    def __init__(self, length_ms: int = LEASE_MS) -> None:
        self._length_ms = length_ms
        self._asked_ms: int | None = None
        # With more than this the oldest are dropped: they would renew the lease least.
        self._ends: deque[tuple[int, int]] = deque(maxlen=ENDS_MAX)

    def end_seen(self, asked_ms: int, end: int, read_to: int) -> None:
        """Note that the queue ended at ``end`` when this was asked (monotonic ms), and was read up to ``read_to``."""
        self._ends.append((asked_ms, end))
        self.read(read_to)

    def read(self, read_to: int) -> None:
        """Note how far the queue was read.

        >>> lease = Lease(2000); lease.end_seen(500, 7, 5); lease.holds(500); lease.read(7); lease.holds(2499)
        False
        True
        """
        for asked_ms, end in self._ends:
            if read_to >= end:
                self.renew(asked_ms)
        while self._ends and read_to >= self._ends[0][1]:
            self._ends.popleft()

    def renew(self, asked_ms: int) -> None:
        """Note that the queue was read to the end that it had at this time (monotonic ms)."""
        if self._asked_ms is None or asked_ms > self._asked_ms:
            self._asked_ms = asked_ms

    def holds(self, mono_ms: int) -> bool:
        """True if the owner may send now.

        >>> lease = Lease(2000); lease.renew(500); lease.holds(2499), lease.holds(2500)
        (True, False)
        """
        return self._asked_ms is not None and mono_ms - self._asked_ms < self._length_ms
