from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cli.tally import Tally, percentile, summary
from timewheel_client.values.times import format_instant, format_span, parse_instant, parse_span

NEW_YEAR_2030 = 1_893_456_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2030-01-01T00:00:00Z", NEW_YEAR_2030),
        ("2030-01-01T01:00:00+01:00", NEW_YEAR_2030),
        ("2030-01-01 00:00+00:00", NEW_YEAR_2030),
        ("20300101T000000Z", NEW_YEAR_2030),
        ("2030-01-01T00:00:00.250Z", NEW_YEAR_2030 + 250),
        ("2030-01-01T00:00:00.0001Z", NEW_YEAR_2030 + 1),
        (" 1893456000000 ", NEW_YEAR_2030),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_instants(text: str, ms: int) -> None:
    assert parse_instant(text) == ms


def test_an_instant_without_zone_is_local() -> None:
    local = datetime(2030, 1, 1, 10).astimezone()
    assert parse_instant("2030-01-01T10:00") == int(local.timestamp() * 1000)
    midnight = datetime(2030, 1, 1).astimezone()
    assert parse_instant("2030-01-01") == int(midnight.timestamp() * 1000)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "10:00", "2030-13-01", "1893456000", "20300101", "-5", "1969-12-31T00:00Z", "1" * 20, "1" * 5_000],
)
def test_what_is_no_instant(text: str) -> None:
    with pytest.raises(ValueError, match="epoch milliseconds"):
        parse_instant(text)


@pytest.mark.parametrize("text", [f"1{'0' * 400}d", f"{'9' * 5_000}s", "99999999999w", f"{'9' * 308}w 1d"])
def test_a_span_without_end(text: str) -> None:
    with pytest.raises(ValueError, match="too long for a span"):
        parse_span(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("47m", 2_820_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1500ms", 1_500),
        ("0s", 0),
        ("1.5h", 5_400_000),
        ("0.0001s", 1),
        ("1w2d", 777_600_000),
        ("90s", 90_000),
    ],
)
def test_spans(text: str, ms: int) -> None:
    assert parse_span(text) == ms


@pytest.mark.parametrize("text", ["", "47", "m", "-5m", "5y", "1h30", "1 h x", "m5", ".5s"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ValueError, match="not a span"):
        parse_span(text)


@given(st.integers(0, 253_402_214_400_000))
def test_an_instant_said_back_is_the_same(ms: int) -> None:
    assert parse_instant(format_instant(ms)) == ms


def test_what_is_beyond_the_calendar_is_said_as_a_number() -> None:
    assert format_instant(10**18) == "1000000000000000000 ms after 1970"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_234, "1.234s"),
        (60_000, "1m"),
        (61_000, "1m 1s"),
        (3_600_000, "1h"),
        (3_601_000, "1h"),
        (90_000_000, "1d 1h"),
        (10 * 604_800_000, "10w"),
        (-5_000, "-5s"),
    ],
)
def test_spans_said_back(ms: int, text: str) -> None:
    assert format_span(ms) == text


# ------------------------------------------------------------------------------------------------ counting


def test_percentiles_are_values_that_occurred() -> None:
    values = list(range(1, 101))
    assert [percentile(values, percent) for percent in (0, 1, 50, 99, 99.5, 100)] == [1, 1, 50, 99, 100, 100]
    assert percentile([7], 99) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    assert summary([]) == "nothing yet"


def test_a_good_run() -> None:
    tally = Tally()
    tally.sent("a", 100)
    assert tally.came("b", 200, 201, 203)  # may come before its send is known to be done
    tally.sent("b", 200)
    assert (tally.pending, tally.good) == (1, False)
    assert tally.came("a", 100, 100, 104)
    assert tally.good
    assert tally.verdict() == (
        "PASSED: 2 sent, 2 delivered, 0 lost, 0 repeated, 0 early; "
        "at the broker p50 0 ms, p99 1 ms, max 1 ms; at the consumer p50 3 ms, p99 4 ms, max 4 ms"
    )


def test_what_fails_a_run() -> None:
    lost = Tally()
    lost.sent("a", 1)
    repeated = Tally()
    repeated.sent("a", 1)
    assert repeated.came("a", 1, 1, 1)
    assert not repeated.came("a", 1, 1, 1)
    early = Tally()
    early.sent("a", 10)
    early.came("a", 10, 9, 12)
    for tally, text in ((lost, "1 lost"), (repeated, "1 repeated"), (early, "1 early"), (Tally(), "0 sent")):
        assert not tally.good
        assert tally.verdict().startswith("FAILED")
        assert text in tally.verdict()
