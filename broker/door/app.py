"""The applications of the door: routes, limits, errors as JSON, headers for browsers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from broker.door.access import allow, check_origin
from broker.door.api import CALLER, add_api
from broker.door.page import add_page
from broker.door.peers import Peers
from broker.door.protocol import read_body
from broker.door.state import BusyError, DoorState, NotReadyError
from broker.door.whole import Whole
from broker.metrics.exposition import CONTENT_TYPE
from remoting.json_dialect import dumps
from store.disk.errors import StoreError
from store.put.pending_api import PendingError

if TYPE_CHECKING:
    from typing import Any

__all__ = ["BODY_MAX_BYTES", "make_app", "make_metrics_app"]

_LOG = logging.getLogger(__name__)
BODY_MAX_BYTES = 64 << 10
"""The longest body of a request."""
_OPEN = frozenset(("/", "/page.css", "/page.js", "/healthz", "/readyz", "/api/v1/openapi.json"))
"""What anybody may read: no figure and no message is in it."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(state: DoorState) -> web.Application:
    """Make the application of the HTTP port."""

    peers = None if state.who is None else Peers(state.who)
    whole = None if peers is None else Whole(peers, lambda: state.core.now_ms())

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            everywhere = None
            check_origin(request)
            if request.path not in _OPEN:
                request[CALLER] = allow(request, state.config, _acl(state))
                await read_body(request)
                everywhere = None if whole is None else await whole.answer(request)
            response = everywhere or await handler(request)
        except web.HTTPException as error:
            response = _error(error.status, error.text or error.reason, error.headers)
        except PendingError as error:
            response = _error(400, str(error))
        except (NotReadyError, BusyError, StoreError) as error:
            response = _error(503, str(error))
        except NotImplementedError:
            response = _error(501, "no plug-in of this broker can do this")
        except Exception as error:
            _LOG.error("%s %.200s failed: %s", request.method, request.path, error, exc_info=True)
            response = _error(500, "the broker's log has the details")
        response.headers.update(_HEADERS)
        return response

    app = web.Application(middlewares=[guarded], client_max_size=BODY_MAX_BYTES)
    _add_health(app, state)
    add_api(app, state)
    add_page(app)
    if peers is not None:

        async def close(_app: web.Application) -> None:
            await peers.close()

        app.on_cleanup.append(close)
    return app


def make_metrics_app(state: DoorState) -> web.Application:
    """Make the application of the port that only has metrics, as Apache's exporter has it."""
    app = web.Application(client_max_size=BODY_MAX_BYTES)
    _add_health(app, state)
    return app


def _acl(state: DoorState) -> Any:
    return state.core.acl if state.config.get_bool("aclEnable") else None


def _error(status: int, text: str, headers: Any = None) -> web.Response:
    kept = {name: headers[name] for name in ("WWW-Authenticate", "Allow") if headers and name in headers}
    return web.Response(
        status=status, body=dumps({"error": text}), content_type="application/json", headers=kept or None
    )


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
