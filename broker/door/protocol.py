"""The time limit for the body of a request. `http_door.protocol` has all else about connections."""

from __future__ import annotations

from aiohttp import web

from http_door import protocol

__all__ = ["BODY_S", "read_body"]

BODY_S = 20.0
"""Longest time that the body of a request may take to come."""


async def read_body(request: web.Request) -> None:
    """Read the body of a request, once for all handlers that use it. Raises HTTPException."""
    await protocol.read_body(request, BODY_S)
