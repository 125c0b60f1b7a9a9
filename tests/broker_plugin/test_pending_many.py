"""Several changes in one call: one wait for the disk, no bodies for a look, and an end in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from broker_plugin.pending.looking import CALL_NS
from store.disk.errors import StoreError, SyncFailedError
from store.put.pending_api import PendingAnswer, PendingName, PendingOrder, PendingQuery, PendingVerb, PendingVerdict
from store.spill.spill_view import SpillView
from tests.broker_plugin.test_pending_desk import NOW, Desk, order

V = PendingVerdict
FAR = NOW + 60_000
MINE = PendingQuery(topic="T")


def verdicts(answers: Sequence[PendingAnswer]) -> list[PendingVerdict]:
    return [answer.verdict for answer in answers]


def slow(desk: Desk, steps: int) -> None:
    """Have a call's time be over after so many looks at the clock."""
    looks = iter([0] * (steps + 1))
    desk.desk.pause_by(lambda: None, passed_ns=lambda: next(looks, CALL_NS))


def test_one_wait_covers_all_answers() -> None:
    """Also those that tell of an earlier cancel, which must be durable before it is told of."""
    desk = Desk()
    gone, rest = ([desk.send(FAR + n) for n in range(20)] for _ in range(2))
    desk.desk.change_many([order(offset) for offset in gone], desk.now)
    orders = [order(offset) for pair in zip(gone, rest, strict=True) for offset in pair]
    flusher = desk.world.store.flusher
    before = flusher.sync_count
    assert verdicts(desk.desk.change_many(orders, desk.now)) == [V.ALREADY, V.DONE] * 20
    assert flusher.sync_count - before == 1
    assert verdicts(desk.desk.change_many(orders, desk.now, dry_run=True)) == [V.CANCELLED] * 40


def test_an_answer_that_changes_nothing_waits_too() -> None:
    desk = Desk()
    offset = desk.send(FAR)
    desk.desk.change_many([order(offset)], desk.now)
    desk.send(FAR)
    journal = desk.world.plugin.spill.journal
    assert verdicts(desk.desk.change_many([order(offset)] * 2, desk.now)) == [V.ALREADY] * 2
    assert journal.synced == journal.written


def test_a_look_at_many_takes_no_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    offset = desk.send(FAR, body=bytes(300))
    whole: list[object] = []
    real = SpillView.read
    monkeypatch.setattr(SpillView, "read", lambda self, refs: whole.append(refs) or real(self, refs))
    answers = desk.desk.change_many([order(offset)] * 3, NOW, dry_run=True)
    assert verdicts(answers) == [V.DONE] * 3
    assert {answer.body for answer in answers} == {b""}
    assert whole == []
    row = answers[0].row
    assert row is not None and row.size > 300
    named = PendingOrder(verb=PendingVerb.CANCEL, name=PendingName(offset=offset, topic="Other"))
    assert verdicts(desk.desk.change_many([named], NOW, dry_run=True)) == [V.UNKNOWN]


def test_one_that_cannot_be_read_says_so_and_the_others_what_they_are() -> None:
    desk = Desk()
    offset, gone = desk.send(FAR), desk.send(FAR)
    desk.change(gone)
    with desk.unreadable():
        answers = desk.desk.change_many([order(offset), order(gone)], NOW, dry_run=True)
    assert answers[0].verdict is V.REFUSED and "unreadable" in answers[0].detail


def _by_ids(desk: Desk, offsets: list[int]) -> None:
    desk.desk.change_many([order(offset, PendingVerb.MOVE, by_ms=5) for offset in offsets], NOW)


def _by_query(desk: Desk, _offsets: list[int]) -> None:
    desk.desk.change_matching(MINE, PendingVerb.MOVE, NOW, by_ms=5, dry_run=False)


@pytest.mark.parametrize("call", [_by_ids, _by_query])
def test_a_sync_that_fails_says_that_changes_were_made(call: Callable[[Desk, list[int]], None]) -> None:
    """Whoever asks again for a move by an interval would make it twice."""
    desk = Desk()
    offsets = [desk.send(FAR + n) for n in range(3)]
    desk.world.disk.fail_at("sync", {1}, SyncFailedError("sync failed"))
    with pytest.raises(StoreError, match=r"3 messages were changed.*sync failed.*look at them"):
        call(desk, offsets)
    desk.world.disk.fault = None
    assert {answer.version for answer in map(desk.desk.get, map(_name, offsets))} == {1}


def _name(offset: int) -> PendingName:
    return PendingName(offset=offset)


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_there_is_no_time_for_is_as_before(dry_run: bool) -> None:
    desk = Desk()
    offsets = [desk.send(FAR + n) for n in range(6)]
    slow(desk, 3)
    answers = desk.desk.change_many([order(offset) for offset in offsets], NOW, dry_run=dry_run)
    assert verdicts(answers) == [V.DONE] * 4 + [V.REFUSED] * 2
    assert "its turn did not come within 8 s" in answers[-1].detail
    slow(desk, 100)
    rest = desk.desk.change_many([order(offset) for offset in offsets], NOW, dry_run=True)
    assert verdicts(rest) == [V.DONE if dry_run else V.CANCELLED] * 4 + [V.DONE] * 2


@pytest.mark.parametrize("verb", [PendingVerb.CANCEL, PendingVerb.NOW, PendingVerb.MOVE])
def test_a_bulk_change_ends_in_time_with_a_cursor(verb: PendingVerb) -> None:
    desk = Desk()
    offsets = [desk.send(FAR + n) for n in range(200)]
    due = {"by_ms": -5} if verb is PendingVerb.MOVE else {}
    done, after, calls = 0, "", 0
    while after or not calls:
        slow(desk, 20)
        found = desk.desk.change_matching(MINE, verb, NOW, after=after, dry_run=False, **due)
        assert found.answers
        done += found.verdicts[V.DONE]
        after, calls = found.next, calls + 1
        assert set(found.verdicts) == {V.DONE}
    assert (done, calls > 1) == (len(offsets), verb is not PendingVerb.CANCEL)


def test_a_move_to_later_times_answers_what_it_had_no_time_for() -> None:
    desk = Desk()
    offsets = [desk.send(FAR + n) for n in range(30)]
    slow(desk, 12)
    found = desk.desk.change_matching(MINE, PendingVerb.MOVE, NOW, by_ms=5, dry_run=False)
    assert found.verdicts[V.REFUSED] > 0 < found.verdicts[V.DONE]
    assert [answer.offset for answer in found.answers] == offsets
    slow(desk, 100)
    for answer in found.answers:
        due_ms = FAR + offsets.index(answer.offset) + (5 if answer.verdict is V.DONE else 0)
        assert desk.desk.get(PendingName(offset=answer.offset)).due_ms == due_ms


def test_looks_end_in_time_too() -> None:
    desk = Desk()
    for n in range(300):
        desk.send(FAR + n)
    tagged = PendingQuery(topic="T", tag="none")
    slow(desk, 1)
    assert desk.desk.count(tagged).next
    slow(desk, 1)
    assert desk.desk.page(tagged, 10).next
    slow(desk, 1)
    assert desk.desk.change_matching(tagged, PendingVerb.CANCEL, NOW).next
