"""UPDATE_BROKER_CONFIG on a whole broker: what is changed takes effect, is written down, or is refused."""

from __future__ import annotations

import inspect
import logging
import re
from pathlib import Path

import pytest

from broker.config.broker_config import USED_KEYS, load_config
from broker.config.config_keys import LIVE_KEYS
from broker.config.key import Live, shown
from broker.config.properties_file import parse_properties_file, update_properties_file
from broker.live_config import apply_changes, take_over
from remoting.codes import RequestCode, ResponseCode
from store.disk.errors import StoreFullError
from tests.broker.core_rig import START_MS, Client, Rig

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
CONF = b"# of this host\nfileReservedTime = 48\nbrokerName: broker-a\n"


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def change(client: Client, text: str):
    return client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode())


def changed(client: Client, text: str) -> None:
    reply = change(client, text)
    assert reply.code == 0, reply.remark


def with_file(rig: Rig, tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_bytes(CONF)
    rig.core.config.file = path
    return path


def test_the_live_keys_are_used_and_documented():
    section = DOCUMENT.read_text("utf-8").split("## Changing settings while it runs")[1].split("\n## ")[0]
    named = section.split("These can be changed:")[1].split("Another key")[0]
    assert set(re.findall(r"`(\w+)`", named)) == LIVE_KEYS


def test_each_way_to_take_effect_is_one_of_a_key():
    """A `Live` that no key has would be dead, and one that `apply_changes` does not know would do nothing."""
    assert {key.live for key in USED_KEYS.values()} == {None, *Live}
    applied = set(re.findall(r"Live\.(\w+) in changed", inspect.getsource(apply_changes)))
    assert applied == {live.name for live in Live} - {"READ"}


@pytest.mark.parametrize("name", sorted(USED_KEYS.keys() - LIVE_KEYS - {"storePathRootDir"}))
def test_what_is_read_at_start_only_is_refused_by_its_name(rig, name):
    other = {"true": "false", "false": "true"}.get(USED_KEYS[name].default)
    for text in (
        other,
        "1048576",
        "60",
        "192.0.2.7",
        "127.0.0.1:1",
        "http://127.0.0.1:4318/v1/traces",
        "SYNC_MASTER",
        "SYNC_FLUSH",
        "2s 4s",
        "require",
        "disabled",
        "PROM",
        "name:value",
        "a token of thirty-two characters",
        "a-token-of-thirty-two-characters",
        "x",
    ):
        reply = change(rig.client(), f"{name}={text}") if text else None
        if reply is not None and "read at start only" in reply.remark:
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert reply.remark.startswith(f"{shown(name, text)}: ")
            return
    # These have one allowed value.
    assert name in ("brokerId", "enableDLegerCommitLog")


def test_the_value_that_it_has_is_no_change(rig):
    changed(rig.client(), "flushDiskType=ASYNC_FLUSH\nlistenPort=10911")


def test_topics_are_created_by_sends_or_not(rig):
    client = rig.client()
    changed(client, "autoCreateTopicEnable=false")
    assert client.send("first").code == ResponseCode.TOPIC_NOT_EXIST
    changed(client, "autoCreateTopicEnable=true\ndefaultTopicQueueNums=2")
    assert client.send("first").code == 0
    assert rig.core.topics.get("first").write_queue_nums == 2


def test_groups_are_made_or_not(rig):
    client = rig.client()
    changed(client, "autoCreateSubscriptionGroup=false")
    client.heartbeat("c1", "unknown")
    assert rig.core.groups.get("unknown") is None
    changed(client, "autoCreateSubscriptionGroup=true")
    client.heartbeat("c1", "unknown")
    assert rig.core.groups.get("unknown") is not None


def test_the_size_of_a_pull(rig):
    client = rig.client()
    for _ in range(5):
        client.send("T")
    changed(client, "maxTransferCountOnMessageInMemory=2")
    reply = client.pull("T")
    assert reply.ext["nextBeginOffset"] == "2"


def test_how_many_a_unique_key_finds(rig):
    client = rig.client()
    for _ in range(3):
        client.send("T", "UNIQ_KEY\x01same\x02KEYS\x01k\x02")
    fields = {"topic": "T", "key": "same", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": START_MS * 2}
    fields["_UNIQUE_KEY_QUERY"] = "true"
    whole = client.ask(RequestCode.QUERY_MESSAGE, fields).body
    changed(client, "defaultQueryMaxNum=1")
    assert len(client.ask(RequestCode.QUERY_MESSAGE, fields).body) == len(whole) // 3


def test_the_disk_limit(rig):
    client = rig.client()
    changed(client, "diskSpaceWarningLevelRatio=35")
    assert rig.store.retention._options.disk_warning_ratio == 0.35


def test_the_log_level(rig):
    root = logging.getLogger()
    before = root.level
    try:
        changed(rig.client(), "logLevel=ERROR")
        assert root.level == logging.ERROR
    finally:
        root.setLevel(before)


def test_a_change_lasts_in_the_file(rig, tmp_path):
    path = with_file(rig, tmp_path)
    changed(rig.client(), "fileReservedTime=72\nsendMessageThreadPoolNums=9")
    assert path.read_bytes() == (
        b"# of this host\nfileReservedTime=72\nbrokerName: broker-a\nsendMessageThreadPoolNums=9\n"
    )
    config = load_config(path, {"storePathRootDir": str(tmp_path / "other")})
    assert (config.get_int("fileReservedTime"), config.file) == (72, path)


def test_what_is_refused_is_not_written(rig, tmp_path):
    path = with_file(rig, tmp_path)
    assert change(rig.client(), "fileReservedTime=72\nlistenPort=1").code == ResponseCode.SYSTEM_ERROR
    assert path.read_bytes() == CONF


def test_what_cannot_be_written_does_not_hold(rig, tmp_path, monkeypatch):
    with_file(rig, tmp_path)

    def full(*_):
        raise StoreFullError("broker.conf: no space left")

    monkeypatch.setattr(rig.core.files, "replace_kept", full)
    reply = change(rig.client(), "fileReservedTime=72")
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "broker.conf: no space left")
    assert rig.core.config.values.get("fileReservedTime") is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"a=1\n"),
        (b"a=0", b"a=1\n"),
        (b"a 0\r\nb=2\r\n", b"a=1\nb=2\n"),
        (b"a=0\na=5\nb=2\n", b"a=0\na=1\nb=2\n"),
        (b"  a : long \\\n   er\n# a=7\n", b"a=1\n# a=7\n"),
        (b"b=x\\\n a=3\n\n", b"b=x\\\n a=3\n\na=1\n"),
        (b"\xef\xbb\xbfa=0\n", b"a=1\n"),
    ],
)
def test_one_line_of_a_file_is_changed(before, after):
    assert update_properties_file(before, {"a": "1"}) == after


@pytest.mark.parametrize("value", ["", " x ", "a=b:c", "back\\slash", "tab\tline\n", "größe 注文 😀"])
def test_values_are_read_back(value):
    changes = {"key one": value, "b": "2"}
    assert parse_properties_file(update_properties_file(b"b=1\n", changes)) == changes


# ------------------------------------------------------------------------------------------------ read again


def test_what_is_read_again_counts_as_far_as_it_can(rig, tmp_path, caplog):
    path = tmp_path / "broker.conf"
    path.write_text(
        f"storePathRootDir={tmp_path}\nlistenPort=10911\nfileReservedTime=9\nbrokerPermission=4\nbrokerName=other\n"
        "tls.server.keyPassword=open sesame\n"
    )
    heard: list[str] = []
    rig.core.config_listeners.append(lambda: heard.append("changed"))
    changed = take_over(rig.core.config, load_config(path), rig.core.config_changed)
    assert changed == ["brokerPermission", "fileReservedTime"]
    assert rig.core.config.get_int("fileReservedTime") == 9 and rig.core.permission() == 4
    assert rig.core.config.broker_name == "broker-a" and heard == ["changed"]
    assert "fileReservedTime=9 from now on" in caplog.text
    assert "brokerName=other takes effect at the next start" in caplog.text
    assert "keyPassword=******" in caplog.text and "sesame" not in caplog.text
    assert take_over(rig.core.config, load_config(path), rig.core.config_changed) == [] and heard == ["changed"]
    path.write_bytes(path.read_bytes() + b"flushDisktype=SYNC_FLUSH\n")
    take_over(rig.core.config, load_config(path), rig.core.config_changed)
    assert "unknown settings (typing mistakes?): flushDisktype" in caplog.text
