"""`StoreWriter`: the write side of a store.

How a put is stored
    Under the append lock, in this order: read the clock once, for the never-early check *and* the store time; check
    each put; give it its queue offsets; write the records; add queue entries and keys to the memory of ConsumeQueues
    and index. No sync, no read, no allocation of files, and no record building happens there. To wait for a sync, take
    a ticket afterwards (`StoreWriter.commit_ticket`). `store.put.put` describes puts and the layers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from store.derived.apache_index import ApacheIndex
from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.index import KeyIndex
from store.disk.flusher import Flusher
from store.disk.ticket import Ticket
from store.log.commit_log import CommitLog
from store.options import StoreOptions
from store.put.put import Put, PutResult, PutStatus
from store.put.put_record import PutRecord
from store.retention import Retention
from store.store_reader import StoreReader

__all__ = ["COPY_BYTES", "DIRTY_BYTES_MAX", "StoreWriter"]

DIRTY_BYTES_MAX = 32 << 20
"""If more CommitLog bytes than this are unsynced, the flusher is woken before its interval ends."""
COPY_BYTES = 640
"""A message is accepted only if a segment has room for every copy that the broker may make of it. Two copies are the
longest. One was sent back, went to the dead letters, and is popped there by another group: 575 bytes longer than the
message. The other was popped, sent back, delivered by its level, and is popped again: 607 bytes longer."""

_OK: Final = PutStatus.PUT_OK
_NOTHING: Final = PutResult(PutStatus.UNKNOWN_ERROR)


class StoreWriter(StoreReader):
    """Everything that appends. Any thread; see `store.message_store.MessageStore` for the attributes."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex,
        older: ApacheIndex,
        options: StoreOptions,
        now_ms: Callable[[], int],
        append_lock: threading.Lock,
        flusher: Flusher,
        retention: Retention,
    ) -> None:
        super().__init__(log, queues, index, older)
        self.options = options
        self.flusher = flusher
        self.retention = retention
        self.on_arrival: Callable[[list[tuple[str, int]]], None] | None = None
        self.topic_guard: Callable[[str, int], PutStatus] | None = None
        self.queue_for: Callable[[str, int], int] | None = None
        self.put_count = 0
        self.put_bytes = 0
        self._now_ms = now_ms
        self._append_lock = append_lock
        self._closed = False
        self._woken_for = 0
        self._last = (-1, 0, 0)

    def put_batch(self, puts: Sequence[Put]) -> list[PutResult]:
        """Append puts in order; returns one result for each, and never raises for a refused one.

        The clock is read once, inside the append lock. A put that is due later is not appended (NOT_DUE), nor is a
        guarded one whose topic is gone or not writable. A put of several messages is appended whole into one segment,
        or not at all; its result has the position of its first record and the queue offset of its first message.
        """
        if not puts:
            return []
        with self._append_lock:
            # Inside the lock: read before it, a wait for the lock would make the store time old, and a clock that is
            # set back meanwhile would let a message out early.
            now_ms = self._now_ms()
            refusal = self._refusal(puts)
            if refusal is not None:
                return [PutResult(refusal[0], remark=refusal[1]) for _ in puts]
            results = self._append(puts, now_ms)
            end = self.commit_log.end
            self.index.covers(end)
            grown = self.queues.take_grown()
        self._appended(end, grown)
        return results

    def _appended(self, end: int, grown: list[ConsumeQueue]) -> None:
        """Tell the flusher and the consumers, after the append lock was released."""
        if end - self.commit_log.synced > DIRTY_BYTES_MAX and end - self._woken_for > DIRTY_BYTES_MAX // 4:
            self._woken_for = end
            self.flusher.wake()
        if grown and self.on_arrival is not None:
            self.on_arrival([(queue.topic, queue.queue_id) for queue in grown])

    def _refusal(self, puts: Sequence[Put]) -> tuple[PutStatus, str] | None:
        if self._closed:
            return PutStatus.SERVICE_NOT_AVAILABLE, "the store is closed"
        if self.retention.disk_status is not _OK and not all(put.guarded or put.accepted for put in puts):
            # Accepted messages are still delivered: disk space for them was held back.
            return self.retention.disk_status, self.retention.disk_remark
        return None

    def _append(self, puts: Sequence[Put], now_ms: int) -> list[PutResult]:
        """Number, write and derive; returns a result for each put. The caller holds the append lock."""
        queues = self.queues
        limit = self.commit_log.record_bytes_max
        usual = limit - COPY_BYTES
        results: list[PutResult] = [_NOTHING] * len(puts)
        # Queues that the guard has allowed in this call, each with the queue id to which its deliveries go now: asked
        # once for each queue.
        allowed: dict[tuple[str, int], int] = {}
        taken: list[Put] = []
        places: list[int] = []
        count = 0
        for place, put in enumerate(puts):
            if put.due_ms > now_ms or put.guarded or put.accepted or put.data_bytes > usual:
                refused = self._why_not(put, now_ms, limit, allowed)
                if refused is not None:
                    results[place] = refused
                    continue
                today = self._moved(put, allowed)
                if today is None:
                    results[place] = PutResult(PutStatus.NOT_AS_ONE, remark="its queues have changed meanwhile")
                    continue
                put = today
            if put.scheduled:
                put.schedule(now_ms, self.options.delay_levels_ms)
            count += put.number(queues)
            taken.append(put)
            places.append(place)
        if not taken:
            return results
        offsets, error = self.commit_log.append(taken, now_ms)
        done = len(offsets)
        if error is not None:
            for put, place in zip(taken[done:], places[done:], strict=True):
                put.give_back()
                count -= len(put)
                results[place] = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=str(error))
        index_rows: list[bytes] = []
        for put, offset, place in zip(taken, offsets, places, strict=False):
            put.derive(offset, now_ms, queues, index_rows)
            results[place] = PutResult(_OK, offset, put.first, now_ms)
        self.index.append(b"".join(index_rows))
        if done:
            last = taken[done - 1]
            end = offsets[-1] + last.data_bytes
            self._last = (end - last.last_bytes, last.last_bytes, now_ms)
            self.put_count += count
            self.put_bytes += end - offsets[0]
        return results

    def _why_not(self, put: Put, now_ms: int, limit: int, allowed: dict[tuple[str, int], int]) -> PutResult | None:
        """The refusal of a put that may not be appended now; None if it may."""
        if put.due_ms > now_ms:
            return PutResult(PutStatus.NOT_DUE, store_ms=now_ms)
        if put.guarded:
            for queue in put.where():
                if queue not in allowed:
                    topic, queue_id = queue
                    if self.topic_guard is not None:
                        status = self.topic_guard(topic, queue_id)
                        if status is not _OK:
                            return PutResult(status, remark=f"topic {topic}: {status.name}")
                    allowed[queue] = queue_id if self.queue_for is None else self.queue_for(topic, queue_id)
        if put.data_bytes > limit - COPY_BYTES:
            longest = put.longest
            most = limit if put.guarded or put.accepted or put.copied else limit - COPY_BYTES
            if longest > most:
                remark = f"record of {longest} bytes, at most {most} are possible"
                return PutResult(PutStatus.MESSAGE_ILLEGAL, remark=remark)
        if put.data_bytes > limit:
            remark = f"{put.data_bytes} bytes do not fit into a segment of {self.commit_log.segment_bytes}"
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=remark)
        return None

    def _moved(self, put: Put, allowed: dict[tuple[str, int], int]) -> Put | None:
        """The put for the queues that its topic has now: accepted earlier, it may name another one.

        None if a put of several messages would have to be split.
        """
        if not put.guarded and (not put.accepted or self.queue_for is None):
            return put
        for topic, queue_id in put.where():
            if put.guarded:
                today = allowed[topic, queue_id]
            else:
                assert self.queue_for is not None
                today = self.queue_for(topic, queue_id)
            if today != queue_id:
                return put.moved(today) if isinstance(put, PutRecord) else None
        return put

    # ------------------------------------------------------------------------------------------ limits

    @property
    def record_bytes_max(self) -> int:
        """The largest record that is accepted now, in bytes; delayed messages are checked against it at acceptance.

        A put takes larger ones, up to a segment's capacity, if they are copies or were accepted when the limit was
        higher.
        """
        return min(self.options.max_record_bytes, self.commit_log.record_bytes_max - COPY_BYTES)

    @property
    def put_bytes_max(self) -> int:
        """The largest record that a put takes, in bytes: a segment's capacity."""
        return self.commit_log.record_bytes_max

    # ------------------------------------------------------------------------------------------ durability

    def commit_ticket(self) -> Ticket:
        """A ticket for everything that has been appended so far."""
        log = self.commit_log
        return Ticket((log, log.end))

    def delivery_ticket(self) -> Ticket | None:
        """What must be durable before it is answered that a message was delivered; None under ASYNC_FLUSH."""
        return self.commit_ticket() if self.options.flush_sync else None

    def settle(self) -> None:
        """Make sure that refused puts stay refused after a crash. Raises StoreError: try again."""
        if self.commit_log.is_torn:
            with self._append_lock:
                self.commit_log.settle()

    def writable(self, _now_ms: int = 0) -> PutStatus:
        """PUT_OK if puts are accepted, else why not: the store is closed, a sync has failed, or the disk is full."""
        if self._closed or self.commit_log.failed:
            return PutStatus.SERVICE_NOT_AVAILABLE
        return self.retention.disk_status

    def disk_refusal(self) -> str:
        """Why the disk accepts no new messages; empty if it does. Any thread, no lock."""
        return self.retention.disk_remark
