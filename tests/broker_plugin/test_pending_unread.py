"""What the disk cannot read while messages are changed or counted by a query: told, and met again by the cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker_plugin.pending.looking import Looker
from store.disk.errors import StoreError
from store.put.pending_api import PendingBulk, PendingQuery, PendingVerb, PendingVerdict
from store.spill.rows.model import RecordCorruptError
from store.spill.spill_view import SpillView
from tests.broker_plugin.test_pending_desk import DAY_MS, NOW, Desk

pytestmark = pytest.mark.pure

V = PendingVerdict
FAR = NOW + 10 * DAY_MS
MINE = PendingQuery(topic="Mine")
DUE = PendingQuery(due_from_ms=FAR, due_to_ms=FAR + 1_000)
QUERIES = pytest.mark.parametrize(
    "query", [MINE, PendingQuery(tag="a"), PendingQuery(topic="Mine", due_to_ms=FAR + 99)], ids=["topic", "tag", "due"]
)
CANCEL: dict[str, Any] = {"verb": PendingVerb.CANCEL}
EARLIER: dict[str, Any] = {"verb": PendingVerb.MOVE, "by_ms": -3_000}
TO_TIME: dict[str, Any] = {"verb": PendingVerb.MOVE, "due_ms": FAR - 3_000}
LATER: dict[str, Any] = {"verb": PendingVerb.MOVE, "by_ms": 3_000}


def filled(count: int = 3) -> tuple[Desk, list[int]]:
    """A desk, and the messages of its topic; others lie between them."""
    desk = Desk()
    ids = []
    for number in range(count):
        ids.append(desk.send(FAR + 10 * number, "Mine", TAGS="a"))
        desk.send(FAR + 10 * number + 5, "Other", TAGS="b")
    return desk, ids


def failing(monkeypatch: pytest.MonkeyPatch, desk: Desk, offset: int, error: Callable[[int], StoreError]) -> list[bool]:
    """Have each read of one message's record fail; the list is emptied when it can be read again."""
    with desk.world.plugin.lock:
        desk.world.plugin.sweeper.publish_all()
        found = desk.world.plugin.spill.find(offset)
    assert found is not None
    fails = [True]

    def guard(name: str) -> None:
        plain = getattr(SpillView, name)

        def read(self: SpillView, refs: Sequence[int], *rest: Any) -> Any:
            if fails and found.ref in refs:
                raise error(found.ref)
            return plain(self, refs, *rest)

        monkeypatch.setattr(SpillView, name, read)

    guard("read")
    guard("read_outlines")
    return fails


def eio(_ref: int) -> StoreError:
    return StoreError("cannot read: EIO")


def damaged(ref: int) -> StoreError:
    return RecordCorruptError("a checksum", ref)


def change(desk: Desk, query: PendingQuery = MINE, **order: Any) -> PendingBulk:
    return desk.desk.change_matching(query, now_ms=NOW, **{"dry_run": False, **order})


def offsets(bulk: PendingBulk, verdict: PendingVerdict = V.DONE) -> list[int]:
    return [answer.offset for answer in bulk.answers if answer.verdict is verdict]


@QUERIES
@pytest.mark.parametrize("order", [CANCEL, EARLIER, TO_TIME], ids=["cancel", "earlier", "time"])
def test_a_change_ends_before_what_the_disk_cannot_read_now(
    monkeypatch: pytest.MonkeyPatch, query: PendingQuery, order: dict[str, Any]
) -> None:
    desk, ids = filled()
    fails = failing(monkeypatch, desk, ids[1], eio)
    first = change(desk, query, **order)
    assert (offsets(first), bool(first.next)) == (ids[:1], True)
    with pytest.raises(StoreError, match="EIO"):
        change(desk, query, after=first.next, **order)
    fails.clear()
    rest = change(desk, query, after=first.next, **order)
    assert (offsets(rest), rest.next) == (ids[1:], "")
    if order is CANCEL:
        desk.world.run(11 * DAY_MS)
        assert not set(desk.delivered()) & set(ids)


def test_a_cancel_by_due_times_ends_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, ids = filled()
    failing(monkeypatch, desk, ids[1], eio)
    first = change(desk, DUE, **CANCEL)
    assert (len(first.answers), set(offsets(first)) & set(ids), bool(first.next)) == (2, {ids[0]}, True)


@pytest.mark.parametrize("order", [CANCEL, EARLIER, LATER], ids=["cancel", "earlier", "later"])
def test_an_error_says_that_nothing_was_changed(monkeypatch: pytest.MonkeyPatch, order: dict[str, Any]) -> None:
    """A move to later times cannot go on, so it has the error wherever that is."""
    desk, ids = filled()
    fails = failing(monkeypatch, desk, ids[1 if order is LATER else 0], eio)
    for dry_run in (False, *[True] * (order is not LATER)):
        with pytest.raises(StoreError, match="EIO"):
            change(desk, dry_run=dry_run, **order)
    fails.clear()
    assert [(row.offset, row.version) for row in desk.desk.page(MINE, 9).rows] == [(offset, 0) for offset in ids]


def test_it_ends_there_as_well_if_that_begins_between_the_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slice is read again, because a message of it was cancelled meanwhile."""
    desk, ids = filled()
    fails = failing(monkeypatch, desk, ids[1], eio)
    fails.clear()
    matching = Looker.matching

    def matched(self: Looker, *given: Any) -> Any:
        if not fails:
            assert desk.change(ids[2]).verdict is V.DONE
            fails.append(True)
        return matching(self, *given)

    monkeypatch.setattr(Looker, "matching", matched)
    first = change(desk, **CANCEL)
    assert (offsets(first), bool(first.next)) == (ids[:1], True)


def test_a_dry_run_and_a_count_do_not_claim_to_have_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge whose dry run finds nothing says that nothing is left."""
    desk, ids = filled()
    fails = failing(monkeypatch, desk, ids[1], eio)
    dry = change(desk, dry_run=True, **CANCEL)
    counted = desk.desk.count(MINE)
    assert (offsets(dry), counted.count) == (ids[:1], 1)
    for after in (dry.next, counted.next):
        assert after
        with pytest.raises(StoreError, match="EIO"):
            desk.desk.count(MINE, after)
    fails.clear()
    assert desk.desk.count(MINE, counted.next).count == 2


@QUERIES
def test_a_damaged_message_ends_nothing(monkeypatch: pytest.MonkeyPatch, query: PendingQuery) -> None:
    """It will never be read, so nobody waits for it."""
    desk, ids = filled()
    failing(monkeypatch, desk, ids[0], damaged)
    moved = change(desk, query, **EARLIER)
    assert (offsets(moved), moved.next) == (ids[1:], "")
    assert desk.desk.count(MINE).count == 2
    done = change(desk, MINE, **CANCEL)
    assert (offsets(done), done.next) == (ids[1:], "")


@pytest.mark.parametrize("order", [EARLIER, LATER], ids=["earlier", "later"])
def test_a_move_by_due_times_tells_of_a_damaged_message_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, order: dict[str, Any]
) -> None:
    desk, ids = filled()
    failing(monkeypatch, desk, ids[0], damaged)
    moved = change(desk, DUE, **order)
    assert (moved.verdicts, moved.next) == ({V.REFUSED: 1, V.DONE: 5}, "")
    assert offsets(moved, V.REFUSED) == ids[:1]
    assert "cannot be read: a checksum" in moved.answers[0].detail


def test_the_error_names_the_message_by_its_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be left out by a due range if the disk never reads it again."""
    desk, ids = filled()
    failing(monkeypatch, desk, ids[0], lambda _: StoreError("cannot read /store/run: Input/output error (errno 5)"))
    with pytest.raises(StoreError, match=rf"{ids[0]:#x}, due at {FAR} \(epoch ms\), cannot be read: cannot"):
        desk.desk.count(MINE)
    assert desk.desk.count(PendingQuery(topic="Mine", due_from_ms=FAR + 1)).count == 2
