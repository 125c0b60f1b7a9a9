"""Two results side by side: what is said of each figure, in which direction, and on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.lateness.results.compare import _share, differences, in_words
from bench.lateness.results.target import Target
from tests.bench.report_world import AS_OF_MS, Message, result_of


def summary_of(late: list[int], overdue: int = 0, **more: Any) -> dict[str, Any]:
    messages = [Message("a", AS_OF_MS - 60_000, value) for value in late]
    messages += [Message("a", AS_OF_MS - 60_000, 60_000, censored=True)] * overdue
    return result_of(["a"], messages, **more).summary


def test_what_is_later_and_what_is_worse() -> None:
    found = {one.name: one for one in differences(summary_of([2] * 100), summary_of([2] * 98 + [14, 3_600_000]))}
    assert (found["p50"].words, found["p50"].worse) == ("", None)
    assert (found["p99"].before, found["p99"].now) == ("2 ms", "14 ms")
    assert (found["p99"].words, found["p99"].worse) == ("12 ms later (7.0 times as late)", True)
    assert found["max"].words == "60 min later (1,800,000 times as late)"
    assert (found["within 10 ms"].words, found["within 10 ms"].worse) == ("2 points less", True)
    assert found["within 1 s (target)"].worse is True
    back = {one.name: one for one in differences(summary_of([14] * 10), summary_of([2] * 10))}
    assert (back["p99"].words, back["p99"].worse) == ("12 ms earlier (7.0 times less late)", False)
    assert back["sent"].words == ""


@pytest.mark.parametrize(
    ("late", "said"),
    [(100, "100 points less"), (96, "96 points less"), (1, "1 point less"), (0.00001, "0.00001 points less")],
)
def test_points_are_written_out(late: float, said: str) -> None:
    """No power of ten, neither for a run that missed its target as a whole nor for one message of ten million."""
    assert _share("within", 1.0, 1 - late / 100).words == said


def test_counts_are_worse_only_where_they_are_faults() -> None:
    before, now = summary_of([0] * 10), summary_of([0] * 20, overdue=7, lost=1)
    found = {one.name: one for one in differences(before, now)}
    assert (found["sent"].words, found["sent"].worse) == ("18 more", None)
    assert (found["overdue"].words, found["overdue"].worse) == ("7 more", True)
    assert (found["lost"].before, found["lost"].now, found["lost"].worse) == ("0", "1", True)
    assert found["max"].now == "at least 1 min"


def test_lower_bounds_are_no_exact_differences() -> None:
    """What waited 60 s in the earlier run came later than that: nobody knows whether 80 s are worse."""

    def p99(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, bool | None]:
        return next((one.words, one.worse) for one in differences(before, now) if one.name == "p99")

    waits = summary_of([0] * 9, overdue=1)
    assert p99(waits, summary_of([0] * 9 + [80_000])) == ("at most 20 s later", None)
    assert p99(waits, summary_of([0] * 10)) == ("at least 1 min earlier", False)
    assert p99(summary_of([0] * 9 + [80_000]), waits) == ("at most 20 s earlier", None)
    assert p99(summary_of([0] * 10), waits) == ("at least 1 min later", True)


def test_from_nothing_to_something_and_other_targets() -> None:
    found = {one.name: one for one in differences(summary_of([]), summary_of([5], target=Target(0.5, 3)))}
    assert (found["p99"].before, found["p99"].now, found["p99"].worse) == ("-", "5 ms", None)
    assert not [name for name in found if "target" in name]
    zero = {one.name: one for one in differences(summary_of([0]), summary_of([-3]))}
    assert (zero["p50"].words, zero["early"].worse) == ("3 ms earlier", True)


def test_words() -> None:
    assert in_words(differences(summary_of([1]), summary_of([1]))) == ["No percentile, share or fault differs."]
    lines = in_words(differences(summary_of([1] * 10), summary_of([1] * 10, overdue=1)))
    assert lines[0].startswith("Worse: p99 at least 60 s later")
    assert lines[0].endswith("overdue 1 more.")
    brief = in_words(differences(summary_of([1] * 10), summary_of([1] * 10, overdue=1)), brief=True)
    assert brief[0].count("later") == 2, "p99 and max"


def test_the_page_has_both_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: extra bench")
    import pyarrow as pa

    from bench.lateness.pipeline import write_result
    from bench.report import lateness_page

    monkeypatch.setattr("bench.report.pieces.page.drawn", lambda chart: f"<div>{chart.key}</div>")
    before = result_of(["a"], [Message("a", AS_OF_MS, 3)])
    tables = {
        name: pa.table({column: pa.array(values.tolist()) for column, values in table.columns.items()})
        for name, table in before.histograms.items()
    }
    write_result(tmp_path, before.summary, tables)
    now = result_of(["a"], [Message("a", AS_OF_MS, 9)])
    now.summary["run"] = {"baseline": str(tmp_path)}
    text = lateness_page.render(now)
    assert '<section id="baseline">' in text
    assert "Worse: p50 6 ms later (3.0 times as late)" in text
    assert "ccdf-baseline" in text
    (tmp_path / "summary.json").unlink()
    assert "The baseline cannot be read any more" in lateness_page.render(now)
