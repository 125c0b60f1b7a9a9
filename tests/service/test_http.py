"""What an instance says of itself over HTTP: alive, ready or why not, metrics; any number of askers may come."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.core.lines import Line, LineKind
from service.core.progress import Picture
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink
from service.metrics.health import SILENCE_MAX_MS, why_not_ready
from service.metrics.http import THREADS_MAX, serve_http
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from service.running.service import DelayService, _Plan

QUEUE = ("TIMEWHEEL", "broker-a", 3)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[DelayService]:
    async def made() -> DelayService:
        link = ClusterLink("127.0.0.1:1", "TIMEWHEEL")
        found = DelayService(link, "127.0.0.1:1", tmp_path, 1000)
        found._owners[QUEUE] = Owner(link, QUEUE, "me", tmp_path / "cache", 1000, InstanceCounts())
        return found

    yield asyncio.run(made())


def own(owner: Owner) -> None:
    shard = owner.shard
    shard.take_over("me")
    shard.load(Picture(), 0)
    shard.read([Line(0, LineKind.TAKEOVER, owner="me")], 1, mono_ms())
    shard.settle(Picture(), 0)
    shard.record()
    shard.saved()


def asked(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_ready_only_while_its_shards_may_deliver(service: DelayService) -> None:
    assert "has not begun" in why_not_ready(service)[0]
    service.seen_ms = mono_ms()
    assert why_not_ready(service) == ["broker-a/3: not owned yet: follower"]
    owner = service.owners()[0]
    own(owner)
    assert "not read to its end" in why_not_ready(service)[0]
    owner.shard.end_seen(mono_ms(), 1)
    assert why_not_ready(service) == []
    service.seen_ms -= SILENCE_MAX_MS + 1
    assert "no broker" in why_not_ready(service)[0]
    service._plan = _Plan(mine={("TIMEWHEEL", "broker-a", 4)})
    assert any("broker-a/4" in reason and "no owner" in reason for reason in why_not_ready(service))


def test_the_port_says_so(service: DelayService) -> None:
    port = serve_http(service, "127.0.0.1", 0)
    assert asked(port, "/healthz") == (200, "ok\n")
    status, text = asked(port, "/readyz")
    assert status == 503 and "has not begun" in text
    service._owners.clear()
    service.seen_ms = mono_ms()
    assert asked(port, "/readyz") == (200, "ok\n")
    status, text = asked(port, "/metrics")
    assert status == 200 and "timewheel_service_delivered_total 0.0" in text
    assert asked(port, "/api/v1/pending")[0] == 404
    metrics = serve_http(service, "127.0.0.1", 0, whole=False)
    assert "timewheel_service_delivered_total" in asked(metrics, "/")[1], "as it was: metrics at any path"


def test_connections_that_say_nothing_are_few(service: DelayService) -> None:
    port = serve_http(service, "127.0.0.1", 0)
    with contextlib.ExitStack() as stack:
        for _ in range(THREADS_MAX):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        late = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        assert late.recv(1) == b"", "one too many is closed"
