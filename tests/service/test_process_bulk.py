"""A bulk cancel of three thousand messages beside a broker of ours; two owners are killed in its midst."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.process_bulk import KEPT, TARGET, Bulk
from tests.service.process_cluster import RealCluster

pytestmark = pytest.mark.process


def test_each_verdict_that_was_told_is_true(tmp_path: Path) -> None:
    cluster = RealCluster(tmp_path, ours=True)
    try:
        cluster.topics(4, TARGET, KEPT)
        bulk = Bulk(cluster, 3000, kills=2, due_s=10)
        verdict = bulk.run()
        assert not any(verdict.values()), verdict
        assert bulk.killed == 2
    finally:
        cluster.stop()
