"""The entries of a queue that are done: an offset below which all are, and a bitmap from there on.

Entries arrive by queue offset and are delivered by due time, so the done ones are scattered. One bit for each entry
between the oldest pending one and the newest one read is the simplest exact form. 1,000,000 entries take 125 kB before
compression. The union of two sets is an ``or``, because an entry that is done stays done.

>>> done = DoneEntries(10)
>>> done.add(12); done.add(10)
True
True
>>> done.low, 11 in done, 12 in done
(11, False, True)
>>> done.add(11), done.low
(True, 13)
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator

__all__ = ["SPAN_MAX", "DoneEntries", "inflated"]

SPAN_MAX = 1 << 28
"""Most entries between the oldest pending one and the newest: 32 MiB of bits."""
_TRIM_BYTES = 4096
# The next byte with a pending entry is found in C.
_NOT_ALL_DONE = re.compile(rb"[^\xff]")


def inflated(data: bytes) -> bytes:
    """Decompress a bitmap. Raises ValueError if it has bits for more than `SPAN_MAX` entries, or is no zlib stream."""
    most = SPAN_MAX // 8 + 8
    try:
        stream = zlib.decompressobj()
        # With a bound, because a few bytes of zlib may hold gigabytes; one byte above it shows that there is more.
        found = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"not a packed set: {error}") from None
    if len(found) > most or not stream.eof:
        raise ValueError(f"not a packed set: more than {most} bytes, or cut off")
    return found


class DoneEntries:
    """Done offsets. Not thread-safe.

    ``low`` is the offset below which all are done; it never decreases.
    """

    __slots__ = ("_base", "_bits", "low")

    def __init__(self, low: int = 0) -> None:
        self.low = low
        self._base = low - low % 8
        self._bits = bytearray()

    def __contains__(self, offset: int) -> bool:
        if offset < self.low:
            return True
        place = offset - self._base
        at = place >> 3
        return at < len(self._bits) and self._bits[at] >> (place & 7) & 1 == 1

    def add(self, offset: int) -> bool:
        """Mark an offset as done; False if it already was. Raises ValueError beyond `SPAN_MAX` above ``low``."""
        if offset in self:
            return False
        place = offset - self._base
        at = place >> 3
        if at >= len(self._bits):
            if offset - self.low > SPAN_MAX:
                raise ValueError(f"offset {offset} is {offset - self.low} ahead of {self.low}, at most {SPAN_MAX}")
            self._bits += bytes(at + 1 - len(self._bits))
        self._bits[at] |= 1 << (place & 7)
        if offset == self.low:
            self._rise()
        return True

    def raise_to(self, low: int) -> None:
        """Mark everything below an offset as done."""
        if low > self.low:
            self.low = low
            self._rise()

    def _rise(self) -> None:
        """Raise ``low`` over done entries, and drop the bytes below it."""
        bits, place = self._bits, self.low - self._base
        end = 8 * len(bits)
        while place < end and bits[place >> 3] >> (place & 7) & 1:
            place += 8 if place & 7 == 0 and bits[place >> 3] == 0xFF else 1
        low = self.low = self._base + place
        spare = place >> 3
        if spare > _TRIM_BYTES or spare > len(bits):
            del bits[:spare]
            self._base = low - low % 8

    def pending(self, first: int, until: int) -> Iterator[int]:
        """Those of the given offsets that are not done, ascending.

        Bytes of which all entries are done cost next to nothing. What becomes done meanwhile is passed over.
        """
        base, bits = self._base, bytes(self._bits)  # a copy: they may become shorter while the caller waits
        end = base + 8 * len(bits)
        begin = max(first, self.low)
        for found in _NOT_ALL_DONE.finditer(bits, max(0, begin - base) // 8, max(0, until - base + 7) // 8):
            at = base + 8 * found.start()
            for offset in range(max(at, begin), min(at + 8, until)):
                if offset not in self:
                    yield offset
        for offset in range(max(begin, end), until):
            if offset not in self:
                yield offset

    def next_pending(self, first: int, until: int) -> int:
        """The first of the given offsets that is not done; ``until`` if there is none.

        >>> done = DoneEntries(2); _ = done.add(3)
        >>> done.next_pending(0, 9), done.next_pending(3, 9), done.next_pending(3, 4)
        (2, 4, 4)
        """
        at, base, bits = max(first, self.low), self._base, self._bits
        end = base + 8 * len(bits)
        while at < min(end, until) and at in self:
            at += 1
            if (at - base) & 7 == 0:
                found = _NOT_ALL_DONE.search(bits, (at - base) >> 3)
                at = end if found is None else base + 8 * found.start()
        return min(at, until)

    def merge(self, low: int, offsets: Iterable[int]) -> None:
        """Mark as done all that is done in another set."""
        self.raise_to(low)
        for offset in offsets:
            self.add(offset)

    def beyond(self, other: DoneEntries) -> list[int]:
        """Offsets that are done in this set and not in another one, ascending.

        >>> here, there = DoneEntries(2), DoneEntries(0); _ = here.add(5); _ = there.add(1); here.beyond(there)
        [0, 5]
        """
        found = [offset for offset in range(other.low, self.low) if offset not in other]
        begin = max(self.low, other.low)
        for at in range((begin - self._base) // 8, len(self._bits)):
            byte = self._bits[at]
            place = at + (self._base - other._base) // 8
            if byte and (place >= len(other._bits) or place < 0 or byte != other._bits[place]):
                first = self._base + 8 * at
                found += [
                    offset
                    for offset in range(first, first + 8)
                    if offset >= begin and offset in self and offset not in other
                ]
        return found

    def offsets(self) -> Iterator[int]:
        """The done offsets from ``low`` on, ascending."""
        for at in range((self.low - self._base) // 8, len(self._bits)):
            byte = self._bits[at]
            if byte:
                first = self._base + 8 * at
                for bit in range(8):
                    if byte >> bit & 1 and first + bit >= self.low:
                        yield first + bit

    def pack(self) -> bytes:
        """The compressed bitmap. `unpack` needs it and ``low``."""
        begin = self.low - self.low % 8
        return zlib.compress(bytes(self._bits[(begin - self._base) // 8 :]), 1)

    @classmethod
    def unpack(cls, low: int, data: bytes) -> DoneEntries:
        """Read what `pack` wrote. Raises ValueError for anything else."""
        found = cls(low)
        found._bits = bytearray(inflated(data)) if data else bytearray()
        found._rise()
        return found

    def copy(self) -> DoneEntries:
        """An independent copy."""
        found = DoneEntries(self.low)
        found._base, found._bits = self._base, bytearray(self._bits)
        return found
