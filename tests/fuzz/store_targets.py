"""Targets: records, the CommitLog and what is derived from it, and the small files beside it."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext
from pathlib import Path
from struct import Struct, pack
from zlib import crc32

import broker_plugin.due_record
import remoting.messages.record
import remoting.messages.stored
import store.derived.apache_index
import store.derived.consume_queue
import store.derived.dispatch
import store.derived.index
import store.disk.apache_files
import store.disk.checkpoint
import store.disk.identity
import store.disk.segments
import store.half_messages
import store.levels.delay_offsets
import store.levels.level_copy
import store.levels.level_progress
import store.levels.level_queue
import store.log.commit_log
import store.log.log_reader
import store.log.log_scan
import store.progress
from broker_plugin.due_record import due_record
from remoting.errors import RecordError
from remoting.messages.record import Message, encode_record, record_fields
from remoting.messages.stored import decode_record
from store.derived.apache_index import ApacheIndex
from store.derived.consume_queue import ConsumeQueue
from store.derived.dispatch import Derived
from store.derived.index import KeyIndex
from store.derived.queue_entries import ENTRY
from store.disk.apache_files import TIMER_TOPIC, ApacheCheckpoint, check_timer, read_timer_check
from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.errors import StoreCorruptError, StoreFormatError
from store.disk.file_cache import FileCache
from store.disk.identity import store_identity
from store.disk.segments import segment_name
from store.half_messages import HalfMessages
from store.levels.delay_offsets import DelayOffsets
from store.levels.level_copy import copy_of, mark_of
from store.levels.level_progress import LevelProgress
from store.log.commit_log import CommitLog
from store.log.log_scan import Stop, blank_record, valid_size, walk
from store.progress import Progress
from store.put.put_record import put_record_of
from tests.fuzz.engine import Target
from tests.fuzz.memory import MemoryFile, MemoryFiles
from tests.fuzz.wire_targets import JSON_WORDS, OWN, PROPERTIES, TIMED

__all__ = ["STORE_ID", "TARGETS"]

STORE_ID = bytes(range(16))
ROOT = Path("/store")
DAMAGED = (StoreCorruptError, StoreFormatError)
LEVELS_MS = (1_000, 5_000, 10_000)
_TWO_LONGS = Struct(">qq")
_LONG = Struct(">q")


# ------------------------------------------------------------------------------------------------ records


def _record(topic: str, body: bytes, properties: str, place: int = 0, number: int = 0, v6: bool = False) -> bytes:
    message = Message(topic, 1, 0, 0, 1_763_600_000_000, bytes(20 if v6 else 8), 0, 0, body, properties)
    record = bytearray(encode_record(message, b"\x0a\0\0\x01\0\0\x2a\x9f"))
    _TWO_LONGS.pack_into(record, 20, number, place)
    _LONG.pack_into(record, 68 if v6 else 56, 1_763_600_000_500)
    return bytes(record)


LEVEL_PROPERTIES = f"REAL_TOPIC\x01T\x02REAL_QID\x013\x02DELAY\x012\x02{PROPERTIES}"


def _records() -> list[bytes]:
    return [
        _record("T", b"body", PROPERTIES),
        _record("TopicTest", b"x" * 70, PROPERTIES + TIMED + OWN, v6=True),
        _record("SCHEDULE_TOPIC_XXXX", b"", LEVEL_PROPERTIES),
        _record("t" * 200, b"long", OWN),
        _record("T", b"", ""),
    ]


def repair_record(data: bytes) -> bytes:
    """Right size, magic and body CRC, where the fields in between allow it."""
    if len(data) < 91:
        return data
    out = bytearray(data)
    out[:4] = pack(">i", len(out))
    if out[4:8] not in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"):
        out[4:8] = b"\xda\xa3\x20\xa7"
    _repair_properties(out)
    body_at = 88 + 12 * (out[39] & 0x30).bit_count()
    body_bytes = int.from_bytes(out[body_at - 4 : body_at], "big", signed=True)
    if 0 <= body_bytes <= len(out) - body_at:
        out[8:12] = pack(">I", crc32(out[body_at : body_at + body_bytes]) & 0x7FFFFFFF)
    return bytes(out)


def _repair_properties(out: bytearray) -> None:
    """Let the properties reach to the record's end."""
    body_at = 88 + 12 * (out[39] & 0x30).bit_count()
    topic_at = body_at + int.from_bytes(out[body_at - 4 : body_at], "big", signed=True)
    if 88 <= topic_at < len(out) - 2:
        wide = out[7] == 0xAB
        at = topic_at + 1 + wide + (int.from_bytes(out[topic_at : topic_at + 2], "big") if wide else out[topic_at])
        if at + 2 <= len(out) <= at + 2 + 0x7FFF:
            out[at : at + 2] = pack(">H", len(out) - at - 2)


def run_record(data: bytes) -> Hashable:
    """One record, by every reader of records: they agree on what is one, and on what it says."""
    valid = valid_size(data, 0, int.from_bytes(data[28:36], "big", signed=True))
    assert -1 <= valid <= len(data)
    fields: object = None
    try:
        fields = record_fields(data)
        Derived(data, LEVELS_MS)
    except RecordError:
        assert valid <= 0, "a valid record has no fields"
    try:
        delivery = due_record(data, 17)
    except RecordError:
        assert valid <= 0, "a valid record cannot be delivered"
    else:
        slow = put_record_of(data, 17)
        for name in ("topic", "queue_id", "record", "tags_code", "keys", "due_ms", "guarded"):
            assert getattr(delivery, name) == getattr(slow, name), f"{name} differs by the quick way"
    if fields is not None and len(data) > 39:
        mark_of(data)
    stored = decode_record(data)
    if len(data) == stored.size:
        assert fields == (stored.topic, stored.queue_id, stored.properties), f"{fields!r}, decoded {stored!r}"
    if stored.queue_id < 0 or stored.queue_offset < 0:
        return "no queue", valid > 0, stored.version
    try:
        copy = copy_of(data, stored.queue_id + 1, stored.queue_offset, 5).record
    except RecordError:
        return "no level", valid > 0, stored.version
    assert decode_record(copy).body == stored.body
    assert mark_of(bytes(copy)) == (stored.queue_id + 1, stored.queue_offset)
    return "level", valid > 0, stored.version


# ------------------------------------------------------------------------------------------------ the log

SEGMENT = 1_024


def _segment(base: int, last: bool = False) -> bytes:
    out = b""
    for number, template in enumerate(_records()):
        record = bytearray(template)
        _TWO_LONGS.pack_into(record, 20, number, base + len(out))
        if len(out) + len(record) + 8 > SEGMENT:
            break
        out += record
    return out if last else out + blank_record(SEGMENT - len(out)) + bytes(SEGMENT - len(out) - 8)


def run_scan(data: bytes) -> Hashable:
    """One segment: what the scan yields is whole, one behind the other, and the scan ends where it says."""
    file = MemoryFile(ROOT, bytearray(data))
    stop = Stop()
    at = 4_096
    count = 0
    for offset, record in walk(file.pread, 4_096, 0, max(len(data), 1), stop, segment_bytes=len(data), read_bytes=200):
        assert offset == at, f"{offset} follows what ends at {at}"
        at += len(record)
        count += 1
        assert at <= 4_096 + len(data)
        record_fields(record)
        try:
            stored = decode_record(record)
        except RecordError:
            assert record[record.find(b"body") :] is not None  # names longer than V1 allows are left to others
        else:
            assert (stored.offset, stored.size) == (offset, len(record))
    assert stop.position == at - 4_096
    assert not stop.blank or stop.position < len(data)
    return count, stop.blank


def repair_log(data: bytes) -> bytes:
    """Right position, size of parts left alone, body CRC: of every record that can be told."""
    out = bytearray(data)
    at = 0
    while at + 91 <= len(out):
        size = int.from_bytes(out[at : at + 4], "big", signed=True)
        if out[at + 4 : at + 8] == b"\xcb\xd4\x31\x94":
            if size != SEGMENT - at % SEGMENT:
                break
            at += size
            continue
        if not 91 <= size <= len(out) - at:
            break
        record = bytearray(repair_record(bytes(out[at : at + size])))
        record[28:36] = pack(">q", at)
        out[at : at + size] = record
        at += size
    return bytes(out)


def run_log(data: bytes) -> Hashable:
    """A directory of segments that is recovered: the log is whole afterwards, and found so again."""
    count = max(1, -(-len(data) // SEGMENT))
    data = data.ljust(count * SEGMENT, b"\0")
    files = MemoryFiles(
        {
            ROOT / "commitlog" / segment_name(n * SEGMENT): data[n * SEGMENT : (n + 1) * SEGMENT]
            for n in range(min(count, 4))
        }
    )
    log = CommitLog(files, ROOT / "commitlog", SEGMENT)
    at_least = data[-1] if data[-2] == 77 else 0
    found = list(log.recover(0, at_least))
    assert log.check() == [], log.check()
    assert list(log.scan(0)) == found, "another scan finds other records"
    for offset, record in found:
        assert log.read_record(offset) == record
    for offset in range(0, 200, 7):
        log.read_record(offset)
        log.raw_record(offset, int.from_bytes(data[offset : offset + 4], "big", signed=True))
    for segment in log.segments():
        log.first_store_ms(segment)
    again = CommitLog(files, ROOT / "commitlog", SEGMENT)
    assert list(again.recover(0)) == found, "recovered once more, there are other records"
    assert again.end == log.end
    return len(found), log.end // SEGMENT


# ------------------------------------------------------------------------------------------------ queues and keys

QUEUE_BYTES = 200


def _entries(first: int, count: int) -> bytes:
    return b"".join(ENTRY.pack(100 * n, 100, n) for n in range(first, first + count))


def run_queue(data: bytes) -> Hashable:
    """The files of a ConsumeQueue without a word about their length, as Apache leaves them."""
    directory = ROOT / "consumequeue" / "T" / "0"
    count = max(1, min(4, -(-len(data) // QUEUE_BYTES)))
    data = data.ljust(count * QUEUE_BYTES, b"\0")
    start = QUEUE_BYTES * (data[0] & 1)
    files = MemoryFiles(
        {
            directory / segment_name(start + n * QUEUE_BYTES): data[n * QUEUE_BYTES : (n + 1) * QUEUE_BYTES]
            for n in range(count)
        }
    )
    queue = ConsumeQueue(FileCache(files), directory, "T", 0, QUEUE_BYTES)
    limit = 1 << 62 if data[1] & 1 else 2_000
    queue.load_scanning(limit)
    assert 0 <= queue.count <= (start + count * QUEUE_BYTES) // 20
    for number in range((start + max(0, count - 3) * QUEUE_BYTES) // 20, queue.count):
        entry = queue.entry(number)
        if entry is not None:
            offset, size, _ = entry
            assert size > 0 <= offset, f"entry {number}: {entry}"
            assert offset + size <= limit or size == 0x7FFFFFFF, f"entry {number}: {entry}"
    lowest = queue.min_offset(0)
    assert 0 <= lowest <= queue.count
    queue.min_offset(700)
    wrong = len(queue.check(0, 2_000))
    queue.clear_behind()
    queue.log_end()
    before = queue.count
    queue.add(1_900, 10, 5)
    queue.flush(queue.count)
    queue.settle()
    assert queue.entry(before) == (1_900, 10, 5)
    queue.delete_before(400)
    again = ConsumeQueue(FileCache(files), directory, "T", 0, QUEUE_BYTES)
    assert again.load(before + 1) or queue.count > before + 1 or before == 0
    return before, wrong, lowest == 0


def _index_files() -> list[bytes]:
    files = MemoryFiles()
    index = KeyIndex(files, ROOT / "keyindex", nullcontext(), block_entries=8, blocks_a_file=3)
    index.open(0)
    for n in range(30):
        index.add("T", (f"k{n % 7}", f"u{n}"), 100 * n, 1_000 + n)
        index.covers(100 * n + 100)
        while index.step():
            pass
    index.close()
    made = {path.name: bytes(data) for path, data in files.files.items()}
    tail = made.pop("tail.idx", b"")
    return [pack(">H", len(tail)) + tail + data for data in made.values()] + [pack(">H", 0) + next(iter(made.values()))]


def _index_parts(data: bytes) -> tuple[bytes, bytes]:
    size = min(int.from_bytes(data[:2], "big"), max(0, len(data) - 2))
    return data[2 : 2 + size], data[2 + size :]


def repair_index(data: bytes) -> bytes:
    """Right CRC of every block that fits."""
    tail, blocks = _index_parts(data)
    out = []
    for part in (tail, blocks):
        block = bytearray(part)
        at = 0
        while at + 48 <= len(block):
            end = at + 48 + 20 * int.from_bytes(block[at + 4 : at + 8], "big")
            if end > len(block):
                break
            block[at + 8 : at + 12] = pack(">I", crc32(block[at + 12 : end]))
            at = end
        out.append(bytes(block))
    return pack(">H", len(tail)) + out[0] + out[1]


def run_index(data: bytes) -> Hashable:
    """The key index: derived data, so everything but another version is cut off, and it goes on from there."""
    tail, blocks = _index_parts(data)
    directory = ROOT / "keyindex"
    files = MemoryFiles({directory / f"{0:020d}.idx": blocks})
    if tail:
        files.replace_file(directory / "tail.idx", tail)
    index = KeyIndex(files, directory, nullcontext(), block_entries=8, blocks_a_file=3)
    known = index.open(5_000)
    assert known <= 5_000
    for key in ("k0", "k3", "u5", "nobody"):
        assert len(index.find("T", key, 0, 1 << 62, 32)) <= 32
    wrong = len(index.check())
    index.add("T", ("fresh",), 6_000, 7)
    index.covers(6_100)
    assert 6_000 in index.find("T", "fresh", 0, 10, 5)
    while index.step():
        pass
    index.close()
    again = KeyIndex(files, directory, nullcontext(), block_entries=8, blocks_a_file=3)
    again.open(7_000)
    return known // 500, wrong


class _Everywhere(MemoryFile):
    """The same few bytes all over a file of any size."""

    def pread(self, n: int, offset: int) -> bytes:
        """Read on from the beginning when the end is reached."""
        assert 0 <= n <= 40 and offset >= 0, f"{n} bytes at {offset}"
        at = offset % max(1, len(self.data) - 40)
        return bytes(self.data[at : at + n])


def run_apache_index(data: bytes) -> Hashable:
    """A look-up in an index file of Apache's: 420 MB of the input, repeated."""
    file = _Everywhere(ROOT, bytearray(data.ljust(80, b"\0")))
    found = ApacheIndex._find_in(file, int.from_bytes(data[:4], "big") >> 1, 0, 1 << 62, 32)
    assert len(found) <= 32
    return len(found) > 0


# ------------------------------------------------------------------------------------------------ small files


class _Delays:
    """What the level scheduler and the half messages ask a store for."""

    def __init__(self, checkpoint: DeliveryCheckpoint) -> None:
        self.checkpoint = checkpoint

    def put_batch(self, records: object) -> list[object]:  # noqa: ARG002
        return []

    def scan(self, from_offset: int) -> list[tuple[int, bytes]]:
        return [(max(0, from_offset), _records()[1])]

    def read_record(self, offset: int) -> bytes | None:
        return None if offset % 3 else _records()[2]

    def queue_entries(self, topic: str, queue_id: int, from_offset: int, limit: int) -> list[tuple[int, int, int]]:
        del topic, queue_id
        return [(100 * n, 100, 5) for n in range(max(0, from_offset), min(20, from_offset + limit))]

    def queue_ids(self, topic: str) -> list[int]:
        return [0, 1, 2, 17] if topic else []

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 2 if topic and queue_id % 2 else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 20 if topic and queue_id < 3 else 0


def run_checkpoint(data: bytes) -> Hashable:
    """The delivery checkpoint with its sections for levels and transactions."""
    path = ROOT / "deliverycheckpoint"
    files = MemoryFiles({path: data, ROOT / "delayOffset.json": b'{"offsetTable":{1:3}}'})
    checkpoint = DeliveryCheckpoint.open(files, path, STORE_ID)
    assert sum(map(len, checkpoint.sections.values())) <= len(data)
    checkpoint.check_log_end(10_000)
    store = _Delays(checkpoint)
    levels = LevelProgress(store, 18, files, ROOT / "delayOffset.json")  # type: ignore[arg-type]
    levels.recover()
    assert levels.pending_count() >= 0
    halves = HalfMessages(store)
    halves.recover(checkpoint.sections.get("transactions"), (1, 1), 300)
    checkpoint.write(lambda: 10_000, lambda: None)
    again = DeliveryCheckpoint.open(files, path, STORE_ID)
    assert again.sections == checkpoint.sections
    return len(checkpoint.sections), len(halves.undecided) > 2


def _checkpoints() -> list[bytes]:
    path = ROOT / "deliverycheckpoint"
    levels = b'{"pending":{"1":[[3,7],[9,null]],"3":[[5,null]]},"unreadable_count":1,"unreadable":[[1,2,3,"x"]]}'
    halves = Struct(">HHqqqqI").pack(1, 0, 6, 3, 2, 1, 2) + pack(">qqII", 2, 5, 0, 7)
    made = []
    for sections in ({}, {"levels": levels}, {"levels": levels, "transactions": halves, "delay": b"x" * 30}):
        files = MemoryFiles()
        checkpoint = DeliveryCheckpoint(files, path, STORE_ID)
        for name, section in sections.items():
            checkpoint.register(name, lambda section=section: section)
        checkpoint.touch()
        checkpoint.write(lambda: 500, lambda: None)
        made.append(bytes(files.files[path]))
    return made


def repair_checkpoint(data: bytes) -> bytes:
    """Right size and CRC."""
    if len(data) < 52:
        return data
    out = bytearray(data)
    out[8:12] = pack(">i", len(out))
    out[12:16] = bytes(4)
    out[12:16] = pack(">I", crc32(out))
    return bytes(out)


def run_progress(data: bytes) -> Hashable:
    """How far derived data is durable, held against a log."""
    path = ROOT / "progress"
    queue_dir = ROOT / "consumequeue" / "T" / "0"
    files = MemoryFiles(
        {
            path: data,
            ROOT / "commitlog" / segment_name(0): _segment(0),
            queue_dir / segment_name(0): bytes(QUEUE_BYTES),
            queue_dir / segment_name(QUEUE_BYTES): bytes(QUEUE_BYTES - 1),  # its making was cut off
        }
    )
    progress = Progress.read(files, path)
    if progress is None:
        return "unreadable"
    log = CommitLog(files, ROOT / "commitlog", SEGMENT)
    fits = progress.fits(log)
    cache = FileCache(files)
    for (topic, queue_id), count in list(progress.counts.items())[:5]:
        queue = ConsumeQueue(cache, queue_dir.with_name(str(queue_id)), topic, queue_id, QUEUE_BYTES)
        sums = progress.sums.get((topic, queue_id), ())
        queue.load(count, sums, progress.begin != 0, same_size=progress.file_bytes == QUEUE_BYTES)
        queue.sums()
    if fits:
        list(log.recover(max(progress.position, log.begin), progress.position))
    return fits, len(progress.counts)


def _progresses() -> list[bytes]:
    path = ROOT / "progress"
    made = []
    size = len(_records()[0])
    last = (0, size, 1_763_600_000_500)
    for progress in (
        Progress(size, {("T", 0): 1, ("SCHEDULE_TOPIC_XXXX", 17): 3}, last, True, file_bytes=QUEUE_BYTES),
        Progress(0, {}),
        Progress(size, {("T", 0): 1, ("T", 1): 0}, sums={("T", 0): ((0, 7),)}, file_bytes=QUEUE_BYTES),
    ):
        files = MemoryFiles()
        progress.write(files, path)
        made.append(bytes(files.files[path]))
    return made


def repair_progress(data: bytes) -> bytes:
    """Right CRC."""
    if len(data) < 44:
        return data
    return data[:12] + pack(">I", crc32(data[:12] + bytes(4) + data[16:])) + data[16:]


def run_identity(data: bytes) -> Hashable:
    """Whose store it is."""
    return len(store_identity(MemoryFiles({ROOT / "store": data}), ROOT / "store"))


def run_apache_files(data: bytes) -> Hashable:
    """Apache's checkpoint, and what its timer says is pending; the first byte tells how the input is shared out."""
    cut = data[0] if data else 0
    files = MemoryFiles(
        {
            ROOT / "checkpoint": data[1:],
            ROOT / "config" / "timercheck": data[1 : 1 + cut],
            ROOT / "timerwheel": data[1 + cut :],
            ROOT / "timerlog" / ("0" * 20): data[1 + cut :],
        }
    )
    ApacheCheckpoint.read(files, ROOT / "checkpoint").scan_from_ms()
    read_timer_check(files, ROOT)
    check_timer(files, ROOT, 1_000, 3)
    return TIMER_TOPIC


def run_delay_offsets(data: bytes) -> Hashable:
    """``config/delayOffset.json`` and its backup."""
    path = ROOT / "delayOffset.json"
    files = MemoryFiles({path: data})
    if data[-1:] == b" ":
        files.replace_file(path.with_name(path.name + ".bak"), b'{"offsetTable":{1:3}}')
    offsets = DelayOffsets(files, path).offsets
    assert all(type(level) is type(offset) is int for level, offset in offsets.items()), offsets
    return len(offsets)


_RECORD_MODULES = (
    remoting.messages.record,
    remoting.messages.stored,
    store.derived.dispatch,
    store.levels.level_copy,
    broker_plugin.due_record,
)
_RECORD_WORDS = (
    *(
        b"\xda\xa3\x20\xa7",
        b"\xda\xa3\x20\xab",
        b"\xcb\xd4\x31\x94",
        b"\x02TAGS\x01",
        b"\x02KEYS\x01",
        b"\x02__TW_ID\x01",
    ),
    *(b"__TW_LEVEL\x013:17\x02", b"__TW_LEVEL\x01" + b"9" * 4400 + b":1\x02", b"REAL_QID\x01" + b"9" * 4400 + b"\x02"),
    *(b"SCHEDULE_TOPIC_XXXX", b"DELAY\x01", b"\xff\xfe", b"\x01", b"\x02"),
)

TARGETS = (
    Target(
        *("record", run_record, _records, (RecordError,), _RECORD_MODULES),
        words=_RECORD_WORDS,
        repair=repair_record,
    ),
    Target(
        *("log_scan", run_scan, lambda: [_segment(4_096), _segment(4_096, True), _segment(0)], ()),
        (store.log.log_scan,),
        words=_RECORD_WORDS[:3],
    ),
    Target(
        *("commit_log", run_log, lambda: [_segment(0) + _segment(SEGMENT) + _segment(2 * SEGMENT, True), _segment(0)]),
        *(DAMAGED, (store.log.commit_log, store.log.log_reader, store.log.log_scan, store.disk.segments)),
        words=_RECORD_WORDS[:3],
        repair=repair_log,
    ),
    Target(
        *("consume_queue", run_queue, lambda: [_entries(0, 10) + _entries(10, 10) + _entries(20, 4), _entries(0, 3)]),
        *(DAMAGED, (store.derived.consume_queue,)),
        words=(ENTRY.pack(0, 0x7FFFFFFF, 0), ENTRY.pack((1 << 63) - 1, 5, 0), ENTRY.pack(0, 0, 0)),
    ),
    Target(
        *("key_index", run_index, _index_files, (StoreFormatError,), (store.derived.index,)),
        words=(b"TWK1", b"TWK2"),
        repair=repair_index,
    ),
    Target(
        *(
            "apache_index",
            run_apache_index,
            lambda: [bytes(range(1, 200)), bytes(100)],
            (),
            (store.derived.apache_index,),
        )
    ),
    Target(
        *("checkpoint", run_checkpoint, _checkpoints, DAMAGED),
        (store.disk.checkpoint, store.levels.level_progress, store.levels.level_queue, store.half_messages),
        words=(
            b"\x00\x06levels",
            b"transactions",
            b"null",
            b"[[",
            b"1e999",
            b"-1",
            b"9" * 30,
            b'"pending"',
            b"Infinity",
        ),
        repair=repair_checkpoint,
    ),
    Target(
        *("progress", run_progress, _progresses, DAMAGED, (store.progress, store.log.log_reader)),
        repair=repair_progress,
    ),
    Target(
        *(
            "identity",
            run_identity,
            lambda: [b"Do not edit.\nformat=1\nid=" + STORE_ID.hex().encode() + b"\n"],
            DAMAGED,
        ),
        (store.disk.identity,),
        words=(b"format=", b"id=", b"\n", b"=", b"\xc2\xb2", b"9" * 5000, b"\xd9\xa3"),
    ),
    Target(
        *(
            "apache_files",
            run_apache_files,
            lambda: [b"\x20" + pack(">qqqq", 5, 0, 3, 0) + bytes(80), bytes(200)],
            DAMAGED,
        ),
        (store.disk.apache_files,),
    ),
    Target(
        *(
            "delay_offsets",
            run_delay_offsets,
            lambda: [b'{"dataVersion":{"counter":3},"offsetTable":{1:12,2:3}}', b" "],
        ),
        *((StoreCorruptError,), (store.levels.delay_offsets,)),
        words=JSON_WORDS,
        memory=2_000,
    ),
)
