"""A quarter of a minute of the storm: kills, stops, and cancels in the last moment, beside a broker of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.process_cluster import RealCluster
from tests.service.process_storm import TARGET, Storm

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
