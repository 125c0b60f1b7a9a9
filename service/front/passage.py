"""One connection of a sender, and the connection to the cluster that belongs to it.

What the sender writes goes on frame by frame, byte for byte, in its order, with the sender's own numbers (opaque), and
so do the answers. So signatures stay valid, and the broker's answer is the sender's. Taken out are:

========================  ==========================================================================================
sends with a due time     they go to the entry topic as requests of the service's own, see `service.front.sending`
HEART_BEAT,               answered here: senders say the same to the brokers themselves, whom their routes name too.
UNREGISTER_CLIENT         Over two connections a consumer would count twice, and some of its queues would be nobody's
QUERY_MESSAGE             "not found": a client asks every name of a route, and would get the broker's answer twice
========================  ==========================================================================================

If the cluster's side breaks, each request under way is answered with SERVICE_NOT_AVAILABLE, which clients try again:
whether it was carried out is not known then, as with every broken connection to a broker. The sender's side stays.

While one side does not take what is written to it, the other one is not read.
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
"""How long what a sender has written before it went may wait for a broker that does not read."""
UNDER_WAY_MAX = 65_536
"""Most requests of one sender that wait for the cluster's answer and are answered if it breaks; older ones are not."""
UNDER_WAY_BYTES = 400
"""What one of them costs: some 20 times what the smallest request has."""
_SENDER_IS_SLOW = "the sender does not read"
Answer = Callable[[RemotingCommand | None], None]
"""Answers a request that was taken out; None: it wants no answer."""


class FarEnd(Protocol):
    """What is at the other end of a port: a broker, or the name servers."""

    def open(self, passage: Passage) -> bool:
        """A sender has come; False: there is no room for it."""
        ...

    def closed(self, passage: Passage) -> None:
        """It has gone."""
        ...

    def take(self, passage: Passage, command: RemotingCommand, answer: Answer) -> bool:
        """Take a request out, and answer it sooner or later; False: it is to be passed on."""
        ...

    def dial(self, passage: Passage) -> Awaitable[PassageWire]:
        """Connect to the cluster; raises ClientError."""
        ...

    def hold(self, more_bytes: int) -> None:
        """Count bytes that are kept for senders; too many end the passage that has most of them."""
        ...

    def say(self, text: str) -> None:
        """Tell what has happened."""
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
        """The sender's connection is there, or the cluster's."""
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
        """Do not read for one side what it does not take."""
        if wire is self.near:
            self.stop_reading(_SENDER_IS_SLOW, full)
            if self._far is not None:
                self._far.read(not full)
        else:
            self.stop_reading("the cluster does not read", full)
        self._count()

    def lost(self, wire: PassageWire, why: str) -> None:
        """Close the other side after the sender's; answer what is under way after the cluster's."""
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
        """Have the place count what is kept."""
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
        """Bytes that are kept for this sender, apart from sends with a due time."""
        wires = sum(wire.pending_bytes for wire in (self.near, self._far) if wire is not None)
        return wires + sum(map(len, self._queued)) + len(self._under_way) * UNDER_WAY_BYTES

    def stop_reading(self, why: str, stop: bool) -> None:
        """Have a reason for not reading from the sender, or have it no more."""
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
            self._place.say(f"{self.peer}: {len(under_way)} requests have no answer of the cluster: {why}")
        for command in under_way.values():
            text = f"the delay service has no answer of the cluster: {why}"
            if self.near is not None:
                self.near.write(encode_command(command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, text[:300])))


def bare(command: RemotingCommand) -> RemotingCommand:
    """What is needed to answer a request, without its body."""
    return RemotingCommand(command.code, command.opaque, command.flag, serialize_type=command.serialize_type)
