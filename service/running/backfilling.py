"""Reads the part of an entry queue that its new owner did not read before it delivers: `service.core.backfill`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from service.core.lines import LineKind
from service.core.states import OwnerState
from service.link.clock import mono_ms, wall_ms
from service.link.cluster import Pull
from service.link.log import Teller
from service.link.read_ahead import ReadAhead
from service.running.asking import QUESTION_BYTES_MAX
from service.running.entries import Waiting
from service.running.instance_counts import InstanceCounts
from service.running.obeying import Clerk
from service.running.reading import reading_of
from service.running.unsure import WritingOwner
from timewheel_client.values.errors import ClientError

__all__ = ["Backfiller", "BackfillingOwner"]

PAUSE_MS = 500


class BackfillingOwner(WritingOwner, Protocol):
    """The owner that a `Backfiller` works for."""

    name: str
    tell: Teller
    tally: InstanceCounts
    clerk: Clerk

    @property
    def may_backfill(self) -> bool:
        """True if everything that has to be read first was read."""
        ...

    def fill(self, waiting: Sequence[Waiting]) -> bool:
        """Move what was read into the cache; False if the disk refuses it now. Raises StoreError if it is lost."""
        ...


class Backfiller:
    """The backfill of one takeover, or of one follower. For one event loop."""

    def __init__(self, owner: BackfillingOwner) -> None:
        self._owner = owner
        self._backlog: list[Waiting] = []
        self._questions: dict[int, bytes] = {}  # bodies of questions that were found, by their offsets

    @property
    def is_filled(self) -> bool:
        """True if every entry that was read is in the cache."""
        return not self._backlog

    async def run(self) -> None:
        """Read until nothing is missing; then only wait. May be cancelled and run again. Raises StoreError."""
        owner, shard = self._owner, self._owner.shard
        begin, begin_ms, count = shard.backfill.at, mono_ms(), 0
        with closing(ReadAhead(owner.cluster, owner.queue)) as ahead:
            while not (self.is_filled and shard.backfill.is_whole) and shard.state is not OwnerState.FENCED:
                if not owner.may_backfill or not owner.fill(self._backlog):
                    await asyncio.sleep(PAUSE_MS / 1000)
                    continue
                count += len(self._backlog)
                self._backlog = []
                await asyncio.sleep(0)  # others run while all that was read is in the cache
                if not shard.backfill.is_whole:
                    await self._read(ahead)
        if count and shard.backfill.is_whole:
            owner.tell.info(
                f"the rest of its queue, from {begin}, was read within {mono_ms() - begin_ms} ms: {count} entries"
            )
        await asyncio.Event().wait()

    async def _read(self, ahead: ReadAhead) -> None:
        owner, at = self._owner, self._owner.shard.backfill.at
        try:
            pull = await ahead.pull(at, wait=False)
            if pull.next_offset <= at:
                raise ClientError(f"a pull at {at} finds nothing")
        except ClientError as error:
            owner.tell.warning(f"reading the rest of the queue failed: {error}")
            owner.cluster.core.refresh_soon(owner.queue[0])
            await asyncio.sleep(PAUSE_MS / 1000)
            return
        self._take(pull, at)

    def _take(self, pull: Pull, at: int) -> None:
        owner, shard = self._owner, self._owner.shard
        found = reading_of(pull, at, owner.queue[0], wall_ms())
        for text in found.faults():
            owner.tell.warning(text, many=text != found.missing)
        waiting = shard.backfilled(found.lines, pull.next_offset)
        for line in found.lines:
            if line.kind is LineKind.ASK and line.offset < shard.backfill.until and line.offset not in shard.done:
                self._questions[line.offset] = found.messages[line.offset].body[: QUESTION_BYTES_MAX + 1]
        if shard.backfill.is_whole:  # at once: they may be answered from now on
            owner.clerk.heard(self._questions)
            self._questions = {}
        for line in waiting:
            owner.tally.damaged += line.offset in found.why
            self._backlog.append(found.waiting(line.offset, owner.name))
