"""Records that belong together: all of a group are appended, or none, whatever stands in the way of one of them."""

from __future__ import annotations

import pytest

from remoting.messages.message import decode_record
from store.message_store import MessageStore
from store.put.plugin_api import PutGroup, PutRecord, PutResult, PutStatus
from store.put.put_group import results_of
from tests.store.test_message_store import SMALL, Clock, bodies, copies_need_little, made, opened
from tests.support.simdisk import SimDisk

__all__ = ["copies_need_little"]
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
    before, group, behind = store.put_batch([made(b"before"), PutGroup(records), made(b"behind")])
    assert statuses([before, behind]) == [PutStatus.PUT_OK] * 2
    return statuses([group])


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
    assert put(store, group(odd, place)) == [status]
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
    results = store.put_batch([PutGroup([made(b"%d" % n) for n in PLACES])])
    assert statuses(results) == [PutStatus.SERVICE_NOT_AVAILABLE]
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


@pytest.mark.parametrize("fill", range(0, 1500, 120))
def test_a_group_does_not_cross_segments(fill: int) -> None:
    disk = SimDisk(1)
    store = opened(disk)
    store.put_batch([made(bytes(max(1, fill)))])
    group = PutGroup([made(bytes(100)) for _ in range(5)])
    (result,) = store.put_batch([group])
    results = results_of(group, result)
    assert statuses(results) == [PutStatus.PUT_OK] * 5
    assert [decode_record(store.read_record(result.offset) or b"").queue_offset for result in results] == [
        result.queue_offset for result in results
    ]
    segments = {result.offset // SMALL.commit_log_segment_bytes for result in results}
    assert len(segments) == 1
    assert store.check() == []
    results = store.put_batch([PutGroup([made(bytes(400)) for _ in range(5)]), made(b"behind")])
    assert statuses(results) == [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.PUT_OK], "more than a segment holds"
    disk.kill()
    store = opened(disk)
    assert len(bodies(store)) == 7
    assert store.check() == []
    store.close()


def test_the_clock_that_decides_is_the_same_for_all() -> None:
    clock = Clock()
    store = opened(SimDisk(1), clock)
    records = [made(b"%d" % n) for n in PLACES]
    for n, record in enumerate(records):
        record.due_ms = NOW_MS + n
    assert put(store, records) == [PutStatus.NOT_DUE]
    clock.now_ms += 2
    assert put(store, records) == [PutStatus.PUT_OK]
    store.close()
