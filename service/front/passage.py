"""One connection of a sender, and the connection to the cluster that belongs to it.

Frames of the sender are passed on unchanged and in order, with the sender's own numbers (opaque). So are the answers.
So signatures stay valid, and the sender gets the broker's own answer. These requests are not passed on:

========================  ==========================================================================================
sends with a due time     the service sends them to the entry topic itself, see `service.front.sending`
HEART_BEAT,               answered here. Senders send them to the brokers, too, which their routes also name. If a
UNREGISTER_CLIENT         consumer came over two connections it would count twice, and some queues would have no reader
QUERY_MESSAGE             answered with "not found": a client asks every name of a route, and would get results twice
========================  ==========================================================================================

If the cluster's side breaks, each request under way is answered with SERVICE_NOT_AVAILABLE, and clients try again. Then
it is unknown whether the request was carried out, as with every broken connection to a broker. The sender's side stays
open.

While one side does not read, the other side is not read from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from remoting.codes import ResponseCode
from remoting.command import ProtocolError, RemotingCommand, encode_command
from service.front.frames import PassedFrame
from service.front.wire import PassageWire
from timewheel_client.values.errors import ClientError

__all__ = ["Answer", "FarEnd", "Passage", "bare"]

LEFT_MS = 3000
"""Requests that a sender wrote before it disconnected wait this long for a broker that does not read."""
UNDER_WAY_MAX = 65_536
"""Most requests of one sender that wait for the cluster's answer and are answered if it breaks; older ones are not."""
UNDER_WAY_BYTES = 400
"""Memory that one of them counts for: some 20 times the smallest request."""
_SENDER_IS_SLOW = "the sender does not read"
Answer = Callable[[RemotingCommand | None], None]
"""Answers a request that was taken out; None: it wants no answer."""


class FarEnd(Protocol):
    """The server behind a port: a broker, or the name servers."""

    def open(self, passage: Passage) -> bool:
        """Note that a sender has connected; False if there is no room for it."""
        ...

    def closed(self, passage: Passage) -> None:
        """Note that it has disconnected."""
        ...

    def take(self, passage: Passage, command: RemotingCommand, answer: Answer) -> bool:
        """Handle a request here and answer it, perhaps later; False: pass it on."""
        ...

    def dial(self, passage: Passage) -> Awaitable[PassageWire]:
        """Connect to the cluster. Raises ClientError."""
        ...

    def hold(self, more_bytes: int) -> None:
        """Count buffered bytes. If there are too many, the passage that has most of them is closed."""
        ...

    def say(self, text: str) -> None:
        """Log an event."""
        ...


class Passage:
    """Passes frames between a sender and the cluster; a `service.front.wire.WireUser` of both connections."""

    def __init__(self, place: FarEnd) -> None:
        self._place = place
        self.near: PassageWire | None = None
        """The sender's connection."""
        self._begun = False
        self._far: PassageWire | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._queued: deque[bytes] = deque()
        self._under_way: dict[int, RemotingCommand] = {}
        self._stops: set[str] = set()
        self.counted_bytes = 0
        """Of what is kept for this sender, how much its place has counted."""

    # ------------------------------------------------------------------------------------------------ both wires

    def opened(self, wire: PassageWire) -> None:
        """A connection is open: the sender's, or the one to the cluster."""
        if not self._begun:
            self._begun, self.near = True, wire
            if not self._place.open(self):
                wire.abort("too many connections")

    def received(self, wire: PassageWire, frames: list[PassedFrame]) -> None:
        """Pass frames on."""
        if wire is self.near:
            for frame in frames:
                self._from_sender(frame)
        elif self.near is not None:
            for frame in frames:
                if frame.command.is_response:
                    self._under_way.pop(frame.command.opaque, None)
                self.near.write(frame.raw)
        self._count()

    def pressed(self, wire: PassageWire, full: bool) -> None:
        """Stop reading from one side while the other side does not read."""
        if wire is self.near:
            self.stop_reading(_SENDER_IS_SLOW, full)
            if self._far is not None:
                self._far.read(not full)
        else:
            self.stop_reading("the cluster does not read", full)
        self._count()

    def lost(self, wire: PassageWire, why: str) -> None:
        """Handle a lost connection: the sender's closes the other; for the cluster's, answer the requests under way."""
        if wire is self.near:
            if "protocol" in why:
                self._place.say(f"{self.peer}: connection closed: {why}")
            self._place.closed(self)
            self.near = None
            if self._dialling is not None:
                self._dialling.cancel()
            if self._far is not None:
                self._far.close()
                asyncio.get_running_loop().call_later(LEFT_MS / 1000, self._far.abort, "its sender is gone")
            self._queued.clear()
            self._under_way.clear()
            self._count()
        elif wire is self._far:
            self._far = None
            self.stop_reading("the cluster does not read", False)
            self._fail(why)
            self._count()

    def give_up(self, why: str) -> None:
        """Close the sender's connection at once."""
        if self.near is not None:
            self._place.say(f"{self.peer}: connection closed: {why}")
            self.near.abort(why)

    def _count(self) -> None:
        """Report the number of buffered bytes to the place."""
        more = self.held_bytes - self.counted_bytes
        if more:
            self.counted_bytes += more
            self._place.hold(more)

    # ------------------------------------------------------------------------------------------------ the sender's

    @property
    def peer(self) -> str:
        """The sender's address, for texts."""
        return self.near.peer if self.near is not None else "a sender that is gone"

    @property
    def held_bytes(self) -> int:
        """Bytes buffered for this sender, without sends with a due time."""
        wires = sum(wire.pending_bytes for wire in (self.near, self._far) if wire is not None)
        return wires + sum(map(len, self._queued)) + len(self._under_way) * UNDER_WAY_BYTES

    def stop_reading(self, why: str, stop: bool) -> None:
        """Add or remove a reason for not reading from the sender."""
        if stop:
            self._stops.add(why)
        else:
            self._stops.discard(why)
        if self.near is not None:
            self.near.read(not self._stops)

    def _from_sender(self, frame: PassedFrame) -> None:
        command = frame.command
        if command.is_response:
            self._to_cluster(frame.raw)
            return
        if not self._place.take(self, command, self._answerer(command)):
            if not command.is_oneway:
                if len(self._under_way) >= UNDER_WAY_MAX:
                    del self._under_way[next(iter(self._under_way))]
                self._under_way[command.opaque] = bare(command)
            self._to_cluster(frame.raw)

    def _answerer(self, request: RemotingCommand) -> Answer:
        command = bare(request)

        def answer(reply: RemotingCommand | None) -> None:
            if reply is not None and self.near is not None and not command.is_oneway:
                try:
                    self.near.write(encode_command(reply))
                except ProtocolError as error:
                    text = f"the answer cannot be written: {error}"
                    self.near.write(encode_command(command.reply(ResponseCode.SYSTEM_ERROR, text[:300])))
                self._count()

        return answer

    # ------------------------------------------------------------------------------------------------ the cluster's

    def _to_cluster(self, raw: bytes) -> None:
        if self._far is not None and self._far.is_open:
            self._far.write(raw)
            return
        self._queued.append(raw)
        if self._dialling is None:
            self.stop_reading("no connection yet", True)
            self._dialling = asyncio.ensure_future(self._dial())

    async def _dial(self) -> None:
        try:
            far = await self._place.dial(self)
            if self.near is None:
                far.close()
                return
            if not far.is_open:
                self._fail("closed at once")
                return
            self._far = far
            far.read(_SENDER_IS_SLOW not in self._stops)
            while self._queued:
                far.write(self._queued.popleft())
        except ClientError as error:
            self._fail(str(error))
        finally:
            self._dialling = None
            self.stop_reading("no connection yet", False)
            self._count()

    def _fail(self, why: str) -> None:
        self._queued.clear()
        under_way, self._under_way = self._under_way, {}
        if under_way:
            self._place.say(f"{self.peer}: {len(under_way)} requests got no answer from the cluster: {why}")
        for command in under_way.values():
            text = f"the delay service got no answer from the cluster: {why}"
            if self.near is not None:
                self.near.write(encode_command(command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, text[:300])))


def bare(command: RemotingCommand) -> RemotingCommand:
    """The part of a request that is needed to answer it: without body."""
    return RemotingCommand(command.code, command.opaque, command.flag, serialize_type=command.serialize_type)
