"""How long the body of a request may take to come; all else of a connection is `http_door.protocol`."""

from __future__ import annotations

from aiohttp import web

from http_door import protocol

__all__ = ["BODY_S", "read_body"]

BODY_S = 20.0
"""Longest time that the body of a request may take to come."""


async def read_body(request: web.Request) -> None:
    """Read the body of a request, once for all who look at it. Raises HTTPException."""
    await protocol.read_body(request, BODY_S)
