"""What an instance says of itself over HTTP: alive, ready or why not, metrics; any number of askers may come."""

from __future__ import annotations

import asyncio
import gzip
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.messages.message import Message, decode_record, encode_record
from service.core.lines import Line, LineKind
from service.core.progress import Picture
from service.core.sharing import shares
from service.door.door import ServiceDoor
from service.door.reading import looked_up
from service.door.view import ServiceView
from service.link.clock import mono_ms, wall_ms
from service.link.cluster import ClusterLink
from service.metrics.health import SILENCE_MAX_MS, why_not_ready
from service.running.cache import ShardCache
from service.running.entries import Waiting, waiting_of
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from service.running.service import DelayService, _Plan
from tests.support.scrape import parse
from timewheel_client import ServiceClient

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


def never() -> ServiceClient:
    raise AssertionError("nothing is asked of the cluster")


class Ports:
    """The door of a service: the port of everything, and that of metrics alone."""

    def __init__(self, service: DelayService) -> None:
        self.door = ServiceDoor(service, never)
        self.all, self.metrics = self.door.bind_all("127.0.0.1", 0), self.door.bind_metrics("127.0.0.1", 0)
        self.door.start()


@pytest.fixture
def ports(service: DelayService) -> Iterator[Ports]:
    made = Ports(service)
    yield made
    made.door.stop()


def test_the_port_says_so(service: DelayService, ports: Ports) -> None:
    assert asked(ports.all, "/healthz") == (200, "ok\n")
    status, text = asked(ports.all, "/readyz")
    assert status == 503 and "has not begun" in text
    service._owners.clear()
    service.seen_ms = mono_ms()
    assert asked(ports.all, "/readyz") == (200, "ok\n")
    status, text = asked(ports.all, "/metrics")
    assert status == 200 and "timewheel_service_delivered_total 0.0" in text
    assert "timewheel_service_delivered_total" in asked(ports.metrics, "/")[1], "metrics at any path"
    assert asked(ports.all, "/api/v1/pending")[0] == 503, "which shards there are is not known"
    request = urllib.request.Request(
        f"http://127.0.0.1:{ports.metrics}/metrics",
        headers={"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert gzip.decompress(answer.read()).endswith(b"# EOF\n")


def test_a_port_that_is_taken_is_named(service: DelayService, ports: Ports) -> None:
    other = ServiceDoor(service, never)
    with pytest.raises(OSError, match=f"cannot listen for HTTP on 127.0.0.1:{ports.all}"):
        other.bind_all("127.0.0.1", ports.all)
        other.start()
    other.stop()


def waiting(number: int, due_ms: int) -> Waiting:
    text = f"TW_TOPIC\x01orders\x02TW_DELIVER_MS\x01{due_ms}\x02KEYS\x01order-{number}\x02TAGS\x01t{number % 2}\x02"
    message = Message("TIMEWHEEL", 3, 0, 0, 4, bytes(8), 0, 0, b"body %d" % number, text)
    stored = decode_record(encode_record(message, bytes(8), wall_ms()))
    stored.queue_offset = number
    return waiting_of(stored, "broker-a/3")


def test_what_waits_in_a_real_cache(service: DelayService, ports: Ports, tmp_path: Path) -> None:
    owner = service.owners()[0]
    own(owner)
    owner.shard.end_seen(mono_ms(), 1)
    service._plan = _Plan(owners={QUEUE: service.name, ("TIMEWHEEL", "broker-a", 4): "other"})
    owner.cache = cache = ShardCache(tmp_path / "c", owner.target, wall_ms, print)
    try:
        due_ms = wall_ms() + 3_600_000
        cache.add([waiting(number, due_ms + number) for number in range(1, 21)])
        api = "/api/v1/pending"
        found = json.loads(asked(ports.all, f"{api}/count?topic=orders")[1])
        assert (found["count"], found["whole"]) == (20, False)
        assert [(one["shard"], one["owner"]) for one in found["shards"]][1] == ("broker-a/4", "other")
        found = json.loads(asked(ports.all, f"{api}?limit=3")[1])
        assert [one["id"] for one in found["messages"]] == [f"broker-a/3/{number}" for number in (1, 2, 3)]
        found = json.loads(asked(ports.all, f"{api}?property=KEYS=order-7")[1])
        assert [(one["offset"], one["topic"], one["tag"]) for one in found["messages"]] == [("7", "orders", "t1")]
        known = looked_up(ServiceView(service, mono_ms).sights(), "broker-a/3", 7)
        assert known is not None
        assert (known.due_ms, known.body) == (due_ms + 7, b"body 7")
        assert dict(known.properties)["TW_DELAY_ID"] == "broker-a/3/7"
        overview = json.loads(asked(ports.all, "/api/v1/overview")[1])
        assert (overview["shards"][0]["count"], overview["pending"]["last_due_ms"]) == (20, due_ms + 20)
    finally:
        cache.close()


def test_what_is_refused_to_the_account_is_counted(service: DelayService, ports: Ports, tmp_path: Path) -> None:
    owner = service.owners()[0]
    own(owner)
    owner.cache = cache = ShardCache(tmp_path / "c", owner.target, wall_ms, print)
    try:
        for reason, topic, count in (("NO_PERMISSION", "a", 3), ("NO_PERMISSION", "b", 4), ("TOPIC_AWAY", "c", 5)):
            for number in range(count):
                cache.plugin.failures.add(reason, topic, number, 0)
        found = parse(asked(ports.metrics, "/")[1])
        assert found["timewheel_service_refused_messages"].total(shard="broker-a/3") == 7
    finally:
        cache.close()


def test_how_much_is_known_of_a_shard(service: DelayService, tmp_path: Path) -> None:
    """From following to owning to an end: what an answer says of the shard."""
    now = [0]
    view = ServiceView(service, lambda: now[0])
    service._plan = _Plan(owners={QUEUE: "m1", ("TIMEWHEEL", "broker-a", 4): "m2"})
    owner = service.owners()[0]

    def seen() -> tuple[str, str]:
        first, other = view.sights()
        assert (other.sighting.value, other.owner) == ("missing", "m2")
        return first.sighting.value, first.owner

    assert seen() == ("missing", "m1"), "not read yet"
    owner.cache = ShardCache(tmp_path / "c", owner.target, wall_ms, print)
    try:
        assert seen() == ("missing", "m1"), "not read to its end yet"
        owner.queue_end.saw(True, 0)
        owner.shard.load(Picture(), 0)
        owner.shard.read([Line(0, LineKind.TAKEOVER, owner="m3#1")], 1, 0)
        assert seen() == ("followed", "m3"), "whoever took it over last"
        owner.shard.take_over("me")
        owner.shard.read([Line(1, LineKind.TAKEOVER, owner="me")], 2, 0)
        assert seen()[0] == "followed", "it has all that the last owner had"
        owner.shard.settle(Picture(), 0)
        owner.shard.record()
        owner.shard.saved()
        assert seen() == ("stale", service.name), "no lease"
        owner.shard.end_seen(0, 2)
        assert seen() == ("owned", service.name)
        now[0] = 2_000
        assert seen()[0] == "stale"
        owner.shard.read([Line(2, LineKind.TAKEOVER, owner="m2#9")], 3, 0)
        assert seen()[0] == "missing", "fenced"
    finally:
        owner.cache.close()


def test_each_shard_has_an_heir(service: DelayService) -> None:
    shards = [("TIMEWHEEL", "broker-a", number) for number in range(6)]
    members = frozenset(("m1", "m2", "m3"))
    service._plan = _Plan(members=members, owners=shares(members, shards))
    care = ServiceView(service, mono_ms).care()
    for member in members:
        for shard, owner in shares(members - {member}, shards).items():
            if service._plan.owners[shard] == member:
                assert care[f"broker-a/{shard[2]}"].standby == owner
