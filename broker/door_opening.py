"""Makes the HTTP door if the configuration asks for one. Only then its libraries (the extra ``http``) are needed.

The door knows the broker, and the broker does not know the door: it is loaded by its name, like a plug-in.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from broker.config.key import ConfigError

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig
    from broker.core import BrokerCore

__all__ = ["HttpDoor", "NoDoor", "open_door"]

_DOOR = "broker.door.door"


class HttpDoor(Protocol):
    """What the broker asks of `broker.door.door.Door`."""

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
    """Where HTTP is not served."""

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


async def open_door(config: BrokerConfig, failure: Callable[[], BaseException | None]) -> HttpDoor:
    """Open the door: until the broker has recovered, it only says that the process lives.

    ``failure`` tells why the broker takes nothing any more. Raises ConfigError if a library is missing, or if everybody
    could change what is pending; OSError if an address cannot be had.
    """
    if config.http_listen is None and config.metrics_listen is None:
        return NoDoor()
    try:
        module = importlib.import_module(_DOOR)
    except ModuleNotFoundError as error:
        wanted = "httpListen" if config.http_listen is not None else "metricsExporterType=PROM"
        raise ConfigError(
            f"{wanted} needs {error.name}, which is not installed: pip install 'rocketmq-timewheel[http]'"
        ) from None
    door = cast(HttpDoor, module.make_door(config, failure))
    try:
        door.bind()
        await asyncio.to_thread(door.start)
    except BaseException:
        door.stop()
        raise
    return door
