"""Real brokers, ours and Apache's: what they leave on disk goes through the pipeline, levels and timed messages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache import TIMER_OFTEN, ApacheBroker, ApacheNameServer, apache_jars
from tests.support.commitlog import read_commit_log
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.wait import happens, wait_until
from tests.support.wire import Wire

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

SEND_MESSAGE = 10
EACH = 20
SPAN_MS = 6_000
FAR_MS = 3_600_000
APACHE = {**TIMER_OFTEN, "mappedFileSizeCommitLog": str(64 << 20)}
OLD = "4.9.7"
"""The last 4.9 whose broker Maven Central has; of 4.9.8 it has the client only."""


def send(wire: Wire, topic: str, number: int, properties: dict[str, str]) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": f"{number:032X}", **properties}.items())
    fields = {
        "producerGroup": "lateness",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": time.time_ns() // 1_000_000,
        "flag": 0,
        "properties": text,
        "reconsumeTimes": 0,
        "unitMode": "false",
    }
    wire.ask(SEND_MESSAGE, fields, b"body %d" % number)


def load(address: str) -> None:
    """Send ordinary, level, timed and far messages."""
    with Wire(address, 60) as wire:
        send(wire, "Late", 4 * EACH, {"TAGS": "makes the topic"})
        for number in range(EACH):
            now_ms = time.time_ns() // 1_000_000
            send(wire, "Late", 4 * number, {"TAGS": "plain"})
            send(wire, "Late", 4 * number + 1, {"DELAY": "1"})
            due_ms = now_ms + 4_000 + number * SPAN_MS // EACH
            send(wire, "Late", 4 * number + 2, {"TIMER_DELIVER_MS": str(due_ms)})
            send(wire, "Late", 4 * number + 3, {"TIMER_DELIVER_MS": str(now_ms + FAR_MS)})


def read(spark: Any, store: Path, out: Path) -> dict[str, Any]:
    from bench.lateness.engines.local_engine import LocalEngine
    from bench.lateness.engines.spark_engine import SparkEngine
    from bench.lateness.pipeline import Job, find_sources, run_job

    found = run_job(SparkEngine(spark), Job(find_sources([str(store)]), out), lambda _: None)
    as_of_ms = found["as_of_ms"]
    beside = Job(find_sources([str(store)]), out.with_name("beside"), as_of_ms=as_of_ms)
    assert run_job(LocalEngine(), beside, lambda _: None)["total"] == found["total"]
    return found


def stored_at_once(store: Path) -> int:
    """How many timed messages a busy machine brought in after their time: those are ordinary ones to any broker."""
    marks = {"__TW_ID", "TIMER_OUT_MS"}
    timed = [r for r in read_commit_log(store) if r.topic == "Late" and int(r.body.split()[1]) % 4 == 2]
    return sum(not marks & r.properties.keys() for r in timed)


def check(summary: dict[str, Any], tables: Path, store: Path) -> None:
    import pyarrow.parquet as pq

    timed = EACH - stored_at_once(store)
    assert timed > 0
    total = summary["total"]
    figures = {name: total[name] for name in ("sent", "delivered", "pending", "overdue", "lost", "repeated", "early")}
    assert figures == {
        "sent": 2 * EACH + timed,
        "delivered": EACH + timed,
        "pending": EACH,
        "overdue": 0,
        "lost": 0,
        "repeated": 0,
        "early": 0,
    }
    rows = pq.read_table(tables / "histograms" / "topic.parquet").to_pylist()
    kinds: dict[tuple[str, str, int], int] = {}
    for row in rows:
        key = (row["topic"], row["kind"], row["level"])
        kinds[key] = kinds.get(key, 0) + row["count"]
    assert kinds == {("Late", "level", 1): EACH, ("Late", "timed", 0): timed}
    print(summary["sources"][0]["kind"], total["percentiles"])


def wait_delivered(store: Path) -> None:
    """Wait until all but the far messages have been delivered."""

    def delivered() -> int:
        return len({r.body for r in read_commit_log(store) if r.topic == "Late" and int(r.body.split()[1]) % 4 < 3})

    wait_until(lambda: delivered() == 3 * EACH + 1, 120, "all near messages are delivered")


def test_our_broker_alive_and_stopped(spark: Any, tmp_path: Path) -> None:
    broker = OurBroker(tmp_path / "broker", APACHE).start()
    try:
        load(broker.address)
        wait_delivered(broker.store)
        alive = read(spark, broker.store, tmp_path / "alive")
    finally:
        broker.stop()
    check(alive, tmp_path / "alive", broker.store)
    check(read(spark, broker.store, tmp_path / "stopped"), tmp_path / "stopped", broker.store)
    assert alive["sources"][0]["kind"] == "timewheel"


@pytest.mark.apache
def test_apaches_broker(spark: Any, tmp_path: Path) -> None:
    need(apache_jars)
    names = ApacheNameServer(tmp_path / "names")
    broker = ApacheBroker(tmp_path / "broker", names.address, APACHE)
    try:
        broker.start()
        load(broker.address)
        wait_delivered(broker.store)
    finally:
        broker.stop()
        names.stop()
    summary = read(spark, broker.store, tmp_path / "out")
    check(summary, tmp_path / "out", broker.store)
    assert summary["sources"][0]["kind"] == "apache"


@pytest.mark.apache
def test_apaches_broker_of_old(spark: Any, tmp_path: Path) -> None:
    """4.9 knows levels and no timer: what asks for a time is an ordinary message there."""
    import pyarrow.parquet as pq

    need(lambda: apache_jars(OLD))
    names = ApacheNameServer(tmp_path / "names")
    broker = ApacheBroker(tmp_path / "broker", names.address, APACHE, version=OLD)
    try:
        broker.start()
        load(broker.address)
        happens(lambda: len(levels_of(broker.store)) >= EACH, 60)
    finally:
        broker.stop()
        names.stop()
    found = levels_of(broker.store)
    assert len(found) == EACH
    summary = read(spark, broker.store, tmp_path / "out")
    total = summary["total"]
    assert (total["sent"], total["delivered"], total["early"], total["lost"]) == (EACH, EACH, 0, 0)
    assert summary["sources"][0]["kind"] == "apache"
    assert summary["sources"][0]["records"] == len(list(read_commit_log(broker.store)))
    assert summary["sources"][0]["damaged"] == []
    rows = pq.read_table(tmp_path / "out" / "histograms" / "topic.parquet").to_pylist()
    assert {(row["topic"], row["kind"], row["level"]) for row in rows} == {("Late", "level", 1)}
    assert sum(row["count"] for row in rows) == EACH


def levels_of(store: Path) -> list[str]:
    """The bodies of the level messages that were delivered."""
    return [r.body.decode() for r in read_commit_log(store) if r.topic == "Late" and r.properties.get("DELAY") == "1"]
