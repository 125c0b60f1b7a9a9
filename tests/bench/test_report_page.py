"""The lateness page: every section in its order, the figures of the input and no others, nothing to fetch."""

from __future__ import annotations

import base64
import html
import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bench.figures.text import utc
from bench.lateness.results.result import Result
from bench.lateness.results.target import Target
from bench.report import lateness_page
from bench.report.charts.canvas import drawn as drawn_svg
from bench.report.charts.heatmap import coarser, heatmap_chart
from bench.report.charts.histogram import Histogram
from bench.report.pieces import groupings
from bench.report.pieces.page import Html
from bench.report.pieces.tables import Groups, by_group
from tests.bench.report_world import AS_OF_MS, Message, apache_like, ours_like, result_of

pytest.importorskip("matplotlib", reason="matplotlib is not installed: extra bench")

SECTIONS = (
    "verdict", "budget", "latest", "ccdf", "heatmap", "over-time", "crowds", "requested", "within-second", "topics",
    "sources", "run", "definitions", "damage",
)  # fmt: skip
VOID = {"meta", "br", "hr", "img", "input", "link"}
OVERDUE = [Message("timewheel", AS_OF_MS - 30_000 * k, 30_000 * k, censored=True) for k in range(1, 8)]


class Page(HTMLParser):
    """Reads a page: sections, words, tags that could fetch, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: list[str] = []
        self.fetches: list[str] = []
        self.ids: list[str] = []
        self.scripts = 0
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        found = dict(attrs)
        if tag == "section":
            self.sections.append(found["id"] or "")
        if "id" in found:
            self.ids.append(found["id"] or "")
        self.scripts += tag == "script" and not found
        if (tag == "script" and found) or tag in ("link", "iframe", "object", "embed", "base"):
            self.fetches.append(tag)
        for name, value in found.items():
            reads = name in ("src", "srcset", "href", "xlink:href", "data", "action") or "url(" in (value or "")
            beside = tag == "a" and re.fullmatch(r"summary\.json|histograms/[a-z0-9_-]+\.(parquet|hgrm)", value or "")
            if reads and not beside and not re.match(r"#|.*url\(#", value or ""):
                self.fetches.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def words(text: str) -> str:
    """What a reader sees, one space between words."""
    bare = re.sub(r"<(style|svg|script)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", bare)))


def drawn(result: Result) -> str:
    text = lateness_page.render(result)
    page = Page(text)
    several = len(result.source_names) > 1
    left_out = {name for name, there in (("sources", several), ("latest", "latest" in result.summary)) if not there}
    assert page.sections == [name for name in SECTIONS if name not in left_out]
    assert page.scripts == 1
    assert not page.fetches
    assert len(page.ids) == len(set(page.ids)), "ids are used twice"
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    assert "@import" not in text
    assert "default-src 'none'" in text
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script is not None
    allowed = base64.b64encode(sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}';" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]", text)
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", words(text))
    return text


@pytest.fixture
def words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing: pictures are most of what a page costs, and what this test reads stands beside them."""
    monkeypatch.setattr(
        "bench.report.pieces.page.drawn", lambda chart: f'<div class="wide">{html.escape(chart.key)}</div>'
    )


@pytest.fixture(scope="module")
def two() -> tuple[Result, str]:
    messages = ours_like("timewheel", 2_000, 1, 20) + apache_like("apache-5.5.0", 2_000, 2, 20) + OVERDUE
    damaged = [{"file": "00000000000000000000", "offset": 123_456, "bytes": 400, "why": "body checksum <wrong>"}]
    received = [Message(m.source, m.due_ms, m.lateness_ms + 1, m.topic) for m in messages if not m.censored]
    result = result_of(
        ["timewheel", "apache-5.5.0"], messages, received=received, damaged=damaged,
        pending=21, cancelled=4, repeated=3,
        expectations=[{"text": "p99 <= 10ms", "value": 1_034, "at_least": True, "holds": False}],
    )  # fmt: skip
    return result, drawn(result)


def test_counts_and_percentiles_are_those_of_the_input(two: tuple[Result, str]) -> None:
    result, text = two
    seen = words(text).replace("\u00a0", " ")
    total = result.summary["total"]
    for name in ("sent", "delivered", "pending", "overdue", "lost", "repeated", "early", "cancelled"):
        assert f" {name} {total[name]:,} " in seen
    for part in (total, total["end_to_end"], *result.summary["sources"]):
        for value in part["percentiles"].values():
            assert f"{value:,} ms" in seen
    assert "Expectations: 0 of 1 hold." in seen
    assert "p99 <= 10ms at least 1,034 ms FAILS" in seen
    assert "target, 99.9 % within 1 s" in seen
    assert 'class="verdict bad"' in text


def test_shares_are_exact_and_their_pictures_say_so(two: tuple[Result, str]) -> None:
    _, text = two
    description = re.search(r'<desc id="within-wide-desc">(.*?)</desc>', text)
    assert description is not None
    for source in ("timewheel", "apache-5.5.0"):
        assert source in description[1]
    late = [m for m in apache_like("apache-5.5.0", 2_000, 2, 20) if m.lateness_ms > 100]
    share = f"{(2_000 - len(late)) / 20:.2f}".rstrip("0").rstrip(".")
    assert f"{share}\u00a0% within 100 ms" in description[1]


def test_overdue_messages_are_in_the_curve_and_counted(two: tuple[Result, str]) -> None:
    _, text = two
    assert "timewheel: 7 overdue so far" in text
    assert "7 overdue messages are in the curves" in words(text)
    assert "7 messages are overdue: by the time at which they were due." in words(text)


def test_damage_is_told_by_file_and_offset(two: tuple[Result, str]) -> None:
    _, text = two
    assert "00000000000000000000 123,456 400 body checksum <wrong>" in words(text)
    assert "checksum <wrong>" not in text


def test_definitions_and_what_was_read_are_there(two: tuple[Result, str]) -> None:
    result, text = two
    for term, meaning in result.summary["definitions"].items():
        assert f"{term} {meaning}" in words(text)
    assert "/var/lib/apache-5.5.0/store" in text
    assert "Nothing is trimmed" in text


def test_every_picture_has_two_sizes_a_title_and_a_description(two: tuple[Result, str]) -> None:
    _, text = two
    svgs = re.findall(r"<svg\b.*?</svg>", text, re.DOTALL)
    assert len(svgs) >= 24
    for svg in svgs:
        assert re.search(r"<title [^>]+>[^<]+</title>", svg)
        assert re.search(r"<desc [^>]+>[^<]{20,}</desc>", svg)
    assert text.count('class="wide"') == text.count('class="narrow"') == len(svgs) // 2


def test_the_page_depends_on_its_input_alone() -> None:
    result = result_of(["timewheel"], ours_like("timewheel", 50, 3, 2))
    assert lateness_page.render(result) == lateness_page.render(result)


def test_nothing_was_read() -> None:
    seen = words(drawn(result_of([], [])))
    assert "No delayed message was found" in seen
    assert "No source was read." in seen


def test_a_log_without_delayed_messages() -> None:
    text = drawn(result_of(["timewheel"], []))
    assert "No delayed message was found" in words(text)
    assert "<figure" not in text
    assert words(text).count("Nothing was delivered") >= 5


def test_only_overdue_messages() -> None:
    text = drawn(result_of(["timewheel"], OVERDUE))
    says = words(text).replace("\u00a0", " ")
    assert "0 of 7 delayed messages delivered, one of 100 at least 3.5 min late; 7 overdue." in says
    assert "Target: 99.9 % within 1 s, MISSED (0 %)." in says
    assert 'class="verdict bad"' in text
    assert 'id="ccdf-broker"' in text
    assert 'id="overdue"' in text
    assert 'id="heatmap-0"' not in text


def test_lower_bounds_are_said_as_such() -> None:
    messages = [Message("timewheel", AS_OF_MS - 5_000, 5_000, censored=True), Message("timewheel", AS_OF_MS, 3)]
    says = words(drawn(result_of(["timewheel"], messages))).replace("\u00a0", " ")
    assert "p99 5,000 ms at least; 1 of 100 is so late" in says
    assert "max 5,000 ms at least; it still waits" in says
    assert "99 of 100 are not later" not in says


def test_no_figure_is_beyond_the_exact_maximum() -> None:
    """The tables have the highest value of the class, 21,299 ms."""
    result = result_of(["timewheel"], [Message("timewheel", AS_OF_MS - 60_000, late) for late in (5, 21_299)])
    for one in (result.summary["total"], *result.summary["sources"]):
        one["percentiles"] = {name: min(value, 21_219) for name, value in one["percentiles"].items()}
    seen = words(drawn(result))
    assert "21.2" in seen
    assert "21.3" not in seen
    assert "21,299" not in seen


def test_one_message() -> None:
    text = drawn(result_of(["timewheel"], [Message("timewheel", AS_OF_MS, 0)]))
    assert "1 of 1 delayed messages delivered" in words(text)
    assert "none lost, early, repeated or overdue" in words(text)


def test_three_sources_and_many_topics() -> None:
    names = ["timewheel", "apache-5.5.0", "a broker with a name that does not fit into any legend & <markup>"]
    messages = [
        Message(names[n % 3], AS_OF_MS - n * 997, n % 40, f"topic-of-a-team-with-a-long-name-{n % 50}")
        for n in range(900)
    ]
    text = drawn(result_of(names, messages))
    assert all(f'id="heatmap-{n}"' in text for n in range(3))
    assert "more, together" in text
    assert "&lt;markup&gt;" in text
    assert "<markup" not in text


def test_huge_counts_and_early_messages() -> None:
    messages = [Message("timewheel", AS_OF_MS - k * 60_000, -k * 7, times=10**12) for k in range(1, 30)]
    text = drawn(result_of(["timewheel"], messages))
    assert "29,000,000,000,000 early" in words(text)
    assert 'class="verdict bad"' in text


@pytest.mark.parametrize("lateness", [10**9, 4 * 10**12, 2**53])
def test_lateness_of_weeks_and_centuries(lateness: int) -> None:
    text = drawn(result_of(["timewheel"], [Message("timewheel", AS_OF_MS, late) for late in (0, 1, lateness)]))
    assert f"{lateness:,}" in words(text).replace("\u00a0", " ")


def test_due_times_far_apart_and_beyond_the_calendar() -> None:
    dues = [0, AS_OF_MS, 250 * 31_557_600_000, 10**16]
    drawn(result_of(["timewheel"], [Message("timewheel", due, 1) for due in dues]))


@pytest.mark.usefixtures("words_only")
def test_choice_by_due_time_is_told() -> None:
    result = result_of(["timewheel"], [Message("timewheel", AS_OF_MS, 0)])
    result.summary["since_ms"] = AS_OF_MS - 1
    assert "Chosen by due time: from 2025-10-09 09:53:19 UTC" in words(drawn(result))


@pytest.mark.usefixtures("words_only")
def test_many_damaged_regions_and_a_torn_tail() -> None:
    damaged: list[dict[str, Any]] = [{"file": "f", "offset": n, "bytes": 1, "why": "magic"} for n in range(100)]
    result = result_of(["timewheel"], [Message("timewheel", AS_OF_MS, 0)], damaged=damaged)
    source = result.summary["sources"][0]
    source["damaged_count"] = 250
    source["torn_tail"] = {"file": "00000000001073741824", "offset": 77_000, "bytes": 12, "why": "cut off"}
    seen = words(drawn(result))
    assert "250 regions" in seen
    assert "150 of them are not listed" in seen
    assert "in 00000000001073741824 at offset 77,000, there are 12 bytes" in seen


@pytest.mark.usefixtures("words_only")
def test_a_file_is_written_whole(tmp_path: Path) -> None:
    result = result_of(["timewheel"], [Message("timewheel", AS_OF_MS, 0)])
    lateness_page.write(result, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == lateness_page.render(result)


@pytest.mark.usefixtures("words_only")
def test_groupings_that_were_not_asked_for_are_told() -> None:
    result = result_of(["timewheel"], [Message("timewheel", AS_OF_MS, 3)])
    for name in [name for name in result.histograms if name != "topic"]:
        del result.histograms[name]
    seen = words(drawn(result))
    assert "Not counted: --by left minute out." in seen
    assert "Not counted: --by left ms_in_second out." in seen
    assert "1 of 1 delayed messages delivered" in seen


@pytest.mark.usefixtures("words_only")
def test_nothing_is_said_of_expectations_where_none_were_given() -> None:
    assert "xpectation" not in words(drawn(result_of(["timewheel"], [Message("timewheel", AS_OF_MS, 0)])))


@pytest.mark.usefixtures("words_only")
def test_percentiles_are_tiles_and_say_what_they_mean() -> None:
    messages = [Message("timewheel", AS_OF_MS - 60_000, late) for late in (*range(99), 3_565_000)]
    text = drawn(result_of(["timewheel"], messages))
    tiles = re.search(r'<dl class="tiles large">(.*?)</dl>', text, re.DOTALL)
    assert tiles is not None
    seen = words(tiles[1]).replace("\u00a0", " ")
    assert "p50 49 ms half are not later" in seen
    assert "max 59 min 3,565,000 ms" in seen
    assert "within 1 s 99 % target 99.9 %" in seen
    assert tiles[1].count('class="bad"') == 3, "p99.9, p99.99 and the share; max belongs to no target"
    assert "<strong>Target missed</strong>" in text


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</svg></desc></title><b>",
    "a\x00b\x1b[31mred\r\nnext\tline",
    "\u202eright to left\u2066",
    "\u05e9\u05dc\u05d5\u05dd",
    "\ud800 alone",
    "x" * 30_000,
    "_starts with an underscore",
    "$\\frac{1}{2}$ & %s {0}",
    "\u4e3b\u9898 \U0001f4a5",
    "",
]


def test_no_name_breaks_the_page() -> None:
    """Topics, sources, reasons, expectations and command lines of anybody's making."""
    sources = [HOSTILE[0], HOSTILE[3] + HOSTILE[4], HOSTILE[6]]
    messages = [
        Message(sources[k % 3], AS_OF_MS - k * 1_000, k % 3, name) for k in range(9) for name in HOSTILE
    ]  # fmt: skip
    result = result_of(
        sources, messages, not_known=HOSTILE,
        damaged=[{"file": name, "offset": 1, "bytes": 2, "why": name} for name in HOSTILE],
        expectations=[{"text": name, "value": None, "holds": False} for name in HOSTILE],
    )  # fmt: skip
    result.summary["run"] = {"command": "".join(HOSTILE), "host": HOSTILE[3], "versions": dict.fromkeys(HOSTILE, "<b>")}
    text = drawn(result)
    text.encode("utf-8")
    assert "<b>" not in text
    assert "<img" not in text
    assert "alert(1)<" not in text
    assert text.count("<script>") == 1


@pytest.mark.usefixtures("words_only")
def test_the_latest_messages_by_topic_key_and_id() -> None:
    result = result_of(["timewheel"], [Message("timewheel", AS_OF_MS, 7)])
    one = {"source": "timewheel", "topic": "orders", "key": "k-1", "message_id": "7F00", "delay_id": "1a",
           "due_ms": AS_OF_MS, "lateness_ms": 70_000, "overdue": True, "offset": None}  # fmt: skip
    result.summary["latest"] = [one, *({**one, "topic": name, "key": name, "message_id": None} for name in HOSTILE)]
    text = drawn(result)
    seen = words(text).replace("\u00a0", " ")
    assert "at least 1.2 min 2025-10-09 09:53:20 UTC orders k-1 7F00 1a" in seen
    assert "<b>" not in text
    assert 'data-v="70000"' in text
    result.summary["latest"] = []
    assert "No message was late, not by a millisecond." in words(drawn(result))


@pytest.mark.usefixtures("words_only")
def test_a_run_tells_its_command_and_links_its_files(tmp_path: Path) -> None:
    result = result_of(["timewheel"], [Message("timewheel", AS_OF_MS, 3)])
    (tmp_path / "histograms").mkdir()
    (tmp_path / "histograms" / "lateness.hgrm").write_text("")
    result.summary["run"] = {"command": "timewheel lateness a --out b", "versions": {"numpy": "2.0"}, "host": "h"}
    text = drawn(Result(tmp_path, result.summary, result.histograms))
    assert "command timewheel lateness a --out b" in words(text)
    assert "versions numpy 2.0" in words(text)
    for path in ("summary.json", "histograms/topic.parquet", "histograms/lateness.hgrm"):
        assert f'href="{path}"' in text


@pytest.mark.usefixtures("words_only")
def test_the_budget_and_how_fast_it_burns() -> None:
    """600 s with a message each second, all in time but for a minute of them: 60 of 600 missed, 6 may."""
    begin = AS_OF_MS - 600_000
    messages = [Message("timewheel", begin + k * 1_000, 2_000 if 300 <= k < 360 else 3) for k in range(600)]
    seen = words(drawn(result_of(["timewheel"], messages, target=Target(0.99, 1_000)))).replace("\u00a0", " ")
    assert "were due 600 may miss 6 missed 60 budget used 1,000 % beyond it 54" in seen
    # In its last five minutes: 60 of 300 less the minute that is over; the worst minute missed all.
    assert "1 min 0 of 60 0 100 2025-10-09 09:49:20 UTC" in seen
    assert "the whole run 60 of 600 10 10" in seen
    assert "each second of them missed the target" in seen
    assert "2025-10-09 09:48:20 UTC 1 min 60 100 % 2,000 ms 2,000 ms 0" in seen


def test_cells_are_as_short_as_the_run() -> None:
    result = result_of(["a"], [Message("a", AS_OF_MS - k * 1_000, 3) for k in range(27)])
    cells = by_group(result.histograms["cell"], ("cell_ms",), ["a"])["a"]
    assert len(cells) == 27
    chart = heatmap_chart("h", "a", {k: one.delivered for k, one in cells.items()}, result.summary["cell_ms"])
    assert chart is not None
    assert "messages due in a second" in drawn_svg(chart)


@pytest.mark.usefixtures("words_only")
def test_a_long_run_is_drawn_from_few_cells_and_judged_by_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A year has half a million minutes: no picture needs them, but the worst one is told by the minute."""
    widths: list[tuple[int, int]] = []
    over_time = groupings.over_time

    def told(cells: Groups, least_ms: int, limit_ms: int) -> Html:
        widths.append((len(cells["a"]), least_ms))
        return over_time(cells, least_ms, limit_ms)

    monkeypatch.setattr(groupings, "over_time", told)
    begin = AS_OF_MS - AS_OF_MS % 86_400_000 - 30 * 86_400_000
    messages = [Message("a", begin + k * 600_000, 3) for k in range(30 * 144)]
    messages += [Message("a", begin + 7 * 60_000, 5_000, times=9), Message("a", begin + 9 * 60_000, 6_000)]
    result = result_of(["a"], messages)
    seen = words(drawn(result)).replace("\u00a0", " ")
    assert widths == [(30 * 48, 30 * 60_000)]
    assert f"{utc(begin + 7 * 60_000)} 1 min 9 100 % 5,000 ms 5,000 ms 0" in seen
    assert f"{utc(begin + 9 * 60_000)} 1 min 1 100 % 6,000 ms 6,000 ms 0" in seen


def test_columns_are_whole_numbers_of_cells() -> None:
    one = Histogram.of({0: 1})
    for cell, cells, width in (
        (1_000, 100, 1_000),
        (1_000, 900, 10_000),
        (10_000, 900, 120_000),
        (60_000, 119, 60_000),
    ):
        found, columns = coarser({k * cell: one for k in range(cells)}, 120, cell)
        assert found == width
        assert sum(column.total for column in columns.values()) == cells
