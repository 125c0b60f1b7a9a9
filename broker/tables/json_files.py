"""Apache's configuration files, ``config/<name>.json``: read with their quirks, replaced as a whole.

If no version can be read it is an error: a broker that forgets its topics would delete their messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads
from store.disk.errors import StoreCorruptError
from store.disk.files import Files
from store.disk.kept_file import KeptFile

__all__ = ["DataVersion", "JsonFile"]


class JsonFile(KeptFile):
    """One file under ``config/``.

    Args:
        files: The door to the disk.
        path: Where the file lies; its directory is made when it is first written.
    """

    __slots__ = ()

    def __init__(self, files: Files, path: Path) -> None:
        hint = f"Put a good version in the place of {path}, or move both away to start empty."
        super().__init__(files, path, hint, blank=b"\x00 \t\r\n")

    def load(self) -> dict[str, Any] | None:
        """Read the document; None if there never was one. Raises StoreCorruptError if no version can be read."""
        return self.read(_object)

    def damage(self, name: str, problem: str) -> StoreCorruptError:
        """Make the error for a document that is JSON, but has something wrong at ``name``."""
        at = 0
        if self._files.exists(self.path):
            at = max(0, self._files.read_file(self.path).find(f'"{name}"'.encode()))
        return StoreCorruptError(f"{self.path} at {at}: {problem}. Put a good version in its place")

    def table(self, document: dict[str, Any], name: str) -> dict[str, Any]:
        """One table of a document; empty if it is missing. Raises StoreCorruptError if the value is no object."""
        table = document.get(name) or {}
        if not isinstance(table, dict):
            raise self.damage(name, f"{name} is no object: {table!r:.80}")
        return table

    def save(self, document: dict[str, Any]) -> None:
        """Replace the file, durably. Raises StoreError."""
        self.replace(dumps(document))

    def save_tables(self, document: dict[str, Any]) -> None:
        """`save` for a thread: serializes piece by piece, so that others run meanwhile, even with 100,000 names.

        Raises StoreError.
        """
        parts = []
        for name, value in document.items():
            if isinstance(value, dict):
                entries = b",".join([dumps(key) + b":" + dumps(entry) for key, entry in value.items()])
                parts.append(dumps(name) + b":{" + entries + b"}")
            else:
                parts.append(dumps(name) + b":" + dumps(value))
        self.replace(b"{" + b",".join(parts) + b"}")


def _object(data: bytes) -> dict[str, Any]:
    try:
        document = loads(data)
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    return document


class DataVersion:
    """The version of a table, as name servers and tools compare it: a counter and the time of the last change."""

    __slots__ = ("counter", "state_version", "timestamp_ms")

    def __init__(self, timestamp_ms: int = 0, counter: int = 0, state_version: int = 0) -> None:
        self.timestamp_ms = timestamp_ms
        self.counter = counter
        self.state_version = state_version

    def next(self, now_ms: int) -> None:
        """Count one change."""
        self.counter += 1
        self.timestamp_ms = now_ms

    def after(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return DataVersion(now_ms, self.counter + 1, self.state_version)

    def take(self, other: DataVersion) -> None:
        """Become another one."""
        self.timestamp_ms, self.counter, self.state_version = other.timestamp_ms, other.counter, other.state_version

    def to_json(self) -> dict[str, int]:
        """Write it with Apache's names."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    def assign(self, document: Any) -> None:
        """Take the values of a file's document; unreadable ones leave this version as it is."""
        if not isinstance(document, dict):
            return
        counter, timestamp = document.get("counter"), document.get("timestamp")
        if isinstance(counter, int) and isinstance(timestamp, int):
            self.counter = counter
            self.timestamp_ms = timestamp
            state_version = document.get("stateVersion")
            self.state_version = state_version if isinstance(state_version, int) else 0
