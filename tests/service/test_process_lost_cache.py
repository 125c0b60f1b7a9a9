"""The cache of a running instance is removed from its disk: it is only a cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.service.process_cluster import RealCluster, now_ms
from tests.support.wait import let_pass

pytestmark = pytest.mark.process
PATIENCE_S = 240


def test_a_removed_cache_is_read_again_from_the_cluster(tmp_path: Path) -> None:
    """The shard stood still until a restart, and the threads of an ownership that an error ended went on."""
    cluster = RealCluster(tmp_path, ours=True)
    try:
        cluster.topics(1, "orders")
        instance = cluster.service()
        cluster.wait_owned(1, PATIENCE_S)
        first, second = range(100), range(1000, 1060)
        cluster.send(first, "orders", [now_ms() + 12_000] * len(first))
        let_pass(1)
        shutil.rmtree(tmp_path / "s1")
        cluster.send(second, "orders", [now_ms() + 3000] * len(second))
        copies = cluster.wait_delivered(len(first) + len(second), PATIENCE_S, "orders")
        assert copies.verdict([*first, *second]) == {"lost": 0, "early": 0, "twice": 0}
        log = instance.log.read_text()
        assert "the cache is gone" in log and "Traceback" not in log
    finally:
        cluster.stop()
