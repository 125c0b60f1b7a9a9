"""What goes over all shards, as real processes: a store that grows, a drain and kills, TLS, transactions, popping."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from remoting.messages.stored import decode_record
from tests.interop.bad_pops import ACK, MODES, POP, SET_MODE, ack_fields, pop_fields
from tests.shards.test_shards_process import RULES, alike, alive, command, reachable
from tests.support.certificates import make_certificate
from tests.support.hostile import body as hostile_body
from tests.support.ports import free_ports_around
from tests.support.shards import ShardedBroker
from tests.support.wait import wait_until
from tests.support.wire import Wire, WireError
from tests.support.wire_admin import create_group, set_offset
from timewheel_client import Consumer, Producer

pytestmark = pytest.mark.process

SECONDS = 60
TRANSACTIONS = {"transactionTimeOut": "300", "transactionCheckInterval": "300"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ShardedBroker]]:
    made: list[ShardedBroker] = []

    def begin(settings: dict[str, str] | None = None, shards: int = 2) -> ShardedBroker:
        broker = ShardedBroker(tmp_path, shards, settings)
        made.append(broker)
        return broker.start()

    yield begin
    for broker in made:
        broker.kill()


class Story:
    """Messages with hostile bodies, and who has got them."""

    def __init__(self, namesrv: str, topic: str, **access: Any) -> None:
        self.namesrv = namesrv
        self.topic = topic
        self.access = access
        self.sent: dict[bytes, int] = {}
        self.brokers: set[str] = set()
        self.places: dict[bytes, set[tuple[str, str]]] = {}

    def send(self, count: int, delay_ms: int = 0) -> None:
        """Send, and note when each may come at the earliest."""
        asyncio.run(self._send(count, delay_ms))

    async def _send(self, count: int, delay_ms: int) -> None:
        async with Producer(self.namesrv, **self.access) as producer:
            for _ in range(count):
                n = len(self.sent)
                body = b"%d " % n + hostile_body(Random(n), 200)
                due_ms = int(time.time() * 1000) + delay_ms
                delay = timedelta(milliseconds=delay_ms) if delay_ms else None
                result = await producer.send(self.topic, body, delay=delay)
                self.brokers.add(result.queue.broker_name)
                self.sent[body] = due_ms if delay_ms else 0

    def read(self) -> None:
        """Read until all have come; each from one place only, none early."""
        asyncio.run(self._read())
        assert all(len(places) == 1 for places in self.places.values()), "two copies"

    async def _read(self) -> None:
        async with (
            Consumer(self.namesrv, f"g-{self.topic}", self.topic, start_from="first", **self.access) as consumer,
            asyncio.timeout(SECONDS),
        ):
            async for message in consumer:
                name = message.queue.broker_name
                self.places.setdefault(message.body, set()).add((name, message.offset_message_id))
                assert time.time() * 1000 >= self.sent[message.body] - 1, "early"
                await message.ack()
                if self.places.keys() >= self.sent.keys():
                    break


def test_a_single_brokers_store_grows_in_place(start: Callable[..., ShardedBroker]) -> None:
    single = start(shards=0)
    with Wire(single.address) as wire:
        wire.create_topic("grows", 3)
        create_group(wire, "g-grows")
        create_group(wire, "reader")
        wire.ask(
            SET_MODE,
            {},
            json.dumps({"topic": "grows", "consumerGroup": "popping", "mode": "POP", "popShareQueueNum": 2}).encode(),
        )
    story = Story(single.namesrv, "grows")
    story.send(30)
    story.send(10, 6_000)
    with Wire(single.address) as wire:
        set_offset(wire, "reader", "grows", 0, 3)
    single.stop()
    logs = {path: (path.stat().st_ino, beginning(path)) for path in (single.store / "commitlog").iterdir()}
    assert logs

    many = start(shards=2)
    assert alike(many, "grows"), "the new shard has the topics that were there"
    assert many.group(1, "g-grows") == many.group(0, "g-grows") is not None
    assert modes(many, 1)["grows"] == modes(many, 0)["grows"] != {}
    assert many.brokers_of("grows") == {"broker-a-0": 6, "broker-a-1": 6}
    for path, (inode, data) in logs.items():
        assert path.stat().st_ino == inode, "moved"
        assert beginning(path).startswith(data), "changed"
    with Wire(many.addresses[0]) as wire:
        assert wire.offset_of("reader", "grows", 0) == 3
    story.namesrv = many.namesrv
    story.send(30)
    assert story.brokers >= {"broker-a-0", "broker-a-1"}
    story.read()
    assert many.stop() == 0
    assert command("check", many.store).stdout.count("nothing is wrong") == 2

    more = start(shards=3)
    assert more.topic(2, "grows") == more.topic(0, "grows") is not None
    story.namesrv = more.namesrv
    story.send(30)
    assert "broker-a-2" in story.brokers


def beginning(path: Path) -> bytes:
    """What is written of a segment."""
    with path.open("rb") as file:
        return file.read(1 << 18).rstrip(b"\0")


def modes(broker: ShardedBroker, index: int) -> dict[str, Any]:
    with Wire(broker.addresses[index]) as wire:
        found: dict[str, Any] = json.loads(wire.ask(MODES, {})[1])["messageRequestModeMap"]
        return found


def test_a_shard_that_was_away_gets_what_was_made_meanwhile(start: Callable[..., ShardedBroker]) -> None:
    broker = start()
    with Wire(broker.addresses[0]) as wire:
        wire.create_topic("away")
        os.kill(broker.child.process.pid, signal.SIGSTOP)  # nobody starts shard 1 again for now
        broker.kill_shard(1)
        pid = broker.pid(1)
        wait_until(lambda: not alive(pid), SECONDS, "shard 1 is dead")
        opaque = wire.send(200, {}, json.dumps({"groupName": "made-away", "consumeEnable": False}).encode())
        os.kill(broker.child.process.pid, signal.SIGCONT)
        header, _ = wire.receive()
        assert (header["opaque"], header["code"]) == (opaque, 0)
        # No remark on a machine that lets shard 1 come back before it is asked: then it has confirmed it.
        assert "broker-a-1 gets it at its start" in header.get("remark", "broker-a-1 gets it at its start")
        wire.ask(
            SET_MODE,
            {},
            json.dumps({"topic": "away", "consumerGroup": "made-away", "mode": "POP", "popShareQueueNum": 1}).encode(),
        )
        fields = {"topic": "away", "readQueueNums": 2, "writeQueueNums": 2, "perm": 4, "order": "true"}
        wire.ask(17, {**fields, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "defaultTopic": "TBW102"})
    wait_until(lambda: reachable(broker, 1), SECONDS, "shard 1 is back")
    assert alike(broker, "away")
    group = broker.group(1, "made-away")
    assert group == broker.group(0, "made-away") is not None
    assert group["consumeEnable"] is False
    assert modes(broker, 1)["away"]["made-away"]["mode"] == "POP"


def test_a_drain_outlives_kills_of_the_shard_and_of_the_supervisor(start: Callable[..., ShardedBroker]) -> None:
    broker = start()
    with Wire(broker.addresses[0]) as wire:
        wire.create_topic("drained", 2)
    story = Story(broker.namesrv, "drained")
    story.send(20)
    story.send(20, 12_000)
    assert story.brokers == {"broker-a-0", "broker-a-1"}
    assert command("drain", "broker-a-1", "--store", broker.store, "--no-wait").returncode == 0
    wait_until(lambda: broker.brokers_of("drained").get("broker-a-1") == 4, SECONDS, "written no more")

    starts = broker.serving_count(1)
    broker.kill_shard(1)
    broker.wait_served(1, starts + 1)
    assert broker.setting(1, "brokerPermission") == "4", "read-only from its first moment"

    pids = [broker.pid(index) for index in (0, 1)]
    broker.kill_shard(1)
    broker.child.process.kill()
    broker.child.process.wait()
    wait_until(lambda: not any(map(alive, pids)), SECONDS, "all have ended")
    broker.start()
    assert broker.setting(1, "brokerPermission") == "4"
    wait_until(lambda: broker.brokers_of("drained").get("broker-a-1") == 4, SECONDS, "written no more")
    assert broker.brokers_of("drained")["broker-a-0"] == 6
    story.brokers.clear()
    story.send(10)
    assert story.brokers == {"broker-a-0"}
    story.read()
    done = command("drain", "1", "--store", broker.store)
    assert done.returncode == 0, done.stderr
    assert "shard 1 is out" in done.stdout
    assert set(broker.brokers_of("drained")) == {"broker-a-0"}

    # It comes back, with what was made while it was out.
    with Wire(broker.addresses[0]) as wire:
        wire.create_topic("made-while-out", 5)
    assert broker.stop() == 0
    broker.start()
    assert alike(broker, "made-while-out")
    assert broker.brokers_of("drained") == {"broker-a-0": 6, "broker-a-1": 6}


def test_certificate_and_rules_are_those_of_all(start: Callable[..., ShardedBroker], tmp_path: Path) -> None:
    made = make_certificate(tmp_path / "tls")
    (tmp_path / "store" / "config").mkdir(parents=True)
    rules = tmp_path / "store" / "config" / "plain_acl.yml"
    rules.write_text(RULES)
    rules.chmod(0o600)
    tls = {"tls.server.certPath": str(made.certificate), "tls.server.keyPath": str(made.key)}
    broker = start({**tls, "aclEnable": "true"})
    context = ssl.create_default_context(cafile=str(made.certificate))
    for address in (*broker.addresses, broker.namesrv):
        with Wire(address, SECONDS) as wire, context.wrap_socket(wire.socket, server_hostname="127.0.0.1") as wrapped:
            assert wrapped.version() in ("TLSv1.2", "TLSv1.3"), address
    access = {"tls": str(made.certificate), "access_key": "administrator", "secret_key": "twelve-characters"}
    story = Story(broker.namesrv, "secret", **access)
    story.send(20)
    story.send(10, 500)
    assert story.brokers == {"broker-a-0", "broker-a-1"}
    story.read()
    stranger = Story(broker.namesrv, "secret", **{**access, "secret_key": "wrong-characters"})
    with pytest.raises(Exception, match=r"(?i)signature|permission|secret"):
        stranger.send(1)


def test_a_transaction_stays_with_its_shard_and_is_decided_after_a_kill(start: Callable[..., ShardedBroker]) -> None:
    broker = start(TRANSACTIONS)
    with Wire(broker.addresses[0]) as wire:
        wire.create_topic("deciding", 1)
    halves = {index: half(broker.addresses[index], index) for index in (0, 1)}
    with Wire(broker.addresses[0]) as wire:
        wire.ask(37, halves[0])
        assert wire.max_offset("deciding", 0) == 1, "decided at the shard that has it"
    with Wire(broker.addresses[1]) as wire:
        assert wire.max_offset("deciding", 0) == 0
    starts = broker.serving_count(1)
    broker.kill_shard(1)
    broker.wait_served(1, starts + 1)
    with Wire(broker.addresses[1], SECONDS) as wire:
        heartbeat(wire)
        while True:  # the shard asks what has become of it
            header, _ = wire.receive()
            if not header["flag"] & 1 and header["code"] == 39:
                break
        ext = header["extFields"]
        fields = {name: ext[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")}
        wire.send(
            37, {**fields, "producerGroup": "deciders", "fromTransactionCheck": "true", "commitOrRollback": 8}, flag=2
        )
    with Wire(broker.addresses[1]) as wire:
        wait_until(lambda: wire.max_offset("deciding", 0) == 1, SECONDS, "committed at shard 1")
    found = asyncio.run(bodies(broker.namesrv, "deciding", 2))
    assert found == {b"half 0": "broker-a-0", b"half 1": "broker-a-1"}


def heartbeat(wire: Wire) -> None:
    wire.send(34, {}, json.dumps({"clientID": "tx", "producerDataSet": [{"groupName": "deciders"}]}).encode())


def half(address: str, n: int) -> dict[str, Any]:
    """Send a half message; the fields of its commit."""
    text = f"TRAN_MSG\x01true\x02PGROUP\x01deciders\x02UNIQ_KEY\x01K{n}\x02"
    fields = {"a": "deciders", "b": "deciding", "c": "TBW102", "d": 4, "e": 0, "f": 4, "g": int(time.time() * 1000)}
    with Wire(address) as wire:
        ext, _ = wire.ask(310, {**fields, "h": 0, "i": text, "j": 0, "k": "false", "m": "false"}, b"half %d" % n)
    return {
        "producerGroup": "deciders",
        "tranStateTableOffset": ext["queueOffset"],
        "commitLogOffset": int(ext["msgId"][16:], 16),
        "commitOrRollback": 8,
        "msgId": ext["transactionId"],
        "transactionId": ext["transactionId"],
    }


async def bodies(namesrv: str, topic: str, count: int) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    async with Consumer(namesrv, f"g-{topic}", topic, start_from="first") as consumer, asyncio.timeout(SECONDS):
        async for message in consumer:
            found[message.body] = message.queue.broker_name
            await message.ack()
            if len(found) == count:
                break
    return found


def test_popping_goes_over_all_shards_and_a_kill_brings_what_was_not_acknowledged(
    start: Callable[..., ShardedBroker],
) -> None:
    broker = start()
    mode = {"topic": "popped", "consumerGroup": "poppers", "mode": "POP", "popShareQueueNum": 0}
    with Wire(broker.addresses[1]) as wire:
        wire.create_topic("popped", 1)
        create_group(wire, "poppers")
        wire.ask(SET_MODE, {}, json.dumps(mode).encode())
    assert [modes(broker, index)["popped"]["poppers"]["mode"] for index in (0, 1)] == ["POP", "POP"]
    story = Story(broker.namesrv, "popped")
    began = time.monotonic()
    story.send(40)
    assert story.brokers == {"broker-a-0", "broker-a-1"}
    # Forty sends, as a measure of the machine: what is acknowledged too late comes again.
    invisible_ms = max(4_000, int(10_000 * (time.monotonic() - began)))
    first = {index: pop(broker, index, invisible_ms) for index in (0, 1)}
    assert {body for found in first.values() for body in found} == set(story.sent)
    acked = {index: next(iter(first[index])) for index in (0, 1)}
    for index in (0, 1):  # a handle is good at its own shard alone
        handle, offset = first[index][acked[index]]
        fields = ack_fields(handle, 0, consumerGroup="poppers", topic="popped", offset=offset)
        with Wire(broker.addresses[1 - index]) as other, suppress(WireError):
            other.ask(ACK, fields)
        with Wire(broker.addresses[index]) as wire:
            wire.ask(ACK, fields)
    starts = broker.serving_count(1)
    broker.kill_shard(1)
    broker.wait_served(1, starts + 1)
    again: dict[int, set[bytes]] = {0: set(), 1: set()}
    wanted = {index: first[index].keys() - {acked[index]} for index in (0, 1)}

    def back() -> bool:
        for index in (0, 1):
            again[index].update(pop(broker, index, 60_000))
        return all(again[index] >= wanted[index] for index in (0, 1))

    wait_until(back, SECONDS, "what was not acknowledged comes again, at both")
    assert again == wanted, "what was acknowledged does not"


def pop(broker: ShardedBroker, index: int, invisible_ms: int) -> dict[bytes, tuple[str, int]]:
    """Pop what there is at a shard: the handle and the offset of each body."""
    fields = pop_fields(
        consumerGroup="poppers", topic="popped", queueId=0, invisibleTime=invisible_ms, bornTime=int(time.time() * 1000)
    )
    with Wire(broker.addresses[index], SECONDS) as wire:
        try:
            ext, data = wire.ask(POP, fields)
        except WireError:
            return {}
    start = ext["startOffsetInfo"].split(";")[0].split(" ")[2]
    parts = (start, ext["popTime"], ext["invisibleTime"], ext["reviveQid"], 0, broker.name(index), 0)
    found, at = {}, 0
    while at < len(data):
        stored = decode_record(data, at)
        handle = " ".join(map(str, (*parts, stored.queue_offset)))
        found[bytes(stored.message().body)] = handle, stored.queue_offset
        at += int.from_bytes(data[at : at + 4], "big")
    return found


def test_figures_of_all_shards_at_once(start: Callable[..., ShardedBroker]) -> None:
    port = free_ports_around(0, 10)
    broker = start({"metricsExporterType": "PROM", "metricsPromExporterPort": str(port)})
    with Wire(broker.addresses[0]) as wire:
        wire.create_topic("counted")
    story = Story(broker.namesrv, "counted")
    story.send(10)
    story.send(8, 600_000)
    done = command("status", "--namesrv", broker.namesrv)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["broker", "broker-a-0", "broker-a-1", "together"]
    assert rows[-1][3] == "8", "pending"
    figures = json.loads(command("status", "--namesrv", broker.namesrv, "--json").stdout)
    assert sum(int(one["timewheelPending"]) for one in figures.values()) == 8
    assert min(int(one["timewheelPending"]) for one in figures.values()) > 0

    listed = json.loads((broker.store / "shards" / "prometheus.json").read_bytes())
    assert [one["labels"]["broker"] for one in listed] == ["broker-a-0", "broker-a-1"]
    assert [one["targets"] for one in listed] == [[f"127.0.0.1:{port}"], [f"127.0.0.1:{port + 10}"]]
    for one in listed:
        with urllib.request.urlopen(f"http://{one['targets'][0]}/metrics", timeout=SECONDS) as answer:
            assert f'node_id="{one["labels"]["broker"]}"' in answer.read().decode()

    os.kill(broker.pid(1), signal.SIGSTOP)
    done = command("status", "--namesrv", broker.namesrv)
    assert done.returncode == 1
    assert done.stdout.count("broker-a-0") == 1, "those that answer are shown"
    assert "these brokers gave no figures: broker-a-1" in done.stderr
    os.kill(broker.pid(1), signal.SIGCONT)
