"""`Pop`: one pop under way, and what a look at its queues yields."""

from __future__ import annotations

from collections.abc import Generator

from broker.net.channel import Channel
from broker.pop.pop_polls import Mark
from broker.pop.requests import PopHeader
from remoting.command import RemotingCommand
from remoting.filters.sql_filter import PropertyFilter
from remoting.filters.subscription import TagFilter
from store.message_store import PullResult

__all__ = ["Cold", "Pop", "Read", "Work"]

Cold = tuple[str, int, int, int] | list[tuple[int, int]]
"""A read from the disk: topic, queue, offset and number of messages; or positions and sizes."""
Read = tuple[PullResult, bytes]
Work = Generator[Cold | None, Read | None, None]
"""A look at queues. It yields what it cannot read without waiting, or None for a pause."""


class Pop:
    """One pop under way: the request, and the messages it has got."""

    __slots__ = (
        "bodies", "bytes", "channel", "command", "count", "counts", "filter", "header", "mark", "more", "offsets",
        "pop_ms", "problem", "queue_nums", "rest", "starts", "wants", "work",
    )  # fmt: skip

    def __init__(self, channel: Channel, command: RemotingCommand, header: PopHeader, queue_nums: int) -> None:
        self.channel = channel
        self.command = command
        self.header = header
        self.queue_nums = queue_nums
        self.filter: TagFilter | None = None
        self.wants: PropertyFilter | None = None
        self.begin(0, [])

    def begin(self, now_ms: int, mark: Mark) -> None:
        """Begin a look at all queues; ``mark`` has the last arrivals before it."""
        self.pop_ms = now_ms
        self.mark = mark
        self.bodies: list[bytes] = []
        self.starts: list[str] = []
        self.offsets: list[str] = []
        self.counts: list[str] = []
        self.count = self.bytes = self.rest = self.work = 0
        self.more = False
        """True if the queues are worth another look: this one has not checked all, after many messages that the filter
        refused, or a queue that it found blocked may be free by now."""
        self.problem = ""
