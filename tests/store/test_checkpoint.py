"""The delivery checkpoint: what it keeps, when it is due, and that no failure moves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError, SyncFailedError
from store.disk.files import Files

STORE_ID = bytes(range(16))


class Log:
    """A log that only has an end, and remembers how far it was synced."""

    def __init__(self, end: int = 0) -> None:
        self.end = end
        self.synced = 0
        self.broken = False

    def log_end(self) -> int:
        return self.end

    def sync(self) -> None:
        if self.broken:
            raise SyncFailedError("planted")
        self.synced = self.end


def open_at(path: Path) -> DeliveryCheckpoint:
    return DeliveryCheckpoint.open(Files(), path / "timewheel" / "checkpoint", STORE_ID)


def test_a_new_store_starts_at_zero(tmp_path: Path) -> None:
    checkpoint = open_at(tmp_path)
    assert (checkpoint.position, checkpoint.sections) == (0, {})
    checkpoint.check_log_end(0)
    assert not checkpoint.step(0, Log().log_end, Log().sync)
    assert checkpoint.next_step_ms() is None


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    log = Log(1000)
    checkpoint = open_at(tmp_path)
    checkpoint.register("levels", lambda: b"\x01\x02")
    checkpoint.register("délai", lambda: bytes(range(256)) * 300)
    checkpoint.write(log.log_end, log.sync)
    assert log.synced == 1000
    again = open_at(tmp_path)
    assert again.position == again.position_of("levels") == 1000
    assert again.sections == {"levels": b"\x01\x02", "délai": bytes(range(256)) * 300}
    assert again.writes == 1


def test_snapshots_are_taken_under_the_lock_and_durable_is_called_after_the_write(tmp_path: Path) -> None:
    log, events = Log(7), []
    checkpoint = open_at(tmp_path)

    def held() -> bool:
        return "count=1" in repr(checkpoint.lock)

    def snapshot() -> bytes:
        events.append(("snapshot", held()))
        return b"x"

    checkpoint.register("a", snapshot, lambda: events.append(("durable", open_at(tmp_path).position)))
    checkpoint.write(log.log_end, lambda: events.append(("sync", held())))
    assert events == [("snapshot", True), ("sync", False), ("durable", 7)]


def test_when_it_is_due(tmp_path: Path) -> None:
    log = Log(10)
    checkpoint = open_at(tmp_path)
    checkpoint.register("a", lambda: b"")
    assert checkpoint.step(5_000, log.log_end, log.sync)  # a new name is written at once
    assert not checkpoint.step(9_000, log.log_end, log.sync)  # nothing has changed
    checkpoint.touch(1)
    assert checkpoint.next_step_ms() == 6_000
    assert not checkpoint.step(5_999, log.log_end, log.sync)
    assert checkpoint.step(6_000, log.log_end, log.sync)
    checkpoint.touch(99_999)
    assert not checkpoint.step(6_001, log.log_end, log.sync)
    checkpoint.touch(1)
    assert checkpoint.step(6_001, log.log_end, log.sync)
    log.end += (64 << 20) - 1
    assert not checkpoint.step(8_000, log.log_end, log.sync)
    log.end += 1
    assert checkpoint.step(8_000, log.log_end, log.sync)
    checkpoint.touch(1)
    assert checkpoint.step(2_000, log.log_end, log.sync)  # the clock went back


@pytest.mark.parametrize("where", ["sync", "write", "snapshot"])
def test_a_failure_leaves_the_old_checkpoint_and_is_tried_again(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, durable = Log(10), []
    checkpoint = open_at(tmp_path)
    broken = [False]

    def snapshot() -> bytes:
        if broken[0]:
            raise StoreError("planted")
        return b"new"

    checkpoint.register("a", snapshot, lambda: durable.append(checkpoint.position))
    checkpoint.write(log.log_end, log.sync)
    log.end = 20
    checkpoint.touch(3)
    with monkeypatch.context() as patch:
        if where == "sync":
            log.broken = True
        elif where == "write":
            patch.setattr(Files, "replace_file", lambda *_: (_ for _ in ()).throw(StoreError("planted")))
        else:
            broken[0] = True
        with pytest.raises(StoreError, match="planted"):
            checkpoint.step(99_000, log.log_end, log.sync)
    assert checkpoint.position == open_at(tmp_path).position == 10
    assert durable == [10]
    log.broken = broken[0] = False
    assert checkpoint.step(99_001, log.log_end, log.sync)
    assert durable == [10, 20]


def test_a_section_without_its_owner_keeps_its_position(tmp_path: Path) -> None:
    log = Log(10)
    first = open_at(tmp_path)
    first.register("levels", lambda: b"L1")
    first.register("delay", lambda: b"D1")
    first.write(log.log_end, log.sync)

    crashed = open_at(tmp_path)  # 10 to 15 may hold deliveries that no section knows
    crashed.check_log_end(15)
    crashed.register("levels", lambda: b"L2")
    log.end = 30
    crashed.write(log.log_end, log.sync)
    assert crashed.position == 10
    again = open_at(tmp_path)
    assert (again.position_of("levels"), again.position_of("delay"), again.position) == (30, 10, 10)
    assert again.sections == {"levels": b"L2", "delay": b"D1"}


def test_a_section_that_was_complete_moves_along_without_its_owner(tmp_path: Path) -> None:
    log = Log(10)
    first = open_at(tmp_path)
    first.register("levels", lambda: b"L1")
    first.register("delay", lambda: b"D1")
    first.write(log.log_end, log.sync)

    clean = open_at(tmp_path)
    clean.check_log_end(10)
    clean.register("levels", lambda: b"L2")
    log.end = 30
    clean.write(log.log_end, log.sync)
    assert open_at(tmp_path).position == 30
    assert open_at(tmp_path).sections["delay"] == b"D1"

    clean.register("delay", lambda: b"D2")
    clean.unregister("delay")
    log.end = 40
    clean.write(log.log_end, log.sync)
    assert open_at(tmp_path).position == 30


def test_a_log_that_ends_before_the_position_is_refused(tmp_path: Path) -> None:
    log = Log(10)
    checkpoint = open_at(tmp_path)
    checkpoint.register("a", lambda: b"")
    checkpoint.write(log.log_end, log.sync)
    with pytest.raises(StoreCorruptError, match=r"ends at 9.*up to 10"):
        open_at(tmp_path).check_log_end(9)


def test_another_store_another_version_and_damage_are_told_apart(tmp_path: Path) -> None:
    log = Log(10)
    checkpoint = open_at(tmp_path)
    checkpoint.register("a", lambda: b"data")
    checkpoint.write(log.log_end, log.sync)
    path = tmp_path / "timewheel" / "checkpoint"
    data = path.read_bytes()
    with pytest.raises(StoreFormatError, match="belongs to store"):
        DeliveryCheckpoint.open(Files(), path, bytes(16))
    path.write_bytes(data[:4] + b"\x00\x02" + data[6:])
    with pytest.raises(StoreFormatError, match="format version 2"):
        open_at(tmp_path)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(StoreCorruptError):
            open_at(tmp_path)
    for at in (*range(4), *range(6, len(data))):
        path.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        with pytest.raises(StoreCorruptError):
            open_at(tmp_path)


def test_a_section_has_one_owner(tmp_path: Path) -> None:
    checkpoint = open_at(tmp_path)
    checkpoint.register("a", lambda: b"")
    with pytest.raises(ValueError, match="owner already"):
        checkpoint.register("a", lambda: b"")
    with pytest.raises(ValueError, match="16 bytes"):
        DeliveryCheckpoint(Files(), tmp_path, b"short")


def test_a_log_that_others_wrote_is_not_scanned(tmp_path: Path) -> None:
    checkpoint = open_at(tmp_path)
    checkpoint.begin_at(5_000)
    again = open_at(tmp_path)
    assert (again.position, again.position_of("levels"), again.sections) == (5_000, 5_000, {})
