"""SIGKILL of the broker (at any moment, and inside a disk call) and of the producer, in the middle of transactions."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.commitlog import read_commit_log
from tests.support.fault_storm import FaultyBroker, check_store
from tests.support.processes import Child
from tests.support.transaction_load import TOPIC, fate
from tests.support.wait import happens, let_pass, wait_until

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
COMMIT = 8
SETTINGS = {
    "mappedFileSizeCommitLog": str(256 << 10),
    "transactionTimeOut": "300",
    "transactionCheckInterval": "300",
    "transactionCheckMax": "1000000",
}


class Producers:
    """One producer process at a time."""

    def __init__(self, folder: Path, address: str) -> None:
        self.ledger = folder / "ledger"
        self._folder = folder
        self._address = address
        self._child: Child | None = None
        self._runs = 0

    def start(self) -> None:
        """Start the next one; it knows its predecessors' answers, not what became of their messages."""
        self._runs += 1
        first = str(self._runs * 1_000_000)
        command = [sys.executable, "-m", "tests.support.transaction_load", self._address, str(self.ledger), first]
        self._child = Child(command, ROOT, self._folder / "producer.log")

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def acknowledged(self) -> dict[str, set[int]]:
        """Numbers of half messages (``half``) and decisions (``end``) that the broker has acknowledged."""
        found: dict[str, set[int]] = {"half": set(), "end": set()}
        for line in self.ledger.read_text().splitlines():
            what, n = line.split()
            found[what].add(int(n))
        return found


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_each_transaction_comes_to_what_was_decided_once(tmp_path: Path, flush: str) -> None:
    rng = random.Random(5)
    broker = FaultyBroker(tmp_path, {**SETTINGS, "flushDiskType": flush})
    producers = Producers(tmp_path, broker.address)
    try:
        broker.up()
        producers.start()
        for round_ in range(6):
            let_pass(rng.uniform(0.4, 1.2))
            if round_ % 3 == 2:
                producers.kill()
                let_pass(0.2)
                producers.start()
                continue
            if round_ % 2:
                broker.control["die_in"] = rng.randint(1, 40)
                happens(lambda: not broker.child.running(), 10)
            broker.kill()
            broker.control["die_in"] = 0
            broker.up()
        wait_until(lambda: _enough(producers.acknowledged()), 120, "enough transactions")
        _wait_until_decided(broker, producers)
        producers.kill()
        assert broker.stop() == 0, broker.child.tail()
    finally:
        producers.kill()
        broker.kill()
    status, text = check_store(broker)
    assert status == 0, text
    _compare(broker.store, producers)


def _enough(noted: dict[str, set[int]]) -> bool:
    return len(noted["half"]) > 500 and len(noted["end"]) > 100


def _wait_until_decided(broker: FaultyBroker, producers: Producers) -> None:
    """Until what was open when the producer was stopped is decided: a last producer sends a little, and answers."""
    producers.kill()
    producers.start()
    let_pass(1)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        lowest, seen = map(int, broker.info()["transactionsHalfOffset"].split(","))
        if lowest > 0 and seen - lowest < 500 and broker.info()["transactionChecksSent"] != "0":
            let_pass(2)
            return
        let_pass(0.2)
    raise AssertionError(f"undecided for too long: {broker.info()}")


def _compare(store: Path, producers: Producers) -> None:
    delivered: Counter[int] = Counter()
    halves: dict[int, int] = {}
    decided: set[int] = set()
    for record in read_commit_log(store):
        if record.topic == TOPIC:
            delivered[int(record.body)] += 1
        elif record.topic == "RMQ_SYS_TRANS_HALF_TOPIC":
            halves[record.queue_offset] = int(record.body)
        elif record.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC" and record.properties["TAGS"] == "d":
            decided |= {int(word) for word in record.body.split(b",") if word}
        else:
            assert record.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC", record
    noted = producers.acknowledged()
    assert _enough(noted)
    assert sorted(halves) == list(range(len(halves)))
    assert [n for n, count in delivered.items() if count > 1] == [], "delivered twice"
    assert [n for n in delivered if fate(n) != COMMIT] == [], "delivered although it was to be rolled back"
    assert noted["half"] <= set(halves.values()), "an acknowledged half message is lost"
    done = {halves[number] for number in decided}
    assert noted["end"] <= done, "an acknowledged decision is lost"
    assert {n for n in done if fate(n) == COMMIT} == set(delivered), "decided, but not delivered, or the reverse"
    undecided = [n for n in noted["half"] - done if n < max(noted["half"]) // 1_000_000 * 1_000_000]
    assert undecided == [], "forgotten: no later producer of the group was asked"
