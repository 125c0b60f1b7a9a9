"""Made-up results of the lateness pipeline: messages go in, a `Result` as the pipeline would leave it comes out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.lateness.counting.cells import cell_seconds
from bench.lateness.results.result import (
    CELLS,
    COUNTS,
    DEFINITIONS,
    GROUPS,
    RECEIVED,
    TOPIC,
    VERSION,
    Lateness,
    Result,
)
from bench.lateness.results.target import DEFAULT_TARGET, Target

__all__ = ["AS_OF_MS", "Message", "Table", "apache_like", "ours_like", "result_of"]

AS_OF_MS = 1_760_003_600_000


@dataclass(frozen=True, slots=True)
class Message:
    """One delayed message: what it was, and how late; ``censored``: overdue, so late so far."""

    source: str
    due_ms: int
    lateness_ms: int
    topic: str = "orders"
    level: int = 0
    requested_ms: int = 5_000
    censored: bool = False
    times: int = 1


class Table:
    """As much of a pyarrow table as the report needs, so that its tests need no pyarrow."""

    def __init__(self, columns: dict[str, np.ndarray[Any, Any]]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def column(self, name: str) -> Any:
        values = self.columns[name]

        class Column:
            def to_numpy(self) -> np.ndarray[Any, Any]:
                return values

            def __len__(self) -> int:
                return len(values)

        return Column()


def _class_of(value: int) -> int:
    if value < 1:
        return 0
    power = 10 ** (len(str(value)) - 1)
    return next(step * power for step in (5, 2, 1) if value >= step * power)


def _tables(messages: Sequence[Message], hot_from: int) -> dict[str, Any]:
    crowd: Counter[tuple[str, int]] = Counter()
    for message in messages:
        crowd[message.source, message.due_ms // 1000] += message.times
    hot = {key for key, number in crowd.items() if number >= hot_from}
    length = _cell_ms(messages)
    rows: dict[str, Counter[tuple[Any, ...]]] = {name: Counter() for name in {**GROUPS, **CELLS}}
    for m in messages:
        second = m.due_ms // 1000
        after = next((n for n in range(11) if (m.source, second - n) in hot), -1)
        keys: dict[str, tuple[Any, ...]] = {
            "topic": (m.topic, "level" if m.level else "timed", m.level),
            "requested": (_class_of(m.requested_ms),),
            "minute": (m.due_ms // 60_000 * 60_000,),
            "cell": (m.due_ms // length * length,),
            "due_in_second": (_class_of(crowd[m.source, second]),),
            "ms_in_second": (m.due_ms % 1000,),
            "after_hot": (after,),
        }
        for name, key in keys.items():
            rows[name][m.source, *key, m.lateness_ms, m.censored] += m.times
    found = {}
    for name, groups in {**GROUPS, **CELLS}.items():
        keys_ = list(rows[name])
        columns: dict[str, Any] = {}
        for place, column in enumerate(("source", *groups, "lateness_ms", "censored")):
            words = column in ("source", "topic", "kind")
            kind = object if words else bool if column == "censored" else np.int64
            columns[column] = np.array([key[place] for key in keys_], dtype=kind)
        columns["count"] = np.array([rows[name][key] for key in keys_], np.int64)
        found[name] = Table(columns)
    return found


def _cell_ms(messages: Sequence[Message]) -> int:
    seconds = [message.due_ms // 1000 for message in messages] or [0]
    return cell_seconds(min(seconds), max(seconds)) * 1000


def _counts(messages: Iterable[Message], **more: int) -> dict[str, Any]:
    some = list(messages)
    late = [m for m in some if not m.censored]
    overdue = sum(m.times for m in some if m.censored)
    counts = [m.times for m in late]
    numbers = dict.fromkeys(COUNTS, 0)
    numbers |= {"delivered": sum(counts), "overdue": overdue, "early": sum(m.times for m in late if m.lateness_ms < 0)}
    numbers |= more
    numbers["sent"] = sum(numbers[name] for name in ("delivered", "overdue", "pending", "lost", "cancelled", "unknown"))
    return {
        **numbers,
        **_figures(some),
        "end_to_end": None,
    }


def _figures(messages: Sequence[Message]) -> dict[str, Any]:
    sides = [[m for m in messages if m.censored is censored] for censored in (False, True)]
    columns = [[m.lateness_ms for m in side] for side in sides]
    counts = [[m.times for m in side] for side in sides]
    return Lateness(columns[0], counts[0], columns[1], counts[1]).figures()


def _target(messages: Sequence[Message], target: Target) -> dict[str, Any]:
    delivered = sum(m.times for m in messages if not m.censored)
    missed = sum(m.times for m in messages if m.censored and m.lateness_ms > target.limit_ms)
    made = sum(m.times for m in messages if not m.censored and m.lateness_ms <= target.limit_ms)
    return target.judge(made / (delivered + missed) if delivered + missed else None)


def result_of(
    sources: Sequence[str],
    messages: Sequence[Message],
    *,
    received: Sequence[Message] = (),
    expectations: Sequence[dict[str, Any]] = (),
    target: Target = DEFAULT_TARGET,
    hot_from: int = 100,
    damaged: Sequence[dict[str, Any]] = (),
    not_known: Sequence[str] = (),
    **more: int,
) -> Result:
    """Return what the pipeline would have left; ``more`` are counts that messages do not show (lost, pending...)."""
    described = []
    for source in sources:
        own = [m for m in messages if m.source == source]
        described.append({
            **_counts(own, **more),
            "name": source,
            "paths": [f"/var/lib/{source}/store"],
            "kind": "apache" if source.startswith("apache") else "timewheel",
            "records": 3 * sum(m.times for m in own),
            "bytes": 900 * sum(m.times for m in own),
            "first_store_ms": min((m.due_ms - m.requested_ms for m in own), default=None),
            "last_store_ms": max((m.due_ms + m.lateness_ms for m in own), default=None),
            "clock_steps_back": 0,
            "hot_from": hot_from,
            "not_known": list(not_known),
            "damaged": list(damaged),
            "damaged_count": len(damaged),
            "damaged_bytes": sum(d["bytes"] for d in damaged),
            "torn_tail": None,
        })  # fmt: skip
    total = _counts(messages, **{name: value * len(sources) for name, value in more.items()})
    tables = _tables(messages, hot_from)
    if received:
        tables |= {name + RECEIVED: table for name, table in _tables(received, hot_from).items()}
        total["end_to_end"] = {"received": len(received), "repeated": 0, **_counts(received)}
        for one in described:
            mine = [m for m in received if m.source == one["name"]]
            one["end_to_end"] = {"received": len(mine), "repeated": 0, **_counts(mine)}
    summary = {
        "version": VERSION,
        "made_ms": AS_OF_MS + 4_000,
        "as_of_ms": AS_OF_MS,
        "since_ms": None,
        "until_ms": None,
        "sources": described,
        "total": total,
        "cell_ms": _cell_ms(messages),
        "expectations": list(expectations),
        "target": _target(messages, target),
        "definitions": dict(DEFINITIONS),
    }
    assert TOPIC in tables
    return Result(Path("nowhere"), summary, tables)


def _dues(rng: random.Random, number: int, minutes: int) -> list[int]:
    start = AS_OF_MS - minutes * 60_000
    hot = [start + rng.randrange(minutes * 60) * 1000 for _ in range(3)]
    return [
        rng.choice(hot) + rng.randrange(1000) if rng.random() < 0.15 else start + rng.randrange(minutes * 60_000)
        for _ in range(number)
    ]


def ours_like(source: str, number: int, seed: int, minutes: int = 60) -> list[Message]:
    """Messages as our broker delivers them: nearly all in their millisecond, a few later."""
    rng = random.Random(seed)
    found = []
    for due in _dues(rng, number, minutes):
        late = int(rng.expovariate(3.0)) if rng.random() < 0.99 else int(rng.paretovariate(1.2))
        requested = int(10 ** rng.uniform(2.5, 7))
        level = rng.choice((0, 0, 0, 0, 1, 3, 5))
        found.append(Message(source, due, late, rng.choice(("orders", "payments")), level, requested))
    return found


def apache_like(source: str, number: int, seed: int, minutes: int = 60) -> list[Message]:
    """Messages as a broker with slots of a second delivers them: what is due early in a slot waits for its end."""
    rng = random.Random(seed)
    found = []
    for due in _dues(rng, number, minutes):
        level = rng.choice((0, 0, 0, 0, 1, 3, 5))
        late = rng.randrange(101) if level else 1_000 - due % 1000 + rng.randrange(120)
        found.append(
            Message(source, due, late, rng.choice(("orders", "payments")), level, int(10 ** rng.uniform(2.5, 7)))
        )
    return found
