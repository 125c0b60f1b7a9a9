"""Two services as processes in one cluster, with entry topics of their own and the same target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.process_cluster import RealCluster, now_ms
from tests.support.wait import let_pass

pytestmark = pytest.mark.process
PATIENCE_S = 240


def test_the_second_service_delivers_all_of_its_own(tmp_path: Path) -> None:
    """It began with the progress of the first one: its entries at offsets that were done there were never delivered."""
    cluster = RealCluster(tmp_path, ours=True)
    try:
        cluster.topics(2, "orders", "OTHER", "OTHER_PROGRESS")
        cluster.service()
        cluster.wait_owned(2, PATIENCE_S)
        first, second = range(200), range(1000, 1300)
        cluster.send(first, "orders", [now_ms() + 500] * len(first))
        cluster.wait_delivered(len(first), PATIENCE_S, "orders")
        cluster.send(second, "orders", [now_ms() + 1000] * len(second), entry="OTHER")
        let_pass(2)  # progress is written once a second
        other = cluster.service("--topic", "OTHER")
        cluster.wait_owned(4, PATIENCE_S)
        cluster.wait_delivered(len(first) + len(second), 60, "orders")
        other.kill()  # the next one looks for its deliveries among those of both
        cluster.service("--topic", "OTHER")
        third = range(2000, 2100)
        cluster.send(third, "orders", [now_ms() + 1000] * len(third), entry="OTHER")
        cluster.wait_delivered(len(first) + len(second) + len(third), PATIENCE_S, "orders")
        assert cluster.read("orders").verdict([*first, *second, *third]) == {"lost": 0, "early": 0, "twice": 0}
    finally:
        cluster.stop()
