"""Messages that no scan finds, because their page of a run is lost: a change goes on without them, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from remoting.layout import FILE_HEADER_BYTES
from store.disk.errors import StoreError
from store.put.pending_api import PendingQuery, PendingVerdict
from tests.broker_plugin.test_pending_desk import Desk
from tests.broker_plugin.test_pending_unread import (
    CANCEL,
    DUE,
    EARLIER,
    FAR,
    LATER,
    MINE,
    change,
    damaged,
    eio,
    failing,
    filled,
    offsets,
)

COUNT = 60


class Hidden:
    """A desk whose messages are in runs; of the longest one the second page and the first record in it are damaged."""

    def __init__(self, ids_too: bool = False) -> None:
        self.desk = Desk(3)
        ids = [self.desk.send(FAR + 10 * number, "Mine", TAGS="a") for number in range(COUNT)]
        self.desk.world.run(8_000)
        runs = [run for run in self.desk.world.plugin.spill._state.runs if not run.is_index]
        run = max(runs, key=lambda run: run.live)
        assert (run.live, run.first) == (run.count, 0)
        assert run.shape.pages >= 4
        page = run.page(1)
        self.file = run.path.name
        self.dues: list[int] = page.dues.tolist()
        self.lost: list[int] = page.ids.tolist()
        self.seen = [offset for offset in ids if offset not in self.lost]
        run.file.pwrite(bytes(4), int(page.starts[0]))
        run.file.pwrite(b"????", FILE_HEADER_BYTES + run.shape.page_bytes + 50)
        if ids_too:
            for number in range(run.shape.id_pages):
                run.file.pwrite(b"????", run.shape.id_at + number * run.shape.page_bytes + 50)
        self.desk.world.kill()

    @property
    def count(self) -> int:
        """How many are hidden."""
        return len(self.lost)


@pytest.mark.parametrize("query", [MINE, PendingQuery(tag="a"), DUE], ids=["topic", "tag", "due"])
@pytest.mark.parametrize("order", [CANCEL, EARLIER, LATER], ids=["cancel", "earlier", "later"])
def test_a_change_goes_on_behind_them_and_counts_them(query: PendingQuery, order: dict[str, Any]) -> None:
    hidden = Hidden()
    dry = change(hidden.desk, query, dry_run=True, **order)
    done = change(hidden.desk, query, **order)
    for bulk in (dry, done):
        assert (offsets(bulk), bulk.next) == (hidden.seen, "")
        assert bulk.unread == hidden.count == 3
        assert f"3 in run {hidden.file} ({hidden.lost[0]:#x} due at {hidden.dues[0]}, " in bulk.remark
        assert "timewheel check DIR --repair" in bulk.remark


def test_cancelled_by_offset_they_are_passed_over_no_more() -> None:
    hidden = Hidden()
    assert change(hidden.desk, MINE, **CANCEL).unread == 3
    for left, offset in zip((2, 1, 0), hidden.lost, strict=True):
        assert hidden.desk.change(offset).verdict is PendingVerdict.DONE
        assert change(hidden.desk, MINE, **CANCEL).unread == left
    assert hidden.desk.desk.figures().count == 0


def test_a_dry_run_by_due_range_reads_no_message_so_it_has_a_damaged_one(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, ids = filled()
    failing(monkeypatch, desk, ids[1], damaged)
    dry = change(desk, DUE, dry_run=True, **CANCEL)
    done = change(desk, DUE, **CANCEL)
    assert (ids[1] in offsets(dry), dry.unread) == (True, 0)
    assert (ids[1] in offsets(done), done.unread) == (False, 1)


def test_nothing_matches_is_no_proof_that_nothing_is_left() -> None:
    """What a purge asks for: the topic of the hidden ones is not known."""
    hidden = Hidden()
    found = change(hidden.desk, PendingQuery(topic="Gone"), **CANCEL)
    assert (len(found.answers), found.next, found.unread) == (0, "", 3)
    assert hidden.desk.desk.figures().count == COUNT


def test_they_count_only_where_they_may_be_due() -> None:
    hidden = Hidden()
    assert change(hidden.desk, dry_run=True, **CANCEL).unread == 3

    def unread(from_ms: int, to_ms: int) -> int:
        query = PendingQuery(topic="Mine", due_from_ms=from_ms, due_to_ms=to_ms)
        return change(hidden.desk, query, dry_run=True, **CANCEL).unread

    first, second, third = hidden.dues
    last_ms = FAR + 10 * COUNT
    assert [unread(FAR, to_ms) for to_ms in (first, first + 1, second + 1, third, third + 1)] == [0, 1, 2, 2, 3]
    assert [unread(from_ms, last_ms) for from_ms in (first, first + 1, third, third + 1)] == [3, 2, 1, 0]
    assert unread(second, second + 1) == 1


@pytest.mark.parametrize("killed", [False, True], ids=["on", "killed"])
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_without_keys_no_chain_of_calls_counts_too_few(limit: int, killed: bool) -> None:
    hidden = Hidden(ids_too=True)
    numbers: list[int] = []
    remarks: set[str] = set()
    after = ""
    while not numbers or after:
        bulk = change(hidden.desk, MINE, dry_run=True, limit=limit, after=after, **CANCEL)
        numbers.append(bulk.unread)
        remarks.add(bulk.remark)
        after = bulk.next
        if killed:
            hidden.desk.world.kill()
    assert set(numbers) | {3} <= {0, 3}
    assert sum(numbers) >= 3
    (remark,) = remarks - {""}
    assert remark.startswith(f"3 in run {hidden.file} (the offsets of 3 are not known), where a page")


def test_without_keys_the_range_of_the_run_counts() -> None:
    hidden = Hidden(ids_too=True)
    assert change(hidden.desk, MINE, dry_run=True, **CANCEL).unread == 3
    for from_ms, to_ms, unread in ((0, FAR, 0), (FAR, FAR + 1, 3), (FAR + 10 * COUNT, None, 0)):
        query = PendingQuery(topic="Mine", due_from_ms=from_ms, due_to_ms=to_ms)
        assert change(hidden.desk, query, dry_run=True, **CANCEL).unread == unread


def test_a_count_and_a_forecast_that_read_no_message_go_on() -> None:
    hidden = Hidden()
    first, second, third = hidden.dues
    desk = hidden.desk.desk
    assert 0 <= desk.count(PendingQuery(due_from_ms=second, due_to_ms=third)).count <= 3
    around = desk.count(PendingQuery(due_from_ms=first - 1, due_to_ms=third + 1))
    assert around.count == 3
    assert desk.forecast(FAR, FAR + 10 * COUNT, 60).total == COUNT


@pytest.mark.parametrize("killed", [False, True], ids=["on", "killed"])
@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("dry_run", [True, False], ids=["dry", "done"])
def test_of_several_calls_one_counts_them(limit: int, dry_run: bool, killed: bool) -> None:
    hidden = Hidden()
    found: list[int] = []
    numbers: list[int] = []
    after = ""
    while not numbers or after:
        bulk = change(hidden.desk, MINE, dry_run=dry_run, limit=limit, after=after, **CANCEL)
        found += offsets(bulk)
        numbers.append(bulk.unread)
        after = bulk.next
        if killed:
            hidden.desk.world.kill()
    assert found == hidden.seen
    assert sum(numbers) == 3


def test_counts_and_forecasts_of_a_topic_say_it_too() -> None:
    hidden = Hidden()
    desk = hidden.desk.desk
    counted = desk.count(MINE)
    assert (counted.count, counted.unread, hidden.file in counted.remark) == (COUNT - 3, 3, True)
    forecast = desk.forecast(FAR, FAR + 10 * COUNT, 10, "Mine")
    assert (forecast.total, forecast.unread) == (COUNT - 3, 3)
    sums = desk.by_topic(PendingQuery())
    assert ([row.count for row in sums.rows], sums.unread) == ([COUNT - 3], 3)
    whole = desk.count(DUE)
    assert (whole.count, whole.unread) == (COUNT, 0), "the indexes count them"


@pytest.mark.pure
@pytest.mark.parametrize("error", [eio, damaged])
def test_forecast_and_sums_count_a_message_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, error: Callable[[int], StoreError]
) -> None:
    desk, ids = filled()
    assert desk.desk.by_topic(PendingQuery()).unread == 0
    fails = failing(monkeypatch, desk, ids[1], error)
    forecast = desk.desk.forecast(FAR, FAR + 1_000, 10, "Mine")
    assert (forecast.total, forecast.unread) == (2, 1)
    sums = desk.desk.by_topic(PendingQuery())
    assert (sum(row.count for row in sums.rows), sums.unread) == (5, 1)
    fails.clear()
    assert (desk.desk.forecast(FAR, FAR + 1_000, 10, "Mine").unread, desk.desk.by_topic(MINE).unread) == (0, 0)


@pytest.mark.pure
@pytest.mark.parametrize("limit", [1, 2, 9])
def test_a_damaged_message_is_counted_once(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """The slice in which it is met may be cut before it, and is then read again."""
    desk, ids = filled(4)
    failing(monkeypatch, desk, ids[2], damaged)
    numbers: list[int] = []
    remarks: list[str] = []
    done: list[int] = []
    after = ""
    while not numbers or after:
        bulk = change(desk, limit=limit, after=after, **CANCEL)
        done += offsets(bulk)
        numbers.append(bulk.unread)
        remarks += [bulk.remark] if bulk.remark else []
        after = bulk.next
    assert (done, sum(numbers)) == ([*ids[:2], ids[3]], 1)
    assert remarks == [
        f"1 whose records cannot be read ({ids[2]:#x} due at {FAR + 20} (epoch ms)): cancel them by offset"
    ]
