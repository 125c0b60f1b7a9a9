"""Targets: the files of the delay store, one by one and as a whole."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from struct import pack
from zlib import crc32

import numpy as np

import store.spill.journal.journal
import store.spill.journal.replay
import store.spill.journal.segment
import store.spill.journal.segment_columns
import store.spill.rows.done_set
import store.spill.rows.format
import store.spill.rows.manifest
import store.spill.runs.run
import store.spill.state.directory
import store.spill.upkeep.checking
import store.spill.upkeep.opening
from remoting.layout import FILE_HEADER_BYTES, FRAME_BYTES, FRAME_ROW_BYTES, PAGE_HEAD_BYTES, RUN_TRAILER_BYTES
from store.disk.delay_id import DELAY_ID_BASE
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError
from store.spill.journal.replay import cut_behind, read_segment, replay, write_again
from store.spill.journal.segment import JournalSegment
from store.spill.journal.segment_columns import SegmentColumns
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import (
    ACCEPT,
    CANCEL,
    END,
    JOURNAL_MAGIC,
    MOVE,
    encode_frame,
    encode_rows,
    file_header,
    frame_seed,
    page_seed,
)
from store.spill.rows.manifest import DataEntry, Manifest
from store.spill.rows.model import DUE_MAX, SpillOptions
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.run_shape import RunShape
from store.spill.runs.index_writer import IndexWriter
from store.spill.runs.run import Run
from store.spill.runs.run_writer import RunWriter
from store.spill.spill_store import SpillStore
from store.spill.upkeep import checking
from store.spill.upkeep.opening import decode_section, encode_section
from tests.fuzz.engine import Target
from tests.fuzz.memory import MemoryFile, MemoryFiles
from tests.fuzz.store_targets import STORE_ID

__all__ = ["TARGETS"]

ROOT = Path("/delay")
DAMAGED = (StoreCorruptError, StoreFormatError)
SEGMENT = 900
BASES = (0, SEGMENT)
SEED = frame_seed(STORE_ID)
NEVER_FREE = 1 << 40


# ------------------------------------------------------------------------------------------------ the journal


def _journal() -> list[bytes]:
    first = file_header(JOURNAL_MAGIC, STORE_ID, 1, BASES[0], SEGMENT)
    ids = [DELAY_ID_BASE | 1 << 40 | n for n in range(9)]
    frames: list[tuple[int, list[tuple[int, int, int]], list[bytes]]] = [
        (ACCEPT, [(500, ids[0], 0), (400, ids[1], 0)], [b"record one", b"two"]),
        (CANCEL, [(500, ids[0], 0)], []),
        (ACCEPT, [(300 + n, ids[n], 0) for n in range(2, 6)], [b"x" * n for n in range(2, 6)]),
        (MOVE, [(9_000, ids[3], 1)], [b"moved"]),
        (END, [], []),
    ]
    ordinal = 0
    for kind, rows, records in frames:
        offset = BASES[0] + len(first)
        packed = encode_rows(*zip(*rows, strict=True), records) if rows else b""
        frame = encode_frame(kind, packed, records, offset, max(0, offset - 100), 1, ordinal, SEED)
        first += frame
        ordinal += len(records)
    second = file_header(JOURNAL_MAGIC, STORE_ID, 2, BASES[1], SEGMENT)
    rows_in_two = encode_rows([7], [ids[7]], [0], [b"in two"])
    frame = encode_frame(ACCEPT, rows_in_two, [b"in two"], BASES[1] + len(second), 300, 2, 0, SEED)
    whole = first.ljust(SEGMENT, b"\0") + (second + frame).ljust(SEGMENT, b"\0")
    return [whole, first, first[:-40]]


def repair_journal(data: bytes) -> bytes:
    """Right places and checksums of headers, frames and records, as far as their lengths lead."""
    out = bytearray(data.ljust(2 * SEGMENT, b"\0")[: 2 * SEGMENT])
    for number, base in enumerate(BASES):
        out[base : base + FILE_HEADER_BYTES] = file_header(JOURNAL_MAGIC, STORE_ID, number + 1, base, SEGMENT)
        at = base + FILE_HEADER_BYTES
        while at + FRAME_BYTES <= base + SEGMENT and out[at : at + 4] == b"TWJF":
            length = int.from_bytes(out[at + 8 : at + 12], "little")
            count = int.from_bytes(out[at + 12 : at + 16], "little")
            rows_end = at + FRAME_BYTES + count * FRAME_ROW_BYTES
            if rows_end > base + SEGMENT:
                break
            record = rows_end
            for row in range(at + FRAME_BYTES, rows_end, FRAME_ROW_BYTES):
                size = int.from_bytes(out[row + 16 : row + 20], "little")
                out[row + 24 : row + 28] = pack("<I", crc32(out[record : record + size]))
                record += size
            out[at + 16 : at + 24] = pack("<Q", at)
            head_end = at + FRAME_BYTES - 4
            crc = crc32(out[head_end + 4 : rows_end], crc32(out[at:head_end], SEED))
            out[head_end : head_end + 4] = pack("<I", crc)
            if length < FRAME_BYTES:
                break
            at += length
    return bytes(out)


def _segments(files: MemoryFiles) -> list[JournalSegment]:
    return [
        JournalSegment(number + 1, base, SEGMENT, files.open(ROOT / str(number)), 16)
        for number, base in enumerate(BASES)
    ]


def run_journal(data: bytes) -> Hashable:
    """Two segments: what replay finds lies within them; after the cut it finds the same and no dirt."""
    data = data.ljust(2 * SEGMENT, b"\0")
    files = MemoryFiles({ROOT / str(n): data[base : base + SEGMENT] for n, base in enumerate(BASES)})
    claim = data[6] if data[7] == 1 else 0
    segments = _segments(files)
    replayed = replay(segments, STORE_ID, claim)
    for segment in segments:
        assert FILE_HEADER_BYTES <= segment.end <= SEGMENT
        assert segment.count == segment.appended == segment.live
        ordinals = np.arange(segment.count, dtype=np.int64)
        for start, size, crc in zip(*segment.places(ordinals), strict=True):
            if segment.base + start > claim + SEGMENT // 2:
                assert crc32(segment.file.pread(size, start)) == crc, f"record at {start}"
    cut_behind(replayed)
    write_again(segments, claim)
    again = _segments(files)
    second = replay(again, STORE_ID, claim)
    assert not second.dirt, "something stands behind the end that was cut"
    assert [s.count for s in again] == [s.count for s in segments]
    assert second.frames == replayed.frames
    for segment in again:
        segment.order = np.argsort(segment.dues[: segment.count], kind="stable").astype(np.int32)
        segment.lookup(DELAY_ID_BASE | 1 << 40 | 3)
        for fetch in segment.fetchers():
            fetch((-1, 0), DUE_MAX, 3)
    return replayed.frames, replayed.last, len(replayed.kill_ids)


# ------------------------------------------------------------------------------------------------ runs

PAGE = 32 + 28 * 4


def _written(rows: int) -> tuple[bytes, RunShape]:
    files = MemoryFiles()
    writer = RunWriter(files, ROOT, 7, STORE_ID, rows, PAGE)
    ids = [DELAY_ID_BASE | 1 << 40 | n * 37 % 101 for n in range(rows)]
    records = [bytes([65 + n % 26]) * (n % 5) for n in range(rows)]
    dues = [1_000 + n // 2 for n in range(rows)]
    order = sorted(range(rows), key=lambda n: (dues[n], ids[n]))
    for n in order:
        columns = [np.array([value], np.int64) for value in (dues[n], ids[n], n % 2, crc32(records[n]))]
        writer.add(*columns, [records[n]])
    for _ in writer.finish():
        pass
    assert writer.shape is not None
    return bytes(files.files[writer.path]), writer.shape


def _segment_file() -> MemoryFile:
    return MemoryFile(ROOT / "1", bytearray(_journal()[0][:SEGMENT]))


def _indexed() -> tuple[bytes, RunShape]:
    segment = JournalSegment(1, BASES[0], SEGMENT, _segment_file(), 16)
    read_segment(segment, STORE_ID)
    segment.set_order(segment.sort(segment.count))
    files = MemoryFiles()
    writer = IndexWriter(files, ROOT, 7, STORE_ID, PAGE)
    for _ in writer.write(SegmentColumns(segment)):
        pass
    assert writer.shape is not None
    return bytes(files.files[writer.path]), writer.shape


RUNS = [*(_written(rows) for rows in (3, 9, 21)), _indexed()]


def _shape_of(data: bytes) -> RunShape:
    return RUNS[data[0] % len(RUNS) if data else 0][1]


def repair_run(data: bytes) -> bytes:
    """Right magic, number and checksum of every page; the trailer's checksum."""
    shape = _shape_of(data)
    out = bytearray(data[1:].ljust(shape.file_bytes, b"\0")[: shape.file_bytes])
    seed = page_seed(STORE_ID, 7)
    columns = b"TWXC" if shape.is_index else b"TWRC"
    for start, pages, magic in ((FILE_HEADER_BYTES, shape.pages, columns), (shape.id_at, shape.id_pages, b"TWRI")):
        for number in range(pages):
            at = start + number * PAGE
            out[at : at + 4] = magic
            out[at + 8 : at + 12] = pack("<I", number)
            out[at + 4 : at + 8] = pack("<I", crc32(out[at + 8 : at + PAGE], seed))
    trailer = shape.file_bytes - RUN_TRAILER_BYTES
    out[-4:] = pack("<I", crc32(out[trailer:-4]))
    return data[:1] + bytes(out)


def run_run(data: bytes) -> Hashable:
    """A run, which is read page by page: damage is noted and hides pages; every look-up comes to an end."""
    shape = _shape_of(data)
    file = MemoryFile(ROOT / "0000000007", bytearray(data[1:].ljust(shape.file_bytes, b"\0")[: shape.file_bytes]))
    run = Run(7, file, shape, STORE_ID, RunPageCache(3 * PAGE))
    if shape.is_index:
        run.lead_to(DataEntry(1, BASES[0], SEGMENT), _segment_file())
    after = (-1, 0)
    steps = 0
    found = 0
    while (batch := run.fetch_sorted(after, DUE_MAX, 4)) is not None:
        last = (batch.dues.item(-1), batch.ids.item(-1))
        found += len(batch)
        steps += 1
        assert steps <= 4 * shape.count + 4, "the scan does not come to an end"
        if last <= after:
            break  # out of order, which only a right checksum over wrong rows can bring
        after = last
    everything = np.array(sorted(DELAY_ID_BASE | 1 << 40 | n for n in range(0, 101, 3)), np.int64)
    ended = []
    for look in (
        lambda: run.lookup(DELAY_ID_BASE | 1 << 40 | 37),
        lambda: run.lookup_many(everything),
        lambda: run.places(np.arange(shape.count, dtype=np.int64)),
        lambda: run.identities(np.arange(0, shape.count, 2, dtype=np.int64)),
        lambda: run.position((1_003, 0), True),
        lambda: checking._check_run(run),
    ):
        try:
            look()
        except StoreError:
            ended.append(False)
        else:
            ended.append(True)
    return tuple(ended), len(run.damage), found > shape.count // 2


# ------------------------------------------------------------------------------------------------ tables


def run_done_set(data: bytes) -> Hashable:
    """The checkpoint's section of the delay store: done-sets, each as it was encoded."""
    position, found, _ = decode_section(data)
    for done in found.values():
        assert done.check() == [] or done.prefix in done, done.check()
        assert DoneSet.decode(done.encode())[0].count == done.count
        assert done.next_clear(0) >= done.prefix
        assert done.count_range(0, done.top) == done.count
        done.add(5)
        done.add_range(3, 40)
        assert done.check() == [], done.check()
    return len(found), position > 1_000


def _sections() -> list[bytes]:
    few, many, gaps = DoneSet(3), DoneSet(), DoneSet(10)
    few.add(9)
    many.add_many(np.arange(1, 9_000, dtype=np.int64))
    gaps.add_many(np.array([17, 300, 5_000, 5_001], np.int64))
    return [
        encode_section(0, {}),
        encode_section(500, {1: few.encode(), 2: DoneSet(70).encode()}),
        encode_section(1 << 40, {7: many.encode(), 8: gaps.encode()}),
    ]


def _manifest() -> Manifest:
    manifest = Manifest(STORE_ID)
    manifest.epoch, manifest.next_no, manifest.relied = 3, 9, True
    manifest.segments = [store.spill.rows.manifest.SegmentEntry(1, 0, 900, (DUE_MAX, DUE_MAX))]
    manifest.segments.append(store.spill.rows.manifest.SegmentEntry(2, 900, 900, (5_000, DELAY_ID_BASE)))
    manifest.runs = [store.spill.rows.manifest.RunEntry(7, 1, 9, RUNS[1][1])]
    manifest.runs.append(store.spill.rows.manifest.RunEntry(8, 0, 7, RUNS[3][1], DataEntry(1, 0, 900)))
    return manifest


def repair_manifest(data: bytes) -> bytes:
    """Right counts for the length, right checksum."""
    if len(data) < 48:
        return data
    out = bytearray(data)
    begin = 48 if out[4] == 1 or len(out) < 64 else 64
    segments = min(int.from_bytes(out[32:36], "little"), (len(out) - begin) // 40)
    run_bytes = 120 if out[4] > 2 else 96
    runs = (len(out) - begin - 40 * segments) // run_bytes
    out[32:40] = pack("<II", segments, runs)
    del out[begin + 40 * segments + run_bytes * runs :]
    out[44:48] = pack("<I", crc32(out[48:], crc32(out[:44])))
    return bytes(out)


def run_manifest(data: bytes) -> Hashable:
    """A manifest; one that is read is written in the same way."""
    manifest = Manifest.decode(data, STORE_ID, ROOT / "manifest")
    again = Manifest.decode(manifest.encode(), STORE_ID, ROOT / "manifest")
    assert again.encode() == manifest.encode()
    for entry in manifest.runs:
        assert entry.shape.page_bytes <= 1 << 20
    return len(manifest.segments), len(manifest.runs), manifest.relied


# ------------------------------------------------------------------------------------------------ all of it


class _Files(MemoryFiles):
    def free_bytes(self, path: Path) -> tuple[int, int]:
        del path
        return NEVER_FREE, NEVER_FREE


OPTIONS = SpillOptions(
    segment_bytes=SEGMENT,
    page_bytes=PAGE,
    near_ms=100,
    near_bytes=2_000,
    near_records=20,
    runs_max=3,
    merge_width=2,
    reserve_bytes=0,
    cache_bytes=600,
)


def _store() -> tuple[dict[Path, bytes], bytes]:
    """The files and the section of a store with two runs, closed segments, cancels and a move."""
    files = _Files()
    opened = SpillStore.open(files, ROOT, STORE_ID, OPTIONS, None)
    for n in range(14):
        entries = [(1_000 * (n % 5 + 1) + m, opened.next_id(), bytes([65 + n]) * 12) for m in range(4)]
        block = opened.append(entries)
        opened.journal.sync()
        with opened.lock:
            opened.publish(block)
            if n % 4 == 3:
                opened.cancel(entries[1][1])
        if n == 9:
            for _ in range(200):
                opened.spill_step(n)
    opened.journal.sync()
    with opened.lock:
        section = opened.snapshot()
    opened.close()
    return {path: bytes(data) for path, data in files.files.items()}, section


_LAYOUT: list[tuple[Path | None, int]] = []


def _stores() -> list[bytes]:
    files, section = _store()
    parts: list[tuple[Path | None, bytes]] = [*sorted(files.items()), (None, section)]
    _LAYOUT[:] = [(path, len(data)) for path, data in parts]
    return [b"".join(data for _, data in parts)]


def run_store(data: bytes) -> Hashable:
    """A whole delay store: it opens and serves, or says which file is damaged; opened once more, it has the same."""
    files = _Files()
    at = 0
    section = b""
    for path, size in _LAYOUT:
        part = data[at : at + size].ljust(size, b"\0")
        at += size
        if path is None:
            section = part
        else:
            files.replace_file(path, part)
    opened = SpillStore.open(files, ROOT, STORE_ID, OPTIONS, section)
    wrong = opened.check()
    with opened.lock:
        columns = opened.scan((-1, 0), DUE_MAX, 100)
        for ref in columns.refs[:10]:
            try:
                opened.read([ref])
            except StoreCorruptError:
                pass
        for id_ in columns.ids[:5]:
            opened.find(id_)
    count = opened.pending_count
    opened.close()
    if wrong:
        return "damaged", len(wrong) > 3
    again = SpillStore.open(files, ROOT, STORE_ID, OPTIONS, section)
    assert again.pending_count == count, f"{count} pending, then {again.pending_count}"
    again.close()
    return count // 8


TARGETS = (
    Target(
        *("journal", run_journal, _journal, DAMAGED),
        (store.spill.journal.replay, store.spill.journal.journal, store.spill.journal.segment, store.spill.rows.format),
        words=(b"TWJF", b"TWJF\x01\0", b"TWJF\x02\0", b"TWJF\x03\0", b"TWJF\x09\0", bytes(48)),
        repair=repair_journal,
    ),
    Target(
        *("run", run_run, lambda: [bytes([n]) + data for n, (data, _) in enumerate(RUNS)], DAMAGED),
        (
            store.spill.runs.run,
            store.spill.rows.format,
            store.spill.upkeep.checking,
            store.spill.journal.segment_columns,
        ),
        words=(bytes(PAGE_HEAD_BYTES),),
        repair=repair_run,
    ),
    Target(
        "done_sets",
        run_done_set,
        _sections,
        DAMAGED,
        (store.spill.rows.done_set, store.spill.upkeep.opening),
        memory=2_000,
    ),
    Target(
        *("manifest", run_manifest, lambda: [_manifest().encode(), Manifest(STORE_ID).encode()], DAMAGED),
        (store.spill.rows.manifest, store.spill.rows.format),
        repair=repair_manifest,
    ),
    Target(
        *("delay_store", run_store, _stores, (StoreError,)),
        (
            store.spill.upkeep.opening,
            store.spill.state.directory,
            store.spill.journal.replay,
            store.spill.upkeep.checking,
        ),
        in_place=True,
    ),
)
