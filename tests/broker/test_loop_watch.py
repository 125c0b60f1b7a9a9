"""The watch sees a step that is too long: the tests that use it can fail."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.broker import loop_watch
from tests.broker.loop_watch import BOUND_MS, LoopWatch

_IDLE = SimpleNamespace(_gathering=False, _writing=False)


def _spin(ms: float) -> None:
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass


def test_a_step_that_holds_the_loop_is_found_however_often_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "_TRIES", 3)
    with LoopWatch() as watch:
        table = SimpleNamespace(_late=_IDLE)
        watch.core = cast(Any, SimpleNamespace(topics=table, groups=table, dispatcher=SimpleNamespace(running=0)))
        assert watch.step_ms(lambda: watch.call(lambda: _spin(1))) < BOUND_MS
        assert watch.step_ms(lambda: watch.call(lambda: _spin(20 * BOUND_MS))) > BOUND_MS
