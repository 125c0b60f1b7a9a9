"""Two services in one cluster, each with its own entry topic: neither takes deliveries of the other for its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from remoting.messages.message import Message, StoredMessage, decode_record, encode_record
from service.core.calm import Calm
from service.core.done_entries import DoneEntries
from service.core.lines import LineKind
from service.core.progress import ProgressRecord, TargetQueue
from service.link.cluster import ClusterLink, Pull
from service.link.log import Teller
from service.link.progress_log import ProgressLog
from service.running.entries import line_of, own_record, waiting_of
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from service.running.searching import Searcher, Searching
from tests.service.test_deleted_entries import Queues

SHARD = "broker-a/0"
TARGET = ("orders", "broker-a", 0)


def delivered(entry_topic: str, offset: int, topic: str = "orders", body: bytes = b"body") -> StoredMessage:
    """The delivery of an entry of the shard of one of the services."""
    text = f"TW_TOPIC\x01{topic}\x02TW_DELIVER_MS\x015\x02TW_ENTRY_TOPIC\x01FORGED\x02"
    stored = decode_record(encode_record(Message(entry_topic, 0, 0, 0, 1, bytes(8), 0, 0, body, text), bytes(8), 1))
    stored.queue_offset = offset
    return decode_record(waiting_of(stored, SHARD).record)


class Searched:
    """An owner in doubt, its cluster with one target queue, and its shard, in one."""

    name = SHARD
    read_to = 1 << 40

    def __init__(self, entry_topic: str, messages: Sequence[StoredMessage]) -> None:
        self.queue: TargetQueue = (entry_topic, "broker-a", 0)
        self.messages = list(messages)
        self.shard = self.cluster = cast(Any, self)
        self.calm = Calm()
        self.lost: dict[int, TargetQueue] = {}
        self.found: list[int] = []
        self.tell = Teller(logging.getLogger(__name__), SHARD)

    def scans(self) -> dict[TargetQueue, int]:
        return {TARGET: 0}

    async def end(self, _: TargetQueue) -> int:
        return len(self.messages)

    async def begin(self, _: TargetQueue) -> int:
        return 0

    async def pull(self, _: TargetQueue, offset: int, *, wait: bool) -> Pull:
        assert not wait
        return Pull(self.messages[offset:], len(self.messages))

    def scanned(self, queue: TargetQueue, found: list[int], lost: list[int]) -> None:
        assert queue == TARGET and not lost
        self.found = found

    def try_again(self) -> None:
        pass


@pytest.mark.parametrize(("entry_topic", "own"), [("TIMEWHEEL", [5]), ("OTHER", [7]), ("THIRD", [])])
def test_a_search_finds_the_own_deliveries_only(entry_topic: str, own: list[int]) -> None:
    """An entry that another service has delivered under the same broker, queue and offset still waits here."""

    async def work() -> list[int]:
        owner = Searched(entry_topic, [delivered("TIMEWHEEL", 5), delivered("OTHER", 7)])
        searcher = Searcher(cast(Searching, owner))
        await searcher.step()
        await asyncio.gather(*searcher.tasks())
        return owner.found

    assert asyncio.run(work()) == own


def test_each_has_a_progress_topic_of_its_own(tmp_path: Path) -> None:
    """Records of progress name a shard by broker and queue, which shards of both services have in common."""

    async def work() -> set[str]:
        owners = [
            Owner(ClusterLink("127.0.0.1:1", topic), (topic, "broker-a", 0), "me", tmp_path, 1000, InstanceCounts())
            for topic in ("TIMEWHEEL", "OTHER")
        ]
        return {owner._progress._queue[0] for owner in owners}

    assert asyncio.run(work()) == {"TIMEWHEEL_PROGRESS", "OTHER_PROGRESS"}


def test_what_one_delivers_into_the_progress_topic_of_the_other_is_not_believed() -> None:
    """A sender to one service, whose account may write no progress, called entries of the other one done."""

    async def work() -> tuple[int, list[int]]:
        queues = Queues()
        where = ("OTHER_PROGRESS", "broker-a", 0)
        own = ProgressRecord(SHARD, 3, 0, 4, -1, {}, done=DoneEntries(4), takeovers={3: 3})
        await queues.send(where, f"KEYS\x01{SHARD}\x02", own.encode())
        forged = ProgressRecord(SHARD, 9, 0, 99, -1, {}, done=DoneEntries(99), takeovers={9: 9})
        await queues.send(where, *told(delivered("TIMEWHEEL", 5, where[0], forged.encode())))
        queues.topic = "OTHER"
        for _ in range(100):
            await queues.send(("OTHER", "broker-a", 0), "TW_TOPIC\x01orders\x02TW_DELAY_MS\x011\x02", b"body")
        picture = await ProgressLog(cast(ClusterLink, queues), SHARD, where).read()
        return picture.low, [picture.generation]

    assert asyncio.run(work()) == (4, [3])


@pytest.mark.parametrize("body", [own_record(LineKind.TAKEOVER, TW_OWNER="somebody")[1], b"takeover"])
def test_what_one_delivers_into_the_entry_topic_of_the_other_is_an_entry(body: bytes) -> None:
    """Without its TW_TOPIC it looked like a record of the service that has lost its properties."""
    message = delivered("TIMEWHEEL", 5, "OTHER", body)
    line = line_of(message)
    assert (line.kind, line.damaged) == (LineKind.ENTRY, False)
    assert waiting_of(message, SHARD).rejected


def told(message: StoredMessage) -> tuple[str, bytes]:
    """Properties and body of a message."""
    return message.properties, message.body
