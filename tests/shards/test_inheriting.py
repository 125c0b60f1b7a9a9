"""A shard that is taken in has the topics, groups and modes of the others, whatever happens while it gets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.config.broker_config import load_config
from broker.config.key import ConfigError
from broker.shards.changes import Change, SharedChanges
from broker.shards.inheriting import inherit
from broker.shards.layout import Layout
from broker.shards.start import Start
from broker.shards.supervisor import Supervisor
from remoting.codes import RequestCode
from store.disk.errors import StoreCorruptError
from store.disk.files import Files

TOPICS = {"Orders": {"perm": 6}, "bäd\x7f name": {"perm": 4}, "broker-a": {"perm": 7}, "broker-a-0": {"perm": 7}}


def write(directory: Path, name: str, document: dict[str, Any]) -> None:
    path = directory / "config" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def read(directory: Path, name: str) -> Any:
    return json.loads((directory / "config" / name).read_bytes())


def supervisor(store: Path, count: int, **settings: str) -> Supervisor:
    options = {"storePathRootDir": str(store), "listenPort": "0", "namesrvListen": "127.0.0.1:0", **settings}
    return Supervisor(load_config(None, options, {}), Start(None, options, {}), count)


def fill(directory: Path) -> None:
    write(directory, "topics.json", {"topicConfigTable": TOPICS, "dataVersion": {"counter": 3}})
    write(directory, "subscriptionGroup.json", {"subscriptionGroupTable": {"g": {"groupName": "g"}}})
    write(directory, "messageRequestMode.json", {"messageRequestModeMap": {"Orders": {"g": {"mode": "POP"}}}})
    write(directory, "consumerOffset.json", {"offsetTable": {"Orders@g": {"0": 7}}})


def test_shards_that_are_added_to_a_single_brokers_store_have_its_tables(tmp_path: Path) -> None:
    fill(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "config").iterdir()}
    made = supervisor(tmp_path, 3)
    assert made.indexes == [0, 1, 2]
    assert {path: path.read_bytes() for path in (tmp_path / "config").iterdir()} == before, "shard 0 is as it was"
    for index in (1, 2):
        own = tmp_path / "shards" / str(index)
        assert read(own, "topics.json")["topicConfigTable"] == {name: TOPICS[name] for name in list(TOPICS)[:2]}
        assert read(own, "subscriptionGroup.json") == read(tmp_path, "subscriptionGroup.json")
        assert read(own, "messageRequestMode.json") == read(tmp_path, "messageRequestMode.json")
        assert not (own / "config" / "consumerOffset.json").exists(), "its queues begin at 0"


def test_a_shard_that_comes_back_gets_the_tables_of_one_that_stayed(tmp_path: Path) -> None:
    files = Files()
    known = Layout(files, tmp_path)
    known.choose(3, "broker-a")
    known.take_out(0)
    fill(tmp_path / "shards" / "1")
    write(tmp_path, "topics.json", {"topicConfigTable": {"Deleted": {"perm": 6}}})
    changes = SharedChanges(files, tmp_path / "shards" / "changes.json")
    changes.entries.append(Change(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"}, b"\xff", [1]))
    changes.save()
    made = supervisor(tmp_path, 3)
    assert made.indexes == [0, 1, 2]
    assert set(read(tmp_path, "topics.json")["topicConfigTable"]) == set(list(TOPICS)[:2])
    again = SharedChanges(files, tmp_path / "shards" / "changes.json")
    assert [change.waiting for change in again.entries] == [{0, 1}], "what shard 1 has not made, shard 0 makes as well"


def test_a_crash_while_a_shard_is_taken_out_leaves_it_neither_mark_nor_old_changes(tmp_path: Path) -> None:
    """The layout is the first of three writes; what the shard had not confirmed is older than what it inherits."""
    files = Files()
    known = Layout(files, tmp_path)
    known.choose(2, "broker-a")
    fill(tmp_path)
    known.drain_mark(1).parent.mkdir(parents=True, exist_ok=True)
    known.drain_mark(1).write_text("")
    changes = SharedChanges(files, tmp_path / "shards" / "changes.json")
    for waiting in ([1], [0, 1]):
        changes.entries.append(Change(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "Orders"}, b"", waiting))
    changes.save()
    known.take_out(1)
    only = supervisor(tmp_path, 1)
    assert only.indexes == [0]
    assert [change.waiting for change in only.changes.entries] == [{0}], "nothing waits for a shard that is out"
    only._unlock()
    made = supervisor(tmp_path, 2)
    assert made.indexes == [0, 1]
    assert not known.drain_mark(1).exists(), "it would be drained at once"
    assert [change.waiting for change in made.changes.entries] == [{0, 1}], "what shard 0 has not made, and no more"


def test_a_start_that_fails_meanwhile_begins_again(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "config" / "subscriptionGroup.json").write_text("{broken")
    with pytest.raises(StoreCorruptError, match=r"subscriptionGroup\.json"):
        supervisor(tmp_path, 2)
    assert Layout(Files(), tmp_path).members == [], "there is no shard 1 yet"
    fill(tmp_path)
    write(tmp_path / "shards" / "1", "topics.json", {"topicConfigTable": {"half": {}}})
    assert supervisor(tmp_path, 2).indexes == [0, 1]
    assert "Orders" in read(tmp_path / "shards" / "1", "topics.json")["topicConfigTable"]


def test_shards_that_cannot_be_are_not_written_down(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="65535 is the last port"):
        supervisor(tmp_path, 3, listenPort="65520")
    assert Layout(Files(), tmp_path).members == []
    assert supervisor(tmp_path, 1).indexes == [0]


def test_a_shard_does_not_inherit_from_itself(tmp_path: Path) -> None:
    fill(tmp_path)
    changes = SharedChanges(Files(), tmp_path / "changes.json")
    inherit(Files(), lambda _index: tmp_path, 0, [0], changes, frozenset({"Orders"}))
    assert read(tmp_path, "topics.json")["topicConfigTable"] == TOPICS
