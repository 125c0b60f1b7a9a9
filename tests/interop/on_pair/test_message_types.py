"""Ways to send, batches, time limits of trying again, dead letters: stock clients on our broker and on Apache's.

Both brokers serve the same story at the same time; what each client and each CommitLog shows is compared.
"""

from __future__ import annotations

import base64
import re
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from remoting.json_dialect import loads
from tests.interop.on_pair.conftest import Pair
from tests.interop.workload import NUMBER
from tests.support.apache import ApacheBroker
from tests.support.clients import Client, command_of
from tests.support.commitlog import Record, read_commit_log
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.parallel import run_all
from tests.support.wait import let_pass
from tests.support.wire import Wire
from tests.support.wire_admin import create_group, set_offset

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]

CLIENTS = ["java-5.5.0", "go-v2", "node-ali-ons"]
WHOLE = ["java-5.5.0", "go-v2"]
"""Clients that send asynchronously, one-way and in batches, and that consume in order."""

AGAIN = {"java-5.5.0": 1, "go-v2": 1, "node-ali-ons": 0}
"""How often a dead letter was tried again. Node's client forgets what the application says to a second try."""

COUNT = 60
BATCH = 10
LETTERS = 6
ORDERED = 6
RETRY_MS = 10_000  # level 3, the first that a consumer gets
Event = dict[str, Any]


def _names(client: str, what: str) -> tuple[str, str]:
    plain = client.split("-")[0]
    return f"{what}-{plain}", f"{what}-group-{plain}"


def _message(n: int, topic: str, **more: Any) -> Event:
    body = base64.b64encode(f"body {n}".encode()).decode()
    return {"n": n, "topic": topic, "body": body, "tag": "A", "properties": {NUMBER: str(n)}, **more}


@dataclass
class Seen:
    """What one client saw on one broker."""

    sent: dict[str, list[Event]] = field(default_factory=dict)
    failed: dict[str, list[Event]] = field(default_factory=dict)
    received: dict[str, list[Event]] = field(default_factory=dict)
    due_ms: dict[int, int] = field(default_factory=dict)
    producer_s: float = 0.0
    """How long a producer took to start and send, as a measure of the machine."""


class Side:
    """One broker, with what all clients saw on it and what its CommitLog holds."""

    def __init__(self, broker: OurBroker | ApacheBroker, folder: Path, due_field: str) -> None:
        self.broker = broker
        self.folder = folder
        self.due_field = due_field
        self.seen = {name: Seen() for name in CLIENTS}
        self.records: dict[str, list[Record]] = {}

    def run(self) -> None:
        """Let all clients do everything."""
        self._prepare()
        namesrv = self.broker.namesrv
        running = [Client(name, namesrv, self.folder / name) for name in CLIENTS]
        reader = Client("java-5.5.0", namesrv, self.folder / "reader")
        try:
            run_all([partial(self._drive, client, reader) for client in running])
        finally:
            for client in (*running, reader):
                client.stop()
        for record in read_commit_log(self.broker.store):
            self.records.setdefault(record.topic, []).append(record)

    def _prepare(self) -> None:
        topics = []
        with Wire(self.broker.address) as wire:
            for client in CLIENTS:
                for what in ("ways", "letters", "order"):
                    topic, group = _names(client, what)
                    wire.create_topic(topic)
                    wire.create_topic(f"%RETRY%{group}", 1)
                    topics += [topic, f"%RETRY%{group}"]
                    create_group(wire, group)
                    for queue_id in range(4):
                        set_offset(wire, group, topic, queue_id, 0)
            wire.create_topic("refused")
            topics.append("refused")
        with Wire(self.broker.namesrv) as wire:
            for topic in topics:
                wire.wait_route(topic, 30)

    def _drive(self, client: Client, reader: Client) -> None:
        seen = self.seen[client.name]
        self._start_letters(client, seen)
        self._ways(client, seen)
        if client.name in WHOLE:
            self._order(client, seen)
        self._end_letters(client, reader, seen)

    # -------------------------------------------------------------------------------------------- ways to send

    def _ways(self, client: Client, seen: Seen) -> None:
        topic, group = _names(client.name, "ways")
        client.consume("ways", group, {topic: "*"})
        count = 0
        for mode in ("sync", "async", "oneway") if client.name in WHOLE else ("sync",):
            messages = [_message(n, topic) for n in range(count, count + COUNT)]
            count += COUNT
            client.command("produce", id=mode, group=f"{group}-p", messages=messages, mode=mode, threads=2)
            seen.sent[mode] = client.wait(mode, "sent", 60, COUNT)
        if client.name in WHOLE:
            messages = [_message(n, topic) for n in range(count, count + BATCH)]
            count += BATCH
            client.command("produce", id="batch", group=f"{group}-p", messages=messages, batch=BATCH, threads=1)
            seen.sent["batch"] = client.wait("batch", "sent", 60, BATCH)
        client.wait_received("ways", count, 60)
        let_pass(1)  # a second callback or a second copy would come now
        seen.sent = {mode: client.events(mode, "sent") for mode in seen.sent}
        seen.received["ways"] = client.received("ways")

    # -------------------------------------------------------------------------------------------- in order, with times

    def _order(self, client: Client, seen: Seen) -> None:
        """The later the number the earlier it is due; whole seconds apart, as Apache's timer is no finer."""
        topic, group = _names(client.name, "order")
        client.consume("order", group, {topic: "*"}, order="yes")
        base_ms = (int(time.time()) + max(4, int(4 * seen.producer_s))) * 1000
        messages = []
        for n in range(ORDERED):
            timed = {} if n % 3 == 0 else {self.due_field: base_ms + (ORDERED - n) * 2_000}
            messages.append(_message(n, topic, queue=n % 2, **timed))
        client.produce("order-p", f"{group}-p", messages, threads=1)
        seen.received["order"] = client.wait_received("order", ORDERED, 60)

    # -------------------------------------------------------------------------------------------- dead letters

    def _start_letters(self, client: Client, seen: Seen) -> None:
        topic, group = _names(client.name, "letters")
        client.consume("letters", group, {topic: "*"}, retries={topic: "99"}, max_reconsume=AGAIN[client.name])
        base_ms = int(time.time() * 1000) + 3_000
        messages = []
        for n in range(LETTERS):
            timed = n % 2 == 1
            if timed:
                seen.due_ms[n] = base_ms
            messages.append(_message(n, topic, **({self.due_field: base_ms} if timed else {})))
        began = time.monotonic()
        seen.sent["letters"] = client.produce("letters-p", f"{group}-p", messages)
        seen.producer_s = time.monotonic() - began

    def _end_letters(self, client: Client, reader: Client, seen: Seen) -> None:
        _, group = _names(client.name, "letters")
        client.wait_received("letters", (1 + AGAIN[client.name]) * LETTERS, 60)
        dead = f"%DLQ%{group}"
        with Wire(self.broker.namesrv) as wire:
            wire.wait_route(dead, 40)
        reader.consume(dead, f"{group}-reader", {dead: "*"})
        seen.received["dead"] = reader.wait_received(dead, LETTERS, 60)
        seen.received["letters"] = client.received("letters")


@pytest.fixture(scope="module")
def sides(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Side, Side]:
    """The whole story on our broker and on Apache's."""
    folder = tmp_path_factory.mktemp("types")
    for name in CLIENTS:
        need(partial(command_of, name, folder))
    ours = Side(pair.ours, folder / "ours", "start_deliver_ms")
    apache = Side(pair.apache, folder / "apache", "timer_deliver_ms")
    run_all([ours.run, apache.run])
    return ours, apache


def _numbers(events: list[Event]) -> list[int]:
    return [int(event["properties"][NUMBER]) for event in events]


@pytest.mark.parametrize("client", CLIENTS)
def test_each_way_to_send_is_answered_once_and_delivered_once(sides: tuple[Side, Side], client: str) -> None:
    for side in sides:
        seen = side.seen[client]
        modes = ["sync", "async", "oneway"] if client in WHOLE else ["sync"]
        for i, mode in enumerate(modes):
            assert sorted(event["n"] for event in seen.sent[mode]) == list(range(i * COUNT, (i + 1) * COUNT))
            wanted = "ONEWAY" if mode == "oneway" else "SEND_OK"
            assert {event["status"] for event in seen.sent[mode]} == {wanted}
        total = len(modes) * COUNT + (BATCH if client in WHOLE else 0)
        assert sorted(_numbers(seen.received["ways"])) == list(range(total))


@pytest.mark.parametrize(
    ("client", "mode"), [(client, "sync") for client in CLIENTS] + [(client, "async") for client in WHOLE]
)
def test_results_name_the_place_of_the_message(sides: tuple[Side, Side], client: str, mode: str) -> None:
    """A callback's result is that of a synchronous send: queue, offset, ids, and nothing more or less than Apache's."""
    shapes = []
    for side in sides:
        seen = side.seen[client]
        found = {int(event["properties"][NUMBER]): event for event in seen.received["ways"]}
        shapes.append({frozenset(k for k, v in event.items() if v is not None) for event in seen.sent[mode]})
        for event in seen.sent[mode]:
            message = found[event["n"]]
            assert event["queue_id"] == message["queue_id"]
            if event.get("queue_offset") is not None:
                assert event["queue_offset"] == message["queue_offset"]
            assert event["msg_id"] in (message["properties"]["UNIQ_KEY"], message["offset_msg_id"])
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("client", WHOLE)
def test_batch_is_one_append_with_an_offset_each(sides: tuple[Side, Side], client: str) -> None:
    topic, _ = _names(client, "ways")
    for side in sides:
        first = min(event["n"] for event in side.seen[client].sent["batch"])
        records = [record for record in side.records[topic] if int(record.properties[NUMBER]) >= first]
        assert [int(record.properties[NUMBER]) for record in records] == list(range(first, first + BATCH))
        assert len({(record.queue_id, record.store_ms) for record in records}) == 1
        for one, next_one in pairwise(records):
            assert next_one.offset == one.offset + one.size
            assert next_one.queue_offset == one.queue_offset + 1


@pytest.mark.parametrize("client", WHOLE)
def test_orderly_consumer_sees_timed_messages_when_they_are_due(sides: tuple[Side, Side], client: str) -> None:
    """A queue's order is that of delivery: what is not delayed first, then by due time; the same on both."""
    orders = []
    for side in sides:
        events = side.seen[client].received["order"]
        orders.append([_numbers([event for event in events if event["queue_id"] == queue]) for queue in (0, 1)])
    assert orders[0] == [[0, 4, 2], [3, 5, 1]]
    assert orders[0] == orders[1]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_last_try_goes_to_the_dead_letters(sides: tuple[Side, Side], client: str) -> None:
    """As many tries as the client allows, the second after its level's delay, then a dead letter to be read."""
    topic, group = _names(client, "letters")
    for side in sides:
        seen = side.seen[client]
        for n in range(LETTERS):
            tries = [event for event in seen.received["letters"] if event["properties"][NUMBER] == str(n)]
            assert [event["reconsume_times"] for event in tries] == list(range(1 + AGAIN[client]))
            assert tries[0]["received_ms"] >= seen.due_ms.get(n, 0)
            for one, next_one in pairwise(tries):
                assert RETRY_MS <= next_one["received_ms"] - one["received_ms"] < 3 * RETRY_MS
        dead = seen.received["dead"]
        assert sorted(_numbers(dead)) == list(range(LETTERS))
        assert {event["topic"] for event in dead} == {f"%DLQ%{group}"}
        assert {event["properties"]["RETRY_TOPIC"] for event in dead} == {topic}


# What our copies carry or leave out on purpose is told in compare.DIFFERENCES.
MAY_DIFFER = re.compile("__TW_.*|__STARTDELIVERTIME|TIMER_.*|UNIQ_KEY|REAL_.*")


def _form(side: Side, record: Record) -> dict[str, Any]:
    ids = {found.offset_msg_id: topic for topic, records in side.records.items() for found in records}

    def value(name: str, text: str) -> str:
        if name == "ORIGIN_MESSAGE_ID":
            return f"<a message of {ids[text]}>" if text in ids else f"<an id of {len(text)}>"
        return text

    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "body": record.body_sha256,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_offset,
        "properties": {k: value(k, v) for k, v in record.properties.items() if v and not MAY_DIFFER.fullmatch(k)},
    }


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_copies_are_as_on_apache(sides: tuple[Side, Side], client: str, prefix: str) -> None:
    """Also of timed messages: field by field what Apache's broker stores."""
    topic = prefix + _names(client, "letters")[1]
    found: list[dict[int, dict[str, Any]]] = []
    for side in sides:
        records = side.records.get(topic, [])
        assert len(records) == (LETTERS if prefix == "%DLQ%" or AGAIN[client] else 0)
        found.append({int(record.properties[NUMBER]): _form(side, record) for record in records})
    assert found[0] == found[1]


def _pipelined(address: str) -> tuple[list[int], list[int], dict[int, int]]:
    """Send requests of two kinds without waiting: the opaques as sent, as answered, and the codes."""
    with Wire(address, 20) as wire:
        wire.create_topic("pipelined", 1)
        sent = []
        for n in range(200):
            fields: dict[str, Any] = {"topic": "pipelined", "queueId": 0}
            if n % 4:
                usual = {"a": "p", "c": "TBW102", "d": 4, "f": 0, "g": 1, "h": 0, "i": f"{NUMBER}\x01{n}\x02"}
                fields = {**usual, "b": "pipelined", "e": 0, "j": 0, "k": "false", "m": "false"}
            sent.append(wire.send(310 if n % 4 else 30, fields, b"body" if n % 4 else b""))
        answers = [wire.receive()[0] for _ in sent]
    return sent, [answer["opaque"] for answer in answers], {answer["opaque"]: answer["code"] for answer in answers}


def test_replies_on_one_connection(sides: tuple[Side, Side]) -> None:
    """Each request is answered once, with its own number; ours answers the sends in the order in which they came."""
    for side in sides:
        sent, answered, codes = _pipelined(side.broker.address)
        assert sorted(answered) == sent
        assert set(codes.values()) == {0}
        if side is sides[0]:
            sends = [opaque for n, opaque in enumerate(sent) if n % 4]
            assert [opaque for opaque in answered if opaque in set(sends)] == sends


def test_the_groups_own_maximum(sides: tuple[Side, Side]) -> None:
    """Where a client does not say how often to try, its group does: here never, so at once a dead letter."""
    found = []
    for side in sides:
        with Wire(side.broker.address) as wire:
            wire.create_topic("maximum", 1)
            for group, most in (("never", 0), ("often", 5)):
                wire.ask(200, {}, b'{"groupName":"%s","retryMaxTimes":%d}' % (group.encode(), most))
            usual = {"a": "p", "c": "TBW102", "d": 4, "f": 0, "g": 1, "h": 0, "i": "", "j": 0, "k": "false"}
            sent, _ = wire.ask(310, {**usual, "b": "maximum", "e": 0, "m": "false"}, b"body")
            offset = int(sent["msgId"][16:], 16)
            for group in ("never", "often"):
                fields = {
                    "offset": offset,
                    "group": group,
                    "delayLevel": 3,
                    "originMsgId": "x",
                    "originTopic": "maximum",
                }
                wire.ask(36, {**fields, "unitMode": "false"})
            topics = loads(wire.ask(21, {})[1])["topicConfigTable"]
        dead = "%DLQ%never", "%DLQ%often", "%RETRY%often"
        found.append({name: (name in topics, topics.get(name, {}).get("perm")) for name in dead})
    assert found[0] == found[1]
    assert (found[0]["%DLQ%never"][0], found[0]["%DLQ%often"][0]) == (True, False)


def test_the_brokers_refusal_reaches_the_application(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """The same error from a synchronous send and in a callback; properties are what no client measures."""
    errors = []
    message = _message(0, "refused")
    message["properties"]["long"] = "x" * 33_000
    for side in sides:
        client = Client("java-5.5.0", side.broker.namesrv, tmp_path / side.due_field)
        try:
            for mode in ("sync", "async"):
                client.command("produce", id=mode, group="refused-p", messages=[message], mode=mode)
            texts = [client.wait(mode, "send_failed", 60)[0]["error"] for mode in ("sync", "async")]
            errors.append([re.findall(r"CODE: \d+", text)[-1:] for text in texts])
        finally:
            client.stop()
    assert errors[0] == errors[1] == [["CODE: 13"], ["CODE: 13"]]
