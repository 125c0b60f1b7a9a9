"""The broker's tables: topics, groups, offsets, clients, locks, and the files that keep them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.channel import MemoryChannel
from broker.net.clients import ClientInfo, Clients, ConsumerGroup
from broker.sending.unique_keys import UniqueKeys
from broker.tables.groups import SYSTEM_GROUPS, SubscriptionGroup, SubscriptionGroups
from broker.tables.json_files import JsonFile
from broker.tables.offsets import ConsumerOffsets
from broker.tables.queue_locks import LOCK_LIFE_MS, QueueLocks
from broker.tables.subscriptions import GroupSubscription
from broker.tables.topic_config import TopicConfig
from broker.tables.topic_names import group_problem, topic_problem
from broker.tables.topics import Topics
from remoting.errors import ProtocolError
from remoting.messages.message import java_hash
from store.disk.errors import StoreCorruptError, StoreFullError
from store.disk.files import Files
from tests.support.simdisk import PowerCut, SimDisk


def topics_in(tmp_path, **more) -> Topics:
    return Topics(Files(), tmp_path / "config" / "topics.json", lambda: 77, **more)


def groups_in(tmp_path, **more) -> SubscriptionGroups:
    return SubscriptionGroups(Files(), tmp_path / "config" / "subscriptionGroup.json", lambda: 77, **more)


def offsets_in(tmp_path) -> ConsumerOffsets:
    return ConsumerOffsets(Files(), tmp_path / "config" / "consumerOffset.json", lambda: 77)


# ------------------------------------------------------------------------------------------------ files


def test_a_file_that_is_missing_or_empty_is_no_document(tmp_path):
    file = JsonFile(Files(), tmp_path / "config" / "a.json")
    assert file.load() is None
    (tmp_path / "config").mkdir()
    file.path.write_bytes(b" \n")
    assert file.load() is None


def test_a_file_keeps_the_version_before_it(tmp_path):
    file = JsonFile(Files(), tmp_path / "config" / "a.json")
    file.save({"n": 1})
    file.save({"n": 2})
    assert file.load() == {"n": 2}
    assert json.loads((tmp_path / "config" / "a.json.bak").read_bytes()) == {"n": 1}


@pytest.mark.parametrize("broken", [b"", b"{", b"[1]", b"\x00" * 20])
def test_a_broken_file_is_read_from_the_version_before(tmp_path, broken):
    file = JsonFile(Files(), tmp_path / "a.json")
    file.save({"n": 1})
    file.save({"n": 2})
    file.path.write_bytes(broken)
    assert file.load() == {"n": 1}


def test_two_broken_versions_are_an_error_that_names_both(tmp_path):
    file = JsonFile(Files(), tmp_path / "a.json")
    file.path.write_bytes(b"{")
    (tmp_path / "a.json.bak").write_bytes(b"[]")
    with pytest.raises(StoreCorruptError, match=r"a\.json at 0: .*a\.json\.bak at 0: no JSON object"):
        file.load()


# ------------------------------------------------------------------------------------------------ topics


def test_topics_last_and_listeners_hear_of_changes(tmp_path):
    topics = topics_in(tmp_path)
    heard = []
    topics.listeners.append(heard.append)
    topics.put(TopicConfig("Orders", 3, 4, 6, attributes={"a": "b"}), TopicConfig("Bills"))
    counter = topics.data_version.counter
    again = topics_in(tmp_path)
    again.load()
    assert again.get("Orders") == TopicConfig("Orders", 3, 4, 6, attributes={"a": "b"})
    assert again.data_version.counter == counter
    assert topics.delete("Bills")
    assert not topics.delete("Bills")
    assert heard == [["Orders", "Bills"], ["Bills"]]


def test_a_change_that_cannot_be_written_is_none(tmp_path, monkeypatch):
    topics = topics_in(tmp_path)
    topics.put(TopicConfig("Orders", 3, 4))

    def full(_files, path, _data):
        raise StoreFullError(f"cannot write {path}")

    monkeypatch.setattr(Files, "replace_file", full)
    for change in (
        lambda: topics.create_for_send("New", "TBW102", 4),
        lambda: topics.put(TopicConfig("Orders", 8, 8)),
        lambda: topics.delete("Orders"),
    ):
        with pytest.raises(StoreFullError):
            change()
    assert topics.get("New") is None
    assert topics.get("Orders") == TopicConfig("Orders", 3, 4)


def test_topics_read_what_apache_wrote(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(
        '{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":9},"topicConfigTable":{"T":{"attributes":{},'
        '"order":true,"perm":4,"readQueueNums":8,"topicFilterType":"MULTI_TAG","topicName":"T","topicSysFlag":1,'
        '"writeQueueNums":5,"new":{"$ref":"$"}}}}'
    )
    topics = topics_in(tmp_path)
    topics.load()
    topic = topics.get("T")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.order, topic.sys_flag) == (8, 5, True, 1)
    assert topic.readable and not topic.writable and topic.queue_limit == 0 and topic.message_sys_flag == 2


def test_an_unreadable_topic_is_an_error(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{"perm":"all"}}}')
    with pytest.raises(StoreCorruptError, match="topic T"):
        topics_in(tmp_path).load()


def test_a_first_send_makes_a_topic_after_its_model(tmp_path):
    topics = topics_in(tmp_path)
    made = topics.create_for_send("New", "TBW102", 4)
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (4, 4, 6)
    assert topics.create_for_send("Many", "TBW102", 100).write_queue_nums == 8
    assert topics.create_for_send("None", "NoModel", 4) is None
    assert topics.create_for_send("None", "New", 4) is None, "a topic that does not hand on its permissions"
    assert topics_in(tmp_path, auto_create=False).create_for_send("None", "TBW102", 4) is None


def test_no_auto_creation_even_if_the_file_has_the_model(tmp_path):
    topics_in(tmp_path).save()
    topics = topics_in(tmp_path, auto_create=False)
    topics.load()
    assert topics.get("TBW102") is None


def test_topics_without_configuration_are_taken_in(tmp_path):
    topics = topics_in(tmp_path)
    assert topics.adopt([("Lost", 3), ("TBW102", 1)]) == ["Lost"]
    assert topics.get("Lost").read_queue_nums == 3


def test_retry_topics_follow_their_group(tmp_path):
    topics = topics_in(tmp_path)
    assert topics.create_for_group("%RETRY%g", 2).write_queue_nums == 2
    assert topics.create_for_group("%RETRY%g", 1).write_queue_nums == 2
    assert topics.create_for_group("%RETRY%g", 1, order=True).order


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Orders_1-%|", None),
        ("a" * 127, None),
        ("%RETRY%" + "a" * 248, None),
        ("", "The specified topic is blank."),
        ("  ", "The specified topic is blank."),
        ("a" * 128, "is longer than topic max length: 127"),
        ("%DLQ%" + "a" * 251, "it's longer than topic max length: 255"),
        ("a b", "contains illegal characters"),
        ("ä", "contains illegal characters"),
        ("a\n", "contains illegal characters"),
    ],
)
def test_topic_names(name, problem):
    found = topic_problem(name)
    assert found is None if problem is None else problem in found


def test_group_names():
    assert group_problem("g" * 120) is None
    assert "is longer than group max length: 120" in group_problem("g" * 121)
    assert "blank" in group_problem("")
    assert "illegal" in group_problem("a.b")


# ------------------------------------------------------------------------------------------------ groups


def test_groups_are_made_when_first_seen_and_last(tmp_path):
    groups = groups_in(tmp_path)
    assert groups.get("g") is None
    assert groups.find("g").retry_max_times == 16
    assert groups.find("not allowed") is None
    groups.put(groups.find("g").changed(retryMaxTimes=3, futureField=[1]))
    again = groups_in(tmp_path)
    again.load()
    assert again.get("g").retry_max_times == 3
    assert again.get("g").fields["futureField"] == [1]
    assert again.delete("g") and not again.delete("g")
    assert set(again.table) == set(SYSTEM_GROUPS)


def test_groups_are_not_made_where_that_is_switched_off(tmp_path):
    groups = groups_in(tmp_path, auto_create=False)
    assert groups.find("g") is None
    assert groups.find("TOOLS_CONSUMER") is not None


def test_forbidden_reading_is_read_from_apaches_file(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "subscriptionGroup.json").write_text(
        '{"forbiddenTable":{"g":{"T":4,"U":1}},"subscriptionGroupTable":{"g":{"groupName":"g","consumeEnable":false}}}'
    )
    groups = groups_in(tmp_path)
    groups.load()
    assert not groups.may_read("g", "T") and groups.may_read("g", "U") and groups.may_read("h", "T")
    assert not groups.get("g").consume_enable
    groups.put(SubscriptionGroup("h"))
    assert json.loads((tmp_path / "config" / "subscriptionGroup.json").read_bytes())["forbiddenTable"]["g"]["T"] == 4


# ------------------------------------------------------------------------------------------------ offsets


def test_offsets_last_in_apaches_form(tmp_path):
    offsets = offsets_in(tmp_path)
    assert offsets.get("g", "T", 0) == -1
    offsets.commit("g", "T", 0, 12)
    offsets.commit("g", "T", 1, 9)
    offsets.commit("g", "T", 1, -1)
    offsets.save_bytes(offsets.take_changes())
    assert offsets.take_changes() is None
    document = json.loads((tmp_path / "config" / "consumerOffset.json").read_bytes())
    assert document["offsetTable"] == {"T@g": {"0": 12, "1": 9}}
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:12,1:9},"odd":{}}}')
    again = offsets_in(tmp_path)
    again.load()
    assert again.queues("g", "T") == {0: 12, 1: 9}


def test_offsets_beyond_the_end_are_set_to_the_end(tmp_path):
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "T", 0, 12)
    offsets.commit("g", "T", 1, 5)
    offsets.take_changes()
    (sentence,) = offsets.clamp(lambda *_: 7)
    assert "12" in sentence and "7" in sentence
    assert offsets.queues("g", "T") == {0: 7, 1: 5}
    assert offsets.take_changes() is not None


def test_a_reset_is_told_once(tmp_path):
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "T", 0, 50)
    assert offsets.take_reset("g", "T", 0) is None
    offsets.reset("g", "T", {0: 3})
    assert offsets.has_reset("g", "T", 0) and not offsets.has_reset("g", "T", 1)
    assert offsets.get("g", "T", 0) == 3
    assert offsets.take_reset("g", "T", 1) is None
    assert offsets.take_reset("g", "T", 0) == 3
    assert offsets.take_reset("g", "T", 0) is None
    assert offsets.get("g", "T", 0) == 3


def test_offsets_by_group_and_topic(tmp_path):
    offsets = offsets_in(tmp_path)
    for group, topic in (("g", "T"), ("h", "T"), ("g", "U")):
        offsets.commit(group, topic, 0, 1)
        offsets.note_pull(group, topic, 0, 2)
    assert offsets.topics_of_group("g") == ["T", "U"]
    assert offsets.groups_of_topic("T") == ["g", "h"]
    assert offsets.get_pulled("g", "T", 0) == 2 and offsets.get_pulled("x", "T", 0) == -1
    offsets.take_over(offsets.copies("g", "new", "T"))
    offsets.forget_group("g")
    assert offsets.groups_of_topic("T") == ["h", "new"]
    offsets.forget_topic("T")
    assert offsets.table == {}


_NAMES = st.sampled_from("abc")
_OFFSET_CHANGES = st.one_of(
    st.tuples(st.just("commit"), _NAMES, _NAMES),
    st.tuples(st.just("reset"), _NAMES, _NAMES),
    st.tuples(st.just("copy"), _NAMES, _NAMES),
    st.tuples(st.just("forget_group"), _NAMES, _NAMES),
    st.tuples(st.just("forget_topic"), _NAMES, _NAMES),
)


@given(st.lists(st.tuples(_OFFSET_CHANGES, st.booleans()), max_size=12))
def test_the_groups_of_a_topic_are_those_of_the_table(changes: list[tuple[tuple[str, str, str], bool]]) -> None:
    """They are sorted by topic for the first question after a change, and remembered."""
    offsets = ConsumerOffsets(Files(), Path("unused"), lambda: 1)
    for (what, group, topic), asks in [*changes, (("copy", "a", "a"), True)]:
        if what == "commit":
            offsets.commit(group, topic, 0, 1)
        elif what == "reset":
            offsets.reset(group, topic, {0: 1})
        elif what == "copy":
            offsets.take_over(offsets.copies(group, f"{group}-new", topic))
        elif what == "forget_group":
            offsets.forget_group(group)
        else:
            offsets.forget_topic(topic)
        for name in "abc" if asks else "":
            found = sorted(key.split("@")[1] for key in offsets.table if key.startswith(f"{name}@"))
            assert offsets.groups_of_topic(name) == found


# ------------------------------------------------------------------------------------------------ clients


def subscription(topic: str, expression: str = "*", version: int = 1, tags: tuple = ()) -> GroupSubscription:
    return GroupSubscription(topic, expression, "TAG", version, tags)


def register(clients: Clients, group: str, channel: MemoryChannel, client_id: str, *subscriptions, **more) -> bool:
    return clients.register_consumer(
        group,
        ClientInfo(channel, client_id, "JAVA", 409, more.pop("now_ms", 0)),
        consume_type="CONSUME_PASSIVELY",
        message_model=more.pop("model", "CLUSTERING"),
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=list(subscriptions),
        **more,
    )


def test_members_are_listed_sorted_and_once():
    clients = Clients()
    for client_id in ("b", "a", "b"):
        register(clients, "g", MemoryChannel(), client_id, subscription("T"))
    assert clients.consumers["g"].client_ids() == ["a", "b"]


def test_changes_are_told_and_sameness_is_not():
    told: list[ConsumerGroup] = []
    clients = Clients(on_change=told.append)
    channel, other = MemoryChannel(), MemoryChannel()
    assert register(clients, "g", channel, "a", subscription("T"))
    assert not register(clients, "g", channel, "a", subscription("T", version=2))
    assert len(told) == 1
    assert register(clients, "g", channel, "a", subscription("U"))
    assert clients.subscription("g", "T") is None
    assert register(clients, "g", other, "b", subscription("U"), notify=False)
    assert len(told) == 2
    clients.channel_closed(other)
    assert len(told) == 3
    clients.channel_closed(channel)
    assert len(told) == 3 and not clients.consumers, "nobody is left to be told"


def test_broadcasting_groups_are_not_told():
    told: list[ConsumerGroup] = []
    clients = Clients(on_change=told.append)
    register(clients, "g", MemoryChannel(), "a", subscription("T"), model="BROADCASTING")
    register(clients, "g", MemoryChannel(), "b", subscription("T"), model="BROADCASTING")
    assert told == []


def test_an_older_subscription_does_not_replace_a_newer_one():
    clients = Clients()
    channel = MemoryChannel()
    register(clients, "g", channel, "a", subscription("T", "new", 5))
    register(clients, "g", channel, "a", subscription("T", "old", 4))
    assert clients.subscription("g", "T").expression == "new"


def test_the_silent_expire():
    clients = Clients(expire_ms=1000)
    quiet, busy = MemoryChannel(), MemoryChannel()
    register(clients, "g", quiet, "a", subscription("T"), now_ms=0)
    register(clients, "g", busy, "b", subscription("T"), now_ms=900)
    clients.register_producer("p", ClientInfo(quiet, "a", "JAVA", 409, 0))
    assert clients.expire(1000) == []
    assert clients.expire(1001) == [quiet]
    assert clients.consumers["g"].client_ids() == ["b"] and not clients.producers


def test_members_are_found_by_id():
    clients = Clients()
    channel = MemoryChannel()
    register(clients, "g", channel, "a", subscription("T"))
    clients.register_producer("p", ClientInfo(channel, "a", "JAVA", 409, 0))
    assert clients.find_consumer("g", "a").channel is channel
    assert clients.find_consumer("g", "b") is None and clients.find_consumer("h", "a") is None
    assert clients.find_producer("a").channel is channel and clients.find_producer("b") is None
    assert clients.groups_of_topic("T") == ["g"]
    clients.unregister_producer("p", channel)
    clients.unregister_producer("p", channel)
    assert clients.find_producer("a") is None


def test_subscriptions_filter_by_the_tags_not_by_the_codes():
    wrong = GroupSubscription.from_json({"topic": "T", "subString": "A||B", "tagsSet": ["A", "B"], "codeSet": [1, 2]})
    assert wrong.filter.matches(java_hash("A")) and not wrong.filter.matches(1)
    no_set = GroupSubscription.from_json({"topic": "T", "subString": "A || B"})
    assert no_set.filter.matches(java_hash("B"))
    everything = GroupSubscription.from_json({"topic": "T", "subString": "*", "tagsSet": []})
    assert everything.filter.codes is None
    sql = GroupSubscription.from_json({"topic": "T", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 3})
    assert not sql.is_tag and sql.version == 3
    assert wrong.to_json()["codeSet"] == sorted((java_hash("A"), java_hash("B")))
    with pytest.raises(ProtocolError):
        GroupSubscription.from_json({"subString": "*"})


# ------------------------------------------------------------------------------------------------ locks and keys


def test_locks_belong_to_their_owner_until_they_expire():
    locks = QueueLocks()
    queue = ("T", "broker-a", 0)
    assert locks.lock("g", "a", queue, 0)
    assert not locks.lock("g", "b", queue, LOCK_LIFE_MS)
    assert locks.lock("other", "b", queue, 0)
    assert locks.lock("g", "a", queue, LOCK_LIFE_MS)
    assert not locks.lock("g", "b", queue, LOCK_LIFE_MS + 1)
    assert locks.any_live("g", LOCK_LIFE_MS * 2)
    assert locks.lock("g", "b", queue, LOCK_LIFE_MS * 2 + 1)
    assert not locks.unlock("g", "a", queue)
    assert locks.unlock("g", "b", queue)
    assert not locks.any_live("g", LOCK_LIFE_MS * 2)


def test_locks_live_as_long_as_is_configured():
    locks = QueueLocks(500)
    queue = ("T", "broker-a", 0)
    assert locks.lock("g", "a", queue, 0)
    assert not locks.lock("g", "b", queue, 500)
    assert locks.any_live("g", 500) and not locks.any_live("g", 501)
    assert locks.lock("g", "b", queue, 501)


def test_expired_locks_are_dropped():
    locks = QueueLocks()
    locks.lock("g", "a", ("T", "b", 0), 0)
    locks.expire(LOCK_LIFE_MS + 1)
    assert not locks.unlock("g", "a", ("T", "b", 0))


@given(st.lists(st.integers(0, 4_000_000_000_000), min_size=2, max_size=20))
def test_unique_keys_are_unique_and_of_one_form(times):
    keys = UniqueKeys("192.0.2.7", 4711)
    made = [keys.next(now_ms) for now_ms in times]
    assert len(set(made)) == len(made)
    assert all(len(key) == 32 and key == key.upper() and bytes.fromhex(key) for key in made)


@pytest.mark.parametrize("seed", range(12))
def test_what_was_loaded_survives_a_power_cut(seed: int) -> None:
    """Killed before the new name was synced; the next process has read the new version, and relies on it."""
    disk = SimDisk(seed)
    file = JsonFile(disk, Path("/store/config/topics.json"))
    file.save({"version": 1})
    disk.fail_at("sync_dir", {2}, PowerCut())
    with pytest.raises(PowerCut):
        file.save({"version": 2})
    disk.kill()
    assert file.load() == {"version": 2}
    disk.power_cut(0.0)
    assert file.load() == {"version": 2}
