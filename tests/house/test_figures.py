"""README's table of sends shows the figures of docs/benchmarks.md, rounded, in the same order: the worst first."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
FAST = "### Sends, five turns, compiled build, a fast machine"
COUNTS = {"one": "1", "16": "16", "100": "100"}


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, without its head."""
    lines = text[text.index(heading) :].splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip(" *") for cell in line.strip("|").split("|")])
    return table


def number(cell: str) -> float:
    """The first number of a cell; the range in brackets follows the median."""
    found = NUMBER.search(cell)
    assert found is not None, cell
    return float(found[0].replace(",", ""))


def measured(heading: str) -> dict[str, list[float]]:
    """Ours, Apache's and the ratio by row, as in docs/benchmarks.md, in its order."""
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    return {cells[0]: [number(cell) for cell in cells[1:4]] for cells in rows(text, heading) if cells[2] != "-"}


def name_of(words: str) -> str:
    """The row's name in docs/benchmarks.md."""
    kind = "timed" if words.startswith("timed") else "normal"
    if "batches" in words:
        return f"{kind} batches of 100, messages/s"
    connections = re.search(r"(one|16) connections?", words)
    in_flight = re.search(r"(one|16|100) in flight", words)
    assert connections is not None, words
    assert in_flight is not None, words
    return f"{kind}, {COUNTS[connections[1]]}x{COUNTS[in_flight[1]]}"


def test_readme_shows_the_measured_sends_the_worst_first() -> None:
    compiled = measured("### Sends, five turns, compiled build\n")
    pure = measured("### Sends, five turns, pure build")
    shown = rows((ROOT / "README.md").read_text("utf-8"), "Accepted sends per second")
    assert [name_of(cells[0]) for cells in shown] == list(compiled)
    for cells in shown:
        name = name_of(cells[0])
        ours, apache, ratio, pure_ratio = map(number, cells[1:5])
        assert abs(ours - compiled[name][0]) <= 0.005 * ours, cells
        assert abs(apache - compiled[name][1]) <= 0.005 * apache, cells
        assert abs(ratio - compiled[name][2]) <= 0.0501, cells
        assert abs(pure_ratio - pure[name][2]) <= 0.0501, cells


def test_readme_tells_the_span_of_the_fast_day() -> None:
    table = measured(FAST)
    batches = table.pop("normal batches of 100, messages/s")
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    span = [int(min(values[0] for values in table.values()) // 1000), round(max(v[0] for v in table.values()) / 1000)]
    assert f"six of these shapes take {span[0]},000 to {span[1]},000 messages a second, " in text
    least, most = (at(values[2] for values in table.values()) for at in (min, max))
    assert f"{least:.2f} to {most:.2f} times Apache's; " in text
    assert f"batches of ordinary messages {round(batches[0] / 10_000)}0,000, {batches[2]:.2f} times" in text


def test_tables_of_sends_have_the_worst_ratio_first() -> None:
    for heading in ("### Sends, five turns, compiled build\n", FAST, "### Sends, five turns, pure build"):
        ratios = [values[2] for values in measured(heading).values()]
        assert ratios == sorted(ratios), heading
        for name, (ours, apache, ratio) in measured(heading).items():
            assert abs(ours / apache - ratio) <= 0.0051, name
