"""Numbers of files that are being removed: ``delay/removing``, written before the manifest forgets them.

A start moves files aside that the manifest does not list, because the manifest may be an older one. A finished file is
unlisted too if a crash comes between the manifest and the removal, or a power cut undoes the removal: it would be moved
aside and take 64 MiB for ever. So its number is written here first, with the generation of the manifest that will not
list it. A start removes the files in this list if the manifest has that generation or a later one and does not list
them.

Three lines of text, replaced as a whole: the CRC-32 of the rest in hexadecimal, the generation, the numbers. A missing
or damaged list only costs space: the files are moved aside.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from remoting.messages.checksum import crc32
from store.disk.errors import StoreError
from store.disk.files import Files

__all__ = ["read_removals", "write_removals"]


def write_removals(files: Files, path: Path, generation: int, nos: Iterable[int]) -> None:
    """Write the list, durably: manifests from ``generation`` on do not list these files. Raises StoreError."""
    text = b"%d\n%s\n" % (generation, " ".join(map(str, sorted(nos))).encode())
    files.replace_file(path, b"%08x\n%s" % (crc32(text), text))


def read_removals(files: Files, path: Path, generation: int) -> set[int]:
    """Numbers that a manifest of this ``generation`` has forgotten for good; empty if the list is damaged or newer."""
    if not files.exists(path):
        return set()
    try:
        checksum, _, text = files.read_replaced(path).partition(b"\n")
        if len(checksum) != 8 or int(checksum, 16) != crc32(text):
            return set()
        first, second, _ = text.split(b"\n")
        return set(map(int, second.split())) if int(first) <= generation else set()
    except (StoreError, ValueError):
        return set()
