"""`Door`: the HTTP ports of a broker, in a thread with an event loop of its own (`http_door.thread`).

Nothing here runs in the broker's loop. Work that waits for the disk or takes long (commands, listings, writing the
metrics) runs in four threads of the door, with pauses, so that the network loop keeps at least half of the interpreter.

Steps: `bind` reserves the addresses. `start` serves ``/healthz`` (yes) and ``/readyz`` (the broker recovers). `serve`
opens the rest when the broker has recovered. `stop` ends the thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.config.key import ConfigError
from broker.door.access import why_closed
from broker.door.app import make_app, make_metrics_app
from broker.door.state import DoorState, WhoIsThere
from http_door.thread import CONNECTIONS_MAX, DoorThread

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig
    from broker.core import BrokerCore

__all__ = ["CONNECTIONS_MAX", "Door", "make_door"]


class Door:
    """The HTTP ports of one broker.

    Args:
        config: Says where to listen, and who has access.
        failure: The error after which the broker accepts no more messages; None while it does.
        who: Lists the shards, if this broker is a shard.
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
        """The port, once bound; 0 if there is none."""
        self._thread = DoorThread(self.state.sample)

    def bind(self) -> None:
        """Reserve the addresses. Raises OSError."""
        config = self._config
        if config.http_listen is not None:
            self.http_port = self._thread.bind(*config.http_listen, make_app(self.state))
        if config.metrics_listen is not None:
            self.metrics_port = self._thread.bind(*config.metrics_listen, make_metrics_app(self.state))

    def start(self) -> None:
        """Start the thread; returns when the ports are open. Raises OSError if one cannot be opened."""
        self._thread.start()

    def attach(self, core: BrokerCore) -> None:
        """Begin to measure. Call it when the broker has recovered and its threads have not started yet."""
        self.state.attach(core)

    def serve(self) -> None:
        """Serve everything. Call it when the broker runs."""
        self.state.running = True
        if self.http_port:
            threading.Thread(target=self.state.look_ahead, name="http-forecast", daemon=True).start()

    def stop(self) -> None:
        """End the thread; also after a `start` that failed. Requests under way have two seconds."""
        self.state.running = False
        self._thread.stop()


def make_door(config: BrokerConfig, failure: Callable[[], BaseException | None], who: WhoIsThere | None = None) -> Door:
    """Make a door, not yet bound. Raises ConfigError if the configuration would let everybody in."""
    reason = why_closed(config)
    if reason:
        raise ConfigError(reason)
    return Door(config, failure, who)
