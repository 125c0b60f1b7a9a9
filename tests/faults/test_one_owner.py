"""A store belongs to one process, an address too; who comes second changes nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.fault_storm import FaultyBroker, Storm, check_store

pytestmark = pytest.mark.process

LOAD = {"rate": 1_000, "due_to_ms": 1_500, "levels": 0}
PATIENCE_S = 60


def _snapshot(store: Path) -> dict[str, int]:
    paths = [path for path in store.rglob("*") if path.is_file() and "logs" not in path.parts]
    return {str(path.relative_to(store)): path.stat().st_size for path in paths}


def _last_line(broker: FaultyBroker) -> str:
    return broker.log.read_text().splitlines()[-1]


def test_a_second_broker_on_a_store_in_use_and_two_that_want_a_killed_ones(tmp_path: Path) -> None:
    with Storm(tmp_path / "one", seed=5, load_options=LOAD) as storm:
        storm.start()
        storm.begin_load()
        by_link = tmp_path / "link"
        by_link.symlink_to(storm.broker.store)
        for number, path in enumerate((storm.broker.store, by_link)):
            second = FaultyBroker(tmp_path / f"second{number}", storm.broker.settings, store=path)
            second.spawn()
            assert not second.wait_ready()
            assert second.child.process.wait(PATIENCE_S) == 1
            assert "is locked: another process has this store open" in _last_line(second)
        assert storm.broker.child.running()
        storm.broker.kill()
        second.spawn()
        storm.broker.spawn()
        try:
            ready = [broker for broker in (second, storm.broker) if broker.wait_ready()]
            assert len(ready) == 1, "one of them has it, the other one has not"
        finally:
            second.kill()
        storm.broker.kill()
        storm.start()
        storm.end_load()
        storm.settle()
        verdict = storm.judge()
        assert storm.broker.stop() == 0
        status, text = check_store(storm.broker)
    assert not verdict.wrong, str(verdict)
    assert status == 0, text


def test_a_port_in_use_is_an_error_before_the_store_is_touched(tmp_path: Path) -> None:
    broker = FaultyBroker(tmp_path)
    try:
        broker.up()
        assert broker.stop() == 0
        before = _snapshot(broker.store)
        for port in (broker.port, broker.port - 2, int(broker.namesrv.rpartition(":")[2])):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", port))
                other.listen()
                broker.spawn()
                assert not broker.wait_ready()
                assert broker.child.process.wait(PATIENCE_S) == 1
            assert f"cannot listen on 127.0.0.1:{port}" in _last_line(broker)
            assert _snapshot(broker.store) == before
        broker.up()
        assert broker.stop() == 0
    finally:
        broker.kill()
