"""Rolls entries before the cluster deletes them: stores them again at the end of the same queue, with the old offset.

There is always exactly one valid copy. The first copy counts until the owner of the shard has *read* the roll in the
queue. From then on only the roll counts. Between the decision and that moment the entry is not delivered. So entries
that are due about now are not rolled; they are delivered from where they are. Those that the owner has not been able to
deliver for long are rolled: their topic is away, or the account of the service may not write it, and nobody knows for
how long.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import islice
from typing import Protocol

from remoting.messages.message import RecordError, StoredMessage, decode_record
from remoting.messages.properties import get_property
from service.core.lines import Line
from service.link.clock import mono_ms, wall_ms
from service.link.cluster import Fate, fate_of
from service.link.log import Teller
from service.running.cache import LostEntries, ShardCache
from service.running.entries import REASON, REJECTED_TOPIC, due_of, rolled_of
from service.running.instance_counts import InstanceCounts
from service.running.unsure import Unsure, WritingOwner
from store.disk.errors import StoreError
from timewheel_client.values.errors import ClientError

__all__ = ["Roller", "RollingOwner"]

AT_ONCE = 64
"""Rolls under way at a time: they compete with what senders send."""
CHUNKS_MAX = 64
"""Most chunks of one step."""


class RollingOwner(WritingOwner, Protocol):
    """The owner that a `Roller` works for."""

    cache: ShardCache | None
    tally: InstanceCounts
    tell: Teller


class Roller:
    """Rolls the entries of one shard. For one event loop.

    Args:
        owner: The shard's owner.
        after_ms: Entries stored longer ago than this are rolled.
        margin_ms: Entries due within this time are not rolled, nor those that the owner may deliver for less than this.
    """

    def __init__(self, owner: RollingOwner, after_ms: int, margin_ms: int) -> None:
        self._owner = owner
        self.after_ms = after_ms
        self._margin_ms = margin_ms
        self._unsure = Unsure(owner)
        self._since_ms = 0
        """Time at which the owner began to deliver, epoch ms."""
        self._begin = 0
        """Queue offset at which the next step begins: behind the entries of this step, which may all have to stay."""
        self._lost = LostEntries()

    async def step(self) -> int:
        """Roll some entries; returns how many.

        Raises ClientError if it failed and is worth another try, TakeoverError if the cache has lost an entry for good.
        """
        self._since_ms = self._since_ms or wall_ms()
        await self._unsure.settle()
        owner, shard = self._owner, self._owner.shard
        until = await owner.cluster.end_before(owner.queue, wall_ms() - self.after_ms)
        pending = shard.done.pending(self._begin, min(until, shard.read_to))
        rolled = self._begin = 0
        for _ in range(CHUNKS_MAX):
            chosen = list(islice(pending, AT_ONCE))
            rolled += await self._roll_some(chosen)
            if len(chosen) < AT_ONCE:
                break
        else:
            self._begin = chosen[-1] + 1
        owner.tally.rolled += rolled
        return rolled

    async def _roll_some(self, offsets: list[int]) -> int:
        """Roll these entries, as many at a time as fit into memory; returns how many were rolled."""
        cache, rolled = self._owner.cache, 0
        while cache is not None and offsets:
            try:
                records = await asyncio.to_thread(cache.take, offsets)
            except StoreError:
                records = [await self._take(cache, offsets[0])]
            taken = zip(offsets, records, strict=False)
            found = [(offset, record) for offset, record in taken if record is not None]
            offsets = offsets[len(records) :]
            rolled += await self._roll_found(cache, found)
        return rolled

    async def _roll_found(self, cache: ShardCache, found: list[tuple[int, bytes]]) -> int:
        for offset, _ in found:
            self._lost.was_read(offset)
        held = [roll for offset, record in found if (roll := self._hold(offset, record)) is not None]
        if not held:
            return 0
        # From here on nobody moves them. Their times may have been changed while the records were read.
        try:
            now = await asyncio.to_thread(cache.look, [line.about for line, _ in held])
        except StoreError as error:
            for line, _ in held:
                self._owner.shard.roll_failed(line.about)
            raise ClientError(f"an entry cannot be looked up: {error}") from None
        rolls = []
        for (line, delivery), entry in zip(held, now, strict=True):
            if entry is not None and entry.due_ms == due_of(delivery.properties):
                rolls.append(self._roll(line, delivery))
            else:
                self._owner.shard.roll_failed(line.about)
        return sum(await asyncio.gather(*rolls))

    async def _take(self, cache: ShardCache, offset: int) -> bytes | None:
        try:
            return (await asyncio.to_thread(cache.take, [offset]))[0]
        except StoreError as error:
            self._lost.failed(offset, error, mono_ms())
            return None

    def _hold(self, offset: int, record: bytes) -> tuple[Line, StoredMessage] | None:
        """Decide to roll an entry, which is held from then on; None if it stays where it is."""
        try:
            delivery = decode_record(record)
        except RecordError:
            return None
        # A roll would lose why an entry was rejected. But a sender may want one in that topic.
        is_rejected = delivery.topic == REJECTED_TOPIC and get_property(delivery.properties, REASON) is not None
        if is_rejected or self._is_due_now(due_of(delivery.properties)):
            return None
        line = self._owner.shard.roll(offset, due_of(delivery.properties))
        return None if line is None else (line, delivery)

    async def _roll(self, line: Line, delivery: StoredMessage) -> bool:
        owner, shard, offset = self._owner, self._owner.shard, line.about
        try:
            connection = await owner.cluster.connection(owner.queue[0], owner.queue[1])
            text = rolled_of(delivery, offset, line.generation, line.entry)
            reply = owner.cluster.send_now(connection, owner.queue, text, delivery.body, like=delivery)
        except ClientError:
            shard.roll_failed(offset)
            raise
        sent = await fate_of(reply)
        if sent.fate is Fate.REFUSED:
            shard.roll_failed(offset)
            owner.tell.warning(f"entries cannot be stored again, so the cluster will delete them: {sent}")
        elif sent.fate is Fate.UNKNOWN:
            self._unsure.add(partial(shard.roll_failed, offset))
        return sent.fate is Fate.STORED

    def _is_due_now(self, due_ms: int) -> bool:
        now_ms = wall_ms()
        return due_ms <= now_ms + self._margin_ms and max(due_ms, self._since_ms) >= now_ms - self._margin_ms
