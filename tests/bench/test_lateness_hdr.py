"""Percentiles in HdrHistogram's text format: lines that its plotters read, exact figures, extremes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bench.lateness.results.hdr import percentile_text
from bench.lateness.results.result import percentiles

LINE = re.compile(r" *(\d+\.\d{3}) (\d\.\d{12}) +(\d+)(?: +(\d+\.\d{2}))?")


def lines_of(text: str) -> list[tuple[float, float, int, str]]:
    head, blank, *body = text.splitlines()
    assert head == "       Value     Percentile TotalCount 1/(1-Percentile)"
    assert blank == ""
    assert [line.split("=")[0].strip() for line in body[-3:]] == ["#[Mean", "#[Max", "#[Buckets"]
    found = [LINE.fullmatch(line) for line in body[:-3]]
    assert all(found), text
    return [(float(m[1]), float(m[2]), int(m[3]), m[4] or "") for m in found if m]


def test_a_small_one_line_by_line() -> None:
    assert (
        percentile_text([0, 7, 900], [98, 1, 1])
        == """\
       Value     Percentile TotalCount 1/(1-Percentile)

       0.000 0.980000000000         98          50.00
       7.000 0.990000000000         99         100.00
     900.000 1.000000000000        100
#[Mean    =        9.070, StdDeviation   =       89.545]
#[Max     =      900.000, Total count    =          100]
#[Buckets =            1, SubBuckets     =         2048]
"""
    )


@pytest.mark.parametrize("seed", range(20))
def test_percentiles_read_from_it_are_those_of_the_result(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(-5, 10 ** int(rng.integers(1, 13)), 500)
    counts = rng.integers(1, 1_000, 500)
    lines = lines_of(percentile_text(values, counts))
    assert [line[0] for line in lines] == sorted({line[0] for line in lines})
    assert lines[-1][1:] == (1.0, int(counts.sum()), "")
    for value, share, running, _ in lines:
        assert running == int(counts[np.maximum(values, 0) <= value].sum())
        assert share == pytest.approx(running / int(counts.sum()), abs=1e-12)
    assert lines[-1][0] == max(0, int(values.max())) == percentiles(np.maximum(values, 0), counts)["max"]


def test_nothing_one_early_and_the_largest() -> None:
    assert lines_of(percentile_text([], [])) == []
    assert lines_of(percentile_text([-7], [3])) == [(0.0, 1.0, 3, "")]
    most = 2**63 - 1
    assert lines_of(percentile_text([0, most], [10**15, 1]))[-1] == (float(most), 1.0, 10**15 + 1, "")
