"""Ends a run on SIGTERM, sent to this process or to its whole group: temporary folders are removed, no traceback.

A service manager, ``timeout`` and a closed terminal signal the process group. Java is in this group and ends before
Python has cleaned up, so calls to it raise. These errors follow from the signal and are not shown.

The trick: Python ignores an exception that is raised while an object is removed (``__del__``, the callback of a weak
reference), and the signal may arrive there. Python then calls `sys.unraisablehook`. This hook has the process signalled
once more, a moment later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TERMINATED", "ends_on_sigterm", "held", "stop_event", "terminated", "without_sigint"]

_AGAIN_S = 0.02
TERMINATED = 128 + signal.SIGTERM
"""The exit status of a process that SIGTERM has ended."""


class _Sigterm:
    """Whether the signal came, and whether it has to wait."""

    def __init__(self) -> None:
        self.came = False
        self.holds = 0
        self.at_work = False

    def caught(self, *_: object) -> None:
        """Handle the signal; all but the first one do nothing. Raises SystemExit."""
        if not self.came:
            self.came = True
            self.end()

    def end(self) -> None:
        """Raise SystemExit if the signal came while `ends_on_sigterm` is at work and nothing holds it back."""
        if self.came and self.at_work and not self.holds:
            raise SystemExit(TERMINATED)

    def unraisable(self, told: sys.UnraisableHookArgs) -> bool:
        """Repeat the signal if Python ignored its exception; False if it ignored another exception."""
        error = told.exc_value
        if not (self.came and isinstance(error, SystemExit) and error.code == TERMINATED):
            return False
        self.came = False
        again = threading.Timer(_AGAIN_S, self._again)
        again.daemon = True
        again.start()
        return True

    def _again(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self.caught:
            os.kill(os.getpid(), signal.SIGTERM)


_SIGTERM = _Sigterm()


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """End the body on SIGTERM with SystemExit (`TERMINATED`), also instead of errors that follow the signal."""
    _SIGTERM.came = False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, hook = signal.signal(signal.SIGTERM, _SIGTERM.caught), sys.unraisablehook

    def told_of(told: sys.UnraisableHookArgs) -> None:
        if not _SIGTERM.unraisable(told):
            hook(told)

    sys.unraisablehook = told_of
    _SIGTERM.at_work = True
    try:
        yield
    except Exception:
        if _SIGTERM.came:
            raise SystemExit(TERMINATED) from None
        raise
    finally:
        _SIGTERM.at_work = False
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


@contextmanager
def held() -> Iterator[None]:
    """Hold SIGTERM back until the body ends: a library that is starting may swallow its exception.

    Raises SystemExit at the end if the signal came.
    """
    _SIGTERM.holds += 1
    try:
        yield
    finally:
        _SIGTERM.holds -= 1
    _SIGTERM.end()


def terminated() -> bool:
    """Whether SIGTERM came while `ends_on_sigterm` was at work."""
    return _SIGTERM.came


@contextmanager
def without_sigint() -> Iterator[None]:
    """Block SIGINT: processes that are started in the body never get it. This one gets it behind the body.

    A terminal sends SIGINT to all processes of a run. What it means is for the first one to decide.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set, so that a run with ``--follow`` ends after its current result.

    Raises SystemExit (`TERMINATED`) if the body fails after SIGTERM: the signal may have ended Java, too.
    """
    stop, terminated = threading.Event(), threading.Event()

    def caught(number: int, _: object) -> None:
        stop.set()
        if number == signal.SIGTERM:
            terminated.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, caught)
    try:
        yield stop
    except Exception:
        if terminated.is_set():
            raise SystemExit(TERMINATED) from None
        raise
