"""Report pages in a real headless Chromium: opened from disk, nothing fetched, nothing cut off, printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.lateness.results.result import Result
from bench.report import bench_page, lateness_page
from tests.bench.bench_world import results_of
from tests.bench.report_world import AS_OF_MS, Message, apache_like, ours_like, result_of
from tests.support.chromium import Chromium

pytestmark = pytest.mark.chromium

LONG = "a-broker-with-a-name-that-does-not-fit-into-any-legend-or-title-of-a-picture"
WIDTHS = (1280, 390)

# Text of the pictures and cells of the page that reach out of the window, by more than a rounding.
CUT_OFF = """
[...document.querySelectorAll('svg text, h1, h2, p, dd, figcaption')]
  .filter(e => e.getClientRects().length)
  .map(e => [e.textContent.trim(), e.getBoundingClientRect()])
  .filter(([t, b]) => t && (b.left < -1 || b.right > document.documentElement.clientWidth + 1))
  .map(([t, b]) => `${t} (${Math.round(b.left)} to ${Math.round(b.right)})`)
"""
# Labels of the same axis or legend that lie on each other.
OVERLAPPING = """
[...document.querySelectorAll('svg')].filter(s => s.getClientRects().length).flatMap(s => {
  const found = [...s.querySelectorAll('text')].map(t => [t.textContent.trim(), t.getBoundingClientRect()])
    .filter(([t, b]) => t && b.width > 0);
  const hits = [];
  found.forEach(([t, a], n) => found.slice(n + 1).forEach(([u, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 2 && down > 4) hits.push(`${s.querySelector('title').textContent}: ${t} | ${u}`);
  }));
  return hits;
})
"""


def results() -> dict[str, Result]:
    overdue = [Message("timewheel", AS_OF_MS - 30_000 * k, 30_000 * k, censored=True) for k in range(1, 8)]
    two = ours_like("timewheel", 3_000, 1) + apache_like("apache-5.5.0", 3_000, 2)
    early = [Message("timewheel", AS_OF_MS - k * 1_000, -k * 3, times=10**12) for k in range(1, 50)]
    damaged = [{"file": "0" * 20, "offset": 5 * k, "bytes": 4, "why": "no magic code"} for k in range(3)]
    return {
        "none": result_of([], []),
        "one": result_of(["timewheel"], ours_like("timewheel", 200, 3, 1)),
        "two": result_of(["timewheel", "apache-5.5.0"], two + overdue, damaged=damaged, received=two),
        "three": result_of(["timewheel", "apache-5.5.0", LONG], two + apache_like(LONG, 500, 4)),
        "overdue": result_of(["timewheel"], overdue),
        "early": result_of(["timewheel"], early + ours_like("timewheel", 200, 5, 3_000)),
    }


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for name, result in results().items():
        paths[name] = folder / f"{name}.html"
        lateness_page.write(result, paths[name])
    paths["bench"] = folder / "bench.html"
    bench_page.write(results_of(), paths["bench"])
    return paths


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_open_from_disk(browser: Chromium, pages: dict[str, Path], width: int, dark: bool) -> None:
    for name, path in pages.items():
        seen = browser.open(path, width, dark=dark)
        assert seen.requests == [path.as_uri()], name
        assert seen.complaints == [], name
        assert seen.content_px <= seen.window_px == width, name


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off_or_overlaps(browser: Chromium, pages: dict[str, Path], width: int) -> None:
    for name, path in pages.items():
        browser.open(path, width)
        assert browser.evaluate(CUT_OFF) == [], name
        assert browser.evaluate(OVERLAPPING) == [], name


LATEST = [
    {
        "source": "timewheel", "topic": "orders-of-a-topic-with-a-long-name", "key": f"order-{number:030}",
        "message_id": f"7F0000010000{number:020X}", "delay_id": f"{(1 << 40) + number:x}", "overdue": number < 50,
        "due_ms": AS_OF_MS - number, "lateness_ms": 3_600_000 - number, "offset": number,
    }
    for number in range(100)
]  # fmt: skip


def test_a_long_table_takes_a_part_of_a_phones_screen(browser: Chromium, tmp_path: Path) -> None:
    """It scrolls by itself, in both ways, with its head in place; a row is one line. A wide page shows all of it."""
    result = result_of(["timewheel"], ours_like("timewheel", 200, 3, 1))
    result.summary["latest"] = LATEST
    lateness_page.write(result, tmp_path / "page.html")
    script = """(() => {
      const section = document.querySelector('#latest'), table = section.querySelector('table');
      const box = table.parentElement, head = table.tHead.rows[0].cells[0], rows = [...table.tBodies[0].rows];
      box.scrollTo(0, 1000);
      const top = head.getBoundingClientRect().top - box.getBoundingClientRect().top;
      return [section.offsetHeight, Math.max(...rows.map(r => r.offsetHeight)), box.scrollTop, Math.round(top)];
    })()"""
    seen = browser.open(tmp_path / "page.html", 390)
    assert seen.content_px <= seen.window_px == 390
    height, row, scrolled, head = browser.evaluate(script)
    assert height < 900, "the window's height"
    assert row < 40
    assert (scrolled, head) == (1_000, 0)
    browser.open(tmp_path / "page.html", 1280)
    height, _, scrolled, _ = browser.evaluate(script)
    assert height > 100 * 20
    assert scrolled == 0


def test_one_size_of_each_picture_is_shown(browser: Chromium, pages: dict[str, Path]) -> None:
    shown = "[...document.querySelectorAll('figure > div')].filter(e => e.offsetHeight > 20).map(e => e.className)"
    for width, name in ((1280, "wide"), (390, "narrow")):
        browser.open(pages["two"], width)
        found = browser.evaluate(shown)
        assert set(found) == {name}
        assert len(found) == browser.evaluate("document.querySelectorAll('figure').length") >= 12


def test_text_can_be_told_from_its_ground(browser: Chromium, pages: dict[str, Path]) -> None:
    """Contrast of text with the page's ground is at least 4.5 (WCAG AA), light and dark."""
    script = """(() => {
      const light = c => { const [r, g, b] = c.match(/\\d+/g).slice(0, 3).map(v => v / 255)
        .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
      const ground = light(getComputedStyle(document.body).backgroundColor);
      const ratio = l => (Math.max(l, ground) + .05) / (Math.min(l, ground) + .05);
      return [...document.querySelectorAll('svg text, p, td, th, dt, dd, figcaption')].map(e => {
        const style = getComputedStyle(e); return ratio(light(e.closest('svg') ? style.fill : style.color)); });
    })()"""
    for dark in (False, True):
        browser.open(pages["two"], 1280, dark=dark)
        found = browser.evaluate(script)
        assert len(found) > 300
        assert min(found) >= 4.5, json.dumps(sorted(found)[:3])


def test_a_click_on_a_head_sorts_the_table(browser: Chromium, pages: dict[str, Path]) -> None:
    """Upwards, then downwards, by value: 1 min comes after 30 s. A second column sorts anew."""
    script = """(() => {
      const table = [...document.querySelectorAll('table.sorts')].find(t => t.tHead.textContent.includes('latest'));
      const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
      const at = heads.findIndex(h => h.textContent.trim() === 'latest');
      const shown = () => [...body.rows].map(row => row.cells[at].textContent.replace('\u00a0', ' '));
      const found = [];
      for (const head of [heads[at], heads[at], heads[0], heads[at]]) {
        head.querySelector('button').click();
        found.push([shown(), head.ariaSort]);
      }
      return found;
    })()"""
    browser.open(pages["overdue"], 1280)
    rising = ["30 s", "1 min", "1.5 min", "2 min", "2.5 min", "3 min", "3.5 min"]
    falling = rising[::-1]
    up, down = "ascending", "descending"
    assert browser.evaluate(script) == [[rising, up], [falling, down], [falling, up], [rising, up]]


def test_it_prints(browser: Chromium, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.open(pages["two"], 1280, dark=True)
    browser.pdf(tmp_path / "report.pdf")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert len(printed) > 50_000


def test_a_complaint_would_be_seen(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        '<div style="width:5000px">wide</div><img src="missing.png"><script>throw Error("no")</script>'
        '<svg width="1400" height="50"><title>chart</title><text y="20">one</text><text x="9" y="22">two</text>'
        '<text x="1270" y="40">a label at the edge</text></svg>'
    )
    seen = browser.open(page, 1280)
    assert len(seen.requests) == 2
    assert len(seen.complaints) >= 2
    assert seen.content_px > seen.window_px
    assert browser.evaluate(OVERLAPPING) == ["chart: one | two"]
    assert any("a label at the edge" in found for found in browser.evaluate(CUT_OFF))
