"""The figures of all shards together, as a line for the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["EVERY_MS", "summary"]

EVERY_MS = 60_000
"""Time between two lines."""


def summary(
    before: Mapping[int, Mapping[str, Any]], now: Mapping[int, Mapping[str, Any]], ms: int, name: Callable[[int], str]
) -> str:
    """Messages that were put and got per second, and pending ones, by shard; empty if none was put or got.

    Args:
        before: Figures of each shard (`broker.shards.link.STATE`) when the time began; one that was started since
            counts from 0. ``now``: its figures now. ``ms``: the time between.
        name: Writes a shard's name.

    >>> summary({0: {"put": 60}}, {0: {"put": 660, "got": 6000, "pending": 3}}, 60_000, "b-{}".format)
    'together: 10 put and 100 got a second, 3 pending (b-0: 10, 100, 3)'
    """
    rows = []
    for index, figures in sorted(now.items()):
        known = before.get(index, {})
        put, got = (_rate(known.get(key, 0), figures.get(key, 0), ms) for key in ("put", "got"))
        rows.append((index, put, got, int(figures.get("pending", 0)) + int(figures.get("levels", 0))))
    put, got, pending = (sum(row[at] for row in rows) for at in (1, 2, 3))
    if not put and not got:
        return ""
    parts = "; ".join(f"{name(index)}: {p}, {g}, {n}" for index, p, g, n in rows)
    return f"together: {put} put and {got} got a second, {pending} pending ({parts})"


def _rate(before: int, now: int, ms: int) -> int:
    return round((now - before if now >= before else now) * 1000 / ms)
