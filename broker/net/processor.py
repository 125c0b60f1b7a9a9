"""The protocol of a processor: handlers for request codes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from broker.net.channel import Channel
from remoting.command import RemotingCommand

__all__ = ["Guard", "Handler", "Processor", "Reply"]

Reply = RemotingCommand | None
Handler = Callable[[Channel, RemotingCommand, int], "Reply | Coroutine[Any, Any, Reply]"]
Guard = Callable[[Channel, RemotingCommand], Reply]
"""Answers with the reply that refuses a request, or None."""


class Processor(Protocol):
    """Answers a family of requests."""

    def handlers(self) -> Mapping[int, Handler]:
        """Return its handlers: request code to method."""
        ...
