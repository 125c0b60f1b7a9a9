"""The page: three files. `http_door` has what pages share: styles, a form, most of the script."""

from __future__ import annotations

from aiohttp import web

from http_door.files import add_page_files

__all__ = ["add_page"]


def add_page(app: web.Application) -> None:
    """Add the routes."""
    add_page_files(app, "broker.door")
