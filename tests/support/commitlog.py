"""Read CommitLog files from outside, ours or Apache's: the second witness beside what the clients say.

Written apart from the project's own codec, after the record's layout in Apache RocketMQ (MessageDecoder).
"""

from __future__ import annotations

import hashlib
import socket
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Record", "parse_record", "read_commit_log", "without_sum"]

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
OUR_SUMS = (0xD7435243, 0xD7435256)


@dataclass(slots=True)
class Record:
    """One stored message, all fields of it."""

    size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    offset: int
    sys_flag: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: dict[str, str]

    @property
    def plain_body(self) -> bytes:
        """The body as the application gave it (zlib undone)."""
        return zlib.decompress(self.body) if self.sys_flag & 1 else self.body

    @property
    def body_sha256(self) -> str:
        """Hex digest of the plain body."""
        return hashlib.sha256(self.plain_body).hexdigest()

    @property
    def offset_msg_id(self) -> str:
        """The message id made of store host and offset."""
        ip, port = self.store_host.rsplit(":", 1)
        return (socket.inet_aton(ip) + struct.pack(">iq", int(port), self.offset)).hex().upper()


def _host(data: bytes, at: int, is_v6: bool) -> tuple[str, int]:
    size = 16 if is_v6 else 4
    ip = socket.inet_ntop(socket.AF_INET6 if is_v6 else socket.AF_INET, data[at : at + size])
    (port,) = struct.unpack_from(">i", data, at + size)
    return f"{ip}:{port}", at + size + 4


def parse_record(data: bytes, at: int = 0) -> Record:
    """Read the record at a position; AssertionError if it contradicts itself."""
    size, magic, crc, queue_id, flag, queue_offset, offset, sys_flag, born_ms = struct.unpack_from(
        ">iIiiiqqiq", data, at
    )
    assert magic in (MAGIC_V1, MAGIC_V2), f"no record at {at}: magic {magic:#x}"
    born_host, here = _host(data, at + 48, bool(sys_flag & 0x10))
    (store_ms,) = struct.unpack_from(">q", data, here)
    store_host, here = _host(data, here + 8, bool(sys_flag & 0x20))
    reconsume_times, prepared_offset, length = struct.unpack_from(">iqi", data, here)
    (proof,) = struct.unpack_from(">Q", data, here + 4)
    here += 16
    body = data[here : here + length]
    here += length
    assert zlib.crc32(body) & 0x7FFFFFFF == crc, f"the body at {at} does not fit its CRC"
    width = 1 if magic == MAGIC_V1 else 2
    length = int.from_bytes(data[here : here + width], "big")
    here += width
    topic = data[here : here + length].decode()
    here += length
    (length,) = struct.unpack_from(">h", data, here)
    text = data[here + 2 : here + 2 + length].decode()
    assert here + 2 + length == at + size, f"the record at {at} has {size} bytes, its fields another number"
    if proof >> 32 in OUR_SUMS:  # ours: the checksum of what stands behind the body, where Apache's broker has 0
        behind_body = data[at + size - len(text.encode()) - 2 - width - len(topic.encode()) : at + size]
        assert zlib.crc32(behind_body) == proof & 0xFFFFFFFF, f"topic and properties at {at} do not fit their CRC"
        prepared_offset = 0
    properties = dict(pair.split("\x01", 1) for pair in text.split("\x02") if "\x01" in pair)
    return Record(
        size,
        crc,
        queue_id,
        flag,
        queue_offset,
        offset,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        body,
        topic,
        properties,
    )


def without_sum(record: bytes) -> bytes:
    """The record as Apache's broker, and ours before it had checksums, would write it."""
    at = 76 + 12 * (record[39] & 0x30).bit_count()
    return record[:at] + bytes(8) + record[at + 8 :] if record[at : at + 3] == b"\xd7CR" else record


def read_commit_log(store: Path) -> Iterator[Record]:
    """Yield all records of a store directory in order; it may be written to at the same time."""
    for path in sorted((store / "commitlog").glob("[0-9]" * 20)):
        base = int(path.name)
        with open(path, "rb") as file:
            here = 0
            while True:
                file.seek(here)
                head = file.read(8)
                if len(head) < 8:
                    break
                size, magic = struct.unpack(">iI", head)
                if magic not in (MAGIC_V1, MAGIC_V2) or size <= 0:
                    break
                record = parse_record(head + file.read(size - 8))
                assert record.offset == base + here, f"{path.name}+{here} says it stands at {record.offset}"
                yield record
                here += size
