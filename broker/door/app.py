"""The applications of the door: the broker's routes, behind `http_door.guard`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from broker.door.access import allow
from broker.door.api import CALLER, add_api
from broker.door.page import add_page
from broker.door.peers import Peers
from broker.door.protocol import read_body
from broker.door.state import BusyError, DoorState, NotReadyError
from broker.door.whole import Whole
from broker.metrics.exposition import CONTENT_TYPE
from http_door.guard import BODY_MAX_BYTES, Handler, check_origin, guard
from store.disk.errors import StoreError

if TYPE_CHECKING:
    from typing import Any

__all__ = ["BODY_MAX_BYTES", "make_app", "make_metrics_app"]

_WHOSE = "broker"
_OPEN = frozenset(("/", "/page.css", "/page.js", "/healthz", "/readyz", "/api/v1/openapi.json"))
"""Paths that anybody may read: they show no figure and no message."""


def make_app(state: DoorState) -> web.Application:
    """Make the application of the HTTP port."""

    peers = None if state.who is None else Peers(state.who)
    whole = None if peers is None else Whole(peers, lambda: state.core.now_ms())

    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        everywhere = None
        check_origin(request, _WHOSE)
        if request.path not in _OPEN:
            request[CALLER] = allow(request, state.config, _acl(state))
            await read_body(request)
            everywhere = None if whole is None else await whole.answer(request)
        try:
            return everywhere or await handler(request)
        except NotImplementedError:
            raise web.HTTPNotImplemented(text="no plug-in of this broker can do this") from None

    app = web.Application(middlewares=[guard(answer, _WHOSE)], client_max_size=BODY_MAX_BYTES)
    _add_health(app, state)
    add_api(app, state)
    add_page(app)
    if peers is not None:

        async def close(_app: web.Application) -> None:
            await peers.close()

        app.on_cleanup.append(close)
    return app


def make_metrics_app(state: DoorState) -> web.Application:
    """Make the application of the port that serves metrics only, like Apache's exporter."""
    app = web.Application(client_max_size=BODY_MAX_BYTES)
    _add_health(app, state)
    return app


def _acl(state: DoorState) -> Any:
    return state.core.acl if state.config.get_bool("aclEnable") else None


def _add_health(app: web.Application, state: DoorState) -> None:
    async def metrics(_request: web.Request) -> web.Response:
        try:
            text = await state.work(state.exporter.text)
        except (NotReadyError, BusyError, StoreError) as error:
            return web.Response(status=503, text=f"{error}\n")
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    async def live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        try:
            reasons = await state.work(state.why_not_ready)
        except (BusyError, StoreError) as error:
            reasons = [str(error)]
        return web.Response(status=503 if reasons else 200, text="\n".join(reasons or ["ok"]) + "\n")

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", live)
    app.router.add_get("/readyz", ready)
