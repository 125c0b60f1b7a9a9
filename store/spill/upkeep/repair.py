"""Repairs the delay store's files: damaged parts are covered, whole ones stay where they are.

==================  ==================================================================================================
manifest            its copy takes its place (`store.spill.rows.manifest.read_manifest`)
journal segment     a span that is no frame becomes a frame, with the records that are still whole. The others become
                    *holes*: rows that no scan and no done-set leads to. So the ordinals of all records stay the same
run                 cut off: extended to its size; header, trailer and column pages rebuilt from the other parts;
                    missing: taken out of the manifest
checkpoint section  missing or an older one: made from the files; the CommitLog says what was delivered
==================  ==================================================================================================

Bytes are put aside before they are overwritten.
"""

from __future__ import annotations

from pathlib import Path

from remoting.layout import FILE_HEADER_BYTES, RUN_TRAILER_BYTES
from store.disk.aside import AsideDir
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError
from store.disk.file import File
from store.disk.files import Files
from store.spill.journal.segment_columns import SegmentColumns
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import (
    INDEX_MAGIC,
    JOURNAL_MAGIC,
    RUN_MAGIC,
    column_page,
    page_seed,
    place_page,
    read_column_page,
    read_place_page,
)
from store.spill.rows.manifest import Manifest, RunEntry, read_manifest
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.run_shape import run_trailer
from store.spill.runs.run import Run
from store.spill.runs.run_writer import run_name
from store.spill.state.hidden import hidden_keys
from store.spill.upkeep.opening import decode_section, encode_section
from store.spill.upkeep.repair_files import full_size, mend_header
from store.spill.upkeep.repair_journal import JournalRepair

__all__ = ["mended_section", "repair_spill"]


def mended_section(files: Files, path: Path, store_id: bytes, section: bytes | None, aside: AsideDir) -> bytes | None:
    """A checkpoint section with which the delay store at ``path`` can be opened: the given one if it is usable.

    None if none is needed. Raises StoreCorruptError or StoreFormatError if no manifest can be read.
    """
    manifest, _ = read_manifest(files, path / "manifest", store_id)
    if manifest is None:
        return section
    claim, number, done = 0, 0, dict[int, DoneSet]()
    if section is not None:
        try:
            claim, done, number = decode_section(section)
            if number >= manifest.relied_on:
                return section
            aside.say("the checkpoint is an older one: messages cancelled or moved since may be delivered as they were")
        except (StoreCorruptError, StoreFormatError) as error:
            aside.say(f"the checkpoint's section of the delay store cannot be read ({error})")
    elif not manifest.relied:
        return None
    if section is None or not done:
        aside.say(
            "the CommitLog tells what was delivered; the journal tells what was cancelled or moved, as far back as it "
            "goes: messages that were cancelled before that may be delivered"
        )
    for entry in manifest.runs:
        if entry.data is not None:
            continue
        # Their pages are holes, which a scan would take for damage if these records were not done.
        punched = _punched(files, path, store_id, entry)
        if punched:
            done.setdefault(entry.no, DoneSet()).add_range(0, punched)
    return encode_section(claim, {no: found.encode() for no, found in done.items()}, manifest.relied_on)


def _punched(files: Files, path: Path, store_id: bytes, entry: RunEntry) -> int:
    """Count the leading records of a run whose pages are holes: they were delivered, and their room was given back."""
    place = path / "runs" / run_name(entry.no)
    if not files.exists(place):
        return 0
    file = files.open(place)
    run = Run(entry.no, file, entry.shape, store_id, RunPageCache(0))
    size = entry.shape.page_bytes
    page = 0
    while page < entry.shape.pages and not any(file.pread(size, FILE_HEADER_BYTES + page * size)):
        page += 1
    count = min(page * run.rows_per_page, entry.shape.count)
    file.close()
    return count


def repair_spill(files: Files, path: Path, store_id: bytes, section: bytes | None, aside: AsideDir) -> None:
    """Repair manifest, journal and runs under ``path``. Raises StoreError if no manifest can be read."""
    if not files.exists(path):
        return
    manifest, instead = read_manifest(files, path / "manifest", store_id)
    if manifest is None:
        return
    claim, done, _ = (0, {}, 0) if section is None else decode_section(section)
    if instead:
        kept = f", the old file is {aside.move(path / 'manifest')}" if files.exists(path / "manifest") else ""
        aside.say(f"{instead}: its copy is used{kept}")
    before = manifest.encode()
    JournalRepair(files, path / "journal", store_id, manifest, claim, done, aside).mend()
    _mend_data(files, path / "journal", store_id, manifest, aside)
    for run in list(manifest.runs):
        _mend_run(files, path / "runs", store_id, manifest, run, done.get(run.no), aside)
    if instead or manifest.encode() != before:
        manifest.generation += 1
        for name in ("manifest", "manifest.copy"):
            files.replace_file(path / name, manifest.encode())


def _mend_data(files: Files, path: Path, store_id: bytes, manifest: Manifest, aside: AsideDir) -> None:
    """Repair size and header of segments that are no longer part of the journal, but that an index leads to."""
    listed = {entry.no for entry in manifest.segments}
    for data in sorted({run.data for run in manifest.runs if run.data is not None and run.data.no not in listed}):
        file = full_size(files, path / run_name(data.no), data.size, aside)
        mend_header(file, JOURNAL_MAGIC, store_id, data.no, (data.base, data.size), aside)
        file.close()


def _mend_run(
    files: Files,
    path: Path,
    store_id: bytes,
    manifest: Manifest,
    entry: RunEntry,
    done: DoneSet | None,
    aside: AsideDir,
) -> None:
    place = path / run_name(entry.no)
    shape = entry.shape
    if not files.exists(place):
        live = entry.end - entry.first - (0 if done is None else done.count_range(entry.first, entry.end))
        aside.say(
            f"{place} is missing: {live} pending messages, due {shape.due_min} to {shape.due_max} (epoch ms), are lost"
        )
        manifest.runs = [other for other in manifest.runs if other.no != entry.no]
        return
    file = full_size(files, place, shape.file_bytes, aside)
    reserved = shape.pages if shape.is_index else (shape.data_at - FILE_HEADER_BYTES) // shape.page_bytes
    magic = INDEX_MAGIC if shape.is_index else RUN_MAGIC
    mend_header(file, magic, store_id, entry.no, (reserved, shape.page_bytes), aside)
    trailer = run_trailer(shape, store_id, entry.no)
    at = shape.file_bytes - RUN_TRAILER_BYTES
    found = file.pread(RUN_TRAILER_BYTES, at)
    if found != trailer:
        aside.keep(place, at, found)
        file.pwrite(trailer, at)
        aside.say(f"{place} at {at}: its trailer was made again")
    data = None if entry.data is None else files.open(path.parent / "journal" / run_name(entry.data.no))
    _mend_pages(file, data, store_id, entry, done, aside)
    file.sync()
    file.close()


def _out_of_reach(run: Run, number: int) -> str:
    keys, unknown = hidden_keys(run, [number])
    if not keys and not unknown:
        return "nothing on it is pending"
    named = ", ".join(f"{id_:#x} (due at {due_ms})" for due_ms, id_ in keys)
    how = f". Their offsets, by which they can be cancelled, and due times (epoch ms): {named}" if keys else ""
    more = f"; of {unknown} of them the offsets are unknown" if unknown else ""
    return f"{len(keys) + unknown} pending messages cannot be delivered{more}{how}"


def _mend_pages(
    file: File, data: File | None, store_id: bytes, entry: RunEntry, done: DoneSet | None, aside: AsideDir
) -> None:
    shape = entry.shape
    run = Run(entry.no, file, shape, store_id, RunPageCache(1 << 20), entry.first, entry.end)
    if done is not None:
        run.restore(done.copy())  # without it, a hole would be taken for damage
    read, write = read_column_page, column_page
    columns: SegmentColumns | None = None
    if entry.data is not None and data is not None:
        run.lead_to(entry.data, data)
        read, write = read_place_page, place_page
        columns = SegmentColumns.read(entry.data, data, store_id)
    size, seed = shape.page_bytes, page_seed(store_id, entry.no)
    prefix = 0 if done is None else done.prefix
    for number in range(min(prefix, entry.end) // run.rows_per_page, shape.pages):
        at = FILE_HEADER_BYTES + number * size
        found = file.pread(size, at)
        try:
            page = read(found, number, seed, file.path, at)
            if data is not None and columns is not None and columns.mend_places(page, data):
                aside.keep(file.path, at, found)
                file.pwrite(write(page, number, size, seed), at)
                aside.say(f"{file.path} at {at}: page {number} leads to where its records are now")
            continue
        except StoreError:
            pass
        try:
            page = run.page(number)
        except StoreError:
            aside.say(f"{file.path} at {at}: page {number} cannot be made again: {_out_of_reach(run, number)}")
            continue
        aside.keep(file.path, at, found)
        file.pwrite(write(page, number, size, seed), at)
        aside.say(f"{file.path} at {at}: page {number} was made again from its records")
