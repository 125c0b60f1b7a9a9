"""The page of the benchmark command: what was measured is in it, whatever is missing is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.figures.results import sections_of, write
from bench.figures.stats import median
from bench.figures.table import number
from bench.report import ReportError, __main__, bench_page, write_report
from tests.bench.bench_world import SYSTEMS, results_of
from tests.bench.test_report_page import Page, words

pytest.importorskip("matplotlib", reason="matplotlib is not installed: extra bench")


def test_every_median_and_every_system_is_on_the_page() -> None:
    content = results_of()
    text = bench_page.render(content)
    page = Page(text)
    assert page.sections == ["w-0", "w-1", "w-2", "w-3", "machine"]
    assert not page.fetches
    assert len(page.ids) == len(set(page.ids))
    seen = words(text)
    for section in sections_of(content):
        assert section.title in seen
        for figure in section.figures:
            if figure.better:
                assert number(median(figure.values)) in seen
    assert "its archive could not be had" in seen
    assert "probes: 200/s <around> it" in seen
    for system in SYSTEMS:
        assert re.search(rf"<desc [^>]+>[^<]*{system}", text)
    assert "More is better." in text
    assert "10,000" in seen


def test_repeats_are_one_curve_in_the_legend() -> None:
    text = bench_page.render(results_of(("timewheel", "apache"), repeats=3))
    legend = re.search(r'<svg [^>]*aria-labelledby="w1-c0-wide-title.*?</svg>', text, re.DOTALL)
    assert legend is not None
    assert len(re.findall(r">timewheel</text>", legend[0])) == 1


def test_failures_stand_on_top() -> None:
    content = results_of(("timewheel",), repeats=1)
    content["sections"][0]["failures"] = ["3 of 100 messages lost: timed"]
    assert 'class="verdict bad">FAILED: 3 of 100 messages lost: timed' in bench_page.render(content)


def test_nothing_measured() -> None:
    content = results_of((), repeats=1)
    assert words(bench_page.render(content)).count("Nothing was measured.") == 4
    assert Page(bench_page.render({**content, "sections": []})).sections == ["machine"]


def test_a_folder_is_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(results_of(("timewheel", "apache"), repeats=1), tmp_path)
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path)])
    assert __main__.main() == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert "Timewheel beside its peers" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [("nothing", "", "is no result"), ("results.json", json.dumps({"schema": "x"}), "run the benchmark again"),
     ("summary.json", json.dumps({"version": 99}), "version 99"), ("summary.json", "{", "is not JSON")],
)  # fmt: skip
def test_a_folder_that_is_no_result(tmp_path: Path, name: str, text: str, says: str) -> None:
    if name == "summary.json":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: extra spark")
    (tmp_path / name).write_text(text)
    with pytest.raises(ReportError, match=says):
        write_report(tmp_path)


def test_wrong_arguments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["report"])
    assert __main__.main() == 2
    assert "usage:" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path)])
    assert __main__.main() == 1
    assert "is no result" in capsys.readouterr().err
