"""`DoorThread`: the HTTP ports of a process, in a thread with an event loop of its own.

Nothing here runs in the process's own loop. Work that waits for the disk or takes long runs in four threads of the door
(`http_door.work`).

Steps: `bind` reserves an address, `start` serves, `stop` ends the thread and frees the addresses.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp import web

from http_door.listening import BoundSocket, bind, listen
from http_door.protocol import DoorProtocol, is_senders_fault, protocol_kwargs

__all__ = ["CONNECTIONS_MAX", "DoorThread"]

_LOG = logging.getLogger(__name__)
_WORKERS = 4
_STOP_S = 2.0
CONNECTIONS_MAX = 256
"""Most connections; beyond it the oldest are closed."""
_REAP_S = 2.0


class DoorThread:
    """The ports and the thread.

    Args:
        tick: Called in the thread every two seconds.
    """

    def __init__(self, tick: Callable[[], object] = lambda: None) -> None:
        self._tick = tick
        self._ports: list[tuple[BoundSocket, web.Application]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def bind(self, host: str, port: int, app: web.Application) -> int:
        """Reserve an address for an application; returns the port. Raises OSError."""
        bound = bind(host, port)
        self._ports.append((bound, app))
        return bound.port

    def start(self) -> None:
        """Start the thread; returns when the ports are open. Raises OSError if one cannot be opened."""
        opened = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(self._serve(opened.set))
            except BaseException as error:
                failures.append(error)
                _LOG.error("HTTP is no longer served: %s", error, exc_info=not isinstance(error, OSError))
            finally:
                opened.set()

        self._thread = threading.Thread(target=run, name="http", daemon=True)
        self._thread.start()
        opened.wait()
        if failures:
            raise OSError(f"cannot serve HTTP: {failures[0]}") from failures[0]

    async def _serve(self, opened: Callable[[], object]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        workers = ThreadPoolExecutor(_WORKERS, "http-worker")
        loop.set_default_executor(workers)
        runners: list[web.AppRunner] = []
        listeners: list[asyncio.Server] = []
        try:
            for bound, app in self._ports:
                runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_STOP_S)
                runners.append(runner)
                await runner.setup()
                assert runner.server is not None, "it has been set up"
                make = partial(DoorProtocol, runner.server, loop=loop, **protocol_kwargs())
                listeners.append(await listen(bound, make))
            opened()
            while not self._stopping.is_set():
                try:
                    async with asyncio.timeout(_REAP_S):
                        await self._stopping.wait()
                except TimeoutError:
                    self._tick()
                    for runner in runners:
                        _reap(runner)
        finally:
            for listener in listeners:
                listener.close()
            for runner in runners:
                await runner.cleanup()
            workers.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """End the thread; also after a `start` that failed. Requests under way have two seconds."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._loop is not None and self._stopping is not None and thread.is_alive():
                try:
                    self._loop.call_soon_threadsafe(self._stopping.set)
                except RuntimeError:  # it has ended by itself
                    pass
            thread.join(2 * _STOP_S)
        for bound, _ in self._ports:
            bound.sock.close()
        self._ports.clear()


def _is_our_fault(record: logging.LogRecord) -> bool:
    """True if an error that aiohttp logs is ours. A request that is no HTTP is its sender's fault and gets 400."""
    return not (record.exc_info and is_senders_fault(record.exc_info[1]))


logging.getLogger("aiohttp.server").addFilter(_is_our_fault)


def _reap(runner: web.AppRunner) -> None:
    """Close the oldest connections if there are too many: silent ones must not keep others out."""
    server = runner.server
    if server is None:
        return
    connections = server.connections  # in the order in which they came
    for connection in connections[: max(0, len(connections) - CONNECTIONS_MAX)]:
        connection.force_close()
        if connection.transport is not None:
            connection.transport.close()
