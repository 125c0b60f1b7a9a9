"""Reads a queue in order, with several pulls under way where much of it is still to be read.

A broker answers a pull with a few records: Apache's with 32 at most. One pull at a time reads at the pace of round
trips, so on a busy machine a takeover that has to read 300,000 entries again takes minutes. So each answer says where
the queue ends (``maxOffset``), and the pieces up to there are asked for before they are needed::

    asked for   [0, 32)  [32, 64)  [64, 96) ...          as many records each as the last answer had
    answers     [0, 32)  [32, 40)  [64, 96) ...          a piece may come short: its rest is asked for
    handed on   [0, 32)  [32, 40)  [40, 64)  [64, 96)    always in order, without a gap

What a queue has at an offset does not change while its broker keeps its log, so it does not matter when it was asked
for. A broker that loses the end of its log gives the same offsets to other messages, and a reader that waits (its disk
is full) may hold pieces from before for long. So an old piece is asked for again: what is handed on is hardly older
than if it had been asked for alone. The end of the queue moves; nobody takes it from here.
"""

from __future__ import annotations

import asyncio
from collections import deque

from service.core.progress import TargetQueue
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink, Pull
from timewheel_client.values.errors import ClientError

__all__ = ["ReadAhead"]

PIECES_MAX = 8
"""Most pulls that are under way ahead of the one that is handed on."""
BYTES_MAX = 2 << 20
"""Most bytes that they may bring, as far as the size of the last answer tells: entries of 4 MiB come one at a time."""
PIECE_MS_MAX = 2000
"""A piece that was answered and waits for its turn is asked for again if it was asked for longer ago, ms."""
CALM_PIECES = 64
"""After so many answers without an error one more pull may be under way, up to `PIECES_MAX`."""
PIECES_ANEW = 256
"""After so many pieces one pull asks for as much as the broker gives: the next pieces have as many records."""


class ReadAhead:
    """Pulls of one queue. For one event loop; call `close` at the end.

    The number of pulls under way begins at one and doubles with each answer. After an error it begins anew, up to half
    of what it was at first: over a slow line eight answers at once may all come too late, again and again.

    Args:
        cluster: The cluster.
        queue: The queue that is read.
    """

    def __init__(self, cluster: ClusterLink, queue: TargetQueue) -> None:
        self._cluster = cluster
        self._queue = queue
        self._pieces: deque[tuple[int, int, asyncio.Task[Pull]]] = deque()  # where each begins, and when it was asked
        self._next = 0  # where the last of them ends
        self._count = 0  # records of a piece
        self._left = 0  # pieces that may be asked for with that many
        self._window = 0  # pieces that may be under way now
        self._most = PIECES_MAX  # up to which that grows
        self._calm = 0  # answers since that has changed

    async def pull(self, offset: int, *, wait: bool) -> Pull:
        """Return the records from an offset on, as `ClusterLink.pull` does; one that cannot be read is read once more.

        Raises ClientError; then nothing is under way.
        """
        try:
            pull = await self._pull(offset, wait)
            if pull.bad:  # it may have been damaged on its way
                self.close()
                pull = await self._whole(offset, False)
        except BaseException as error:
            self.close()
            if isinstance(error, ClientError):
                self._most, self._window, self._calm = self._window // 2, 0, 0
            raise
        self._widen()
        self._ask(pull, offset)
        return pull

    def close(self) -> None:
        """Forget the pulls that are under way."""
        while self._pieces:
            self._pieces.popleft()[-1].cancel()

    def _widen(self) -> None:
        """After an answer: more pulls may be under way."""
        self._window = min(self._most, max(1, 2 * self._window))
        self._calm += 1
        if self._calm >= CALM_PIECES:
            self._most, self._calm = min(PIECES_MAX, self._most + 1), 0

    async def _pull(self, offset: int, wait: bool) -> Pull:
        while self._pieces and self._pieces[0][0] < offset:
            self._pieces.popleft()[-1].cancel()
        if self._pieces:
            begin, asked_ms, piece = self._pieces[0]
            if begin > offset:  # the one before it came short
                return await self._cluster.pull(self._queue, offset, wait=False, count=begin - offset)
            self._pieces.popleft()
            if not piece.done() or mono_ms() - asked_ms < PIECE_MS_MAX:
                pull = await piece
                if pull.next_offset < pull.end:  # it has as much as the broker gives
                    self._count = max(1, min(self._count, pull.next_offset - offset))
                if pull.messages or pull.bad:
                    return pull
            self.close()
        return await self._whole(offset, wait)

    async def _whole(self, offset: int, wait: bool) -> Pull:
        """Ask for as much as the broker gives, with nothing under way."""
        pull = await self._cluster.pull(self._queue, offset, wait=wait)
        self._count, self._left = pull.next_offset - offset, PIECES_ANEW
        return pull

    def _ask(self, pull: Pull, offset: int) -> None:
        """Ask for the next pieces, up to the end of the queue as this answer tells it."""
        count = pull.next_offset - offset
        if pull.bad or pull.moved or count <= 0 or len(pull.messages) != count:
            self.close()
            return
        while self._pieces and self._pieces[-1][0] >= pull.end:  # the end has moved back
            self._next, _, piece = self._pieces.pop()
            piece.cancel()
        if not self._pieces:
            self._next = pull.next_offset
        most = min(self._window, BYTES_MAX // max(1, pull.size))
        while self._left > 0 and len(self._pieces) < most and self._next < pull.end:
            piece = asyncio.ensure_future(self._cluster.pull(self._queue, self._next, wait=False, count=self._count))
            piece.add_done_callback(_seen)
            self._pieces.append((self._next, mono_ms(), piece))
            self._next += self._count
            self._left -= 1


def _seen(piece: asyncio.Task[Pull]) -> None:
    """Look at the error of a piece that nobody may wait for: asyncio would log it."""
    if not piece.cancelled():
        piece.exception()
