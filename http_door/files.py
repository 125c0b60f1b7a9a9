"""Files that are served as they are: nothing is built, nothing comes from elsewhere. They are read once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files

from aiohttp import web

__all__ = ["add_file", "text_of"]


def text_of(package: str, name: str) -> bytes:
    """A file of a package."""
    return files(package).joinpath(name).read_bytes()


def add_file(app: web.Application, path: str, kind: str, texts: Sequence[bytes]) -> None:
    """Add a route that answers some texts, one behind the other."""
    app.router.add_get(path, _serving(b"\n".join(texts), kind))


def _serving(text: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    charset = None if kind == "application/json" else "utf-8"

    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=text, content_type=kind, charset=charset)

    return serve
