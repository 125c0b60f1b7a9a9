"""Requests that the broker sends to clients, and the replies to them."""

from __future__ import annotations

import asyncio

from broker.net.channel import Channel, peer_text
from remoting.codes import FLAG_ONEWAY
from remoting.command import RemotingCommand, encode_command

__all__ = ["Asking"]


class Asking:
    """Pushes requests to clients. A channel's own state keeps which replies it owes. Only the network loop uses it."""

    def tell(self, channel: Channel, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Push a one-way request to a client."""
        serialize_type = channel.state.serialize_type
        command = RemotingCommand(code, 0, FLAG_ONEWAY, ext=ext, body=body, serialize_type=serialize_type)
        self._push(channel, command)

    async def ask(
        self,
        channel: Channel,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 10_000,
    ) -> RemotingCommand:
        """Push a request to a client and wait for its reply.

        Raises TimeoutError when none comes in time, ConnectionError when the channel closes before.
        """
        command = RemotingCommand(code, 0, ext=ext, body=body, serialize_type=channel.state.serialize_type)
        return await self.ask_command(channel, command, timeout_ms)

    async def ask_command(
        self, channel: Channel, command: RemotingCommand, timeout_ms: int = 10_000
    ) -> RemotingCommand:
        """Push a finished request and wait for its reply; sets the request's opaque.

        Raises TimeoutError when none comes in time, ConnectionError when the channel closes before.
        """
        if channel.closed:
            raise ConnectionError(f"{peer_text(channel)} is not connected")
        # No `await` up to the future: no reply can come before it is waited for.
        self._push(channel, command)
        waiting = channel.state.waiting
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        waiting[command.opaque] = future
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        finally:
            waiting.pop(command.opaque, None)

    def channel_closed(self, channel: Channel) -> None:
        """Fail the waiting pushed requests of a closed channel."""
        for future in channel.state.waiting.values():
            if not future.done():
                future.set_exception(ConnectionError(f"{peer_text(channel)} closed the connection"))
        channel.state.waiting.clear()

    def _push(self, channel: Channel, command: RemotingCommand) -> None:
        """Send a request under the channel's next number."""
        state = channel.state
        command.opaque = state.next_opaque
        state.next_opaque = state.next_opaque + 1 & 0x7FFFFFFF
        channel.send(encode_command(command))

    def answered(self, channel: Channel, command: RemotingCommand) -> None:
        """Give a client's reply to the call that waits for it; a reply that no call waits for is dropped."""
        future = channel.state.waiting.pop(command.opaque, None)
        if future is not None and not future.done():
            future.set_result(command)
