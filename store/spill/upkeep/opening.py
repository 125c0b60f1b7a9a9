"""Opening the spill store: manifest, runs, journal, and the done-sets of the checkpoint.

A done bit in the checkpoint speaks of a *record*, at the place where it lived then. The record may have been relocated
between that checkpoint and the crash: the manifest names the new run, the checkpoint does not. Then the bit is carried
over to the run, by id and version. Next, the journal's cancels and moves behind the checkpoint are applied, wherever
their records are. Deliveries behind the checkpoint come from the CommitLog (`SpillStore.restore_delivered_many`).

The checkpoint section (little-endian)::

    0   version u32 | files u32 | journal position u64
    16  number of this section u64                                   (from version 2 on)
    24  for each file: number u64 | done-set (`store.spill.rows.done_set`)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from remoting.layout import DELAY_SECTION
from remoting.layout.table import LITTLE_LONG
from store.disk.delay_id import EPOCH_MAX
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError
from store.spill.journal.replay import Replayed, cut_behind, replay, write_again
from store.spill.journal.segment import JournalSegment
from store.spill.rows.done_set import DoneSet
from store.spill.rows.model import RecordCorruptError
from store.spill.rows.source import Source
from store.spill.runs.run import Run
from store.spill.state.directory import SpillDirectory
from store.spill.state.spill_state import SpillState

__all__ = ["decode_section", "encode_section", "open_sources", "records_behind"]

_SECTION = DELAY_SECTION.struct("version", "position")
_VERSION = 2
FIRST_SEGMENT_BYTES = 8 << 20


def encode_section(journal_position: int, done: dict[int, bytes], section_no: int = 0) -> bytes:
    """Make the checkpoint section from encoded done-sets by file number; ``section_no`` counts sections."""
    parts = [_SECTION.pack(_VERSION, len(done), journal_position), LITTLE_LONG.pack(section_no)]
    for no, encoded in done.items():
        parts.append(LITTLE_LONG.pack(no))
        parts.append(encoded)
    return b"".join(parts)


def records_behind(state: SpillState, position: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (due, delay id, record) of each pending message that stands in the journal from ``position`` on."""
    for segment in state.segments:
        everything = np.arange(segment.count, dtype=np.int64)
        fresh = segment.live_mask(everything) & (segment.at[: segment.count] + segment.base >= position)
        for ordinal in np.flatnonzero(fresh).tolist():
            try:
                record = state.read((segment.no << 32 | ordinal,)).records()[0]
            except RecordCorruptError:
                continue  # its delivery will report it
            yield segment.dues.item(ordinal), segment.ids.item(ordinal), record


def decode_section(section: bytes) -> tuple[int, dict[int, DoneSet], int]:
    """Read a checkpoint section: (journal position, done-sets by file number, number of the section).

    Raises StoreCorruptError, StoreFormatError.
    """
    if len(section) < _SECTION.size:
        raise StoreCorruptError(f"the delay store's checkpoint section has {len(section)} bytes")
    version, count, position = _SECTION.unpack_from(section)
    if not 1 <= version <= _VERSION:
        raise StoreFormatError(f"the delay store's checkpoint section has version {version}, not {_VERSION}")
    found: dict[int, DoneSet] = {}
    at = _SECTION.size
    section_no = 0
    if version > 1:
        if len(section) < at + LITTLE_LONG.size:
            raise StoreCorruptError(f"the delay store's checkpoint section breaks off at {at}")
        (section_no,) = LITTLE_LONG.unpack_from(section, at)
        at += LITTLE_LONG.size
    for _ in range(count):
        if at + LITTLE_LONG.size > len(section):
            raise StoreCorruptError(f"the delay store's checkpoint section breaks off at {at}")
        (no,) = LITTLE_LONG.unpack_from(section, at)
        found[no], at = DoneSet.decode(section, at + LITTLE_LONG.size)
    if at != len(section):
        raise StoreCorruptError(f"the delay store's checkpoint section ends at {at} of {len(section)} bytes")
    return position, found, section_no


def open_sources(
    directory: SpillDirectory, state: SpillState, section: bytes | None
) -> tuple[list[JournalSegment], int]:
    """Fill ``state`` with all sources; returns (segments in journal order, the new epoch).

    On return the new epoch is durable, and there are only zeros behind the journal's end.

    Raises StoreCorruptError if manifest, journal and checkpoint do not agree, StoreFormatError if no epoch is left.
    """
    directory.load()
    manifest = directory.manifest
    if section is None and manifest.relied:
        raise StoreCorruptError(
            f"{directory.manifest_path} at 0: it relies on a checkpoint, and there is none (or none with a section of "
            "the delay store): bring the store's checkpoint file back; without it messages would be delivered twice"
        )
    claim, done, section_no = (0, {}, 0) if section is None else decode_section(section)
    if section_no < manifest.relied_on:
        raise StoreCorruptError(
            f"the delay store's section of the store's checkpoint at 0: it is number {section_no}, but "
            f"{directory.manifest_path} says that files were removed because of number {manifest.relied_on}: the file "
            "checkpoint is an older copy. Bring the newest one back: by this one, messages that were cancelled or "
            "delivered would come again"
        )
    strange = max(done, default=0)
    if strange >= manifest.next_no:
        raise StoreCorruptError(
            f"{directory.manifest_path} at 0: the store's checkpoint speaks of file {strange}, and the manifest has "
            f"not got that far ({manifest.next_no} is next): it is an older one. Bring the newest one back"
        )
    directory.checkpoint_no = section_no
    if manifest.epoch >= EPOCH_MAX:
        raise StoreFormatError(f"{directory.manifest_path}: all {EPOCH_MAX} epochs are used up")
    runs = directory.open_runs(state.cache)
    segments = directory.open_segments()
    if segments:
        # A segment with an index was closed and durable as a whole, so the journal is durable up to its end at least.
        indexed = [run.data.base + run.data.size for run in manifest.runs if run.data is not None]
        replayed = replay(segments, directory.store_id, claim, min(max(indexed, default=0), segments[-1].base))
        _keep_behind(directory, replayed)
        cut_behind(replayed)
        write_again(segments, max(claim, replayed.synced))
    else:
        replayed = Replayed()
    if replayed.epoch > manifest.epoch:
        raise StoreCorruptError(
            f"{directory.manifest_path} at 0: it says epoch {manifest.epoch}, but the journal has frames of epoch "
            f"{replayed.epoch}: the manifest is older than the journal"
        )
    manifest.epoch += 1
    # Both branches write the manifest, with the new epoch in it, before the first message is accepted.
    if not segments or segments[-1].closed:
        segments.append(_first_segment(directory, state.options.segment_bytes))
    else:
        directory.save()
    _show(state, segments, runs, done)
    _carry_over(state, frozenset(done))
    if replayed.kill_ids:
        state.mark_versions(np.concatenate(replayed.kill_ids), np.concatenate(replayed.kill_versions))
    return segments, manifest.epoch


def _keep_behind(directory: SpillDirectory, replayed: Replayed) -> None:
    """Keep a copy of what is not zero behind the journal's end: a torn write, or somebody else's doing."""
    for segment, position, size in replayed.dirt:
        path = segment.file.path.with_name(f"{segment.file.path.name}.{position}.aside")
        number = 0
        while directory.files.exists(path):
            number += 1
            path = path.with_name(f"{segment.file.path.name}.{position}.aside.{number}")
        data = segment.file.pread(size, position).rstrip(bytes(1))
        with contextlib.suppress(StoreError):  # no room: these bytes were never acknowledged, so the start continues
            directory.files.replace_file(path, data)
            text = f"{segment.file.path} at {position}: the journal ends before that; what stood there is kept as"
            directory.notes.append(f"{text} {path.name}")


def _first_segment(directory: SpillDirectory, size: int) -> JournalSegment:
    """Make a zero-filled segment at once: a small one, so that a new store opens in milliseconds."""
    for finish in directory.prepare_segment(min(size, FIRST_SEGMENT_BYTES)):
        if finish is not None:
            return finish()
    raise AssertionError("prepare_segment ends with a segment")


def _show(state: SpillState, segments: list[JournalSegment], runs: list[Run], done: dict[int, DoneSet]) -> None:
    """Add all sources to ``state``, with the done-sets of the checkpoint."""
    for segment in segments:
        _set_done(segment, done.get(segment.no))
        if segment.count:
            state.add_segment(segment)
    for run in runs:
        _set_done(run, done.get(run.no))
        state.add_run(run)


def _set_done(source: Source, done: DoneSet | None) -> None:
    if done is not None:
        if done.count_range(source.count, max(done.top, source.count)):
            raise StoreCorruptError(
                f"{source.file.path} at 0: it has {source.count} records, but the checkpoint says that record "
                f"{done.top - 1} is done"
            )
        source.restore(done)
    source.recount()


def _carry_over(state: SpillState, known: frozenset[int]) -> None:
    """Carry the done bits of records that were relocated since the checkpoint over to the runs it does not know."""
    if all(run.no in known for run in state.runs):
        return
    for source in state.sources.values():
        ordinals = source.done_elsewhere()
        for start in range(0, len(ordinals), 1 << 16):
            ids, versions = source.identities(ordinals[start : start + (1 << 16)])
            state.mark_versions(ids, versions, known)
