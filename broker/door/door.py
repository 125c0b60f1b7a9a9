"""`Door`: the HTTP ports of a broker, in a thread with an event loop of its own.

The broker's loop never runs a line of this. Work that waits for the disk or takes long (commands, listings, writing the
metrics) runs in four threads of the door, with pauses, so that the network loop keeps at least half of the interpreter.

Life: `bind` reserves the addresses, `start` serves (``/healthz`` says yes, ``/readyz`` says that the broker recovers),
`serve` opens the rest when the broker has recovered, `stop` ends the thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from broker.config.key import ConfigError
from broker.door.access import why_closed
from broker.door.app import make_app, make_metrics_app
from broker.door.listening import BoundSocket, bind, listen
from broker.door.protocol import DoorProtocol, is_senders_fault, protocol_kwargs
from broker.door.state import DoorState, WhoIsThere

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig
    from broker.core import BrokerCore

__all__ = ["CONNECTIONS_MAX", "Door", "make_door"]

_LOG = logging.getLogger(__name__)
_WORKERS = 4
_STOP_S = 2.0
CONNECTIONS_MAX = 256
"""Most connections; beyond it the oldest are closed."""
_REAP_S = 2.0


class Door:
    """The HTTP ports of one broker.

    Args:
        config: Says where to listen, and who may come in.
        failure: Why the broker takes nothing any more; None while it does.
        who: Lists the shards, if this broker is one of several.
    """

    def __init__(
        self,
        config: BrokerConfig,
        failure: Callable[[], BaseException | None] = lambda: None,
        who: WhoIsThere | None = None,
    ) -> None:
        self._config = config
        self.state = DoorState(config, failure, who)
        self.http_port = self.metrics_port = 0
        """Where it listens, once bound; 0: not there."""
        self._ports: list[tuple[BoundSocket, web.Application]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def bind(self) -> None:
        """Reserve the addresses. Raises OSError."""
        config = self._config
        if config.http_listen is not None:
            bound = bind(*config.http_listen)
            self.http_port = bound.port
            self._ports.append((bound, make_app(self.state)))
        if config.metrics_listen is not None:
            bound = bind(*config.metrics_listen)
            self.metrics_port = bound.port
            self._ports.append((bound, make_metrics_app(self.state)))

    def start(self) -> None:
        """Start the thread; returns when the ports are open. Raises OSError if one cannot be."""
        opened = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(self._serve(opened.set))
            except BaseException as error:
                failures.append(error)
                _LOG.error("HTTP is not served any more: %s", error, exc_info=not isinstance(error, OSError))
            finally:
                opened.set()

        self._thread = threading.Thread(target=run, name="http", daemon=True)
        self._thread.start()
        opened.wait()
        if failures:
            raise OSError(f"cannot serve HTTP: {failures[0]}") from failures[0]

    def attach(self, core: BrokerCore) -> None:
        """Begin to measure: the broker has recovered, and its threads are not started yet."""
        self.state.attach(core)

    def serve(self) -> None:
        """Serve everything: the broker runs."""
        self.state.running = True
        if self.http_port:
            threading.Thread(target=self.state.look_ahead, name="http-forecast", daemon=True).start()

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
                    self.state.sample()
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
        self.state.running = False
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


def make_door(config: BrokerConfig, failure: Callable[[], BaseException | None], who: WhoIsThere | None = None) -> Door:
    """Make a door, not yet bound. Raises ConfigError if it would be open to everybody."""
    reason = why_closed(config)
    if reason:
        raise ConfigError(reason)
    return Door(config, failure, who)


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Whether an error that aiohttp logs is one of ours: a request that is no HTTP is its sender's, who got 400."""
    return not (record.exc_info and is_senders_fault(record.exc_info[1]))


logging.getLogger("aiohttp.server").addFilter(_is_our_fault)


def _reap(runner: web.AppRunner) -> None:
    """Close the oldest connections of too many: who opens them and says nothing keeps nobody out."""
    server = runner.server
    if server is None:
        return
    connections = server.connections  # in the order in which they came
    for connection in connections[: max(0, len(connections) - CONNECTIONS_MAX)]:
        connection.force_close()
        if connection.transport is not None:
            connection.transport.close()
