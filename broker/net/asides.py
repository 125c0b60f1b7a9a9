"""Long work of single requests, beside the network loop: answers over large tables, long bodies.

A thread does the work, so that the loop serves other clients meanwhile. One such request runs at a time, so the
threads that read from the disk stay free. The connections that wait have their turns in rotation, one request each: a
peer that sends hundreds of them waits for itself. Requests of one connection stay in order. Nothing is done for a
connection that was closed meanwhile.

A C library such as orjson holds the interpreter lock until it returns, whichever thread calls it. So long JSON is
written one entry at a time (`dump_table`), and read with bounds (`remoting.json_dialect.loads_body`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from broker.net.channel import Channel
from remoting.json_dialect import dumps

__all__ = ["ASKER", "Asides", "AskerGoneError", "dump_table"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


ASKER: ContextVar[Channel | None] = ContextVar("asker", default=None)
"""The connection whose request a task serves; the dispatcher sets it."""


class AskerGoneError(Exception):
    """The connection was closed before its request had its turn: nobody waits for the answer."""


class Asides:
    """Runs one task after the other in a thread. Only the network loop uses it.

    Args:
        in_order: Whether tasks run in the order in which they came, from all askers together.
    """

    def __init__(self, in_order: bool = False) -> None:
        self._in_order = in_order
        self._busy = False
        self._lines: dict[Channel | None, deque[asyncio.Future[None]]] = {}  # the next one's line comes first

    async def run(self, work: Callable[_P, _T], *args: _P.args, **more: _P.kwargs) -> _T:
        """Wait for its turn, do the work in a thread, and return its result. Raises AskerGoneError."""
        await self.begin()
        try:
            return await asyncio.to_thread(work, *args, **more)
        finally:
            self.end()

    async def begin(self) -> None:
        """Wait for its turn. The caller then does the work itself and calls `end`. Raises AskerGoneError."""
        asker = ASKER.get()
        if self._busy:
            await self._turn(None if self._in_order else asker)
        self._busy = True
        if asker is not None and asker.closed:
            self.end()
            raise AskerGoneError

    async def _turn(self, asker: Channel | None) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(asker, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # cancelled in the moment in which its turn came
                self.end()
            raise

    def end(self) -> None:
        """Let the next connection's first task run; the connection then stands behind the others."""
        while self._lines:
            asker = next(iter(self._lines))
            line = self._lines.pop(asker)
            turn = line.popleft()
            if line:
                self._lines[asker] = line
            if not turn.done():
                # Still busy: the place is handed over, so that nobody takes it before that task runs.
                turn.set_result(None)
                return
        self._busy = False


def dump_table(name: str, entries: Iterable[tuple[str, Any]], before: Mapping[str, Any] | None = None) -> bytes:
    """Write ``{…before, name: {key: value, …}}``, with one orjson call for each entry.

    >>> dump_table("t", [("a", 1), ("b", [2])], {"v": 0})
    b'{"v":0,"t":{"a":1,"b":[2]}}'
    """
    head = b"".join(dumps(key) + b":" + dumps(value) + b"," for key, value in (before or {}).items())
    return (
        b"{"
        + head
        + dumps(name)
        + b":{"
        + b",".join(dumps(key) + b":" + dumps(value) for key, value in entries)
        + b"}}"
    )
