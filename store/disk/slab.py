"""`Slab`: many records read together, as one piece of bytes and the position of each record in it."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Slab"]


class Slab:
    """Records in the order of the request.

    ``data`` has them anywhere, and maybe other bytes between them; record ``n`` is ``sizes[n]`` bytes from
    ``starts[n]`` on.

    >>> slab = Slab(b"-first--second", [8, 1], [6, 5])
    >>> slab.records()
    [b'second', b'first']
    """

    __slots__ = ("data", "sizes", "starts")

    def __init__(self, data: bytes, starts: list[int], sizes: list[int]) -> None:
        self.data = data
        self.starts = starts
        self.sizes = sizes

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Slab:
        """Join records."""
        parts = list(records)
        sizes = [len(part) for part in parts]
        starts, end = [], 0
        for size in sizes:
            starts.append(end)
            end += size
        return cls(b"".join(parts), starts, sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def records(self) -> list[bytes]:
        """Each by itself."""
        data = self.data
        return [data[start : start + size] for start, size in zip(self.starts, self.sizes, strict=True)]
