"""The bytes of the journal of pops (``timewheel/pop/``): rows, frames and file headers, as pure functions.

=============  ======================================================================================================
``QUEUE``      a queue of a group has this reference from now on, and is offered next from ``next`` on
``BATCH``      messages were handed out: bits from ``start`` on; ``next`` of their queue, or -1 where it does not move
``TAKEN``      messages of a batch are done with: acknowledged, changed, or their copies are durable
``NEXT``       a queue is offered next from ``next`` on
``GONE``       a queue, with all that is in flight of it, is forgotten
``BLOCK``      what a queue has handed out in order; as a whole, whenever it has changed
=============  ======================================================================================================

A row may rely on earlier rows of its frame, never on later ones. Each may be read twice, because its effect is the same
the second time. So a snapshot may be written in slices, between the rows of changes that happen meanwhile.
``docs/disk-format.md`` has the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import error as struct_error
from typing import NamedTuple

from remoting.layout import FILE_HEADER, FILE_HEADER_BYTES
from remoting.layout.pops import (
    POP_BATCH,
    POP_BLOCK,
    POP_BLOCKED,
    POP_FRAME,
    POP_FRAME_BYTES,
    POP_FRAME_CRC_AT,
    POP_GONE,
    POP_NEXT,
    POP_QUEUE,
    POP_TAKEN,
)
from remoting.layout.table import LITTLE_INT, LITTLE_LONG
from remoting.messages.checksum import crc32
from store.disk.errors import StoreFormatError
from store.pop.order_block import OrderBlock

__all__ = [
    "BATCH",
    "BLOCK",
    "CLOSED",
    "GONE",
    "NEXT",
    "QUEUE",
    "TAKEN",
    "WHOLE",
    "BatchRow",
    "BlockRow",
    "PopFrame",
    "QueueRow",
    "Row",
    "ShortRow",
    "batch_row",
    "block_row",
    "encode_frame",
    "file_header",
    "gone_row",
    "next_row",
    "queue_row",
    "read_frame",
    "read_header",
    "read_rows",
    "seed_of",
    "taken_row",
]

QUEUE, BATCH, TAKEN, NEXT, GONE, BLOCK = range(1, 7)
"""The first byte of a row."""
WHOLE, CLOSED = 1, 2
"""Flags of a frame: the file says everything by itself from here on; nothing more was written, on purpose."""
MAGIC = 0x53505754  # "TWPS"
FRAME_MAGIC = 0x46505754  # "TWPF"
VERSION = 1

_HEADER = FILE_HEADER.struct()
_HEADER_HEAD = FILE_HEADER.struct("magic", "zeros")
_FRAME_HEAD = POP_FRAME.struct("magic", "log_position")
_FRAME = POP_FRAME.struct()
_QUEUE, _BATCH, _TAKEN = POP_QUEUE.struct(), POP_BATCH.struct(), POP_TAKEN.struct()
_NEXT, _GONE, _BLOCK, _BLOCKED = POP_NEXT.struct(), POP_GONE.struct(), POP_BLOCK.struct(), POP_BLOCKED.struct()
_NOT_OUT = -1
"""``visible_ms`` of a message that waits and is not handed out."""


class PopFrame(NamedTuple):
    """A frame that was read: ``end`` is where the next one begins, ``rows`` are bytes."""

    end: int
    flags: int
    log_position: int
    rows: bytes


class QueueRow(NamedTuple):
    """A row `QUEUE`."""

    ref: int
    group: str
    topic: str
    queue_id: int
    next: int


class BatchRow(NamedTuple):
    """A row `BATCH`."""

    ref: int
    number: int
    start: int
    bits: int
    pop_ms: int
    due_ms: int
    next: int


class BlockRow(NamedTuple):
    """A row `BLOCK`."""

    ref: int
    block: OrderBlock


class ShortRow(NamedTuple):
    """A row of another kind: ``name`` is a queue's reference, or a batch's number; ``value`` its bits, or an offset."""

    kind: int
    name: int
    value: int


Row = QueueRow | BatchRow | BlockRow | ShortRow


# ---------------------------------------------------------------------------------------------------------- rows


def _bytes_of(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def queue_row(ref: int, group: str, topic: str, queue_id: int, next_offset: int) -> bytes:
    """Write a row `QUEUE`."""
    names = group.encode(), topic.encode()
    return _QUEUE.pack(QUEUE, ref, next_offset, queue_id, *map(len, names)) + b"".join(names)


def batch_row(ref: int, number: int, start: int, bits: int, pop_ms: int, due_ms: int, next_offset: int) -> bytes:
    """Write a row `BATCH`; ``next_offset`` is -1 if the queue's does not move."""
    data = _bytes_of(bits)
    return _BATCH.pack(BATCH, ref, next_offset, number, start, pop_ms, due_ms, len(data)) + data


def taken_row(number: int, bits: int) -> bytes:
    """Write a row `TAKEN`."""
    data = _bytes_of(bits)
    return _TAKEN.pack(TAKEN, number, len(data)) + data


def next_row(ref: int, next_offset: int) -> bytes:
    """Write a row `NEXT`."""
    return _NEXT.pack(NEXT, ref, next_offset)


def gone_row(ref: int) -> bytes:
    """Write a row `GONE`."""
    return _GONE.pack(GONE, ref)


def block_row(ref: int, block: OrderBlock) -> bytes:
    """Write a row `BLOCK`."""
    # The length has 16 bits.
    attempt = block.attempt_id.encode(errors="replace")[:65_000]
    parts = [_BLOCK.pack(BLOCK, ref, block.pop_ms, len(attempt), len(block.waiting)), attempt]
    visible, counts = block.visible_ms, block.counts
    parts += [_BLOCKED.pack(at, visible.get(at, _NOT_OUT), counts.get(at, 0)) for at in block.waiting]
    return b"".join(parts)


def read_rows(data: bytes) -> Iterator[Row]:
    """Read the rows of a frame, whose checksum was right. Raises StoreFormatError for what is no row that is known."""
    try:
        yield from _rows(data)
    except (struct_error, UnicodeDecodeError) as error:
        raise StoreFormatError(f"a row that no program has written: {error}") from error


def _rows(data: bytes) -> Iterator[Row]:
    at = 0
    while at < len(data):
        kind = data[at]
        if kind == BATCH:
            _, ref, next_offset, number, start, pop_ms, due_ms, size = _BATCH.unpack_from(data, at)
            at += POP_BATCH.size + size
            yield BatchRow(
                ref, number, start, int.from_bytes(data[at - size : at], "little"), pop_ms, due_ms, next_offset
            )
        elif kind == TAKEN:
            _, number, size = _TAKEN.unpack_from(data, at)
            at += POP_TAKEN.size + size
            yield ShortRow(TAKEN, number, int.from_bytes(data[at - size : at], "little"))
        elif kind == NEXT:
            yield ShortRow(*_NEXT.unpack_from(data, at))
            at += POP_NEXT.size
        elif kind == GONE:
            yield ShortRow(GONE, _GONE.unpack_from(data, at)[1], 0)
            at += POP_GONE.size
        elif kind == QUEUE:
            _, ref, next_offset, queue_id, *sizes = _QUEUE.unpack_from(data, at)
            at += POP_QUEUE.size + sum(sizes)
            names = data[at - sum(sizes) : at]
            yield QueueRow(ref, names[: sizes[0]].decode(), names[sizes[0] :].decode(), queue_id, next_offset)
        elif kind == BLOCK:
            _, ref, pop_ms, size, count = _BLOCK.unpack_from(data, at)
            at += POP_BLOCK.size + size
            end = at + count * POP_BLOCKED.size
            yield BlockRow(ref, _block(data[at - size : at].decode(errors="ignore"), pop_ms, data[at:end]))
            at = end
        else:
            raise StoreFormatError(f"a row of kind {kind}, this program knows {QUEUE} to {BLOCK}")
    if at > len(data):
        raise StoreFormatError(f"a row of {at - len(data)} bytes more than its frame has")


def _block(attempt_id: str, pop_ms: int, entries: bytes) -> OrderBlock:
    rows = list(_BLOCKED.iter_unpack(entries))
    block = OrderBlock([offset for offset, _, _ in rows])
    block.attempt_id, block.pop_ms = attempt_id, pop_ms
    block.visible_ms = {offset: visible_ms for offset, visible_ms, _ in rows if visible_ms != _NOT_OUT}
    block.counts = {offset: times for offset, _, times in rows if times}
    return block


# ---------------------------------------------------------------------------------------------------------- frames


def seed_of(store_id: bytes, number: int) -> int:
    """Return the seed of the checksums of a file's frames, so that frames of other stores and files are invalid."""
    return crc32(LITTLE_LONG.pack(number), crc32(store_id))


def encode_frame(rows: Sequence[bytes], flags: int, position: int, log_position: int, seed: int) -> bytes:
    """Make a frame, to be written at ``position`` of its file."""
    body = b"".join(rows)
    head = _FRAME_HEAD.pack(FRAME_MAGIC, POP_FRAME_BYTES + len(body), len(rows), flags, position, log_position)
    return b"".join((head, LITTLE_INT.pack(crc32(body, crc32(head, seed))), body))


def read_frame(data: bytes, at: int, seed: int) -> PopFrame | None:
    """Read the frame that begins at a file's position; None if none is whole there."""
    if len(data) - at < POP_FRAME_BYTES:
        return None
    magic, length, _, flags, position, log_position, crc = _FRAME.unpack_from(data, at)
    end = at + length
    if magic != FRAME_MAGIC or position != at or length < POP_FRAME_BYTES or end > len(data):
        return None
    rows = data[at + POP_FRAME_BYTES : end]
    if crc32(rows, crc32(data[at : at + POP_FRAME_CRC_AT], seed)) != crc:
        return None
    return PopFrame(end, flags, log_position, rows)


def file_header(store_id: bytes, number: int, before: int, before_end: int) -> bytes:
    """Make a file's header. It goes on where file ``before`` has ended, at ``before_end``; 0 if there was none."""
    head = _HEADER_HEAD.pack(MAGIC, VERSION, store_id, number, before, before_end)
    return head + LITTLE_INT.pack(crc32(head))


def read_header(data: bytes, store_id: bytes, number: int) -> tuple[int, int] | None:
    """Read a header: which file was before, and where it ended; None if this is no header of this store's file.

    Raises StoreFormatError for a version that is not known.
    """
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, version, owner, no, before, before_end, crc = _HEADER.unpack_from(data)
    head = data[: FILE_HEADER.at("crc")]
    if magic != MAGIC or crc32(head) != crc or owner != store_id or no != number:
        return None
    if version != VERSION:
        raise StoreFormatError(f"it has format version {version}, this program knows {VERSION}")
    return before, before_end
