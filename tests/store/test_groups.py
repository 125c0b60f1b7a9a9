"""Records that belong together: all of a group are appended, or none, whatever stands in the way of one of them."""

from __future__ import annotations

import pytest

from store.message_store import MessageStore
from store.put.plugin_api import PutRecord, PutResult, PutStatus
from tests.store.test_message_store import SMALL, Clock, bodies, made, opened
from tests.support.simdisk import SimDisk

NOW_MS = 1_700_000_000_000
PLACES = range(3)


def group(odd: PutRecord, place: int) -> list[PutRecord]:
    records = [made(b"%d" % n) for n in PLACES]
    records[place] = odd
    return records


def statuses(results: list[PutResult]) -> list[PutStatus]:
    return [result.status for result in results]


def put(store: MessageStore, records: list[PutRecord]) -> list[PutStatus]:
    """Put a group between two records of others; what became of the group."""
    results = store.put_batch([made(b"before"), *records, made(b"behind")], [1, len(records), 1])
    assert statuses([results[0], results[-1]]) == [PutStatus.PUT_OK] * 2
    return statuses(results[1:-1])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reason", ["not due", "too large", "its topic is gone"])
def test_one_that_is_refused_refuses_all(reason: str, place: int) -> None:
    disk = SimDisk(1)
    store = opened(disk)
    store.topic_guard = lambda topic, _: PutStatus.TOPIC_NOT_EXIST if topic == "Gone" else PutStatus.PUT_OK
    odd, status = made(b"odd"), PutStatus.NOT_DUE
    if reason == "not due":
        odd.due_ms = NOW_MS + 1
    elif reason == "too large":
        odd, status = made(bytes(SMALL.commit_log_segment_bytes)), PutStatus.MESSAGE_ILLEGAL
    else:
        odd, status = made(b"odd", "Gone"), PutStatus.TOPIC_NOT_EXIST
        odd.guarded = True
    assert put(store, group(odd, place)) == [status] * 3
    for _ in range(2):
        assert bodies(store) == [b"before", b"behind"]
        assert [record[20:28] for _, record in store.scan(0)] == [bytes(8), bytes(7) + b"\1"], "no number was lost"
        assert store.check() == []
        disk.kill()
        store = opened(disk)
    store.close()


@pytest.mark.parametrize("torn", [False, True])
def test_a_write_that_fails_leaves_none(torn: bool) -> None:
    disk = SimDisk(1)
    store = opened(disk)
    store.put_batch([made(b"first")])
    disk.fail_at("pwrite", {1}, disk.full(), "commitlog")
    results = store.put_batch([made(b"%d" % n) for n in PLACES], [3])
    assert statuses(results) == [PutStatus.SERVICE_NOT_AVAILABLE] * 3
    assert bodies(store) == [b"first"]
    disk.fault = None
    if torn:
        disk.kill()
        store = opened(disk)
        assert bodies(store) == [b"first"]
    store.put_batch([made(b"next")])
    assert bodies(store) == [b"first", b"next"]
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("fill", range(0, 1900, 150))
def test_a_group_does_not_cross_segments(fill: int) -> None:
    disk = SimDisk(1)
    store = opened(disk)
    store.put_batch([made(bytes(max(1, fill)))])
    results = store.put_batch([made(bytes(100)) for _ in range(5)], [5])
    assert statuses(results) == [PutStatus.PUT_OK] * 5
    segments = {result.offset // SMALL.commit_log_segment_bytes for result in results}
    assert len(segments) == 1
    assert store.check() == []
    results = store.put_batch([made(bytes(400)) for _ in range(5)], [5])
    assert statuses(results) == [PutStatus.SERVICE_NOT_AVAILABLE] * 5, "more than a segment holds"
    disk.kill()
    store = opened(disk)
    assert len(bodies(store)) == 6
    assert store.check() == []
    store.close()


def test_the_clock_that_decides_is_the_same_for_all() -> None:
    clock = Clock()
    store = opened(SimDisk(1), clock)
    records = [made(b"%d" % n) for n in PLACES]
    for n, record in enumerate(records):
        record.due_ms = NOW_MS + n
    assert put(store, records) == [PutStatus.NOT_DUE] * 3
    clock.now_ms += 2
    assert put(store, records) == [PutStatus.PUT_OK] * 3
    store.close()
