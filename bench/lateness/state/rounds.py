"""Makes results repeatedly, and checks options that a state does not allow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["check_state", "repeat"]


def check_state(state: str | None, since_ms: int | None, until_ms: int | None, received: Sequence[str]) -> None:
    """Raise ValueError for options that need single messages: of finished ones only sums are kept."""
    given = {"--since": since_ms is not None, "--until": until_ms is not None, "--received": bool(received)}
    for option, is_given in given.items():
        if state is not None and is_given:
            raise ValueError(f"{option} needs every message, and --state keeps sums: leave one of them out")


def repeat(
    once: Callable[[], dict[str, Any]],
    refresh_s: float,
    rounds: int | None,
    told: Callable[[dict[str, Any]], None],
    stop: threading.Event,
) -> dict[str, Any] | None:
    """Make results until ``stop`` is set or there are ``rounds``; returns the last one, None without any."""
    summary: dict[str, Any] | None = None
    done = 0
    while not stop.is_set() and (rounds is None or done < rounds):
        began = time.monotonic()
        summary = once()
        told(summary)
        done += 1
        if done != rounds:
            stop.wait(max(0.0, refresh_s - (time.monotonic() - began)))
    return summary
