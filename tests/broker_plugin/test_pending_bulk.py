"""Bulk cancels between the holds of the delivery lock: what happens meanwhile, and how long a hold is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from broker_plugin.pending.looking import HOLD_NS, SLICE, SLICE_MIN, Looker
from broker_plugin.pending.records import fits, fitting
from remoting.messages.message import Message, RecordError, encode_record
from remoting.messages.properties import format_properties
from store.disk.errors import StoreFullError
from store.put.pending_api import PendingBulk, PendingQuery, PendingVerb, PendingVerdict
from store.spill.spill_store import SpillStore
from store.spill.spill_view import SpillView
from tests.broker_plugin.test_pending_desk import NOW, Desk
from tests.support import hostile

V = PendingVerdict
FAR = NOW + 12_000
MINE = PendingQuery(topic="Mine")


def between(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object]) -> None:
    """Have something happen once, between the hold that reads a slice and the one that cancels it."""
    matching = Looker.matching
    left = [happen]

    def matched(self: Looker, *given: Any) -> Any:
        if left and not self._lock._is_owned():  # type: ignore[attr-defined]
            left.pop()()
        return matching(self, *given)

    monkeypatch.setattr(Looker, "matching", matched)


def cancel(desk: Desk, **rest: Any) -> PendingBulk:
    return desk.desk.change_matching(MINE, PendingVerb.CANCEL, desk.now, dry_run=False, **rest)


def test_what_happens_between_the_holds_has_one_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(5)
    soon = [desk.send(NOW + 20 + n, "Mine") for n in range(40)]
    far = [desk.send(FAR + n, "Mine") for n in range(40)]
    moved, cancelled, sent_now = far[3], far[7], far[11]

    def happen() -> None:
        desk.world.run(40)
        assert desk.change(moved, PendingVerb.MOVE, due_ms=FAR + 5_000).verdict is V.DONE
        assert desk.change(cancelled).verdict is V.DONE
        assert desk.change(sent_now, PendingVerb.NOW).verdict is V.DONE

    between(monkeypatch, happen)
    done = cancel(desk)
    gone = {answer.offset for answer in done.answers}
    delivered = set(desk.delivered())
    assert delivered and delivered < set(soon)
    assert not gone & (delivered | {cancelled})
    assert {answer.version for answer in done.answers if answer.offset in (moved, sent_now)} <= {1}
    assert gone | delivered | {cancelled} >= set(soon) | set(far) - {sent_now}
    desk.world.run(20_000)
    assert set(desk.delivered()) == delivered | ({sent_now} - gone)
    for offset in (*soon, *far):
        verdict = desk.change(offset).verdict
        assert verdict is (V.TOO_LATE if offset in desk.delivered() else V.ALREADY)


def test_without_the_second_look_two_would_win(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(5)
    soon = [desk.send(NOW + 20 + n, "Mine") for n in range(40)]
    between(monkeypatch, lambda: desk.world.run(40))
    monkeypatch.setattr(SpillView, "all_wait", lambda *_: True)
    gone = {answer.offset for answer in cancel(desk).answers}
    assert gone & set(desk.delivered()) == set(desk.delivered()) & set(soon) != set()


def test_what_is_relocated_between_the_holds_is_cancelled_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(3)
    sent = [desk.send(FAR + n, "Mine", body=bytes(150)) for n in range(120)]
    runs = desk.world.plugin.spill.run_count
    between(monkeypatch, lambda: desk.world.run(3_000))
    done = cancel(desk)
    assert desk.world.plugin.spill.run_count > runs, "nothing was relocated"
    assert [answer.offset for answer in done.answers] == sent
    desk.world.kill()
    desk.world.run(12_000)
    assert not desk.delivered()
    assert {desk.change(offset).verdict for offset in sent} == {V.ALREADY}


def test_a_hold_that_takes_too_long_makes_smaller_slices() -> None:
    desk = Desk()
    sent = [desk.send(FAR + n, "Mine") for n in range(1_500)]
    worked, owned = [0], [0]
    lock = desk.world.plugin.lock
    cost_ns = [HOLD_NS // 64]

    def worked_ns() -> int:
        """A thread that needs so long for each message of a slice."""
        assert lock._is_owned()  # type: ignore[attr-defined]
        worked[0] += cost_ns[0] * looker.rows_at_once
        return worked[0]

    def timeless_ns() -> int:
        return 0

    looker = desk.desk._looker
    assert looker.rows_at_once == SLICE
    desk.desk.pause_by(lambda: owned.append(looker.rows_at_once), worked_ns)
    first = cancel(desk, limit=1_200)
    assert len(first.answers) == 1_200
    assert 48 <= looker.rows_at_once <= 80
    assert owned[1:] == sorted(owned[1:], reverse=True)
    cost_ns[0] = HOLD_NS
    rest = cancel(desk, after=first.next)
    assert looker.rows_at_once >= SLICE_MIN
    assert [answer.offset for answer in (*first.answers, *rest.answers)] == sent
    looker.worked_ns = timeless_ns
    for _ in range(200):
        looker.worked(SLICE, 0)
    assert looker.rows_at_once == SLICE


def test_answers_of_a_bulk_cancel_are_a_sequence() -> None:
    desk = Desk()
    sent = [desk.send(FAR + n, "Mine") for n in range(5)]
    answers = cancel(desk).answers
    assert [answer.offset for answer in answers] == sent
    assert [answer.offset for answer in answers[1:3]] == sent[1:3]
    last = answers[-1]
    assert (last.verdict, last.offset, last.due_ms, last.when_ms, last.version) == (V.DONE, sent[4], FAR + 4, NOW, 0)
    with pytest.raises(IndexError):
        answers[5]


@pytest.mark.parametrize("seed", range(20))
def test_many_records_are_compared_as_one_is(seed: int) -> None:
    rng = random.Random(seed)
    records: list[bytes] = [b""]
    topics = ["Mine", "M", "MineX", "T\u00fcr"]
    for n in range(60):
        text = (
            format_properties({"TAGS": rng.choice("ab"), "n": str(n)})
            + hostile.property_text(rng, hostile.plain_properties(rng))[:20_000]
        )
        message = Message(rng.choice(topics), 0, body=hostile.body(rng, 5_000), properties=text)
        records.append(encode_record(message, bytes(8), 5))
    if seed % 2:
        broken = rng.randrange(1, len(records))
        records[broken] = records[broken][: rng.randrange(len(records[broken]))]
    rng.shuffle(records)
    queries = [PendingQuery(topic=topic) for topic in topics]
    for query in (*queries, PendingQuery(topic="Mine", tag="a"), PendingQuery()):
        wanted = []
        for place, record in enumerate(records):
            try:
                if record and fits(query, record):
                    wanted.append(place)
            except RecordError:
                pass
        assert fitting(query, records) == wanted


def failing(monkeypatch: pytest.MonkeyPatch, name: str, good: int) -> list[int]:
    """Have a disk be full after so many calls of a `SpillStore`'s; the list is emptied when there is room again."""
    plain = getattr(SpillStore, name)
    full = [good]

    def call(self: SpillStore, *given: Any) -> Any:
        if full:
            if full[0] == 0:
                raise StoreFullError("no room")
            full[0] -= 1
        return plain(self, *given)

    monkeypatch.setattr(SpillStore, name, call)
    return full


@pytest.mark.pure
@pytest.mark.parametrize("by_ms", [-3_000, 3_000])
def test_a_bulk_move_that_fails_in_between_moves_nothing_twice(monkeypatch: pytest.MonkeyPatch, by_ms: int) -> None:
    desk = Desk(5)
    ids = [desk.send(FAR + n, "Mine") for n in range(10)]
    full = failing(monkeypatch, "move", 4)

    def move(after: str) -> PendingBulk:
        return desk.desk.change_matching(MINE, PendingVerb.MOVE, desk.now, dry_run=False, by_ms=by_ms, after=after)

    done = move("")
    assert done.verdicts[V.DONE] == 4
    told = {answer.offset: answer.verdict for answer in done.answers}
    if by_ms > 0:  # what is later now would match again: each that was not moved is told
        assert (done.verdicts, done.next) == ({V.DONE: 4, V.REFUSED: 6}, "")
        assert "no room" in done.answers[-1].detail
    else:
        with pytest.raises(StoreFullError):
            move(done.next)
        full.clear()
        rest = move(done.next)
        assert (rest.verdicts, rest.next) == ({V.DONE: 6}, "")
        told |= {answer.offset: answer.verdict for answer in rest.answers}
    assert sorted(told) == ids
    rows = {row.offset: row.due_ms for row in desk.desk.page(MINE, 100).rows}
    assert rows == {offset: FAR + n + (by_ms if told[offset] is V.DONE else 0) for n, offset in enumerate(ids)}
    counted = desk.desk.figures().verdicts
    assert counted[PendingVerb.MOVE, V.DONE] == sum(verdict is V.DONE for verdict in told.values())


@pytest.mark.pure
def test_a_bulk_cancel_that_fails_in_between_tells_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(5)
    ids = {desk.send(FAR + n, "Mine") for n in range(SLICE + 40)}
    full = failing(monkeypatch, "cancel_many", 1)
    first = cancel(desk)
    assert 0 < first.verdicts[V.DONE] < len(ids)
    with pytest.raises(StoreFullError):
        cancel(desk, after=first.next)
    full.clear()
    second = cancel(desk, after=first.next)
    assert {answer.offset for answer in (*first.answers, *second.answers)} == ids
    assert second.next == ""
    assert desk.desk.figures().verdicts[PendingVerb.CANCEL, V.DONE] == len(ids)
