"""The identity of a store directory: ``timewheel/store``, a text file with the format's version and the store's id.

The id is drawn when the directory is first opened. Every other file of ours contains it, so that files of two stores
cannot be mixed up.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from store.disk.errors import StoreCorruptError, StoreFormatError
from store.disk.files import Files

__all__ = ["FORMAT_VERSION", "identity_text", "store_identity"]

FORMAT_VERSION = 1


def identity_text(store_id: bytes) -> bytes:
    """The content of the file for this id (16 bytes)."""
    return f"Timewheel store directory. Do not edit.\nformat={FORMAT_VERSION}\nid={store_id.hex()}\n".encode()


def store_identity(files: Files, path: Path) -> bytes:
    """Read the store's id (16 bytes), or create one.

    Raises `StoreFormatError` for a directory of another format version, `StoreCorruptError` for an unreadable file.
    """
    if not files.exists(path):
        for other in (path.with_name("checkpoint"), path.with_name("delay") / "manifest"):
            if files.exists(other):
                raise StoreCorruptError(
                    f"{path} at 0: it is missing, but {other} is there: bring it back, because a new id would make the "
                    "other files those of another store"
                )
        store_id = uuid.uuid4().bytes
        files.makedirs(path.parent)
        files.replace_file(path, identity_text(store_id))
        return store_id
    data = files.read_replaced(path)
    text = data.decode("utf-8", "replace")
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    version = values.get("format", "")
    at = max(0, data.find(b"format="))
    known = version.isascii() and version.isdigit()
    if known and version.lstrip("0") != str(FORMAT_VERSION):
        raise StoreFormatError(f"{path} at {at}: it has format version {version}, this program knows {FORMAT_VERSION}")
    try:
        store_id = bytes.fromhex(values["id"])
    except (KeyError, ValueError):
        store_id = b""
    if not known or len(store_id) != 16:
        raise StoreCorruptError(f"{path} at {at}: format or id cannot be read: {text!r:.120}")
    return store_id
