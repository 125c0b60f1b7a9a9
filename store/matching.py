"""Pulls that select messages by their properties, which stand in the CommitLog and not in the ConsumeQueue.

For each entry the record's property text is read and matched. One call looks at a limited number of entries, so that a
filter that matches little soon gets an answer, with an offset from which to continue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from remoting.errors import RecordError
from remoting.layout import BODY_AT_MAX, BODY_BYTES_BACK
from remoting.messages.record import body_bounds, record_fields
from store.derived.queue_entries import ENTRY, PRE_BLANK_SIZE
from store.store_reader import PullResult, PullStatus

if TYPE_CHECKING:
    from remoting.filters.sql_filter import PropertyFilter
    from store.store_reader import StoreReader

__all__ = ["ENTRIES_MAX", "pull_matching"]

COST_MAX = 20_000
"""Most words of filters that one call evaluates, counted once for each KiB of property text: some 5 ms."""
ENTRIES_MAX = 128
"""Most entries of one call: about half a millisecond if they are in memory."""
_WHOLE_BYTES_MAX = 16_384
"""A record up to this size is read whole; of a larger one only what is before and behind its body."""

Read = Callable[[int, int], bytes | None]
"""Reads (offset, size) of the CommitLog; None or b"" if these bytes are not available."""


def pull_matching(
    reader: StoreReader,
    topic: str,
    queue_id: int,
    offset: int,
    max_count: int,
    max_bytes: int,
    wants: PropertyFilter,
    read: Read,
) -> PullResult | None:
    """Find the messages of a queue whose properties match ``wants``, as `StoreReader.pull` does by tags.

    Ends at the first record that ``read`` does not have; None if that is the very first one.
    """
    bounds = reader.pull(topic, queue_id, offset, 1, 0, None)
    queue = reader.queues.find(topic, queue_id)
    if bounds.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE) or queue is None:
        return bounds
    begin = reader.commit_log.begin
    positions: list[tuple[int, int]] = []
    total = looked = cost = 0
    matches, words = wants.matches, wants.words
    for position, size, _ in ENTRY.iter_unpack(queue.read(offset, ENTRIES_MAX)):
        if size != PRE_BLANK_SIZE and position >= begin:
            text = _properties(read, position, size)
            if text is None:
                if looked == 0:
                    return None
                break
            if matches(text):
                total += size
                if positions and total > max_bytes:
                    break
                positions.append((position, size))
            cost += words * (1 + (len(text) >> 10))
        looked += 1
        if len(positions) >= max_count or cost >= COST_MAX:
            break
    status = PullStatus.FOUND if positions else PullStatus.NO_MATCHED_MESSAGE
    return PullResult(status, offset + looked, bounds.min_offset, bounds.max_offset, positions)


def _properties(read: Read, position: int, size: int) -> str | None:
    """The property text of a record; None if ``read`` does not have it."""
    try:
        if size <= _WHOLE_BYTES_MAX:
            record = read(position, size)
            return record_fields(record)[2] if record else None
        head = read(position, BODY_AT_MAX)
        if not head:
            return None
        begin, end = body_bounds(head)
        if not begin <= end < size:
            return ""  # damaged: the bytes behind the body belong to other records, or do not exist
        tail = read(position + end, size - end)
        return record_fields(head[: begin - BODY_BYTES_BACK] + bytes(BODY_BYTES_BACK) + tail)[2] if tail else None
    except RecordError:
        return ""
