"""The desk and everything that belongs to it: opened, tidied and closed together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from broker_plugin.pending.cancelled import CancelledRows
from broker_plugin.pending.changes import Changes
from broker_plugin.pending.commands import Commands
from broker_plugin.pending.delay_keys import KEYS_MAX, DelayKeys
from broker_plugin.pending.desk import PendingDesk
from broker_plugin.pending.keyed_turn import KeyedTurn
from broker_plugin.pending.limits import LimitedTally, PendingLimits
from store.disk.errors import StoreError
from store.put.plugin_api import LookupTarget
from store.spill.state.message_rows import MessageRows

if TYPE_CHECKING:
    from broker_plugin.figures.balance import TopicBalance
    from broker_plugin.figures.tally import Accepted, Delivered
    from broker_plugin.pending.parts import Delivery, Overdue
    from broker_plugin.rules.stats import Stats
    from store.disk.files import Files
    from store.disk.flusher import Flusher
    from store.put.plugin_api import DeliveryTarget
    from store.spill.spill_store import SpillStore

__all__ = ["DeskRooms"]

VERDICT_HOURS = 24
"""Hours after its due time for which a cancelled message is remembered."""
KEY_FILES_MAX = 1 << 20
Number = Callable[[str, int], int]
"""Reads a number of the configuration: key and default."""


class DeskRooms:
    """The desk, its commands, limits and delay keys, and the files beside the messages.

    ``past`` has the rows of cancelled messages, ``key_rows`` those of messages with a delay key.
    """

    def __init__(self, files: Files, directory: Path, store_id: bytes, spill: SpillStore, number: Number) -> None:
        self._spill = spill
        self._keep_ms = number("timewheelVerdictHours", VERDICT_HOURS) * 3_600_000
        self._keys_max = number("timewheelDelayKeysMax", KEYS_MAX)
        limits = PendingLimits(
            spill,
            count_max=number("timewheelPendingMax", 0),
            bytes_max=number("timewheelPendingBytesMax", 0),
            topic_max=number("timewheelTopicPendingMax", 0),
            topic_bytes_max=number("timewheelTopicPendingBytesMax", 0),
        )
        self.limits = limits if limits.is_set else None
        self._was_used = files.is_dir(directory / "keys")
        self.past = MessageRows(files, directory / "cancelled", store_id, self._keep_ms)
        self.cancelled = CancelledRows(self.past)
        self.key_rows = MessageRows(files, directory / "keys", store_id, self._keep_ms, files_max=KEY_FILES_MAX)
        # A start looks for lacking rows in the journal only: records leave it when their rows are durable.
        spill.before_switch(self.key_rows.sync)
        self.pause: Callable[[], object] = lambda: None
        """Called between two holds of the delivery lock."""
        self._find_delivered: Callable[[int], bytes | None] = lambda _: None

    def furnish(
        self, sweeper: Delivery, recovery: Overdue, flusher: Flusher, target: DeliveryTarget, stats: Stats
    ) -> None:
        """Make the desk; reads rows, and messages if topics are limited. Raises StoreError."""
        spill, lock = self._spill, self._spill.lock
        if isinstance(target, LookupTarget):
            self._find_delivered = target.find_delivered
        changes = Changes(spill, sweeper, recovery, flusher, target, lock, stats, self.cancelled)
        self.keys = DelayKeys(spill, sweeper, self.key_rows, keys_max=self._keys_max, keep_ms=self._keep_ms)
        # Without the folder no message ever had a key, so the journal need not be read for keys.
        if self._was_used:
            self.keys.load(self.key_rows.each(), spill.records_unsaved())
        changes.keys = self.keys
        with suppress(StoreError), lock:  # if it fails, a cancel that a kill has cut short is reported as made
            self.past.void_tail(self._is_cancelled)
        self._changes = changes
        if self.limits is not None:
            with lock:
                self.limits.load()
            changes.watchers.append(self.limits)
            changes.counts_topics = self.limits.by_topic
        self.keyed = KeyedTurn(spill, sweeper, self.keys)
        changes.settle_owed = self.keyed.put_backs.settle
        if self.limits is not None:
            self.keyed.withdrawn = self.limits.withdrawn
            self.keyed.grew = self.limits.grew if self.limits.by_topic_bytes else None
        self.commands = Commands(spill, sweeper, recovery, lock, changes)
        self.desk = PendingDesk(spill, sweeper, recovery, lock, stats, changes, self.keys)

    def _is_cancelled(self, delay_id: int) -> bool:
        """True if the row of a cancel is true: its message is not pending and was not delivered."""
        found = self._spill.find(delay_id)
        return (found is None or found.done) and self._find_delivered(delay_id) is None

    def count_topics(self, balance: TopicBalance, accepted: Accepted) -> None:
        """Let the desk show counts by topic; the counters are told of cancels and of late refusals."""
        limits_withdrawn = self.keyed.withdrawn

        def withdrawn(delay_id: int) -> None:
            limits_withdrawn(delay_id)
            accepted.withdrawn(delay_id)

        self.keyed.withdrawn = withdrawn
        self._changes.watchers.append(balance)
        self._changes.counts_topics = True
        self.keyed.moved = balance.moved
        self.desk.balance = balance

    def told(self, tally: Delivered) -> Delivered:
        """A counter of deliveries that also tells the limits; ``tally`` itself without limits."""
        return tally if self.limits is None else LimitedTally(self.limits, tally)

    def tidy(self, now_ms: int) -> None:
        """Remove rows and keys that are old, and write what could not be written before."""
        with suppress(StoreError):
            self.keyed.put_backs.settle()
        with suppress(StoreError):
            while self._settle():
                self.pause()
        self.past.expire(now_ms)
        self.key_rows.expire(now_ms, self.keys.is_pending)
        self.keys.evict(now_ms)

    def _settle(self) -> bool:
        with self._spill.lock:
            return self.cancelled.settle()

    def sync(self) -> None:
        """Make the rows of keys durable, then the journal: a message must not be durable without its key's row."""
        self.key_rows.sync()
        self._spill.journal.sync()

    def close(self) -> None:
        """Sync, and give the files back."""
        with suppress(StoreError):
            while self.cancelled.settle():
                # Rows that the disk still refuses are lost with this process: those messages will be unknown.
                pass
        try:
            self.past.close()
        finally:
            self.key_rows.close()
