"""Which files are on their way out: ``delay/removing``, written before the manifest forgets them.

A file that no manifest lists is moved aside at a start, since an older manifest may be the reason. A file that was
forgotten because all of it was delivered is no such case; but a crash between the manifest and the removal, or a power
cut that takes the removal back, leaves it unlisted as well, and 64 MiB aside for ever. So its number is written down
first, with the generation of the manifest that will not list it. A start removes what stands here, if the manifest is
of that generation or a later one and does not list it.

Three lines of text, replaced as a whole: the CRC-32 of the rest in hexadecimal, the generation, the numbers. Missing or
damaged, it costs space: the files are moved aside.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from remoting.messages.checksum import crc32
from store.disk.errors import StoreError
from store.disk.files import Files

__all__ = ["read_removals", "write_removals"]


def write_removals(files: Files, path: Path, generation: int, nos: Iterable[int]) -> None:
    """Write the file, durably: from manifest ``generation`` on these files are not listed."""
    text = b"%d\n%s\n" % (generation, " ".join(map(str, sorted(nos))).encode())
    files.replace_file(path, b"%08x\n%s" % (crc32(text), text))


def read_removals(files: Files, path: Path, generation: int) -> set[int]:
    """The numbers that a manifest of this ``generation`` has forgotten for good; none if that cannot be told."""
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
