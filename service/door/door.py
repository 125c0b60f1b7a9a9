"""`ServiceDoor`: the HTTP ports of an instance, in a thread with a loop of its own.

``--http-listen`` has everything, ``--metrics-listen`` metrics alone.

Nothing here runs in the service's loop. Queries on pending messages run in four threads of the door, with a pause after
each slice. Commands go to the cluster over connections of the door.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web

from http_door.thread import DoorThread
from service.door.api import ServiceApi
from service.door.app import make_app, make_metrics_app, why_health_only
from service.door.orders import OrderDesk, Orders
from service.door.view import ServiceView
from service.link.clock import mono_ms, wall_ms
from service.metrics.exposition import MetricsText
from service.running.service import DelayService

__all__ = ["ServiceDoor"]

_LOG = logging.getLogger(__name__)


class ServiceDoor:
    """The HTTP ports of one instance.

    Args:
        service: The instance.
        make: Makes the client that sends commands to the cluster.
        token: Requests that carry it may see and change pending messages. Empty: on 127.0.0.1 everybody may,
            elsewhere nobody.
    """

    def __init__(self, service: DelayService, make: Callable[[], Orders], token: str = "") -> None:
        self._token = token
        self._desk = OrderDesk(make)
        self._view = ServiceView(service, mono_ms)
        self._metrics = MetricsText(service)
        self._api = ServiceApi(self._view, self._desk, wall_ms, mono_ms)
        self._thread = DoorThread()

    def bind_all(self, host: str, port: int) -> int:
        """Reserve an address for everything; returns the port. Raises OSError."""
        closed = why_health_only(host, self._token)
        app = make_app(self._api, self._view, self._metrics, self._token, closed)
        app.on_cleanup.append(self._close_desk)
        port = self._thread.bind(host, port, app)
        _LOG.info("%s at http://%s:%d%s", "health" if closed else "HTTP", host, port, closed and f": {closed}")
        return port

    async def _close_desk(self, _app: web.Application) -> None:
        await self._desk.close()

    def bind_metrics(self, host: str, port: int) -> int:
        """Reserve an address for metrics only; returns the port. Raises OSError."""
        port = self._thread.bind(host, port, make_metrics_app(self._api, self._metrics))
        _LOG.info("metrics at http://%s:%d", host, port)
        return port

    def start(self) -> None:
        """Start the thread; returns when the ports are open. Raises OSError if one cannot be opened."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Requests under way have two seconds."""
        self._thread.stop()
