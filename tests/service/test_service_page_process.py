"""The page of an instance in a real headless Chromium: what it shows of which shards, a search, changes, verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.test_door_page_process import CONTRAST, CUT_OFF
from tests.service.door_world import FAR, ME, OTHERS, DoorWorld
from tests.support.chromium import Chromium
from tests.support.plain_pending import row
from tests.support.wait import wait_until

pytestmark = pytest.mark.chromium

NASTY = '<img src=x onerror="document.title=1">'
TOKEN = "a-token-of-sixteen"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DoorWorld]:
    with DoorWorld(tmp_path) as made:
        made.followed.rows.append(row(500, made.at(95_000), NASTY, tag=NASTY, unique_key=NASTY))
        yield made


class Page:
    """The page of a world in a window."""

    def __init__(self, browser: Chromium, world: DoorWorld, width: int = 1280, dark: bool = False) -> None:
        self._browser = browser
        self.seen = browser.visit(f"http://127.0.0.1:{world.port}/", width, dark=dark)
        self.until("document.querySelectorAll('#shards tbody tr').length == 3", "the shards")
        self.until("document.querySelectorAll('#forecast .column').length > 0", "the forecast")

    def do(self, script: str) -> Any:
        return self._browser.evaluate(script)

    def until(self, script: str, what: str) -> None:
        wait_until(lambda: self.do(script), 30, f"{what}; the page shows: {self.do('document.body.innerText')}")

    def until_text(self, selector: str, part: str) -> None:
        self.until(f"document.querySelector('{selector}').innerText.includes({json.dumps(part)})", part)

    def click(self, selector: str) -> None:
        assert self.do(f"(e => e && (e.focus(), e.click(), true))(document.querySelector({json.dumps(selector)}))")

    def fill(self, selector: str, text: str) -> None:
        self.do(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def text(self, selector: str) -> str:
        return str(self.do(f"document.querySelector({json.dumps(selector)}).innerText"))

    def find(self, name: str, topic: str = "") -> None:
        self.fill("#topic", topic)
        self.fill("#id", name)
        self.click("#find button")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_can_be_read(browser: Chromium, world: DoorWorld, width: int, dark: bool) -> None:
    (name,) = world.send(600_000)
    page = Page(browser, world, width, dark)
    page.find(name)
    page.until("!document.querySelector('#one').hidden", "the message")
    assert browser.complaints() == []
    assert page.do("document.documentElement.scrollWidth") <= width
    assert page.do(CUT_OFF) == []
    assert page.do(CONTRAST) == []
    base = f"http://127.0.0.1:{world.port}/"
    assert [url for url in page.seen.requests if not url.startswith((base, "data:"))] == []


def test_it_says_which_shards_it_shows(browser: Chromium, world: DoorWorld) -> None:
    world.send(600_000, 200_000_000)
    page = Page(browser, world)
    assert "Ready" in page.text("#state")
    covers = f"2 of 3 shards are shown, 1 of them as a follower; NOT shown: {FAR} (of {OTHERS})."
    assert page.text("#covers") == covers
    assert page.do("document.title") == "13 pending in 2 of 3 shards · 192.0.2.1@me"
    page.until_text("#figures", "Pending in these shards\n13")
    mine, followed, far = (line.split("\t") for line in page.text("#shards tbody").splitlines())
    assert mine == ["broker-e/0", "owned", ME, OTHERS, "2", "0", "0", "1", "2"]
    assert followed[:6] == ["broker-e/1", "followed", OTHERS, ME, "11", "0"]
    assert far[1:] == ["missing", OTHERS, "–", "–", "–", "–", "–", "0"]
    assert page.do(f"[...document.querySelectorAll('#shards td[title]')].some(e => e.title == {json.dumps(OTHERS)})")
    world.forgotten = set()
    world.view.reasons.append("broker-e/0: deliveries are behind")
    world.mono_ms += 1000
    page.until_text("#state", "deliveries are behind")
    assert page.do("document.querySelectorAll('img').length") == 0


def test_search_cancel_and_see_the_verdict(browser: Chromium, world: DoorWorld) -> None:
    first, second = world.send(600_000, 700_000)
    page = Page(browser, world)
    page.find(first)
    page.until_text("#about", first)
    assert "</script>" in page.text("#properties")
    page.click('[data-verb="cancel"]')
    page.until("document.querySelector('#verdict').innerText == 'Cancel: done'", "the verdict")
    assert page.do("document.querySelector('[data-verb=cancel]').disabled") is True
    page.find(first)
    page.until_text("#found", "it was cancelled")
    page.find("", NASTY)
    page.until("document.querySelectorAll('#rows tbody button').length == 1", "a list by topic")
    page.until_text("#found", "Shards that are not shown were not searched.")
    page.find(second)
    page.until_text("#about", second)
    page.fill("#by", "-620s")
    page.click('[data-verb="move"]')
    page.until_text("#verdict", "Move later: done")
    world.run_to(100_000)
    assert world.sim.copies == {int(second.rpartition("/")[2]): 1}
    page.until_text("#verdict", "it was delivered")
    assert world.sim.verdict() == {"lost": 0, "early": 0, "twice": 0, "undead": 0, "wrong": 0}
    assert [found for found in browser.complaints() if '"network"' not in found] == []  # what is gone is not found


def test_no_verdict_is_said(browser: Chromium, world: DoorWorld) -> None:
    page = Page(browser, world)
    page.find("", "F1")
    page.until("document.querySelectorAll('#rows tbody button').length == 5", "the followed shard's messages")
    page.click("#rows tbody button")
    page.until_text("#found", "will be decided")
    page.find("nonsense/x")
    page.until_text("#found", "Nothing found")
    page.find("nobody/0/5")
    page.until_text("#found", "is no shard of TIMEWHEEL")


def test_a_token_is_asked_for(browser: Chromium, tmp_path: Path) -> None:
    with DoorWorld(tmp_path, token=TOKEN) as world:
        browser.visit(f"http://127.0.0.1:{world.port}/", 1280)
        shown = "!document.querySelector('#login').hidden"
        wait_until(lambda: browser.evaluate(shown), 20, "the question for a token")
        browser.evaluate("document.querySelector('#secret').focus()")
        browser.type(TOKEN)
        browser.key("Enter")
        wait_until(lambda: "10" in browser.evaluate("document.querySelector('#figures').innerText"), 20, "the figures")
        browser.evaluate("sessionStorage.clear()")


def test_by_keys_alone(browser: Chromium, world: DoorWorld) -> None:
    (name,) = world.send(600_000)
    page = Page(browser, world)
    page.do("document.querySelector('#id').focus()")
    browser.type(name)
    browser.key("Enter")
    page.until("document.activeElement.id == 'one-title'", "the focus on the message")
    stops = set()
    for _ in range(40):
        browser.key("Tab")
        stops.add(page.do("document.activeElement.dataset.verb || document.activeElement.id"))
    assert {"cancel", "move", "now", "close", "forecast", "id", "topic", "of"} <= stops


def test_an_instance_that_went_away_is_said(browser: Chromium, world: DoorWorld) -> None:
    page = Page(browser, world)
    world.stop()
    page.until_text("#state", "The instance cannot be reached")
