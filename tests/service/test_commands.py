"""Commands on what waits in a service: each gets one definite verdict, which outlives the owner that gave it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.process_cluster import ENTRY, NUMBER, RealCluster, now_ms
from tests.support.ours import ROOT
from timewheel_client import ClientError, Producer, ServiceClient, Which

pytestmark = pytest.mark.process
PATIENCE_S = 240
FAR_MS = 3_600_000


def send(cluster: RealCluster, numbers: range, due_ms: int) -> list[str]:
    """Send messages to ``orders``; how they are named in commands."""

    async def work() -> list[str]:
        async with Producer(cluster.namesrv) as producer:
            names = []
            for number in numbers:
                properties = {"TW_TOPIC": "orders", "TW_DELIVER_MS": str(due_ms), NUMBER: str(number)}
                sent = await producer.send(ENTRY, b"body", tags=f"t{number % 2}", properties=properties)
                names.append(f"{sent.queue.broker_name}/{sent.queue.queue_id}/{sent.queue_offset}")
            return names

    return asyncio.run(work())


def pending(cluster: RealCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "broker.cli", "pending", *arguments, "--service", "--namesrv", cluster.namesrv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_verdicts_outlive_their_owner(tmp_path: Path) -> None:
    cluster = RealCluster(tmp_path, ours=True)
    try:
        cluster.topics(4, "orders")
        first = cluster.service("--roll-after", "3")
        cluster.wait_owned(4, PATIENCE_S)
        names = send(cluster, range(20), now_ms() + FAR_MS)
        moved_ms = now_ms() + 20_000
        asyncio.run(_before(cluster, names, moved_ms))
        _shell(cluster, names)
        first.kill()
        cluster.service()
        cluster.wait_owned(8, PATIENCE_S)
        asyncio.run(_after(cluster, names))
        copies = cluster.wait_delivered(3, PATIENCE_S, "orders")
        assert set(copies.found) == {2, 3, 4}, "moved to now, to a time, and by an interval; nothing else"
        assert all(len(rows) == 1 for rows in copies.found.values())
        assert copies.found[3][0][0] >= moved_ms and copies.found[3][0][1] == moved_ms
        asyncio.run(_late(cluster, names))
    finally:
        cluster.stop()


async def _before(cluster: RealCluster, names: list[str], moved_ms: int) -> None:
    async with ServiceClient(cluster.namesrv, timeout_ms=PATIENCE_S * 1000) as client:
        looked = await client.get(names[0])
        assert looked.verdict == "done" and looked.due_ms > now_ms()
        assert (await client.cancel(names[0])).verdict == "done"
        assert (await client.cancel(names[0])).verdict == "already"
        assert (await client.move(names[0], by_ms=5)).verdict == "cancelled"
        assert (await client.get(names[0])).verdict == "cancelled"
        assert (await client.now(names[2])).verdict == "done"
        assert (await client.move(names[3], due_ms=moved_ms)).due_ms == moved_ms
        assert (await client.move(names[3], due_ms=moved_ms)).verdict == "already"
        assert (await client.move(names[4], by_ms=20_000 - FAR_MS)).verdict == "done"
        assert (await client.move(names[5], due_ms=1 << 60)).verdict == "refused"
        shard = names[0].rpartition("/")[0]
        assert (await client.cancel(f"{shard}/0")).verdict == "unknown", "that is the record of the takeover"
        assert (await client.cancel(f"{shard}/99999")).verdict == "unknown"
        with pytest.raises(ValueError, match="BROKER/QUEUE/OFFSET"):
            await client.cancel("nonsense")
        with pytest.raises(ClientError, match="no broker 'nobody'"):
            await client.cancel("nobody/0/5")


def _shell(cluster: RealCluster, names: list[str]) -> None:
    listed = pending(cluster, "list", "--json", "--topic", "orders", "--tag", "t1")
    assert listed.returncode == 0, listed.stderr
    found = {json.loads(line)["id"] for line in listed.stdout.splitlines()}
    # what waits for longer than three seconds may have been rolled: then its place has another name
    assert len(found) == 10
    assert pending(cluster, "cancel", names[7]).returncode == 0
    again = pending(cluster, "move", names[7], "--by", "5m")
    assert again.returncode == 1 and "cancelled" in again.stdout
    dry = pending(cluster, "cancel", "--tag", "t1")
    assert "9 messages would be changed" in dry.stdout
    forecast = json.loads(pending(cluster, "forecast", "--for", "2h", "--json").stdout)
    assert forecast["total"] >= 16
    assert pending(cluster, "purge", "orders", "--yes").returncode == 1


async def _after(cluster: RealCluster, names: list[str]) -> None:
    async with ServiceClient(cluster.namesrv, timeout_ms=PATIENCE_S * 1000) as client:
        assert (await client.cancel(names[0])).verdict == "already"
        assert (await client.move(names[7], by_ms=5)).verdict == "cancelled"
        assert (await client.get(names[10])).verdict == "done"
        done = await client.change_matching(Which(tag="t0", due_from_ms=now_ms() + 600_000), "cancel", dry_run=False)
        assert done.verdicts == {"done": 7}, "6, 8, 10 … 18; 0 is cancelled, 2 delivered, 4 moved"
        assert sum((await client.count(Which(topic="orders"))).values()) >= 8


async def _late(cluster: RealCluster, names: list[str]) -> None:
    async with ServiceClient(cluster.namesrv, timeout_ms=PATIENCE_S * 1000) as client:
        for name in names[2:5]:
            assert (await client.cancel(name)).verdict == "too_late"
        assert (await client.cancel(names[18])).verdict == "already"
