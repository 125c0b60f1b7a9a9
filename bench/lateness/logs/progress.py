"""Reads how far a broker has come: fixed levels (``config/delayOffset.json``, ours and Apache's), and which messages of
the delay store are done (``timewheel/checkpoint``, ours)."""

from __future__ import annotations

import json
from typing import NamedTuple
from zlib import crc32

from bench.lateness.logs.storage import Storage, StorageError, storage_for
from remoting.layout import CHECKPOINT, CHECKPOINT_SECTION, DELAY_SECTION
from remoting.layout.table import LITTLE_LONG, UNSIGNED_SHORT
from store.spill.rows.done_set import DoneSet

__all__ = ["Done", "done_sets", "queue_progress", "whole_file"]

_CHECKPOINT_HEAD = CHECKPOINT.struct()
_CRC = slice(CHECKPOINT.at("crc"), CHECKPOINT.at("zeros"))
_SECTION = CHECKPOINT_SECTION.struct()
_DONE_HEAD = DELAY_SECTION.struct("version", "position")


class Done(NamedTuple):
    """The encoded done-sets by file number; cancels and moves before the journal ``position`` are in them."""

    sets: dict[int, bytes]
    position: int = 0


def queue_progress(store: str, options: str = "") -> dict[int, int]:
    """Level to the queue offset of the next message to deliver; messages below are finished. Empty if unknown.

    Raises StorageError.
    """
    storage = storage_for(store, options)
    size = storage.sizes(f"{store}/config").get("delayOffset.json", 0)
    if not size:
        return {}
    file = storage.open(f"{store}/config/delayOffset.json")
    try:
        value = json.loads(file.read(0, size))
        return {int(level): int(number) for level, number in value.get("offsetTable", {}).items()}
    except ValueError:
        return {}  # half written, or another format: then lost messages are called overdue
    finally:
        file.close()


def whole_file(storage: Storage, path: str, size: int) -> bytes:
    """The bytes of a file that is replaced as a whole. Raises StorageError."""
    file = storage.open(path)
    try:
        return file.read(0, size)
    finally:
        file.close()


def done_sets(storage: Storage, store: str) -> Done:
    """Read the done-sets of a store's delay store; none without a checkpoint. Raises StorageError if it is damaged."""
    section = _checkpoint(storage, f"{store}/timewheel").get("delay", b"")
    found: dict[int, bytes] = {}
    if not section:
        return Done(found)
    version, count, position = _DONE_HEAD.unpack_from(section)
    at = _DONE_HEAD.size + (LITTLE_LONG.size if version > 1 else 0)  # the section's number
    for _ in range(count):
        (number,) = LITTLE_LONG.unpack_from(section, at)
        begin = at + LITTLE_LONG.size
        _, at = DoneSet.decode(section, begin)
        found[number] = section[begin:at]
    return Done(found, position)


def _checkpoint(storage: Storage, folder: str) -> dict[str, bytes]:
    """Sections of the delivery checkpoint. The file is replaced as a whole, so one read gives one state."""
    if "checkpoint" not in storage.sizes(folder):
        return {}
    data = whole_file(storage, f"{folder}/checkpoint", 1 << 30)
    crc = int.from_bytes(data[_CRC], "big")
    if not data.startswith(b"TWCP") or crc32(data[: _CRC.start] + bytes(4) + data[_CRC.stop :]) != crc:
        raise StorageError(f"{folder}/checkpoint is damaged: {len(data)} bytes that begin with {data[:8]!r}")
    _, _, count, *_ = _CHECKPOINT_HEAD.unpack_from(data)
    at, sections = _CHECKPOINT_HEAD.size, {}
    for _ in range(count):
        (length,) = UNSIGNED_SHORT.unpack_from(data, at)
        name = data[at + 2 : at + 2 + length].decode()
        at += 2 + length
        _, length = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        sections[name] = data[at : at + length]
        at += length
    return sections
