"""Apache's configuration files, ``config/<name>.json``: read with their quirks, replaced as a whole.

If a file is missing, empty or unreadable, ``<name>.json.bak``, the version before, is read. Writing makes a copy of the
file its ``.bak`` and then replaces the file, so both are whole at any moment, whoever reads them and whenever the
process dies. An unreadable file does not become the ``.bak``: the next write puts it aside as ``<name>.json.aside``.
Reading changes nothing, because commands read the files of a running broker. If both are broken it is an error: a
broker that forgets its topics would delete their messages.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads
from store.disk.errors import StoreCorruptError
from store.disk.files import Files

__all__ = ["DataVersion", "JsonFile"]

_LOG = logging.getLogger(__name__)


class JsonFile:
    """One file under ``config/``.

    Args:
        files: The door to the disk.
        path: Where the file lies; its directory is made when it is first written.
    """

    __slots__ = ("_files", "_unreadable", "path")

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._unreadable = False  # as found by `load`
        self.path = path

    def load(self) -> dict[str, Any] | None:
        """Read the document; None if there never was one. Raises StoreCorruptError if no version can be read."""
        problems = []
        for path in (self.path, self._bak):
            if not self._files.exists(path):
                continue
            data = self._files.read_replaced(path)
            if not data.strip(b"\x00 \t\r\n"):
                problems.append(f"{path} is empty")
                continue
            try:
                document = loads(data)
            except ProtocolError as error:
                problems.append(f"{path} at 0: {error}")
                continue
            if isinstance(document, dict):
                if path != self.path:
                    self._unreadable = bool(problems)
                    why = "; ".join(problems) or f"{self.path} is missing"
                    _LOG.warning("%s: the previous version is used", why)
                return document
            problems.append(f"{path} at 0: no JSON object")
        if not problems or all(problem.endswith("is empty") for problem in problems):
            return None
        raise StoreCorruptError(
            "; ".join(problems) + f". Put a good version in the place of {self.path}, or move both away to start empty."
        )

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
        self.save_bytes(dumps(document))

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
        self.save_bytes(b"{" + b",".join(parts) + b"}")

    def save_bytes(self, data: bytes) -> None:
        """Replace the file with a serialized document. Any thread. Raises StoreError."""
        self._files.makedirs(self.path.parent)
        if self._unreadable:
            self._unreadable = False
            if self._files.exists(self.path):
                _LOG.warning("the unreadable %s is kept as %s", self.path, self._files.move_aside(self.path))
        elif self._files.exists(self.path):
            self._files.replace_file(self._bak, self._files.read_file(self.path))
        self._files.replace_file(self.path, data)

    @property
    def _bak(self) -> Path:
        return self.path.with_name(self.path.name + ".bak")


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
