"""Puts of bare records, for tests of the CommitLog: with the numbers that the test says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

from store.derived.consume_queues import ConsumeQueues
from store.disk.errors import StoreError
from store.log.commit_log import CommitLog
from store.put.plugin_api import Put, PutGroup, PutRecord
from tests.support.simdisk import SimDisk

__all__ = ["append", "grouped"]


def append(
    log: CommitLog, records: Sequence[bytes | bytearray], numbers: Iterable[int], store_ms: int, whole: bool = False
) -> tuple[list[int], StoreError | None]:
    """Append records under these numbers, as one put if it is ``whole``; the offset of each, and what stopped it."""
    queues = ConsumeQueues(SimDisk(), Path("/queues"), 1000)
    queue = queues.get("T", 0)
    made = [PutRecord("T", 0, record, 0, ()) for record in records]
    for put, number in zip(made, numbers, strict=True):
        queue.next = number
        put.number(queues)
    if not whole:
        return log.append(made, store_ms)
    offsets, error = log.append([PutGroup(made)], store_ms)
    if offsets:
        offsets = list(accumulate(map(len, records[:-1]), initial=offsets[0]))
    return offsets, error


def grouped(records: Sequence[PutRecord], lengths: Iterable[int]) -> list[Put]:
    """Cut records into puts of these lengths."""
    puts: list[Put] = []
    start = 0
    for length in lengths:
        group = list(records[start : start + length])
        puts.append(group[0] if length == 1 else PutGroup(group))
        start += length
    return puts
