"""Topics and groups that go while tables are written by a thread: whole or not at all, and in order."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from broker.tables.groups import SubscriptionGroup
from broker.tables.topic_config import TopicConfig
from remoting.codes import RequestCode, ResponseCode
from remoting.json_dialect import dumps
from store.disk.errors import StoreError
from tests.broker.core_rig import Client, Rig
from tests.broker.test_late_tables import OK, ROOT, Late, codes, send
from tests.simulation.inline import run_inline

ALTERED = 3


def topic_fields(name: str, queues: int = ALTERED) -> dict[str, Any]:
    numbers = {"readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "topicSysFlag": 0}
    return {"topic": name, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false", **numbers}


def with_topic(**values: Any) -> tuple[Late, Client]:
    late = Late(**values)
    client = late.rig.client()
    send(client, "T")
    late.rest()
    assert codes(client) == {1: OK}
    return late, client


def test_a_topic_is_deleted_with_its_messages_though_the_administrator_has_left() -> None:
    late, _ = with_topic()
    admin = late.rig.client(50002)
    admin.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    late.loop()
    admin.channel.close()
    late.core.channel_closed(admin.channel)
    late.rest()
    assert late.core.topics.get("T") is None
    assert not late.rig.store.queue_ids("T"), (
        "what is sent to a topic of this name later would stand behind old messages"
    )
    assert late.core.dispatcher.running == 0
    late.rig.close()


def test_what_is_refused_because_too_many_wait_does_not_happen() -> None:
    late, _ = with_topic()
    late.core.dispatcher.running_max = 1
    client = late.rig.client(50002)
    send(client, "U")
    send(client, "V")
    client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    client.submit(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("W"))
    client.submit(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps({"groupName": "g"}))
    busy = int(ResponseCode.SYSTEM_BUSY)
    assert codes(client) == {2: busy, 3: busy, 4: busy, 5: busy}
    late.rest()
    assert codes(client) == {1: OK}
    names = late.core.topics.table.keys()
    assert {"T", "U"} <= names
    assert not {"V", "W"} & names
    assert late.core.groups.get("g") is None
    assert late.core.topics.coming == late.core.groups.coming == 0
    late.rig.close()


@pytest.mark.parametrize("connections", [1, 2])
def test_a_topic_that_is_made_behind_its_deletion_is_there_when_that_is_answered(connections: int) -> None:
    late, client = with_topic()
    other = client if connections == 1 else late.rig.client(50002)
    client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    other.submit(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    late.rest()
    assert set((codes(client) | codes(other)).values()) == {OK}
    send(other, "T", b"new", e=ALTERED - 1)
    late.rest()
    config = late.core.topics.get("T")
    assert config is not None
    assert config.read_queue_nums == ALTERED
    assert "T" in late.durable("topics.json", "topicConfigTable")
    assert late.rig.store.queue_ids("T") == [ALTERED - 1]
    late.rig.close()


def test_with_a_topic_go_those_of_its_retries_before_that_is_answered() -> None:
    late, client = with_topic()
    retries = [f"%RETRY%{group}{separator}T" for group in ("g", "h") for separator in "_+"]
    for group in ("g", "h"):
        late.core.offsets.commit(group, "T", 0, 1)
    late.core.topics.table.update({name: TopicConfig(name, 1, 1) for name in retries})
    client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    late.rest()
    assert set(codes(client).values()) == {OK}
    assert not {"T", *retries} & {*late.core.topics.table, *late.durable("topics.json", "topicConfigTable")}
    assert late.core.dispatcher.running == 0
    late.rig.close()


def test_a_group_that_is_made_behind_its_deletion_is_there_when_that_is_answered() -> None:
    late, client = with_topic()
    make = dumps({"groupName": "g", "retryMaxTimes": 3})
    client.submit(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps({"groupName": "g"}))
    late.rest()
    late.core.offsets.commit("g", "T", 0, 1)
    codes(client)
    client.submit(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"})
    client.submit(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, make)
    late.rest()
    assert set(codes(client).values()) == {OK}
    group = late.core.groups.get("g")
    assert group is not None
    assert group.retry_max_times == 3
    assert late.core.offsets.get("g", "T", 0) == -1
    late.rig.close()


def test_a_deletion_does_not_wait_for_a_table_that_is_being_written() -> None:
    late, client = with_topic()
    for name in ("T", "none"):
        client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        client.submit(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": name})
    late.loop()
    late.core.tables.step()

    def locked() -> Any:
        raise AssertionError("the loop waits for the disk")

    late.core.topics._late.alone = late.core.groups._late.alone = locked  # type: ignore[method-assign]
    late.rest()
    assert list(codes(client).values()) == [OK] * 4
    late.rig.close()


@pytest.mark.parametrize("is_late", [True, False])
def test_a_group_that_could_not_be_deleted_keeps_what_it_may_not_read(is_late: bool) -> None:
    late, client = with_topic()
    late.core.groups.put(SubscriptionGroup("g"))
    late.core.groups.forbidden["g"] = {"T": 4}
    late.core.tables.late = is_late
    late.fails()
    client.submit(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    late.rest()
    assert list(codes(client).values()) == [ResponseCode.SYSTEM_ERROR]
    assert late.core.groups.get("g") is not None
    assert not late.core.groups.may_read("g", "T")
    late.disk.fault = None
    client.submit(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    late.rest()
    assert list(codes(client).values()) == [OK]
    assert late.core.groups.may_read("g", "T")
    assert "g" not in late.durable("subscriptionGroup.json", "forbiddenTable")
    late.rig.close()


@pytest.mark.parametrize("is_late", [True, False])
def test_offsets_of_a_deleted_topic_do_not_come_back_over_messages_of_the_new_one(is_late: bool) -> None:
    """A group had read 5 messages; topic deleted, made again, 3 messages, power cut: they are not counted as read."""
    late, client = with_topic()
    late.core.offsets.commit("g", "T", 0, 5)
    late.core.save_offsets()
    late.core.tables.late = is_late
    client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    late.rest()
    for _ in range(3):
        send(client, "T")
    late.rest()
    assert set(codes(client).values()) == {OK}
    late.rig.store.flusher.sync_all()
    disk = late.disk.crashed(Random(1), 0.0)
    again = Rig(ROOT, files=disk, spawn=run_inline, mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=400)
    assert len(again.client().messages("T")) == 3
    assert again.core.offsets.get("g", "T", 0) <= 0
    again.close()


def test_a_topic_that_comes_back_between_the_steps_of_its_deletion_is_deleted_whole() -> None:
    """The name is gone, the messages are not yet; somebody who had waited since before makes it again."""
    late, client = with_topic()
    client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    late.loop()
    assert late.core.tables.step()
    late.calls.popleft()()  # the batch shows; the deletion stands in line
    assert late.core.topics.get("T") is None
    late.core.topics.put(TopicConfig("T", 1, 1))
    late.rest()
    assert codes(client) == {2: OK}
    assert late.core.topics.get("T") is None
    assert not late.rig.store.queue_ids("T")
    late.rig.close()


@pytest.mark.pure
def test_the_messages_of_a_deleted_topic_go_in_the_thread_and_its_name_is_free_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All queues are synced for it, which took the loop half a minute with 1,500 of them."""
    late, client = with_topic()
    deleted, where = late.rig.store.delete_topics, "the loop"

    def delete(names: list[str]) -> bool:
        assert where == "the thread"
        return deleted(names)

    monkeypatch.setattr(late.rig.store, "delete_topics", delete)
    other = late.rig.client(50002)
    for asker in (client, other):
        asker.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    for step in range(20):
        late.loop()
        if step == 2:
            send(other, "T", b"new")
        where = "the thread"
        late.core.tables.step()
        where = "the loop"
        if step == 1:
            assert late.core.topics.get("T") is None
            assert codes(client) == {}, "its messages are there"
    late.rest()
    assert codes(client) == {2: OK}
    assert codes(other) == {1: OK, 2: OK}
    assert [message.body for message in late_messages(late, "T")] == [b"new"]
    late.rig.close()


def late_messages(late: Late, topic: str) -> list[Any]:
    late.core.tables.late = False
    return late.rig.client(50009).messages(topic)


def test_a_deletion_whose_messages_cannot_go_says_so_and_can_be_asked_for_again() -> None:
    late, client = with_topic()
    late.loop()
    client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    late.loop()
    assert late.core.tables.step()
    late.loop()

    def fault(operation: str, path: Any) -> None:
        if operation in ("write", "rename", "sync", "remove"):
            raise StoreError(f"{path}: the disk is broken")

    late.disk.fault = fault
    late.rest()
    (reply,) = client.take()
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "topic T is deleted, but its messages are not: " in str(reply.remark)
    assert str(reply.remark).endswith("the disk is broken. Mend this, then delete the topic again")
    late.disk.fault = None
    client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    late.rest()
    assert codes(client) == {3: OK}
    assert not late.rig.store.queue_ids("T")
    assert late.core.dispatcher.running == 0
    late.rig.close()


def delete_topics(client: Client, *names: str) -> None:
    for name in names:
        client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})


def test_one_sync_serves_all_topics_that_go_at_a_time() -> None:
    """Each deletion wrote and synced all queues for itself: 25 ms each, and whoever made a topic waited for all."""
    names = [f"T{number}" for number in range(20)]
    late, client = with_topic()
    for name in names:
        send(client, name)
    late.rest()
    codes(client)
    rounds = late.rig.store._keeper.rounds
    delete_topics(client, *names)
    late.rest()
    assert set(codes(client).values()) == {OK}
    assert not any(late.rig.store.queue_ids(name) for name in names)
    assert late.rig.store._keeper.rounds == rounds + 1
    assert late.rig.store.queue_ids("T"), "that one stays"
    late.rig.close()


def test_a_topic_that_cannot_go_does_not_keep_others_from_going() -> None:
    late, client = with_topic()
    for name in ("BAD", "U"):
        send(client, name)
    late.rest()
    codes(client)
    late.rig.store._keeper.finish()  # so that there are files
    delete_topics(client, "T", "BAD", "U")

    def fault(operation: str, path: Any) -> None:
        if operation == "remove" and "BAD" in str(path):
            raise StoreError(f"{path}: the disk is broken")

    late.disk.fault = fault
    late.rest()
    assert list(codes(client).values()) == [OK, int(ResponseCode.SYSTEM_ERROR), OK]
    late.disk.fault = None
    client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "BAD"})
    late.rest()
    assert list(codes(client).values()) == [OK]
    assert "BAD" not in late.disk.listdir(ROOT / "consumequeue")
    late.rig.close()


def test_a_topic_made_again_behind_others_that_go_with_it_is_a_new_one() -> None:
    late, client = with_topic()
    send(client, "U")
    late.rest()
    codes(client)
    delete_topics(client, "T", "U")
    late.loop()
    assert late.core.tables.step()
    late.loop()
    send(client, "U", b"new")
    late.rest()
    assert set(codes(client).values()) == {OK}
    assert [message.body for message in late_messages(late, "U")] == [b"new"]
    assert not late.rig.store.queue_ids("T")
    late.rig.close()


def test_what_a_deletion_was_about_to_do_is_done_when_the_broker_stops() -> None:
    late, client = with_topic()
    client.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    late.loop()
    assert late.core.tables.step()
    late.loop()
    late.core.tables.stop()
    late.core.end_tables()
    late.loop()
    assert codes(client) == {2: OK}
    assert not late.rig.store.queue_ids("T")
    late.rig.close()


def test_what_was_accepted_for_a_topic_in_the_turn_of_its_deletion_is_stored_before_it() -> None:
    late, client = with_topic()
    admin = late.rig.client(50002)
    admin.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    late.loop()
    assert late.core.tables.step()
    send(client, "T", b"last")
    late.loop()
    late.rest()
    assert codes(client) == {2: OK}
    assert codes(admin) == {1: OK}
    assert late.core.topics.get("T") is None
    assert not late.rig.store.queue_ids("T"), "a message that nobody can read until the topic is made again"
    late.rig.close()


def test_a_deletion_and_sends_that_make_the_topic_do_not_undo_each_other_for_ever() -> None:
    late = Late()
    client, admin = late.rig.client(), late.rig.client(50002)
    send(client, "T")
    admin.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    send(client, "T")
    late.rest()
    assert codes(client) == {1: OK, 2: OK}
    assert codes(admin) == {1: OK}
    assert late.core.tables.write_count < 8
    late.rig.close()


def test_what_the_broker_itself_changes_is_written_by_the_thread() -> None:
    """The topic of transactions given up, autoCreateTopicEnable, a version for brokerPermission."""
    late, client = with_topic()
    topics, count = late.core.topics, late.core.tables.write_count
    before = topics.data_version.counter
    assert not topics.have(TopicConfig("OWN", 1, 1))
    assert not topics.have(TopicConfig("OWN", 1, 1))
    topics.next_version(lambda: 1 / 0)
    topics.set_auto_create(False, 8)
    assert late.core.tables.write_count == count
    assert topics.data_version.counter == before
    send(client, "X")
    assert codes(client) == {2: int(ResponseCode.TOPIC_NOT_EXIST)}
    late.rest()
    assert late.core.tables.write_count == count + 1
    assert topics.data_version.counter == before + 1
    assert topics.have(TopicConfig("OWN", 1, 1))
    assert "OWN" in late.durable("topics.json", "topicConfigTable")
    assert "TBW102" not in late.durable("topics.json", "topicConfigTable")
    topics.set_auto_create(True, 8)
    send(client, "X")
    late.rest()
    assert codes(client) == {3: OK}
    failures: list[int] = []
    late.fails()
    topics.next_version(lambda: failures.append(1))
    late.rest()
    assert failures == [1]
    late.disk.fault = None
    late.rig.close()
