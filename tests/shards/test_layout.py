"""Which shards a start runs, and what it refuses."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import pytest

from broker.cli.run import shard_count
from broker.config.broker_config import BrokerConfig
from broker.config.key import ConfigError
from broker.shards.layout import SHARDS_MAX, Layout, refuse_shards
from broker.shards.start import check_ports, own_settings
from store.disk.errors import StoreCorruptError, StoreFullError
from store.disk.files import Files


def layout(tmp_path: Path) -> Layout:
    return Layout(Files(), tmp_path)


def test_a_single_brokers_store_is_shard_0_in_place(tmp_path: Path) -> None:
    assert layout(tmp_path).choose(2, "b") == [0, 1]
    known = layout(tmp_path)
    assert known.directory(0) == tmp_path
    assert known.directory(1) == tmp_path / "shards" / "1"


def test_more_shards_move_nothing(tmp_path: Path) -> None:
    layout(tmp_path).choose(2, "b")
    assert layout(tmp_path).choose(4, "b") == [0, 1, 2, 3]


def test_fewer_shards_are_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    layout(tmp_path).choose(3, "b")
    with pytest.raises(ConfigError, match=re.escape(f"timewheel drain b-2 --store {tmp_path}")) as error:
        layout(tmp_path).choose(2, "b")
    assert "--shards 3" in str(error.value)
    assert layout(tmp_path).members == [0, 1, 2]


def test_a_shard_that_is_out_is_not_missed(tmp_path: Path) -> None:
    known = layout(tmp_path)
    known.choose(3, "b")
    known.take_out(1)
    assert layout(tmp_path).choose(2, "b") == [0, 2]
    assert layout(tmp_path).out == [1]
    assert layout(tmp_path).choose(3, "b") == [0, 1, 2], "it comes back when more are wanted"
    assert layout(tmp_path).out == []


def test_what_could_not_be_written_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the drain would never try again."""
    known = layout(tmp_path)
    known.choose(3, "b")

    def full(*_: object) -> None:
        raise StoreFullError("no space")

    with monkeypatch.context() as context:
        context.setattr(Files, "replace_file", full)
        with pytest.raises(StoreFullError):
            known.take_out(1)
    assert (known.members, known.out) == ([0, 1, 2], [])
    known.take_out(1)
    assert (layout(tmp_path).members, layout(tmp_path).out) == ([0, 2], [1])


@pytest.mark.parametrize("count", [0, -1, 65])
def test_a_count_that_cannot_be_is_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ConfigError, match="1 to 64"):
        layout(tmp_path).choose(count, "b")
    assert not (tmp_path / "shards").exists()


def test_a_single_broker_refuses_a_store_with_shards(tmp_path: Path) -> None:
    refuse_shards(Files(), tmp_path, "b")
    layout(tmp_path).choose(2, "b")
    with pytest.raises(ConfigError, match=r"--shards 2.*timewheel drain b-1"):
        refuse_shards(Files(), tmp_path, "b")
    layout(tmp_path).take_out(1)
    refuse_shards(Files(), tmp_path, "b")


@pytest.mark.parametrize("text", ['{"members": 3, "out": [], "version": 1}', "[]", '{"version": 1}', "\xff{"])
def test_a_damaged_layout_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "layout.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StoreCorruptError, match=r"layout\.json"):
        layout(tmp_path)


def test_a_layout_of_a_later_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "layout.json").write_text('{"members": [0], "out": [], "version": 2}')
    with pytest.raises(ConfigError, match="version 2"):
        layout(tmp_path)


def test_ports_must_fit(tmp_path: Path) -> None:
    check_ports(BrokerConfig(tmp_path, listen_port=65524), [0, 1])
    with pytest.raises(ConfigError, match="65535"):
        check_ports(BrokerConfig(tmp_path, listen_port=65525), [0, 1])
    with pytest.raises(ConfigError, match="storePathCommitLog"):
        check_ports(BrokerConfig(tmp_path, {"storePathCommitLog": "/x"}), [0])


def test_auto_means_the_cores_that_this_process_may_use() -> None:
    assert shard_count("auto") == min(len(os.sched_getaffinity(0)), SHARDS_MAX)
    assert shard_count("3") == 3
    for text in ("0", "-1", "65", "two", "1.5", "²", ""):
        with pytest.raises(click.UsageError, match="1 to 64, or auto"):
            shard_count(text)


def test_a_shard_has_ports_name_and_store_of_its_own(tmp_path: Path) -> None:
    values = {"httpListen": "127.0.0.1:8080", "metricsExporterType": "PROM", "metricsPromExporterPort": "5557"}
    config = BrokerConfig(tmp_path, values, listen_port=10_911, broker_name="b", namesrv_listen=("127.0.0.1", 9876))
    own = own_settings(config, 2, tmp_path / "shards" / "2")
    assert own == {
        "storePathRootDir": str(tmp_path / "shards" / "2"),
        "brokerName": "b-2",
        "aclFile": str(tmp_path / "config" / "plain_acl.yml"),
        "listenPort": "10931",
        "httpListen": "127.0.0.1:8100",
        "metricsPromExporterPort": "5577",
        "namesrvListen": "",
        "namesrvAddr": "",
    }
    shard = BrokerConfig(own["storePathRootDir"], {**values, **own})
    assert (shard.vip_port, shard.namesrv_listen, shard.namesrv_addr) == (10_929, None, [])


def test_a_port_that_a_shard_chose_is_its_port_when_it_is_started_again(tmp_path: Path) -> None:
    config = BrokerConfig(tmp_path, listen_port=0, namesrv_addr=["127.0.0.1:9876"])
    assert own_settings(config, 1, tmp_path)["listenPort"] == "0"
    again = own_settings(config, 1, tmp_path, 40_763)
    assert (again["listenPort"], again["vipChannelEnable"]) == ("40763", "false")
    assert "namesrvAddr" not in again
