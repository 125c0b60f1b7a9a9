"""SIGTERM ends a run wherever it falls: Python leaves out what is raised while an object is removed."""

from __future__ import annotations

import os
import signal
import sys
import weakref
from collections.abc import Callable

import pytest

from bench.lateness.engines.ending import TERMINATED, ends_on_sigterm, held, terminated
from tests.support.wait import wait_until


class _Thing:
    """Something to refer to weakly."""


class _Signals:
    """Signals this process while it is removed."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def _by_a_weak_reference() -> None:
    thing = _Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del thing
    assert reference() is None


def _by_a_removed_object() -> None:
    thing = _Signals()
    del thing


def _twice() -> None:
    _by_a_weak_reference()
    _by_a_removed_object()


@pytest.mark.parametrize("signals", [_by_a_weak_reference, _by_a_removed_object, _twice])
def test_a_signal_that_falls_where_nothing_can_be_raised(
    signals: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, ends_on_sigterm():
        signals()
        wait_until(lambda: False, 20, "the end of the run")
    assert ended.value.code == TERMINATED
    assert terminated()
    assert (sys.unraisablehook, signal.getsignal(signal.SIGTERM)) == (hook, handler)
    assert capfd.readouterr().err == ""
    with held():
        pass  # what comes behind a run that the signal has ended is not ended by it once more
