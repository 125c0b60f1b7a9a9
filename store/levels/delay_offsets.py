"""Apache's ``config/delayOffset.json``: for each delay level the number of the next message to deliver.

Our broker writes the file from durable checkpoints only, never ahead of them. So a higher number there means that an
Apache broker has run on the store since, and its progress counts. In this way a store can move between both brokers.
"""

from __future__ import annotations

from pathlib import Path

from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads
from store.disk.files import Files
from store.disk.kept_file import KeptFile

__all__ = ["DelayOffsets"]


_HINT = (
    "It says which level messages were delivered: restore it, or remove it to have every level message that is still "
    "in the store delivered again"
)


class DelayOffsets:
    """The file, and its version before (`store.disk.kept_file`)."""

    __slots__ = ("_counter", "_written", "file", "offsets")

    def __init__(self, files: Files, path: Path) -> None:
        """Read the file. Raises `StoreCorruptError` if no version of it can be read."""
        self.file = KeptFile(files, path, _HINT)
        self._counter = 0
        self._written: dict[int, int] | None = None
        self.offsets: dict[int, int] = self.file.read(self._parse) or {}

    def write(self, offsets: dict[int, int], now_ms: int) -> None:
        """Replace the file, keeping the old one as backup, unless it says this already."""
        offsets = {level: offset for level, offset in sorted(offsets.items()) if offset > 0}
        if offsets == self._written:
            return
        self._counter += 1
        version = {"counter": self._counter, "stateVersion": 0, "timestamp": now_ms}
        table = b",".join(b"%d:%d" % pair for pair in offsets.items())
        self.file.replace(b'{"dataVersion":' + dumps(version) + b',"offsetTable":{' + table + b"}}")
        self._written = offsets

    def _parse(self, data: bytes) -> dict[int, int]:
        try:
            document = loads(data)
            version = document.get("dataVersion") or {}
            self._counter = int(version.get("counter") or 0)
            return {int(level): int(offset) for level, offset in (document.get("offsetTable") or {}).items()}
        except (ProtocolError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"it cannot be read: {error}") from error
