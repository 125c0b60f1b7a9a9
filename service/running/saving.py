"""Saves an owner's progress: a change about once a second, and a snapshot now and then."""

from __future__ import annotations

import asyncio

from service.core.progress import ProgressRecord
from service.core.shard import Shard
from service.core.states import OwnerState
from service.link.clock import mono_ms
from service.link.cluster import Fate
from service.link.log import Teller
from service.link.progress_log import ProgressLog
from timewheel_client.values.errors import ClientError

__all__ = ["Saver"]

EVERY_MS = 1000
CHAIN_MAX = 48
"""Records of a chain; fewer than `service.link.progress_log.LOOK_BACK`, so that one look finds the whole of it."""
SNAPSHOT_EVERY_MS = 3_600_000
"""Longest time between two snapshots, so that retention never deletes the last one."""
PAUSE_MS = 500
NOTHING_PAUSE_MS = 100


class Saver:
    """Saves the progress of one takeover. For one event loop."""

    def __init__(self, shard: Shard, log: ProgressLog, tell: Teller) -> None:
        self._shard = shard
        self._log = log
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self._records = 0  # of the present chain
        self._saved_ms = self._snapshot_ms = 0

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks under way."""
        return [self._task] if self._task is not None else []

    async def save_in_time(self) -> None:
        """Write a record if one is due and there is something new."""
        now_ms = mono_ms()
        if self._shard.state is not OwnerState.OWNING or now_ms - self._saved_ms < EVERY_MS:
            return
        if self._records >= CHAIN_MAX or now_ms - self._snapshot_ms >= SNAPSHOT_EVERY_MS:
            self._shard.renew_chain()
        elif not self._shard.is_changed:
            return
        await self.save_now()

    async def save_now(self) -> None:
        """Write a progress record now, or wait for the one that is under way."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._save())
        await asyncio.shield(self._task)

    async def _save(self) -> None:
        record = self._shard.record()
        if record is None:
            await asyncio.sleep(NOTHING_PAUSE_MS / 1000)
            return
        await self._write(record)
        self._saved_ms = mono_ms()
        self._records += 1
        if record.is_snapshot:
            self._records, self._snapshot_ms = 1, self._saved_ms
        if self._shard.state is not OwnerState.FENCED:
            self._shard.saved()

    async def _write(self, record: ProgressRecord) -> None:
        """Append a record, again until it is certainly stored."""
        while True:
            try:
                sent = await self._log.append(record)
                if sent.fate is Fate.STORED:
                    return
                text = str(sent)
            except ClientError as error:
                text = str(error)
            self._tell.warning(f"a progress record was not written: {text}; trying again")
            await asyncio.sleep(PAUSE_MS / 1000)
