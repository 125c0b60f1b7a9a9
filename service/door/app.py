"""The applications of the door: access, health, metrics, all behind `http_door.guard`.

================================  =================================================================================
``/healthz /readyz /metrics``     anybody: they contain no message, and nothing can be changed
page and API, with a token        requests with ``Authorization: Bearer TOKEN`` may do everything. Anybody may load the
                                  page itself
page and API, without a token     if the port is on 127.0.0.1, everybody on the machine; otherwise nobody
================================  =================================================================================
"""

from __future__ import annotations

from ipaddress import ip_address

from aiohttp import web

from http_door.files import add_page_files
from http_door.guard import BODY_MAX_BYTES, Handler, check_origin, guard, json_answer, shows_token
from http_door.protocol import read_body
from http_door.work import BusyError
from service.door.api import ServiceApi, add_api
from service.door.orders import NoVerdictError, UnreachableError
from service.door.view import InstanceView
from service.metrics.exposition import MetricsText
from store.disk.errors import StoreError

__all__ = ["BODY_S", "make_app", "make_metrics_app", "why_health_only"]

BODY_S = 20.0
"""Longest time that the body of a request may take to come."""
_WHOSE = "instance"
_HEALTH = frozenset(("/healthz", "/readyz", "/metrics"))
_OPEN = frozenset(("/", "/page.css", "/page.js", "/api/v1/openapi.json"))
"""Paths that are served without the token: they contain no figures and no messages."""


def why_health_only(host: str, token: str) -> str:
    """Say why an address serves only health and metrics; empty if it serves everything.

    >>> why_health_only("127.0.0.1", ""), why_health_only("192.0.2.1", "a-token-of-sixteen")
    ('', '')
    """
    if token or host == "localhost" or _is_loopback(host):
        return ""
    return (
        f"on {host} without a token everybody who reaches it could change what waits, so there are /healthz, /readyz "
        "and /metrics alone: set TIMEWHEEL_HTTP_TOKEN, or listen on 127.0.0.1"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def make_app(api: ServiceApi, view: InstanceView, metrics: MetricsText, token: str, closed: str) -> web.Application:
    """Make the application of the HTTP port. ``closed``: why page and API are not served; empty if they are."""

    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _HEALTH:
            return await handler(request)
        check_origin(request, _WHOSE)
        if closed:
            raise web.HTTPForbidden(text=closed)
        if request.path not in _OPEN:
            if token and not shows_token(request, token):
                challenge = {"WWW-Authenticate": 'Bearer realm="timewheel"'}
                raise web.HTTPUnauthorized(text="show the token (TIMEWHEEL_HTTP_TOKEN)", headers=challenge)
            await read_body(request, BODY_S)
        try:
            return await handler(request)
        except NoVerdictError as error:
            return json_answer({"error": str(error)}, 504)
        except UnreachableError as error:
            return json_answer({"error": str(error)}, 503)

    app = web.Application(middlewares=[guard(answer, _WHOSE)], client_max_size=BODY_MAX_BYTES)
    app.router.add_get("/metrics", _metrics(api, metrics))
    _add_health(app, api, view)
    add_api(app, api)
    add_page_files(app, "service.door", styles=True)
    return app


def make_metrics_app(api: ServiceApi, metrics: MetricsText) -> web.Application:
    """Make the application of the port that serves metrics only, at any path."""
    app = web.Application(client_max_size=BODY_MAX_BYTES)
    app.router.add_get("/{path:.*}", _metrics(api, metrics))
    return app


def _metrics(api: ServiceApi, metrics: MetricsText) -> Handler:
    async def serve(request: web.Request) -> web.Response:
        try:
            text, kind = await api.work(metrics.write, request.headers.get("Accept", ""))
        except (BusyError, StoreError) as error:
            return web.Response(status=503, text=f"{error}\n")
        response = web.Response(body=text, headers={"Content-Type": kind})
        response.enable_compression()  # if the client accepts it
        return response

    return serve


def _add_health(app: web.Application, api: ServiceApi, view: InstanceView) -> None:
    async def live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        try:
            reasons = list(await api.work(view.why_not_ready))
        except (BusyError, StoreError) as error:
            reasons = [str(error)]
        return web.Response(status=503 if reasons else 200, text="\n".join(reasons or ["ok"]) + "\n")

    app.router.add_get("/healthz", live)
    app.router.add_get("/readyz", ready)
