"""`PutRequest`: what a turn of the network loop keeps of a request that is answered by a rule of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remoting.command import RemotingCommand
    from store.hook import Held, PutRecord, PutResult

__all__ = ["PutRequest"]


class PutRequest:
    """A request of any number of messages: what became of each, and the rule that makes its answer."""

    __slots__ = ("answer", "parts", "records")

    def __init__(self, answer: Callable[[list[PutResult]], RemotingCommand | None]) -> None:
        self.answer = answer
        self.parts: list[Held | None] = []  # None: the store appends it
        self.records: list[PutRecord] = []
