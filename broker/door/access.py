"""Access control of HTTP: how callers prove their identity, and the rights that follow from it.

==================  =========================================================================================
``httpToken``       a request with ``Authorization: Bearer TOKEN`` may do everything
``aclEnable``       ``Authorization: Basic`` with accessKey and secretKey. An admin account may do everything. Others
                    may see and change pending messages of the topics for which they have the right PENDING
neither             on 127.0.0.1 everybody may do everything; on any other address the door does not open
==================  =========================================================================================

`http_door.guard` decides from which web pages requests may come.
"""

from __future__ import annotations

import base64
import binascii
from ipaddress import ip_address
from typing import TYPE_CHECKING

from aiohttp import web

from broker.access.acl_rules import PENDING
from http_door.guard import shows_token

if TYPE_CHECKING:
    from broker.access.acl import Acl
    from broker.config.broker_config import BrokerConfig

__all__ = ["Caller", "allow", "why_closed"]


class Caller:
    """The caller. ``refusal`` says why it may not use a topic (empty: all topics), or is empty."""

    __slots__ = ("_acl", "_key")

    def __init__(self, acl: Acl | None = None, key: str = "") -> None:
        self._acl = acl
        self._key = key

    def refusal(self, topic: str) -> str:
        """Say why the caller may not see (or change) pending messages of a topic; empty if it may."""
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
        f"HTTP on {host} would let everybody who can connect change pending messages: set httpToken or aclEnable, or "
        "listen on 127.0.0.1"
    )


def allow(request: web.Request, config: BrokerConfig, acl: Acl | None) -> Caller:
    """Identify the caller. Raises HTTPUnauthorized."""
    token = config.get_text("httpToken")
    if not token and acl is None:
        return Caller()
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if shows_token(request, token):
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
    raise web.HTTPUnauthorized(text=f"authenticate with {words}", headers={"WWW-Authenticate": challenge})


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
