"""The files of a store directory that only an Apache broker reads, and the state of its own that we cannot take over.

``checkpoint`` (4096 bytes, int64 each): store time of the flushed log @0, of the flushed ConsumeQueues @8, of the
key index @16, master's flushed offset @24, confirmed offset @32. Our times are never ahead of the durable data;
Apache's own may be, so its recovery goes back three seconds more.

``abort`` exists from the first append to a clean stop. A broker that finds it at start recovers.

Some stores are refused, because opening them would lose messages: stores with ConsumeQueues in a RocksDB, with batch
ConsumeQueues, or with messages pending in Apache's own timer, in its wheel or perhaps in a RocksDB (`check_timer`).
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from struct import error as struct_error

import numpy as np

from store.disk.errors import StoreFormatError
from store.disk.files import Files

__all__ = ["TIMER_TOPIC", "ApacheCheckpoint", "check_layout", "check_timer", "read_timer_check"]

TIMER_TOPIC = "rmq_sys_wheel_timer"
"""The topic of Apache's timer; it has one queue, number 0."""

_FIELDS = Struct(">qqqqq")
_CHECKPOINT_BYTES = 4096
_TIMER_CHECK = Struct(">qqqq")
_SLOT = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("num", ">i4"), ("magic", ">i4")])
_UNIT = np.dtype(
    [
        *(("size", ">i4"), ("before", ">i8"), ("magic", ">i4"), ("enqueued_ms", ">i8"), ("delay_ms", ">i4")),
        *(("position", ">i8"), ("bytes", ">i4"), ("topic", ">i4"), ("reserved", ">i8")),
    ]
)
_UNIT_MAGIC_MAX = 15
_ROCKSDB = ("CURRENT", "IDENTITY", "LOCK")


class ApacheCheckpoint:
    """Apache's ``checkpoint`` file: store times, epoch ms."""

    __slots__ = ("confirmed", "index_ms", "logics_ms", "master_flushed", "physic_ms")

    def __init__(self, physic_ms: int = 0, logics_ms: int = 0, index_ms: int = 0) -> None:
        self.physic_ms = physic_ms
        self.logics_ms = logics_ms
        self.index_ms = index_ms
        self.master_flushed = 0
        self.confirmed = 0

    @classmethod
    def read(cls, files: Files, path: Path) -> ApacheCheckpoint:
        """Read the file; all zero if it is missing or short."""
        checkpoint = cls()
        try:
            fields = _FIELDS.unpack_from(files.read_file(path)) if files.exists(path) else (0,) * 5
        except struct_error:
            fields = (0,) * 5
        checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.index_ms = fields[:3]
        checkpoint.master_flushed, checkpoint.confirmed = fields[3:]
        return checkpoint

    def write(self, files: Files, path: Path) -> None:
        """Write the file in place: 40 bytes are one sector, so a power cut leaves the old or the new ones."""
        fields = (self.physic_ms, self.logics_ms, self.index_ms, self.master_flushed, self.confirmed)
        file = files.open(path, create=True, size=_CHECKPOINT_BYTES)
        try:
            file.pwrite(_FIELDS.pack(*fields), 0)
            file.sync()
        finally:
            file.close()

    def scan_from_ms(self) -> int:
        """Records stored at this time or before are in ConsumeQueues that a power cut has left whole."""
        return min(self.physic_ms, self.logics_ms) - 3000


def check_layout(files: Files, root: Path) -> None:
    """Refuse a store with ConsumeQueues of another kind. Raises `StoreFormatError`."""
    names = set(files.listdir(root / "consumequeue"))
    if names.intersection(_ROCKSDB):
        raise StoreFormatError(
            f"{root / 'consumequeue'} is a RocksDB (Apache's storeType=defaultRocksDB): only file ConsumeQueues can "
            "be read. Move it away to have all queues rebuilt from the CommitLog"
        )
    batch = [
        name for name in files.listdir(root / "batchconsumequeue") if files.listdir(root / "batchconsumequeue" / name)
    ]
    if batch:
        raise StoreFormatError(
            f"{root / 'batchconsumequeue'} holds topics with batch ConsumeQueues, which cannot be read: {batch[0]}"
        )


def read_timer_check(files: Files, root: Path) -> tuple[int, int, int] | None:
    """(time delivered up to, position up to which the timer's log was flushed, number taken in), if it ever ran."""
    path = root / "config" / "timercheck"
    if not files.exists(path):
        return None
    try:
        last_read_ms, log_flushed, queue_offset, _ = _TIMER_CHECK.unpack_from(files.read_file(path))
    except struct_error:
        return None
    return last_read_ms, log_flushed, queue_offset


def check_timer(files: Files, root: Path, precision_ms: int, timer_queue_count: int) -> None:
    """Refuse a store whose Apache timer still holds messages, or may. Raises `StoreFormatError`.

    ``timer_queue_count`` is the number of messages that `TIMER_TOPIC` has ever had. Pending messages are those that the
    timer has not read yet; those in slots of its wheel behind the time that it had reached; and those that are only in
    its log, because the wheel is written every ``timerFlushIntervalMs`` (1 s) and not at the end of the broker.

    A slot's own number says little: a recovery of Apache's points slots at messages without counting them, and a recall
    counts one down wherever its message is. So a slot that points at anything holds one message at least.
    """
    if timer_queue_count == 0:
        return
    _check_rocks(files, root / "rocksdbstore")
    known = read_timer_check(files, root)
    pending = timer_queue_count
    if known is not None:
        last_read_ms, log_flushed, taken = known
        slots, log_from = _wheel_slots(files, root, log_flushed)
        ahead = slots["time"] * precision_ms >= last_read_ms
        pending = max(0, timer_queue_count - taken) + int(np.maximum(slots["num"][ahead], 1).sum())
        pending += _beyond_wheel(files, root, precision_ms, last_read_ms, log_from, slots)
    if pending:
        raise StoreFormatError(
            f"{root}: up to {pending} messages are pending in Apache's own timer ({TIMER_TOPIC}); opened here they "
            "would never be delivered. Nothing was changed: let the Apache broker run until it has delivered them, "
            "stop it, and try again"
        )


def _check_rocks(files: Files, path: Path) -> None:
    """Refuse a store whose broker has put messages into a RocksDB; there is an empty one in each of 5.5."""
    used = [
        name
        for name in files.listdir(path)
        if name.endswith(".sst") or (name.endswith(".log") and files.file_size(path / name) > 0)
    ]
    if used:
        raise StoreFormatError(
            f"{path} holds data, which cannot be read: messages may be pending there (Apache's timerRocksDBEnable); "
            "opened here they would never be delivered. Nothing was changed: let the Apache broker run until it has "
            "delivered them, stop it, and move that directory away"
        )


def _wheel_slots(files: Files, root: Path, log_flushed: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.void]], int]:
    """The used slots of the timer's wheel, by time; and the position of the timer's log from which they lag behind it.

    With ``timerWheelSnapshotFlush`` the file has the position up to which it is true as its extension. An older file
    may lie beside the one that was written last: which one that is is not known, so the slots of both count.
    """
    prefix = "timerwheel."
    positions = [
        int(name.removeprefix(prefix))
        for name in files.listdir(root)
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    ]
    newest = max(positions, default=None)
    names = ["timerwheel"] + ([f"{prefix}{newest}"] if newest is not None else [])
    parts = [files.read_file(root / name) for name in names if files.exists(root / name)]
    slots = np.concatenate(
        [np.frombuffer(part[: len(part) - len(part) % _SLOT.itemsize], _SLOT) for part in (b"", *parts)]
    )
    slots = slots[slots["time"] > 0]
    # Both files may have a slot for one time: the one that points further counts.
    slots = slots[np.lexsort((slots["last"], slots["time"]))]
    is_last = np.append(slots["time"][1:] != slots["time"][:-1], np.ones(min(1, len(slots)), np.bool_))
    begin = log_flushed if newest is None else min(log_flushed, newest)
    return slots[is_last], begin if parts else 0


def _beyond_wheel(
    files: Files,
    root: Path,
    precision_ms: int,
    last_read_ms: int,
    log_from: int,
    slots: np.ndarray[tuple[int], np.dtype[np.void]],
) -> int:
    """How many messages of the timer's log are due at ``last_read_ms`` or later and not in the wheel's file.

    As Apache's recovery does (TimerMessageStore.recover), it reads from one file before the position ``log_from`` on.
    """
    folder = root / "timerlog"
    bases = sorted(int(name) for name in files.listdir(folder) if name.isdigit() and len(name) == 20)
    first = max(0, sum(base <= log_from for base in bases) - 2)
    times, newest = slots["time"].astype(np.int64), slots["last"].astype(np.int64)
    count = 0
    for base in bases[first:]:
        data = files.read_file(folder / f"{base:020d}")
        units = np.frombuffer(data[: len(data) - len(data) % _UNIT.itemsize], _UNIT)
        whole = (units["size"] == _UNIT.itemsize) & (units["magic"] > 0) & (units["magic"] <= _UNIT_MAGIC_MAX)
        units = units[: len(units) if whole.all() else int(whole.argmin())]
        due_ms = units["enqueued_ms"].astype(np.int64) + units["delay_ms"]
        position = base + np.arange(len(units), dtype=np.int64) * _UNIT.itemsize
        if len(times):
            at = np.minimum(np.searchsorted(times, due_ms // precision_ms), len(times) - 1)
            in_wheel = (times[at] == due_ms // precision_ms) & (position <= newest[at])
        else:
            in_wheel = np.zeros(len(units), np.bool_)
        count += int(((due_ms >= last_read_ms) & ~in_wheel).sum())
    return count
