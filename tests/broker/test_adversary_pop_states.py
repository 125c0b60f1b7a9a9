"""Popping while something else changes: groups, topics, offsets, room, and disks that do not do what they should."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from broker.pop.pop_reader import PopReader
from remoting.codes import RequestCode, ResponseCode
from remoting.json_dialect import dumps
from store.disk.errors import StoreError
from tests.broker.core_rig import Client, Rig, properties
from tests.broker.pop_client import Popper, popped_of
from tests.broker.test_pop_restart import Machine


@pytest.fixture
def machine() -> Machine:
    return Machine()


def held(rig: Rig, popper: Popper, **fields: Any) -> Client:
    """A pop that waits, of a client of its own."""
    client = rig.client(50_009)
    client.submit(RequestCode.POP_MESSAGE, {**popper.fields(pollTime=20_000), **fields})
    rig.core.end_turn()
    assert client.take() == [], "it waits"
    return client


def answer(rig: Rig, client: Client) -> Any:
    rig.pass_ms(1)
    (reply,) = client.take()
    return reply


class TestHeld:
    """What has changed since a pop began to wait counts."""

    @pytest.mark.parametrize(
        ("code", "fields", "body", "wanted"),
        [
            (
                RequestCode.DELETE_SUBSCRIPTIONGROUP,
                {"groupName": "G", "cleanOffset": "true"},
                {},
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            ),
            (
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                {},
                {"groupName": "G", "consumeEnable": False},
                ResponseCode.NO_PERMISSION,
            ),
            (
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 2}
                | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"},
                {},
                ResponseCode.NO_PERMISSION,
            ),
        ],
    )
    def test_nothing_is_handed_out_that_a_new_pop_would_not_get(
        self, machine: Machine, code: int, fields: dict[str, Any], body: dict[str, Any], wanted: int
    ) -> None:
        waiting = held(machine.rig, machine.popper)
        assert machine.rig.client().ask(code, fields, dumps(body) if body else b"").code == 0
        machine.send(b"a")
        assert answer(machine.rig, waiting).code == wanted
        assert machine.pops.in_flight.count == 0

    def test_one_gets_what_there_is_room_for_when_copies_are_durable(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path, popInflightMessageThreshold=1)
        rig.client().heartbeat("c", "G")
        popper, reviver = Popper(rig.client()), rig.core.processors.pop.reviver
        for body in (b"a", b"b"):
            rig.client().send("T", body=body, d=1)
        popper.pop(invisibleTime=1_000)
        rig.pass_ms(1_001)
        reviver.step(rig.now_ms)
        rig.core.end_turn()
        assert [one.body for one in popper.pop()] == [b"a"]
        waiting = held(rig, popper)
        rig.store.flusher.sync_all()
        reviver.step(rig.now_ms)
        assert answer(rig, waiting).code == 0, "nothing but the end of its time would have woken it"
        rig.close()

    def test_one_in_order_gets_what_the_last_without_order_kept_back(self, machine: Machine) -> None:
        machine.send(b"a", b"b")
        (one,) = machine.popper.pop(maxMsgNums=1)
        waiting = held(machine.rig, machine.popper, order="true")
        assert machine.popper.ack(one).remark is None
        assert answer(machine.rig, waiting).code == 0


def test_what_has_come_again_of_a_topic_goes_with_it(machine: Machine) -> None:
    machine.send(b"old")
    machine.popper.pop(invisibleTime=1_000)
    machine.rig.pass_ms(1_000)
    machine.revive()
    for group in ("G", "H"):
        machine.rig.client().heartbeat(f"{group}c", group)
    client = machine.rig.client()
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert [name for name in machine.rig.core.topics.table if name.endswith("_T")] == []
    machine.send(b"new")
    assert [*machine.bodies(), *machine.bodies()] == [b"new"]


def test_a_group_whose_offset_is_far_behind_the_end_goes_on_at_the_end(machine: Machine) -> None:
    machine.send(b"a")
    (one,) = machine.popper.pop()
    far = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 10**9}
    assert machine.rig.client().ask(RequestCode.UPDATE_CONSUMER_OFFSET, far).code == 0
    assert machine.bodies() == []
    machine.send(b"b")
    assert machine.bodies() == [b"b"]
    assert machine.popper.ack(one).remark is None
    assert machine.committed() == 2
    assert machine.pops.check() == []


def test_a_retry_topic_that_cannot_be_made_is_asked_for_less_and_less(
    machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.send(*(b"%d" % number for number in range(40)))
    for _ in range(40):
        machine.popper.pop(maxMsgNums=1, invisibleTime=1_000)
    machine.rig.pass_ms(1_000)

    def fails(_: object) -> bool:
        raise StoreError("the disk is full")

    with monkeypatch.context() as full, caplog.at_level(logging.ERROR):
        full.setattr(machine.rig.core.topics, "have", fails)
        for _ in range(5_000):
            machine.pops.reviver.step(machine.rig.now_ms)
            machine.rig.now_ms += 1
    assert 5 < len(caplog.records) < 50
    machine.rig.now_ms += 1_000
    machine.revive()
    assert len([*machine.bodies(), *machine.bodies()]) == 40


@pytest.mark.pure  # it has a method of the reader's replaced
@pytest.mark.parametrize("order", ["true", "false"])
def test_a_queue_that_cannot_be_read_keeps_only_itself(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    for queue_id in range(4):
        machine.rig.client().send("U", body=b"%d" % queue_id, d=4, e=queue_id)

    async def read(*_: Any) -> Any:
        raise StoreError("cannot read")

    def hot(self: PopReader, pop: Any, topic: str, queue_id: int, *rest: Any) -> Any:
        return None if queue_id == 2 else look(self, pop, topic, queue_id, *rest)

    look = PopReader._read_hot
    monkeypatch.setattr(PopReader, "_read_hot", hot)
    monkeypatch.setattr(PopReader, "read", read)
    popper = Popper(machine.rig.client(), topic="U")
    assert sorted(one.body for one in popper.pop(order=order)) == [b"0", b"1", b"3"]
    reply = popper.ask(order=order)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "not popped: cannot read")
    monkeypatch.undo()
    assert [one.body for one in popper.pop(order=order)] == [b"2"]


def test_a_file_of_the_log_without_a_name_is_read_still(machine: Machine) -> None:
    machine.send(b"a")
    machine.kill()
    machine.disk.cold = True
    assert machine.bodies() == [b"a"], "what is skipped as deleted is lost for its group"


class TestRetriesOfADeletedTopic:
    """What stands in a topic of retries goes with its topic, and only with that."""

    @staticmethod
    def again(machine: Machine, group: str, topic: str, body: bytes) -> Popper:
        """A message that has come again to a group that pops."""
        client = machine.rig.client()
        client.heartbeat(f"{group}-c", group)
        assert client.send(topic, body=body, d=1).code == 0
        popper = Popper(client, group, topic)
        assert body in [one.body for one in popper.pop(invisibleTime=1_000)]
        machine.rig.pass_ms(1_000)
        machine.revive()
        return popper

    @staticmethod
    def delete(machine: Machine, topic: str) -> None:
        assert machine.rig.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 0

    def test_also_if_its_group_has_no_offsets_any_more(self, machine: Machine) -> None:
        popper = self.again(machine, "app", "orders", b"old")
        gone = {"groupName": "app", "cleanOffset": "true"}
        assert machine.rig.client().ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone).code == 0
        self.delete(machine, "orders")
        machine.rig.client().send("orders", body=b"new", d=1)
        assert [one.body for one in [*popper.pop(), *popper.pop()]] == [b"new"]

    def test_but_not_what_a_group_of_that_name_has_sent_back(self, machine: Machine) -> None:
        self.again(machine, "app", "orders", b"popped")
        client = machine.rig.client()
        client.heartbeat("c", "app_orders")
        position = int(client.send("T", body=b"sent back", d=1).ext["msgId"][16:], 16)
        back = {"offset": position, "group": "app_orders", "delayLevel": 0, "originTopic": "T"}
        assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {**back, "unitMode": "false"}).code == 0
        self.delete(machine, "orders")
        machine.rig.pass_ms(20_000)
        machine.rig.deliver_levels()
        assert b"sent back" in [one.body for one in client.messages("%RETRY%app_orders")]

    def test_nor_what_has_come_again_of_another_topic(self, machine: Machine) -> None:
        popper = self.again(machine, "app", "eu_orders", b"mine")
        self.again(machine, "app_eu", "orders", b"other")
        self.delete(machine, "orders")
        assert b"mine" in [one.body for one in [*popper.pop(), *popper.pop()]]


@pytest.mark.parametrize("order", ["true", "false"])
def test_a_pop_that_waits_goes_on_through_messages_that_it_does_not_want(machine: Machine, order: str) -> None:
    client = machine.rig.client()
    for number in range(2_000):
        client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", properties(a=int(number == 1_990))), b"m")
    machine.rig.core.end_turn()
    waiting = held(machine.rig, machine.popper, order=order, expType="SQL92", exp="a = 1")
    for _ in range(10):
        machine.rig.pass_ms(1)
    assert [reply.code for reply in waiting.take()] == [0], "nothing but the end of its time would have it go on"


def test_one_message_has_one_of_many_pops_look_that_wait(machine: Machine) -> None:
    reader = machine.pops.pop._reader
    several = [machine.rig.client(51_000 + number) for number in range(100)]
    for client in several:
        client.submit(RequestCode.POP_MESSAGE, machine.popper.fields(pollTime=20_000, maxMsgNums=1))
    machine.rig.core.end_turn()
    before = reader.turn
    for number in range(3):
        machine.send(b"%d" % number)
        machine.rig.pass_ms(1)
    assert reader.turn - before <= 6, "each that waits has looked for each message"
    assert sum(len(client.take()) for client in several) == 3
    assert machine.pops.check() == machine.rig.core.long_poll.check() == []


@pytest.mark.pure  # it has a method of the reader's replaced
@pytest.mark.parametrize("more", [0, 1])
def test_a_pop_does_not_begin_before_the_time_of_the_last_holder_is_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    machine.send(b"a")
    (one,) = machine.popper.pop(invisibleTime=1_000)
    machine.send(*[b"b"] * more)
    machine.rig.pass_ms(990)
    look = PopReader._retries

    def retries(self: PopReader, header: Any) -> Any:
        machine.rig.now_ms += 20  # the pop is at work, and another thread has the message come again meanwhile
        machine.revive()
        return look(self, header)

    monkeypatch.setattr(PopReader, "_retries", retries)
    replies = [machine.popper.ask() for _ in range(2)]
    over_ms = [int(part) for part in one.handle.split(" ")[1:3]]
    begun = [int(reply.ext["popTime"]) for reply in replies for got in popped_of(reply, "G") if got.body == b"a"]
    assert len(begun) == 1
    assert begun[0] >= sum(over_ms), "by these times two have had it at once"


@pytest.mark.pure  # it has a method of the store's replaced
def test_a_block_of_messages_that_are_not_there_any_more_keeps_nobody_waiting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.send(b"a", b"b")
    assert machine.bodies(order="true", invisibleTime=1_000, maxMsgNums=2) == [b"a", b"b"]
    machine.send(b"c")
    machine.rig.pass_ms(1_000)
    entry = machine.rig.store.entry
    monkeypatch.setattr(machine.rig.store, "entry", lambda *key: None if key[2] < 3 else entry(*key))
    assert machine.bodies(order="true") == [b"c"]
