"""Answers requests that cannot be parsed and so reach no handler: with JSON, like all other errors.

Such a request is its sender's fault. It is not logged, because anybody could fill the log with them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from remoting.json_dialect import dumps

__all__ = ["LINE_MAX_BYTES", "DoorProtocol", "is_senders_fault", "protocol_kwargs", "read_body"]

LINE_MAX_BYTES = 64 << 10
"""The longest address of a request, and the longest of its headers. A name that is too long gets a text of its own."""


def protocol_kwargs() -> dict[str, Any]:
    """Limits of a connection."""
    return {
        "access_log": None,
        "auto_decompress": False,  # a small compressed body may expand a thousandfold, even if no handler reads it
        "keepalive_timeout": 30,
        "max_line_size": LINE_MAX_BYTES,
        "max_field_size": LINE_MAX_BYTES,
    }


class DoorProtocol(web.RequestHandler):
    """One connection."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer an error outside of the handlers. The base class has logged it if the fault is ours."""
        super().handle_error(request, status, exc, message)
        if isinstance(exc, LineTooLong):
            status, text = (
                414,
                f"the address of the request, or one of its headers, has more than {LINE_MAX_BYTES} bytes",
            )
        elif status < 500:
            text = "this is no HTTP request that can be read"
        else:
            text = "the log has the details"
        response = web.Response(status=status, body=dumps({"error": text}), content_type="application/json")
        response.force_close()
        return response


async def read_body(request: web.Request, within_s: float) -> None:
    """Read the body of a request, once for all handlers that use it, within a time limit.

    Raises HTTPException if the body is too long, late, incomplete or compressed.
    """
    coding = request.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise web.HTTPUnsupportedMediaType(text=f"the body is packed ({coding!r:.60}): send it as it is")
    try:
        async with asyncio.timeout(within_s):
            await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body is not there after {within_s:g} s") from None
    except ConnectionError:  # the client is gone
        raise web.HTTPBadRequest(text="the connection has ended within the body") from None
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(text="the body cannot be read: its length is wrong") from None


def is_senders_fault(error: BaseException | None) -> bool:
    """True if an error is the fault of the sender of the request."""
    return isinstance(error, HttpProcessingError | web.RequestPayloadError)
