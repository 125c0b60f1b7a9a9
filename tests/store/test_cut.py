"""What stands behind the log's end when a start cuts it there: gone, also if the sync of a start before has failed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from remoting.messages.message import Message, decode_record, encode_host
from store.disk.errors import StoreError, SyncFailedError
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_api import PutStatus, put_record
from tests.support.simdisk import SimDisk

HOST = encode_host("127.0.0.1", 10911)
ROOT = Path("/store")
LOG = ROOT / "commitlog" / f"{0:020d}"


class _NothingGetsThrough(random.Random):
    def choice(self, _seq: object) -> float:  # type: ignore[override]
        return 0.0


def opened(disk: SimDisk) -> MessageStore:
    return MessageStore.open(disk, ROOT, StoreOptions(commit_log_segment_bytes=4096), lambda: 1_700_000_000_000)


def put(store: MessageStore, *texts: bytes) -> None:
    for body in texts:
        (result,) = store.put_batch([put_record(Message("T", 0, body=body), HOST)])
        assert result.status is PutStatus.PUT_OK


def bodies(store: MessageStore) -> list[bytes]:
    return [decode_record(record).body for _, record in store.scan(0)]


@pytest.mark.parametrize("can_punch", [True, False])
def test_zeros_of_a_start_whose_sync_failed_are_written_again(can_punch: bool) -> None:
    """The page cache has them, the disk has not; else the second record counts again as soon as the gap is filled."""
    disk = SimDisk()
    disk.can_punch = can_punch
    store = opened(disk)
    put(store, b"kept", b"torn", b"gone")
    store.commit_log.sync()
    disk.power_cut(1.0)
    inode = disk._seen[LOG]
    assert inode is not None
    inode.medium[inode.medium.index(b"torn")] = inode.seen[inode.seen.index(b"torn")] = 0
    disk.rng = _NothingGetsThrough()
    disk.fail_at("sync", set(range(1, 1000)), SyncFailedError("cannot sync"), "commitlog")
    with pytest.raises(StoreError):
        opened(disk)
    disk.kill()
    store = opened(disk)
    assert bodies(store) == [b"kept"]
    put(store, b"next")
    store.commit_log.sync()
    disk.power_cut(0.0)
    assert bodies(opened(disk)) == [b"kept", b"next"]
