"""Runs: written in key order, read by key, by id and by ordinal; damage hides no more than it must."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from store.disk.errors import StoreCorruptError
from store.spill.rows.model import DUE_MAX, Key
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.source import Longs
from store.spill.runs import run_writer
from store.spill.runs.run import Run
from store.spill.runs.run_writer import RunWriter
from tests.support.simdisk import SimDisk

ROOT = Path("/runs")
STORE_ID = bytes(range(16))
PAGE = 32 + 28 * 4

Row = tuple[int, int, int, bytes]  # due, id, version, record


def some_rows(count: int, seed: int = 1) -> list[Row]:
    rng = random.Random(seed)
    ids = rng.sample(range(1000, 1000 + 3 * count), count)
    return sorted((rng.randrange(count // 2 + 1), i, rng.randrange(3), rng.randbytes(rng.randrange(9))) for i in ids)


def _longs(numbers: Iterable[int]) -> Longs:
    return np.array(list(numbers), np.int64)


def written(disk: SimDisk, rows: list[Row], spare: int = 0) -> Run:
    disk.makedirs(ROOT)
    writer = RunWriter(disk, ROOT, 7, STORE_ID, len(rows) + spare, PAGE)
    for start in range(0, len(rows), 7):
        dues, ids, versions, records = zip(*rows[start : start + 7], strict=True)
        writer.add(*map(_longs, (dues, ids, versions, map(crc32, records))), records)
    for _ in writer.finish():
        pass
    assert writer.file is not None
    assert writer.shape is not None
    assert disk.listdir(ROOT) == ["0000000007"]
    return Run(7, writer.file, writer.shape, STORE_ID, RunPageCache(4 * PAGE))


def walk(run: Run, after: Key = (-1, 0), until_ms: int = DUE_MAX, want: int = 3) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    while (batch := run.fetch_sorted(after, until_ms, want)) is not None:
        found += zip(batch.dues.tolist(), batch.ids.tolist(), batch.refs.tolist(), strict=True)
        after = (found[-1][0], found[-1][1])
        if not batch.more:
            assert run.fetch_sorted(after, until_ms, want) is None
            break
    return found


@pytest.mark.parametrize("count", [1, 3, 4, 5, 63])
@pytest.mark.parametrize("sort_rows", [4, 12, 1 << 16])
def test_found_by_key_id_and_ordinal(count: int, sort_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_writer, "SORT_ROWS", sort_rows)
    monkeypatch.setattr(run_writer, "WRITE_BYTES", 20)
    monkeypatch.setattr(run_writer, "SYNC_BYTES", 40)
    rows = some_rows(count)
    run = written(SimDisk(), rows, spare=9)
    assert walk(run) == [(due, i, 7 << 32 | n) for n, (due, i, _, _) in enumerate(rows)]
    for n, (due, i, version, record) in enumerate(rows):
        assert run.lookup(i) == [(n, due, version)]
        (start,), (size,), (crc,) = run.places(np.array([n], np.int64))
        assert run.file.pread(size, start) == record
        assert crc == crc32(record)
        assert walk(run, (due, i))[:1] == [(d, j, 7 << 32 | n + 1) for d, j, *_ in rows[n + 1 : n + 2]]
        assert run.position((due, i), False) == n
        assert run.position((due, i), True) == n + 1
    for missing in (0, 999, 10_000, next(i for i in range(1000, 9999) if i not in {r[1] for r in rows})):
        assert run.lookup(missing) == []
    wanted = np.array(sorted({0, 10_000} | {r[1] for r in rows[::2]}), np.int64)
    ordinals, index, versions = run.lookup_many(wanted)
    got = sorted(zip(ordinals.tolist(), wanted[index].tolist(), versions.tolist(), strict=True))
    assert got == [(n, r[1], r[2]) for n, r in enumerate(rows) if n % 2 == 0]
    ids, versions = run.identities(np.arange(count, dtype=np.int64))
    assert list(zip(ids.tolist(), versions.tolist(), strict=True)) == [(r[1], r[2]) for r in rows]


def test_versions_of_one_id_across_pages() -> None:
    rows = sorted((n, 500, n, b"v") for n in range(9)) + [(n, 600 + n, 0, b"") for n in range(9, 20)]
    run = written(SimDisk(), rows)
    assert sorted(run.lookup(500)) == [(n, n, n) for n in range(9)]
    ordinals, _, versions = run.lookup_many(np.array([500], np.int64))
    assert sorted(zip(ordinals.tolist(), versions.tolist(), strict=True)) == [(n, n) for n in range(9)]


def test_scans_with_until_ownership_and_done() -> None:
    rows = some_rows(63, seed=2)
    run = written(SimDisk(), rows)
    rng = random.Random(4)
    owned = set(range(63))
    done: set[int] = set()
    for step in range(200):
        chosen = rng.randrange(63)
        if run.owns(chosen):
            assert run.mark(chosen) == (chosen not in done)
            done.add(chosen)
        if step == 60:
            run.set_first(5)
            owned -= set(range(5))
        if step == 120:
            run.set_end(run.position((rows[50][0], rows[50][1]), False))
            owned -= set(range(50, 63))
        live = sorted(owned - done)
        assert run.live == len(live)
        after, until_ms = (rng.randrange(-1, 30), rng.randrange(1200)), rng.randrange(40)
        expected = [7 << 32 | n for n in live if rows[n][:2] > after and rows[n][0] < until_ms]
        assert [ref for _, _, ref in walk(run, after, until_ms)] == expected
        assert run.done.check() == []


def test_punching_takes_only_what_is_durably_done() -> None:
    disk = SimDisk()
    rows = [(n, 100 + n, 0, bytes([n]) * 10) for n in range(40)]
    run = written(disk, rows)
    run.done.add_range(0, 30)
    run.recount()
    assert run.punchable() == (0, [])
    run.saved = run.done.encode()
    target, spots = run.punchable()
    assert target == 24
    for position, size in spots:
        assert run.file.punch(position, size)
    run.punched = target
    again = Run(7, disk.open(ROOT / "0000000007"), run.shape, STORE_ID, RunPageCache(4 * PAGE))
    again.done, again.saved = run.done, run.saved
    again.recount()
    assert [ref & 0xFF for _, _, ref in walk(again)] == list(range(30, 40))
    starts, sizes, _ = again.places(np.arange(30, 40, dtype=np.int64))
    found = [again.file.pread(s, a) for a, s in zip(starts, sizes, strict=True)]
    assert found == [r[3] for r in rows[30:]]
    assert again.punchable()[0] == 24  # once more after a restart: no harm
    assert again.position((-1, 0), False) == 28


def test_a_damaged_page_hides_its_records_and_no_others() -> None:
    disk = SimDisk()
    rows = some_rows(40, seed=3)
    shape = written(disk, rows).shape
    for broken in range(shape.pages):
        disk = SimDisk()
        written(disk, rows).file.pwrite(b"?", 64 + broken * PAGE + 50)
        run = Run(7, disk.open(ROOT / "0000000007"), shape, STORE_ID, RunPageCache(4 * PAGE))
        hidden = set(range(broken * 4, broken * 4 + 4))
        assert [ref & 0xFF for _, _, ref in walk(run)] == [n for n in range(40) if n not in hidden]
        for n, (due, i, version, _) in enumerate(rows):
            assert run.lookup(i) == [(n, due, version)]
            if n not in hidden:
                seen = walk(run, (due, i))
                assert [ref & 0xFF for _, _, ref in seen] == [m for m in range(n + 1, 40) if m not in hidden]
        assert list(run.damage) == [broken]
        with pytest.raises(StoreCorruptError, match=f"page {broken} is not what was written"):
            run.places(np.array([broken * 4], np.int64))


def test_a_damaged_id_page_is_made_up_for_by_the_columns() -> None:
    disk = SimDisk()
    rows = some_rows(40, seed=3)
    run = written(disk, rows)
    run.file.pwrite(b"?", run.shape.id_at + 2 * PAGE + 40)
    for n, (due, i, version, _) in enumerate(rows):
        assert run.lookup(i) == [(n, due, version)]
    ordinals, _, _ = run.lookup_many(np.array(sorted(r[1] for r in rows), np.int64))
    assert sorted(ordinals.tolist()) == list(range(40))
    assert run.damage


def test_a_run_given_up_leaves_nothing() -> None:
    disk = SimDisk()
    disk.makedirs(ROOT)
    writer = RunWriter(disk, ROOT, 7, STORE_ID, 5, PAGE)
    writer.add(*(_longs([number]) for number in (1, 2, 0, 3)), [b"x"])
    writer.discard()
    assert disk.listdir(ROOT) == []


@pytest.mark.parametrize("spoiled", [b"", b"\0" * 24, b"?"])
def test_sorted_ids_that_are_not_what_was_written_end_the_run(spoiled: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel drops a page that it could not write out, and nobody is told: ids of messages would be missing."""
    monkeypatch.setattr(run_writer, "SORT_ROWS", 4)
    disk = SimDisk()
    hits = 0

    def spoil(path: Path, offset: int, size: int) -> None:
        nonlocal hits
        if path.name.endswith(".ids.tmp") and offset:
            hits += 1
            seen = disk._seen[path]
            assert seen is not None
            if spoiled:
                seen.seen[offset + size - len(spoiled) : offset + size] = spoiled
            else:
                del seen.seen[offset + size - 30 :]

    disk.watch = spoil
    with pytest.raises(StoreCorruptError, match="not what was written"):
        written(disk, some_rows(40))
    assert hits
