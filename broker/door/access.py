"""Who may do what over HTTP, and from which pages.

==================  =========================================================================================
``httpToken``       ``Authorization: Bearer TOKEN`` may do everything
``aclEnable``       ``Authorization: Basic`` with accessKey and secretKey: an admin account may do everything, any other
                    see and change what is pending in the topics of which it has the right PENDING
neither             on 127.0.0.1 everybody may do everything; on any other address the door is not opened
==================  =========================================================================================

A browser sends what any page tells it to. So a request is answered only if its ``Host`` is an address, ``localhost``
or the name that ``Origin`` has too (a name that an attacker points at 127.0.0.1 is none of these), and one that changes
something only with ``Content-Type: application/json``, which a page of another origin cannot send without being asked
for permission, and never if the browser says that it comes from another site.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from ipaddress import ip_address
from typing import TYPE_CHECKING

from aiohttp import web

from broker.access.acl_rules import PENDING

if TYPE_CHECKING:
    from broker.access.acl import Acl
    from broker.config.broker_config import BrokerConfig

__all__ = ["Caller", "allow", "check_origin", "why_closed"]

_SAFE_METHODS = frozenset(("GET", "HEAD"))
_NAME_CHARS_MAX = 253


class Caller:
    """Who asks. ``refusal`` of a topic (empty: all topics) says why not, or nothing."""

    __slots__ = ("_acl", "_key")

    def __init__(self, acl: Acl | None = None, key: str = "") -> None:
        self._acl = acl
        self._key = key

    def refusal(self, topic: str) -> str:
        """Say why the caller may not see (or change) what is pending in a topic; empty if it may."""
        if self._acl is None:
            return ""
        return self._acl.refusal(self._key, topic, PENDING)


def why_closed(config: BrokerConfig) -> str:
    """Say why the door cannot be opened as configured; empty if it can."""
    if config.http_listen is None or config.get_text("httpToken") or config.get_bool("aclEnable"):
        return ""
    host = config.http_listen[0]
    if ip_address(host).is_loopback:
        return ""
    return (
        f"HTTP on {host} would let everybody who reaches it change what is pending: set httpToken or aclEnable, or "
        "listen on 127.0.0.1"
    )


def check_origin(request: web.Request) -> None:
    """Refuse a request that another site's page may have caused.

    Raises HTTPForbidden, or HTTPUnsupportedMediaType for a body that is not JSON.
    """
    host = (request.headers.get("Host") or "")[: _NAME_CHARS_MAX + 8]
    if not _is_own(host):
        raise web.HTTPForbidden(text=f"Host {host!r} is no address: ask for this broker by its IP address or localhost")
    if request.method in _SAFE_METHODS:
        return
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
    if site not in ("none", "same-origin") or (origin is not None and origin.partition("://")[2] != host):
        raise web.HTTPForbidden(text=f"a page of another site ({origin or site!r:.100}) may change nothing here")
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(
            text=f"Content-Type: application/json is expected, found {request.content_type!r:.100}"
        )


def _is_own(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost":
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def allow(request: web.Request, config: BrokerConfig, acl: Acl | None) -> Caller:
    """Tell who asks. Raises HTTPUnauthorized."""
    token = config.get_text("httpToken")
    if not token and acl is None:
        return Caller()
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    # What comes need not be text: bytes that are none arrive as surrogates.
    shown = given.encode("utf-8", "surrogateescape")
    if token and kind.lower() == "bearer" and hmac.compare_digest(shown, token.encode()):
        return Caller()
    if acl is not None and kind.lower() == "basic":
        key, _, secret = _decoded(given).partition(":")
        if acl.knows(key, secret):
            return Caller(acl, key)
    ways = [way for way, there in (("Bearer", token), ("Basic", acl)) if there]
    challenge = ", ".join(f'{way} realm="timewheel"' for way in ways)
    words = " or ".join(
        text for text, there in (("the token (httpToken)", token), ("an account of the access rules", acl)) if there
    )
    raise web.HTTPUnauthorized(text=f"show {words}", headers={"WWW-Authenticate": challenge})


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
