"""A connection as the processors see it: it can send, and knows its peer and a few facts about the peer.

Processors know nothing of sockets, so that a test or a simulation runs them over a `MemoryChannel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from remoting.messages.message import encode_host

if TYPE_CHECKING:
    from asyncio import Future

    from remoting.command import RemotingCommand

__all__ = [
    "BROKER_PORT",
    "KEPT_OF_ONE_MAX_BYTES",
    "NAME_SERVER_PORT",
    "NO_PORT",
    "SHARDS_PORT",
    "Channel",
    "ChannelState",
    "MemoryChannel",
    "kept_size",
    "peer_text",
]

KEPT_OF_ONE_MAX_BYTES = 64 << 20
"""Most bytes of one connection's requests that wait for an answer; the same limit as for its replies."""
BROKER_PORT, NAME_SERVER_PORT, NO_PORT = "broker", "name server", "none"
"""Values of `ChannelState.port`: the broker's ports, the name server's port, or a connection that we opened."""
SHARDS_PORT = "shards"
"""Another value: the link between a shard and its supervisor, which nobody else has; requests on it are not checked."""

_REQUEST_BYTES = 2_000  # bytes that a kept request costs besides its texts: task or hold, header, closures
_FIELD_BYTES = 120


class ChannelState:
    """The state of a peer.

    ==================  ======================================================================================
    ``born_host``       bytes, the peer's address as in a record
    ``serialize_type``  int, how the peer writes its headers; requests to it are written in the same way
    ``language``        str, ``version`` int: as of its last heartbeat
    ``next_opaque``     int, number of the next request to it
    ``waiting``         dict of opaque to Future: requests to it that it has not answered
    ``memberships``     int, its groups, as a producer and as a consumer (see `broker.net.clients`)
    ``consumes``        bool, whether it has asked for messages, by a pull or a pop
    ``holds``           set, its pulls that wait for messages (see `broker.pulling.long_poll`)
    ``parked``          list of requests that wait until the one before them is ready; None: no request waits
    ``port``            str, which codes are answered: those of `BROKER_PORT`, of `NAME_SERVER_PORT`, none (`NO_PORT`)
    ==================  ======================================================================================
    """

    __slots__ = (
        "born_host",
        "consumes",
        "holds",
        "language",
        "memberships",
        "next_opaque",
        "parked",
        "port",
        "serialize_type",
        "version",
        "waiting",
        "waits_in_line",
    )

    def __init__(self, peer: tuple[str, int], port: str = BROKER_PORT) -> None:
        self.port = port
        self.born_host = encode_host(*peer)
        self.serialize_type = 0
        self.language = "OTHER"
        self.version = 0
        self.next_opaque = 1
        self.waiting: dict[int, Future[RemotingCommand]] = {}
        self.consumes = False
        self.holds: set[Any] = set()
        self.memberships = 0
        self.waits_in_line = 0
        self.parked: list[Any] | None = None


class Channel(Protocol):
    """One connection of a client. Only the network loop's thread may use it."""

    peer: tuple[str, int]
    state: ChannelState
    kept_bytes: int

    @property
    def closed(self) -> bool:
        """True if the connection is closed."""
        ...

    def send(self, data: bytes) -> None:
        """Send a frame; all frames of a turn go out together. Does nothing on a closed channel."""
        ...

    def send_at_once(self, data: bytes) -> None:
        """Send a frame that may be large; a large one does not wait for the end of the turn."""
        ...

    def keep(self, size: int) -> None:
        """Count bytes of requests that wait for an answer; a negative size ends the count.

        They count against the limit of all connections together, so the channel may be closed when this returns.
        Does nothing on a closed channel.
        """
        ...

    def close(self) -> None:
        """Close once all frames are sent."""
        ...


class MemoryChannel:
    """A channel without a connection: it keeps all frames in ``sent``."""

    __slots__ = ("closed", "kept_bytes", "peer", "sent", "state")

    def __init__(self, peer: tuple[str, int] = ("127.0.0.1", 50000)) -> None:
        self.peer = peer
        self.state = ChannelState(peer)
        self.closed = False
        self.kept_bytes = 0
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        """Keep a frame."""
        if not self.closed:
            self.sent.append(data)

    def send_at_once(self, data: bytes) -> None:
        """Keep a frame."""
        self.send(data)

    def keep(self, size: int) -> None:
        """Count kept bytes."""
        if not self.closed:
            self.kept_bytes += size

    def close(self) -> None:
        """Accept no more frames."""
        self.closed = True
        self.kept_bytes = 0

    def take(self) -> bytes:
        """Return the frames sent since the last call."""
        data = b"".join(self.sent)
        self.sent.clear()
        return data


def kept_size(command: RemotingCommand) -> int:
    """About how many bytes a request costs while it is kept whole."""
    size = _REQUEST_BYTES + len(command.body)
    for name, value in command.ext.items():
        size += _FIELD_BYTES + len(name) + len(value)
    return size


def peer_text(channel: Channel) -> str:
    """Write a channel's peer as ``host:port``."""
    return f"{channel.peer[0]}:{channel.peer[1]}"
