"""`StoreWriter`: the putting side of a store.

How a put goes
    Under the append lock: read the clock (the never-early check and the store time are that one reading), look at each
    put, have it take its numbers, write the records, add what derives from them to the memory of ConsumeQueues and
    index. No sync, no read, no allocation, no record building. A caller that waits for a sync takes a ticket afterwards
    (`StoreWriter.commit_ticket`). `store.put.put` says what a put is and what each layer asks of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from store.derived.apache_index import ApacheIndex
from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.index import KeyIndex
from store.disk.flusher import Flusher, Ticket
from store.log.commit_log import CommitLog
from store.options import StoreOptions
from store.put.put import Put, PutResult, PutStatus
from store.put.put_record import PutRecord
from store.retention import Retention
from store.store_reader import StoreReader

__all__ = ["DIRTY_BYTES_MAX", "StoreWriter"]

DIRTY_BYTES_MAX = 32 << 20
"""More CommitLog bytes than that are synced at once, whatever the interval."""

_OK = PutStatus.PUT_OK
_NOTHING = PutResult(PutStatus.UNKNOWN_ERROR)


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
        """Append puts in order; one result each, never an exception for what is refused.

        The clock is read once, inside the append lock. A put that is due later is not appended (NOT_DUE), nor is a
        guarded one whose topic is gone or may not be written. A put of several messages is appended as one write into
        one segment, or not at all; its result has the position of its first record, and the number of its first
        message.
        """
        if not puts:
            return []
        with self._append_lock:
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
        """Tell the flusher and the consumers. The append lock is not held any more."""
        if end - self.commit_log.synced > DIRTY_BYTES_MAX and end - self._woken_for > DIRTY_BYTES_MAX // 4:
            self._woken_for = end
            self.flusher.wake()
        if grown and self.on_arrival is not None:
            self.on_arrival([(queue.topic, queue.queue_id) for queue in grown])

    def _refusal(self, puts: Sequence[Put]) -> tuple[PutStatus, str] | None:
        if self._closed:
            return PutStatus.SERVICE_NOT_AVAILABLE, "the store is closed"
        if self.retention.disk_status is not _OK and not all(put.guarded or put.accepted for put in puts):
            # What was accepted before goes on being delivered: room for it was held back.
            return self.retention.disk_status, self.retention.disk_remark
        return None

    def _append(self, puts: Sequence[Put], now_ms: int) -> list[PutResult]:
        """Number, write and derive; a result for each. Caller holds the append lock."""
        queues, index = self.queues, self.index
        limit = self.commit_log.record_bytes_max
        results: list[PutResult] = [_NOTHING] * len(puts)
        # The queues of which the guard has said yes in this call, and to which one a delivery for each goes today: both
        # are asked once for each.
        allowed: dict[tuple[str, int], int] = {}
        taken: list[Put] = []
        places: list[int] = []
        count = 0
        for place, put in enumerate(puts):
            if put.due_ms > now_ms or put.guarded or put.accepted or put.data_bytes > limit:
                refused = self._why_not(put, now_ms, limit, allowed)
                if refused is not None:
                    results[place] = refused
                    continue
                today = self._moved(put, allowed)
                if today is None:
                    results[place] = PutResult(PutStatus.NOT_AS_ONE, remark="its queues are others today")
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
        for put, offset, place in zip(taken, offsets, places, strict=False):
            put.derive(offset, now_ms, queues, index)
            results[place] = PutResult(_OK, offset, put.first, now_ms)
        if done:
            last = taken[done - 1]
            end = offsets[-1] + last.data_bytes
            self._last = (end - last.last_bytes, last.last_bytes, now_ms)
            self.put_count += count
            self.put_bytes += end - offsets[0]
        return results

    def _why_not(self, put: Put, now_ms: int, limit: int, allowed: dict[tuple[str, int], int]) -> PutResult | None:
        """Why a put may not be appended now, if there is a reason."""
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
        if put.data_bytes > limit:
            longest = put.longest
            if longest > limit:
                remark = f"record of {longest} bytes, at most {limit} are possible"
                return PutResult(PutStatus.MESSAGE_ILLEGAL, remark=remark)
            remark = f"{put.data_bytes} bytes do not fit into a segment of {self.commit_log.segment_bytes}"
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=remark)
        return None

    def _moved(self, put: Put, allowed: dict[tuple[str, int], int]) -> Put | None:
        """What was accepted earlier goes to the queues that its topic has today; None: not as one put."""
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
        """The largest record that is accepted today: what is to be put later is checked against it now.

        A put takes larger ones, up to what a segment holds: they were accepted when more was allowed.
        """
        return min(self.options.max_record_bytes, self.commit_log.record_bytes_max)

    @property
    def put_bytes_max(self) -> int:
        """The largest record that a put takes: what a segment holds."""
        return self.commit_log.record_bytes_max

    # ------------------------------------------------------------------------------------------ durability

    def commit_ticket(self) -> Ticket:
        """A ticket for everything that has been appended so far."""
        log = self.commit_log
        return Ticket((log, log.end))

    def settle(self) -> None:
        """See to it that what was refused stays refused, also after a crash. Raises StoreError: ask again."""
        if self.commit_log.is_torn:
            with self._append_lock:
                self.commit_log.settle()

    def writable(self, _now_ms: int = 0) -> PutStatus:
        """Whether puts are accepted: SERVICE_NOT_AVAILABLE when closed, after a failed sync, or on a full disk."""
        if self._closed or self.commit_log.failed:
            return PutStatus.SERVICE_NOT_AVAILABLE
        return self.retention.disk_status

    def disk_refusal(self) -> str:
        """Why nothing new is accepted, if the disk is the reason; else an empty text. Any thread, no lock."""
        return self.retention.disk_remark
