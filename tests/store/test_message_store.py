"""The message store: what a put, a pull, a query, a restart and a full disk come to."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from remoting.filters.subscription import TagFilter
from remoting.messages.message import Message, decode_record, encode_host
from remoting.messages.properties import TW_ID, format_properties
from store import store_writer
from store.disk.delay_id import DELAY_ID_BASE
from store.disk.errors import (
    StoreCorruptError,
    StoreError,
    StoreFormatError,
    StoreLockedError,
    SyncFailedError,
)
from store.disk.files import Files
from store.message_store import MessageStore, PullStatus
from store.options import StoreOptions, parse_delay_levels
from store.put.plugin_api import PutGroup, PutRecord, PutStatus, put_record, put_record_of
from tests.support.commitlog import without_sum
from tests.support.simdisk import PowerCut, SimDisk

HOST = encode_host("127.0.0.1", 10911)
ROOT = Path("/store")
SMALL = StoreOptions(commit_log_segment_bytes=2000, consume_queue_segment_bytes=100)
FOREVER = 1 << 60


@pytest.fixture(autouse=True)
def copies_need_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments of these tests are smaller than a broker's may be: nothing would be left for messages."""
    monkeypatch.setattr(store_writer, "COPY_BYTES", 384)


class Clock:
    """A clock that stands where it is put."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def opened(
    disk: Files,
    clock: Clock | None = None,
    options: StoreOptions = SMALL,
    root: Path = ROOT,
    warn: list[str] | None = None,
) -> MessageStore:
    said = [] if warn is None else warn
    return MessageStore.open(disk, root, options, clock or Clock(), said.append)


def made(body: bytes, topic: str = "T", queue_id: int = 0, **properties: str) -> PutRecord:
    return put_record(Message(topic, queue_id, body=body, properties=format_properties(properties)), HOST)


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0, offset: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        result = store.pull(topic, queue_id, offset, 3, 10_000, None)
        found += [decode_record(store.read(*position)).body for position in result.positions]
        if result.status is not PullStatus.FOUND:
            return found
        offset = result.next_offset


def settle(store: MessageStore, clock: Clock, steps: int = 30, ms: int = 200) -> None:
    for _ in range(steps):
        clock.now_ms += ms
        store.flusher.step(clock.now_ms)
        store.housekeeper.step(clock.now_ms)


def test_put_and_pull() -> None:
    clock = Clock()
    store = opened(SimDisk(), clock)
    arrived: list[list[tuple[str, int]]] = []
    store.on_arrival = arrived.append
    results = store.put_batch([made(b"a"), made(b"b", queue_id=1), made(b"c")])
    assert [(r.status, r.queue_offset, r.store_ms) for r in results] == [
        (PutStatus.PUT_OK, 0, clock.now_ms),
        (PutStatus.PUT_OK, 0, clock.now_ms),
        (PutStatus.PUT_OK, 1, clock.now_ms),
    ]
    assert arrived == [[("T", 0), ("T", 1)]]
    assert bodies(store) == [b"a", b"c"]
    stored = decode_record(store.read_record(results[2].offset) or b"")
    assert (stored.offset, stored.queue_offset, stored.store_ms) == (results[2].offset, 1, clock.now_ms)
    assert store.segment_of(results[1].offset) == (ROOT / "commitlog" / f"{0:020d}", results[1].offset)
    with pytest.raises(KeyError):
        store.segment_of(store.commit_log.end)
    assert store.topics_on_disk() == ["T"]
    assert store.queue_ids("T") == [0, 1]
    assert store.check() == []


def test_pull_statuses() -> None:
    store = opened(SimDisk())

    def pull(offset: int, topic: str = "T", count: int = 10, size: int = 10_000) -> tuple[PullStatus, int, int]:
        result = store.pull(topic, 0, offset, count, size, None)
        return result.status, result.next_offset, len(result.positions)

    assert pull(0) == (PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0)
    store.queues.get("T", 0)
    assert pull(5) == (PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0)
    store.put_batch([made(b"%d" % n) for n in range(12)])
    assert pull(0) == (PullStatus.FOUND, 10, 10)
    assert pull(10) == (PullStatus.FOUND, 12, 2)
    assert pull(12) == (PullStatus.OFFSET_OVERFLOW_ONE, 12, 0)
    assert pull(13) == (PullStatus.OFFSET_OVERFLOW_BADLY, 12, 0)
    assert pull(0, size=200) == (PullStatus.FOUND, 2, 2)
    assert pull(0, size=1) == (PullStatus.FOUND, 1, 1)
    assert pull(-1) == (PullStatus.OFFSET_TOO_SMALL, 0, 0)


def test_a_pull_has_no_more_bytes_or_messages_than_it_may_wherever_files_end() -> None:
    """Of entries on both sides of a file's end, only those behind it were counted."""
    clock = Clock()
    store = opened(SimDisk(), clock, StoreOptions(commit_log_segment_bytes=1 << 20, consume_queue_segment_bytes=100))
    store.put_batch([made(bytes(13 * n)) for n in range(17)])
    settle(store, clock)
    store.put_batch([made(bytes(7 * n)) for n in range(9)])  # these are in memory: another end, at 17
    sizes = [size for number in range(26) for _, size, _ in store.queue_entries("T", 0, number, 1)]
    assert len(sizes) == 26
    for offset in range(26):
        for count in (1, 2, 4, 5, 6, 11, 40):
            own = sizes[offset : offset + count]
            for most in (1, own[0], sum(own[:2]), sum(own[:3]) - 1, sum(own[:6]), sum(own[:9]), 1 << 20):
                fits = [n for n in range(1, len(own) + 1) if sum(own[:n]) <= most]
                found = store.pull("T", 0, offset, count, most, None)
                assert len(found.positions) == max([1, *fits]), (offset, count, most)
                assert found.next_offset == offset + len(found.positions)
                assert [size for _, size in found.positions] == own[: len(found.positions)]


def test_pull_with_a_filter() -> None:
    store = opened(SimDisk(), options=StoreOptions(commit_log_segment_bytes=1 << 20))
    store.put_batch([made(b"%d" % n, TAGS="rare" if n == 5000 else "usual") for n in range(6000)])
    rare = TagFilter.from_expression("rare || none")
    result = store.pull("T", 0, 0, 32, 10_000, rare)
    assert (result.status, result.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 4000)
    result = store.pull("T", 0, 4000, 32, 10_000, rare)
    assert (result.status, result.next_offset, len(result.positions)) == (PullStatus.FOUND, 6000, 1)
    assert decode_record(store.read(*result.positions[0])).body == b"5000"
    everything = store.pull("T", 0, 0, 32, 10_000, TagFilter.from_expression("*"))
    assert everything.next_offset == 32


def test_never_early_and_guarded() -> None:
    clock = Clock()
    store = opened(SimDisk(), clock)
    record = made(b"later", TW_DUE="1").record
    delivery = put_record_of(bytes(record), clock.now_ms + 1)
    early = store.put_batch([delivery, made(b"now")])
    assert [r.status for r in early] == [PutStatus.NOT_DUE, PutStatus.PUT_OK]
    assert early[1].queue_offset == 0
    clock.now_ms += 1
    gone: dict[str, PutStatus] = {"T": PutStatus.TOPIC_NOT_EXIST}
    store.topic_guard = lambda topic, _: gone.get(topic, PutStatus.PUT_OK)
    assert [r.status for r in store.put_batch([delivery, made(b"now")])] == [
        PutStatus.TOPIC_NOT_EXIST,
        PutStatus.PUT_OK,
    ]
    gone.clear()
    assert store.put_batch([delivery])[0].status is PutStatus.PUT_OK
    assert bodies(store) == [b"now", b"now", b"later"]


def test_the_guard_is_asked_once_for_each_queue_of_a_put() -> None:
    store = opened(SimDisk())
    asked: list[tuple[str, int]] = []

    def guard(topic: str, queue_id: int) -> PutStatus:
        asked.append((topic, queue_id))
        return PutStatus.NO_PERMISSION if topic == "Gone" else PutStatus.PUT_OK

    store.topic_guard = guard
    records = [put_record_of(bytes(made(b"x", topic=topic).record), 1) for topic in ("T", "Gone", "T", "U", "Gone")]
    for _ in range(2):  # a new put asks anew: topics change
        statuses = [result.status for result in store.put_batch(records)]
        assert [status is PutStatus.PUT_OK for status in statuses] == [True, False, True, True, False]
    assert asked == [("T", 0), ("Gone", 0), ("U", 0), ("Gone", 0)] * 2


def test_what_does_not_fit_is_refused_alone() -> None:
    store = opened(SimDisk())
    results = store.put_batch([made(b"a"), made(b"x" * 3000), made(b"b")])
    assert [r.status for r in results] == [PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL, PutStatus.PUT_OK]
    assert "3092" in results[1].remark
    assert bodies(store) == [b"a", b"b"]


def test_units_are_whole_or_not_there() -> None:
    store = opened(SimDisk())
    store.put_batch([made(b"x" * 1500)])
    results = store.put_batch([made(b"1"), PutGroup([made(b"2" * 120), made(b"3" * 120)]), made(b"4")])
    assert [r.offset // 2000 for r in results] == [0, 1, 1]
    results = store.put_batch([PutGroup([made(b"x" * 900) for _ in range(3)]), made(b"5")])
    assert [r.status for r in results] == [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.PUT_OK]
    assert results[1].queue_offset == 5
    assert store.check() == []


def test_level_messages_get_their_due_time_as_tags_code() -> None:
    clock = Clock()
    disk = SimDisk()
    options = StoreOptions(commit_log_segment_bytes=2000, delay_levels_ms=parse_delay_levels("1s 1m"))
    store = opened(disk, clock, options)
    level = {"REAL_TOPIC": "T", "REAL_QID": "0", "TAGS": "a"}
    store.put_batch(
        [
            made(b"a", "SCHEDULE_TOPIC_XXXX", 0, DELAY="1", **level),
            made(b"b", "SCHEDULE_TOPIC_XXXX", 1, DELAY="7", **level),
            made(b"c", "SCHEDULE_TOPIC_XXXX", 1, **level),
        ]
    )

    def codes() -> list[int]:
        return [entry[2] for q in (0, 1) for entry in store.queue_entries("SCHEDULE_TOPIC_XXXX", q, 0, 9)]

    due = [clock.now_ms + 1000, clock.now_ms + 60_000, 97]
    assert codes() == due
    clock.now_ms += 12345
    disk.kill()
    store = opened(disk, clock, options)
    assert codes() == due


def test_offsets_by_time() -> None:
    clock = Clock(1000)
    store = opened(SimDisk(), clock)
    assert store.offset_by_time("T", 0, 5) == 0
    assert store.earliest_store_time() == -1
    for ms in (1000, 1000, 2000, 3000, 3000, 3000, 4000):
        clock.now_ms = ms
        store.put_batch([made(b"x")])
    assert [store.offset_by_time("T", 0, t) for t in (0, 1000, 1001, 2000, 2500, 3000, 3001, 4000, 4001)] == [
        0, 0, 2, 2, 3, 3, 6, 6, 7,
    ]  # fmt: skip
    assert [store.offset_by_time("T", 0, t, True) for t in (0, 1000, 1001, 2000, 2500, 3000, 3001, 4000, 9999)] == [
        0, 1, 1, 2, 2, 5, 5, 6, 6,
    ]  # fmt: skip
    assert store.store_time_at("T", 0, 2) == 2000
    assert store.store_time_at("T", 0, 7) == -1
    assert store.store_time_at("T", 9, 0) == -1
    assert store.earliest_store_time() == 1000


def test_query_by_key_and_by_virtual_offset() -> None:
    clock = Clock()
    disk = SimDisk()
    store = opened(disk, clock)
    store.put_batch([made(b"%d" % n, UNIQ_KEY=f"u{n}", KEYS=f"k{n % 2} all") for n in range(9)])
    delayed = made(b"delayed", UNIQ_KEY="d", **{TW_ID: "10000000007.3"}).record
    store.put_batch([put_record_of(bytes(delayed), 0)])

    def asserts(store: MessageStore) -> None:
        def found(topic: str, key: str, most: int = 99, begin: int = 0, end: int = FOREVER) -> list[bytes]:
            return [decode_record(record).body for record in store.query(topic, key, most, begin, end)]

        assert found("T", "u3") == [b"3"]
        assert found("T", "k1") == [b"7", b"5", b"3", b"1"]
        assert found("T", "all", 2) == [b"8", b"7"]
        assert found("T", "all", 2, 0, clock.now_ms - 60_000) == []
        assert found("Other", "u3") == []
        assert found("T", "nothing") == []
        copy = store.find_delivered(DELAY_ID_BASE + 0x10000000007)
        assert copy is not None
        assert decode_record(copy).body == b"delayed"
        assert store.find_delivered(DELAY_ID_BASE + 0x10000000008) is None

    asserts(store)
    disk.kill()
    asserts(opened(disk, clock))
    settle(store, clock)
    asserts(store)
    store.close()
    asserts(opened(disk, clock))


def test_a_clean_stop_leaves_nothing_to_read() -> None:
    clock = Clock()
    disk = SimDisk()
    store = opened(disk, clock)
    store.put_batch([made(b"%d" % n, queue_id=n % 3) for n in range(50)])
    assert disk.exists(ROOT / "abort")
    store.close()
    store.close()
    assert not disk.exists(ROOT / "abort")
    assert store.put_batch([made(b"x")])[0].status is PutStatus.SERVICE_NOT_AVAILABLE
    disk.power_cut(0.0)
    again = opened(disk, clock)
    assert (again.recovery.records, again.recovery.rebuilt) == (0, False)
    assert bodies(again, queue_id=1) == [b"%d" % n for n in range(1, 50, 3)]
    assert again.store_id == store.store_id


def test_a_restart_after_a_crash_reads_the_tail_only() -> None:
    clock = Clock()
    disk = SimDisk()
    store = opened(disk, clock)
    store.put_batch([made(b"%d" % n, UNIQ_KEY=f"u{n}") for n in range(50)])
    settle(store, clock, 100)
    store.put_batch([made(b"%d" % n, UNIQ_KEY=f"u{n}") for n in range(50, 60)])
    store.commit_log.sync()
    disk.power_cut(0.0)
    again = opened(disk, clock)
    assert (again.recovery.records, again.recovery.rebuilt) == (10, False)
    assert bodies(again) == [b"%d" % n for n in range(60)]
    assert all(len(again.query("T", f"u{n}", 2, 0, FOREVER)) == 1 for n in range(60))
    assert again.check() == []


@pytest.mark.parametrize("lost", ["consumequeue", "timewheel/progress", "timewheel/keyindex", "checkpoint"])
@pytest.mark.parametrize("clean", [True, False])
def test_derived_files_may_be_lost(tmp_path: Path, lost: str, clean: bool) -> None:
    clock = Clock()
    store = opened(Files(), clock, root=tmp_path)
    store.put_batch([made(b"%d" % n, queue_id=n % 2, UNIQ_KEY=f"u{n}") for n in range(60)])
    settle(store, clock)
    store.put_batch([made(b"%d" % n, queue_id=n % 2, UNIQ_KEY=f"u{n}") for n in range(60, 70)])
    if clean:
        store.close()
    else:
        store._release()
    path = tmp_path / lost
    if path.is_dir():
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()
    else:
        path.unlink()
    said: list[str] = []
    again = opened(Files(), clock, root=tmp_path, warn=said)
    assert again.recovery.rebuilt == (lost == "consumequeue")
    assert bool(said) == again.recovery.rebuilt
    for queue_id in (0, 1):
        assert bodies(again, queue_id=queue_id) == [b"%d" % n for n in range(queue_id, 70, 2)]
    assert all(len(again.query("T", f"u{n}", 2, 0, FOREVER)) == 1 for n in range(70))
    assert again.check() == []
    again.close()


def test_one_lost_consume_queue_file_is_noticed() -> None:
    disk = SimDisk()
    clock = Clock()
    store = opened(disk, clock)
    store.put_batch([made(b"%d" % n, queue_id=n % 2) for n in range(60)])
    store.close()
    disk.remove(ROOT / "consumequeue" / "T" / "1" / f"{100:020d}")
    again = opened(disk, clock)
    assert again.recovery.rebuilt
    assert bodies(again, queue_id=1) == [b"%d" % n for n in range(1, 60, 2)]


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("operation", ["create", "truncate", "pwrite", "sync", "sync_dir"])
def test_a_queues_file_whose_making_failed_is_made_durable_by_the_next_flush(operation: str, number: int) -> None:
    """The file is there, but whether its name, its size or its blanks would survive a power cut is not known."""
    disk = SimDisk()
    clock = Clock()
    store = opened(disk, clock)
    store.put_batch([made(b"%d" % n, queue_id=n // 7) for n in range(9)])  # of two files, and of one
    disk.fail_at(operation, {number}, SyncFailedError("no") if "sync" in operation else disk.full(), "consumequeue")
    settle(store, clock)
    disk.fault = None
    store.close()
    for seed in range(4):  # draws how many of the new names a power cut leaves
        twin = disk.copy()
        twin.rng = Random(seed)
        twin.power_cut(0.0)
        again = opened(twin, clock)
        assert not again.recovery.rebuilt
        assert bodies(again) + bodies(again, queue_id=1) == [b"%d" % n for n in range(9)]
        assert again.check() == []


@pytest.mark.parametrize("torn_bytes", [0, 40, 60])
@pytest.mark.parametrize("twice", [False, True])
def test_a_new_queues_file_whose_making_was_torn_is_made_again(torn_bytes: int, twice: bool) -> None:
    """Its size was not durable, but its first entries were: sync, power and the next start's sync had failed."""
    disk = SimDisk()
    clock = Clock()
    store = opened(disk, clock)
    store.put_batch([made(b"%d" % n) for n in range(9)])
    settle(store, clock)
    store.put_batch([made(b"%d" % n, queue_id=1) for n in range(9)])
    store.commit_log.sync()
    disk.kill()
    torn = ROOT / "consumequeue" / "T" / "1" / f"{0:020d}"
    disk.makedirs(torn.parent)
    disk.open(torn, create=True, size=torn_bytes)
    if twice:  # and a queue that was known is lost, so that all were derived from the log again, and this was cut off
        disk.remove(ROOT / "consumequeue" / "T" / "0" / f"{0:020d}")
        disk.fail_at("pwrite", {1}, PowerCut(), match="consumequeue")
        with pytest.raises(PowerCut):
            settle(opened(disk, clock), clock)
        disk.power_cut(1.0)
        disk.makedirs(torn.parent)
        disk.open(torn, create=True, size=torn_bytes)
    said: list[str] = []
    again = opened(disk, clock, warn=said)
    assert said == []  # the second time, what it found is known to be nothing
    assert again.recovery.rebuilt == twice
    assert bodies(again) == bodies(again, queue_id=1) == [b"%d" % n for n in range(9)]
    assert again.check() == []


@pytest.mark.parametrize("torn_bytes", [0, 40])
@pytest.mark.parametrize("count", [6, 10])
def test_a_known_queues_next_file_whose_making_was_torn_goes_alone(torn_bytes: int, count: int) -> None:
    """Nothing is derived again: a topic that was deleted would be back."""
    disk = SimDisk()
    clock = Clock()
    store = opened(disk, clock)
    store.put_batch([made(b"gone", "DELETED") for _ in range(3)] + [made(b"%d" % n) for n in range(count)])
    settle(store, clock)
    store.delete_topic("DELETED")
    disk.kill()
    torn = ROOT / "consumequeue" / "T" / "0" / f"{200:020d}"
    disk.open(torn, create=True, size=torn_bytes)
    for _ in range(2):
        again = opened(disk, clock)
        assert not again.recovery.rebuilt
        assert again.topics_on_disk() == ["T"]
        assert bodies(again) == [b"%d" % n for n in range(count)]
        assert again.check() == []
        disk.power_cut(0.0)


def test_a_kill_while_queues_follow_the_logs_begin_has_nothing_derived_again() -> None:
    """A round says how far everything is when some of the queues' expired files are gone and others are not."""
    clock = Clock()
    disk = SimDisk()
    options = StoreOptions(
        commit_log_segment_bytes=2000,
        consume_queue_segment_bytes=100,
        file_reserved_hours=0,
        delete_when=tuple(range(24)),
        delete_batch_max=99,
    )
    store = opened(disk, clock, options)
    for n in range(12):
        store.put_batch([made(b"%d" % n, queue_id=queue_id) for queue_id in range(9)])
    settle(store, clock)
    store.checkpoint.register("test", lambda: b"")
    store.checkpoint.write(lambda: store.commit_log.end, lambda: None)
    assert store.delete_expired(clock.now_ms) > 0
    for slices in range(4):
        twin = opened(disk.copy(), clock, options)
        assert not twin.recovery.rebuilt, slices
        store._keeper.finish()  # with the sums of those that have not followed
        store.retention._follow()
        twin = opened(disk.copy(), clock, options)
        assert not twin.recovery.rebuilt, slices
        assert twin.check() == []
    assert store.retention._following is None


def test_a_known_queues_file_of_another_size_has_all_queues_derived_again(tmp_path: Path) -> None:
    store = opened(Files(), root=tmp_path)
    store.put_batch([made(b"%d" % n) for n in range(9)])
    store.close()
    with (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").open("r+b") as file:
        file.truncate(40)
    said: list[str] = []
    again = opened(Files(), root=tmp_path, warn=said)
    assert again.recovery.rebuilt
    assert len(said) == 1
    assert "cut off: all are derived from the log again" in said[0]
    assert bodies(again) == [b"%d" % n for n in range(9)]
    again.close()


def test_a_topic_that_is_deleted_begins_anew() -> None:
    clock = Clock()
    disk = SimDisk()
    store = opened(disk, clock)
    store.put_batch([made(b"old-%d" % n) for n in range(20)])
    settle(store, clock)
    assert store.delete_topic("T")
    assert not store.delete_topic("T")
    assert store.max_offset("T", 0) == 0
    assert store.put_batch([made(b"new-0")])[0].queue_offset == 0
    store.commit_log.sync()
    assert bodies(store) == [b"new-0"]
    for keep in (1.0, 0.0):
        disk.power_cut(keep)
        store = opened(disk, clock)
        assert bodies(store) == [b"new-0"]
    disk.remove(ROOT / "timewheel" / "progress")  # everything is derived again: old, then new from 0
    for name in disk.listdir(ROOT / "consumequeue" / "T" / "0"):
        disk.remove(ROOT / "consumequeue" / "T" / "0" / name)
    disk.remove(ROOT / "consumequeue" / "T" / "0")
    disk.kill()
    assert bodies(opened(disk, clock)) == [b"new-0"]


@pytest.mark.parametrize("name", ["../commitlog", "..", ".", "", str(ROOT / "commitlog"), "T/0", "\0", "x" * 5000])
def test_deleting_what_is_no_topic_touches_nothing(tmp_path: Path, name: str) -> None:
    """A client names the topic: it must not lead out of consumequeue/."""
    for root, files in ((ROOT, SimDisk()), (tmp_path, Files())):
        clock = Clock()
        store = opened(files, clock, root=root)
        store.put_batch([made(b"%d" % n) for n in range(20)])
        settle(store, clock)
        assert not store.delete_topic(name.replace(str(ROOT), str(root)))
        store.close()
        again = opened(files, clock, root=root)
        assert bodies(again) == [b"%d" % n for n in range(20)]
        assert again.check() == []
        again.close()


def test_a_queue_whose_beginning_has_expired_is_rebuilt_with_blanks() -> None:
    clock = Clock()
    disk = SimDisk()
    store = opened(disk, clock)
    store.put_batch([made(b"%d" % n) for n in range(100)])
    store.commit_log.sync()
    while store.commit_log.remove_oldest():
        pass
    first = store.min_offset("T", 0)
    assert 60 < first < 100
    expected = bodies(store, offset=first)
    assert store.pull("T", 0, 3, 5, 1000, None).status is PullStatus.OFFSET_TOO_SMALL
    store.close()
    assert bodies(opened(disk, clock), offset=first) == expected
    disk.kill()
    store = opened(disk, clock)
    store.close()
    for name in disk.listdir(ROOT / "consumequeue" / "T" / "0"):
        disk.remove(ROOT / "consumequeue" / "T" / "0" / name)
    for clean in (False, True):
        store = opened(disk, clock)
        assert store.recovery.rebuilt != clean
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (first, 100)
        assert bodies(store, offset=first) == expected
        assert store.check() == []
        store.close()
    raw = disk.read_file(ROOT / "consumequeue" / "T" / "0" / f"{first * 20 // 100 * 100:020d}")
    blank = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    assert raw[: first * 20 % 100] == blank * (first % 5)


def test_retention_by_age_by_disk_and_never_past_a_pin() -> None:
    clock = Clock()
    disk = SimDisk()
    options = StoreOptions(
        commit_log_segment_bytes=500,
        consume_queue_segment_bytes=100,
        file_reserved_hours=1,
        delete_when=tuple(range(24)),
        delete_batch_max=3,
    )
    store = opened(disk, clock, options)
    disk.now_ms = clock.now_ms
    for n in range(40):
        store.put_batch([made(b"%d" % n)])
    store.commit_log.sync()
    store.checkpoint.register("test", lambda: b"")
    store.checkpoint.write(lambda: store.commit_log.end, lambda: None)
    store._keeper.finish()
    pins = [10**9]
    store.retention.pins.append(lambda: pins[0])
    assert store.delete_expired(clock.now_ms) == 0
    clock.now_ms += 3_600_000
    pins[0] = 1100
    assert store.delete_expired(clock.now_ms) == 2
    assert store.commit_log.begin == 1000
    assert store.delete_expired(clock.now_ms) == 0
    pins[0] = 10**9
    assert store.delete_expired(clock.now_ms) == 3
    settle(store, clock)
    assert store.check() == []
    assert store.min_offset("T", 0) > 20
    assert disk.listdir(ROOT / "consumequeue" / "T" / "0")[0] > f"{300:020d}"
    store.put_batch([made(b"%d" % n, "Other") for n in range(10)])
    store.commit_log.sync()
    store.checkpoint.write(lambda: store.commit_log.end, lambda: None)
    store._keeper.finish()
    while store.delete_expired(clock.now_ms):
        pass
    assert len(store.commit_log.segments()) == 1
    assert store.max_offset("T", 0) == 40
    assert bodies(store, offset=store.min_offset("T", 0)) == []
    assert store.check() == []  # of this queue nothing is left, which is not wrong


def test_the_checkpoint_and_pending_levels_hold_segments() -> None:
    clock = Clock()
    disk = SimDisk()
    options = StoreOptions(
        commit_log_segment_bytes=700, file_reserved_hours=0, delete_when=tuple(range(24)), delete_batch_max=99
    )
    store = opened(disk, clock, options)
    store.put_batch([made(b"%d" % n) for n in range(20)])
    store.commit_log.sync()
    assert store.delete_expired(clock.now_ms) == 0  # nothing was checkpointed
    store.checkpoint.register("test", lambda: b"")
    store.checkpoint.write(lambda: store.commit_log.end, lambda: None)
    store._keeper.finish()
    (level,) = store.put_batch([made(b"level", "SCHEDULE_TOPIC_XXXX", 17, DELAY="18", REAL_TOPIC="T", REAL_QID="0")])
    store.put_batch([made(b"%d" % n) for n in range(20)])
    store.commit_log.sync()
    store.checkpoint.write(lambda: store.commit_log.end, lambda: None)
    store._keeper.finish()
    assert store.delete_expired(clock.now_ms) > 0
    assert store.commit_log.begin <= level.offset < store.commit_log.begin + 700
    clock.now_ms += 3 * 3_600_000 + 1
    assert store.delete_expired(clock.now_ms) > 0
    assert len(store.commit_log.segments()) == 1


def test_what_is_not_derived_yet_holds_segments() -> None:
    clock = Clock()
    disk = SimDisk()
    options = StoreOptions(
        commit_log_segment_bytes=500, file_reserved_hours=0, delete_when=tuple(range(24)), delete_batch_max=99
    )
    store = opened(disk, clock, options)
    store._keeper.finish()
    for n in range(40):
        store.put_batch([made(b"%d" % n)])
    store.commit_log.sync()
    store.checkpoint.register("test", lambda: b"")
    store.checkpoint.write(lambda: store.commit_log.end, lambda: None)
    store.delete_expired(clock.now_ms)
    disk.kill()
    said: list[str] = []
    again = opened(disk, clock, options, warn=said)
    assert said == []  # nothing was missing
    assert bodies(again) == [b"%d" % n for n in range(40)]
    again._keeper.finish()
    assert again.delete_expired(clock.now_ms) > 0


def test_a_disk_that_fills_up() -> None:
    clock = Clock()
    disk = SimDisk()
    said: list[str] = []
    options = StoreOptions(commit_log_segment_bytes=500, file_reserved_hours=99, delete_when=())
    store = opened(disk, clock, options, warn=said)
    store.put_batch([made(b"%d" % n) for n in range(20)])
    store.commit_log.sync()
    store.checkpoint.register("test", lambda: b"")
    store.checkpoint.write(lambda: store.commit_log.end, lambda: None)
    disk.free = disk.total // 20
    settle(store, clock)
    assert store.writable(clock.now_ms) is PutStatus.SERVICE_NOT_AVAILABLE
    (refused,) = store.put_batch([made(b"x")])
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "95.0% full, the limit is 90%" in refused.remark
    delivery = made(b"was accepted before")
    delivery.due_ms, delivery.guarded = clock.now_ms, True
    assert store.put_batch([delivery])[0].status is PutStatus.PUT_OK
    assert len(said) == 1
    assert store.commit_log.begin > 0  # segments went before their time
    disk.free = disk.total // 2
    settle(store, clock)
    assert store.put_batch([made(b"x")])[0].status is PutStatus.PUT_OK
    disk.fail_at("pwrite", set(range(1, 100)), disk.full())
    (refused,) = store.put_batch([made(b"y")])
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "No space left" in refused.remark
    disk.fault = None
    assert store.put_batch([made(b"z")])[0].queue_offset == 22


def test_a_failed_sync_stops_puts_until_it_is_made_up_for() -> None:
    clock = Clock()
    disk = SimDisk()
    store = opened(disk, clock)
    store.put_batch([made(b"a")])
    told: list[bool] = []
    store.flusher.submit(store.commit_ticket(), told.append)
    disk.fail_at("sync", {1}, SyncFailedError("cannot sync: Input/output error (errno 5)"))
    store.flusher.step(clock.now_ms)
    assert told == [False]
    assert store.writable() is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.put_batch([made(b"b")])[0].status is PutStatus.SERVICE_NOT_AVAILABLE
    settle(store, clock)
    assert store.writable() is PutStatus.PUT_OK
    assert store.put_batch([made(b"c")])[0].queue_offset == 1
    disk.power_cut(0.0)
    assert bodies(opened(disk, clock)) == [b"a"]


def test_directories_that_are_not_opened(tmp_path: Path) -> None:
    store = opened(Files(), root=tmp_path)
    store.put_batch([made(b"x")])
    with pytest.raises(StoreLockedError, match="already open"):
        opened(Files(), root=tmp_path)
    store.close()
    with pytest.raises(StoreFormatError, match=r"2000 bytes at offset 0, but mappedFileSizeCommitLog is 4000"):
        opened(Files(), options=StoreOptions(commit_log_segment_bytes=4000), root=tmp_path)
    with pytest.raises(StoreFormatError, match=r"mappedFileSizeConsumeQueue is 200"):
        opened(
            Files(), options=StoreOptions(commit_log_segment_bytes=2000, consume_queue_segment_bytes=200), root=tmp_path
        )
    identity = tmp_path / "timewheel" / "store"
    text = identity.read_text()
    identity.write_text(text.replace("format=1", "format=2"))
    with pytest.raises(StoreFormatError, match="format version 2, this program knows 1"):
        opened(Files(), root=tmp_path)
    identity.write_text("nonsense")
    with pytest.raises(StoreCorruptError, match="format or id cannot be read"):
        opened(Files(), root=tmp_path)
    identity.write_text(text)
    (tmp_path / "consumequeue" / "CURRENT").touch()
    with pytest.raises(StoreFormatError, match="RocksDB"):
        opened(Files(), root=tmp_path)
    (tmp_path / "consumequeue" / "CURRENT").unlink()
    (tmp_path / "batchconsumequeue" / "B" / "0").mkdir(parents=True)
    with pytest.raises(StoreFormatError, match="batch ConsumeQueues, which cannot be read: B"):
        opened(Files(), root=tmp_path)
    (tmp_path / "batchconsumequeue" / "B" / "0").rmdir()
    opened(Files(), root=tmp_path).close()


def test_a_log_that_ends_before_what_was_durable_is_left_alone() -> None:
    disk = SimDisk()
    clock = Clock()
    store = opened(disk, clock)
    store.put_batch([made(b"%d" % n) for n in range(30)])
    store.close()
    disk.remove(ROOT / "commitlog" / f"{2000:020d}")
    with pytest.raises(StoreCorruptError, match=r"was durable, and is missing"):
        opened(disk, clock)
    assert len(disk.listdir(ROOT / "commitlog")) == 1
    disk.remove(ROOT / "timewheel" / "progress")
    disk.remove(ROOT / "timewheel" / "checkpoint")
    assert len(bodies(opened(disk, clock))) > 10


def test_options_from_a_broker_conf() -> None:
    options = StoreOptions.from_config(
        {
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeConsumeQueue": "6001",
            "flushDiskType": "SYNC_FLUSH",
            "messageDelayLevel": "2s 1d",
            "deleteWhen": "04;16",
            "diskMaxUsedSpaceRatio": "0.5",
            "cleanFileForciblyEnable": "false",
        }
    )
    assert (options.commit_log_segment_bytes, options.consume_queue_segment_bytes) == (65536, 6020)
    assert options.flush_sync
    assert options.delay_levels_ms == (2000, 86_400_000)
    assert options.delete_when == (4, 16)
    assert options.disk_max_used_ratio == 0.5
    assert not options.clean_file_forcibly
    assert StoreOptions.from_config({}) == StoreOptions()
    for key, value in [
        ("flushDiskType", "MAYBE"),
        ("mappedFileSizeCommitLog", "-5"),
        ("messageDelayLevel", "1s 2w"),
        ("messageDelayLevel", " "),
        ("deleteWhen", "25"),
        ("diskMaxUsedSpaceRatio", "much"),
        ("cleanFileForciblyEnable", "perhaps"),
    ]:
        with pytest.raises(StoreError, match=key):
            StoreOptions.from_config({key: value})


def test_runtime_figures() -> None:
    store = opened(SimDisk())
    store.put_batch([made(b"x")])
    info = store.runtime_info()
    assert info["commitLogMaxOffset"] == str(store.commit_log.end)
    assert info["putMessageTimesTotal"] == "1"
    assert all(isinstance(value, str) for value in info.values())


def test_a_full_disk_refuses_what_is_new_also_if_its_time_is_past() -> None:
    clock = Clock()
    disk = SimDisk()
    store = opened(disk, clock)
    disk.free = 0
    store.retention.look_at_disk()
    late = made(b"sent with a time that is past")
    late.due_ms = clock.now_ms - 1
    delivery = made(b"accepted before")
    delivery.due_ms, delivery.guarded = clock.now_ms - 1, True
    copy = PutRecord("T", 0, made(b"from a level").record, 0, (), clock.now_ms - 1, accepted=True)
    statuses = [store.put_batch([record])[0].status for record in (late, delivery, copy)]
    assert statuses == [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.PUT_OK, PutStatus.PUT_OK]


@pytest.mark.parametrize("seed", range(10))
def test_a_crash_while_queues_are_derived_again_leaves_no_half_of_them(seed: int) -> None:
    """Some of the old files were gone already, some were not, and the old progress spoke of all of them."""
    disk, clock = SimDisk(seed), Clock()
    store = opened(disk, clock)
    for n in range(18):
        store.put_batch([made(b"%d" % n)])
    settle(store, clock)
    disk.kill()
    directory = ROOT / "consumequeue" / "T" / "0"
    names = disk.listdir(directory)
    assert len(names) > 3
    disk.remove(directory / names[1])  # so the next start derives all of them again
    disk.sync_dir(directory)
    removed = 0

    def fails(operation: str, path: Path) -> None:
        nonlocal removed
        if operation == "remove" and path.parent == directory:
            removed += 1
            if removed == 2 + seed % 2:
                disk.sync_dir(directory)
                raise PowerCut

    disk.fault = fails
    with pytest.raises(PowerCut):
        opened(disk, clock)
    disk.power_cut(1.0)
    again = opened(disk, clock)
    assert bodies(again, offset=again.min_offset("T", 0)) == [b"%d" % n for n in range(18)]


@pytest.mark.parametrize("topic", [b"to\0ic", b"../../", b".", b"a/b"])
def test_a_damaged_topic_or_number_makes_no_directory_and_no_memory(tmp_path: Path, topic: bytes) -> None:
    """No checksum of Apache's covers them: the record cannot be reached, everything else can."""
    name = "t" * len(topic)
    store = opened(Files(), root=tmp_path / "store")
    puts = [made(b"a"), made(b"b", name), made(b"c"), made(b"d")]
    for put in puts:
        put.record = without_sum(put.record)
    store.put_batch(puts)
    offsets = [position for _, (position, *_) in enumerate(store.queue_entries("T", 0, 0, 9))]
    store.close()
    path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    changed = bytearray(path.read_bytes())
    at = changed.index(name.encode() + b"\0")
    changed[at : at + len(topic)] = topic
    changed[offsets[2] + 20 : offsets[2] + 28] = (1 << 50).to_bytes(8, "big")
    path.write_bytes(changed)
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    (tmp_path / "store" / "timewheel" / "progress").unlink()
    before = sorted(tmp_path.iterdir())
    again = opened(Files(), root=tmp_path / "store")
    assert again.topics_on_disk() == ["T"]
    assert bodies(again) == [b"a", b"c"]
    again.put_batch([made(b"e")])
    assert bodies(again) == [b"a", b"c", b"e"]
    again.close()
    assert sorted(tmp_path.iterdir()) == before
    assert [path.name for path in (tmp_path / "store" / "consumequeue").iterdir()] == ["T"]
