"""What a failed write has left behind the log's end: gone for good once `settle` has said so."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from broker_plugin.plugin import DelayPlugin
from remoting.messages.message import Message, decode_record, encode_host
from remoting.messages.properties import with_property
from store.disk.errors import StoreError, SyncFailedError
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_api import CommandOutcome, Held, PluginContext, PutStatus, SettlingTarget, put_record
from tests.support.simdisk import SimDisk

HOST = encode_host("127.0.0.1", 10911)
ROOT = Path("/store")
NOW = 1_700_000_000_000


class Broken:
    """Named operations fail until told otherwise; of the first failing write everything gets through, then nothing."""

    def __init__(self, disk: SimDisk, *operations: str) -> None:
        self.disk = disk
        self.operations = set(operations)
        disk.fault = self
        disk.rng = _AllThenNothing()

    def __call__(self, operation: str, path: Path) -> None:
        if operation in self.operations and "commitlog" in str(path):
            raise SyncFailedError("sync") if operation == "sync" else self.disk.full()


class _AllThenNothing(random.Random):
    seen = False

    def randint(self, a: int, b: int) -> int:
        first, self.seen = not self.seen, True
        return b if first else a


def opened(disk: SimDisk) -> MessageStore:
    return MessageStore.open(disk, ROOT, StoreOptions(commit_log_segment_bytes=4096), lambda: NOW)


def put(store: MessageStore, body: bytes) -> PutStatus:
    return store.put_batch([put_record(Message("T", 0, body=body), HOST)])[0].status


def bodies(store: MessageStore) -> list[bytes]:
    return [decode_record(record).body for _, record in store.scan(0)]


def refused(disk: SimDisk, *also: str) -> tuple[MessageStore, Broken]:
    """A store that has refused one message, of which everything stands behind the log's end."""
    store = opened(disk)
    assert put(store, b"kept") is PutStatus.PUT_OK
    store.commit_log.sync()
    broken = Broken(disk, "pwrite", "punch", *also)
    assert put(store, b"refused") is PutStatus.SERVICE_NOT_AVAILABLE
    return store, broken


def test_a_store_settles() -> None:
    assert isinstance(opened(SimDisk()), SettlingTarget)


def test_what_cannot_be_cleared_comes_back_after_a_kill_and_settle_says_so() -> None:
    disk = SimDisk()
    store, _ = refused(disk)
    with pytest.raises(StoreError):
        store.settle()
    disk.kill()
    assert bodies(opened(disk)) == [b"kept", b"refused"]


@pytest.mark.parametrize("can_punch", [True, False])
@pytest.mark.parametrize("end", ["kill", "power cut", "power cut that keeps all"])
def test_what_is_settled_never_comes_back(end: str, can_punch: bool) -> None:
    disk = SimDisk()
    disk.can_punch = can_punch
    store, broken = refused(disk)
    broken.operations.clear()
    store.settle()
    assert not store.commit_log.is_torn
    if end == "kill":
        disk.kill()
    else:
        disk.power_cut(1.0 if end.endswith("all") else 0.0)
    assert bodies(opened(disk)) == [b"kept"]


@pytest.mark.parametrize("can_punch", [True, False])
def test_zeros_that_a_failed_sync_has_thrown_away_are_written_again(can_punch: bool) -> None:
    disk = SimDisk()
    disk.can_punch = can_punch
    store, broken = refused(disk)
    segment = disk.open(ROOT / "commitlog" / f"{0:020d}")
    segment.sync()  # the system writes what is dirty whenever it likes: the refused record is on the disk now
    broken.operations = {"sync"}
    with pytest.raises(SyncFailedError):
        store.settle()
    assert store.commit_log.failed
    broken.operations.clear()
    store.settle()
    disk.power_cut(0.0)
    assert bodies(opened(disk)) == [b"kept"]


def test_no_other_sync_may_fail_between_the_zeros_and_their_own() -> None:
    """It would throw the zeros away, and the one behind it would succeed without them."""
    disk = SimDisk()
    disk.can_punch = False
    store, broken = refused(disk)
    log = store.commit_log
    file = log.segments()[0].file
    file.sync()
    broken.operations.clear()
    syncing: list[threading.Thread] = []

    def failing_sync() -> None:
        with log._sync_lock:
            broken.operations = {"sync"}
            with pytest.raises(SyncFailedError):
                file.sync()
            broken.operations = set()

    def behind_the_zeros(path: Path, _offset: int, _bytes: int) -> None:
        if "commitlog" in str(path) and not syncing:
            syncing.append(threading.Thread(target=failing_sync))
            syncing[0].start()
            syncing[0].join(0.05)

    disk.watch = behind_the_zeros
    store.settle()
    syncing[0].join()
    disk.power_cut(0.0)
    assert bodies(opened(disk)) == [b"kept"]


# ------------------------------------------------------------------------------------------------ commands


class Broker:
    """Store and delay plug-in over one simulated disk, stepped by hand."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.now_ms = NOW
        self.store = MessageStore.open(disk, ROOT, StoreOptions(commit_log_segment_bytes=4096), lambda: self.now_ms)
        self.plugin = DelayPlugin()
        self.plugin.open(
            PluginContext(
                target=self.store,
                files=disk,
                directory=ROOT / "timewheel" / "delay",
                store_id=self.store.store_id,
                store_host=HOST,
                config={},
                flusher=self.store.flusher,
                checkpoint=self.store.checkpoint,
                now_ms=lambda: self.now_ms,
            )
        )

    def send(self, body: bytes, due_ms: int) -> int:
        text = with_property(with_property("", "UNIQ_KEY", body.decode()), "__STARTDELIVERTIME", str(due_ms))
        held = self.plugin.before_put(Message("T", 0, body=body, properties=text), self.now_ms)
        assert isinstance(held, Held)
        self.plugin.commit_turn()
        self.store.flusher.sync_all()
        return held.offset

    def sweep(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for _ in range(5):
            self.plugin.sweeper.step(now_ms)
            self.plugin.recovery.step(now_ms)


def delivered(disk: SimDisk) -> list[bytes]:
    """What a start finds, and what it delivers in the end."""
    disk.fault = None
    broker = Broker(disk)
    broker.sweep(NOW + 1_000_000)
    return bodies(broker.store)


def one_refused(disk: SimDisk) -> tuple[Broker, int, Broken]:
    """A pending message whose delivery has failed, and stands whole behind the log's end."""
    broker = Broker(disk)
    offset = broker.send(b"timed", NOW + 10)
    broken = Broken(disk, "pwrite", "punch")
    broker.sweep(NOW + 10)
    assert broker.store.commit_log.is_torn
    assert broker.plugin.pending_count() == 1
    return broker, offset, broken


COMMANDS: dict[str, Any] = {
    "cancel": lambda broker, offset: broker.plugin.cancel(offset, broker.now_ms),
    "move": lambda broker, offset: broker.plugin.move(offset, NOW + 500, broker.now_ms),
    "send now": lambda broker, offset: broker.plugin.send_now(offset, broker.now_ms),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("mended", [True, False])
@pytest.mark.parametrize("power", [None, 0.0, 1.0])
def test_a_command_on_a_message_whose_delivery_has_failed(command: str, mended: bool, power: float | None) -> None:
    disk = SimDisk()
    broker, offset, broken = one_refused(disk)
    done = False
    if mended:
        broken.operations = {"pwrite"}  # still full, but what is there can be cleared
        done = COMMANDS[command](broker, offset).outcome is CommandOutcome.DONE
        assert done
    else:
        if command == "send now":  # it is due already, so there is nothing to change, and nothing that a crash undoes
            assert COMMANDS[command](broker, offset).outcome is CommandOutcome.DONE
        else:
            with pytest.raises(StoreError):
                COMMANDS[command](broker, offset)
        assert broker.plugin.pending_count() == 1, "nothing has changed"
    if power is None:
        disk.kill()
    else:
        disk.power_cut(power)
    assert delivered(disk) == ([] if command == "cancel" and done else [b"timed"])


def test_a_refused_command_can_be_repeated() -> None:
    disk = SimDisk()
    broker, offset, broken = one_refused(disk)
    with pytest.raises(StoreError):
        broker.plugin.cancel(offset, broker.now_ms)
    broken.operations.clear()
    assert broker.plugin.cancel(offset, broker.now_ms).outcome is CommandOutcome.DONE
    disk.kill()
    assert delivered(disk) == []
