"""What is said to a request that no handler gets, because it cannot be read: JSON in our words, as everywhere."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from remoting.json_dialect import dumps

__all__ = ["LINE_MAX_BYTES", "DoorProtocol", "protocol_kwargs"]

LINE_MAX_BYTES = 64 << 10
"""The longest address of a request, and the longest of its headers. A name that is too long gets a text of its own."""


def protocol_kwargs() -> dict[str, Any]:
    """Limits of a connection."""
    return {
        "access_log": None,
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
        """Answer what went wrong outside of the handlers; the base class has logged it if the fault is ours."""
        super().handle_error(request, status, exc, message)
        if isinstance(exc, LineTooLong):
            status, text = (
                414,
                f"the address of the request, or one of its headers, has more than {LINE_MAX_BYTES} bytes",
            )
        elif status < 500:
            text = "this is no HTTP request that can be read"
        else:
            text = "the broker's log has the details"
        response = web.Response(status=status, body=dumps({"error": text}), content_type="application/json")
        response.force_close()
        return response
