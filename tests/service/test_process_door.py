"""The HTTP door beside real instances: either one changes what the other owns, and says what it covers and what not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.service.process_cluster import RealCluster, now_ms
from tests.service.test_commands import FAR_MS, PATIENCE_S, send
from tests.support.door import Answer, ask
from tests.support.ports import free_port
from tests.support.wait import wait_until

pytestmark = pytest.mark.process
API = "/api/v1/pending"


def states(port: int) -> dict[str, str]:
    """What an instance knows of each shard; before it has begun, nothing."""
    try:
        answer = ask(port, f"{API}/count")
    except OSError:
        return {}
    return {one["shard"]: one["state"] for one in answer.json.get("shards", ())}


def post(port: int, path: str, document: object = b"{}") -> Answer:
    return ask(port, f"{API}/{path}", "POST", document, seconds=60)


def test_two_instances_show_and_change_each_others_shards(tmp_path: Path) -> None:
    cluster = RealCluster(tmp_path, ours=True)
    ports = [free_port(), free_port()]
    try:
        cluster.topics(4, "orders")
        first, _ = (cluster.service("--http-listen", f"127.0.0.1:{port}") for port in ports)
        wait_until(
            lambda: [sorted(states(port).values()) for port in ports] == [["followed"] * 2 + ["owned"] * 2] * 2,
            PATIENCE_S,
            "two shards each, and each follows the other's two",
        )
        names = send(cluster, range(20), now_ms() + FAR_MS)
        for port in ports:
            wait_until(lambda port=port: count(port) == 20, PATIENCE_S, "all are known to both")  # type: ignore[misc]
            found = ask(port, f"{API}?limit=100&property=number=7").json
            assert (found["whole"], [one["id"] for one in found["messages"]]) == (True, [names[7]])
            assert ask(port, f"{API}/{names[7]}").json["properties"]["number"] == "7"
        _verdicts(ports, names)
        copies = cluster.wait_delivered(2, PATIENCE_S, "orders")
        assert set(copies.found) == {2, 3}
        assert all(len(rows) == 1 for rows in copies.found.values())
        for port in ports:
            wait_until(lambda port=port: count(port) == 16, PATIENCE_S, "what is left")  # type: ignore[misc]
        first.kill()
        wait_until(lambda: set(states(ports[1]).values()) == {"owned"}, PATIENCE_S, "the other one takes all over")
        assert post(ports[1], f"{names[0]}/cancel").json["verdict"] == "already"
        assert ask(ports[1], f"{API}/{names[2]}").json["verdict"] == "too_late"
        # What was delivered just before the kill is counted until its target queue has been read.
        wait_until(lambda: ask(ports[1], "/api/v1/overview").json["pending"]["count"] == 16, 30, "what is left")
        overview = ask(ports[1], "/api/v1/overview").json
        assert (overview["whole"], len(overview["shards"])) == (True, 4)
    finally:
        cluster.stop()


def count(port: int) -> Any:
    answer = ask(port, f"{API}/count?due_from={now_ms() + 60_000}")
    return answer.json["count"] if answer.status == 200 and answer.json["whole"] else None


def _verdicts(ports: list[int], names: list[str]) -> None:
    """Cancel 0 and 1, deliver 2 and 3: each at either instance, whoever owns it."""
    for port, other, cancelled, due in ((ports[0], ports[1], names[0], names[2]), (*ports[::-1], names[1], names[3])):
        answer = post(port, f"{cancelled}/cancel")
        assert (answer.status, answer.json["verdict"]) == (200, "done"), answer.body
        assert post(other, f"{cancelled}/cancel").json["verdict"] == "already"
        answer = post(other, f"{cancelled}/move", {"by_ms": 5000})
        assert (answer.status, answer.json["verdict"]) == (409, "cancelled")
        answer = post(port, f"{due}/move", {"by_ms": 600_000})
        assert answer.json["verdict"] == "done"
        moved_ms = answer.json["due_ms"]
        assert moved_ms > now_ms() + FAR_MS
        assert ask(port, f"{API}/{due}", seconds=60).json["due_ms"] == moved_ms
        assert post(port, f"{due}/now").json["verdict"] == "done"
        assert post(port, f"{due.rpartition('/')[0]}/99999/cancel").status == 404
