"""What a guess at an offset tells one who may see another topic only: nothing."""

from __future__ import annotations

import pytest

from store.put.pending_api import PendingAnswer, PendingName, PendingOrder, PendingVerb, PendingVerdict
from tests.broker_plugin.test_pending_desk import NOW, Desk

V = PendingVerdict


def guessed(desk: Desk, offset: int, topic: str = "Mine", unique_key: str = "") -> set[PendingAnswer]:
    """All answers that one who names a topic gets for an offset."""
    name = PendingName(offset=offset, topic=topic, unique_key=unique_key)
    orders = [
        PendingOrder(verb=verb, name=name, due_ms=NOW + 99_000 if verb is PendingVerb.MOVE else None, version=version)
        for verb in PendingVerb
        for version in (None, 7)
    ]
    return {
        desk.desk.get(name),
        *(desk.desk.change(given, desk.now) for given in orders),
        *desk.desk.change_many(orders, desk.now),
        *desk.desk.change_many(orders, desk.now, dry_run=True),
    }


def test_who_guesses_an_offset_does_not_learn_that_another_topic_has_a_message_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers are equal, text and all: whether it is pending, delivered or cancelled, or nothing is there."""
    desk = Desk()
    late, gone, there = (desk.send(NOW + due_ms, "Other", UNIQ_KEY="AC11") for due_ms in (5, 60_000, 60_000))
    desk.world.run(10)
    assert desk.change(gone).verdict is V.DONE
    assert desk.change(late).verdict is V.TOO_LATE
    nothing = guessed(desk, there + 0x1000)
    assert len(nothing) == 1
    for offset in (late, gone, there):
        assert guessed(desk, offset) == nothing
    for offset in (late, there):  # the row of a cancelled one has no unique key
        assert guessed(desk, offset, "Other", "AC12") == nothing
    monkeypatch.setattr(desk.desk._changes._past, "find", lambda _: None)  # as when the row's file is old
    assert guessed(desk, gone) == guessed(desk, gone, "Other", "AC12") == nothing
