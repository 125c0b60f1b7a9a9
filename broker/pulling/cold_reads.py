"""Reads of CommitLog bytes that are not in memory: by aiofiles, so that a disk never blocks the network loop.

The newest bytes are in memory (`MessageStore.read_recent`); bytes in the page cache are read at once
(`MessageStore.read_hot`); all others are read here, a few reads at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import aiofiles

from store.disk.errors import StoreError
from store.log.recent import adjacent_runs
from store.matching import pull_matching
from store.message_store import PullResult, PullStatus

if TYPE_CHECKING:
    from remoting.filters.sql_filter import PropertyFilter
    from store.message_store import MessageStore

__all__ = ["ColdReads"]


class ColdReads:
    """Reads stored bytes without blocking.

    Args:
        store: Says where the bytes are.
        parallel: How many reads may wait for the disk at the same time.
    """

    def __init__(self, store: MessageStore, parallel: int = 4) -> None:
        self._store = store
        self._slots = asyncio.Semaphore(parallel)
        self.count = 0
        """Reads since the start."""

    def hot(self, positions: Sequence[tuple[int, int]]) -> bytes | None:
        """Read consecutive records if all of them are in memory; None otherwise."""
        runs = adjacent_runs(positions)
        recent = self._store.read_recent(runs)
        return self._store.gather_hot(runs) if recent is None else recent

    async def read(self, positions: Sequence[tuple[int, int]]) -> bytes | None:
        """Read consecutive records; None if some of them are gone. Raises StoreError if the disk cannot read."""
        parts = []
        for offset, size in adjacent_runs(positions):
            part = self._store.read_hot(offset, size)
            if part is None:
                part = await self._read(offset, size)
            if len(part) != size:
                return None
            parts.append(part)
        return b"".join(parts)

    async def matching(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, wants: PropertyFilter
    ) -> PullResult:
        """Look for messages by their properties, in a thread of its own."""
        self.count += 1
        store = self._store
        async with self._slots:
            result = await asyncio.to_thread(
                pull_matching, store, topic, queue_id, offset, max_count, max_bytes, wants, store.read
            )
        if result is None:  # deleted while it was read
            first, last = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            return PullResult(PullStatus.MESSAGE_WAS_REMOVING, max(offset, first), first, last, [])
        return result

    async def _read(self, offset: int, size: int) -> bytes:
        self.count += 1
        data = b""
        try:
            path, at = self._store.segment_of(offset)
            async with self._slots, aiofiles.open(path, "rb", buffering=0) as file:
                await file.seek(at)
                while len(data) < size and (part := await file.read(size - len(data))):
                    data += part
        except FileNotFoundError:  # deleted meanwhile, or somebody has taken away the name of a file that is open
            return await asyncio.to_thread(self._store.read, offset, size)
        except (KeyError, ValueError):
            return b""  # the segment was deleted meanwhile
        except OSError as cause:
            text = f"cannot read {size} bytes at {at} of {path}: {cause.strerror or cause} (errno {cause.errno})"
            raise StoreError(text) from cause
        return data
