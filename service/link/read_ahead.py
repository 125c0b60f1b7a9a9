"""Reads a queue in order, with several pulls under way where much of it is still to be read.

A broker answers a pull with a few records: Apache's with 32 at most. One pull at a time reads at the pace of round
trips, so on a busy machine a takeover that has to read 300,000 entries again takes minutes. So each answer says where
the queue ends (``maxOffset``), and the pieces up to there are asked for before they are needed::

    asked for   [0, 32)  [32, 64)  [64, 96) ...          as many records each as the last answer had
    answers     [0, 32)  [32, 40)  [64, 96) ...          a piece may come short: its rest is asked for
    handed on   [0, 32)  [32, 40)  [40, 64)  [64, 96)    always in order, without a gap

What a queue has at an offset never changes, so an answer is not older than the reading of it. The end moves; nobody
takes it from here.
"""

from __future__ import annotations

import asyncio
from collections import deque

from service.core.progress import TargetQueue
from service.link.cluster import ClusterLink, Pull

__all__ = ["ReadAhead"]

PIECES_MAX = 8
"""Most pulls that are under way ahead of the one that is handed on."""
BYTES_MAX = 2 << 20
"""Most bytes that they may bring, as far as the size of the last answer tells: entries of 4 MiB come one at a time."""


class ReadAhead:
    """Pulls of one queue. For one event loop; call `close` at the end.

    Args:
        cluster: The cluster.
        queue: The queue that is read.
    """

    def __init__(self, cluster: ClusterLink, queue: TargetQueue) -> None:
        self._cluster = cluster
        self._queue = queue
        self._pieces: deque[tuple[int, asyncio.Task[Pull]]] = deque()  # in order: where each begins
        self._next = 0  # where the last of them ends
        self._count = 0  # records of a piece

    async def pull(self, offset: int, *, wait: bool) -> Pull:
        """Return the records from an offset on, as `ClusterLink.pull` does; one that cannot be read is read once more.

        Raises ClientError; then nothing is under way.
        """
        try:
            pull = await self._pull(offset, wait)
            if pull.bad:  # it may have been damaged on its way
                self.close()
                pull = await self._cluster.pull(self._queue, offset, wait=False)
        except BaseException:
            self.close()
            raise
        self._ask(pull, offset)
        return pull

    def close(self) -> None:
        """Forget the pulls that are under way."""
        while self._pieces:
            self._pieces.popleft()[1].cancel()

    async def _pull(self, offset: int, wait: bool) -> Pull:
        while self._pieces and self._pieces[0][0] < offset:
            self._pieces.popleft()[1].cancel()
        if not self._pieces:
            return await self._cluster.pull(self._queue, offset, wait=wait)
        begin, piece = self._pieces[0]
        if begin > offset:  # the one before it came short
            return await self._cluster.pull(self._queue, offset, wait=False, count=begin - offset)
        self._pieces.popleft()
        return await piece

    def _ask(self, pull: Pull, offset: int) -> None:
        """Ask for the next pieces, up to the end of the queue as this answer tells it."""
        count = pull.next_offset - offset
        if pull.bad or pull.moved or count <= 0 or len(pull.messages) != count:
            self.close()
            return
        if not self._pieces:
            self._next, self._count = pull.next_offset, count
        most = min(PIECES_MAX, BYTES_MAX // max(1, pull.size))
        while len(self._pieces) < most and self._next < pull.end:
            piece = asyncio.ensure_future(self._cluster.pull(self._queue, self._next, wait=False, count=self._count))
            piece.add_done_callback(_seen)
            self._pieces.append((self._next, piece))
            self._next += self._count


def _seen(piece: asyncio.Task[Pull]) -> None:
    """Look at the error of a piece that nobody may wait for: asyncio would log it."""
    if not piece.cancelled():
        piece.exception()
