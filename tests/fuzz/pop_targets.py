"""Target: the journal of pops, read and made into what is in flight, as a start does it."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import broker.pop.recovery
import store.pop.replay
import store.pop.rows
from broker.pop.recovery import Recovering
from remoting.layout import FILE_HEADER_BYTES
from remoting.layout.pops import POP_FRAME_BYTES, POP_FRAME_CRC_AT
from store.disk.errors import StoreFormatError
from store.pop.in_flight import InFlight
from store.pop.journal import file_name
from store.pop.order_block import OrderBlock
from store.pop.replay import PopState, read_journal
from store.pop.rows import (
    CLOSED,
    WHOLE,
    batch_row,
    block_row,
    encode_frame,
    file_header,
    gone_row,
    next_row,
    queue_row,
    seed_of,
    taken_row,
)
from tests.fuzz.engine import Target
from tests.fuzz.memory import MemoryFiles
from tests.fuzz.store_targets import STORE_ID

__all__ = ["TARGETS"]

PLACE = Path("/pop")
FIRST = 900
QUEUE_END = 500
GROUP, TOPIC, RETRY = "группа", "T", "%RETRY%группа_T"


def _frames(number: int, before: tuple[int, int], frames: list[tuple[int, list[bytes]]]) -> bytes:
    data = file_header(STORE_ID, number, *before)
    for flags, rows in frames:
        data += encode_frame(rows, flags, len(data), 77, seed_of(STORE_ID, number))
    return data


def _block() -> OrderBlock:
    block = OrderBlock([3, 4, 9])
    block.hand_out([3, 4], "attempt", 1_000, 60_000)
    return block


def _journals() -> list[bytes]:
    queues = [queue_row(1, GROUP, TOPIC, 0, 7), queue_row(2, GROUP, RETRY, 0, 0), queue_row(3, GROUP, TOPIC, 1, 0)]
    first = _frames(
        1,
        (0, 0),
        [
            (WHOLE, queues),
            (0, [batch_row(1, 1, 7, 0xFFFF_FFFF, 1_000, 61_000, 39), batch_row(2, 2, 0, 5, 1_001, 1_002, 3)]),
            (0, [taken_row(1, 0xF0F0), next_row(3, 12), block_row(3, _block())]),
            (0, [batch_row(1, 3, 12, 1, 1_500, 9_500, -1), gone_row(2)]),
        ],
    )
    second = _frames(2, (1, len(first)), [(0, [taken_row(3, 1), next_row(1, 50)]), (CLOSED, [taken_row(1, 2)])])
    whole = _frames(2, (1, len(first)), [(0, queues), (WHOLE, [batch_row(3, 9, 0, 3, 5, 6, 2)])])
    padded = first.ljust(FIRST, b"\0")
    return [padded + second, padded + whole, padded, bytes(FIRST) + whole, first[:-9]]


def repair_journal(data: bytes) -> bytes:
    """Right headers, places and checksums, as far as the lengths of frames lead."""
    out = bytearray(data.ljust(FIRST, b"\0"))
    for number, begin, end in ((1, 0, FIRST), (2, FIRST, len(out))):
        if end - begin < FILE_HEADER_BYTES:
            continue
        before = [int.from_bytes(out[begin + at : begin + at + 8], "little") for at in (32, 40)]
        out[begin : begin + FILE_HEADER_BYTES] = file_header(STORE_ID, number, *before)
        at, seed = begin + FILE_HEADER_BYTES, seed_of(STORE_ID, number)
        while at + POP_FRAME_BYTES <= end and out[at : at + 4] == b"TWPF":
            length = int.from_bytes(out[at + 4 : at + 8], "little")
            if not POP_FRAME_BYTES <= length <= end - at:
                break
            out[at + 16 : at + 24] = pack("<Q", at - begin)
            crc = crc32(out[at + POP_FRAME_BYTES : at + length], crc32(out[at : at + POP_FRAME_CRC_AT], seed))
            out[at + POP_FRAME_CRC_AT : at + POP_FRAME_BYTES] = pack("<I", crc)
            at += length
    return bytes(out)


class _Every(dict[str, Any]):
    """Has all there is to ask for."""

    def __missing__(self, key: str) -> str:
        return key

    def get(self, key: str, _default: Any = None) -> str:
        return key

    def __contains__(self, _key: object) -> bool:
        return True


def _restored(state: PopState) -> InFlight:
    in_flight = InFlight(0)
    there = SimpleNamespace(
        was_clean=state.closed,
        knew_pops=True,
        commit_log=SimpleNamespace(begin=0, end=state.log_position, sync=lambda: None),
        scan=lambda _offset: iter(()),
        max_offset=lambda _topic, _queue_id: QUEUE_END,
    )
    offsets: Any = SimpleNamespace(get=lambda *_: 0)
    groups: Any = SimpleNamespace(table=_Every())
    store: Any = there
    topics: Any = _Every()
    Recovering(store, topics, groups, offsets, in_flight, lambda _: None).run(state)
    return in_flight


def _said(state: PopState) -> Hashable:
    return (
        state.closed,
        state.log_position,
        state.highest,
        tuple((ref, q.group, q.topic, q.queue_id, q.next, q.committed()) for ref, q in state.queues.items()),
        tuple((b.number, b.bits) for q in state.queues.values() for b in q.batches.values()),
    )


def run_pop_journal(data: bytes) -> Hashable:
    """Two files: they say the same twice; nothing is in flight from a queue's end on, and all counts are right."""
    parts = {1: data[:FIRST], 2: data[FIRST:]}
    files = MemoryFiles({PLACE / file_name(number): part for number, part in parts.items() if part})
    state = read_journal(files, PLACE, STORE_ID)
    said = _said(state)
    assert said == _said(read_journal(files, PLACE, STORE_ID))
    in_flight = _restored(state)
    count = 0
    for queue in in_flight.queues():
        offsets = queue.in_flight()
        count += len(offsets)
        assert all(offset < QUEUE_END for offset in offsets), "in flight behind the queue's end"
        assert queue.committed() <= min([queue.next, *offsets])
    keys = {(queue.group, queue.topic, queue.queue_id) for queue in state.queues.values()}
    assert count == in_flight.count or len(keys) < len(state.queues), (
        "a count is wrong"
    )  # no program opens a queue twice
    return len(state.queues), in_flight.count.bit_length(), bool(state.damage), state.closed


TARGETS = (
    Target(
        *("pop_journal", run_pop_journal, _journals, (StoreFormatError,)),
        (store.pop.replay, store.pop.rows, broker.pop.recovery),
        words=(b"TWPF", b"TWPS", *(bytes([kind]) for kind in range(1, 8))),
        repair=repair_journal,
        memory=4_000,
    ),
)
