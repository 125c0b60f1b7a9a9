"""A thread that calls ``step(now_ms)`` in a loop and waits as long as it says.

``step`` returns when it wants to be called again, epoch ms. Now or earlier means that there is more to do: the thread
then pauses only for a moment (see `broker_plugin.threads.pace`), so that others get their turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from broker_plugin.threads.clock import WAIT_MAX_MS, Alarm, Clock, StepWatch
from broker_plugin.threads.pace import Pace
from store.disk.errors import StoreClosedError

__all__ = ["Worker"]

ERROR_PAUSE_S = 0.1


class Worker:
    """One thread of the plug-in.

    Args:
        name: of the thread, and in warnings.
        step: does one slice of work, given the time (epoch ms); returns when to call it again.
        clock: what time it is, and how long to wait.
        pace: told how long each pause was.
        warn: told of errors; the thread goes on after them.
        watch: told both clocks before each step, to notice steps of the wall clock.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[int], int],
        clock: Clock,
        pace: Pace,
        warn: Callable[[str], None],
        watch: StepWatch | None = None,
    ) -> None:
        self.name = name
        self._step = step
        self._clock = clock
        self._pace = pace
        self._warn = warn
        self._watch = watch
        self._alarm = Alarm()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.error_count = 0

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self._stopping = False
            thread = threading.Thread(target=self._run, name=f"delay-{self.name}", daemon=True)
            thread.start()
            self._thread = thread  # a thread that could not be started cannot be joined

    def ring(self) -> None:
        """Wake the thread. Any thread."""
        self._alarm.ring()

    def stop(self) -> None:
        """End the thread and wait for it: one slice at most."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self._alarm.ring()
            thread.join()

    def _run(self) -> None:
        clock, alarm, pace = self._clock, self._alarm, self._pace
        now_ms, seconds_until, monotonic_ns = clock.now_ms, clock.seconds_until, clock.monotonic_ns
        longest = WAIT_MAX_MS / 1000
        while not self._stopping:
            now = now_ms()
            if self._watch is not None:
                step_ms = self._watch.look(now, monotonic_ns())
                if step_ms:
                    self._warn(f"the wall clock was set by {step_ms:+d} ms")
            try:
                wake = self._step(now)
            except StoreClosedError:
                return
            except Exception as error:
                self.error_count += 1
                if self.error_count & (self.error_count - 1) == 0:  # 1, 2, 4, 8, …
                    self._warn(f"{self.name}, error {self.error_count}: {type(error).__name__}: {error}")
                alarm.wait(ERROR_PAUSE_S)
                continue
            wait = seconds_until(wake)
            if wait > 0:
                alarm.wait(min(wait, longest))
            else:
                begin = monotonic_ns()
                # A pause that was rung short says nothing about who wants the interpreter.
                if not alarm.wait(pace.pause_s):
                    pace.paused(monotonic_ns() - begin)
