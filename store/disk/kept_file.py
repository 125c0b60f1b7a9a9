"""`KeptFile`: a small file that is replaced as a whole, and its version before, ``<name>.bak``.

Each write makes a copy of the file its ``.bak`` and then replaces the file. So both are whole at any moment, whoever
reads them and whenever the process dies. A read falls back to ``.bak`` if the file is missing, empty or unreadable. The
next write must not make such a file the ``.bak``, so it keeps a copy as ``<name>.aside`` instead. A read changes
nothing, because commands read the files of a running broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from store.disk.errors import StoreCorruptError, StoreError
from store.disk.files import Files

__all__ = ["KeptFile"]

_LOG = logging.getLogger(__name__)
_BLANK = b"\x00 \t\r\n"
_T = TypeVar("_T")


class KeptFile:
    """See the module's text.

    Args:
        files: The door to the disk.
        path: Where the file lies; its directory is made when it is first written.
        hint: What to do if no version can be read.
    """

    __slots__ = ("_files", "_hint", "_is_aside", "is_previous", "path")

    def __init__(self, files: Files, path: Path, hint: str) -> None:
        self._files = files
        self._hint = hint
        self._is_aside = False  # whether a copy of an unreadable file was made since the last `read`
        self.path = path
        self.is_previous = False
        """True if the last `read` had to take the version before."""

    @property
    def bak(self) -> Path:
        """The version before."""
        return self.path.with_name(f"{self.path.name}.bak")

    def read(self, parse: Callable[[bytes], _T]) -> _T | None:
        """Read the newest version that ``parse`` takes (it raises ValueError for others); None if there never was one.

        Raises StoreCorruptError if no version can be read.
        """
        self.is_previous = self._is_aside = False
        empty, broken = [], []
        for path in (self.path, self.bak):
            if not self._files.exists(path):
                continue
            data = self._files.read_replaced(path)
            if not data.strip(_BLANK):
                empty.append(f"{path} is empty")
                continue
            try:
                found = parse(data)
            except ValueError as error:
                broken.append(f"{path} at 0: {error}")
                continue
            if path != self.path:
                self.is_previous = True
                why = "; ".join(empty + broken) or f"{self.path} is missing"
                _LOG.warning("%s: the previous version is used", why)
            return found
        if broken:
            raise StoreCorruptError(f"{'; '.join(empty + broken)}. {self._hint}")
        return None

    def replace(self, data: bytes) -> None:
        """Write a new version, durably. Any thread. Raises StoreError."""
        self._files.makedirs(self.path.parent)
        if self._files.exists(self.path):
            self._keep()
        self._files.replace_file(self.path, data)
        self.is_previous = False

    def _keep(self) -> None:
        """Keep the version that is about to be replaced."""
        try:
            before = self._files.read_file(self.path)
        except StoreError as error:
            _LOG.warning("no copy is made of the version that is replaced: %s", error)
            return
        if not self.is_previous:
            self._files.replace_file(self.bak, before)
        elif not self._is_aside and before.strip(_BLANK):
            aside = self._files.free_name(self.path.with_name(f"{self.path.name}.aside"))
            self._files.replace_file(aside, before)
            self._is_aside = True
            _LOG.warning("the unreadable %s is kept as %s", self.path, aside)
