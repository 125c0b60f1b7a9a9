"""One file of a store is damaged: the broker mends what is derived, or refuses and names the command that helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import store.disk.files as store_files
from broker.cli.check import check_command
from broker.cli.repair import repair_store
from broker.config.broker_config import BrokerConfig
from broker.tables.request_modes import RequestModes
from broker.tables.topic_config import TopicConfig
from store.disk.errors import StoreCorruptError, StoreFormatError
from store.disk.files import Files
from tests.support import damage_world
from tests.support.damage_world import (
    QUEUES,
    SEEDS_OF_THE_SUITE,
    TOPICS,
    VALUES,
    Life,
    Machine,
    ViolationError,
    judge,
)
from tests.support.examples import examples


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> list[Life]:
    return [Life(tmp_path_factory.mktemp(f"life{seed}"), seed) for seed in range(2)]


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut here, so nothing has to wait for a disk."""
    monkeypatch.setattr(store_files.os, "fdatasync", lambda _: None)
    monkeypatch.setattr(store_files.os, "fsync", lambda _: None)


@pytest.mark.parametrize("block", range(examples(4)))
def test_nothing_undamaged_is_lost(block: int, lives: list[Life], tmp_path: Path) -> None:
    results = []
    for seed in range(block * SEEDS_OF_THE_SUITE, (block + 1) * SEEDS_OF_THE_SUITE):
        found = judge(lives[seed % len(lives)], seed, tmp_path / "store")
        results += [found[1]] if found else []
    assert {"started", "repaired"} <= set(results)


@pytest.mark.parametrize("broken", [False, True])
def test_a_long_run_tells_by_its_status_whether_a_promise_was_broken(
    broken: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def judged(*_: object) -> None:
        if broken:
            raise ViolationError("seed 5: message 3 is gone")

    monkeypatch.setattr(damage_world, "judge", judged)
    monkeypatch.setattr(damage_world, "Life", lambda *_: None)
    monkeypatch.setattr(damage_world.logging, "disable", lambda _: None)
    monkeypatch.setattr("sys.argv", ["damage_world", "--from-seed", "5", "--seeds", "2", "--lives", "1"])
    assert damage_world._main() == (1 if broken else 0)
    assert ("message 3 is gone" in capsys.readouterr().out) is broken


def test_the_command_says_what_it_did(lives: list[Life], tmp_path: Path) -> None:
    """A record in the middle of the log is damaged, and a whole segment is gone."""
    life = lives[0]
    store = _copy(life, tmp_path)
    segments = sorted((store / "commitlog").iterdir())
    changed = bytearray(segments[1].read_bytes())
    changed[100:110] = b"\xff" * 10
    segments[1].write_bytes(changed)
    before = segments[1].read_bytes()
    settings = [f"--set={key}={value}" for key, value in VALUES.items()]
    looked = CliRunner().invoke(check_command, [str(store), *settings])
    assert looked.exit_code == 1
    assert f"{segments[1]}: no valid record at 0" in looked.output
    assert segments[1].read_bytes() == before, "a mere check changes nothing"
    mended = CliRunner().invoke(check_command, [str(store), "--repair", *settings])
    assert f"repair: {segments[1]} at 0: " in mended.output
    assert "nothing is wrong" in mended.output
    assert mended.exit_code == 0
    (folder,) = (store / "timewheel" / "aside").glob("repair-*")
    kept = (folder / "commitlog" / f"{segments[1].name}@0").read_bytes()
    assert before.startswith(kept)
    assert str(segments[1]) in (folder / "report.txt").read_text()
    again = CliRunner().invoke(check_command, [str(store), "--repair", *settings])
    assert "nothing to repair" in again.output
    assert again.exit_code == 0


def test_an_older_checkpoint_is_not_believed(lives: list[Life], tmp_path: Path) -> None:
    """Messages that were cancelled since would be delivered: the files that say so are gone."""
    life = lives[0]
    store = _copy(life, tmp_path)
    (store / "timewheel" / "checkpoint").write_bytes((life.root / "older" / "timewheel" / "checkpoint").read_bytes())
    with pytest.raises(StoreCorruptError, match=r"checkpoint is an older copy.*--repair"):
        Machine(store, life.end_ms)
    assert any("older one" in line for line in repair_store(BrokerConfig(store, dict(VALUES), listen_port=10911)))
    Machine(store, life.end_ms).close()


def test_nothing_to_repair_changes_nothing(lives: list[Life], tmp_path: Path) -> None:
    store = _copy(lives[0], tmp_path)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert repair_store(BrokerConfig(store, dict(VALUES), listen_port=10911)) == []
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_damaged_table_does_not_replace_the_good_one_before_it(lives: list[Life], tmp_path: Path) -> None:
    store = _copy(lives[0], tmp_path)
    table = store / "config" / "topics.json"
    good = (store / "config" / "topics.json.bak").read_bytes()
    table.write_bytes(b"{" + table.read_bytes()[:20])
    machine = Machine(store, lives[0].end_ms)
    assert (store / "config" / "topics.json.bak").read_bytes() == good
    assert {"T", "U"} <= set(machine.core.topics.table)
    machine.core.topics.put(TopicConfig("V"))
    assert (store / "config" / "topics.json.aside").read_bytes().startswith(b"{{")
    machine.close()
    Machine(store, lives[0].end_ms).close()


@pytest.mark.parametrize("name", ["topics", "messageRequestMode", "delayOffset"])
@pytest.mark.parametrize("damage", [b"{{", b"", b'{"offsetTable":{"1":"x"},"topicConfigTable":{"T":1}}', None])
def test_a_table_with_a_good_version_before_it_is_mended_by_the_command(
    name: str, damage: bytes | None, lives: list[Life], tmp_path: Path
) -> None:
    store = _copy(lives[0], tmp_path)
    table = store / "config" / f"{name}.json"
    if name == "messageRequestMode":
        RequestModes(Files(), table).put("T", "g", ("POP", 0), lambda: None)
        damage = damage and b'{"messageRequestModeMap":{"T":1}}'
    good = table.read_bytes()
    table.with_name(f"{name}.json.bak").write_bytes(good)
    if damage is None:
        table.unlink()
    else:
        table.write_bytes(damage)
    settings = [word for name, value in VALUES.items() for word in ("--set", f"{name}={value}")]
    found = CliRunner().invoke(check_command, [str(store), *settings])
    assert (found.exit_code, table.name in found.output) == (1, True), found.output
    mended = CliRunner().invoke(check_command, [str(store), "--repair", *settings])
    assert mended.exit_code == 0, mended.output
    assert str(table) in mended.output
    assert table.read_bytes() == good
    assert CliRunner().invoke(check_command, [str(store), *settings]).exit_code == 0


def test_a_damaged_page_of_a_run_costs_no_message(lives: list[Life], tmp_path: Path) -> None:
    """Its records say themselves what the page said of them."""
    store = _copy(lives[0], tmp_path)
    before = Machine(store, lives[0].end_ms)
    pending = [row.offset for row in before.plugin.list_pending(None, 1000)]
    runs = [run.path for run in before.plugin.spill._state.runs]
    before.close()
    for path in runs:
        changed = bytearray(path.read_bytes())
        changed[64:74] = bytes(10)
        path.write_bytes(changed)
    again = Machine(store, lives[0].end_ms)
    assert pending == [row.offset for row in again.plugin.list_pending(None, 1000)]
    assert any("made again from its records" in text for text in again.plugin.check())
    again.close()


@pytest.mark.parametrize("which", ["clean", "killed"])
def test_a_torn_queue_file_of_unknown_size_has_the_queues_derived_again(
    which: str, lives: list[Life], tmp_path: Path
) -> None:
    """Nothing says whether files had another size, so a start refuses; all are put aside by the command."""
    life = lives[0]
    whole = Machine(life.copy(which, tmp_path / "whole"), life.end_ms)
    expected = _ends(whole)
    whole.close()
    store = life.copy(which, tmp_path / "store")
    torn = max((store / "consumequeue" / "T" / "1").iterdir())
    before = torn.read_bytes()[:40]
    torn.write_bytes(before)
    config = BrokerConfig(store, dict(VALUES), listen_port=10911)
    assert repair_store(config) == [], "a start mends it: the progress file says which size it had"
    (store / "timewheel" / "progress").unlink()
    with pytest.raises(StoreFormatError, match=r"mappedFileSizeConsumeQueue is 200.*--repair"):
        Machine(store, life.end_ms)
    assert any(str(torn) in line for line in repair_store(config))
    (folder,) = (store / "timewheel" / "aside").glob("repair-*")
    assert (folder / "consumequeue" / "T" / "1" / torn.name).read_bytes() == before
    again = Machine(store, life.end_ms)
    assert _ends(again) == expected
    assert again.store.check() == []
    again.close()


def _ends(machine: Machine) -> list[int]:
    return [machine.store.max_offset(topic, queue) for topic in TOPICS for queue in range(QUEUES)]


def _copy(life: Life, tmp_path: Path) -> Path:
    return life.copy("clean", tmp_path / "store")
