"""Files that are served unchanged: nothing is built or loaded from elsewhere. Each is read once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files

from aiohttp import web

__all__ = ["add_file", "add_page_files", "text_of"]

_COMMON = "http_door"
_SCRIPTS = ("common.js", "topics.js", "bulk.js")
_FORM = b"<!-- bulk.html -->\n"
"""The place in a page where the form for changes by a query is put."""


def text_of(package: str, name: str) -> bytes:
    """The text of a file of a package."""
    return files(package).joinpath(name).read_bytes()


def add_file(app: web.Application, path: str, kind: str, texts: Sequence[bytes]) -> None:
    """Add a route that answers the given texts, joined."""
    app.router.add_get(path, _serving(b"\n".join(texts), kind))


def add_page_files(app: web.Application, own: str, *, styles: bool = False) -> None:
    """Add the routes of a page: the parts that all pages share, followed by those of the package ``own``.

    ``styles``: whether ``own`` has styles, too.
    """
    page, form = text_of(own, "page.html"), text_of(_COMMON, "bulk.html")
    own_styles = [text_of(own, "page.css")] if styles else []
    add_file(app, "/", "text/html", [page.replace(_FORM, form)])
    add_file(app, "/page.css", "text/css", [text_of(_COMMON, "page.css"), *own_styles])
    scripts = [text_of(_COMMON, name) for name in _SCRIPTS]
    add_file(app, "/page.js", "text/javascript", [*scripts, text_of(own, "page.js")])


def _serving(text: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    charset = None if kind == "application/json" else "utf-8"

    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=text, content_type=kind, charset=charset)

    return serve
