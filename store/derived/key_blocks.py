"""Sorted blocks of the key index: parts in memory, blocks on disk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from remoting.layout import KEY_BLOCK, KEY_BLOCK_PROVEN_AT, KEY_COLUMNS, KEY_ENTRY_BYTES, KEY_POSITIONS_AT, KEY_TIMES_AT
from remoting.messages.checksum import crc32
from store.derived.key_rows import Column
from store.disk.errors import StoreCorruptError
from store.disk.file import File

__all__ = ["KEY_BLOCK_HEAD", "KEY_BLOCK_MAGIC", "KeyBlock", "KeyPart", "rows_with"]

KEY_BLOCK_HEAD = KEY_BLOCK.struct()
_PROOF = KEY_BLOCK.struct("magic", "crc")
_PROVEN = KEY_BLOCK.struct("zeros", "last_ms")
KEY_BLOCK_MAGIC = 0x54574B31
_BLOCKS = np.dtype(KEY_COLUMNS.columns())


class KeyPart:
    """Entries of one block as sorted columns in memory."""

    __slots__ = ("from_offset", "hashes", "offsets", "times", "to_offset")

    def __init__(self, hashes: Column, offsets: Column, times: Column, from_offset: int, to_offset: int) -> None:
        self.hashes = hashes
        self.offsets = offsets
        self.times = times
        self.from_offset = from_offset
        self.to_offset = to_offset

    @classmethod
    def of(cls, hashes: Column, offsets: Column, times: Column, from_offset: int, to_offset: int) -> KeyPart:
        """Sort columns by hash."""
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], offsets[order], times[order], from_offset, to_offset)

    def encode(self) -> bytes:
        """Write the entries as one block."""
        columns = self.hashes.astype(_BLOCKS["hash"]).tobytes()
        columns += self.offsets.astype(_BLOCKS["position"]).tobytes()
        columns += self.times.astype(_BLOCKS["store_ms"]).tobytes()
        first, last = (int(self.times.min()), int(self.times.max())) if len(self.times) else (0, 0)
        rest = _PROVEN.pack(0, self.from_offset, self.to_offset, first, last) + columns
        return _PROOF.pack(KEY_BLOCK_MAGIC, len(self.hashes), crc32(rest)) + rest

    @classmethod
    def decode(cls, data: bytes, where: str) -> KeyPart:
        """Read one block; raises StoreCorruptError."""
        if len(data) < KEY_BLOCK_HEAD.size:
            raise StoreCorruptError(f"{where}: key index block of {len(data)} bytes is too short")
        magic, count, crc, _, from_offset, to_offset, _, _ = KEY_BLOCK_HEAD.unpack_from(data)
        if (
            magic != KEY_BLOCK_MAGIC
            or len(data) != KEY_BLOCK_HEAD.size + KEY_ENTRY_BYTES * count
            or crc32(data[KEY_BLOCK_PROVEN_AT:]) != crc
        ):
            raise StoreCorruptError(f"{where}: not a whole key index block")
        # The disk has big-endian columns, which NumPy swaps at every look. `astype` copies them into the machine's
        # order, once, and lets go of ``data``.
        at = KEY_BLOCK_HEAD.size
        hashes = np.frombuffer(data, _BLOCKS["hash"], count, at).astype(np.uint32)
        offsets = np.frombuffer(data, _BLOCKS["position"], count, at + KEY_POSITIONS_AT * count).astype(np.int64)
        times = np.frombuffer(data, _BLOCKS["store_ms"], count, at + KEY_TIMES_AT * count).astype(np.int64)
        return cls(hashes, offsets, times, from_offset, to_offset)

    def find(self, wanted: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, store_ms) of the entries with this hash."""
        low, high = np.searchsorted(self.hashes, [wanted, wanted + 1])
        yield from zip(self.offsets[low:high].tolist(), self.times[low:high].tolist(), strict=True)


class KeyBlock:
    """A block on disk: its head is in memory, a query reads the parts of its columns that it needs."""

    __slots__ = ("at", "count", "file", "first_ms", "from_offset", "last_ms", "to_offset")

    def __init__(self, file: File, at: int, head: tuple[int, ...]) -> None:
        self.file = file
        self.at = at
        _, self.count, _, _, self.from_offset, self.to_offset, self.first_ms, self.last_ms = head

    @property
    def end(self) -> int:
        """The position behind the block in its file."""
        return self.at + KEY_BLOCK_HEAD.size + KEY_ENTRY_BYTES * self.count

    def _bisect(self, wanted: int) -> int:
        low, high, base = 0, self.count, self.at + KEY_BLOCK_HEAD.size
        while low < high:
            middle = (low + high) // 2
            if int.from_bytes(self.file.pread(4, base + 4 * middle), "big") < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, wanted: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, store_ms) of the entries with this hash."""
        low = self._bisect(wanted)
        count = self._bisect(wanted + 1) - low
        if count > 0:  # it can be below only in a damaged block, whose hashes are not in order
            base = self.at + KEY_BLOCK_HEAD.size
            offsets = np.frombuffer(
                self.file.pread(8 * count, base + KEY_POSITIONS_AT * self.count + 8 * low), _BLOCKS["position"]
            )
            times = np.frombuffer(
                self.file.pread(8 * count, base + KEY_TIMES_AT * self.count + 8 * low), _BLOCKS["store_ms"]
            )
            yield from zip(offsets.tolist(), times.tolist(), strict=True)


def rows_with(rows: Column, wanted: int) -> list[tuple[int, int]]:
    """The (position, time) of rows with this hash, newest first."""
    hits = rows[rows["hash"] == wanted][::-1]
    return list(zip(hits["position"].tolist(), hits["store_ms"].tolist(), strict=True))
