"""Long work of single requests, beside the network loop: answers over large tables, long bodies.

A thread does the work, so that the loop serves other clients meanwhile. One such request runs at a time, in order of
arrival: a peer that sends many of them delays only such requests, and the threads that read from the disk stay free.

A C library such as orjson holds the interpreter lock until it returns, whichever thread calls it. So long JSON is
written one entry at a time (`dump_table`), and read with bounds (`remoting.json_dialect.loads_body`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from remoting.json_dialect import dumps

__all__ = ["Asides", "dump_table"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Asides:
    """Runs one task after the other in a thread. Only the network loop uses it."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(1)

    async def run(self, work: Callable[_P, _T], *args: _P.args, **more: _P.kwargs) -> _T:
        """Wait for the tasks before it, do the work in a thread, and return its result."""
        async with self._free:
            return await asyncio.to_thread(work, *args, **more)


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
