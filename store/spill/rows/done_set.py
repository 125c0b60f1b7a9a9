"""The records of one file that are done: a prefix, and bits only where the prefix is broken.

Problem: progress has to be kept per record, because a clock that steps back, a hand-over, a late arming or a cancel
would fall below any global watermark. 10,000,000 records, half of them cancelled, may take a couple of megabytes.

Idea: in a sorted run deliveries happen in the order of the file. So "the first n are done" is enough, and costs one
integer. The first mark out of order makes a bitmap, one bit a record. It is dropped when the prefix has caught up with
its last bit.

==================================  =========================================
10,000,000 delivered in order       one integer
10,000,000, every second cancelled  1.25 MB, in memory and in the checkpoint
10,000,000, one cancelled far ahead 1.25 MB in memory, some 20 bytes and a page in the checkpoint
==================================  =========================================

On disk (`encode`): little-endian ``prefix u32, count u32, pages u32``, then one kind byte for each page of
512 bytes of the bitmap (0 all clear, 1 all set, 2 as follows), then the pages of kind 2. Pages below the prefix are
written as clear. Nothing is compressed: the checkpoint is made under the delivery lock, and copying is quick.
"""

from __future__ import annotations

from struct import error as struct_error

import numpy as np
from numpy.typing import NDArray

from remoting.layout import DONE_SET
from store.disk.errors import StoreCorruptError

__all__ = ["DoneSet"]

_HEAD = DONE_SET.struct()
_PAGE = 512
_PAGES_MAX = (1 << 32) // (8 * _PAGE)
_POPCOUNT = np.array([value.bit_count() for value in range(256)], np.uint8)

Mask = NDArray[np.bool_]
Ordinals = NDArray[np.int64]


class DoneSet:
    """A set of ordinals in ``0 … 2**32``, small when it is (nearly) a prefix. The caller holds a lock.

    ``prefix`` is the number of leading ordinals that are all done; ``count`` the number of all that are.
    """

    __slots__ = ("_bits", "_top", "count", "prefix")

    def __init__(self, prefix: int = 0) -> None:
        self.prefix = prefix
        self.count = prefix
        self._bits: bytearray | None = None  # bit o of byte o >> 3, counted from ordinal 0; below prefix: undefined
        self._top = 0  # one more than the highest set bit

    def __contains__(self, ordinal: int) -> bool:
        if ordinal < self.prefix:
            return True
        bits = self._bits
        return bits is not None and ordinal < self._top and bits[ordinal >> 3] >> (ordinal & 7) & 1 == 1

    @property
    def top(self) -> int:
        """One more than the highest done ordinal; 0 if none is done."""
        return max(self.prefix, self._top)

    def add(self, ordinal: int) -> bool:
        """Mark one; False if it was marked already."""
        prefix = self.prefix
        if ordinal == prefix:
            self.count += 1
            if ordinal + 1 < self._top:
                self._advance(ordinal + 1)
            else:
                self.prefix = ordinal + 1
                self._bits = None
                self._top = 0
            return True
        if ordinal < prefix:
            return False
        if ordinal >= self._top:
            self._grow(ordinal + 1)
        bits = self._bits
        assert bits is not None
        bit = 1 << (ordinal & 7)
        if bits[ordinal >> 3] & bit:
            return False
        bits[ordinal >> 3] |= bit
        self.count += 1
        return True

    def add_many(self, ordinals: Ordinals) -> int:
        """Mark many. Returns how many were new."""
        if not len(ordinals):
            return 0
        first, count = ordinals.item(0), len(ordinals)
        if ordinals.item(-1) - first == count - 1 and _ascend(ordinals):
            return self.add_range(first, first + count)
        before = self.count
        # For fewer than this, NumPy's cost per call is more than that of a loop.
        if count < 64:
            for ordinal in ordinals.tolist():
                self.add(ordinal)
            return self.count - before
        fresh = ordinals[~self.mask(ordinals)]
        if not _ascend(fresh):
            fresh = np.array(sorted(set(fresh.tolist())), np.int64)  # np.unique imports half of NumPy at its first use
        if len(fresh):
            self._grow(int(fresh[-1]) + 1)
            flags = np.frombuffer(self._bits, np.uint8)  # type: ignore[arg-type]  # (not None after _grow)
            # `.at`, not `flags[...] |= ...`: several ordinals share a byte, and the latter would keep one of them.
            np.bitwise_or.at(flags, fresh >> 3, np.left_shift(np.uint8(1), (fresh & 7).astype(np.uint8)))
            del flags  # a bytearray cannot grow while an array looks at it
            self.count += len(fresh)
            self._advance(self.prefix)
        return self.count - before

    def add_range(self, first: int, end: int) -> int:
        """Mark ``first … end - 1``. Returns how many were new."""
        if first <= self.prefix:
            if end <= self.prefix:
                return 0
            fresh = end - self.prefix - self.count_range(self.prefix, end)
            self.count += fresh
            if end < self._top:
                self._advance(end)
            else:
                self.prefix, self._bits, self._top = end, None, 0
            return fresh
        fresh = end - first - int(np.count_nonzero(self.range_mask(first, end)))
        if fresh > 0:
            self._grow(end)
            self._fill(first, end)
            self.count += fresh
        return max(fresh, 0)

    def _fill(self, first: int, end: int) -> None:
        """Set the bits ``first … end - 1``, of which there is at least one."""
        bits = self._bits
        assert bits is not None
        low, high = first >> 3, end >> 3
        if low == high:
            bits[low] |= (1 << end - first) - 1 << (first & 7)
            return
        bits[low] |= 0xFF << (first & 7) & 0xFF
        bits[low + 1 : high] = b"\xff" * (high - low - 1)
        if end & 7:
            bits[high] |= (1 << (end & 7)) - 1

    def mask(self, ordinals: Ordinals) -> Mask:
        """For each ordinal, whether it is done."""
        done: Mask = ordinals < self.prefix
        if self._bits is not None:
            flags = np.frombuffer(self._bits, np.uint8)
            capped = np.minimum(ordinals, len(flags) * 8 - 1)  # behind the bitmap: any byte, `_top` decides
            # Shifted by bytes: by integers of 64 bits, NumPy would make such integers of all of them.
            set_bits = (flags[capped >> 3] >> (capped & 7).astype(np.uint8)) & 1
            done |= (set_bits != 0) & (ordinals < self._top)
        return done

    def range_mask(self, first: int, end: int) -> Mask:
        """For ``first … end - 1``, whether each is done."""
        done = np.zeros(end - first, np.bool_)
        if self.prefix > first:
            done[: self.prefix - first] = True
        top = min(end, self._top)
        if self._bits is not None and top > first:
            at = first >> 3
            flags = np.frombuffer(self._bits, np.uint8, ((top + 7) >> 3) - at, at)
            skip = first - (at << 3)
            done[: top - first] |= np.unpackbits(flags, bitorder="little")[skip : skip + top - first] != 0
        return done

    def count_range(self, first: int, end: int) -> int:
        """Count the done ones of ``first … end - 1``."""
        if end <= first:
            return 0
        return self._count_below(end) - self._count_below(first)

    def ordinals(self, first: int, end: int) -> Ordinals:
        """The done ordinals of ``first … end - 1``, ascending."""
        return (np.flatnonzero(self.range_mask(first, end)) + first).astype(np.int64)

    def since(self, earlier: DoneSet, end: int) -> Ordinals:
        """Ordinals below ``end`` that are done here but not in ``earlier``, ascending."""
        at = min(self.prefix, earlier.prefix) >> 3
        stop = min(end, max(self._top, self.prefix)) + 7 >> 3
        if stop <= at:
            return np.empty(0, np.int64)
        fresh = self._bytes(at, stop) & ~earlier._bytes(at, stop)
        where = np.flatnonzero(fresh)
        bits = np.unpackbits(fresh[where], bitorder="little").reshape(-1, 8)
        rows, columns = np.nonzero(bits)
        ordinals = (where[rows] + at) * 8 + columns
        return ordinals[ordinals < end].astype(np.int64)

    def next_clear(self, ordinal: int) -> int:
        """The first ordinal at or after this one that is not done."""
        ordinal = max(ordinal, self.prefix)
        while ordinal < self._top:
            # In portions: the next clear bit is usually near, and a bitmap may have millions of bits.
            stop = min(self._top, (ordinal | 7) + 1 + (4096 << 3))
            clear = np.flatnonzero(~self.range_mask(ordinal, stop))
            if len(clear):
                return ordinal + int(clear[0])
            ordinal = stop
        return ordinal

    def copy(self) -> DoneSet:
        """The same set, independent of this one."""
        twin = DoneSet(self.prefix)
        twin.count = self.count
        twin._bits = None if self._bits is None else bytearray(self._bits)
        twin._top = self._top
        return twin

    def encode(self) -> bytes:
        """Bytes for the checkpoint (the format stands at the top of this file)."""
        if self._bits is None:
            return _HEAD.pack(self.prefix, self.count, 0)
        used = (self._top + 7) >> 3
        pages = -(-used // _PAGE)
        flags = np.zeros(pages * _PAGE, np.uint8)
        flags[:used] = np.frombuffer(self._bits, np.uint8, used)
        below = min(self.prefix >> 3, used)
        flags[:below] = 0
        if self.prefix & 7 and below < used:
            flags[below] &= 0xFF << (self.prefix & 7) & 0xFF
        table = flags.reshape(pages, _PAGE)
        kinds = np.full(pages, 2, np.uint8)
        kinds[~table.any(axis=1)] = 0
        kinds[(table == 0xFF).all(axis=1)] = 1
        stored: bytes = table[kinds == 2].tobytes()
        return _HEAD.pack(self.prefix, self.count, pages) + kinds.tobytes() + stored

    @classmethod
    def decode(cls, data: bytes, at: int = 0) -> tuple[DoneSet, int]:
        """Decode the set at ``data[at:]``; returns it and the position behind it. Raises StoreCorruptError."""
        try:
            prefix, count, pages = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            kinds = np.frombuffer(data, np.uint8, pages, at)
            at += pages
            if pages > _PAGES_MAX or (pages and (kinds.max() > 2 or not kinds[-1])):
                raise ValueError(f"not a table of {pages} pages")
            stored = int(np.count_nonzero(kinds == 2))
            if stored * _PAGE > len(data) - at or 8 * _PAGE * int(np.count_nonzero(kinds == 1)) > count:
                raise ValueError(f"{stored} pages do not fit, or are more than {count} bits")
            table = np.zeros((pages, _PAGE), np.uint8)
            table[kinds == 1] = 0xFF
            table[kinds == 2] = np.frombuffer(data, np.uint8, stored * _PAGE, at).reshape(stored, _PAGE)
            at += stored * _PAGE
        except (ValueError, struct_error) as cause:
            raise StoreCorruptError(f"done-set at byte {at} of a checkpoint section: {cause}") from cause
        done = cls(prefix)
        used = np.flatnonzero(table.reshape(-1))
        if len(used):
            last = int(used[-1])
            done._bits = bytearray(table.tobytes())
            done._top = last * 8 + done._bits[last].bit_length()
            done.count += done.count_range(prefix, done._top)
            done._advance(prefix)
        if done.count != count:
            raise StoreCorruptError(
                f"done-set before byte {at} of a checkpoint section: {done.count} bits, not {count}"
            )
        return done, at

    def check(self) -> list[str]:
        """Say what is inconsistent."""
        wrong = []
        found = self.prefix + self.count_range(self.prefix, max(self._top, self.prefix))
        if found != self.count:
            wrong.append(f"done-set counts {self.count} but holds {found}")
        if self._bits is not None and self.prefix in self:
            wrong.append(f"done-set prefix {self.prefix} could be longer")
        return wrong

    def _bytes(self, first: int, end: int) -> NDArray[np.uint8]:
        """Bitmap bytes ``first … end - 1`` with the prefix as set bits; a copy."""
        flags = np.zeros(end - first, np.uint8)
        stop = min(end, self._top + 7 >> 3)
        if self._bits is not None and stop > first:
            flags[: stop - first] = np.frombuffer(self._bits, np.uint8, stop - first, first)
        full = self.prefix >> 3
        if full > first:
            flags[: min(full, end) - first] = 0xFF
        if self.prefix & 7 and first <= full < end:
            flags[full - first] |= (1 << (self.prefix & 7)) - 1
        return flags

    def _count_below(self, end: int) -> int:
        if end <= self.prefix:
            return end
        stop = min(end, self._top)
        if stop <= self.prefix:
            return self.prefix
        at = self.prefix >> 3
        flags = self._bytes(at, stop + 7 >> 3)
        if stop & 7:
            flags[-1] &= (1 << (stop & 7)) - 1
        return int(_POPCOUNT[flags].sum(dtype=np.int64)) + (at << 3)

    def _grow(self, top: int) -> None:
        """Make room for bits below ``top``."""
        need = (top + 7) >> 3
        bits = self._bits
        if bits is None:
            self._bits = bytearray(need + (need >> 2) + 8)
        elif len(bits) < need:
            bits.extend(bytes(need + (need >> 1) - len(bits)))
        self._top = max(self._top, top)

    def _advance(self, prefix: int) -> None:
        """Move the prefix over every bit that follows it without a gap."""
        bits = self._bits
        top = self._top
        if bits is None:
            self.prefix = prefix
            return
        while prefix < top:
            if prefix & 7 == 0 and bits[prefix >> 3] == 0xFF and prefix + 8 <= top:
                prefix += 8
                continue
            if not bits[prefix >> 3] >> (prefix & 7) & 1:
                break
            prefix += 1
        self.prefix = prefix
        if prefix >= top:
            self._bits = None
            self._top = 0


def _ascend(ordinals: Ordinals) -> bool:
    return bool((ordinals[1:] > ordinals[:-1]).all())
