"""Limits of what may be pending: refused with the figure, counted over deliveries, cancels and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_plugin.aside import GateAside
from remoting.messages.message import Message, record_fields
from remoting.messages.properties import format_properties
from store.disk.errors import StoreError, StoreFullError
from store.put.pending_api import PendingQuery, PendingVerb, PendingVerdict
from store.put.plugin_api import Held, PutStatus, Refused, Unsettled
from tests.broker_plugin.test_delay_keys import held, message, put
from tests.broker_plugin.test_pending_desk import Desk, order
from tests.support import delay_world
from tests.support.delay_rig import START_MS

NOW = START_MS
ANY = {"timewheelTopicPendingMax": "100000", "timewheelTopicPendingBytesMax": "100000000"}


def limited(monkeypatch: pytest.MonkeyPatch, **limits: int) -> Desk:
    more = {f"timewheel{name}": str(value) for name, value in limits.items()}
    monkeypatch.setattr(delay_world, "CONFIG", {**delay_world.CONFIG, **more})
    return Desk()


def offer(desk: Desk, topic: str = "T", due_ms: int = 500, body: bytes = b"b") -> Held | Refused:
    text = format_properties({"__STARTDELIVERTIME": str(desk.now + due_ms)})
    answer = desk.world.plugin.before_put(Message(topic, 0, body=body, properties=text), desk.now)
    assert answer is not None
    return answer


def check_counts(desk: Desk) -> None:
    """What is counted by topic is what is pending: messages and bytes."""
    plugin = desk.world.plugin
    limits = plugin.gate.limits
    assert limits is not None
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    with plugin.lock:
        plugin.sweeper.publish_all()
        found = plugin.spill.scan((-1, 0), 1 << 62, 100_000)
        for record in plugin.spill.read(found.refs):
            topic = record_fields(record)[0]
            counts[topic] = counts.get(topic, 0) + 1
            sizes[topic] = sizes.get(topic, 0) + len(record)
        assert limits.topics == counts
        assert limits.topic_bytes == sizes
        balance = plugin.pending.balance
        assert balance is None or dict(balance.rows()) == counts


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
    limits = limited(monkeypatch, TopicPendingMax=2, TopicPendingBytesMax=250).world.plugin.gate.limits
    assert limits is not None
    for _ in range(3):
        limits.hold("T", 100)
        limits.put_queues([("T", 0, 1)], np.array([100]))
        limits.turn_over(True)
    assert limits.topics == {}
    assert limits.topic_bytes == {}


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


@pytest.mark.parametrize("block_min", [1, 1000])
def test_so_many_bytes_of_a_topic(monkeypatch: pytest.MonkeyPatch, block_min: int) -> None:
    desk = limited(monkeypatch, TopicPendingBytesMax=1200)
    desk.world.plugin.deliverer.block_min = block_min
    first = offer(desk, body=bytes(700))
    assert isinstance(first, Held)
    remark = refused(offer(desk, body=bytes(400)))
    desk.world.plugin.commit_turn()
    limits = desk.world.plugin.gate.limits
    assert limits is not None
    size = limits.topic_bytes["T"]
    assert remark == (
        f"{size} bytes are pending of topic T, {size - 300} more would be above the 1200 that are allowed "
        "(timewheelTopicPendingBytesMax)"
    )
    assert isinstance(offer(desk, "U", body=bytes(700)), Held)
    desk.world.plugin.commit_turn()
    desk.world.kill()
    assert f"{size} bytes are pending of topic T" in refused(offer(desk, body=bytes(400)))
    desk.world.run(600)
    check_counts(desk)
    assert isinstance(offer(desk, body=bytes(700)), Held)


def test_a_message_that_has_just_the_room_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = limited(monkeypatch, TopicPendingBytesMax=100_000)
    offer(desk, body=bytes(700))
    desk.world.plugin.commit_turn()
    limits = desk.world.plugin.gate.limits
    assert limits is not None
    size = limits.topic_bytes["T"]
    assert isinstance(offer(limited(monkeypatch, TopicPendingBytesMax=size), body=bytes(700)), Held)
    refused(offer(limited(monkeypatch, TopicPendingBytesMax=size - 1), body=bytes(700)))


def test_what_was_there_before_a_start_is_not_kept_for_being_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was, for each message that is moved, until two turns with sends had come."""
    desk = limited(monkeypatch, TopicPendingBytesMax=100_000)
    sent = offer(desk, due_ms=60_000)
    desk.world.plugin.commit_turn()
    desk.world.kill()
    assert isinstance(sent, Held)
    desk.change(sent.offset, PendingVerb.MOVE, by_ms=5)
    limits = desk.world.plugin.gate.limits
    assert limits is not None
    assert limits._grown == {}
    check_counts(desk)


class _Story:
    """Whatever can become of pending messages, in an order of chance."""

    def __init__(self, seed: int, faulty: float) -> None:
        self.desk = Desk(seed)
        self.rng = Random(seed)
        self.faulty = faulty
        self.desk.world.plugin.measure(100)

    @contextmanager
    def trouble(self) -> Iterator[None]:
        """Have the disk fail meanwhile, perhaps: some of its next calls."""
        disk, rng = self.desk.world.disk, self.rng
        if rng.random() < self.faulty:
            first = rng.randrange(1, 8)
            error = rng.choice((StoreFullError("full"), StoreError("unwritable")))
            disk.fail_at(
                rng.choice(("pwrite", "pwrite", "sync", "all")), {*range(first, first + rng.choice((1, 2, 50)))}, error
            )
        try:
            yield
        except StoreError:
            pass
        finally:
            disk.fault = None

    def send(self, count: int, batch: list[Held] | None = None) -> list[Held]:
        """Messages for this turn, some of them in the place of others by their delay key; perhaps of one batch."""
        desk, rng = self.desk, self.rng
        taken = [] if batch is None else batch
        for _ in range(count):
            due_ms = desk.now + rng.choice((20, 600, 5000, 60_000, 9_000_000_000_000))
            body = bytes(rng.randrange(200))
            key = rng.choice(("", "a", "b"))
            properties = {
                "__STARTDELIVERTIME": str(due_ms),
                **({"__DELAYKEY": key, "__DELAYKEY_MODE": "replace"} if key else {}),
            }
            text = format_properties({"n": rng.choice(("x" * rng.randrange(1, 9), "x", "\u00e9")), **properties})
            found = desk.world.plugin.before_put(Message(rng.choice("TU"), 0, body=body, properties=text), desk.now)
            if batch is not None and isinstance(found, Unsettled) and found.offset in {one.offset for one in taken}:
                found = found.settle()
            if isinstance(found, Held):
                taken.append(found)
        return taken

    def turn(self) -> None:
        """A turn, and what is taken back of it before and after it is journalled."""
        plugin, rng = self.desk.world.plugin, self.rng
        requests = [self.send(rng.randrange(1, 4), []) if rng.random() < 0.4 else self.send(1) for _ in range(4)]
        for request in [request for request in requests if rng.random() < 0.2]:
            requests.remove(request)
            for one in request:
                plugin.take_back(one)
        with self.trouble(), plugin.lock:
            plugin.commit_turn()
            for one in [one for request in requests if rng.random() < 0.2 for one in request]:
                plugin.take_back(one)
        plugin.taken_back()

    def large_batch(self) -> None:
        """A large batch over two turns, perhaps refused: before its turn, in it or after it."""
        plugin, when = self.desk.world.plugin, self.rng.randrange(5)
        aside = GateAside(plugin.gate)
        own: list[Held] = []
        for _ in range(2):
            aside.begin()
            self.send(3, own)
            aside.take()
            self.turn()
        if when > 0:
            aside.put_back()
        if when < 2:
            aside.take_back()
            return
        self.send(1)
        stored = False
        with self.trouble(), plugin.lock:
            plugin.commit_turn()
            stored = True
            if when == 2:
                aside.take_back()
        if not stored:
            aside.take_back()
        plugin.taken_back()

    def change(self) -> None:
        """One message that is pending is cancelled or moved, or some are."""
        desk, rng = self.desk, self.rng
        found = desk.desk.page(PendingQuery(), 100).rows
        if found:
            verb = rng.choice((PendingVerb.CANCEL, PendingVerb.MOVE, PendingVerb.NOW))
            due = {"due_ms": desk.now + rng.choice((30, 9_000_000_000_000))} if verb is PendingVerb.MOVE else {}
            orders = [order(rng.choice(found).offset, verb, **due) for _ in range(rng.randrange(1, 4))]
            with self.trouble():
                desk.desk.change_many(orders, desk.now)

    def purge(self) -> None:
        """All of a topic are cancelled, or some."""
        query = PendingQuery(topic=self.rng.choice("TU"))
        with self.trouble():
            self.desk.desk.change_matching(query, PendingVerb.CANCEL, self.desk.now, limit=3, dry_run=False)

    def run(self) -> None:
        """Time passes."""
        with self.trouble():
            self.desk.world.run(self.rng.choice((30, 700)))

    def restart(self) -> None:
        """A stop, a kill or a power cut, with all of it durable."""
        self.desk.world.store.flusher.sync_all()
        self.rng.choice((self.desk.world.kill, self.desk.world.stop_and_start, self.desk.world.power_cut))()
        self.desk.world.plugin.measure(100)


STEPS = (_Story.turn, _Story.turn, _Story.large_batch, _Story.change, _Story.purge, _Story.run, _Story.restart)


@patch.dict(delay_world.CONFIG, ANY)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(STEPS), max_size=14), st.sampled_from((0.0, 0.4)))
def test_after_any_story_what_is_counted_is_what_is_pending(
    seed: int, steps: list[Callable[[_Story], None]], faulty: float
) -> None:
    story = _Story(seed, faulty)
    for step in steps:
        step(story)
        check_counts(story.desk)
