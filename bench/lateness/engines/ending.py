"""How a run ends before its time: SIGTERM, to this process alone or to its whole group, leaves no folder and no trace.

A service manager, ``timeout`` and a closed terminal signal the process group. Java is in it, and is gone before Python
has tidied up: whatever it is asked then raises. Those errors say nothing that the signal has not said.

Python leaves out what is raised while an object is removed (``__del__``, the callback of a weak reference), and a
signal may fall there. It tells of that (`sys.unraisablehook`), and the process is signalled once more, a moment later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TERMINATED", "ends_on_sigterm", "held", "stop_event", "terminated"]

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
        """Raise SystemExit if the signal came, is not obeyed yet, and nothing holds it back."""
        if self.came and self.at_work and not self.holds:
            raise SystemExit(TERMINATED)

    def unraisable(self, told: sys.UnraisableHookArgs) -> bool:
        """Take back the signal whose exception was left out; False if it was another exception."""
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
    """Let SIGTERM end what is inside as an exception would, with the status `TERMINATED`; later errors are left out."""
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
    """Let SIGTERM wait until the end of what is inside: a library that starts something may swallow any exception."""
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
def stop_event() -> Iterator[threading.Event]:
    """Give an event that SIGINT and SIGTERM set, so that a run that goes on ends after its result.

    Where SIGTERM has taken Java away, too, no result comes: the run ends with the status `TERMINATED`.
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
