"""A quarter of a minute of the storm: kills, stops, and cancels in the last moment, beside a broker of ours.

Once with stock clients, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.process_cluster import RealCluster
from tests.service.process_storm import TARGET, Storm
from tests.service.storm_ledger import NUMBERS_EACH
from tests.service.storm_stock import SENDERS
from tests.support.clients import CLIENTS
from tests.support.need import need

pytestmark = pytest.mark.process


def test_the_ledger_agrees(tmp_path: Path) -> None:
    cluster = RealCluster(tmp_path, ours=True)
    try:
        cluster.topics(4, TARGET)
        storm = Storm(cluster, seed=6, rate=40)
        verdict = storm.run(12, pause_s=4)
        assert not any(verdict.values()), verdict
        assert storm.ledger.sent and storm.ledger.verdicts and storm.faults
    finally:
        cluster.stop()


@pytest.mark.interop
def test_the_ledger_agrees_with_stock_clients(tmp_path: Path) -> None:
    """And a copy less, in the topic or at a consumer, is found."""
    for name in SENDERS[1:]:
        need(CLIENTS[name].build)
    cluster = RealCluster(tmp_path, ours=True)
    storm = None
    try:
        cluster.topics(4, TARGET)
        storm = Storm(cluster, seed=7, rate=20, stock=20, command_s=2, longest_ms=3000)
        verdict = storm.run(8, pause_s=4)
        assert not any(verdict.values()), f"{verdict}\n{storm.told()}"
        ledger = storm.ledger
        assert {SENDERS[number // NUMBERS_EACH] for number in ledger.sent} == set(SENDERS), storm.told()
        _, java, go = (
            next(
                name
                for name, (number, *_) in ledger.found.items()
                if number // NUMBERS_EACH == sender and ledger.copies[number] == 1
            )
            for sender in range(3)
        )
        del ledger.received["go-v2"][java]
        assert {name for name, count in ledger.verdict().items() if count} == {"missed by go-v2"}
        ledger.copies[ledger.found.pop(go)[0]] -= 1
        for given in ledger.received.values():
            del given[go]
        found = {name: count for name, count in ledger.verdict().items() if count}
        assert found == {"missed by go-v2": 1, "undelivered": 1, "lost": 1}
    finally:
        if storm is not None:
            storm.close()
        cluster.stop()
