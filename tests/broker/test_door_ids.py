"""A bulk change of messages that are named, over HTTP and at the desk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.turns.recall_handle import RecallHandle
from store.disk.errors import StoreError
from store.put.pending_api import PendingName, PendingOrder, PendingVerb
from store.put.pending_api import PendingVerdict as V
from tests.broker.test_door import RULES, TOKEN, World, basic, world
from tests.broker_plugin.test_pending_desk import NOW, Desk

__all__ = ["world"]

BULK = "/api/v1/bulk/"


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def verdicts(answer: Any) -> list[tuple[str, str]]:
    return [(one["name"], one["verdict"]) for one in answer.json["answers"]]


def test_each_has_its_own_answer_in_their_order(world: World) -> None:
    ids = [world.id(4), world.id(7), str((1 << 62) + 1), world.id(4), world.id(999)]
    dry = world.post(BULK + "cancel", {"ids": ids})
    assert (dry.status, dry.json["dry_run"], dry.json["next"]) == (200, True, None)
    assert verdicts(dry) == [*zip(ids, ["done", "done", "done", "done", "unknown"], strict=True)]
    assert len(world.list.rows) == 30
    done = world.post(BULK + "cancel", {"ids": ids, "dry_run": False})
    assert verdicts(done) == [*zip(ids, ["done", "done", "done", "already", "unknown"], strict=True)]
    assert done.json["verdicts"] == {"done": 3, "already": 1, "unknown": 1}
    assert len(world.list.rows) == 27


def test_keys_need_their_topic_and_a_move_its_time(world: World) -> None:
    moved = world.post(BULK + "move", {"ids": ["key:order-4"], "topic": "T1", "by_ms": 5, "dry_run": False})
    assert (moved.status, world.list.orders[-1].by_ms) == (200, 5)
    assert world.list.orders[-1].name == PendingName(topic="T1", key="order-4")


@pytest.mark.parametrize(
    ("verb", "body", "why"),
    [
        ("cancel", {"ids": []}, "1 to 1000"),
        ("cancel", {"ids": ["1"] * 1001}, "1 to 1000"),
        ("cancel", {"ids": "key:a"}, "a list of texts"),
        ("cancel", {"ids": [5]}, "a list of texts"),
        ("cancel", {"ids": None}, "a list of texts"),
        ("cancel", {"ids": ["key:a"]}, "needs its topic"),
        ("cancel", {"ids": ["key:a"], "topic": 5}, "a text is expected"),
        ("cancel", {"ids": ["key:a"], "topic": "T", "dry_run": "no"}, "true or false"),
        ("cancel", {"ids": ["key:a"], "query": {"topic": "T"}}, "unknown here"),
        ("cancel", {"ids": ["key:a"], "topic": "T", "by_ms": 5}, "unknown here"),
        ("cancel", {"ids": ["key:a"], "topic": "T", "limit": 5}, "unknown here"),
        ("move", {"ids": ["key:a"], "topic": "T"}, "either due_ms"),
        ("move", {"ids": ["key:a"], "topic": "T", "due_ms": 1_700_000_000}, "looks like seconds"),
        ("now", {"ids": ["f" * 6000]}, "characters"),
        ("cancel", {"ids": [RecallHandle("T", "b", 5, "", 0).encode()]}, "no send has returned"),
        ("cancel", {"ids": ["key:\ud800"], "topic": "T"}, "surrogates"),
        ("cancel", {"ids": _nested(300)}, "Recursion limit"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_changed(world: World, verb: str, body: Any, why: str) -> None:
    if isinstance(body["ids"], list) and len(body["ids"]) == 1:
        body = {**body, "ids": [world.id(4), *body["ids"]]}  # a good one before it is not changed either
    answer = world.post(BULK + verb, {"dry_run": False, **body})
    assert (answer.status, why in answer.json["error"]) == (400, True), answer.json
    assert world.list.orders == []


def test_a_reader_may_not(tmp_path: Any) -> None:
    with World(tmp_path / "store", httpToken=TOKEN) as world:
        assert world.post(BULK + "cancel", {"ids": [world.id(1)], "dry_run": False}).status == 401
        assert world.list.orders == []


def test_an_account_changes_what_is_of_its_topics_and_sees_nothing_of_others(tmp_path: Path) -> None:
    rules = tmp_path / "acl.yml"
    rules.write_bytes(RULES)
    rules.chmod(0o600)
    with World(tmp_path / "store", aclEnable="true", aclFile=rules) as world:
        reader, writer = basic("reader1", "readersecret"), basic("writer1", "writersecret")
        own, other = world.id(1), world.id(2)
        handle = RecallHandle("T2", "b", 5, "", (1 << 62) + 2).encode()
        for dry_run in (True, False):
            for who, topic, ids, status in (
                (reader, "T1", [own], 403),
                (writer, "", [own], 403),
                (writer, "T2", [other], 403),
                (writer, "T1", [handle, own], 400),
                (writer, "T1", [own, other, "key:order-2"], 200),
            ):
                body = {"ids": ids, "topic": topic, "dry_run": dry_run}
                answer = world.post(BULK + "cancel", body, Authorization=who)
                assert answer.status == status, (topic, answer.json)
                if status == 200:
                    assert [verdict for _, verdict in verdicts(answer)] == ["done", "unknown", "unknown"]
            assert len(world.list.rows) == 30 - (not dry_run)
        assert world.list.gone.keys() == {(1 << 62) + 1}


# ------------------------------------------------------------------------------------------------ at the desk


def cancel(offset: int) -> PendingOrder:
    return PendingOrder(verb=PendingVerb.CANCEL, name=PendingName(offset=offset))


def test_a_dry_run_changes_nothing() -> None:
    desk = Desk()
    offsets = [desk.send(NOW + 60_000 + number) for number in range(3)]
    orders = [cancel(offset) for offset in offsets]
    assert [one.verdict for one in desk.desk.change_many(orders, NOW, dry_run=True)] == [V.DONE] * 3
    assert [one.verdict for one in desk.desk.change_many(orders, NOW)] == [V.DONE] * 3
    assert [one.verdict for one in desk.desk.change_many(orders, NOW, dry_run=True)] == [V.CANCELLED] * 3


@pytest.mark.pure
def test_a_disk_that_fails_in_between_says_which_were_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    offsets = [desk.send(NOW + 60_000 + number) for number in range(4)]
    real, calls = desk.world.plugin.spill.cancel, []

    def fails(offset: int) -> Any:
        calls.append(offset)
        if len(calls) == 3:
            raise StoreError("no room on the device")
        return real(offset)

    monkeypatch.setattr(desk.world.plugin.spill, "cancel", fails)
    answers = desk.desk.change_many([cancel(offset) for offset in offsets], NOW)
    assert [one.verdict for one in answers] == [V.DONE, V.DONE, V.REFUSED, V.DONE]
    assert "no room on the device" in answers[2].detail
    calls[:] = [0, 0]
    with pytest.raises(StoreError):  # the first one: nothing was changed
        desk.desk.change_many([cancel(offsets[2])], NOW)
    calls[:] = [0] * 9
    assert desk.desk.change_many([cancel(offsets[2])], NOW)[0].verdict == V.DONE
