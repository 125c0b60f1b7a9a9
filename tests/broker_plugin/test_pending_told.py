"""That a message was delivered: under SYNC_FLUSH durable before it is answered, whoever asks, and however."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.disk.errors import StoreError, SyncFailedError
from store.put.pending_api import PendingAnswer, PendingName, PendingVerb, PendingVerdict
from tests.broker_plugin.test_pending_desk import DAY_MS, NOW, Desk, order

V = PendingVerdict
Ask = Callable[[Desk, int, int], PendingAnswer]
"""Asks about a delivered message; the other one is pending."""


def delivered(*, flush_sync: bool = True) -> tuple[Desk, int, int]:
    """A desk, a message that was just delivered, before the flusher's next step, and one that is pending."""
    desk = Desk(flush_sync=flush_sync)
    gone, there = desk.send(NOW + 5), desk.send(NOW + DAY_MS)
    desk.world.clock.now_ms = NOW + 10
    while desk.world.step("sweeper") <= desk.now:
        pass
    assert set(desk.delivered()) == {gone}
    log = desk.world.store.commit_log
    assert log.synced < log.end
    return desk, gone, there


def cancel(desk: Desk, gone: int, _there: int) -> PendingAnswer:
    return desk.change(gone)


def move(desk: Desk, gone: int, _there: int) -> PendingAnswer:
    return desk.change(gone, PendingVerb.MOVE, by_ms=5)


def get(desk: Desk, gone: int, _there: int) -> PendingAnswer:
    return desk.desk.get(PendingName(offset=gone))


def first_of_many(desk: Desk, gone: int, there: int) -> PendingAnswer:
    return desk.desk.change_many([order(gone), order(there)], desk.now)[0]


def last_of_many(desk: Desk, gone: int, there: int) -> PendingAnswer:
    return desk.desk.change_many([order(there), order(gone)], desk.now)[1]


@pytest.mark.parametrize("ask", [cancel, move, get, first_of_many, last_of_many])
def test_a_delivery_outlives_a_power_cut_once_it_is_told(ask: Ask) -> None:
    desk, gone, there = delivered()
    answer = ask(desk, gone, there)
    assert (answer.verdict, answer.where) == (V.TOO_LATE, "T/1/0")
    desk.world.disk.power_cut(0.0)
    desk.world.open()
    again = desk.change(gone)
    assert (again.verdict, again.where) == (V.TOO_LATE, "T/1/0")


def test_what_was_changed_with_it_is_durable_too() -> None:
    for ask in (first_of_many, last_of_many):
        desk, gone, there = delivered()
        ask(desk, gone, there)
        desk.world.disk.power_cut(0.0)
        desk.world.open()
        assert desk.change(there).verdict is V.ALREADY


@pytest.mark.parametrize("ask", [cancel, move, first_of_many])
def test_a_sync_that_fails_gives_no_such_answer(ask: Ask) -> None:
    desk, gone, there = delivered()
    desk.world.plugin.spill.journal.sync()
    desk.world.disk.fail_at("sync", {1}, SyncFailedError("cannot sync: a broken disk"), "commitlog")
    with pytest.raises(StoreError, match="a broken disk"):
        ask(desk, gone, there)


def test_under_async_flush_nobody_waits_for_it() -> None:
    desk, gone, _ = delivered(flush_sync=False)
    assert desk.change(gone).verdict is V.TOO_LATE
    log = desk.world.store.commit_log
    assert log.synced < log.end


def test_a_name_that_does_not_fit_waits_for_nothing() -> None:
    """The time of an answer must not tell that there was a message of another topic."""
    desk, gone, _ = delivered()
    assert desk.desk.get(PendingName(offset=gone, topic="Other")).verdict is V.UNKNOWN
    log = desk.world.store.commit_log
    assert log.synced < log.end
