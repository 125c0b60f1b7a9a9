"""Searches for deliveries in doubt: waits until brokers are calm, then reads their target queues."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Protocol

from service.core.progress import TargetQueue, queue_text
from service.link.clock import mono_ms
from service.link.log import Teller
from service.link.read_ahead import ReadAhead
from service.running.entries import delay_id_of
from service.running.unsure import WritingOwner
from timewheel_client.values.errors import ClientError

__all__ = ["Searcher", "Searching"]

PAUSE_MS = 500
SAVED_EVERY = 4096
"""Records of a target queue after which the progress says that it was searched up to there."""


class Searching(WritingOwner, Protocol):
    """The owner that a `Searcher` works for."""

    name: str

    tell: Teller

    def try_again(self) -> None:
        """Note that deliveries that failed may work now."""
        ...


class Searcher:
    """Searches for the deliveries of one takeover. For one event loop."""

    def __init__(self, owner: Searching) -> None:
        self._owner = owner
        self._scanning: dict[TargetQueue, asyncio.Task[None]] = {}

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks under way."""
        return list(self._scanning.values())

    async def step(self) -> None:
        """Probe brokers, and read their queues once they are calm. A broker that is away delays no other."""
        scans = self._owner.shard.scans()
        probed = set(self._owner.calm.probes())
        for queue, begin in scans.items():
            task = self._scanning.get(queue)
            if task is not None and not task.done():
                continue
            if queue[1] in probed:
                probed.discard(queue[1])
                self._scanning[queue] = asyncio.ensure_future(self._probe(queue))
            elif self._owner.calm.is_calm(queue[1], mono_ms()):
                # A delivery that gets no answer from now on may be stored behind the place up to which the task reads.
                lost = [offset for offset, at in self._owner.shard.lost.items() if at == queue]
                self._scanning[queue] = asyncio.ensure_future(self._scan(queue, begin, lost))
        if self._owner.queue[1] in probed:
            await self._probe(self._owner.queue)
        for queue in [queue for queue, task in self._scanning.items() if task.done() and queue not in scans]:
            del self._scanning[queue]

    async def _probe(self, queue: TargetQueue) -> None:
        asked_ms = mono_ms()
        try:
            await self._owner.cluster.probe(queue[0], queue[1])
            self._owner.calm.answered(queue[1], asked_ms, mono_ms())
        except ClientError:
            await asyncio.sleep(PAUSE_MS / 1000)

    async def _scan(self, queue: TargetQueue, begin: int, lost: list[int]) -> None:
        """Read a target queue to its end, to find which entries of the shard it contains, also of those ``lost``."""
        found: list[int] = []
        count = 0
        try:
            end = await self._owner.cluster.end(queue)
            offset = max(begin, await self._owner.cluster.begin(queue))
            with closing(ReadAhead(self._owner.cluster, queue)) as ahead:
                while offset < end:
                    pull = await ahead.pull(offset, wait=False)
                    texts = (message.properties for message in pull.messages)
                    ids = (delay_id_of(text, self._owner.name, self._owner.queue[0]) for text in texts)
                    # A true delivery is of an entry that was read here; others have come from another cluster.
                    found += [entry for entry in ids if 0 <= entry < self._owner.shard.read_to]
                    if pull.next_offset <= offset:
                        raise ClientError(f"it ends at {end}, but a pull at {offset} finds nothing")
                    offset = pull.next_offset
                    count += len(pull.messages)
                    if count >= SAVED_EVERY:  # should this owner end, the next one reads on from here
                        self._owner.shard.searched(queue, found, offset)
                        found, count = [], 0
        except ClientError as error:
            self._owner.tell.warning(f"searching {queue_text(queue)} for deliveries failed: {error}", many=True)
            await asyncio.sleep(PAUSE_MS / 1000)
            return
        self._owner.shard.scanned(queue, found, lost)
        self._owner.try_again()
