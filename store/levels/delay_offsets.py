"""Apache's ``config/delayOffset.json``: for each delay level the number of the next message to deliver.

Our broker writes the file from durable checkpoints only, never ahead of them. So a higher number there means that an
Apache broker has run on the store since, and its progress counts. In this way a store can move between both brokers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads
from store.disk.errors import StoreCorruptError
from store.disk.files import Files

__all__ = ["DelayOffsets"]


class DelayOffsets:
    """The file, and its ``.bak``, which is read when the file is missing or empty or cannot be read."""

    __slots__ = ("_counter", "_files", "_path", "_written", "offsets")

    def __init__(self, files: Files, path: Path) -> None:
        """Read the file. Raises `StoreCorruptError` if neither the file nor its backup is valid."""
        self._files = files
        self._path = path
        self._counter = 0
        self._written: dict[int, int] | None = None
        self.offsets: dict[int, int] = self._read()

    def write(self, offsets: dict[int, int], now_ms: int) -> None:
        """Replace the file, keeping the old one as backup, unless it says this already."""
        offsets = {level: offset for level, offset in sorted(offsets.items()) if offset > 0}
        if offsets == self._written:
            return
        self._counter += 1
        version = {"counter": self._counter, "stateVersion": 0, "timestamp": now_ms}
        table = b",".join(b"%d:%d" % pair for pair in offsets.items())
        data = b'{"dataVersion":' + dumps(version) + b',"offsetTable":{' + table + b"}}"
        self._files.makedirs(self._path.parent)
        if self._files.exists(self._path):
            self._files.replace_file(self._backup, self._files.read_file(self._path))
        self._files.replace_file(self._path, data)
        self._written = offsets

    @property
    def _backup(self) -> Path:
        return self._path.with_name(self._path.name + ".bak")

    def _read(self) -> dict[int, int]:
        problem = ""
        for path in (self._path, self._backup):
            if not self._files.exists(path):
                continue
            data = self._files.read_replaced(path)
            if not data.strip():
                continue
            try:
                return self._parse(loads(data))
            except (ProtocolError, ValueError, TypeError, AttributeError, OverflowError) as error:
                problem = problem or f"{path} at 0: it cannot be read: {error}"
        if problem:
            raise StoreCorruptError(
                f"{problem}. It says which level messages were delivered: restore it, or remove it to have every "
                "level message that is still in the store delivered again"
            )
        return {}

    def _parse(self, value: Any) -> dict[int, int]:
        version = value.get("dataVersion") or {}
        self._counter = int(version.get("counter") or 0)
        return {int(level): int(offset) for level, offset in (value.get("offsetTable") or {}).items()}
