"""Metrics: every figure against what was done, names and labels against a scrape of Apache's broker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from broker.config.values import label_pairs
from broker.metrics.consumers import version_name
from broker.metrics.exporter import Exporter
from broker.metrics.exposition import exposition, merged
from broker.metrics.pending import SNAPSHOT_S, pending_families
from broker.metrics.sends import SendCounts
from broker_plugin.figures import balance
from broker_plugin.plugin import DelayPlugin
from store.put.measures import OTHER, Classes, Family, MetricKind
from store.put.pending_api import PendingName, PendingOrder, PendingQuery, PendingVerb, PendingVerdict
from store.put.plugin_api import PutRecord, PutResult, PutStatus
from tests.broker.core_rig import Client, Rig, properties, sound
from tests.support.hostile import property_text
from tests.support.plain_pending import PlainPending, row
from tests.support.scrape import COMMON, Scraped, parse, recorded

NOT_HERE = {
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": "there is no such buffer",
    "rocketmq_pop_checkpoint_buffer_size": "there is no such buffer",
    "rocketmq_pop_offset_buffer_size": "there is no such buffer",
    "rocketmq_pop_revive_lag_milliseconds": "no revive queues",
    "rocketmq_pop_revive_latency_milliseconds": "no revive queues",
    "rocketmq_rpc_latency_milliseconds": "requests are not timed one by one",
    "rocketmq_topic_create_execution_time_milliseconds": "requests are not timed one by one",
}
"""What Apache's broker exposes and this one does not, and why; docs/metrics.md lists them too."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


class World:
    """A broker with its metrics, and clients that send, pull and wait."""

    def __init__(self, root: Path, **values: Any) -> None:
        self.plugin = DelayPlugin()
        self.rig = Rig(root, self.plugin, **values)
        self.exporter = Exporter(self.rig.core, topics_max=4)
        self.client = self.rig.client()

    def send(self, topic: str, delay_ms: int | None = None, body: bytes = b"body", **more: object) -> None:
        if delay_ms is not None:
            more["__STARTDELIVERTIME"] = self.rig.now_ms + delay_ms
        assert self.client.send(topic, properties(**more), body).code == 0

    def deliver(self) -> None:
        for _ in range(20):
            self.plugin.sweeper.step(self.rig.now_ms)
            self.plugin.recovery.step(self.rig.now_ms)

    def scrape(self) -> dict[str, Scraped]:
        self.rig.now_ms += 1000  # no text that is half a second old
        return parse(self.exporter.text().decode())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store", metricsLabel="zone:a")
    for _ in sound(made.rig):
        yield made


def lived(world: World) -> dict[str, Scraped]:
    """Let some of everything happen, and scrape."""
    world.client.heartbeat("c@1", "cg", topic="T")
    for _ in range(3):
        world.send("T")
    world.send("T", DELAY=1)
    for number in range(5):
        world.send("T", 100 + number, b"x" * 2000)
    world.send("U", 90_000)
    world.rig.pass_ms(1000)
    world.rig.deliver_levels()
    world.deliver()
    for queue_id in range(4):
        world.client.pull("T", 0, queue_id, sysFlag=5, commitOffset=1)
    return world.scrape()


def test_names_types_and_labels_are_those_of_apache(world: World) -> None:
    ours, theirs = lived(world), recorded()
    pending = pending_families(PlainPending([row(1, world.rig.now_ms + 5)]), 0, world.rig.now_ms, 9)
    ours |= parse(exposition(pending, {}).decode())
    assert len(theirs) > 30
    for name, family in theirs.items():
        if name in NOT_HERE:
            assert name not in ours
            continue
        assert ours[name].kind == family.kind, name
        if ours[name].values:
            assert ours[name].labels - {"zone"} == family.labels, name
        assert ours[name].bounds in ([], family.bounds), name
    empty = [name for name in theirs.keys() - NOT_HERE.keys() if not ours[name].values]
    assert empty == []


def test_pending_messages_by_when_they_are_due() -> None:
    now_ms = 1_700_000_000_000
    ahead = (0, 4_999, 5_000, 59_999, 60_000, 299_000, 301_000, 3_599_000, 86_399_000, 90_000_000)
    late = (1, 999, 1_000, 1_001, 9_000, 10_001, 599_999, 600_001, 9_000_000)
    dues = [now_ms + ms for ms in ahead] + [now_ms - ms for ms in late]
    control = PlainPending([row(number, due_ms, f"T{number % 3}") for number, due_ms in enumerate(dues)])
    control.verdicts = {(PendingVerb.CANCEL, PendingVerdict.DONE): 3, (PendingVerb.MOVE, PendingVerdict.TOO_LATE): 1}
    control.failed = 2
    found = parse(exposition(pending_families(control, 7, now_ms, 2), {}).decode())
    snapshot = found["rocketmq_timer_message_snapshot"]
    assert {bound: snapshot.total(timer_bound_s=str(bound)) for bound in SNAPSHOT_S} == {
        5: 2,
        60: 2,
        300: 2,
        900: 1,
        3600: 1,
        14_400: 0,
        28_800: 0,
        86_400: 1,
    }
    overdue = found["timewheel_overdue_messages"]
    assert [overdue.total(bound_s=bound) for bound in ("1", "10", "60", "600", "inf")] == [3, 2, 1, 1, 2]
    assert overdue.total() == len(late)
    assert found["timewheel_oldest_overdue_seconds"].total() == 9000
    assert found["timewheel_next_due_timestamp_seconds"].total() == now_ms / 1000
    last_s = found["timewheel_last_due_timestamp_seconds"].total()
    assert last_s == (now_ms + 90_000_000) / 1000
    places = found["timewheel_pending_messages"]
    assert [places.total(place=place) for place in ("failed", "stored", "levels")] == [2, len(dues) - 2, 7]
    assert found["rocketmq_timing_messages"].total() == len(dues)
    assert found["rocketmq_timing_messages"].total(topic=OTHER) == 6
    assert found["timewheel_commands_total"].total(op="cancel", verdict="done") == 3
    assert found["timewheel_commands_total"].total(op="move", verdict="too_late") == 1


def test_nothing_pending_is_no_time() -> None:
    found = parse(exposition(pending_families(PlainPending(), 0, 1_700_000_000_000, 2), {}).decode())
    for name in ("timewheel_next_due_timestamp_seconds", "timewheel_last_due_timestamp_seconds"):
        assert found[name].values == {}
    assert found["timewheel_oldest_overdue_seconds"].total() == 0
    assert len(found["timewheel_overdue_messages"].values) == 5


def test_the_figures_are_what_was_done(world: World) -> None:
    found = lived(world)
    sent = found["rocketmq_messages_in_total"]
    assert sent.total(topic="T", message_type="normal") == 3
    assert sent.total(topic="T", message_type="delay") == 5
    assert sent.total(topic="SCHEDULE_TOPIC_XXXX", message_type="delay", is_system="true") == 1
    assert sent.total() == 10
    assert found["rocketmq_throughput_in_total"].total(topic="T", message_type="delay") > 5 * 2000
    sizes = found["rocketmq_message_size"]
    assert sizes.total("count", topic="T", message_type="delay") == 5
    assert sizes.total("sum") == found["rocketmq_throughput_in_total"].total()
    assert found["rocketmq_timer_enqueue_total"].total(topic="T") == 5
    assert found["rocketmq_timer_enqueue_total"].total(topic="U") == 1
    assert found["rocketmq_timer_dequeue_total"].total() == found["rocketmq_timer_dequeue_total"].total(topic="T") == 5
    assert found["rocketmq_timer_dequeue_lag"].total() == 1
    delays = found["rocketmq_delay_message_latency_seconds"]
    assert delays.total("count", topic="U") == 1
    assert delays.total("sum", topic="U") == pytest.approx(90)
    assert delays.total("sum", topic="T") == pytest.approx(0.51)
    lateness = found["timewheel_lateness_seconds"]
    assert lateness.total("count", path="on_time") == 5
    assert lateness.total("sum", path="on_time") == pytest.approx(sum(1000 - 100 - n for n in range(5)) / 1000)
    assert lateness.total("count", path="level") == 1
    assert found["timewheel_early_total"].total() == 0
    assert len(found["timewheel_early_total"].values) == 3
    assert found["timewheel_put_failures_total"].total() == 0
    assert found["timewheel_start_to_first_delivery_seconds"].total() == 1
    assert found["rocketmq_messages_out_total"].total(topic="T", consumer_group="cg") == 9
    assert found["rocketmq_storage_size_bytes"].total() == world.rig.store.commit_log.end


def test_every_series_has_the_common_labels(world: World) -> None:
    lived(world)
    lines = [line for line in world.exporter.text().decode().splitlines() if not line.startswith("#")]
    assert len(lines) > 100
    for line in lines:
        for label in (*COMMON, "zone"):
            assert f'{label}="' in line, line
    assert 'node_id="broker-a"' in lines[0]


def test_groups_that_are_behind(world: World) -> None:
    world.client.heartbeat("c@1", "cg", topic="T")
    for _ in range(8):
        world.send("T", TAGS="x")
    reply = world.client.pull("T", 0, 0, sysFlag=5, commitOffset=1)
    assert reply.code == 0
    world.rig.pass_ms(5000)
    found = world.scrape()
    ends = sum(max(0, world.rig.store.max_offset("T", queue)) for queue in range(4))
    assert ends == 8
    read = max(0, world.rig.store.max_offset("T", 0))
    lag = found["rocketmq_consumer_lag_messages"].total(consumer_group="cg")
    assert lag == read - 1
    assert found["rocketmq_consumer_inflight_messages"].total(consumer_group="cg") == read - 1
    assert found["rocketmq_consumer_lag_latency_milliseconds"].total() == (6000 if lag else 0)
    assert found["rocketmq_consumer_connections"].total(consumer_group="cg", consume_mode="push") == 1


def test_topics_beyond_the_limit_are_counted_together(world: World) -> None:
    for number in range(9):
        world.send(f"topic{number}", 50)
        world.send(f"topic{number}")
    world.rig.pass_ms(60)
    world.deliver()
    found = world.scrape()
    for name in ("rocketmq_timer_enqueue_total", "rocketmq_timer_dequeue_total", "rocketmq_messages_in_total"):
        family = found[name]
        topics = {dict(labels)["topic"] for _, labels in family.values}
        assert len(topics) <= 5
        assert family.total(topic=OTHER) > 0
        assert family.total() == (18 if "in_total" in name else 9)


def pending_of(world: World) -> dict[str, float]:
    found = world.scrape()["rocketmq_timing_messages"].values
    return {dict(labels)["topic"]: count for (_, labels), count in found.items()}


def test_pending_by_topic_over_deliveries_cancels_and_restarts(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    for number in range(6):
        world.send("T", 100 + 1000 * number)
        world.send("U", 50_000 + number)
    assert pending_of(world) == {"T": 6, "U": 6}
    world.rig.pass_ms(1200)
    world.deliver()
    assert world.plugin.pending.topics()[0].topic == "U"
    left = pending_of(world)["T"]
    assert 3 <= left < 6
    offset = world.plugin.pending.page(PendingQuery(topic="U"), 1).rows[0].offset
    order = PendingOrder(verb=PendingVerb.CANCEL, name=PendingName(offset=offset))
    assert world.plugin.pending.change(order, world.rig.now_ms).verdict is PendingVerdict.DONE
    moved = world.plugin.pending.page(PendingQuery(topic="U"), 1).rows[0].offset
    order = PendingOrder(verb=PendingVerb.MOVE, name=PendingName(offset=moved), by_ms=5)
    assert world.plugin.pending.change(order, world.rig.now_ms).verdict is PendingVerdict.DONE
    assert pending_of(world) == {"T": left, "U": 5}
    assert sum(pending_of(world).values()) == world.plugin.pending_count()
    now_ms = world.rig.now_ms
    world.rig.close()
    again = World(tmp_path / "store")
    again.rig.now_ms = now_ms
    assert pending_of(again) == {"T": left, "U": 5}
    again.send("T", 100_000)
    again.rig.pass_ms(60_000)
    again.deliver()
    assert pending_of(again) == {"T": 1}
    again.rig.close()


def test_what_is_too_much_to_be_counted_at_once_is_counted_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is read, messages are cancelled, moved over the reader's place in both ways, sent and delivered."""
    world = World(tmp_path / "store")
    for number in range(12):
        world.send("T" if number % 3 else "U", 50_000 + 1000 * number)
    world.send("T", 1000)
    rows = world.plugin.pending.page(PendingQuery(), 100).rows
    now_ms = world.rig.now_ms
    world.rig.close()
    monkeypatch.setattr(balance, "READ_MAX", 2)
    monkeypatch.setattr(balance, "_READ_AT_ONCE", 2)
    again = World(tmp_path / "store")
    again.rig.now_ms = now_ms
    plugin = again.plugin
    (counter,) = [worker for worker in plugin._workers if worker.name == "counter"]

    def change(verb: PendingVerb, place: int, due_ms: int | None = None) -> None:
        order = PendingOrder(verb=verb, name=PendingName(offset=rows[place].offset), due_ms=due_ms)
        assert plugin.pending.change(order, again.rig.now_ms).verdict is PendingVerdict.DONE

    again.send("T", 20_000)  # before the reader's place, and new
    assert pending_of(again) == {}
    assert plugin.pending.topics() == []
    assert counter._step(again.rig.now_ms) <= again.rig.now_ms
    assert counter._step(again.rig.now_ms) <= again.rig.now_ms
    change(PendingVerb.CANCEL, 1)  # read already
    change(PendingVerb.CANCEL, 9)  # not read yet
    change(PendingVerb.MOVE, 2, now_ms + 900_000)  # read, and moved to where it would be read again
    change(PendingVerb.MOVE, 10, now_ms + 10_000)  # not read, and moved to where it would never be
    change(PendingVerb.MOVE, 10, now_ms + 950_000)
    again.send("U", 70_000)
    again.rig.pass_ms(1500)
    again.deliver()
    assert pending_of(again) == {}
    while counter._step(again.rig.now_ms) <= again.rig.now_ms:
        pass
    truth = Counter(row.topic for row in plugin.pending.page(PendingQuery(), 100).rows)
    assert sum(truth.values()) == plugin.pending_count() == 12
    assert pending_of(again) == truth
    change(PendingVerb.CANCEL, 10)
    again.rig.pass_ms(30_000)
    again.deliver()
    truth = Counter(row.topic for row in plugin.pending.page(PendingQuery(), 100).rows)
    assert pending_of(again) == truth
    again.rig.close()


def test_a_count_that_deliveries_have_overtaken_stays_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "store")
    for number in range(6):
        world.send("T", 7000 + number)
    now_ms = world.rig.now_ms
    world.rig.close()
    monkeypatch.setattr(balance, "READ_MAX", 2)
    monkeypatch.setattr(balance, "_READ_AT_ONCE", 2)
    again = World(tmp_path / "store")
    again.rig.now_ms = now_ms
    (counter,) = [worker for worker in again.plugin._workers if worker.name == "counter"]
    again.rig.pass_ms(7002)
    again.deliver()
    assert counter._step(again.rig.now_ms) > again.rig.now_ms
    assert pending_of(again) == {}
    again.rig.close()


def test_failed_deliveries_are_counted(world: World) -> None:
    world.send("T", 100)
    world.send("T", 100)
    world.rig.core.delete_topic("T")
    world.rig.pass_ms(200)
    world.deliver()
    assert world.scrape()["timewheel_put_failures_total"].total(status="TOPIC_NOT_EXIST") >= 2


def test_names_that_peers_chose_cannot_break_the_text() -> None:
    sends = SendCounts(100, lambda _: False)
    rng = Random(7)
    names = [property_text(rng, {"a": "b", "ä": "€"})[:200] for _ in range(50)] + ['a"b\\c', "x\n# TYPE y gauge", "z}"]
    for name in names:
        record = PutRecord(name, 0, b"record", 0, (), 0)
        sends.add([record], [PutResult(PutStatus.PUT_OK)])
    text = exposition(sends.families(), {"cluster": 'c"\n'}).decode()
    found = parse(text)["rocketmq_messages_in_total"]
    wanted = {name.encode("utf-8", "replace").decode() for name in names}
    assert {dict(labels)["topic"] for _, labels in found.values} == wanted
    assert found.total() == len(names)


def test_what_was_refused_is_not_counted() -> None:
    sends = SendCounts(100, lambda _: False)
    records = [PutRecord("T", 0, b"record", 0, (), 0) for _ in range(2)]
    sends.add(records, [PutResult(PutStatus.MESSAGE_ILLEGAL), PutResult(PutStatus.FLUSH_DISK_TIMEOUT)])
    assert next(sends.families()).rows == [(("T", "normal", "false"), 1)]


def test_families_of_one_name_become_one() -> None:
    def family(*rows: tuple[tuple[str, ...], float], labels: tuple[str, ...] = ("a",)) -> Family:
        return Family(name="n_total", kind=MetricKind.COUNTER, text="n", labels=labels, rows=rows)

    (found,) = merged([family((("x",), 1)), family((("y",), 2), (("x",), 9))])
    assert dict(found.rows) == {("x",): 1, ("y",): 2}
    with pytest.raises(ValueError, match="n_total is a counter"):
        merged([family(), family(labels=("b",))])


def test_a_histogram_is_cumulated_once() -> None:
    classes = Classes((1, 2))
    for value in (0.5, 1, 1.5, 3):
        classes.add(value)
    text = exposition([Family(name="h", kind=MetricKind.HISTOGRAM, text="h", rows=[((), classes)])], {}).decode()
    assert 'h_bucket{le="1.0"} 2.0\nh_bucket{le="2.0"} 3.0\nh_bucket{le="+Inf"} 4.0' in text
    assert "h_count 4.0\nh_sum 6.0" in text


def test_a_young_text_is_given_again(world: World) -> None:
    first = world.exporter.text()
    world.send("T", 100)
    assert world.exporter.text() is first
    world.rig.pass_ms(500)
    assert world.exporter.text() != first


@pytest.mark.parametrize("text", ["a", "a:b,c", "1:b", "__name__:x", "a b:c", ":"])
def test_bad_labels_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected name:value"):
        label_pairs(text)


def test_versions() -> None:
    assert [version_name(number) for number in (409, 413, 408, -1, 10**9)] == [
        *("v4_9_8", "v5_0_0", "v4_9_8_snapshot", "-1", "1000000000")
    ]


def test_the_document_lists_every_metric(world: World) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    listed = set(re.findall(r"`((?:rocketmq|timewheel)_\w+)", text))
    pending = [family.name for family in pending_families(PlainPending(), 0, world.rig.now_ms, 9)]
    missing = {*lived(world), *pending} - listed
    assert not missing, f"docs/metrics.md does not name {sorted(missing)}"
    assert NOT_HERE.keys() <= listed


def test_a_client_that_pulls_is_counted(world: World) -> None:
    client: Client = world.client
    world.send("T")
    assert client.pull("T", 0, 0).code in (0, 19)
    assert isinstance(world.scrape()["rocketmq_messages_out_total"].total(), float)
