"""The page of an instance in a real headless Chromium: the table of topics, and changes by a query with verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.door import bulk
from tests.broker.test_door_page_process import CONTRAST, CUT_OFF
from tests.service.cluster_world import NAME
from tests.service.door_world import FAR, FOLLOWED, DoorWorld
from tests.service.test_service_page_process import NASTY, TOKEN, Page
from tests.support.chromium import Chromium
from tests.support.plain_pending import row
from tests.support.wait import wait_until

pytestmark = pytest.mark.chromium

AGAIN = "!document.querySelector('#bulk-go').hidden"
CLEAN = {"lost": 0, "early": 0, "twice": 0, "undead": 0, "wrong": 0}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DoorWorld]:
    with DoorWorld(tmp_path) as made:
        made.followed.rows.append(row(500, made.at(95_000), NASTY, tag=NASTY, unique_key=NASTY))
        yield made


class BulkPage(Page):
    """The page, and its form for changes by a query."""

    def local(self, selector: str, ms: int) -> None:
        """Fill in a time, as the browser's clock shows it."""
        minutes = "new Date(ms).getTimezoneOffset() * 60000"
        local = f"(ms => new Date(ms - {minutes}).toISOString().slice(0, 23))({ms})"
        self.do(f"document.querySelector('{selector}').value = {local}")

    def choose(self, verb: str) -> None:
        self.do(
            f"(e => (e.value = '{verb}', e.dispatchEvent(new Event('input', {{bubbles: true}}))))"
            "(document.querySelector('#bulk-verb'))"
        )

    def count(self, part: str, **fields: str) -> None:
        for name, text in fields.items():
            self.fill(f"#bulk-{name}", text)
        self.click("#bulk-count")
        self.until_text("#bulk-asked", part)

    def told(self, part: str) -> None:
        self.until_text("#bulk-told", part)


def serious(browser: Chromium) -> list[str]:
    return [found for found in browser.complaints() if '"network"' not in found]


def test_topics_are_added_up(browser: Chromium, world: DoorWorld) -> None:
    world.send(*(600_000 + n for n in range(30)))
    page = BulkPage(browser, world)
    page.until("document.querySelectorAll('#topics tbody button').length >= 6", "topics")
    page.until_text("#topics-text", "all are counted. Shards that are not shown are not counted.")
    rows = {line.split("\t")[0]: line.split("\t") for line in page.text("#topics tbody").splitlines()}
    assert (rows["F1"][1], rows["F0"][1]) == ("5", "5")
    assert sum(int(rows[f"T{n}"][1]) for n in range(3)) == 30
    assert rows[NASTY][1:3] == ["1", "100 B"]
    assert rows[NASTY][3] == rows[NASTY][4] != "–"
    page.click('[data-sort="first_due_ms"]')
    assert page.do("document.querySelector('#topics th[aria-sort=descending]').innerText").startswith("first due")
    page.click("[data-topic^='<img']")
    page.until("document.querySelectorAll('#rows tbody button').length == 1", "a list of the topic")
    assert page.do("document.querySelectorAll('img').length") == 0
    assert page.do("document.querySelectorAll('#names option').length") >= 6
    assert serious(browser) == []


def test_many_are_counted_on_demand_and_the_sums_go_on(browser: Chromium, world: DoorWorld) -> None:
    """More than the page counts by itself: by a button. Of thousands of topics two hundred are shown."""
    world.followed.rows = [row(n, world.at(95_000 + n), f"{NASTY}{n % 3000}") for n in range(6000)]
    page = BulkPage(browser, world)
    page.until_text("#topics tbody", "not counted yet")
    page.click("#count-topics")
    page.until_text("#topics-text", "3,000 topics, all are counted; the first 200 are shown.")
    assert page.do("document.querySelectorAll('#topics tbody tr').length") == 200
    assert page.text("#topics tbody tr").split("\t")[1] == "2"
    assert page.do("document.querySelectorAll('img').length") == 0
    page.do("pending = null, topics = [], drawTopics()")
    assert page.text("#topics tbody") == "–"


def test_nothing_is_changed_before_it_is_confirmed(browser: Chromium, world: DoorWorld) -> None:
    names = world.send(*(600_000 + 1000 * n for n in range(9)))
    page = BulkPage(browser, world)
    page.count("could change everything")
    assert page.do(AGAIN) is False
    page.count("Nothing matches. Shards that are not shown were not searched.", topic="nobody")
    assert page.do(AGAIN) is False
    page.fill("#bulk-topic", "")
    page.local("#bulk-from", world.at(600_000))
    page.local("#bulk-to", world.at(603_000))
    page.count("3 match, due from ")
    assert page.text("#bulk-go") == "Yes, cancel: 3"
    assert world.commands == 0
    page.choose("now")
    assert page.do(AGAIN) is False, "what was counted is not what is asked for"
    page.choose("cancel")
    page.count("3 match")
    page.click("#bulk-go")
    page.told("Ended: 3 done (of 3 counted).")
    assert page.do(AGAIN) is False
    assert world.commands == 3
    page.choose("move-to")
    page.local("#bulk-due", world.at(700_000))
    page.local("#bulk-from", world.at(603_000))
    page.local("#bulk-to", world.at(605_000))
    page.count("2 match")
    page.click("#bulk-go")
    page.told("Ended: 2 done")
    world.run_to(720_000)
    gone = {int(name.rpartition("/")[2]) for name in names[:3]}
    assert {at for at, due in world.sim.due.items() if due == 700_000} == set(range(max(gone) + 1, max(gone) + 3))
    assert gone.isdisjoint(world.sim.copies)
    assert len(world.sim.copies) == 6
    assert world.sim.verdict() == CLEAN
    assert serious(browser) == []


def test_an_interval_needs_a_range_that_is_not_longer(browser: Chromium, world: DoorWorld) -> None:
    world.send(600_000, 601_000)
    page = BulkPage(browser, world)
    page.choose("move-by")
    page.count("needs both due times, at most 10m apart", topic="T1")
    page.count("is no time", by="soon")
    page.local("#bulk-from", world.at(600_000))
    page.local("#bulk-to", world.at(602_000))
    page.count("at most 1999ms apart", topic="", by="-1999ms")
    page.count("2 match", by="2s")
    page.click("#bulk-go")
    page.told("Ended: 2 done")
    world.run_to(world.sim.now + 2000)
    page.count("Nothing matches.")
    assert sorted(world.sim.due.values())[-2:] == [602_000, 603_000]
    page.do("document.querySelector('#bulk-from').setCustomValidity('half a time')")
    assert page.do("(() => { try { readPlan(); } catch (e) { return e.message; } })()").startswith("a time is not")


def test_what_has_no_verdict_is_undecided(browser: Chromium, world: DoorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The followed shard gives no verdict: each is told as undecided, asked again, and looked at; never as done."""
    monkeypatch.setattr(bulk, "VERDICT_S", 0.5)
    world.send(600_000)
    page = BulkPage(browser, world)
    page.count("1 match", topic=NASTY)
    page.click("#bulk-go")
    page.told("Ended: 1 UNDECIDED (of 1 counted).")
    assert page.do("document.querySelector('#bulk-told').className") == "bad"
    assert page.text("#bulk-undecided li").startswith(f"{FOLLOWED}/500 – no verdict within")
    page.click("#bulk-undecided button")
    page.until_text("#bulk-undecided li", "will be decided")
    assert page.text("#bulk-go") == "Ask again for the undecided"
    page.click("#bulk-go")
    page.until("!plan.running && plan.repeats", "the second time")
    page.told("Ended: 1 UNDECIDED (of 1 counted).")
    assert page.do("document.querySelectorAll('img').length") == 0
    page.do(f"plan.undecided.set('{NAME}/0', '')")
    page.do("showPlan(), tell(plan)")
    page.do("[...document.querySelectorAll('#bulk-undecided button')].at(-1).click()")
    page.until("plan.undecided.size == 1", "a look that decides")
    assert serious(browser) == []


def test_the_instance_loses_its_shard_and_the_change_goes_on(browser: Chromium, world: DoorWorld) -> None:
    names = world.send(*(600_000 + n for n in range(10)))
    page = BulkPage(browser, world)
    page.do("own.bulk.limit = () => 4")

    def lose(number: int) -> None:
        if number == 2:
            world.forgotten = {NAME, FAR}

    world.before_verdict = lose
    page.local("#bulk-from", world.at(600_000))
    page.local("#bulk-to", world.at(601_000))
    page.count("10 match")
    page.click("#bulk-go")
    page.told("Stopped: 4 done (of 10 counted).")
    page.told("which this instance does not own or follow: begin again")
    page.told("makes the last call again, and changes nothing twice")
    page.click("#bulk-go")
    page.until("!plan.running", "the second call")
    page.told("begin again")
    world.before_verdict = lambda _: None
    world.forgotten = {FAR}
    assert page.text("#bulk-go") == "Go on"
    page.click("#bulk-go")
    page.told("Ended: 10 done (of 10 counted).")
    world.run_to(620_000)
    assert not {int(name.rpartition("/")[2]) for name in names} & world.sim.copies.keys()
    assert world.sim.verdict() == CLEAN


def test_it_is_stopped_and_another_one_is_under_way(browser: Chromium, world: DoorWorld) -> None:
    world.send(*(600_000 + n for n in range(6)))
    page = BulkPage(browser, world)
    page.do("own.bulk.limit = () => 2")
    page.local("#bulk-from", world.at(600_000))
    page.local("#bulk-to", world.at(601_000))
    page.count("6 match")
    desk = world.api._bulk
    desk._busy = True  # as by another tab
    page.click("#bulk-go")
    page.told("another bulk change is under way, and only one may be: nothing was changed")
    desk._busy = False
    page.do("plan.stop = false, (p => Object.defineProperty(p, 'stop', {get: () => true, set: () => {}}))(plan)")
    page.click("#bulk-go")
    page.told("Stopped, the rest is as before: 2 done (of 6 counted).")
    page.do("delete plan.stop, plan.stop = false")
    page.click("#bulk-go")
    page.told("Ended: 6 done (of 6 counted).")


def test_a_token_that_is_wrong_stops_it(browser: Chromium, tmp_path: Path) -> None:
    with DoorWorld(tmp_path, token=TOKEN) as world:
        world.send(600_000)
        browser.visit(f"http://127.0.0.1:{world.port}/", 1280)
        browser.evaluate("auth = 'Bearer ' + 'x'.repeat(16)")
        browser.evaluate("document.querySelector('#bulk-topic').value = 'T1'")
        browser.evaluate("document.querySelector('#bulk-count').click()")
        told = "document.querySelector('#bulk-asked').innerText"
        wait_until(lambda: "show the token" in browser.evaluate(told), 20, "that the token is missing")
        assert world.commands == 0
        browser.evaluate("sessionStorage.clear()")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_can_be_read(
    browser: Chromium, world: DoorWorld, width: int, dark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "VERDICT_S", 0.3)
    world.followed.rows += [row(600 + n, world.at(95_000), NASTY * 9) for n in range(3)]
    page = BulkPage(browser, world, width, dark)
    page.choose("move-to")
    page.local("#bulk-due", world.at(700_000))
    page.count("3 match", topic=NASTY * 9)
    assert page.do(CUT_OFF) == []
    page.click("#bulk-go")
    page.told("Ended: 3 UNDECIDED")
    page.until("document.querySelectorAll('#topics tbody button').length >= 3", "topics")
    assert page.do("document.documentElement.scrollWidth") <= width
    assert page.do(CUT_OFF) == []
    assert page.do(CONTRAST) == []
    assert serious(browser) == []
