"""Pulls that found nothing and wait for a message: held per queue, woken by arrivals, ended by their deadline.

A hold is kept while its queue has no message for it. When messages arrive in the queue the pull is tried again from
where the last try ended. If a message matches, the pull is answered; otherwise it continues to wait. At its deadline it
is answered in any case.

The appending thread reports arrivals (`arrived`), and the network loop handles them (`drain`). No wake-up is lost
between a pull that finds nothing and its hold. The network loop first registers the hold, then looks at the queue's end
once more; an append first raises the end, then looks for holds.

An answer costs a request, a look and a reply, however few messages it has. When many small answers would take most of
the network loop's time, answers are sent more rarely, and each has more messages (`paced`).

Thousands may wait for one queue, or end in one millisecond. A round of tries takes `_ROUND_S`; the others have their
turn in the next rounds, queue by queue. Without a clock (tests, simulation) a round tries all of them.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from broker.net.channel import Channel

__all__ = ["Hold", "LongPoll"]

_DONE_MAX = 1_000
_REST_FACTOR = 3
"""After a round of answers the loop rests for this many times the round's duration, so answers take at most a quarter
of the time.
"""
_REST_MAX_S = 0.004
_REST_MIN_S = 0.0005
"""A rest with less time left counts as over: the loop's timers are no finer than a millisecond."""
_ROUND_S = 0.005
"""Tries that take longer go on in another round of the network loop."""

Queue = tuple[str, int]
"""Topic and queue id."""


class Hold:
    """One pull that waits.

    ``retry(final)`` tries it again and returns whether it has been answered; with ``final`` it always is. ``size`` is
    about the number of bytes it keeps. ``kind``: what one of this kind does not find, none of the same queue and kind
    finds at that moment; empty if each has to look for itself.
    """

    __slots__ = ("channel", "deadline_ms", "done", "kind", "queue", "retry", "size")

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        deadline_ms: int,
        retry: Callable[[bool], bool],
        size: int = 2_000,
        kind: str = "",
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.deadline_ms = deadline_ms
        self.retry = retry
        self.size = size
        self.kind = kind
        self.done = False


class LongPoll:
    """All holds. `arrived` may be called from any thread, the rest by the network loop only.

    Args:
        wake: Makes the network loop call `drain` soon; called from other threads.
    """

    def __init__(self, wake: Callable[[], Any] = lambda: None) -> None:
        self.wake = wake
        """Has `drain` called soon (any thread)."""
        self._loop_thread = threading.get_ident()
        self._holds: dict[Queue, dict[Hold, None]] = {}  # in the order in which they came
        self._called: dict[Queue, list[Hold]] = {}  # those to be tried of each queue with arrivals, the next one last
        self._again: set[Queue] = set()  # queues with another arrival while they are in `_called`
        self._deadlines: list[tuple[int, int, Hold]] = []
        self._numbers = count()
        self._done = 0  # about how many entries of the heap are finished holds
        self._arrivals: deque[Queue] = deque()
        self._waking = False
        self.count = 0
        """Pulls that are held."""
        self.alarm_ms = 0
        """When `expire` will be called next, as set by its caller."""
        self.sooner: Callable[[], Any] = lambda: None
        """Called for a hold that ends before ``alarm_ms``."""
        self._clock: Callable[[], float] | None = None
        self._later: Callable[[float, Callable[[], None]], object] = lambda _delay_s, _call: None
        self._resume_s = 0.0
        self._is_resting = False

    def __len__(self) -> int:
        return self.count

    def bind(self) -> None:
        """Remember the calling thread as the network loop's: its own arrivals need no wake-up."""
        self._loop_thread = threading.get_ident()

    def paced(self, clock: Callable[[], float], later: Callable[[float, Callable[[], None]], object]) -> None:
        """Limit answers to arrivals to a quarter of the time, measured by ``clock`` in seconds.

        ``later`` calls a function in the network loop after some seconds. A rest is 4 ms at most.
        """
        self._clock, self._later = clock, later

    def hold(self, hold: Hold) -> None:
        """Keep a pull until something arrives in its queue. Its channel may be closed when this returns."""
        self._holds.setdefault(hold.queue, {})[hold] = None
        self.count += 1
        hold.channel.state.holds.add(hold)
        heapq.heappush(self._deadlines, (hold.deadline_ms, next(self._numbers), hold))
        hold.channel.keep(hold.size)
        if hold.deadline_ms < self.alarm_ms:
            self.sooner()

    def held(self, queue: Queue) -> int:
        """Number of pulls that are held for a queue."""
        return len(self._holds.get(queue, ()))

    def arrived(self, queues: Sequence[Queue]) -> None:
        """Messages can be pulled from these queues (any thread)."""
        holds = self._holds
        if not holds:
            return
        for queue in queues:
            if queue in holds:
                self._arrivals.append(queue)
        if self._arrivals and not self._waking and threading.get_ident() != self._loop_thread:
            self._waking = True
            self.wake()

    def drain(self) -> None:
        """Try the pulls of queues with arrivals, unless the loop rests from that."""
        self._waking = False
        clock = self._clock
        if not self._arrivals and not self._called:
            return
        if clock is None:
            self._answer()
            return
        begin = clock()
        rest_s = self._resume_s - begin
        if rest_s > _REST_MIN_S:
            self._rest(rest_s)
            return
        self._answer()
        end = clock()
        rest_s = min(_REST_FACTOR * (end - begin), _REST_MAX_S)
        self._resume_s = end + rest_s
        if self._called:
            self._rest(rest_s)

    def _rest(self, rest_s: float) -> None:
        """Have `drain` called again after so long."""
        self._waking = True  # no thread needs to wake the loop until then
        if not self._is_resting:
            self._is_resting = True
            self._later(rest_s, self._rested)

    def _rested(self) -> None:
        self._is_resting = False
        if self._arrivals or self._called:
            self.wake()

    def _answer(self) -> None:
        """Try the pulls of queues with arrivals for as long as a round may take."""
        arrivals, called, is_over = self._arrivals, self._called, self._round()
        queues: set[Queue] = set()
        while arrivals:
            queues.add(arrivals.popleft())
        for queue in queues:
            if queue in called:
                self._again.add(queue)
            else:
                self._call(queue)
        over = False
        while called and not over:
            queue, left = next(iter(called.items()))
            del called[queue]
            in_vain: set[str] = set()
            while left and not over:
                hold = left.pop()
                if hold.done or (hold.kind in in_vain and not hold.channel.closed):
                    continue
                if hold.channel.closed or hold.retry(False):
                    self._drop(hold)
                elif hold.kind:
                    in_vain.add(hold.kind)
                over = is_over()
            if left:
                called[queue] = left  # the next time another queue comes first
            elif queue in self._again:
                self._again.discard(queue)
                self._call(queue)

    def _call(self, queue: Queue) -> None:
        """Have all that wait for a queue tried."""
        holds = self._holds.get(queue)
        if holds:
            self._called[queue] = [*reversed(holds)]

    def _round(self) -> Callable[[], bool]:
        """Begin a round; whether it has taken long enough."""
        clock = self._clock
        if clock is None:
            return _never
        end_s = clock() + _ROUND_S
        return lambda: clock() >= end_s

    def expire(self, now_ms: int) -> bool:
        """Answer the pulls whose time is over; whether some of them are left, for another round of the loop."""
        is_over = self._round()
        while (deadlines := self._deadlines) and (deadlines[0][0] <= now_ms or deadlines[0][2].done):
            if is_over():
                return True
            hold = heapq.heappop(deadlines)[2]
            if hold.done:
                self._done = max(0, self._done - 1)
            else:
                self._end(hold)
        return False

    def forget(self, channel: Channel) -> None:
        """Drop the pulls of a channel that closed."""
        for hold in list(channel.state.holds):
            self._drop(hold)

    def release(self, topic: str) -> None:
        """Answer all pulls of a topic that was deleted, as if their time was over now."""
        holds = [hold for queue, holds in self._holds.items() if queue[0] == topic for hold in holds]
        if self._clock is None:
            for hold in holds:
                self._end(hold)
        elif holds:
            self._deadlines += [(0, next(self._numbers), hold) for hold in holds]
            heapq.heapify(self._deadlines)
            self.sooner()

    def next_deadline_ms(self) -> int | None:
        """Time of the next deadline; None if nothing is held."""
        return self._deadlines[0][0] if self._deadlines else None

    def check(self) -> list[str]:
        """Return a sentence for every broken rule of the structure."""
        wrong = []
        if (count := sum(map(len, self._holds.values()))) != self.count:
            wrong.append(f"{self.count} holds are counted, there are {count}")
        live = {id(hold) for _, _, hold in self._deadlines}
        for queue, holds in self._holds.items():
            if not holds:
                wrong.append(f"{queue} is kept without a hold")
            wrong += [f"{queue} keeps a hold that is done" for hold in holds if hold.done]
            wrong += [f"{queue} keeps a hold without a deadline" for hold in holds if id(hold) not in live]
            wrong += [f"{queue}: its channel does not know" for hold in holds if hold not in hold.channel.state.holds]
        return wrong

    def _end(self, hold: Hold) -> None:
        retry = hold.retry
        self._drop(hold)
        if not hold.channel.closed:
            retry(True)

    def _drop(self, hold: Hold) -> None:
        if hold.done:
            return
        hold.done = True
        hold.retry = _answered
        hold.channel.keep(-hold.size)
        self._done += 1
        if self._done > _DONE_MAX and self._done > len(self._deadlines) // 2:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
            self._done = 0
        hold.channel.state.holds.discard(hold)
        holds = self._holds.get(hold.queue)
        if holds is not None:
            if hold in holds:
                del holds[hold]
                self.count -= 1
            if not holds:
                del self._holds[hold.queue]


def _never() -> bool:
    return False


def _answered(_final: bool) -> bool:
    """Replaces `Hold.retry` in a finished hold, so that the hold keeps nothing alive."""
    return True
