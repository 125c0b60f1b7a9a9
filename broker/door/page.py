"""The page: three files that are served as they are. Nothing is built, nothing comes from elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from aiohttp import web

__all__ = ["add_page"]

_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}


def add_page(app: web.Application) -> None:
    """Add the routes."""
    for path, (name, kind) in _FILES.items():
        app.router.add_get(path, _file(files("broker.door").joinpath(name).read_bytes(), kind))


def _file(text: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=text, content_type=kind, charset="utf-8")

    return serve
