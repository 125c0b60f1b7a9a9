"""The page: three files. What it shares with other pages (styles, most of the script) is `http_door`'s."""

from __future__ import annotations

from aiohttp import web

from http_door.files import add_file, text_of

__all__ = ["add_page"]

_OWN, _COMMON = "broker.door", "http_door"


def add_page(app: web.Application) -> None:
    """Add the routes."""
    add_file(app, "/", "text/html", [text_of(_OWN, "page.html")])
    add_file(app, "/page.css", "text/css", [text_of(_COMMON, "page.css")])
    add_file(app, "/page.js", "text/javascript", [text_of(_COMMON, "common.js"), text_of(_OWN, "page.js")])
