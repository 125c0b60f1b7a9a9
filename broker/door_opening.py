"""Makes the HTTP door and the tracer if the configuration asks for them. Only then their libraries are needed.

Both know the broker, and the broker does not know them: they are loaded by their names, like plug-ins.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from broker.config.key import ConfigError

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig
    from broker.core import BrokerCore
    from broker.shards.link import ShardLink

__all__ = ["DoorWithSpans", "HttpDoor", "NoDoor", "Tracing", "open_door"]

_DOOR = "broker.door.door"
_TRACER = "broker.tracing.tracer"
_WhoIsThere = Callable[[], Awaitable[Sequence[Mapping[str, str]]]]


class HttpDoor(Protocol):
    """The part of `broker.door.door.Door` that the broker uses."""

    http_port: int
    metrics_port: int

    def bind(self) -> None:
        """Reserve the addresses. Raises OSError."""
        ...

    def start(self) -> None:
        """Start the thread; until `serve` it only says that the process lives. Raises OSError."""
        ...

    def attach(self, core: BrokerCore) -> None:
        """Begin to measure a broker that has recovered and whose threads are not started yet."""
        ...

    def serve(self) -> None:
        """Serve everything: the broker runs."""
        ...

    def stop(self) -> None:
        """End the thread, and free the addresses."""
        ...


class NoDoor:
    """Stands in for the door if HTTP is not served."""

    http_port = metrics_port = 0

    def bind(self) -> None:
        """Do nothing."""

    def start(self) -> None:
        """Do nothing."""

    def attach(self, core: BrokerCore) -> None:
        """Do nothing."""

    def serve(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class Tracing(Protocol):
    """The part of `broker.tracing.tracer.Tracer` that the broker uses."""

    def attach(self, core: BrokerCore) -> None:
        """Begin at the end of the log of a broker that has recovered."""
        ...

    def start(self) -> None:
        """Start the threads."""
        ...

    def stop(self) -> None:
        """End them."""
        ...


class DoorWithSpans:
    """A door, and beside it spans of delayed messages."""

    def __init__(self, door: HttpDoor, tracer: Tracing) -> None:
        self._door = door
        self._tracer = tracer
        self.http_port, self.metrics_port = door.http_port, door.metrics_port

    def bind(self) -> None:
        """Reserve the addresses. Raises OSError."""
        self._door.bind()

    def start(self) -> None:
        """Start the door. Raises OSError."""
        self._door.start()

    def attach(self, core: BrokerCore) -> None:
        """Begin with a broker that has recovered."""
        self._door.attach(core)
        self._tracer.attach(core)

    def serve(self) -> None:
        """Begin: the broker runs."""
        self._door.serve()
        self._tracer.start()

    def stop(self) -> None:
        """End both."""
        self._tracer.stop()
        self._door.stop()


async def open_door(
    config: BrokerConfig, failure: Callable[[], BaseException | None], link: ShardLink | None = None
) -> HttpDoor:
    """Open the door, and make the tracer. Raises ConfigError, OSError: see `_open_http`.

    With a ``link`` the broker is one of several shards, and the door shows them all.
    """
    who = None if link is None else _asked_in_its_loop(link)
    if not config.get_text("timewheelTraceEndpoint"):
        return await _open_http(config, failure, who)
    module = _loaded(_TRACER, "timewheelTraceEndpoint", "otel")
    return DoorWithSpans(await _open_http(config, failure, who), module.make_tracer(config))


def _loaded(name: str, wanted: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{wanted} needs {error.name}, which is not installed: pip install 'rocketmq-timewheel[{extra}]'"
        ) from None


def _asked_in_its_loop(link: ShardLink) -> _WhoIsThere:
    """The list of shards for the door, whose loop is another one than the link's."""
    loop = asyncio.get_running_loop()

    async def who() -> Sequence[Mapping[str, str]]:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(link.who(), loop))

    return who


async def _open_http(
    config: BrokerConfig, failure: Callable[[], BaseException | None], who: _WhoIsThere | None
) -> HttpDoor:
    """Open the door: until the broker has recovered, it only says that the process lives.

    ``failure`` is why the broker accepts no more messages. Raises ConfigError if a library is missing, or if everybody
    could change what is pending; OSError if an address cannot be had.
    """
    if config.http_listen is None and config.metrics_listen is None:
        return NoDoor()
    wanted = "httpListen" if config.http_listen is not None else "metricsExporterType=PROM"
    module = _loaded(_DOOR, wanted, "http")
    door = cast(HttpDoor, module.make_door(config, failure, who))
    try:
        door.bind()
        await asyncio.to_thread(door.start)
    except BaseException:
        door.stop()
        raise
    return door
