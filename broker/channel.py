"""A connection as the processors see it: something to send to, with a peer, and a few notes about the peer.

Processors know nothing of sockets, so that a test or a simulation runs them over a `MemoryChannel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from remoting.message import encode_host

if TYPE_CHECKING:
    from asyncio import Future

    from remoting.command import RemotingCommand

__all__ = ["Channel", "ChannelState", "MemoryChannel", "peer_text"]


class ChannelState:
    """What is known about a peer.

    ==================  ======================================================================================
    ``born_host``       bytes, the peer's address as a record holds it
    ``serialize_type``  int, how the peer writes its headers; what is pushed to it is written the same way
    ``language``        str, ``version`` int: as of its last heartbeat
    ``next_opaque``     int, number of the next request that is pushed to it
    ``waiting``         dict of opaque to Future: requests pushed to it that it has not answered
    ``holds``           set, pulls of it that wait for messages (see `broker.long_poll`)
    ``notes``           dict, for whoever needs to remember something about this connection
    ==================  ======================================================================================
    """

    __slots__ = ("born_host", "holds", "language", "next_opaque", "notes", "serialize_type", "version", "waiting")

    def __init__(self, peer: tuple[str, int]) -> None:
        self.born_host = encode_host(*peer)
        self.serialize_type = 0
        self.language = "OTHER"
        self.version = 0
        self.next_opaque = 1
        self.waiting: dict[int, Future[RemotingCommand]] = {}
        self.holds: set[Any] = set()
        self.notes: dict[str, Any] = {}


class Channel(Protocol):
    """One connection of a client. Only the network loop's thread may use it."""

    peer: tuple[str, int]
    state: ChannelState

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        ...

    def send(self, data: bytes) -> None:
        """Send a frame; all of a turn go out together. Does nothing on a closed channel."""
        ...

    def send_at_once(self, data: bytes) -> None:
        """The same for what may be large: it does not wait for the end of the turn then."""
        ...

    def close(self) -> None:
        """Close after what was sent."""
        ...


class MemoryChannel:
    """A channel without a connection: it keeps the frames that were sent to it, in ``sent``."""

    __slots__ = ("closed", "peer", "sent", "state")

    def __init__(self, peer: tuple[str, int] = ("127.0.0.1", 50000)) -> None:
        self.peer = peer
        self.state = ChannelState(peer)
        self.closed = False
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        """Keep a frame."""
        if not self.closed:
            self.sent.append(data)

    def send_at_once(self, data: bytes) -> None:
        """Keep a frame."""
        self.send(data)

    def close(self) -> None:
        """Take nothing any more."""
        self.closed = True

    def take(self) -> bytes:
        """Hand out what was sent since the last call."""
        data = b"".join(self.sent)
        self.sent.clear()
        return data


def peer_text(channel: Channel) -> str:
    """Write a channel's peer as ``host:port``."""
    return f"{channel.peer[0]}:{channel.peer[1]}"
