from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path

import pytest

import broker.cli.tally
import broker.config.broker_config
import broker.config.key
import broker.config.properties_file
import broker.config.values
import timewheel_client.values.times
from broker.config.apache_keys import NO_EFFECT_GROUPS
from broker.config.broker_config import (
    NO_EFFECT_KEYS,
    OWN_KEYS,
    USED_KEYS,
    BrokerConfig,
    ConfigError,
    _default_address,
    load_config,
    parse_address,
    parse_addresses,
)
from broker_plugin.options import spill_options
from broker_plugin.sweeper import ARMED_MAX, HAND_MAX
from broker_plugin.threads.pace import BATCH_MAX
from store.options import StoreOptions
from store.spill.rows.model import SpillOptions

DOC = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

SPILL_KEYS = {"timewheel" + name.title().replace("_", ""): name for name in SpillOptions.__slots__}
"""The keys of the spill store's options, by the rule by which the plug-in reads them."""

APACHE_CONF = r"""
#所属集群名字
brokerClusterName = rocketmq-cluster
brokerName=broker-a
#0 表示 Master，>0 表示 Slave
brokerId=0
namesrvAddr=192.0.2.1:9876;\
    192.0.2.2:9876
defaultTopicQueueNums=4
autoCreateTopicEnable=true
listenPort=10911
deleteWhen=04
fileReservedTime=120
mapedFileSizeCommitLog=1073741824
mappedFileSizeCommitLog=1073741824
destroyMapedFileIntervalForcibly=120000
diskMaxUsedSpaceRatio=88
storePathRootDir=/data/store
storePathCommitLog=/data/store/commitlog
storePathConsumeQueue=/data/store/consumequeue
abortFile=/data/store/abort
maxMessageSize=65536
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
sendMessageThreadPoolNums=128
brokerIP1=192.0.2.9
"""


def conf(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.conf"
    path.write_bytes(text.encode())
    return path


def test_an_apache_file_works_as_it_is(tmp_path: Path) -> None:
    config = load_config(conf(tmp_path, APACHE_CONF))
    assert config.store_dir == Path("/data/store")
    assert (config.cluster_name, config.broker_name) == ("rocketmq-cluster", "broker-a")
    assert config.namesrv_addr == ["192.0.2.1:9876", "192.0.2.2:9876"]
    assert config.namesrv_listen is None
    assert (config.listen_host, config.listen_port, config.vip_port) == ("0.0.0.0", 10911, 10909)
    assert config.advertised == "192.0.2.9"
    assert config.get_int("diskMaxUsedSpaceRatio") == 88
    assert config.no_effect == [
        "abortFile",
        "destroyMapedFileIntervalForcibly",
        "sendMessageThreadPoolNums",
        "storePathConsumeQueue",
    ]
    assert config.unknown == ["mapedFileSizeCommitLog"]
    assert config.warnings == []


def test_the_plainest_configuration_stays_on_this_machine(tmp_path: Path) -> None:
    config = BrokerConfig(tmp_path)
    assert (config.listen_host, config.listen_port, config.vip_port) == ("127.0.0.1", 10911, 10909)
    assert config.namesrv_listen == ("127.0.0.1", 9876)
    assert (config.advertised, config.namesrv_addr, config.plugins) == ("127.0.0.1", [], ["delay"])
    assert (config.broker_name, config.cluster_name) == ("broker-a", "DefaultCluster")
    assert config.values == {"storePathRootDir": str(tmp_path)}


@pytest.mark.parametrize(
    ("values", "listen", "advertised"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"listenPort": "1234"}, "127.0.0.1", "127.0.0.1"),
        ({"brokerIP1": "127.0.0.1"}, "127.0.0.1", "127.0.0.1"),
        ({"brokerIP1": "192.0.2.1"}, "0.0.0.0", "192.0.2.1"),
        ({"brokerIP1": "192.0.2.1", "bindAddress": "192.0.2.2"}, "192.0.2.2", "192.0.2.1"),
        ({"bindAddress": "192.0.2.2"}, "192.0.2.2", "192.0.2.2"),
        ({"bindAddress": "localhost", "brokerIP1": "localhost"}, "127.0.0.1", "127.0.0.1"),
        ({"bindAddress": "0.0.0.0", "brokerIP1": "192.0.2.1"}, "0.0.0.0", "192.0.2.1"),
    ],
)
def test_where_it_listens_and_what_it_advertises(
    tmp_path: Path, values: dict[str, str], listen: str, advertised: str
) -> None:
    config = BrokerConfig(tmp_path, values)
    assert (config.listen_host, config.advertised) == (listen, advertised)


def test_arguments_win_and_values_agree_with_them(tmp_path: Path) -> None:
    config = BrokerConfig(
        tmp_path,
        {"listenPort": "1", "brokerName": "x", "delay.windowMs": "5"},
        listen_port=0,
        broker_name="b",
        cluster_name="c",
        namesrv_listen=("127.0.0.1", 0),
        namesrv_addr=["192.0.2.1:9876"],
        plugins=["delay", "my.module:Class"],
        advertised="127.0.0.1",
        listen_host="127.0.0.1",
    )
    assert config.vip_port == 0
    assert config.namesrv_listen == ("127.0.0.1", 0)
    assert config.plugins == ["delay", "my.module:Class"]
    assert config.values["listenPort"] == "0"
    assert config.values["brokerName"] == "b"
    assert config.values["delay.windowMs"] == "5"
    assert config.unknown == []
    assert "192.0.2.1:9876" in config.warnings[0]
    assert BrokerConfig(tmp_path, config.values).values == config.values
    assert BrokerConfig(tmp_path, namesrv_listen=None).namesrv_listen is None
    assert BrokerConfig(tmp_path, plugins=[]).plugins == []


def test_precedence(tmp_path: Path) -> None:
    file = conf(tmp_path, "listenPort=1000\nbrokerName=file\nstorePathRootDir=/file\nfileReservedTime=1")
    config = load_config(file, {"listenPort": "2000", "brokerName": "option"}, {"brokerName": "setting"})
    assert (config.get_int("fileReservedTime"), config.listen_port, config.broker_name) == (1, 2000, "setting")
    assert config.get_int("diskMaxUsedSpaceRatio") == 75


def test_one_answer_where_the_name_server_is(tmp_path: Path) -> None:
    external = conf(tmp_path, "namesrvAddr=192.0.2.1:9876")
    store = {"storePathRootDir": str(tmp_path)}
    config = load_config(external, {**store, "namesrvListen": "127.0.0.1:0"})
    assert (config.namesrv_listen, config.namesrv_addr) == (("127.0.0.1", 0), [])
    config = load_config(None, {**store, "namesrvListen": "127.0.0.1:0"}, {"namesrvAddr": "192.0.2.1:9876"})
    assert (config.namesrv_listen, config.namesrv_addr) == (None, ["192.0.2.1:9876"])
    both = conf(tmp_path, "namesrvAddr=192.0.2.1:9876\nnamesrvListen=9877")
    config = load_config(both, store)
    assert (config.namesrv_listen, config.namesrv_addr) == (("127.0.0.1", 9877), ["192.0.2.1:9876"])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("listenPort", "65536", "whole number from 0 to 65535"),
        ("listenPort", "abc", "whole number"),
        ("flushDiskType", "SOMETIMES", "ASYNC_FLUSH or SYNC_FLUSH"),
        ("autoCreateTopicEnable", "yes", "true or false"),
        ("messageDelayLevel", "1s 5x", "1s 5s 10m 2h"),
        ("deleteWhen", "24", "hours of the day"),
        ("brokerIP1", "my.host", "IPv4"),
        ("bindAddress", "::1", "IPv4"),
        ("namesrvAddr", "192.0.2.1", "HOST:PORT;HOST:PORT"),
        ("namesrvListen", "127.0.0.1:x", "HOST:PORT"),
        ("namesrvListen", "127.0.0.1:99999", "between 0 and 65535"),
        ("brokerRole", "SLAVE", "stands alone"),
        ("brokerRole", "MASTER", "ASYNC_MASTER or SYNC_MASTER"),
        ("brokerId", "1", "stands alone"),
        ("brokerName", "a b", "letters, digits"),
        ("enableDLegerCommitLog", "true", "expected false"),
        ("plugins", "delay, not a name", "package.module:Class"),
        ("timerMaxDelaySec", "-1", "whole number"),
        ("storePathCommitLog", "/a/commitlog,/b/commitlog", "one directory"),
        ("storePathRootDir", "\0", "path"),
        ("logLevel", "LOUD", "DEBUG or INFO"),
    ],
)
def test_a_bad_value_names_key_value_and_what_is_allowed(tmp_path: Path, key: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"storePathRootDir": str(tmp_path)}, {key: value})
    text = str(caught.value)
    assert text.startswith(f"{key}={value}: ")
    assert expected in text


def test_blanks_and_empty_values(tmp_path: Path) -> None:
    values = {"listenPort": " 1234 ", "timerMaxDelaySec": "", "autoCreateTopicEnable": "False ", "plugins": ""}
    config = BrokerConfig(tmp_path, values)
    assert config.listen_port == 1234
    assert not config.get_bool("autoCreateTopicEnable")
    assert config.plugins == []
    assert "timerMaxDelaySec" not in config.values


def test_every_default_is_allowed() -> None:
    for key in USED_KEYS.values():
        if key.default:
            assert key.validate(key.default) == key.default


def test_what_a_user_would_miss_is_warned_of(tmp_path: Path) -> None:
    config = BrokerConfig(tmp_path, {"authenticationEnabled": "true", "authorizationEnabled": "false"})
    assert len(config.warnings) == 1
    assert config.warnings[0].startswith("authenticationEnabled=true: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.conf: No such file"):
        load_config(tmp_path / "absent.conf")
    with pytest.raises(ConfigError, match=r"broker\.conf: .*four hex digits"):
        load_config(conf(tmp_path, r"a=\u1"))
    with pytest.raises(ConfigError, match="--store DIR"):
        load_config(conf(tmp_path, "brokerName=a"))


def test_set_value_and_effective(tmp_path: Path) -> None:
    config = BrokerConfig(tmp_path, {"aclEnable": "false"})
    config.set_value("fileReservedTime", "48")
    config.set_value("whatever", "x")
    with pytest.raises(ConfigError):
        config.set_value("fileReservedTime", "soon")
    effective = config.effective()
    assert effective["fileReservedTime"] == "48"
    assert effective["deleteWhen"] == "04"
    assert effective["aclEnable"] == "false"
    assert set(USED_KEYS) <= set(effective)


def test_the_store_directory_comes_first() -> None:
    with pytest.raises(TypeError, match="store directory comes first"):
        BrokerConfig({"storePathRootDir": "s"})  # type: ignore[arg-type]


def test_parse_address() -> None:
    assert parse_address(":1", "192.0.2.1") == ("192.0.2.1", 1)
    for wrong in ("", "a", "a:b:1", "1.2.3:4"):
        with pytest.raises(ValueError, match="expected"):
            parse_address(wrong)
    assert parse_addresses("") == []


ROUTE = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth1 0002000A 00000000 0001 0 0 0 00FFFFFF 0 0 0
eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0
eth0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0
"""
TRIE = """Main:
  |-- 10.0.2.7
     /32 host LOCAL
  |-- 127.0.0.1
     /32 host LOCAL
  |-- 192.0.2.0
     /24 link UNICAST
  |-- 192.0.2.5
     /32 host LOCAL
"""


def test_the_address_of_the_default_route(tmp_path: Path) -> None:
    (tmp_path / "route").write_text(ROUTE)
    (tmp_path / "fib_trie").write_text(TRIE)
    assert _default_address(tmp_path) == "192.0.2.5"
    (tmp_path / "route").write_text(ROUTE.splitlines()[0])
    with pytest.raises(ConfigError, match="set brokerIP1"):
        _default_address(tmp_path)
    with pytest.raises(ConfigError, match="set brokerIP1"):
        _default_address(tmp_path / "absent")


# ------------------------------------------------------------------------------------------------ tables and document


def section(title: str) -> str:
    text = DOC.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/configuration.md has no section {title!r}"
    return found[1]


def test_a_key_stands_in_one_table() -> None:
    assert not NO_EFFECT_KEYS & USED_KEYS.keys()
    assert sum(map(len, NO_EFFECT_GROUPS.values())) == len(NO_EFFECT_KEYS)
    assert OWN_KEYS.items() <= USED_KEYS.items()
    for group in NO_EFFECT_GROUPS.values():
        assert list(group) == sorted(group)


def test_the_document_lists_the_keys_that_are_used() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \|$", section("Keys with effect"), re.MULTILINE)
    own = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \|$", section("Keys of our own"), re.MULTILINE)
    assert {name for name, _, _ in own} == OWN_KEYS.keys()
    listed = {name: (default.strip("`"), meaning) for name, default, meaning in rows + own}
    assert listed == {key.name: (key.default, key.meaning) for key in USED_KEYS.values()}


def test_the_document_lists_the_keys_without_effect() -> None:
    assert set(re.findall(r"`(\w+)`", section("Keys without effect"))) == NO_EFFECT_KEYS


def test_every_key_with_effect_is_read_somewhere() -> None:
    read = {
        node.value
        for package in ("broker", "broker_plugin", "store")
        for path in (DOC.parents[1] / package).rglob("*.py")
        if path.name not in ("config_keys.py", "own_keys.py", "values.py", "apache_keys.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    read |= SPILL_KEYS.keys()
    only_checked = {"brokerId", "brokerRole", "enableDLegerCommitLog"}
    assert USED_KEYS.keys() - read <= only_checked


def test_defaults_agree_with_those_who_read_the_values() -> None:
    defaults = {key.name: key.default for key in USED_KEYS.values() if key.default}
    assert StoreOptions.from_config(defaults) == StoreOptions.from_config({})
    model = SpillOptions()
    assert {key: defaults[key] for key in SPILL_KEYS} == {
        key: str(getattr(model, name)) for key, name in SPILL_KEYS.items()
    }
    constants = (
        ("timewheelArmedRecords", ARMED_MAX),
        ("timewheelHotRecords", HAND_MAX),
        ("timewheelBatchRecords", BATCH_MAX),
    )
    assert [(key, int(defaults[key])) for key, _ in constants] == list(constants)


@pytest.mark.parametrize("key", SPILL_KEYS)
def test_the_plugin_reads_the_keys_of_the_spill_store(key: str) -> None:
    value = int(USED_KEYS[key].default) + 1
    assert getattr(spill_options({key: str(value)}), SPILL_KEYS[key]) == value


def test_examples() -> None:
    for module in (
        broker.config.broker_config,
        broker.config.values,
        broker.config.key,
        broker.config.properties_file,
        timewheel_client.values.times,
        broker.cli.tally,
    ):
        outcome = doctest.testmod(module)
        assert outcome.attempted > 0
        assert outcome.failed == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# a\n\nlistenPort=1\nfileReservedTime=abc\n", "line 4: fileReservedTime=abc: expected a whole number"),
        ("brokerName=a\\\n  b\nlistenPort=x", "line 3: listenPort=x: expected"),
        ("listenPort=x\nbrokerName=a\nlistenPort=y", "line 3: listenPort=y: expected"),
        ("brokerName=a\r\nlistenPort : 65536", "line 2: listenPort=65536: expected"),
        ("\ntls.server.keyPassword=a\nbrokerName=b c\n", "line 3: brokerName=b c: expected"),
        ("brokerName=a\nx=\\u12\n", "line 2: \\u12 is not a character"),
    ],
)
def test_a_bad_value_of_a_file_names_file_and_line(tmp_path: Path, text: str, problem: str) -> None:
    file = conf(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, {"storePathRootDir": str(tmp_path)})
    assert str(caught.value).startswith(f"{file}: {problem}")


def test_a_bad_value_of_a_file_that_is_overruled_does_not_matter(tmp_path: Path) -> None:
    file = conf(tmp_path, "listenPort=x")
    assert load_config(file, {"storePathRootDir": str(tmp_path)}, {"listenPort": "5"}).listen_port == 5


def test_a_key_with_a_dot_that_is_no_plug_ins_is_unknown(tmp_path: Path) -> None:
    values = {"delay.windowMs": "5", "dealy.windowMs": "5", "tls.server.mod": "enforcing"}
    assert BrokerConfig(tmp_path, values).unknown == ["dealy.windowMs", "tls.server.mod"]
    assert BrokerConfig(tmp_path, values, plugins=["a.module:Class"]).unknown == ["tls.server.mod"]
