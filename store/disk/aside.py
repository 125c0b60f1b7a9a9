"""Keeps the bytes that a repair removes: in ``timewheel/aside/repair-NNNN/``, under their name in the store.

A whole file keeps its path below that folder; a range of bytes is ``PATH@POSITION``. Nothing reads or removes it.
``report.txt`` in the folder says what was done.
"""

from __future__ import annotations

from pathlib import Path

from store.disk.files import Files

__all__ = ["AsideDir"]


class AsideDir:
    """One repair's folder, made with the first thing that is put there. ``report`` is what was done, in sentences."""

    def __init__(self, files: Files, root: Path) -> None:
        self.files = files
        self.root = root
        self.report: list[str] = []
        above = root / "timewheel" / "aside"
        numbers = [name[7:] for name in files.listdir(above) if name.startswith("repair-")]
        self.path = above / f"repair-{max((int(n) for n in numbers if n.isdigit()), default=0) + 1:04d}"

    def say(self, text: str) -> None:
        """Add a sentence to the report."""
        self.report.append(text)

    def keep(self, path: Path, position: int, data: bytes) -> Path:
        """Copy a range of a file's bytes, durably; nothing is done for zeros."""
        target = self._target(path)
        target = target.with_name(f"{target.name}@{position}")
        if data.count(0) != len(data):
            self._write(target, data)
        return target

    def copy(self, path: Path) -> Path:
        """Copy a whole file, durably."""
        target = self._target(path)
        self._write(target, self.files.read_file(path))
        return target

    def move(self, path: Path) -> Path:
        """Move a file or a directory, durably."""
        target = self._target(path)
        self.files.makedirs(target.parent)
        self.files.rename(path, target)
        # First the new name: a power cut must not leave the file without any.
        self.files.sync_dir(target.parent)
        self.files.sync_dir(path.parent)
        return target

    def finish(self) -> None:
        """Write the report beside what was put aside."""
        if self.report and self.files.exists(self.path):
            self.files.replace_file(self.path / "report.txt", "".join(f"{line}\n" for line in self.report).encode())

    def _target(self, path: Path) -> Path:
        place = path.relative_to(self.root) if path.is_relative_to(self.root) else Path(path.parent.name) / path.name
        return self.files.free_name(self.path / place)

    def _write(self, target: Path, data: bytes) -> None:
        self.files.makedirs(target.parent)
        self.files.replace_file(target, data)
