"""Run the whole workload with all stock clients at once against one broker, and gather what three witnesses say:

the sending client (`sent`), the receiving client (`received`), and the broker's CommitLog read from outside (`disk`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.interop.workload import (
    KINDS,
    LEVEL_MS,
    NUMBER,
    SENDS,
    Kind,
    Outgoing,
    expected_tags,
    make_messages,
    topic_of,
)
from tests.support.clients import Client
from tests.support.commitlog import Record, read_commit_log
from tests.support.parallel import run_all
from tests.support.wait import let_pass
from tests.support.wire import Wire
from tests.support.wire_admin import create_group, set_offset

__all__ = ["DUE_FIELDS", "Part", "run_workload"]

SPREAD_MS = 40_000
LEAD_MS = 20_000
"""From the command to send until the first due time, so that a message is on the broker before it is due."""

GRACE_SECONDS = 25
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

DUE_FIELDS = {"start": "start_deliver_ms", "deliver": "timer_deliver_ms", "delay": "timer_due_ms"}


@dataclass
class Part:
    """One client's share of one kind: what was wanted, and what the three witnesses say of it."""

    client: str
    kind: Kind
    messages: list[Outgoing]
    base_ms: int = 0
    failures: list[str] = field(default_factory=list)
    sent: dict[int, dict[str, Any]] = field(default_factory=dict)
    received: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    disk: dict[int, list[Record]] = field(default_factory=lambda: defaultdict(list))
    accepted: dict[int, Record] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """Its topic."""
        return topic_of(self.client, self.kind.name)

    @property
    def wanted(self) -> list[Outgoing]:
        """The messages that its consumer asked for."""
        tags = expected_tags(self.kind)
        return [one for one in self.messages if tags is None or one.tag in tags]

    def due_ms(self, message: Outgoing) -> int:
        """When it may be delivered: 0 for what is not delayed; a level counts from its store time."""
        if self.kind.due == "none":
            return 0
        if self.kind.due == "level":
            return self.accepted[message.n].store_ms + LEVEL_MS[message.level]
        return self.base_ms + message.due_in_ms


def _prepare(broker: str, namesrv: str, clients: list[str]) -> None:
    """Make topics and groups known: Go's consumer and ali-ons do not start without a route."""
    names = [(topic_of(client, kind), 4) for client in clients for kind in SENDS[client]]
    names += [(f"%RETRY%it-{client}", 1) for client in map(_plain, clients)]
    with Wire(broker) as wire:
        for topic, queues in names:
            wire.create_topic(topic, queues)
        for client in clients:
            create_group(wire, f"it-{_plain(client)}")
        if "ons-1.8.8.8" in clients:
            # A new group of this client starts at the end of a queue, so it may miss what comes while it starts.
            for kind in SENDS["ons-1.8.8.8"]:
                for queue_id in range(4):
                    set_offset(wire, "it-ons-1888", topic_of("ons-1.8.8.8", kind), queue_id, 0)
    with Wire(namesrv) as wire:
        for topic, _ in names:
            wire.wait_route(topic, 30)


def _plain(client: str) -> str:
    return client.replace(".", "")


def _drive(client: Client, parts: list[Part], due_field_of: Callable[[Part], str | None]) -> None:
    """Let one client consume and send all its kinds, and wait until nothing more is to come."""
    plain = _plain(client.name)
    client.consume("all", f"it-{plain}", {part.topic: part.kind.tags for part in parts})
    senders = []
    for part in parts:
        part.base_ms = int(time.time() * 1000) + LEAD_MS
        due_field = due_field_of(part)
        lines = [one.line(part.topic, due_field, part.base_ms + one.due_in_ms) for one in part.messages]
        options: dict[str, Any] = {"mode": part.kind.mode, "threads": 2}
        if part.kind.batch:
            options["batch"] = part.kind.batch
        client.command("produce", id=part.kind.name, group=f"p-{plain}-{part.kind.name}", messages=lines, **options)
        senders.append(part)
    for part in senders:
        client.wait(part.kind.name, "produced", 120)
        part.failures = [event["error"] for event in client.events(part.kind.name, "send_failed")]
        part.sent = {event["n"]: event for event in client.events(part.kind.name, "sent")}
    count = sum(len(part.wanted) for part in parts if not part.failures)
    last_due = max(part.base_ms + SPREAD_MS for part in parts) / 1000
    try:
        client.wait_received("all", count, last_due - time.time() + GRACE_SECONDS)
    except AssertionError as error:  # the tests say better which ones are missing
        print(f"not everything came: {error}")


def _gather(clients: list[Client], parts: list[Part], store: Path) -> None:
    by_topic = {part.topic: part for part in parts}
    for client in clients:
        for event in client.received("all"):
            part = by_topic[event["topic"]]
            part.received[int(event["properties"][NUMBER])].append(event)
    for record in read_commit_log(store):
        if NUMBER not in record.properties:
            continue
        n = int(record.properties[NUMBER])
        if record.topic in by_topic:
            by_topic[record.topic].disk[n].append(record)
        elif record.topic == SCHEDULE_TOPIC:
            by_topic[record.properties["REAL_TOPIC"]].accepted[n] = record


def run_workload(
    broker: str,
    namesrv: str,
    store: Path,
    folder: Path,
    due_field_of: Callable[[Part], str | None],
    clients: list[str],
    make_client: Callable[[str, str, Path], Client] = Client,
) -> dict[tuple[str, str], Part]:
    """Send and receive everything; returns the parts by (client, kind)."""
    _prepare(broker, namesrv, clients)
    parts = {
        (client, kind): Part(client, KINDS[kind], make_messages(client, KINDS[kind], SPREAD_MS))
        for client in clients
        for kind in SENDS[client]
    }
    running = [make_client(client, namesrv, folder / client) for client in clients]
    try:
        own = {client: [part for part in parts.values() if part.client == client] for client in clients}
        run_all(partial(_drive, client, own[client.name], due_field_of) for client in running)
        let_pass(2)  # a second copy would come about now
        _gather(running, list(parts.values()), store)
    finally:
        for client in running:
            client.stop()
    return parts
