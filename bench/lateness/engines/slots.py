"""How much each share of a reading has read, told from process to process: a file with eight bytes for each share.

Every share has one writer, and a number is written by one system call. Whoever wants to know the sum reads the file; it
goes with the folder of the run. (A counter in shared memory would need a semaphore, which a killed run leaves behind.)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Slot", "Slots"]

_BYTES = 8


@dataclass(frozen=True)
class Slot:
    """Where one share puts its number."""

    path: str
    at: int

    def put(self, number: int) -> None:
        """Replace the number. Raises OSError."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, number.to_bytes(_BYTES, "little"), self.at)
        finally:
            os.close(fd)


@dataclass(frozen=True)
class Slots:
    """The file of a reading."""

    path: str

    def make(self, shares: int) -> None:
        """Make it, with a zero for each share. Raises OSError."""
        Path(self.path).write_bytes(bytes(_BYTES * shares))

    def of(self, share: int) -> Slot:
        """The slot of a share, by its number."""
        return Slot(self.path, _BYTES * share)

    def sum(self) -> int:
        """All numbers together; 0 once the file is gone."""
        try:
            return int(np.frombuffer(Path(self.path).read_bytes(), "<i8").sum())
        except FileNotFoundError:
            return 0
