"""Delay keys on a disk that fails, and races between a look and the turn's end."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_plugin.pending import delay_keys
from broker_plugin.pending.key_table import KeyTable
from store.disk.errors import StoreError, StoreFullError, SyncFailedError
from store.put.pending_api import PendingOrder, PendingQuery, PendingVerb, PendingVerdict
from store.put.plugin_api import Held, PutStatus, Refused
from store.spill.spill_view import SpillView
from tests.broker_plugin.test_delay_keys import NOW, by_key, held, message, put
from tests.broker_plugin.test_pending_desk import Desk


def full(where: str) -> Callable[[str, Path], None]:
    def fault(operation: str, path: Path) -> None:
        if operation in ("pwrite", "create", "mkdir") and where in str(path):
            raise StoreFullError(f"{path}: No space left on device (errno 28)")

    return fault


@pytest.mark.parametrize("verb", [PendingVerb.NOW, PendingVerb.RESTART])
def test_a_move_whose_row_cannot_be_written_is_delivered(verb: PendingVerb) -> None:
    desk = Desk()
    held(put(desk, NOW + 900))
    desk.world.run(500)
    desk.world.disk.fault = full("/keys/")
    with pytest.raises(StoreError):
        desk.desk.change(PendingOrder(verb=verb, name=by_key()), desk.now)
    desk.world.disk.fault = None
    assert desk.desk.change(PendingOrder(verb=PendingVerb.NOW, name=by_key()), desk.now).verdict is PendingVerdict.DONE
    desk.world.run(5_000)
    assert len(desk.delivered()) == 1
    assert desk.world.plugin.check() == []


def test_what_shares_a_turn_with_a_replacement_that_fails_never_comes() -> None:
    desk = Desk()
    held(put(desk, NOW + 900))
    plugin = desk.world.plugin
    held(plugin.before_put(message(NOW + 800, "", b"other", "", "U"), desk.now))
    held(plugin.before_put(message(NOW + 700, "k", b"second", "replace", "T"), desk.now))
    count = 0

    def fault(operation: str, path: Path) -> None:
        nonlocal count
        if operation == "pwrite" and "/journal/" in str(path):
            count += 1
            if count > 1:
                raise StoreFullError("full")

    desk.world.disk.fault = fault
    with pytest.raises(StoreError):
        plugin.commit_turn()
    desk.world.disk.fault = None
    desk.world.run(200)
    desk.world.kill()
    desk.world.run(5_000)
    assert sorted(b for *_, b in desk.delivered().values()) == [b"b"]


def test_the_key_of_a_replacement_that_came_too_late_outlives_the_process() -> None:
    desk = Desk()
    held(put(desk, NOW + 5_000))
    plugin = desk.world.plugin
    answer = held(plugin.before_put(message(NOW + 9_000, "k", b"second", "replace", "T"), desk.now))
    desk.desk.change(PendingOrder(verb=PendingVerb.CANCEL, name=by_key()), desk.now)
    plugin.commit_turn()
    desk.world.stop_and_start()
    assert desk.desk.get(by_key()).offset == answer.offset
    assert isinstance(put(desk, NOW + 9_500), Refused)


def test_a_full_table_is_searched_without_a_look_at_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    table = KeyTable()
    for number in range(5_000):
        table.put(number * 7_919, number + 1, NOW + number)
    assert len(list(table.due_before(NOW + 10, 2_048))) == 10
    looked: list[int] = []

    class Counted(array):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            looked.append(len(self))
            return super().__iter__()

    monkeypatch.setattr(table, "_dues", [Counted("q", dues) for dues in table._dues])
    assert list(table.due_before(NOW, 2_048)) == []
    assert looked == []
    table.put(77, 9_999, NOW - 5)
    table.put(78, 9_998, NOW - 5)
    table.remove(78, 9_998)
    assert list(table.due_before(NOW, 2_048)) == [(77, 9_999)]
    assert len(looked) < 10


def test_keys_that_must_stay_do_not_hide_those_that_may_go() -> None:
    table = KeyTable()
    keys = {(number * 7_919 + (number % 3) * 1024, number + 1) for number in range(5_000)}
    for hash_, delay_id in keys:
        table.put(hash_, delay_id, NOW - 5)
    table.put(5, 9_999, NOW + 5)
    for most in (700, 4_999, 5_000, 9_000):
        seen = [key for _ in range(-(-5_000 // most)) for key in table.due_before(NOW, most)]
        assert (set(seen), len(seen) < 5_000 + most) == (keys, True)
        table.due_before(NOW, 13)


def test_a_full_table_forgets_what_was_delivered_behind_what_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_keys, "EVICTED_AT_ONCE", 8)
    desk = Desk()
    keys = desk.world.plugin.pending._keys
    assert keys is not None
    desk.world.missing.add("Gone")
    for number in range(64):
        held(put(desk, NOW + 10, f"stays{number}", topic="Gone"))
        held(put(desk, NOW + 10, f"goes{number}"))
    desk.world.run(2_000)
    keys._keys_max = 1
    calls = [keys.evict(desk.now) for _ in range(40)]
    assert (sum(calls), len(keys)) == (64, 64)


def test_a_refusal_waits_until_what_was_replaced_is_durably_back() -> None:
    desk = Desk()
    held(put(desk, NOW + 900))
    desk.world.store.flusher.sync_all()
    plugin = desk.world.plugin
    answer = held(plugin.before_put(message(NOW + 800, "k", b"second", "replace", "T"), desk.now))
    with plugin.lock:
        plugin.commit_turn()
        plugin.take_back(answer)
    ticket = plugin.taken_back()
    assert ticket is not None
    assert not ticket.is_done()
    desk.world.store.flusher.sync_all()
    assert ticket.is_done()
    assert plugin.taken_back() is None
    desk.world.disk.power_cut(0.0)
    desk.world.open()
    desk.world.run(2_000)
    assert [body for *_, body in desk.delivered().values()] == [b"b"]


def owing() -> Desk:
    """A refused message has replaced another one, due 900 ms from now, and the disk refuses to put that one back."""
    desk = Desk()
    held(put(desk, NOW + 900))
    plugin = desk.world.plugin
    answer = held(plugin.before_put(message(NOW + 800, "k", b"second", "replace", "T"), desk.now))
    with plugin.lock:
        plugin.commit_turn()
        desk.world.disk.fault = full("/journal/")
        plugin.take_back(answer)
        desk.world.disk.fault = None
    return desk


def test_what_cannot_be_put_back_fails_nothing_else_and_is_later() -> None:
    desk = owing()
    desk.world.run(2_000)
    assert [body for *_, body in desk.delivered().values()] == [b"b"]
    assert desk.world.plugin.check() == []


@pytest.mark.parametrize("query", [PendingQuery(topic="T"), PendingQuery(due_from_ms=NOW + 850, due_to_ms=NOW + 999)])
@pytest.mark.parametrize("verb", [PendingVerb.CANCEL, PendingVerb.MOVE])
@pytest.mark.parametrize("how", ["", "kill"])
def test_a_bulk_change_is_of_what_has_to_be_put_back(how: str, verb: PendingVerb, query: PendingQuery) -> None:
    """A look alone would find the refused replacement, which is no longer there when the change is written."""
    desk = owing()
    due_ms = None if verb is PendingVerb.CANCEL else NOW + 1_500
    done = desk.desk.change_matching(query, verb, desk.now, due_ms=due_ms, dry_run=False)
    assert [found.verdict for found in done.answers] == [PendingVerdict.DONE]
    if how:
        desk.world.kill()
    assert [row.due_ms for row in desk.desk.page(PendingQuery(), 9).rows] == ([] if due_ms is None else [due_ms])
    desk.world.run(2_000)
    assert [body for *_, body in desk.delivered().values()] == ([] if due_ms is None else [b"b"])
    assert desk.world.plugin.check() == []


@pytest.mark.parametrize("cursor", ["0-0", "1-ffff", "1--1"])
def test_a_cursor_of_another_query_leads_to_nothing_that_this_one_does_not_ask_for(cursor: str) -> None:
    desk = Desk()
    for number in range(4):
        desk.send(NOW + 5_000 + number)
    query = PendingQuery(topic="T", due_from_ms=NOW + 5_002)
    assert len(desk.desk.page(query, 10, cursor).rows) == 2
    done = desk.desk.change_matching(query, PendingVerb.CANCEL, desk.now, dry_run=False, after=cursor)
    assert [answer.due_ms for answer in done.answers] == [NOW + 5_002, NOW + 5_003]
    assert desk.desk.count(PendingQuery()).count == 2


def test_a_replacement_of_a_turn_that_fails_behind_it_is_undone() -> None:
    desk = Desk()
    held(put(desk, NOW + 900, "k1", b"one"))
    held(put(desk, NOW + 900, "k2", b"two"))
    plugin = desk.world.plugin
    for key in ("k1", "k2"):
        held(plugin.before_put(message(NOW + 800, key, b"refused", "replace", "T"), desk.now))
    desk.world.disk.fail_at("pwrite", {2}, StoreFullError("full"), "/journal/")
    with pytest.raises(StoreError):
        plugin.commit_turn()
    desk.world.disk.fault = None
    assert plugin.taken_back() is not None
    desk.world.kill()
    desk.world.run(5_000)
    assert sorted(body for *_, body in desk.delivered().values()) == [b"one", b"two"]


def test_a_turn_that_fails_undoes_nothing_of_the_turn_before_it() -> None:
    desk = Desk()
    plugin = desk.world.plugin
    held(put(desk, NOW + 900))
    held(put(desk, NOW + 800, body=b"second", mode="replace"))
    for where in ("/keys/", "/journal/"):
        held(plugin.before_put(message(NOW + 700, "k", b"third", "replace", "T"), desk.now))
        desk.world.disk.fault = full(where)
        with pytest.raises(StoreError):
            plugin.commit_turn()
        desk.world.disk.fault = None
    plugin.gate._disk_refusal = lambda: "the disk is full"
    held(plugin.before_put(message(NOW + 700, "k", b"third", "replace", "T"), desk.now))
    with pytest.raises(StoreFullError):
        plugin.commit_turn()
    plugin.gate._disk_refusal = str
    desk.world.run(5_000)
    assert [body for *_, body in desk.delivered().values()] == [b"second"]


@pytest.mark.parametrize("fails", [False, True])
def test_two_replacements_of_what_is_delivered_meanwhile_are_one_message(fails: bool) -> None:
    desk = Desk()
    plugin = desk.world.plugin
    first = held(put(desk, NOW + 5))
    answers = [
        held(plugin.before_put(message(NOW + 900, "k", body, "replace", "T"), desk.now)) for body in (b"2", b"3")
    ]
    desk.world.run(20)
    with plugin.lock:
        plugin.commit_turn()
        if fails:
            plugin.take_back(answers[1])
    assert answers[0].offset == answers[1].offset != first.offset
    assert plugin.pending_count() == 1
    desk.world.stop_and_start()
    assert desk.desk.get(by_key()).offset == answers[0].offset
    desk.world.run(2_000)
    assert sorted(body for *_, body in desk.delivered().values()) == [b"2" if fails else b"3", b"b"]


@pytest.mark.parametrize("how", ["", "kill"])
@pytest.mark.parametrize(("refused", "stays"), [((0,), b"r1"), ((1,), b"r0"), ((0, 1), b"b"), ((1, 0), b"b")])
def test_of_several_replacements_of_a_turn_those_that_are_accepted_stay(
    refused: tuple[int, ...], stays: bytes, how: str
) -> None:
    """Of two sends that replace one message one is in a batch that is refused; the other's sender was told SEND_OK."""
    desk = Desk()
    held(put(desk, NOW + 900))
    plugin = desk.world.plugin
    answers = [
        held(plugin.before_put(message(NOW + 800 - at, "k", b"r%d" % at, "replace", "T"), desk.now)) for at in (0, 1)
    ]
    with plugin.lock:
        plugin.commit_turn()
        for at in refused:
            plugin.take_back(answers[at])
    if how:
        desk.world.kill()
    desk.world.run(2_000)
    assert [body for *_, body in desk.delivered().values()] == [stays]
    assert plugin.check() == []


def test_a_message_that_is_put_back_keeps_the_time_that_it_was_moved_to_meanwhile() -> None:
    desk = Desk()
    held(put(desk, NOW + 9_000))
    plugin = desk.world.plugin
    answer = held(plugin.before_put(message(NOW + 8_000, "k", b"second", "replace", "T"), desk.now))
    order = PendingOrder(verb=PendingVerb.MOVE, name=by_key(), due_ms=NOW + 20_000)
    assert desk.desk.change(order, desk.now).verdict is PendingVerdict.DONE
    with plugin.lock:
        plugin.commit_turn()
        plugin.take_back(answer)
    found = desk.desk.get(by_key())
    assert (found.body, found.due_ms) == (b"b", NOW + 20_000)


@pytest.mark.parametrize("folder", ["keys", "cancelled"])
def test_rows_in_a_file_whose_name_a_killed_process_had_not_synced_outlive_a_power_cut(folder: str) -> None:
    desk = Desk()
    cancel = PendingOrder(verb=PendingVerb.CANCEL, name=by_key())
    if folder == "cancelled":
        held(put(desk, NOW + 9_000))

    def fault(operation: str, path: Path) -> None:
        if operation == "sync_dir" and path.name == folder:
            raise SyncFailedError("no sync")

    desk.world.disk.fault = fault
    with pytest.raises(StoreError):
        if folder == "keys":
            put(desk, NOW + 9_000)
        else:
            desk.desk.change(cancel, desk.now)
    desk.world.disk.fault = None
    desk.world.kill()
    if folder == "keys":
        held(put(desk, NOW + 9_000))
    else:
        assert desk.desk.change(cancel, desk.now).verdict is PendingVerdict.DONE
    desk.world.store.flusher.sync_all()
    desk.world.store.take_checkpoint()
    desk.world.disk.power_cut(0.0)
    desk.world.open()
    if folder == "keys":
        assert isinstance(put(desk, NOW + 9_000), Refused)
    else:
        assert desk.desk.change(cancel, desk.now).when_ms == NOW


@pytest.mark.parametrize("mode", ["", "replace"])
@pytest.mark.parametrize("how", ["", "stop_and_start"])
def test_a_key_goes_on_to_name_what_was_delivered_when_a_send_with_it_is_refused(mode: str, how: str) -> None:
    desk = Desk()
    held(put(desk, NOW + 9))
    if not mode:
        desk.world.run(100)
    plugin = desk.world.plugin
    answer = held(plugin.before_put(message(NOW + 900, "k", b"second", mode, "T"), desk.now))
    desk.world.run(100)
    with plugin.lock:
        plugin.commit_turn()
        plugin.take_back(answer)
    if how:
        desk.world.stop_and_start()
    order = PendingOrder(verb=PendingVerb.CANCEL, name=by_key())
    assert desk.desk.change(order, desk.now).verdict is PendingVerdict.TOO_LATE


def test_a_key_whose_message_cannot_be_looked_up_is_refused_and_may_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The index of a run could not be read: an error that nobody caught ended the request."""
    desk = Desk()
    held(put(desk, NOW + 900))
    keys = desk.world.plugin.gate.keyed.keys  # type: ignore[union-attr]

    def fails(*_: object) -> None:
        raise StoreError("unreadable")

    with monkeypatch.context() as patched:
        patched.setattr(SpillView, "find", fails)
        answer = put(desk, NOW + 800)
        assert isinstance(answer, Refused)
        assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
        keys._keys_max = 1
        assert isinstance(put(desk, NOW + 800, "other"), Refused)
    assert isinstance(put(desk, NOW + 800, "third"), Refused)
    keys._keys_max = 9
    assert isinstance(put(desk, NOW + 800, "other"), Held)
