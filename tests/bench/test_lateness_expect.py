"""Expectations: what is understood, what holds, what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from bench.lateness.results.expect import ExpectationError, parse_expectation

TOTAL: dict[str, Any] = {
    "lost": 0,
    "percentiles": {"p99": 12, "p99.9": None},
    "within": {"10": 0.98},
    "end_to_end": {"early": 2, "percentiles": {"max": 1500}},
}


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("p99 <= 12ms", 12, True),
        ("p99<12", 12, False),
        ("p99 < 1s", 12, True),
        ("p99.9 <= 1h", None, False),
        ("p50 >= 0", None, False),
        ("lost == 0", 0, True),
        ("within.10 >= 98%", 0.98, True),
        ("within.10 > 0.99", 0.98, False),
        ("e2e.max <= 1.5s", 1500, True),
        ("e2e.early = 0", 2, False),
    ],
)
def test_what_is_understood(text: str, value: object, holds: bool) -> None:
    found = {"text": text, "value": value, "at_least": False, "holds": holds}
    assert parse_expectation(text).judge(TOTAL) == found


def test_a_lower_bound_is_said_to_be_one() -> None:
    total = TOTAL | {"at_least": ["p99"]}
    assert parse_expectation("p99 <= 1").judge(total)["at_least"] is True
    for other in ("p99.9 <= 1", "lost == 0", "within.10 >= 0.5", "e2e.max <= 1"):
        assert parse_expectation(other).judge(total)["at_least"] is False


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("p99", "a figure, a comparison and a limit are expected"),
        ("p98 <= 1", "p98 is no figure; there are p50"),
        ("p99 <= 3%", "a time is expected"),
        ("lost == 3ms", "a number without unit"),
        ("within.10 >= 3s", "a share is expected"),
        ("within.11 >= 3", "within.11 is no figure"),
        ("e2e.lost == 0", "e2e.lost is no figure"),
        ("p99 ! 3", "a comparison"),
    ],
)
def test_what_is_not(text: str, why: str) -> None:
    with pytest.raises(ExpectationError, match=why):
        parse_expectation(text)


def test_without_consumers_their_figures_do_not_hold() -> None:
    assert parse_expectation("e2e.p99 <= 1s").judge({"end_to_end": None})["holds"] is False
