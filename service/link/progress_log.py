"""A shard's chain of progress records: in the progress topic, in the queue with the shard's queue id, on its broker."""

from __future__ import annotations

from collections.abc import Callable

from remoting.messages.message import StoredMessage
from remoting.messages.properties import has_property
from service.core.progress import Picture, ProgressRecord, TargetQueue, queue_text, read_record
from service.core.torn_progress import TornProgressError, picture_of
from service.link.cluster import ClusterLink, Sent
from timewheel_client.values.errors import ClientError

__all__ = ["DELAY_ID", "ProgressLog", "progress_topic"]

DELAY_ID = "TW_DELAY_ID"
"""The property that each delivery of a delay service has, and no record of an owner: it names the entry."""

LOOK_BACK = 64
"""Records that are read first, from the end."""
LOOK_MORE = 8
"""By how much more is read each time if the newest chain does not begin among them."""


def progress_topic(entry_topic: str) -> str:
    """The topic with the progress of an entry topic's shards. Records name a shard without its topic.

    >>> progress_topic("TIMEWHEEL")
    'TIMEWHEEL_PROGRESS'
    """
    return f"{entry_topic}_PROGRESS"


class ProgressLog:
    """Reads and appends the progress of one shard. For one event loop. ``warn`` gets a text for missing records."""

    def __init__(
        self, cluster: ClusterLink, shard: str, queue: TargetQueue, warn: Callable[[str], object] = bool
    ) -> None:
        self._cluster = cluster
        self._shard = shard
        self._queue = queue
        self._warn = warn

    async def read(self) -> Picture:
        """Read the present progress. Raises ClientError, also if the progress cannot be of this queue."""
        picture = await self._read()
        # Not earlier: every offset in a record was in the queue before the record was written.
        end = await self._cluster.end((self._cluster.topic, *self._queue[1:]))
        if picture.generation >= end or picture.low > end:
            raise ClientError(
                f"the progress of {self._shard} speaks of offset {max(picture.generation, picture.low)}, but its queue "
                f"ends at {end}: topic {self._cluster.topic} was made anew, its broker has lost the end of its log, or "
                f"somebody else has written into {self._queue[0]}. This shard delivers nothing. If the records of "
                f"{self._queue[0]} are obsolete, delete that topic and create it again"
            )
        if picture.read > end:
            picture.read = -1
        self._cluster.targets.learn(picture.targets())
        if picture.is_torn:
            self._warn(
                f"records of its progress cannot be read, up to generation {picture.generation}: deliveries since then "
                f"are looked for in {len(picture.targets())} target queues. Check the disk of {self._queue[1]}"
            )
        return picture

    async def _read(self) -> Picture:
        end = await self._cluster.end(self._queue)
        begin = await self._cluster.begin(self._queue)
        look = LOOK_BACK
        while True:
            start = max(begin, end - look)
            rows = await self._all(start, end)
            records = [row for row in rows if row is not None]
            newest = max((record.generation for record in records), default=-1)
            whole = newest >= 0 and Picture.of(records).generation == newest
            if whole or start <= begin:
                try:
                    return picture_of(rows)
                except TornProgressError as error:
                    raise ClientError(
                        f"the progress of {self._shard}: {error}. Which entries were delivered is not known, so "
                        f"nothing is delivered. If you delete {self._queue[0]} and create it again, everything that "
                        f"is still in the shard's queue of {self._cluster.topic} is delivered once more"
                    ) from None
            look *= LOOK_MORE

    async def _all(self, offset: int, end: int) -> list[ProgressRecord | None]:
        """The shard's records among these; None stands for records that cannot be read or are missing."""
        found: list[ProgressRecord | None] = []
        while offset < end:
            pull = await self._cluster.pull(self._queue, offset, wait=False)
            if pull.next_offset <= offset:
                raise ClientError(f"{queue_text(self._queue)} ends at {end}, but a pull at {offset} finds nothing")
            for message in pull.messages:
                if message.queue_offset > offset:
                    found.append(None)
                offset = message.queue_offset + 1
                record = self._record(message)
                if record is not None:
                    found.append(record)
            if pull.next_offset > offset:
                found.append(None)
            offset = pull.next_offset
        return found

    def _record(self, message: StoredMessage) -> ProgressRecord | None:
        if has_property(message.properties, DELAY_ID):
            return None  # somebody had another service deliver it here
        try:
            record = read_record(message.body)
        except ValueError:
            return None  # no progress record
        return record if record.shard == self._shard else None

    async def append(self, record: ProgressRecord) -> Sent:
        """Append a record; returns the outcome. Raises ClientError if nothing was written."""
        return await self._cluster.send(self._queue, f"KEYS\x01{self._shard}\x02", record.encode())
