"""The arithmetic of the tables, and the document that the page and the tables are made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures.results import Case, Curve, Section, SystemNote, document, joined, ratios, read, sections_of, write
from bench.figures.stats import ccdf, percentile, ratio, weighted_percentile
from bench.figures.table import markdown, number, rows

MACHINE = {
    "cpu": "A CPU",
    "cores": 2,
    "memory_bytes": 24 << 30,
    "filesystem": "ext4",
    "kernel": "Linux 6",
    "python": "3.11",
}


def section() -> Section:
    found = Section("send", "Sends accepted a second")
    for shape, ours, theirs in (("1x1", [10.0, 30.0, 20.0], [10.0]), ("16x1", [50.0], [100.0])):
        case: Case = {"kind": "timed", "shape": shape, "body_bytes": 1024}
        for value in ours:
            found.add("timewheel", case, "accepted", "1/s", "higher", value)
        for value in theirs:
            found.add("apache", case, "accepted", "1/s", "higher", value)
        found.add("timewheel", case, "reply p50", "µs", "", 5.0)
    found.curves.append(Curve("apache", {"kind": "timed"}, "ccdf", "ms", [1.0, 2.0], [1.0, 0.5]))
    return found


def test_values_of_repeats_gather_in_one_figure_with_a_ratio_to_each_peer() -> None:
    found = section()
    assert [len(figure.values) for figure in found.figures] == [3, 1, 1, 1, 1, 1]
    assert ratios(found, found.figures[0]) == {"apache": 2.0}
    assert ratios(found, found.figures[1]) == {}


def test_less_is_better_where_it_is() -> None:
    assert ratio(2, 10, "lower") == 5
    assert ratio(2, 10, "higher") == 0.2
    assert ratio(0, 10, "lower") is None


def test_a_table_names_what_is_common_once_and_leaves_details_out() -> None:
    titles, lines = rows(section())
    assert titles == ["case", "metric", "timewheel", "apache"]
    assert lines[0] == ["1x1", "accepted [1/s]", "20 (10-30)", "10 2x"]
    assert len(lines) == 2
    assert len(rows(section(), details=True)[1]) == 4
    text = markdown(MACHINE, [section()])
    assert "### Sends accepted a second (timed 1024 B)" in text
    assert "| 16x1 | accepted [1/s] | 50 | 100 0.50x |" in text


def test_a_document_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    content = document("timewheel bench send", True, MACHINE, [SystemNote("apache", "Apache", "5.5.0")], [section()])
    path = write(content, tmp_path / "new")
    assert read(path) == json.loads(json.dumps(content))
    assert sections_of(read(path)) == [section()]
    first = content["sections"][0]["figures"][0]
    assert (first["median"], first["min"], first["max"], first["ratios"]) == (20.0, 10.0, 30.0, {"apache": 2.0})


def test_turns_of_two_runs_are_put_together() -> None:
    systems = [SystemNote("apache", "Apache", "5.5.0")]
    one, two = (document("timewheel bench send", False, MACHINE, systems, [section()]) for _ in range(2))
    two["sections"][0]["figures"][0]["values"] = [40.0]
    two["sections"][0]["notes"] = ["warmed for 60 s"]
    (whole,) = joined([one, two])
    assert whole.figures[0].values == [10.0, 30.0, 20.0, 40.0]
    assert [len(figure.values) for figure in whole.figures] == [4, 2, 2, 2, 2, 2]
    assert ratios(whole, whole.figures[0]) == {"apache": 2.5}
    assert whole.notes == ["warmed for 60 s"]
    assert len(whole.curves) == 2
    assert joined([one]) == sections_of(one)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda content: content["machine"].update(cpu="Another"), "two machines .cpu: 'A CPU' and 'Another'"),
        (lambda content: content["systems"][0].update(version="5.6.0"), "Apache is there with version '5.5.0' and"),
        (
            lambda content: content["systems"][0]["configuration"].update(heap="1g"),
            "Apache is there with configuration",
        ),
    ],
)
def test_results_that_do_not_compare_are_not_put_together(what: Any, words: str) -> None:
    systems = [SystemNote("apache", "Apache", "5.5.0", {"heap": "4g"})]
    one, two = (document("timewheel bench send", False, dict(MACHINE), systems, [section()]) for _ in range(2))
    what(two)
    with pytest.raises(ValueError, match=words):
        joined([one, two])


def test_another_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"schema": "timewheel-bench/0"}')
    with pytest.raises(ValueError, match="run the benchmark again"):
        read(path)


@pytest.mark.parametrize(("value", "text"), [(12345.6, "12,346"), (12.345, "12.3"), (0.1234, "0.12"), (3, "3")])
def test_numbers_have_as_many_digits_as_they_deserve(value: float, text: str) -> None:
    assert number(value) == text


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=30), st.floats(0, 1))
def test_weighted_percentile_is_the_percentile_of_all_values(pairs: list[tuple[int, int]], share: float) -> None:
    spread = sorted(float(value) for value, count in pairs for _ in range(count))
    assert weighted_percentile([(float(v), float(c)) for v, c in pairs], [share]) == [percentile(spread, share)]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=500))
def test_ccdf_falls_from_the_least_value_to_the_greatest(values: list[float]) -> None:
    xs, shares = ccdf(np.array(values))
    assert xs == sorted(xs)
    assert shares == sorted(shares, reverse=True)
    assert xs[-1] == round(max(values), 4)
    assert len(xs) == len(shares) >= 1
