"""The HTTP port of an instance (``--http-listen``), and the one that has metrics alone (``--metrics-listen``).

=============  ======================================================================================================
``/healthz``   200 as long as the process serves
``/readyz``    200, or 503 with the reasons, one a line (`service.metrics.health`)
``/metrics``   the metrics (`service.metrics.collector`)
=============  ======================================================================================================

A thread for each request, at most `THREADS_MAX`; the event loop runs no line of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from service.metrics.collector import ServiceCollector
from service.metrics.health import why_not_ready
from service.running.service import DelayService

__all__ = ["THREADS_MAX", "serve_http"]

THREADS_MAX = 32
"""Most connections at a time; more are closed."""
SILENCE_S = 10
"""How long a connection may say nothing."""
Answer = Callable[[str, list[tuple[str, str]]], Any]
Application = Callable[[dict[str, Any], Answer], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    """Writes no log, and does not wait for ever."""

    timeout = SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name there)
        """Nothing: scrapes come every few seconds."""


class _Server(ThreadingWSGIServer):
    """A thread for each connection, and no more than so many."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._room = threading.BoundedSemaphore(THREADS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one in a thread of its own, if there is room."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who asks has gone, or said nothing."""


def _application(service: DelayService, whole: bool) -> Application:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(service))
    metrics: Application = make_wsgi_app(registry)

    def health(path: str) -> tuple[str, str]:
        if path == "/healthz":
            return "200 OK", "ok"
        if path == "/readyz":
            reasons = why_not_ready(service)
            return ("503 Service Unavailable", "\n".join(reasons)) if reasons else ("200 OK", "ok")
        return "404 Not Found", "there are /healthz, /readyz and /metrics"

    def serve(environ: dict[str, Any], answer: Answer) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))
        if path == "/metrics" or not whole:
            return metrics(environ, answer)
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            answer("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return [b""]
        status, text = health(path)
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        answer(status, headers)
        return [f"{text}\n".encode()]

    return serve


def serve_http(service: DelayService, host: str, port: int, *, whole: bool = True) -> int:
    """Serve in threads of their own; the port. ``whole``: not only metrics, at any path.

    Raises OSError if the address cannot be bound.
    """
    server = make_server(host, port, _application(service, whole), _Server, _Handler)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return int(server.server_port)
