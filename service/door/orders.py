"""Queries and changes of one entry of any shard: each is a record in the entry queue, and so is its verdict.

The owner of the shard decides (`service.core.commands`), so any instance can cancel any entry. The door uses
connections of its own for this (`timewheel_client.ServiceClient`), in its own loop. The service's loop treats these
commands like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self

from http_door.work import BusyError
from store.put.pending_api import PendingError
from timewheel_client import ChangeResult, ClientError, RequestTimeoutError

__all__ = ["NoVerdictError", "OrderDesk", "Orders", "UnreachableError", "read_entry_name"]

NAME_CHARS_MAX = 4096
OFFSET_DIGITS_MAX = 18
UNDER_WAY_MAX = 32
"""Most commands that wait for their verdict."""
VERDICT_S = 20.0
"""Longest time that an order may take. The caller's own timeout is shorter, and its error says more."""


class NoVerdictError(Exception):
    """No verdict came in time. The text says what that means."""


class UnreachableError(Exception):
    """The cluster accepted no command. The text says why."""


class Orders(Protocol):
    """A client that sends commands and reads verdicts: `timewheel_client.ServiceClient`."""

    async def __aenter__(self) -> Self:
        """Begin."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        ...

    async def get(self, name: str) -> ChangeResult:
        """Ask for the state of an entry."""
        ...

    async def cancel(self, name: str) -> ChangeResult:
        """Cancel an entry."""
        ...

    async def now(self, name: str) -> ChangeResult:
        """Deliver an entry now."""
        ...

    async def move(self, name: str, *, due_ms: int | None = None, by_ms: int | None = None) -> ChangeResult:
        """Change the due time of an entry."""
        ...


def read_entry_name(text: str) -> tuple[str, int]:
    """Read ``BROKER/QUEUE/OFFSET`` as shard and offset. Raises PendingError.

    >>> read_entry_name("broker-a/3/1742")
    ('broker-a/3', 1742)
    """
    shard, _, offset = text.rpartition("/")
    broker, _, queue = shard.rpartition("/")
    digits = all(part.isascii() and part.isdecimal() and len(part) <= OFFSET_DIGITS_MAX for part in (queue, offset))
    if not broker or not digits or len(text) > NAME_CHARS_MAX:
        raise PendingError(
            f"{text!r:.60} ({len(text)} characters) names no entry: BROKER/QUEUE/OFFSET is expected, as its send was "
            "answered"
        )
    return f"{broker}/{int(queue)}", int(offset)


class OrderDesk:
    """Gives orders and waits for their verdicts, a bounded number at a time. For the door's loop.

    Args:
        make: Makes the client that sends them; called at the first order.
    """

    def __init__(self, make: Callable[[], Orders]) -> None:
        self._make = make
        self._orders: Orders | None = None
        self._opening = asyncio.Lock()
        self._under_way = 0

    async def give(
        self,
        order: Callable[[Orders], Awaitable[ChangeResult]],
        *,
        within_s: float | None = None,
        counted: bool = True,
    ) -> ChangeResult:
        """Give an order and wait for its verdict. Raises BusyError, NoVerdictError, UnreachableError.

        ``within_s``: the longest wait, in seconds. Not ``counted``: the order does not count towards the limit, because
        the caller gives only a few at a time.
        """
        if not counted:
            return await self._give(order, within_s or VERDICT_S)
        if self._under_way >= UNDER_WAY_MAX:
            raise BusyError(f"{self._under_way} commands wait for their verdicts, at most {UNDER_WAY_MAX} may")
        self._under_way += 1
        try:
            return await self._give(order, within_s or VERDICT_S)
        finally:
            self._under_way -= 1

    async def _give(self, order: Callable[[Orders], Awaitable[ChangeResult]], within_s: float) -> ChangeResult:
        try:
            async with asyncio.timeout(within_s):
                return await order(await self._open())
        except RequestTimeoutError as error:
            raise NoVerdictError(str(error)) from None
        except TimeoutError:
            raise NoVerdictError(
                f"no verdict within {within_s:g} s: the broker does not answer. If the command was stored, it will be "
                "decided"
            ) from None
        except ClientError as error:
            raise UnreachableError(str(error)) from None

    async def _open(self) -> Orders:
        async with self._opening:
            if self._orders is None:
                self._orders = await self._make().__aenter__()
            return self._orders

    async def close(self) -> None:
        """End."""
        if self._orders is not None:
            await self._orders.__aexit__(None, None, None)
            self._orders = None
