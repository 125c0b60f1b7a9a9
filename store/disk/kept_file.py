"""`KeptFile`: a small file that is replaced as a whole, and its version before, ``<name>.bak``.

A write first makes the file's content its ``.bak`` and then replaces the file. So both are whole at any moment, whoever
reads them and whenever the process dies. A read takes ``.bak`` if the file is missing, empty or nothing that it
understands. The next write does not make such content the ``.bak``: it keeps it as ``<name>.aside``. A read changes
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
_T = TypeVar("_T")


class KeptFile:
    """See the module's text. One thread at a time; call `read` before the first `replace`.

    Args:
        files: The door to the disk.
        path: Where the file lies; its directory is made when it is first written.
        hint: What to do if no version can be read.
        blank: Bytes of which a file may consist that counts as empty.
    """

    __slots__ = ("_blank", "_files", "_hint", "_unreadable", "is_previous", "path")

    def __init__(self, files: Files, path: Path, hint: str, blank: bytes = b" \t\r\n") -> None:
        self._files = files
        self._hint = hint
        self._blank = blank
        self._unreadable: bytes | None = None  # the content of which the last `read` could make nothing
        self.path = path
        self.is_previous = False
        """True if the last `read` had to take the version before."""

    @property
    def bak(self) -> Path:
        """The version before."""
        return self.path.with_name(f"{self.path.name}.bak")

    def read(self, parse: Callable[[bytes], _T]) -> _T | None:
        """Read the newest version that ``parse`` takes (it raises ValueError for others); None if there never was one.

        Raises StoreCorruptError if no version can be read, StoreError if the disk cannot read one.
        """
        unreadable: bytes | None = None
        problems: list[str] = []
        is_broken = False
        for path in (self.path, self.bak):
            if not self._files.exists(path):
                continue
            data = self._files.read_replaced(path)
            try:
                if data.strip(self._blank):
                    found = parse(data)
                    self._unreadable, self.is_previous = unreadable, path != self.path
                    if self.is_previous:
                        why = "; ".join(problems) or f"{self.path} is missing"
                        _LOG.warning("%s: the version before is used", why)
                    return found
                problems.append(f"{path} is empty")
            except ValueError as error:
                is_broken = True
                problems.append(f"{path} at 0: {error}")
            if path == self.path:
                unreadable = data
        if is_broken:
            raise StoreCorruptError(f"{'; '.join(problems)}. {self._hint}")
        if problems:
            _LOG.warning("%s: it counts as a file that was never written", "; ".join(problems))
        self._unreadable, self.is_previous = unreadable, False
        return None

    def replace(self, data: bytes) -> None:
        """Write a new version, durably. Raises StoreError."""
        self._files.makedirs(self.path.parent)
        if self._files.exists(self.path):
            self._keep()
        self._files.replace_file(self.path, data)

    def _keep(self) -> None:
        """Keep the content that is about to be replaced."""
        try:
            before = self._files.read_file(self.path)
        except StoreError as error:
            _LOG.warning("no copy is made of the version that is replaced: %s", error)
            return
        if before != self._unreadable:
            self._files.replace_file(self.bak, before)
        elif before.strip(self._blank):
            aside = self.path.with_name(f"{self.path.name}.aside")
            if self._files.exists(aside) and self._files.read_file(aside) == before:
                return  # of a write that failed behind it
            aside = self._files.free_name(aside)
            self._files.replace_file(aside, before)
            _LOG.warning("the unreadable %s is kept as %s", self.path, aside)
