"""One timer for all requests of a connection: a timer for each request costs more than its entry in a queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container

__all__ = ["Deadlines"]

_Row = tuple[float, int, int, int]


class Deadlines:
    """Ends requests that had no reply in time.

    Almost all requests have the same timeout, so their deadlines come in order, and a queue holds them. Requests whose
    reply came are dropped from its front: the queue is about as long as the requests in flight.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        waiting: Container[int],
        expire: Callable[[int, int, int], None],
    ) -> None:
        """``waiting`` has the numbers of the requests without a reply; ``expire`` is called with number, code and
        timeout (ms) of one whose time is over."""
        self._loop = loop
        self._waiting = waiting
        self._expire = expire
        self._rows: deque[_Row] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, opaque: int, code: int, timeout_ms: int) -> None:
        """Add a request that has been put among the waiting ones."""
        rows = self._rows
        while rows and rows[0][1] not in self._waiting:
            rows.popleft()
        deadline = self._loop.time() + timeout_ms / 1000
        if rows and deadline < rows[-1][0]:
            self._loop.call_at(deadline, self._expire_waiting, (deadline, opaque, code, timeout_ms))
            return
        rows.append((deadline, opaque, code, timeout_ms))
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)

    def _look(self, due: float) -> None:
        """End what is due. The loop may call a little before ``due``, by the resolution of its clock."""
        now = max(due, self._loop.time())
        rows = self._rows
        self._timer = None
        while rows and (rows[0][0] <= now or rows[0][1] not in self._waiting):
            self._expire_waiting(rows.popleft())
        if rows and self._timer is None:
            self._set_timer(rows[0][0])

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:  # for a request that has its reply
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._look, due)

    def _expire_waiting(self, row: _Row) -> None:
        _, opaque, code, timeout_ms = row
        if opaque in self._waiting:
            self._expire(opaque, code, timeout_ms)
