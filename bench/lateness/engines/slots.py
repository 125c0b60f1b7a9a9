"""Tells other processes how much each share of a reading has read: a file with eight bytes for each share.

Each share has one writer, which writes its number by one system call. To get the sum, read the file. It is removed with
the folder of the run. (A counter in shared memory would need a semaphore, which a killed run leaves behind.)
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
    """The place of one share's number."""

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
    """The file with the numbers of all shares."""

    path: str

    def make(self, shares: int) -> None:
        """Make the file, with a zero for each share. Raises OSError."""
        Path(self.path).write_bytes(bytes(_BYTES * shares))

    def of(self, share: int) -> Slot:
        """The slot of share number ``share``."""
        return Slot(self.path, _BYTES * share)

    def sum(self) -> int:
        """The sum of all numbers; 0 once the file is removed. Raises OSError."""
        try:
            return int(np.frombuffer(Path(self.path).read_bytes(), "<i8").sum())
        except FileNotFoundError:
            return 0
