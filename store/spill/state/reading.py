"""Reading the records of many sources in as few reads as possible."""

from __future__ import annotations

import numpy as np

from remoting.messages.checksum import crc32
from store.disk.file import File
from store.spill.rows.model import RecordCorruptError
from store.spill.rows.source import Longs, Places, Source

__all__ = ["FEW", "by_file", "fitting", "gathered", "slab_rows"]

READ_GAP_BYTES = 4 << 10
READ_BYTES = 1 << 20
FEW = 24
"""Fewer records are gone through one by one, more of them by NumPy, whose calls cost a microsecond each."""
Wanted = tuple[Source, list[int], list[int], Places]


def slab_rows(
    chosen: list[int], ordinals: list[int], indices: list[int], places: Places
) -> tuple[list[int], list[int], Places]:
    """Keep the chosen rows of parallel columns."""
    starts, sizes, crcs = places
    return (
        [ordinals[n] for n in chosen],
        [indices[n] for n in chosen],
        ([starts[n] for n in chosen], [sizes[n] for n in chosen], [crcs[n] for n in chosen]),
    )


def gathered(source: Source, ordinals: list[int], places: Places) -> tuple[bytes, list[int]]:
    """Read records of one file, whose positions ascend: bytes, and where in them each record begins.

    Raises RecordCorruptError for a record with another checksum.
    """
    starts, sizes, crcs = places
    spans: list[tuple[int, int]] = []
    begins: list[int] = []
    begin = end = -1
    before = 0
    for start, size in zip(starts, sizes, strict=True):
        if end < 0:
            begin = start
        elif start - end > READ_GAP_BYTES or start + size - begin > READ_BYTES:
            spans.append((begin, end - begin))
            before += end - begin
            begin = start
        begins.append(before + start - begin)
        end = start + size
    if end >= 0:
        spans.append((begin, end - begin))
    data = _read_spans(source.data, spans)
    view = memoryview(data)
    for n, at in enumerate(begins):
        if crc32(view[at : at + sizes[n]]) != crcs[n]:
            raise RecordCorruptError(
                f"{source.data.path} at {starts[n]}: the record of {sizes[n]} bytes has another checksum",
                source.no << 32 | ordinals[n],
            )
    return data, begins


def _read_spans(file: File, spans: list[tuple[int, int]]) -> bytes:
    """Read (position, bytes) one behind the other; what is not in the file is zeros."""
    parts: list[bytes] = []
    first = size = 0
    for last, (_, n) in enumerate(spans):
        if size and size + n > READ_BYTES:
            parts.append(_read_portion(file, spans[first:last]))
            first, size = last, 0
        size += n
    parts.append(_read_portion(file, spans[first:]))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_portion(file: File, spans: list[tuple[int, int]]) -> bytes:
    data = file.gather_hot(spans)
    if data is None:
        data = b"".join([file.pread(n, position).ljust(n, b"\0") for position, n in spans])
    return data


def fitting(wanted: list[Wanted], count: int, max_bytes: int) -> int:
    """How many records, in the order asked, fit into ``max_bytes``; at least one."""
    size_of = [0] * count
    for _, _, indices, (_, sizes, _) in wanted:
        for index, size in zip(indices, sizes, strict=True):
            size_of[index] = size
    total = 0
    for index, size in enumerate(size_of):
        total += size
        if total > max_bytes and index:
            return index
    return count


def by_file(refs: Longs) -> list[tuple[int, slice | Longs]]:
    """The files that refs name, and which of the refs name each, in their order."""
    nos = refs >> 32
    first = nos.item(0)
    if nos.item(-1) == first and bool((nos == first).all()):
        return [(first, slice(None))]
    return [(no, np.flatnonzero(nos == no)) for no in sorted(set(nos.tolist()))]
