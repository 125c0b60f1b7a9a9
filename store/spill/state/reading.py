"""Reading the records of many sources in as few reads as possible."""

from __future__ import annotations

import numpy as np

from remoting.errors import RecordError
from remoting.layout import BODY_AT_MAX, BODY_BYTES_BACK
from remoting.layout.table import INT
from remoting.messages.checksum import crc32
from remoting.messages.proof import is_proof, proof_field
from remoting.messages.record import body_bounds
from store.disk.file import File
from store.spill.rows.model import RecordCorruptError
from store.spill.rows.source import Longs, Places, Source

__all__ = ["FEW", "by_file", "fitting", "gathered", "outlined", "slab_rows"]

READ_GAP_BYTES = 4 << 10
READ_BYTES = 1 << 20
WHOLE_BYTES = 4 << 10
"""A record no larger than a page of the page cache is read whole: leaving its body out would not save a disk read."""
FEW = 24
"""Fewer records than this are handled one by one, more of them by NumPy, whose calls cost a microsecond each."""
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
    """Read records of one file, whose positions ascend. Returns bytes, and where in them each record begins.

    Records that lie near each other are read together, with the gaps between them. Raises RecordCorruptError for a
    record whose checksum is wrong.
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
    """Read (position, size) spans and join them; bytes behind the end of the file are zeros."""
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
    # From the page cache without giving up the interpreter lock (see `File.pread_hot`); else wait for the disk.
    data = file.gather_hot(spans)
    if data is None:
        data = b"".join([file.pread(n, position).ljust(n, b"\0") for position, n in spans])
    return data


def fitting(wanted: list[Wanted], count: int, max_bytes: int) -> int:
    """Return the number of records, in the order asked, that fit into ``max_bytes``; at least one."""
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
    """File numbers in ``refs`` (at least one), each with the index of its refs: a slice if all name one file."""
    nos = refs >> 32
    first = nos.item(0)
    if nos.item(-1) == first and bool((nos == first).all()):
        return [(first, slice(None))]
    return [(no, np.flatnonzero(nos == no)) for no in sorted(set(nos.tolist()))]


def outlined(wanted: list[Wanted], count: int, max_bytes: int) -> tuple[list[bytes], list[int]]:
    """Read records without the bodies of large ones, and their full sizes: as many as `fitting` says, in order.

    A record above `WHOLE_BYTES` counts as that many. Its body is empty; its topic and properties are checked against
    the proof field of its head. A record without a proof is read whole. Raises RecordCorruptError.
    """
    capped: list[Wanted] = []
    for source, ordinals, indices, (starts, sizes, crcs) in wanted:
        capped.append((source, ordinals, indices, (starts, [min(size, WHOLE_BYTES) for size in sizes], crcs)))
    count = fitting(capped, count, max_bytes)
    records, full = [b""] * count, [0] * count
    for source, ordinals, indices, places in wanted:
        starts, sizes, _ = places
        order = [n for n in sorted(range(len(ordinals)), key=starts.__getitem__) if indices[n] < count]
        for n in order:
            full[indices[n]] = sizes[n]
        whole = [n for n in order if sizes[n] <= WHOLE_BYTES]
        large = [n for n in order if sizes[n] > WHOLE_BYTES]
        if large:
            bare = _without_bodies(source, *slab_rows(large, ordinals, indices, places))
            for n, record in zip(large, bare, strict=True):
                records[indices[n]] = record
            whole = sorted(whole + [n for n in large if not records[indices[n]]], key=starts.__getitem__)
        if not whole:
            continue
        kept = slab_rows(whole, ordinals, indices, places)
        data, begins = gathered(source, kept[0], kept[2])
        for index, begin, size in zip(kept[1], begins, kept[2][1], strict=True):
            records[index] = data[begin : begin + size]
    return records, full


def _without_bodies(source: Source, ordinals: list[int], _indices: list[int], places: Places) -> list[bytes]:
    """Read heads, and what follows the bodies; b"" for a record that has no proof and must be read whole."""
    starts, sizes, _ = places
    heads = _read_spans(source.data, [(start, BODY_AT_MAX) for start in starts])
    bounds: list[tuple[int, int]] = []
    for n, size in enumerate(sizes):
        head = heads[n * BODY_AT_MAX : (n + 1) * BODY_AT_MAX]
        begin, end = _bounds(head)
        known = begin <= end < size and is_proof(proof_field(head))
        bounds.append((begin, end) if known else (0, size))
    tails = _read_spans(
        source.data, [(start + end, size - end) for start, size, (_, end) in zip(starts, sizes, bounds, strict=True)]
    )
    records: list[bytes] = []
    at = 0
    for n, (begin, end) in enumerate(bounds):
        tail = tails[at : at + sizes[n] - end]
        at += len(tail)
        if not begin:
            records.append(b"")
            continue
        head = heads[n * BODY_AT_MAX : n * BODY_AT_MAX + begin]
        if crc32(tail) != proof_field(head) & 0xFFFFFFFF:
            raise RecordCorruptError(
                f"{source.data.path} at {starts[n]}: topic and properties of the record of {sizes[n]} bytes have "
                "another checksum",
                source.no << 32 | ordinals[n],
            )
        records.append(b"".join((head[: begin - BODY_BYTES_BACK], INT.pack(0), tail)))
    return records


def _bounds(head: bytes) -> tuple[int, int]:
    try:
        return body_bounds(head)
    except RecordError:
        return 0, -1
