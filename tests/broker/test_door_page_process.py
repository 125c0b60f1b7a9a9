"""The page in a real headless Chromium: what it shows, a search, changes and their verdicts, keys, widths, contrast."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.peers.ports import free_port
from store.put.pending_api import PendingVerb, PendingVerdict
from tests.broker.core_rig import START_MS
from tests.broker.test_door import World
from tests.support.chromium import Chromium
from tests.support.door import ask
from tests.support.ours import OurBroker
from tests.support.plain_pending import row
from tests.support.scrape import parse
from tests.support.wait import wait_until
from timewheel_client import Producer

pytestmark = pytest.mark.chromium

NASTY = '<img src=x onerror="document.title=1">'
CUT_OFF = """
[...document.querySelectorAll('svg text, h1, h2, p, dd, label, button')]
  .filter(e => e.getClientRects().length && !e.closest('.scroll'))
  .map(e => [e.textContent.trim(), e.getBoundingClientRect()])
  .filter(([t, b]) => t && (b.left < -1 || b.right > document.documentElement.clientWidth + 1))
  .map(([t, b]) => `${t} (${Math.round(b.left)} to ${Math.round(b.right)})`)
"""
CONTRAST = """(() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$|transparent/.test(c)) return light(c); } return 1; };
  return [...document.querySelectorAll('svg text, p, td, th button, dt, dd, label, button, h1, h2, h3, small, pre')]
    .filter(e => e.getClientRects().length && e.textContent.trim() && !e.disabled).map(e => {
      const style = getComputedStyle(e), l = light(e.closest('svg') ? style.fill : style.color), g = ground(e);
      return [(Math.max(l, g) + .05) / (Math.min(l, g) + .05), e.tagName + ' ' + e.textContent.trim().slice(0, 30)]; })
    .filter(([ratio]) => ratio < 4.5);
})()"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "store") as made:
        made.list.rows += [row(100 + n, START_MS + 3_000_000, "Hot") for n in range(200)]
        made.list.rows.append(row(500, START_MS + 5000, NASTY, key=NASTY, tag=NASTY))
        yield made


class Page:
    """The page of a world in a window."""

    def __init__(self, browser: Chromium, world: World, width: int = 1280, dark: bool = False) -> None:
        self._browser = browser
        self.seen = browser.visit(f"http://127.0.0.1:{world.door.http_port}/", width, dark=dark)
        self.until("document.querySelectorAll('#topics tbody tr').length > 2", "topics")
        self.until("document.querySelectorAll('#forecast .column').length > 0", "the forecast")

    def do(self, script: str) -> Any:
        return self._browser.evaluate(script)

    def until(self, script: str, what: str) -> None:
        wait_until(lambda: self.do(script), 30, f"{what}; the page shows: {self.do('document.body.innerText')}")

    def click(self, selector: str) -> None:
        assert self.do(f"(e => e && (e.focus(), e.click(), true))(document.querySelector({json.dumps(selector)}))")

    def fill(self, selector: str, text: str) -> None:
        self.do(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def text(self, selector: str) -> str:
        return str(self.do(f"document.querySelector({json.dumps(selector)}).innerText"))

    def find(self, topic: str, name: str) -> None:
        self.fill("#topic", topic)
        self.fill("#id", name)
        self.click("#find button")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_can_be_read(browser: Chromium, world: World, width: int, dark: bool) -> None:
    page = Page(browser, world, width, dark)
    page.find("", world.id(4))
    page.until("!document.querySelector('#one').hidden", "the message")
    assert browser.complaints() == []
    assert page.do("document.documentElement.scrollWidth") <= width
    assert page.do(CUT_OFF) == []
    assert page.do(CONTRAST) == []
    base = f"http://127.0.0.1:{world.door.http_port}/"
    assert [url for url in page.seen.requests if not url.startswith((base, "data:"))] == []


def test_it_shows_what_is_pending(browser: Chromium, world: World) -> None:
    page = Page(browser, world)
    assert "231" in page.text("#figures")
    assert page.do("document.title") == "231 pending · broker-a"
    assert "Ready" in page.text("#state")
    assert page.text("#topics tbody tr") == "Hot\t200\t≈ 20 KiB"
    page.click('[data-sort="topic"]')
    assert page.text("#topics tbody tr").startswith("<img")
    assert page.do("document.querySelectorAll('#forecast .hot').length") >= 1
    assert page.do("document.querySelectorAll('img').length") == 0
    world.list.rows.append(row(900, START_MS + 4000, "New"))
    page.until("document.querySelector('#figures').innerText.includes('232')", "a new message, without reloading")


def test_the_forecast_says_how_many_are_within_it(browser: Chromium, world: World) -> None:
    world.list.rows += [row(1000 + n, START_MS + 40 * 86_400_000, "Far") for n in range(9_000)]
    page = Page(browser, world)
    page.until("document.querySelector('#figures').innerText.includes('9,231')", "all of them")
    text = page.text("#forecast-text")
    assert "9,000 later" in text
    assert not text.startswith("9,")
    assert page.do("document.querySelectorAll('#forecast .hot').length") == 2  # however much comes later
    page.until("[...document.querySelector('#of').options].some(o => o.value === 'Far')", "the topic")
    page.do("(of => (of.value = 'T1', of.dispatchEvent(new Event('change'))))(document.querySelector('#of'))")
    page.until("!document.querySelector('#forecast-text').innerText.includes('later')", "the topic's text")
    assert " before" not in page.text("#forecast-text")  # not counted, so not said


def test_search_cancel_and_see_the_verdict(browser: Chromium, world: World) -> None:
    page = Page(browser, world)
    page.find("T1", "order-4")
    page.until("document.querySelector('#about').innerText.includes('order-4')", "the message")
    assert "</script>" in page.text("#properties")
    page.click('[data-verb="cancel"]')
    page.until("document.querySelector('#verdict').innerText == 'Cancel: done'", "the verdict")
    assert [(order.verb, order.version) for order in world.list.orders] == [(PendingVerb.CANCEL, 0)]
    assert page.do("document.querySelector('[data-verb=cancel]').disabled") is True
    page.find("T1", "order-4")
    page.until("document.querySelector('#found').innerText == 'Nothing found.'", "that it is gone")
    page.find("", NASTY)
    page.until("document.querySelectorAll('#rows tbody button').length == 1", "a list by prefix")
    page.click("#rows tbody button")
    page.until("document.querySelector('#about').innerText.includes('onerror')", "its text as text")
    assert [found for found in browser.complaints() if '"network"' not in found] == []  # what is gone is not found


def test_a_list_whose_answers_stop_early_goes_on_by_itself(browser: Chromium, world: World) -> None:
    """An answer ends after some looked-at messages, full or not. The page asks on, until it has 50 or all was seen."""
    world.list.rows.sort(key=lambda found: (found.due_ms, found.offset))
    world.list.looked_max = 10
    page, asked, plain = Page(browser, world), [0], world.list.page

    def counted(*given: Any) -> Any:
        asked[0] += 1
        return plain(*given)

    world.list.page = counted  # type: ignore[method-assign]
    page.find("T2", "")
    page.until("document.querySelectorAll('#rows tbody tr').length == 10", "all of a topic, three in each answer")
    page.until("document.querySelector('#more').hidden", "the end of the list")
    assert asked[0] >= 231 // 10
    page.find("Hot", "")
    page.until("document.querySelectorAll('#rows tbody tr').length == 50", "as much as the page shows at once")
    assert page.do("document.querySelector('#more').hidden") is False
    page.click("#more")
    page.until("document.querySelectorAll('#rows tbody tr').length == 100", "more")
    world.list.rows += [row(1000 + n, START_MS + 6_000_000 + n, "Cold") for n in range(200)]
    world.list.rows.append(row(2000, START_MS + 9_000_000, "Rare"))
    before = asked[0]
    page.find("Rare", "")
    wait_until(lambda: asked[0] >= before + 30, 30, "thirty answers, and the page gives up for now")
    page.until("document.querySelector('#found').innerText == 'Nothing found so far.'", "what it says of it")
    page.until("next == '300' && !document.querySelector('#more').hidden", "the way to go on")
    assert page.do("document.querySelectorAll('#rows tbody tr').length") == 0
    page.click("#more")
    page.until("document.querySelectorAll('#rows tbody tr').length == 1", "what the rest of the list has")
    page.until("document.querySelector('#more').hidden", "the end")
    rounds = page.do("count")
    page.until(f"count > {rounds + 6}", "some seconds in which the page looks again by itself")
    assert page.do("document.querySelectorAll('#rows tbody tr').length") == 1, "what More has found stays"


def test_move_and_watch_it_fire(browser: Chromium, world: World) -> None:
    page = Page(browser, world)
    page.find("", world.id(20))
    page.until("document.querySelector('#about').innerText.includes('order-20')", "the message")
    page.fill("#by", "soon")
    page.click('[data-verb="move"]')
    assert "is no time" in page.text("#verdict")
    assert world.list.orders == []
    page.fill("#by", "-10s")
    page.click('[data-verb="move"]')
    page.until("document.querySelector('#verdict').innerText.startsWith('Move later: done')", "the verdict")
    assert world.list.orders[-1].by_ms == -10_000
    world.rig.now_ms += 11_000
    world.list.rows = [found for found in world.list.rows if found.due_ms > world.rig.now_ms]
    world.list.gone[(1 << 62) + 20] = PendingVerdict.TOO_LATE
    page.until("document.querySelector('#verdict').innerText.includes('it was delivered')", "that it has fired")


def test_by_keys_alone(browser: Chromium, world: World) -> None:
    page = Page(browser, world)
    page.click('[data-span="86400000"]')
    page.until("document.querySelector('[data-span=\"86400000\"]').getAttribute('aria-pressed') == 'true'", "a day")
    page.do("document.querySelector('#forecast').focus()")
    browser.key("ArrowRight")
    page.until("document.querySelector('#forecast-text').innerText.includes('Chosen:')", "a chosen bar")
    browser.key("Enter")
    page.until("document.querySelectorAll('[data-span][aria-pressed=true]').length == 0", "a zoom")
    browser.key("Escape")
    page.until("document.querySelectorAll('[data-span][aria-pressed=true]').length == 1", "the day again")
    page.do("document.querySelector('#id').focus()")
    browser.type(world.id(6))
    browser.key("Enter")
    page.until("document.activeElement.id == 'one-title'", "the focus on the message")
    stops = set()
    for _ in range(60):
        browser.key("Tab")
        stops.add(page.do("document.activeElement.dataset.verb || document.activeElement.id"))
    assert {"cancel", "move", "now", "restart", "close", "forecast", "id", "topic"} <= stops


def test_what_matches_is_counted_then_changed(browser: Chromium, world: World) -> None:
    page = Page(browser, world)
    page.fill("#bulk-key", NASTY)
    page.click("#bulk-count")
    page.until("document.querySelector('#bulk-asked').innerText.startsWith('1 match')", "the number")
    page.fill("#bulk-key", "order-1")
    page.fill("#bulk-topic", "T1")
    page.click("#bulk-count")
    page.until("document.querySelector('#bulk-asked').innerText.startsWith('5 match, due from')", "the number")
    assert world.list.orders == []
    page.click("#bulk-go")
    page.until("document.querySelector('#bulk-told').innerText == 'Ended: 5 done (of 5 counted).'", "the verdicts")
    assert [order.verb for order in world.list.orders] == [PendingVerb.CANCEL] * 5
    chosen = "e.value = 'move-by', e.dispatchEvent(new Event('input', {bubbles: true}))"
    page.do(f"(e => ({chosen}))(document.querySelector('#bulk-verb'))")
    page.click("#bulk-count")
    page.until("document.querySelector('#bulk-asked').innerText.includes('needs both due times')", "the rule")
    assert len(world.list.orders) == 5
    assert page.do("document.querySelectorAll('img').length") == 0
    assert [found for found in browser.complaints() if '"network"' not in found] == []


def test_what_a_change_passes_over_is_said(browser: Chromium, world: World) -> None:
    world.list.unread = 3
    left = "3 that cannot be read may match and stay as they are (3 in run 7)."
    page = Page(browser, world)
    page.fill("#bulk-topic", "T1")
    page.click("#bulk-count")
    page.until(f"document.querySelector('#bulk-asked').innerText.endsWith({left!r})", "what is passed over")
    page.click("#bulk-go")
    told = f"Ended: 10 done (of 10 counted). {left}"
    page.until(f"document.querySelector('#bulk-told').innerText == {told!r}", "the verdicts")
    assert page.do("document.querySelector('#bulk-told').className") == "bad"
    page.fill("#bulk-topic", "nobody")
    page.click("#bulk-count")
    nothing = f"Nothing that can be read matches. {left}"
    page.until(f"document.querySelector('#bulk-asked').innerText == {nothing!r}", "no proof")


def test_a_token_is_asked_for(browser: Chromium, tmp_path: Path) -> None:
    with World(tmp_path / "store", httpToken="a-token-of-sixteen") as world:
        browser.visit(f"http://127.0.0.1:{world.door.http_port}/", 1280)
        shown = "!document.querySelector('#login').hidden"
        wait_until(lambda: browser.evaluate(shown), 20, "the question for a token")
        browser.evaluate("document.querySelector('#secret').focus()")
        browser.type("a-token-of-sixteen")
        browser.key("Enter")
        wait_until(lambda: "30" in browser.evaluate("document.querySelector('#figures').innerText"), 20, "the figures")
        browser.evaluate("sessionStorage.clear()")


def test_a_broker_that_went_away_is_said(browser: Chromium, world: World) -> None:
    page = Page(browser, world)
    world.door.stop()
    page.until("document.querySelector('#state').innerText.includes('cannot be reached')", "the trouble")


def test_a_real_broker_from_sending_to_firing(browser: Chromium, tmp_path: Path) -> None:
    """What a user does: send, look, search, cancel, see the verdict; move another one and watch it fire."""
    port = free_port()
    broker = OurBroker(tmp_path / "ours", {"httpListen": f"127.0.0.1:{port}"}).start()

    async def send() -> None:
        async with Producer(broker.namesrv) as producer:
            for number in range(20):
                key = {"__DELAYKEY": f"order-{number}"}
                await producer.send("OrderTimeout", b"pay!", delay=timedelta(minutes=10), properties=key)

    def find(key: str) -> None:
        for field, text in (("topic", "OrderTimeout"), ("id", key)):
            browser.evaluate(f"document.querySelector('#{field}').value = {json.dumps(text)}")
        browser.evaluate("document.querySelector('#find button').click()")
        shown = f"document.querySelector('#about').innerText.includes('{key}')"
        wait_until(lambda: browser.evaluate(shown), 30, f"the message {key}")

    def verdict(part: str) -> None:
        shown = f"document.querySelector('#verdict').innerText.includes({json.dumps(part)})"
        wait_until(lambda: browser.evaluate(shown), 30, f"the verdict {part}")

    try:
        asyncio.run(send())
        browser.visit(f"http://127.0.0.1:{port}/", 1280)
        topics = "document.querySelector('#topics').innerText"
        wait_until(lambda: "OrderTimeout\t20" in browser.evaluate(topics), 30, "the topic")
        find("order-4")
        browser.evaluate("document.querySelector('[data-verb=cancel]').click()")
        verdict("Cancel: done")
        wait_until(lambda: "OrderTimeout\t19" in browser.evaluate(topics), 30, "that one is gone")
        find("order-5")
        browser.evaluate("document.querySelector('#by').value = '-588s'")
        browser.evaluate("document.querySelector('[data-verb=move]').click()")
        verdict("Move later: done")
        verdict("it was delivered at")
        assert json.loads(ask(port, "/api/v1/pending/count").body)["count"] == 18
        found = parse(ask(port, "/metrics").body.decode())["timewheel_commands_total"]
        assert found.total(op="cancel", verdict="done") == found.total(op="move", verdict="done") == 1
    finally:
        broker.stop()
