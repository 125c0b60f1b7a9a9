"""What garbage brought to light, each with the smallest input that did."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from struct import pack
from zlib import crc32

import numpy as np
import pytest

from broker.access.acl_file import AclFileError
from broker.access.acl_rules import AclRules
from broker.config.properties_file import parse_properties_file, update_properties_file
from broker.tables.groups import SubscriptionGroups
from broker.tables.json_files import DataVersion
from broker.tables.offsets import ConsumerOffsets
from broker.tables.subscriptions import GroupSubscription
from broker.tables.topics import Topics
from remoting import command, odd_fields
from remoting.connection import FrameDecoder
from remoting.errors import ProtocolError, RecordError
from remoting.filters import sql_filter
from remoting.filters.sql_filter import compile_sql92
from remoting.json_dialect import loads
from remoting.layout import FILE_HEADER_BYTES
from remoting.messages.record import Message, encode_record
from store.derived.consume_queue import ConsumeQueue
from store.derived.index import KeyIndex
from store.derived.queue_entries import ENTRY
from store.disk.delay_id import DELAY_ID_BASE
from store.disk.errors import StoreCorruptError, StoreError
from store.disk.file_cache import FileCache
from store.disk.identity import store_identity
from store.disk.segments import segment_name
from store.levels.delay_offsets import DelayOffsets
from store.levels.level_copy import copy_of, mark_of
from store.log.commit_log import CommitLog
from store.spill.journal.replay import replay
from store.spill.journal.segment import JournalSegment
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import (
    ACCEPT,
    JOURNAL_MAGIC,
    ColumnPage,
    column_page,
    encode_frame,
    encode_rows,
    file_header,
    frame_seed,
    page_seed,
)
from store.spill.rows.manifest import Manifest, RunEntry
from store.spill.rows.page_cache import RunPageCache
from store.spill.runs.run import Run
from store.spill.upkeep.checking import _check_frames
from tests.fuzz.memory import MemoryFile, MemoryFiles
from tests.fuzz.spill_targets import PAGE, ROOT, RUNS, SEED, SEGMENT, STORE_ID, _written

PATH = Path("/store/config/x.json")
HOST = bytes(8)


# ------------------------------------------------------------------------------------------------ from the network


def test_objects_for_keys_of_objects_for_keys() -> None:
    """Each level doubled the quotes of the text: 200 bytes of body took all the memory there was."""
    assert loads(b'{{"a":1}:2,{"b":{}}:3}') == {'{"a":1}': 2, '{"b":{}}': 3}
    with pytest.raises(ProtocolError, match="an object for a key within another one"):
        loads(b"{" * 40 + b'"a":1' + b"}:1" * 39 + b"}")


def test_a_header_is_read_once_however_many_lists_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read again for each: a header of 16 MiB would have kept the network loop for hours."""
    reads = 0
    read = json.loads

    def counted(*arguments: object, **options: object) -> object:
        nonlocal reads
        reads += 1
        return read(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(odd_fields.json, "loads", counted)
    header = dumped = json.dumps({"code": 1, "extFields": {f"n{n}": [n, {"a": 1.50}] for n in range(300)}}).encode()
    got = command.decode_json(header, b"")
    assert got.ext["n7"] == '[7,{"a":1.5}]', dumped
    assert reads < 4


def test_a_senseless_length_is_refused_in_the_same_moment_however_it_comes() -> None:
    """A length word in two pieces was believed until four more bytes came."""
    for cut in range(5):
        decoder = FrameDecoder()
        with pytest.raises(ProtocolError, match="8 to"):
            for piece in (b"\x7f\xff\xff\xff"[:cut], b"\x7f\xff\xff\xff"[cut:]):
                decoder.feed(piece)


@pytest.mark.parametrize("number", ["Infinity", "1e999", "-Infinity"])
def test_a_number_without_end(number: str) -> None:
    with pytest.raises(ProtocolError):
        GroupSubscription.from_json(loads(f"{{'topic':'T','subVersion':{number}}}".encode()))
    files = MemoryFiles({PATH: f"{{'offsetTable':{{'T@g':{{0:{number}}}}}}}".encode()})
    with pytest.raises(StoreCorruptError):
        ConsumerOffsets(files, PATH, lambda: 0).load()
    files = MemoryFiles({PATH: f"{{'topicConfigTable':{{'T':{{'perm':{number}}}}}}}".encode()})
    with pytest.raises(StoreCorruptError):
        Topics(files, PATH, lambda: 0).load()
    files = MemoryFiles({PATH: f"{{'subscriptionGroupTable':{{'g':{{'retryMaxTimes':{number}}}}}}}".encode()})
    with pytest.raises(StoreCorruptError):
        SubscriptionGroups(files, PATH, lambda: 0).load()
    with pytest.raises(StoreCorruptError):
        DelayOffsets(MemoryFiles({PATH: f"{{'offsetTable':{{1:{number}}}}}".encode()}), PATH)


@pytest.mark.parametrize("table", ["[5]", "5", "'x'", "{'a@g':5}", "{'a@g':{'perm':'x','retryMaxTimes':{}}}"])
def test_tables_that_are_none(table: str) -> None:
    refused = []
    for name, kind in (
        ("topicConfigTable", Topics),
        ("subscriptionGroupTable", SubscriptionGroups),
        ("forbiddenTable", SubscriptionGroups),
        ("offsetTable", ConsumerOffsets),
    ):
        files = MemoryFiles({PATH: f"{{'{name}':{table}}}".encode()})
        try:
            kind(files, PATH, lambda: 0).load()
        except StoreCorruptError:
            refused.append(name)
    assert len(refused) >= 3, (
        refused
    )  # a group to which nothing is forbidden in a readable way has always been passed over


def test_a_version_that_is_no_number() -> None:
    version = DataVersion()
    version.assign({"counter": 3, "timestamp": 4, "stateVersion": "x"})
    assert (version.counter, version.timestamp_ms, version.state_version) == (3, 4, 0)


def test_numbers_with_thousands_of_digits() -> None:
    """Python refuses to read them, with an error that nobody expected: a restart ended over such a property."""
    long = "9" * 5_000
    record = encode_record(Message("T", properties=f"__TW_LEVEL\x013:{long}\x02"), HOST)
    assert mark_of(record) is None
    waiting = Message("SCHEDULE_TOPIC_XXXX", 0, properties=f"REAL_TOPIC\x01T\x02REAL_QID\x01{long}\x02")
    with pytest.raises(RecordError, match="a level message for topic"):
        copy_of(encode_record(waiting, HOST), 1, 0, 5)


def test_filters_are_remembered_by_their_length() -> None:
    """512 filters of any length were remembered: gigabytes, for a client that only asks."""
    for n in range(20):
        wants = compile_sql92(" OR ".join([f"a = {n}"] * 250))
        assert wants.matches(f"a\x01{n}\x02")
    assert sql_filter._long.cache_info().currsize <= 8
    assert compile_sql92("a = 1") is compile_sql92("a = 1")


# ------------------------------------------------------------------------------------------------ written by people


def test_an_address_that_is_a_list() -> None:
    text = b"accounts:\n- accessKey: reader-key\n  secretKey: 12345678\n  whiteRemoteAddress:\n  - 10.0.0.1\n"
    with pytest.raises(AclFileError, match="whiteRemoteAddress is one text"):
        AclRules.read(text)


def test_lists_in_lists_without_end() -> None:
    text = "a:\n" + "".join(f"{' ' * 2 * depth}- b:\n" for depth in range(600))
    with pytest.raises(AclFileError, match="nested too deep"):
        AclRules.read(text.encode())


@pytest.mark.parametrize("end", [b"x = y \\", b"x = y\\\n", b"\\"])
def test_a_file_that_ends_with_a_backslash(end: bytes) -> None:
    """A key that was added went on with the last line, and was lost."""
    before = parse_properties_file(b"a=1\n" + end)
    changed = update_properties_file(b"a=1\n" + end, {"fresh": "2"})
    assert parse_properties_file(changed) == {**before, "fresh": "2"}


# ------------------------------------------------------------------------------------------------ files of a store


@pytest.mark.parametrize("version", ["\u00b2", "\u0663", "9" * 5_000])
def test_an_identity_with_an_odd_version(version: str) -> None:
    data = f"format={version}\nid={'0' * 32}\n".encode()
    with pytest.raises(StoreError):
        store_identity(MemoryFiles({PATH: data}), PATH)


def test_a_size_that_no_record_has_is_not_read() -> None:
    """Two gigabytes were asked for, because a damaged entry of a queue said so (`MemoryFile` would not let it pass)."""
    directory = Path("/log")
    log = CommitLog(MemoryFiles({directory / segment_name(0): bytes(1_024)}), directory, 1_024)
    assert log.raw_record(0, 0x7FFFFFF0) is None


def test_checksums_of_files_of_another_size() -> None:
    """A queue without a file was asked where its first one begins."""
    queue = ConsumeQueue(FileCache(MemoryFiles()), Path("/queue"), "T", 0, 200)
    assert queue.load(0, ((0, 7),), same_size=False)
    assert queue.sums() == ()
    assert not queue.load(0, ((0, 7),), same_size=True)  # the file that it is of has gone


def test_an_entry_at_the_end_of_all_numbers() -> None:
    """Position and size together went beyond 64 bits, and so lay below every limit."""
    directory = Path("/queue")
    data = ENTRY.pack(0, 100, 0) + ENTRY.pack((1 << 63) - 1, 100, 0) + bytes(160)
    queue = ConsumeQueue(FileCache(MemoryFiles({directory / segment_name(0): data})), directory, "T", 0, 200)
    queue.load_scanning(1 << 62)
    assert queue.count == 1


def test_a_block_of_the_key_index_out_of_order() -> None:
    files = MemoryFiles()
    index = KeyIndex(files, Path("/index"), nullcontext(), block_entries=4, blocks_a_file=9)
    index.open(0)
    for n in range(9):
        index.add("T", (f"k{n}",), n, n)
        index.covers(n + 1)
        while index.step():
            pass
    index.close()
    (path,) = [path for path in files.files if path.name != "tail.idx"]
    data = files.files[path]
    data[48:64] = data[48:64][::-1]  # not the last block of its file, so nothing was compared at the start
    again = KeyIndex(files, Path("/index"), nullcontext(), block_entries=4, blocks_a_file=9)
    again.open(100)
    for n in range(200):
        assert len(again.find("T", f"k{n}", 0, 100, 9)) <= 9
    assert again.check()


# ------------------------------------------------------------------------------------------------ the delay store


def journal_of(*frames: bytes) -> JournalSegment:
    data = file_header(JOURNAL_MAGIC, STORE_ID, 1, 0, SEGMENT) + b"".join(frames)
    return JournalSegment(1, 0, SEGMENT, MemoryFile(ROOT, bytearray(data.ljust(SEGMENT, b"\0"))), 16)


def test_a_frame_without_records() -> None:
    empty = encode_frame(ACCEPT, b"", [], FILE_HEADER_BYTES, 0, 1, 0, SEED)
    segment = journal_of(empty)
    assert replay([segment], STORE_ID, 0).frames == 0
    assert segment.count == 0


def test_a_frame_with_more_rows_than_there_is_room() -> None:
    """The check read 120 GB, because the number of rows said so."""
    frame = encode_frame(
        ACCEPT, encode_rows([5], [DELAY_ID_BASE], [0], [b"x"]), [b"x"], FILE_HEADER_BYTES, 0, 1, 0, frame_seed(STORE_ID)
    )
    segment = journal_of(frame)
    replay([segment], STORE_ID, 0)
    segment.file.pwrite(b"\xff\xff\xff\xff", FILE_HEADER_BYTES + 12)
    assert "no frame" in _check_frames(segment, SEED)[0]


def test_a_body_full_of_frames_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the journal's end each of them was read to the length that it claims, again and again."""
    reads = 0
    read = MemoryFile.pread

    def counted(file: MemoryFile, n: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(file, n, offset)

    monkeypatch.setattr(MemoryFile, "pread", counted)
    segment = journal_of(bytes(60), (b"TWJF" + bytes(8) + pack("<I", 3)) * 40)
    replay([segment], STORE_ID, 0)
    assert reads < 12


def test_a_page_that_speaks_of_other_records() -> None:
    data, shape = RUNS[1]
    for first, position in ((4, shape.data_at), (0, shape.id_at), (0, 1 << 63), (0, 5)):
        column = np.array([5, 6, 7, 8], np.int64)
        words = np.array([1, 1, 1, 1], np.uint32)
        page = ColumnPage(first, column, column, words, words, words, 0)
        body = bytearray(column_page(page, 0, PAGE, page_seed(STORE_ID, 7)))
        body[24:32] = pack("<Q", position)
        body[4:8] = pack("<I", crc32(body[8:], page_seed(STORE_ID, 7)))
        file = MemoryFile(ROOT, bytearray(data))
        file.pwrite(body, FILE_HEADER_BYTES)
        with pytest.raises(StoreCorruptError, match="page 0"):
            Run(7, file, shape, STORE_ID, RunPageCache(1_000)).page(0)


def test_hundreds_of_damaged_pages_in_a_row() -> None:
    """Each asked the one before it, as deep as the interpreter goes, and then one more."""
    data, shape = _written(2_400)
    file = MemoryFile(ROOT, bytearray(data))
    file.zero(FILE_HEADER_BYTES, shape.pages * PAGE)
    run = Run(7, file, shape, STORE_ID, RunPageCache(1_000))
    with pytest.raises(StoreCorruptError, match="page 599"):
        run.page(599)
    assert run.fetch_sorted((-1, 0), 1 << 62, 5) is None
    assert len(run.damage) == shape.pages


def test_a_run_that_cannot_look_as_the_manifest_says() -> None:
    manifest = Manifest(STORE_ID)
    shape = RUNS[1][1]
    shape = type(shape).unpack(shape.pack())
    manifest.runs = [RunEntry(7, 0, 9, shape)]
    assert Manifest.decode(manifest.encode(), STORE_ID, ROOT).runs[0].shape.count == 9
    shape.page_bytes = 40  # no room for a row: a division by zero at the first look
    with pytest.raises(StoreCorruptError, match="the entry of run 7 contradicts itself"):
        Manifest.decode(manifest.encode(), STORE_ID, ROOT)


@pytest.mark.parametrize(
    "section",
    [
        pack("<III", 0, 0, 0xFFFFFF) + bytes(0xFFFFFF),  # 16 MB that stood for 8 GB of bits
        pack("<III", 0, 5, 2) + b"\x01\x01",
        pack("<III", 0, 0, 1) + b"\x03",
    ],
)
def test_a_done_set_that_is_none(section: bytes) -> None:
    with pytest.raises(StoreCorruptError):
        DoneSet.decode(section)
