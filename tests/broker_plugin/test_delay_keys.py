"""Delay keys: unique while pending, over restarts, and the sender says what a second send does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker_plugin.pending.key_table import KeyTable
from remoting.messages.message import Message
from remoting.messages.properties import format_properties
from store.disk.errors import StoreError, StoreFullError, SyncFailedError
from store.put.pending_api import PendingName, PendingOrder, PendingQuery, PendingVerb, PendingVerdict
from store.put.plugin_api import Held, PutStatus, Refused
from tests.broker_plugin.test_pending_desk import Desk
from tests.support.delay_rig import START_MS

NOW = START_MS
V = PendingVerdict


def message(due_ms: int, key: str, body: bytes, mode: str, topic: str) -> Message:
    properties = {"__STARTDELIVERTIME": str(due_ms), "__DELAYKEY": key}
    if mode:
        properties["__DELAYKEY_MODE"] = mode
    return Message(topic, 1, body=body, properties=format_properties(properties))


def put(
    desk: Desk, due_ms: int, key: str = "k", body: bytes = b"b", mode: str = "", topic: str = "T"
) -> Held | Refused:
    answer = desk.world.plugin.before_put(message(due_ms, key, body, mode, topic), desk.now)
    desk.world.plugin.commit_turn()
    assert answer is not None
    return answer


def held(answer: Held | Refused | None) -> Held:
    assert isinstance(answer, Held), getattr(answer, "remark", "")
    return answer


def by_key(key: str = "k", topic: str = "T") -> PendingName:
    return PendingName(topic=topic, key=key)


def bodies(desk: Desk) -> list[bytes]:
    return sorted(body for *_, body in desk.delivered().values())


def test_a_second_send_is_refused_and_told_why() -> None:
    desk = Desk()
    first = held(put(desk, NOW + 5_000))
    refused = put(desk, NOW + 6_000, body=b"second")
    assert isinstance(refused, Refused)
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert str(NOW + 5_000) in refused.remark
    assert "keep or replace" in refused.remark
    held(put(desk, NOW + 6_000, topic="U"))
    held(put(desk, NOW + 6_000, key="k2"))
    assert desk.desk.get(by_key()).offset == first.offset
    desk.world.run(7_000)
    held(put(desk, desk.now + 5_000))  # it was delivered: the key is free


def test_keep_answers_like_the_first() -> None:
    desk = Desk()
    first = held(put(desk, NOW + 5_000))
    again = held(put(desk, NOW + 9_000, body=b"second", mode="keep"))
    assert (again.offset, again.due_ms) == (first.offset, NOW + 5_000)
    assert desk.world.plugin.pending_count() == 1
    desk.world.run(10_000)
    assert bodies(desk) == [b"b"]


@pytest.mark.parametrize("how", ["", "kill", "power_cut"])
def test_replace_takes_body_and_time_and_is_one_message_whatever_happens(how: str) -> None:
    desk = Desk()
    first = held(put(desk, NOW + 9_000))
    second = held(put(desk, NOW + 3_000, body=b"second", mode="replace"))
    assert second.offset == first.offset
    if how == "power_cut":
        desk.world.store.flusher.sync_all()
    if how:
        getattr(desk.world, how)()
    answer = desk.desk.get(by_key())
    assert (answer.body, answer.due_ms, answer.version) == (b"second", NOW + 3_000, 1)
    desk.world.clock.now_ms += 1_000
    assert desk.desk.change(_order(PendingVerb.RESTART), desk.now).due_ms == NOW + 4_000
    desk.world.run(10_000)
    assert bodies(desk) == [b"second"]
    late = desk.desk.change(_order(PendingVerb.CANCEL), desk.now)
    assert (late.verdict, late.when_ms) == (V.TOO_LATE, NOW + 4_000)


def _order(verb: PendingVerb) -> PendingOrder:
    return PendingOrder(verb=verb, name=by_key())


@pytest.mark.parametrize("timer", ["__STARTDELIVERTIME", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
@pytest.mark.parametrize("mode", ["", "reject", "keep", "replace"])
def test_a_second_send_that_is_due_already_is_a_second_send(mode: str, timer: str) -> None:
    desk = Desk()
    first = held(put(desk, NOW + 5_000))
    properties = {timer: "0" if "DELAY_" in timer else str(NOW - 1), "__DELAYKEY": "k"}
    if mode:
        properties["__DELAYKEY_MODE"] = mode
    sent = Message("T", 1, body=b"second", properties=format_properties(properties))
    answer = desk.world.plugin.before_put(sent, desk.now)
    desk.world.plugin.commit_turn()
    if mode in ("", "reject"):
        assert isinstance(answer, Refused)
        assert str(NOW + 5_000) in answer.remark
    else:
        assert held(answer).offset == first.offset
    desk.world.run(100)
    assert bodies(desk) == ([b"second"] if mode == "replace" else [])
    desk.world.run(6_000)
    assert bodies(desk) == ([b"second"] if mode == "replace" else [b"b"])
    assert desk.world.plugin.pending_count() == 0


def test_one_that_is_due_already_needs_no_room_for_its_key() -> None:
    desk = Desk()
    desk.world.plugin.pending._keys._keys_max = 1  # type: ignore[union-attr]
    held(put(desk, NOW + 5_000))
    passed = message(NOW - 1, "other", b"now", "keep", "T")
    assert desk.world.plugin.before_put(passed, desk.now) is None
    assert isinstance(put(desk, NOW + 6_000, key="third"), Refused)


def test_replacing_what_was_delivered_meanwhile_is_a_message_of_its_own() -> None:
    desk = Desk()
    first = held(put(desk, NOW + 5))
    answer = held(desk.world.plugin.before_put(message(NOW + 500, "k", b"second", "replace", "T"), desk.now))
    desk.world.run(20)
    assert bodies(desk) == [b"b"]
    desk.world.plugin.commit_turn()
    assert answer.offset != first.offset
    desk.world.run(600)
    assert bodies(desk) == [b"b", b"second"]
    assert desk.desk.get(by_key()).offset == answer.offset


def test_a_replacement_whose_batch_is_refused_is_undone() -> None:
    desk = Desk()
    put(desk, NOW + 500)
    plugin = desk.world.plugin
    for commit_before in (False, True):
        answer = held(plugin.before_put(message(NOW + 50, "k", b"second", "replace", "T"), desk.now))
        with plugin.lock:
            if commit_before:
                plugin.commit_turn()
            plugin.take_back(answer)
        plugin.commit_turn()
        got = desk.desk.get(by_key())
        assert (got.body, got.due_ms) == (b"b", NOW + 500)
    fresh = held(plugin.before_put(message(NOW + 50, "other", b"x", "", "T"), desk.now))
    plugin.take_back(fresh)
    plugin.commit_turn()
    held(put(desk, NOW + 60, key="other"))
    kept = held(plugin.before_put(message(NOW + 50, "k", b"x", "keep", "T"), desk.now))
    plugin.take_back(kept)
    plugin.commit_turn()
    assert desk.desk.get(by_key()).body == b"b"


@pytest.mark.parametrize("how", ["stop_and_start", "kill", "power_cut"])
@pytest.mark.parametrize("seed", range(3))
def test_keys_outlive_the_process(how: str, seed: int) -> None:
    desk = Desk(seed)
    rng = random.Random(seed)
    dues = {f"k{number}": NOW + 8_000 + rng.randrange(9_000) for number in range(50)}
    for key, due_ms in dues.items():
        held(put(desk, due_ms, key, key.encode()))
        if rng.random() < 0.2:
            desk.world.run(rng.randrange(300))
    moved = rng.sample(sorted(dues), 10)
    for key in moved:
        assert desk.desk.change(_moved(key), desk.now).verdict is V.DONE
    gone = rng.sample(sorted(set(dues) - set(moved)), 10)
    for key in gone:
        assert desk.desk.change(_cancelled(key), desk.now).verdict is V.DONE
    desk.world.store.flusher.sync_all()
    getattr(desk.world, how)()
    for key in dues:
        again = put(desk, NOW + 30_000, key)
        assert isinstance(again, Held if key in gone else Refused), key
    for key in gone:
        assert desk.desk.get(by_key(key)).due_ms == NOW + 30_000
    desk.world.run(40_000)
    assert desk.world.plugin.pending_count() == 0
    assert len(desk.delivered()) == len(dues)
    for key in dues:
        assert desk.desk.change(_cancelled(key), desk.now).verdict is V.TOO_LATE


def test_keys_outlive_a_kill_a_start_and_then_a_power_cut() -> None:
    """The rows that a killed process had written are in the page cache only when the next one takes its checkpoint."""
    desk = Desk()
    first = held(put(desk, NOW + 9_000))
    desk.world.kill()
    desk.world.store.take_checkpoint()
    desk.world.disk.power_cut(0.0)
    desk.world.open()
    assert desk.desk.get(by_key()).offset == first.offset
    assert isinstance(put(desk, NOW + 9_000), Refused)


def test_a_cancel_that_was_told_outlives_a_kill_a_start_and_then_a_power_cut() -> None:
    """Killed behind the row and before its sync: the next start says that it was cancelled, and has to go on so."""
    desk = Desk()
    held(put(desk, NOW + 500))

    def fails() -> None:
        raise SyncFailedError("no sync")

    desk.world.plugin.pending._changes._past.sync = fails
    with pytest.raises(SyncFailedError):
        desk.desk.change(_cancelled("k"), desk.now)
    desk.world.kill()
    assert desk.desk.change(_cancelled("k"), desk.now).verdict is V.ALREADY
    desk.world.store.take_checkpoint()
    desk.world.disk.power_cut(0.0)
    desk.world.open()
    for _ in range(4):
        desk.world.run(2_000)
        desk.world.store.take_checkpoint()
    assert desk.desk.change(_cancelled("k"), desk.now).verdict is V.ALREADY


class _ShortLog:
    """A CommitLog that keeps nothing."""

    def find_delivered(self, _offset: int) -> bytes | None:
        return None


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("how", ["", "kill", "power_cut"])
def test_a_cancel_that_failed_is_not_told_of_what_was_delivered(how: str, bulk: bool) -> None:
    """Its row is written before it: when the log has lost the delivered message, nothing else speaks of it."""
    desk = Desk()
    first = held(put(desk, NOW + 500))
    desk.world.store.flusher.sync_all()
    rows = 0

    def fault(operation: str, path: Path) -> None:
        nonlocal rows
        rows += (operation, path.parent.name) == ("pwrite", "cancelled")
        if operation == "pwrite" and (path.parent.name != "cancelled" or (how and rows > 1)):
            raise StoreError("no")

    desk.world.disk.fault = fault
    with pytest.raises(StoreError):
        if bulk:
            query = PendingQuery(topic="T")
            desk.desk.change_matching(query, PendingVerb.CANCEL, desk.now, dry_run=False)
        else:
            desk.desk.change(_cancelled("k"), desk.now)
    desk.world.disk.fault = None
    if how:
        if how == "power_cut":
            desk.world.plugin.pending._changes._past.sync()
        getattr(desk.world, how)()
    assert desk.desk.get(by_key()).verdict is V.DONE
    desk.world.run(1_000)
    assert desk.desk.change(_cancelled("k"), desk.now).verdict is V.TOO_LATE
    desk.world.plugin.pending._changes._lookup = _ShortLog()
    for name in (by_key(), PendingName(offset=first.offset)):
        assert desk.desk.change(PendingOrder(verb=PendingVerb.CANCEL, name=name), desk.now).verdict is V.UNKNOWN
        assert desk.desk.get(name).verdict is V.UNKNOWN


def _moved(key: str) -> PendingOrder:
    return PendingOrder(verb=PendingVerb.MOVE, name=by_key(key), by_ms=2_000)


def _cancelled(key: str) -> PendingOrder:
    return PendingOrder(verb=PendingVerb.CANCEL, name=by_key(key))


def test_what_was_cancelled_is_known_by_its_key_after_a_restart() -> None:
    desk = Desk()
    put(desk, NOW + 5_000)
    assert desk.desk.change(_cancelled("k"), NOW).verdict is V.DONE
    desk.world.kill()
    assert desk.desk.change(_cancelled("k"), NOW).verdict is V.ALREADY
    assert desk.desk.change(_cancelled("never"), NOW).verdict is V.UNKNOWN


@pytest.mark.parametrize(
    ("key", "mode", "word"),
    [
        ("k" * 10_240, "", "more than 1024 bytes"),
        ("ä" * 600, "", "more than"),
        ("k", "maybe", "maybe"),
        ("k", "x" * 9000, "x"),
    ],
)
def test_a_key_or_mode_that_cannot_be_meant_is_refused(key: str, mode: str, word: str) -> None:
    desk = Desk()
    refused = put(desk, NOW + 5_000, key, mode=mode)
    assert isinstance(refused, Refused)
    assert word in refused.remark
    assert len(refused.remark) < 300
    assert desk.world.plugin.pending_count() == 0


def test_a_name_that_stands_in_a_value_is_no_key() -> None:
    desk = Desk()
    for _ in range(2):
        text = format_properties({"__STARTDELIVERTIME": str(NOW + 500), "note": "__DELAYKEY", "x__DELAYKEY": "k"})
        assert isinstance(desk.world.plugin.before_put(Message("T", 0, body=b"b", properties=text), NOW), Held)
        desk.world.plugin.commit_turn()
    assert desk.world.plugin.pending_count() == 2


def test_a_full_disk_leaves_the_key_free() -> None:
    desk = Desk()
    desk.world.disk.fail_at("pwrite", {1}, StoreFullError("full"))
    with pytest.raises(StoreFullError):
        put(desk, NOW + 5_000)
    desk.world.disk.fault = None
    held(put(desk, NOW + 5_000))


def test_there_are_only_so_many_keys() -> None:
    desk = Desk()
    desk.world.plugin.pending._keys._keys_max = 3  # type: ignore[union-attr]
    for number in range(3):
        held(put(desk, NOW + 500, f"k{number}"))
    refused = put(desk, NOW + 500, "k3")
    assert isinstance(refused, Refused)
    assert "3 delay keys are known, at most 3" in refused.remark
    desk.world.run(600)
    held(put(desk, desk.now + 500, "k3"))


def test_the_table_against_a_dict() -> None:
    rng = random.Random(4)
    table, model = KeyTable(), dict[int, tuple[int, int]]()
    for step in range(4000):
        key = rng.randrange(300) * 1024 + rng.choice((0, 7, (1 << 63)))
        if rng.random() < 0.6:
            model[key] = (step, rng.randrange(100))
            table.put(key, *model[key])
        elif key in model:
            table.remove(key, model[key][0] + rng.choice((0, 1)))
            if table.get(key) is None:
                del model[key]
        assert table.get(key) == model.get(key)
        assert len(table) == len(model)
    old = dict(table.due_before(50, 10**6))
    assert old == {key: value[0] for key, value in model.items() if value[1] < 50}
