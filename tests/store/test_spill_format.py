"""The bytes of the spill store's files: golden, and read back from garbage."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.layout import FRAME_BYTES, FRAME_ROW_BYTES, RUN_TRAILER_BYTES
from store.disk.delay_id import delay_id, id_text, parse_id_text
from store.disk.errors import StoreCorruptError, StoreFormatError
from store.spill.rows.format import (
    ACCEPT,
    CANCEL,
    END,
    ID_DTYPE,
    JOURNAL_MAGIC,
    ColumnPage,
    column_page,
    encode_frame,
    encode_rows,
    file_header,
    frame_seed,
    id_page,
    page_seed,
    read_column_page,
    read_file_header,
    read_frame,
    read_id_page,
)
from store.spill.rows.manifest import Manifest, RunEntry, SegmentEntry
from store.spill.rows.model import LAST_KEY
from store.spill.rows.run_shape import RunShape, run_trailer
from store.spill.upkeep.opening import decode_section, encode_section

STORE_ID = bytes(range(16))
SEED = frame_seed(STORE_ID)
PATH = Path("/somewhere/0000000007")


def words(text: str) -> bytes:
    return bytes.fromhex(text.replace("|", " "))


def test_golden_frame() -> None:
    rows = encode_rows([1000], [5], [0], [b"abc"])
    frame = encode_frame(ACCEPT, rows, [b"abc"], 64, 33, 2, 9, SEED)
    row = words("e803000000000000 | 0500000000000000 | 03000000 | 00000000 | c2412435")
    head = words(
        "54574a46 | 0100 0000 | 4f000000 | 01000000 | 4000000000000000 | 2100000000000000"
        "| 02000000 | 09000000 | 00000000"
    )
    crc = crc32(row, crc32(head, SEED)).to_bytes(4, "little")
    assert rows == row
    assert frame == head + crc + row + b"abc"
    assert len(frame) == FRAME_BYTES + FRAME_ROW_BYTES + 3
    assert crc32(STORE_ID) == SEED
    assert crc32(b"abc") == 0x352441C2


def test_golden_cancel_and_end() -> None:
    frame = encode_frame(CANCEL, encode_rows([1000], [5], [2], []), [], 64, 0, 1, 0, SEED)
    assert frame[FRAME_BYTES:] == words("e803000000000000 | 0500000000000000 | 00000000 | 02000000 | 00000000")
    end = encode_frame(END, b"", [], 64, 0, 1, 0, SEED)
    assert len(end) == FRAME_BYTES


def test_golden_file_header() -> None:
    header = file_header(JOURNAL_MAGIC, STORE_ID, 7, 128, 4096)
    expected = (
        words("54574a53 | 01000000")
        + STORE_ID
        + words("0700000000000000 | 8000000000000000 | 0010000000000000")
        + bytes(12)
    )
    assert header == expected + crc32(expected).to_bytes(4, "little")
    assert read_file_header(header, JOURNAL_MAGIC, STORE_ID, 7, PATH) == (128, 4096)


def test_golden_pages() -> None:
    seed = page_seed(STORE_ID, 7)
    assert seed == crc32(words("0700000000000000"), crc32(STORE_ID))
    longs, short = np.array([1, 2], np.int64), np.array([3, 4], np.uint32)
    page = ColumnPage(10, longs, longs + 4, short, short + 4, short + 8, 1000)
    data = column_page(page, 5, 128, seed)
    body = words(
        "05000000 | 02000000 | 0a00000000000000 | e803000000000000"
        "| 0100000000000000 0200000000000000 | 0500000000000000 0600000000000000"
        "| 03000000 04000000 | 07000000 08000000 | 0b000000 0c000000"
    )
    body += bytes(128 - 8 - len(body))
    assert data == b"TWRC" + crc32(body, seed).to_bytes(4, "little") + body
    again = read_column_page(data, 5, seed, PATH, 0)
    assert again.starts.tolist() == [1000, 1003]
    assert again.versions.tolist() == [7, 8]
    rows = np.array([(5, 1, 10, 0), (6, 2, 11, 1)], ID_DTYPE)
    data = id_page(rows, 1, 100, seed)
    assert data[:4] == b"TWRI"
    assert data[32:56] == words("0500000000000000 | 0100000000000000 | 0a000000 | 00000000")
    assert read_id_page(data, 1, seed, PATH, 0).tolist() == rows.tolist()


def test_golden_trailer_manifest_section() -> None:
    shape = RunShape(2, 128, 1, 1, 192, 7, 199, 455, 1, 2, 5, 6)
    trailer = run_trailer(shape, STORE_ID, 7)
    assert len(trailer) == RUN_TRAILER_BYTES
    assert trailer[:32] == words("54575254 | 01000000") + STORE_ID + words("0700000000000000")
    assert trailer[32:112] == shape.pack()
    manifest = Manifest(STORE_ID)
    manifest.epoch, manifest.next_no, manifest.relied = 3, 9, True
    manifest.generation, manifest.relied_on = 6, 5
    manifest.segments = [SegmentEntry(1, 0, 4096, (50, 5)), SegmentEntry(4, 4096, 4096, LAST_KEY)]
    manifest.runs = [RunEntry(7, 0, 2, shape)]
    data = manifest.encode()
    assert data[:44] == b"TWMF" + words("03000000") + STORE_ID + words("03000000 09000000 02000000 01000000 01000000")
    assert data[48:64] == words("0600000000000000 0500000000000000")
    assert len(data) == 64 + 2 * 40 + 120
    assert Manifest.decode(data, STORE_ID, PATH).encode() == data
    for version, body, counters in ((1, data[64:-24], (0, 0)), (2, data[48:-24], (6, 5))):
        old = data[:4] + version.to_bytes(4, "little") + data[8:44]
        old += crc32(body, crc32(old)).to_bytes(4, "little") + body
        read = Manifest.decode(old, STORE_ID, PATH)
        assert (read.generation, read.relied_on, len(read.segments), len(read.runs)) == (*counters, 2, 1), (
            f"version {version} is read too"
        )
    section = encode_section(777, {7: b"\x03\0\0\0\x03\0\0\0\0\0\0\0"}, 5)
    done = "0700000000000000 | 03000000 03000000 00000000"
    assert section == words(f"02000000 01000000 0903000000000000 | 0500000000000000 | {done}")
    for number, data in ((5, section), (0, words(f"01000000 01000000 0903000000000000 | {done}"))):
        position, sets, section_no = decode_section(data)
        assert (position, sets[7].prefix, section_no) == (777, 3, number)


def test_ids_as_text() -> None:
    assert id_text(delay_id(1, 5)) == "10000000005"
    assert parse_id_text(id_text(delay_id(3, 9), 4)) == (delay_id(3, 9), 4)
    for wrong in ("", "x", "1.x", "1.", "-1", "1_0", " 1", "4000000000000000"):
        with pytest.raises(ValueError, match="not a delay id"):
            parse_id_text(wrong)


def test_another_store_another_version_another_file() -> None:
    header = file_header(JOURNAL_MAGIC, STORE_ID, 7, 0, 0)
    with pytest.raises(StoreFormatError, match="belongs to store"):
        read_file_header(header, JOURNAL_MAGIC, bytes(16), 7, PATH)
    with pytest.raises(StoreCorruptError, match="is file 7, not 8"):
        read_file_header(header, JOURNAL_MAGIC, STORE_ID, 8, PATH)
    with pytest.raises(StoreFormatError, match="version 9"):
        read_file_header(header[:4] + b"\x09" + header[5:], JOURNAL_MAGIC, STORE_ID, 7, PATH)
    data = Manifest(STORE_ID).encode()
    with pytest.raises(StoreFormatError, match="belongs to store"):
        Manifest.decode(data, bytes(16), PATH)
    with pytest.raises(StoreFormatError, match="version 9"):
        Manifest.decode(data[:4] + b"\x09" + data[5:], STORE_ID, PATH)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_goes_unnoticed(data: st.DataObject) -> None:
    records = [b"x" * 9, b""]
    frame = encode_frame(ACCEPT, encode_rows([1, 3], [2, 4], [0, 1], records), records, 640, 5, 1, 0, SEED)
    header_and_rows = FRAME_BYTES + 2 * FRAME_ROW_BYTES
    at = data.draw(st.integers(0, header_and_rows - 1))
    bit = data.draw(st.integers(0, 7))
    broken = bytearray(frame)
    broken[at] ^= 1 << bit
    assert read_frame(bytes(broken), 0, 640, SEED) is None
    assert read_frame(frame, 0, 641, SEED) is None
    assert read_frame(frame, 0, 640, SEED + 1) is None
    assert read_frame(frame[: header_and_rows - 1], 0, 640, SEED) is None
    manifest = Manifest(STORE_ID)
    manifest.segments = [SegmentEntry(1, 0, 4096, (50, 5))]
    encoded = bytearray(manifest.encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << bit
    with pytest.raises((StoreCorruptError, StoreFormatError)):
        Manifest.decode(bytes(encoded), STORE_ID, PATH)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_no_frame_and_no_page(garbage: bytes) -> None:
    assert read_frame(garbage, 0, 0, SEED) is None
    for read in (read_column_page, read_id_page):
        with pytest.raises(StoreCorruptError):
            read(garbage, 0, SEED, PATH, 0)
    with pytest.raises((StoreCorruptError, StoreFormatError)):
        Manifest.decode(garbage, STORE_ID, PATH)
