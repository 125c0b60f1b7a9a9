"""Checking the spill store: every structure in memory, every byte on disk that counts.

Files are read without the delivery lock, through twins with the present done-sets. Memory grows only by a few bytes for
each pending message, so a running broker can be checked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from remoting.layout import FILE_HEADER_BYTES, FRAME_BYTES, FRAME_ROW_BYTES, RUN_TRAILER_BYTES
from remoting.messages.checksum import crc32
from store.disk.errors import StoreError
from store.spill.journal.journal import Journal
from store.spill.journal.segment import JournalSegment
from store.spill.rows.format import ACCEPT, MOVE, frame_count, read_frame
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.run_shape import run_trailer
from store.spill.rows.source import Longs, Source
from store.spill.runs.run import Run
from store.spill.state.hidden import frozen_run
from store.spill.state.spill_state import SpillState

__all__ = ["check"]

_AT_ONCE = 4096
# Odd 64-bit factors that spread every input bit: the golden ratio, and two primes of xxHash.
_MIX = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


def check(state: SpillState, journal: Journal) -> list[str]:
    """Say everything that is wrong; takes the delivery lock for moments only."""
    wrong: list[str] = []
    live_ids: list[Longs] = []
    with state.lock:
        segments = [_frozen_segment(segment) for segment in state.segments]
        runs = [frozen_run(run) for run in state.runs]
        wrong += _check_manifest(state)
    looks: list[tuple[Source, Callable[[], list[str]]]] = [
        *((segment, partial(_check_segment, segment, journal.seed)) for segment in segments),
        *((run, partial(_check_run, run)) for run in runs),
    ]
    for twin, look in looks:
        try:
            found = look()
            live_ids.append(_live_ids(twin))
        except StoreError as error:
            found = [str(error)]
        wrong += [f"{twin.file.path.name}: {text}" for text in found]
    everything = np.sort(np.concatenate(live_ids)) if live_ids else np.empty(0, np.int64)
    twice = everything[1:][everything[1:] == everything[:-1]]
    wrong += [f"{id_:#x} is live in two places" for id_ in twice[:10].tolist()]
    return wrong


def _frozen_segment(segment: JournalSegment) -> JournalSegment:
    """A twin with the done-set as it is now."""
    twin = segment.twin(RunPageCache(0))
    twin.done, twin.live = segment.done.copy(), segment.live
    return twin


def _live_ids(source: Source) -> Longs:
    parts: list[Longs] = [np.empty(0, np.int64)]
    for start in range(0, source.count, _AT_ONCE):
        ordinals = np.arange(start, min(source.count, start + _AT_ONCE), dtype=np.int64)
        parts.append(source.identities(ordinals[source.live_mask(ordinals)])[0])
    return np.concatenate(parts)


def _check_records(source: Source, ordinals: Longs) -> list[str]:
    """Compare the checksums of live records."""
    places = zip(*source.places(ordinals[source.live_mask(ordinals)]), strict=True)
    return [
        f"at {start}: the checksum of a pending record is wrong"
        for start, size, crc in places
        if crc32(source.data.pread(size, start)) != crc
    ]


def _check_segment(segment: JournalSegment, seed: int) -> list[str]:
    wrong = segment.done.check()
    everything = np.arange(segment.count, dtype=np.int64)
    live = int(np.count_nonzero(segment.live_mask(everything)))
    if live != segment.live:
        wrong.append(f"counts {segment.live} live records, but has {live}")
    order = segment.order[: segment.ordered].astype(np.int64)
    if (np.sort(order) != np.arange(len(order))).any():
        wrong.append("its order is no permutation")
    dues, ids = segment.dues[order], segment.ids[order]
    if ((dues[1:] < dues[:-1]) | ((dues[1:] == dues[:-1]) & (ids[1:] < ids[:-1]))).any():
        wrong.append("its order is not sorted")
    wrong += _check_frames(segment, seed)
    for start in range(0, segment.count, _AT_ONCE):
        wrong += _check_records(segment, everything[start : start + _AT_ONCE])
    return wrong


def _check_frames(segment: JournalSegment, seed: int) -> list[str]:
    """Walk the frames as replay would."""
    at, ordinal = FILE_HEADER_BYTES, 0
    wrong: list[str] = []
    while at < segment.end:
        head = segment.file.pread(FRAME_BYTES, at)
        count = min(frame_count(head), segment.size // FRAME_ROW_BYTES)
        frame = read_frame(segment.file.pread(FRAME_BYTES + count * FRAME_ROW_BYTES, at), 0, segment.base + at, seed)
        if frame is None:
            return [*wrong, f"at {at}: no frame, but the journal goes on to {segment.end}"]
        if frame.first_ordinal != ordinal:
            wrong.append(f"at {at}: frame begins with record {frame.first_ordinal}, not {ordinal}")
        if frame.kind in (ACCEPT, MOVE):
            ordinal += frame.count
        at += frame.length
    if ordinal < segment.appended:
        wrong.append(f"has {ordinal} records, not {segment.appended}")
    return wrong


def _check_run(run: Run) -> list[str]:
    wrong = run.done.check() + list(run.damage.values())
    shape = run.shape
    live = run.end - run.first - run.done.count_range(run.first, run.end)
    if live != run.live:
        wrong.append(f"counts {run.live} live records, but has {live}")
    trailer = run.file.pread(RUN_TRAILER_BYTES, shape.file_bytes - RUN_TRAILER_BYTES)
    if trailer != run_trailer(shape, run.store_id, run.no):
        wrong.append(f"at {shape.file_bytes - RUN_TRAILER_BYTES}: the trailer contradicts the manifest")
    first_page = min(run.done.prefix, run.end, shape.count - 1) // run.rows_per_page
    last = (-1, -1)
    position = -1
    digest = 0
    for number in range(first_page, shape.pages):
        page = run.page(number)
        dues, ids = page.dues, page.ids
        falls = (dues[1:] < dues[:-1]) | ((dues[1:] == dues[:-1]) & (ids[1:] < ids[:-1]))
        if falls.any() or (dues.item(0), ids.item(0)) < last:
            wrong.append(f"page {number} is not in key order")
        follows = run.is_index or position in (-1, page.starts.item(0))
        if page.first != number * run.rows_per_page or not follows:
            wrong.append(f"page {number} does not follow the one before it")
        last = (dues.item(-1), ids.item(-1))
        position = page.starts.item(-1) + page.sizes.item(-1)
        ordinals = np.arange(page.first, page.first + len(page), dtype=np.int64)
        digest += _digest(ids, dues, ordinals, page.versions)
        wrong += _check_records(run, ordinals)
    wrong += [f"{text}; it was made again from its records" for text in run.rebuilt.values()]
    if (digest - _digest_of_ids(run, first_page * run.rows_per_page, wrong)) % (1 << 64):
        wrong.append("the id pages do not name the same records as the column pages")
    return wrong


def _digest_of_ids(run: Run, first: int, wrong: list[str]) -> int:
    """The digest of all rows in the id pages with an ordinal from ``first`` on."""
    digest = 0
    last = (-1, -1)
    for number in range(run.shape.id_pages):
        rows = run.id_rows(number)
        ids, versions = rows["id"], rows["version"]
        falls = (ids[1:] < ids[:-1]) | ((ids[1:] == ids[:-1]) & (versions[1:] < versions[:-1]))
        if falls.any() or (int(ids[0]), int(versions[0])) < last:
            wrong.append(f"id page {number} is not sorted")
        last = (int(ids[-1]), int(versions[-1]))
        kept = rows[rows["ordinal"] >= first]
        digest += _digest(kept["id"], kept["due"], kept["ordinal"], kept["version"])
    return digest


def _digest(
    ids: NDArray[np.int64],
    dues: NDArray[np.int64],
    ordinals: NDArray[np.int64] | NDArray[np.uint32],
    versions: NDArray[np.uint32],
) -> int:
    """A sum over hashed rows, modulo 2**64. It does not depend on their order: id pages and column pages must agree."""
    mixed = ids.astype(np.uint64) * _MIX[0]
    mixed ^= (dues.astype(np.uint64) + np.uint64(1)) * _MIX[1]
    mixed ^= (ordinals.astype(np.uint64) << np.uint64(20)) + versions.astype(np.uint64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MIX[2]
    return int(mixed.sum(dtype=np.uint64))


def _check_manifest(state: SpillState) -> list[str]:
    """Compare manifest and memory. The manifest is written first: it may be ahead for a moment, but never behind."""
    manifest = state.directory.manifest
    segments = {entry.no: entry for entry in manifest.segments}
    runs = {entry.no: entry for entry in manifest.runs}
    wrong = []
    for segment in state.segments:
        listed = segments.get(segment.no)
        if listed is None:
            wrong += _unlisted(segment)
        elif listed.upper > segment.upper:
            wrong.append(f"{segment.file.path.name} is said to own keys below {listed.upper}, not {segment.upper}")
    for run in state.runs:
        entry = runs.get(run.no)
        if entry is None:
            wrong += _unlisted(run)
        elif entry.end > run.end:
            wrong.append(f"{run.path.name} is said to own records up to {entry.end}, not {run.end}")
    return wrong


def _unlisted(source: Source) -> list[str]:
    if not source.live:
        return []
    return [f"the manifest does not list {source.file.path.name}: {source.live} are pending in it"]
