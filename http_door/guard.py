"""Wraps the handlers of every application of the door: checks of host and origin, errors as JSON, headers.

A browser sends any request that a page tells it to. So a request is answered only if its ``Host`` is an IP address,
``localhost``, or the same name as in ``Origin``. (A name that an attacker points at 127.0.0.1 is none of these.) A
request that changes something also needs ``Content-Type: application/json``, which a page of another origin cannot send
without permission. And it is refused if the browser says that it comes from another site.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Any

from aiohttp import web

from http_door.work import BusyError, NotReadyError
from remoting.json_dialect import dumps
from store.disk.errors import StoreError
from store.put.pending_api import PendingError

__all__ = ["BODY_MAX_BYTES", "Guarded", "Handler", "check_origin", "check_site", "guard", "json_answer", "shows_token"]

_LOG = logging.getLogger(__name__)
BODY_MAX_BYTES = 64 << 10
"""The longest body of a request."""
_SAFE_METHODS = frozenset(("GET", "HEAD"))
_NAME_CHARS_MAX = 253
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Guarded = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


def json_answer(document: object, status: int = 200) -> web.Response:
    """Make a JSON response from a document."""
    return web.Response(body=dumps(document), status=status, content_type="application/json")


def guard(answer: Guarded, whose: str) -> Any:
    """Make the middleware around ``answer``, which checks access and calls the handler.

    ``whose``: the name of the process in texts, such as ``broker``.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await answer(request, handler)
        except web.HTTPException as error:
            response = _error(error.status, error.text or error.reason, error.headers)
        except PendingError as error:
            response = _error(400, str(error))
        except (NotReadyError, BusyError, StoreError) as error:
            response = _error(503, str(error))
        except Exception as error:
            _LOG.error("%s %.200s failed: %s", request.method, request.path, error, exc_info=True)
            response = _error(500, f"the {whose}'s log has the details")
        response.headers.update(_HEADERS)
        return response

    return guarded


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    kept = {name: headers[name] for name in ("WWW-Authenticate", "Allow") if headers and name in headers}
    return web.Response(
        status=status, body=dumps({"error": text}), content_type="application/json", headers=kept or None
    )


def shows_token(request: web.Request, token: str) -> bool:
    """True if a request carries this token (``Authorization: Bearer …``)."""
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    # The header need not be text: bytes that are not arrive as surrogates.
    shown = given.encode("utf-8", "surrogateescape")
    return bool(token) and kind.lower() == "bearer" and hmac.compare_digest(shown, token.encode())


def check_origin(request: web.Request, whose: str) -> None:
    """Refuse a request that a page of another site may have caused.

    Raises HTTPForbidden, or HTTPUnsupportedMediaType for a body that is not JSON.
    """
    host = (request.headers.get("Host") or "")[: _NAME_CHARS_MAX + 8]
    if not _is_own(host):
        raise web.HTTPForbidden(
            text=f"Host {host!r} is no address: ask for this {whose} by its IP address or localhost"
        )
    if request.method in _SAFE_METHODS:
        return
    check_site(request)
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(
            text=f"Content-Type: application/json is expected, found {request.content_type!r:.100}"
        )


def check_site(request: web.Request) -> None:
    """Refuse a request if the browser says that a page of another site made it. Raises HTTPForbidden."""
    host = (request.headers.get("Host") or "")[: _NAME_CHARS_MAX + 8]
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
    if site not in ("none", "same-origin") or (origin is not None and origin.partition("://")[2] != host):
        raise web.HTTPForbidden(text=f"a page of another site ({origin or site!r:.100}) may change nothing here")


def _is_own(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost":
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
