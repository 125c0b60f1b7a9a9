"""Retention: messages expire by age or when the disk is full, but never while they are still needed.

==========================================  =====================================================================
hour is one of ``deleteWhen``, or the disk  segments older than ``fileReservedTime`` go (age of the last write)
above ``diskMaxUsedSpaceRatio``
above ``diskSpaceCleanForciblyRatio``       segments go whatever their age, if ``cleanFileForciblyEnable``; a warning
above ``diskSpaceWarningLevelRatio``        besides, no send is accepted (`Retention.disk_status`)
less free than pending messages will take   the same
==========================================  =====================================================================

A segment stays while a *pin* needs it: the delivery checkpoint's position, the position up to which all derived data is
durable, the next message of each delay level, and the entries of `Retention.pins`. The last segment always stays. One
pass removes at most ``deleteFileBatchMax`` segments; ConsumeQueues and key index follow in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.dispatch import SCHEDULE_TOPIC
from store.disk.errors import StoreError
from store.disk.files import Files
from store.log.commit_log import CommitLog
from store.options import StoreOptions
from store.put.plugin_api import PutStatus

__all__ = ["Retention", "levels_need", "readable_bytes"]

ENOUGH, WARNING, REFUSING = "ok", "warning", "refusing"
"""States of the disk, as the figures name them."""
INTERVAL_MS = 10_000
DISK_INTERVAL_MS = 1_000
_HOUR_MS = 3_600_000
_SLICE = 20
_OVERDUE_MS = _HOUR_MS


class Retention:
    """Removes old segments, and watches the disk. One thread calls `step`."""

    def __init__(
        self,
        files: Files,
        root: Path,
        log: CommitLog,
        queues: ConsumeQueues,
        options: StoreOptions,
        warn: Callable[[str], None],
    ) -> None:
        self.pins: list[Callable[[], int]] = []
        """Each returns the lowest CommitLog offset that it still needs. Called without locks."""
        self.levels_pin: Callable[[], int] = lambda: log.end
        """The pin of level messages: a guess from their queues (`levels_need`), until a scheduler sets its own."""
        self.followers: list[Callable[[int], None]] = []
        """Called with the log's new begin after segments were removed."""
        self.promises: list[Callable[[], int]] = []
        """Each returns how many bytes of disk the delivery of its pending messages will take."""
        self.disk_state = ENOUGH
        self.disk_promised = 0
        self.disk_status = PutStatus.PUT_OK
        self.disk_remark = ""
        self.disk_used = 0.0
        self.disk_free = self.disk_total = 0
        self.removed = 0
        self._files = files
        self._root = root
        self._log = log
        self._queues = queues
        self._options = options
        self._warn = warn
        self._apart = not log.directory.is_relative_to(root)
        self._due_ms = 0
        self._disk_due_ms = 0
        self._following: Iterator[ConsumeQueue] | None = None

    def set_options(self, options: StoreOptions) -> None:
        """Use these options from the next step on."""
        self._options = options

    def step(self, now_ms: int) -> int | None:
        """Do one slice of the work that is due; returns when to call again, epoch ms, or None."""
        if not now_ms < self._disk_due_ms <= now_ms + DISK_INTERVAL_MS:
            self._disk_due_ms = now_ms + DISK_INTERVAL_MS
            self.look_at_disk()
        if self._following is not None:
            if self._follow():
                return now_ms
        elif not now_ms < self._due_ms <= now_ms + INTERVAL_MS:
            self._due_ms = now_ms + INTERVAL_MS
            if self.delete_expired(now_ms):
                return now_ms
        return min(self._disk_due_ms, self._due_ms)

    def look_at_disk(self) -> PutStatus:
        """Measure how full the disk is, and decide whether sends are accepted; each change is logged once."""
        options = self._options
        free, total = self._files.free_bytes(self._log.directory)
        self.disk_free, self.disk_total = free, total
        self.disk_used = 1 - free / total if total else 0.0
        if self._apart:
            free_beside, total_beside = self._files.free_bytes(self._root)
            self.disk_used = max(self.disk_used, 1 - free_beside / total_beside if total_beside else 0.0)
        self.disk_promised = sum(promise() for promise in self.promises)
        limit = options.disk_warning_ratio
        remark = ""
        if self.disk_used > limit:
            remark = f"the disk of the store is {self.disk_used:.1%} full, the limit is {limit:.0%}"
        elif free < self.disk_promised:
            remark = (
                f"the disk of the store has {readable_bytes(free)} free, and what is pending needs "
                f"{readable_bytes(self.disk_promised)} of it to be delivered"
            )
        state = REFUSING if remark else WARNING if self.disk_used > options.disk_clean_forcibly_ratio else ENOUGH
        self.disk_remark = remark
        self.disk_status = PutStatus.SERVICE_NOT_AVAILABLE if remark else PutStatus.PUT_OK
        if state != self.disk_state:
            self._crossed(state)
        return self.disk_status

    def _crossed(self, state: str) -> None:
        """Log that a threshold was crossed, in either direction."""
        before, self.disk_state = self.disk_state, state
        full = f"{self._root}: the disk is {self.disk_used:.1%} full"
        if state == REFUSING:
            text = f"{self._root}: {self.disk_remark}: sends are refused, pending messages are still delivered"
        elif state == WARNING:
            options = self._options
            text = (
                f"{full}, above {options.disk_clean_forcibly_ratio:.0%} (diskSpaceCleanForciblyRatio); above "
                f"{options.disk_warning_ratio:.0%} (diskSpaceWarningLevelRatio) sends are refused"
            )
        else:
            text = f"{full}, there is room again"
        if before == REFUSING:
            text += "; messages are accepted again"
        self._warn(text)

    def runtime_info(self) -> dict[str, str]:
        """Figures of the disk, as Apache's broker writes them; ConsumeQueues are on the same disk."""
        ratio = f"{self.disk_used:.2f}"
        total, free = readable_bytes(self.disk_total), readable_bytes(self.disk_free)
        return {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{self._log.directory}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
            "timewheelDiskState": self.disk_state,
            "timewheelDiskFreeBytes": str(self.disk_free),
            "timewheelDiskPromisedBytes": str(self.disk_promised),
        }

    def delete_expired(self, now_ms: int) -> int:
        """Remove the segments that may be removed now; returns how many. Raises StoreError."""
        options = self._options
        self.look_at_disk()
        forced = options.clean_file_forcibly and self.disk_used > options.disk_clean_forcibly_ratio
        hour = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().hour
        if not forced and hour not in options.delete_when and self.disk_used <= options.disk_max_used_ratio:
            return 0
        needed = min([self.levels_pin(), *(pin() for pin in self.pins)])
        count = 0
        for segment in self._log.segments()[:-1]:
            if count >= options.delete_batch_max or segment.end > needed:
                break
            age_ms = now_ms - self._files.mtime_ms(segment.path)
            if not forced and age_ms < options.file_reserved_hours * _HOUR_MS:
                break
            if self._log.remove_oldest() is None:
                break
            count += 1
        if count:
            self.removed += count
            self._following = iter(list(self._queues))
        return count

    def _follow(self) -> bool:
        """Let ConsumeQueues and index follow the log's begin, a few a time; True if there are more."""
        following = self._following
        if following is None:
            return False
        begin = self._log.begin
        for _ in range(_SLICE):
            queue = next(following, None)
            if queue is None:
                self._following = None
                for follow in self.followers:
                    follow(begin)
                return False
            try:
                queue.delete_before(begin)
            except StoreError as error:
                self._warn(f"{queue.directory}: {error}")
        return True


def levels_need(log: CommitLog, queues: ConsumeQueues, now_ms: int) -> int:
    """The lowest CommitLog offset of a level message that is not due yet, or came due less than an hour ago.

    A guess from the ConsumeQueues alone, for a store without a level scheduler; the scheduler's own pin is exact.
    """
    needed = log.end
    for queue in list(queues.table.get(SCHEDULE_TOPIC, {}).values()):
        low, high = queue.min_offset(log.begin), queue.count
        while low < high:
            middle = (low + high) // 2
            entry = queue.entry(middle)
            if entry is not None and entry[2] < now_ms - _OVERDUE_MS:
                low = middle + 1
            else:
                high = middle
        entry = queue.entry(low)
        if entry is not None:
            needed = min(needed, entry[0])
    return needed


def readable_bytes(count: int) -> str:
    """Write a number of bytes as Apache's broker does.

    >>> readable_bytes(0), readable_bytes(2048), readable_bytes(3 << 30)
    ('0 B', '2.0 KiB', '3.0 GiB')
    """
    if count < 1024:
        return f"{count} B"
    size, unit = float(count), 0
    while size >= 1024 and unit < 6:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {'KMGTPE'[unit - 1]}iB"
