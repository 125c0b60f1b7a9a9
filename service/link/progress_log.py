"""A shard's chain of progress records in the progress topic: the queue with the shard's own number, on its broker."""

from __future__ import annotations

from remoting.messages.message import StoredMessage
from service.core.progress import Picture, ProgressRecord, TargetQueue, read_record
from service.link.cluster import ClusterLink, Sent
from timewheel_client.values.errors import ClientError

__all__ = ["PROGRESS_TOPIC", "ProgressLog"]

PROGRESS_TOPIC = "TIMEWHEEL_PROGRESS"
LOOK_BACK = 64
"""Records that are read first, from the end."""
LOOK_MORE = 8
"""By how much more is read each time if the newest chain does not begin among them."""


class ProgressLog:
    """Reads and appends one shard's progress; for one event loop."""

    def __init__(self, cluster: ClusterLink, shard: str, queue: TargetQueue) -> None:
        self._cluster = cluster
        self._shard = shard
        self._queue = queue

    async def read(self) -> Picture:
        """Read what stands there now. Raises ClientError, also for progress that cannot be of this queue."""
        picture = await self._read()
        # Asked now: what a record speaks of stood in the queue before that record was written.
        end = await self._cluster.end((self._cluster.topic, *self._queue[1:]))
        if picture.generation >= end or picture.low > end:
            raise ClientError(
                f"the progress of {self._shard} speaks of offset {max(picture.generation, picture.low)}, but its queue "
                f"ends at {end}: topic {self._cluster.topic} was made anew, its broker has lost the end of its log, or "
                f"somebody else has written into {PROGRESS_TOPIC}. Nothing is delivered: make {PROGRESS_TOPIC} anew as "
                "well if what it says does not count any more"
            )
        self._cluster.targets.learn(picture.targets())
        return picture

    async def _read(self) -> Picture:
        end = await self._cluster.end(self._queue)
        begin = await self._cluster.begin(self._queue)
        look = LOOK_BACK
        while True:
            start = max(begin, end - look)
            records = [record for message in await self._all(start, end) if (record := self._record(message))]
            picture = Picture.of(records)
            newest = max((record.generation for record in records), default=-1)
            if start <= begin or (newest >= 0 and picture.generation == newest):
                return picture
            look *= LOOK_MORE

    async def _all(self, offset: int, end: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while offset < end:
            pull = await self._cluster.pull(self._queue, offset, wait=False)
            found += pull.messages
            if pull.next_offset <= offset:
                raise ClientError(f"{self._queue} ends at {end}, and nothing is read at {offset}")
            offset = pull.next_offset
        return found

    def _record(self, message: StoredMessage) -> ProgressRecord | None:
        try:
            record = read_record(message.body)
        except ValueError:
            return None  # not ours
        return record if record.shard == self._shard else None

    async def append(self, record: ProgressRecord) -> Sent:
        """Append a record; what became of it. ClientError where nothing was written."""
        return await self._cluster.send(self._queue, f"KEYS\x01{self._shard}\x02", record.encode())
