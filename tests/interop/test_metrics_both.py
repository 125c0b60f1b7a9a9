"""One load on Apache's broker and ours: the same metrics, types and labels, and values where they mean the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest

from bench.peers.ports import free_port
from tests.broker.test_metrics import NOT_HERE
from tests.support.apache import ApacheBroker, ApacheNameServer, apache_jars
from tests.support.door import ask
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.scrape import Scraped, parse
from tests.support.wait import wait_until
from timewheel_client import Consumer, Producer

pytestmark = pytest.mark.apache

PLAIN, TIMED, FAR = 20, 30, 5
SAME = {
    "rocketmq_timer_enqueue_total": {"topic": "m1"},
    "rocketmq_timer_dequeue_total": {"topic": "m1"},
    "rocketmq_timing_messages": {"topic": "m1"},
    "rocketmq_timer_dequeue_lag": {},
    "rocketmq_consumer_lag_messages": {"consumer_group": "g1"},
    "rocketmq_consumer_ready_messages": {"consumer_group": "g1"},
    "rocketmq_broker_permission": {},
}
"""Metrics that mean the same on both, with the series that are compared."""


@dataclass(slots=True)
class Side:
    """A broker, where clients find it and where it is scraped."""

    namesrv: str
    metrics: int

    def scrape(self) -> dict[str, Scraped]:
        return parse(ask(self.metrics, "/metrics").body.decode())


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    need(apache_jars)
    folder = tmp_path_factory.mktemp("metrics")
    ports = free_port(), free_port()
    settings = [{"metricsExporterType": "PROM", "metricsPromExporterPort": str(port)} for port in ports]
    names = ApacheNameServer(folder / "names")
    host = {"metricsPromExporterHost": "127.0.0.1"}
    theirs = ApacheBroker(folder / "apache", names.address, {**settings[0], **host})
    ours = OurBroker(folder / "ours", {**settings[1], **host})
    try:
        yield Side(theirs.start().namesrv, ports[0]), Side(ours.start().namesrv, ports[1])
    finally:
        ours.stop()
        theirs.kill()
        names.stop()


async def load(namesrv: str) -> None:
    """Send, and consume what is due."""
    async with Producer(namesrv) as producer:
        began = time.monotonic()
        for _ in range(PLAIN):
            await producer.send("m1", b"x" * 200)
        # Twenty sends, as a measure of the machine: what is due when it comes is counted as an ordinary message.
        delay = timedelta(seconds=max(2.0, 2 * (time.monotonic() - began)))
        for _ in range(TIMED):
            await producer.send("m1", b"x" * 200, delay=delay)
        for _ in range(FAR):
            await producer.send("m1", b"y" * 2000, delay=timedelta(minutes=30))
    async with Consumer(namesrv, "g1", "m1") as consumer:
        async with asyncio.timeout(60):
            for _ in range(PLAIN + TIMED):
                await (await anext(consumer)).ack()


def test_the_same_load_gives_the_same_metrics(sides: tuple[Side, Side]) -> None:
    for side in sides:
        asyncio.run(load(side.namesrv))

        def settled(side: Side = side) -> bool:
            found = side.scrape()
            lag, out = found.get("rocketmq_consumer_lag_messages"), found.get("rocketmq_messages_out_total")
            return lag is not None and lag.total() == 0 and out is not None and out.total() >= PLAIN + TIMED

        wait_until(settled, 60, "that everything is consumed and counted")
    theirs, ours = (side.scrape() for side in sides)
    theirs.pop("target_info", None)
    theirs.pop("target", None)
    for name, family in theirs.items():
        if name in NOT_HERE:
            continue
        assert ours[name].kind == family.kind, name
        if ours[name].values:
            assert ours[name].labels == family.labels, name
        if ours[name].bounds:
            assert ours[name].bounds == family.bounds, name
    for name, labels in SAME.items():
        assert ours[name].total(**labels) == theirs[name].total(**labels), name
    out = "rocketmq_messages_out_total"  # a pull whose answer was given up (a busy machine) is counted again by both
    assert min(side[out].total(consumer_group="g1") for side in (ours, theirs)) >= PLAIN + TIMED
    delays = "rocketmq_delay_message_latency_seconds"
    assert ours[delays].total("count") == theirs[delays].total("count") == TIMED + FAR
    snapshot = "rocketmq_timer_message_snapshot"
    assert ours[snapshot].total() == theirs[snapshot].total() == FAR
    assert ours[snapshot].total(timer_bound_s="3600") == theirs[snapshot].total(timer_bound_s="3600") == FAR
    sent = "rocketmq_messages_in_total"
    assert ours[sent].total(message_type="delay") == theirs[sent].total(message_type="delay") == TIMED + FAR
    assert ours[sent].total(topic="m1", message_type="normal") == PLAIN
    assert theirs[sent].total(topic="m1", message_type="normal") == PLAIN
    assert ours[sent].total(topic="m1", message_type="delay") == TIMED + FAR  # Apache: under its timer's topic
    assert theirs[sent].total(topic="m1", message_type="delay") == 0
