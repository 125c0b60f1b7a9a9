"""`KnownPlaces`: the positions of records according to the ConsumeQueues, where the CommitLog's bytes are no proof.

A sender may put the bytes of a whole record into the body of its message, made for the very position where that body
will stand. If the message is damaged, its head no longer tells where it ends. Then only its queue entry shows that
those bytes are part of a body.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from store.derived.queue_entries import ENTRY, ENTRY_COLUMNS
from store.disk.files import Files

__all__ = ["KnownPlaces"]

_RECORD_BYTES_MAX = 16 << 20
"""An entry with a larger size is none: a pre-blank, or damaged."""


class KnownPlaces:
    """The entries of all ConsumeQueues of a store that is not open. They are read on first use.

    >>> KnownPlaces(Files(), Path("/nowhere")).is_inside(47)
    False
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._entries: np.ndarray | None = None

    def is_inside(self, position: int) -> bool:
        """True if a CommitLog position lies inside a record that a queue has an entry of. Raises StoreError."""
        entries = self._entries
        if entries is None:
            entries = self._entries = self._read()
        before = int(np.searchsorted(entries["position"], position, "left")) - 1
        return before >= 0 and position < int(entries["position"][before]) + int(entries["size"][before])

    def _read(self) -> np.ndarray:
        files = self._files
        found = [np.empty(0, ENTRY_COLUMNS)]
        for topic in files.listdir(self._directory):
            for queue in files.listdir(self._directory / topic) if files.is_dir(self._directory / topic) else ():
                folder = self._directory / topic / queue
                for name in files.listdir(folder) if files.is_dir(folder) else ():
                    if files.is_dir(folder / name):
                        continue
                    data = files.read_file(folder / name)
                    entries = np.frombuffer(data, ENTRY_COLUMNS, len(data) // ENTRY.size)
                    sizes = entries["size"]
                    found.append(entries[(sizes > 0) & (sizes <= _RECORD_BYTES_MAX) & (entries["position"] >= 0)])
        entries = np.concatenate(found)
        return entries[np.argsort(entries["position"], kind="stable")]
