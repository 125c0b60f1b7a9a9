"""Limits of what may be pending: refused with the figure, counted over deliveries, cancels and restarts."""

from __future__ import annotations

import pytest

from remoting.messages.message import Message
from remoting.messages.properties import format_properties
from store.disk.errors import StoreError, StoreFullError
from store.put.pending_api import PendingQuery, PendingVerb, PendingVerdict
from store.put.plugin_api import Held, PutStatus, Refused
from tests.broker_plugin.test_delay_keys import held, message, put
from tests.broker_plugin.test_pending_desk import Desk
from tests.support import delay_world
from tests.support.delay_rig import START_MS

NOW = START_MS


def limited(monkeypatch: pytest.MonkeyPatch, **limits: int) -> Desk:
    more = {f"timewheel{name}": str(value) for name, value in limits.items()}
    monkeypatch.setattr(delay_world, "CONFIG", {**delay_world.CONFIG, **more})
    return Desk()


def offer(desk: Desk, topic: str = "T", due_ms: int = 500, body: bytes = b"b") -> Held | Refused:
    text = format_properties({"__STARTDELIVERTIME": str(desk.now + due_ms)})
    answer = desk.world.plugin.before_put(Message(topic, 0, body=body, properties=text), desk.now)
    assert answer is not None
    return answer


def refused(answer: Held | Refused) -> str:
    assert isinstance(answer, Refused)
    assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
    return answer.remark


def test_so_many_messages_in_all_also_within_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = limited(monkeypatch, PendingMax=3)
    plugin = desk.world.plugin
    taken = [offer(desk, f"T{n}") for n in range(3)]
    assert "3 messages are pending, at most 3" in refused(offer(desk))
    assert isinstance(taken[0], Held)
    plugin.take_back(taken[0])
    plugin.commit_turn()
    assert isinstance(offer(desk), Held)
    plugin.commit_turn()
    refused(offer(desk))
    desk.world.kill()
    refused(offer(desk))
    desk.world.run(600)
    assert isinstance(offer(desk), Held)


def test_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = limited(monkeypatch, PendingBytesMax=1200)
    assert isinstance(offer(desk, body=bytes(700)), Held)
    assert "timewheelPendingBytesMax" in refused(offer(desk, body=bytes(400)))
    assert isinstance(offer(desk), Held)


@pytest.mark.parametrize("block_min", [1, 1000])
def test_so_many_of_a_topic(monkeypatch: pytest.MonkeyPatch, block_min: int) -> None:
    desk = limited(monkeypatch, TopicPendingMax=2)
    desk.world.plugin.deliverer.block_min = block_min
    for number in range(2):
        assert isinstance(offer(desk, due_ms=500 + 5000 * number), Held)
    assert "2 messages are pending of topic T, at most 2" in refused(offer(desk))
    assert isinstance(offer(desk, "U"), Held)
    desk.world.plugin.commit_turn()
    refused(offer(desk))
    desk.world.run(600)
    assert isinstance(offer(desk, due_ms=9000), Held)
    desk.world.plugin.commit_turn()
    refused(offer(desk))
    desk.world.kill()
    refused(offer(desk))
    desk.desk.change_matching(PendingQuery(topic="T"), PendingVerb.CANCEL, desk.now, limit=1, dry_run=False)
    assert isinstance(offer(desk), Held)
    refused(offer(desk))


def test_a_delivery_that_is_quicker_than_the_end_of_its_turn_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = limited(monkeypatch, TopicPendingMax=2).world.plugin.gate.limits
    assert limits is not None
    for _ in range(3):
        limits.hold("T", 100)
        limits.put_queues([("T", 0, 1)])
        limits.turn_over(True)
    assert limits.topics == {}


def test_a_failed_turn_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = limited(monkeypatch, TopicPendingMax=1, PendingMax=1)
    offer(desk)
    desk.world.disk.fail_at("pwrite", {1}, StoreFullError("full"))
    with pytest.raises(StoreFullError):
        desk.world.plugin.commit_turn()
    desk.world.disk.fault = None
    assert isinstance(offer(desk), Held)


def test_without_limits_nothing_is_counted() -> None:
    assert Desk().world.plugin.gate.limits is None


def test_a_cancel_that_cannot_tell_the_topic_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would go on to count, until the next start: its topic stands in the record that cannot be read."""
    desk = limited(monkeypatch, TopicPendingMax=2)
    taken = [offer(desk), offer(desk)]
    desk.world.plugin.commit_turn()
    assert isinstance(taken[0], Held)
    with desk.unreadable(), pytest.raises(StoreError, match="cannot be read"):
        desk.change(taken[0].offset)
    assert "2 messages are pending" in refused(offer(desk))
    assert desk.change(taken[0].offset).verdict is PendingVerdict.DONE
    assert isinstance(offer(desk), Held)
    refused(offer(desk))


def test_what_replaces_a_delivered_message_counts_no_more_when_it_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = limited(monkeypatch, TopicPendingMax=1)
    plugin = desk.world.plugin
    held(put(desk, NOW + 5))
    answer = held(plugin.before_put(message(NOW + 900, "k", b"second", "replace", "T"), desk.now))
    desk.world.run(20)
    with plugin.lock:
        plugin.commit_turn()
        refused(offer(desk))
        plugin.take_back(answer)
    assert isinstance(offer(desk), Held)
