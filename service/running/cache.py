"""One shard's waiting entries on this machine's disk: the delay plug-in's spill store, wheel, sweeper and recovery.

This is a cache of what is in the cluster. It begins empty at each takeover, is filled from the entry queue, and is
deleted when the shard is given up. So no send waits for a sync of it. Only its checkpoint is written from time to time,
so that files whose entries are all delivered can be removed.

The delay id of a message in the cache is the offset of its entry.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from broker_plugin.failures import UNREADABLE
from broker_plugin.plugin import DelayPlugin
from remoting.messages.message import MessageError, RecordError, record_fields
from service.running.entries import Waiting, moved_record
from service.running.takeover import TakeoverError
from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.delay_id import delay_id
from store.disk.errors import StoreError, StoreFullError
from store.disk.files import Files
from store.disk.flusher import Flusher
from store.put.plugin_api import DeliveryTarget, PluginContext, PutStatus
from store.spill.rows.model import Found

__all__ = ["UNREAD_MS", "CachedEntry", "LostEntries", "ShardCache", "throw_away"]

SEGMENT_BYTES = 16 << 20
CHECKPOINT_MS = 1000
BACKOFF_MAX_MS = 5000
"""Longest pause between two tries of what failed: of each topic that is away, the first few messages."""
TRY_AGAIN_MS = 500
TAKEN_BYTES = 4 << 20
"""Bytes of entries that are in memory at a time while they are rolled: a hundred may have 400 MiB."""
DROPPED_AT_ONCE = 256
"""Entries that are dropped in one hold of the delivery lock."""
_NO_HOST = bytes(8)
_NEVER_MS = 1 << 40


UNREAD_MS = 60_000
"""An entry that the cache cannot read for so long is lost there, and has to be read from the queue again."""
QUIET_MS = 10_000
"""The cache is readable again when no read has failed for this long: longer than the pause between two tries."""


@dataclass(frozen=True, slots=True)
class CachedEntry:
    """An entry that waits in the cache, with its due time (epoch ms)."""

    offset: int
    due_ms: int


class LostEntries:
    """Entries that the cache could not read when they were looked at last. For one event loop."""

    def __init__(self) -> None:
        self._since_ms: dict[int, int] = {}

    def was_read(self, offset: int) -> None:
        """Note that an entry was read."""
        self._since_ms.pop(offset, None)

    def failed(self, offset: int, error: StoreError, mono_ms: int) -> None:
        """Note that an entry could not be read. Raises TakeoverError if that is so for `UNREAD_MS`.

        A full disk loses nothing.
        """
        if isinstance(error, StoreFullError):
            return
        if mono_ms - self._since_ms.setdefault(offset, mono_ms) >= UNREAD_MS:
            raise TakeoverError(f"entry {offset} cannot be read back: {error}. The queue is read into a new cache")


def throw_away(directory: Path) -> None:
    """Remove the caches that earlier takeovers left."""
    shutil.rmtree(directory, ignore_errors=True)


class ShardCache:
    """One shard's pending messages.

    Call `add` and `try_again` in the event loop. Do not call `take`, `drop` and `close` there: they wait for the
    delivery lock, and its holder may be waiting for the event loop to deliver.

    Args:
        directory: A new directory for this takeover.
        target: Gets the due messages; called from the threads of the plug-in.
        now_ms: The wall clock, epoch ms.
        warn: Gets a text for each thing that goes wrong.

    Raises StoreError; then nothing is left of the directory.
    """

    def __init__(
        self, directory: Path, target: DeliveryTarget, now_ms: Callable[[], int], warn: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._warn = warn
        self._started = False
        self._trying: asyncio.TimerHandle | None = None
        self._tried_s = 0.0
        self._unread_since_ms: int | None = None
        self._unread_ms = 0  # when it was seen last that something cannot be read
        self._troubles = 0
        self._closed = False
        try:
            self._open(target, now_ms, warn)
        except BaseException:
            throw_away(directory)
            raise

    def _open(self, target: DeliveryTarget, now_ms: Callable[[], int], warn: Callable[[str], None]) -> None:
        directory, files = self._directory, Files()
        files.makedirs(directory)
        store_id = os.urandom(16)
        checkpoint = DeliveryCheckpoint.open(files, directory / "checkpoint", store_id)
        self._flusher = Flusher(now_ms, warn, pause_ms=50)
        self.plugin = DelayPlugin()
        self.plugin.open(
            PluginContext(
                target=target,
                files=files,
                directory=directory / "delay",
                store_id=store_id,
                store_host=_NO_HOST,
                config={"timewheelSegmentBytes": str(SEGMENT_BYTES), "flushIntervalCommitLog": str(_NEVER_MS)},
                flusher=self._flusher,
                checkpoint=checkpoint,
                warn=warn,
            )
        )
        self.plugin.failures.backoff_max_ms = BACKOFF_MAX_MS
        self.plugin.deliverer.block_min = _NEVER_MS  # a remote target gets records one by one

        def step(now_ms: int) -> int:
            checkpoint.step(now_ms, lambda: 0, lambda: None)
            return checkpoint.next_step_ms() or now_ms + CHECKPOINT_MS

        self._flusher.add_chore("checkpoint of the cache", step)

    def start(self) -> None:
        """Start delivering."""
        if not self._started:
            self._started = True
            self._flusher.start()
            self.plugin.start()

    def need_whole(self, mono_ms: int) -> None:
        """Raise StoreError if the cache has lost entries. Call it again and again, at least every half a minute.

        Somebody has removed the directory, and nothing can be added or read back any more; a thread has ended; or for
        `UNREAD_MS` entries that are due could not be read, or not be looked for.
        """
        if self._flusher.failure is not None:
            raise StoreError(f"a thread of the cache has ended: {self._flusher.failure!r}")
        if not (self._directory / "delay").is_dir():
            raise StoreError(f"the cache is gone: {self._directory} was removed. The queue is read into a new one")
        if not self._is_failing():
            # One look is not enough: while an entry is being tried again, it is in no list of failures.
            if mono_ms - self._unread_ms >= QUIET_MS:
                self._unread_since_ms = None
            return
        self._unread_ms = mono_ms
        if self._unread_since_ms is None:
            self._unread_since_ms = mono_ms
        if mono_ms - self._unread_since_ms >= UNREAD_MS:
            raise StoreError(f"the cache in {self._directory} cannot be read. The queue is read into a new one")

    def _is_failing(self) -> bool:
        """True if entries that are due cannot be read, could not be looked for since the last call, or count as done
        because nobody knows what became of them.
        """
        plugin = self.plugin
        before, self._troubles = self._troubles, plugin.stats.troubles + plugin.delivery_errors()
        failed = any(group.reason == UNREADABLE for group in plugin.failures.groups)
        return failed or self._troubles != before or plugin.spill.hides or plugin.deliverer.uncertain > 0

    def add(self, waiting: Sequence[Waiting]) -> None:
        """Add entries that were read. Raises StoreError; then none of them was added."""
        if not waiting:
            return
        epoch = self.plugin.spill.epoch
        entries = [(one.due_ms, delay_id(epoch, one.offset), one.record) for one in waiting]
        block = self.plugin.spill.append(entries)
        self.plugin.sweeper.offer(block, min(one.due_ms for one in waiting))

    def fill(self, waiting: Sequence[Waiting], mono_ms: int) -> bool:
        """Add entries that were read; False if the disk refuses them now. Raises StoreError as `need_whole` does."""
        self.need_whole(mono_ms)
        try:
            self.add(waiting)
        except StoreError as error:
            self._warn(f"the cache takes no entries, so reading waits: {error}")
            return False
        return True

    def take(self, offsets: Sequence[int]) -> list[bytes | None]:
        """The finished records of entries; None for an entry that does not wait. Raises StoreError.

        One at least. They end with the one that makes them `TAKEN_BYTES` or more.
        """
        epoch = self.plugin.spill.epoch
        found: list[bytes | None] = []
        size = 0
        for offset in offsets:
            found.append(self.plugin.view(delay_id(epoch, offset)))
            size += len(found[-1] or b"")
            if size >= TAKEN_BYTES:
                break
        return found

    def drop(self, offsets: Sequence[int]) -> None:
        """Remove entries that are done but were not delivered from here. Raises StoreError.

        They may be very many: after a bulk cancel, and at a takeover. So deliveries get the lock in between.
        """
        plugin = self.plugin
        for begin in range(0, len(offsets), DROPPED_AT_ONCE):
            with plugin.lock:
                plugin.sweeper.publish_all()
                for offset in offsets[begin : begin + DROPPED_AT_ONCE]:
                    self._not_failed(plugin.spill.find(delay_id(plugin.spill.epoch, offset)))
                    plugin.spill.cancel(delay_id(plugin.spill.epoch, offset))

    def look(self, offsets: Sequence[int]) -> list[CachedEntry | None]:
        """Those of the given entries that wait."""
        plugin = self.plugin
        rows: list[CachedEntry | None] = []
        with plugin.lock:
            plugin.sweeper.publish_all()
            for offset in offsets:
                found = plugin.spill.find(delay_id(plugin.spill.epoch, offset)) if offset >= 0 else None
                rows.append(None if found is None or found.done else CachedEntry(offset, found.due_ms))
        return rows

    def move(self, offset: int, due_ms: int) -> None:
        """Change the due time of an entry, if it waits. Raises StoreError; then the entry is as before."""
        plugin = self.plugin
        with plugin.lock:
            plugin.sweeper.publish_all()
            found = plugin.spill.find(delay_id(plugin.spill.epoch, offset))
            if found is None or found.done or found.due_ms == due_ms:
                return
            try:
                record = moved_record(plugin.spill.read((found.ref,))[0], due_ms)
            except (RecordError, MessageError) as error:
                raise StoreError(f"entry {offset} cannot be moved: {error}") from error
            self._not_failed(found)
            block = plugin.spill.move(found, record, due_ms)
            plugin.sweeper.offer(block, due_ms)

    def _not_failed(self, found: Found | None) -> None:
        """Count an entry no longer as failed. Under the delivery lock, before it is changed."""
        plugin = self.plugin
        if plugin.recovery.failed_count and found is not None and not found.done:
            with suppress(StoreError, RecordError):
                topic = record_fields(plugin.spill.read((found.ref,))[0])[0]
                plugin.recovery.removed(topic, found.due_ms)

    def try_again(self) -> None:
        """Retry failed deliveries now, whatever the reason; at most once in `TRY_AGAIN_MS`."""
        if self._trying is None and not self._closed:
            loop = asyncio.get_running_loop()
            delay_s = max(0.0, self._tried_s + TRY_AGAIN_MS / 1000 - loop.time())
            self._trying = loop.call_later(delay_s, self._try_all)

    def _try_all(self) -> None:
        self._trying = None
        self._tried_s = asyncio.get_running_loop().time()
        if not self._closed:
            self.plugin.recovery.try_all()

    @property
    def pending_count(self) -> int:
        """Number of entries that wait."""
        return self.plugin.pending_count()

    @property
    def refused_count(self) -> int:
        """Number of messages that brokers refuse to the service's account, as of the last tries. Any thread."""
        return sum(group.count for group in self.plugin.failures.groups if group.reason == PutStatus.NO_PERMISSION.name)

    def close(self) -> None:
        """End the threads and delete the cache. Waits for a delivery that is under way."""
        self._closed = True
        try:
            self.plugin.stop()
            self._flusher.stop()
            self.plugin.close()
        finally:
            throw_away(self._directory)
