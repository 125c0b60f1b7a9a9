"""Sums by second that are kept by day: every night's tables are those of adding up everything at once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.lateness.counting.merging import finish
from bench.lateness.counting.settle import PAIR_ROWS, SECOND_ROWS
from bench.lateness.counting.sums import sum_rows
from bench.lateness.counting.tables import take_apart
from bench.lateness.logs.schemas import FINE_SCHEMA, arrow_schema
from bench.lateness.results.result import AFTER_HOT, CELL, DUE_IN_SECOND
from bench.lateness.state.days import Settled, add_up_days, settled_from, settled_table

_FINE = arrow_schema(FINE_SCHEMA)
DAY = 10_000
SOURCES = ("a", "b")


def pairs(source: int, rows: list[tuple[int, int, int]], censored: int = 0) -> pa.Table:
    """A part's sums: (second, lateness, messages), and the counts of these seconds."""
    pairs = {(second, late): 0 for second, late, _ in rows}
    seconds = {second: 0 for second, _, _ in rows}
    for second, late, number in rows:
        pairs[second, late] += number
        seconds[second] += number
    keys, late = (np.array(column, np.int64) for column in zip(*sorted(pairs), strict=True))
    counts = np.array([pairs[place] for place in sorted(pairs)], np.int64)
    sums = {"key": keys, "lateness_ms": late, "censored": np.full(len(keys), censored), "count": counts}
    due = {"key": np.array(sorted(seconds)), "count": np.array([seconds[second] for second in sorted(seconds)])}
    return pa.Table.from_batches([sum_rows(source, PAIR_ROWS, sums), sum_rows(source, SECOND_ROWS, due)], _FINE)


def tables(whole: pa.Table) -> dict[str, Any]:
    """What a result has of it, in one order."""
    parts = take_apart(whole, SOURCES)
    found: dict[str, Any] = {"hot": parts.hot, "cell_s": parts.cell_s}
    for name in (DUE_IN_SECOND, AFTER_HOT, CELL):
        if name in parts.tables:
            table = parts.tables[name]
            found[name] = table.sort_by([(column, "ascending") for column in table.column_names]).to_pydict()
    return found


class Kept:
    """What a state keeps of pairs from night to night, and all that was ever counted."""

    def __init__(self) -> None:
        self.settled: dict[tuple[int, int], Settled] = {}
        self.files: dict[int, pa.Table] = {}
        self.ever: list[pa.Table] = []
        self.loaded: list[int] = []

    def _load(self, day: int) -> pa.Table:
        self.loaded.append(day)
        return self.files[day]

    def night(self, fresh: list[pa.Table], rest: list[pa.Table]) -> dict[str, Any]:
        """One run; what it finds has to be what all sums give at once."""
        self.ever += fresh
        self.loaded = []
        none = _FINE.empty_table()
        found = add_up_days(
            self.settled, self._load, pa.concat_tables([none, *fresh]), pa.concat_tables([none, *rest]), DAY
        )
        self.settled = settled_from(settled_table(found.settled))
        self.files |= found.files
        expected = tables(finish(pa.concat_tables([none, *self.ever, *rest])))
        assert tables(found.rows) == expected
        return expected


@pytest.mark.parametrize("seed", range(12))
def test_nights_find_what_adding_up_at_once_finds(seed: int) -> None:
    rng = random.Random(seed)
    kept = Kept()
    spared = 0
    for night in range(14):

        def some(night: int = night) -> list[pa.Table]:
            parts = []
            for source in range(2):
                for _ in range(rng.choice([0, 1, 1, 2])):
                    first = (night - rng.choice([0, 0, 0, 0, 1, 5])) * DAY
                    at = [first + rng.randrange(DAY) for _ in range(rng.choice([1, 20, 200]))]
                    at += [first + DAY - rng.randint(0, 12), first + rng.randrange(12)] * rng.randint(0, 1)
                    most = rng.choice([3, 120, 400])
                    parts.append(pairs(source, [(second, rng.randrange(4), rng.randint(1, most)) for second in at]))
            return parts

        rest = [pairs(0, [(night * DAY - rng.randrange(3 * DAY), 77, 5)], 1)] if rng.random() < 0.5 else []
        kept.night(some(), some() + rest if rng.random() < 0.5 else rest)
        spared += len(kept.files) - len(set(kept.loaded))
    assert spared > 14, "days that were not read"


def test_a_quiet_day_is_not_read_again() -> None:
    kept = Kept()
    for night in range(20):
        kept.night([pairs(0, [(night * DAY + at, at % 7, 10) for at in range(0, DAY, 30)])], [])
        assert kept.loaded == []
    kept.night([pairs(0, [(3 * DAY + 500, 9_000, 1)])], [])
    assert kept.loaded == [3]
    kept.night([pairs(0, [(4 * DAY - 5, 9_000, 1)])], [])
    assert sorted(kept.loaded) == [3, 4], "what was due in the first seconds of day 4 may come after a hot one now"


def test_a_limit_that_passes_a_burst_is_noticed() -> None:
    kept = Kept()
    kept.night([pairs(0, [(at, 1, 10) for at in range(0, DAY, 30)])], [])
    kept.night([pairs(0, [(DAY + at, 1, 10) for at in range(0, DAY, 30)] + [(DAY + 500, 2, 150)])], [])
    kept.night([pairs(0, [(2 * DAY + at, 1, 10) for at in range(0, DAY, 30)])], [])
    assert kept.loaded == []
    found = kept.night([pairs(0, [(3 * DAY + at, 1, 100) for at in range(0, DAY, 30)])], [])
    assert (found["hot"], set(kept.loaded)) == ({"a": 163}, {1}), "a second of 160 is hot no longer"


def test_a_short_run_has_its_short_cells() -> None:
    kept = Kept()
    found = kept.night([pairs(0, [(at, 1, 2) for at in range(0, 800, 3)])], [])
    assert found["cell_s"] == 1
    found = kept.night([pairs(0, [(at, 1, 2) for at in range(800, 5_000, 3)])], [])
    assert found["cell_s"] == 10
    found = kept.night([pairs(0, [(at, 1, 2) for at in range(5_000, 12_000, 3)])], [])
    assert (found["cell_s"], CELL in found) == (60, False)


def test_nothing_was_due() -> None:
    assert Kept().night([], []) == tables(_FINE.empty_table())
