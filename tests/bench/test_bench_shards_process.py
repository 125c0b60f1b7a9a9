"""The benchmark on ours with shards: the load goes to all of them, and all that they deliver is received."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.generator.load import Load
from bench.peers.rocketmq import ours_with
from bench.peers.wire import Wire
from bench.running.session import Session

COUNT = 400


def test_connections_go_to_the_brokers_in_turn() -> None:
    load = Load(port=10_911, brokers=3)
    assert [load.port_of(number) for number in range(5)] == [10_911, 10_921, 10_931, 10_911, 10_921]
    assert Load(port=10_911).port_of(7) == 10_911


@pytest.mark.process
def test_all_shards_get_their_part_and_all_of_it_is_received(tmp_path: Path) -> None:
    system = ours_with(2)
    session = Session(tmp_path, [], quick=True)
    session.available([system])
    with session.running(system) as running:
        running.prepare("Bench", 2)
        assert len(running.pids()) == 3, "a supervisor and two shards"
        # At a rate, each connection sends in its turn; without one, the shard that answers faster would get more.
        load = Load(
            running.port, count=COUNT, rate=1000, connections=4, queues=2, due_from_ms=50, due_to_ms=300, seconds=30
        )
        with session.receiving(system, running, "Bench", 2) as catch:
            result = session.generate(load)
            verdict = catch.wait(result.accepted, time.time() * 1000 + 30_000).judge()
        shares = []
        for port in (running.port, running.port + 10):
            with Wire(f"127.0.0.1:{port}") as wire:
                shares.append(sum(int(wire.ask(30, {"topic": "Bench", "queueId": q})[0]["offset"]) for q in range(2)))
    assert (result.accepted, verdict.delivered, verdict.early) == (COUNT, COUNT, 0)
    assert sum(shares) == COUNT
    assert min(shares) >= COUNT // 4
