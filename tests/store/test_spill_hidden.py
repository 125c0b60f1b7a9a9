"""Hidden rows: records of a page that can be neither read nor made again are known by their keys."""

from __future__ import annotations

import pytest

from remoting.layout import FILE_HEADER_BYTES
from store.disk.aside import AsideDir
from store.spill.rows.model import Key
from store.spill.runs.run import Run
from store.spill.state.hidden import HiddenRows
from store.spill.state.outlook import as_bounds
from store.spill.upkeep.repair import repair_spill
from tests.store.spill_world import ROOT as STORE
from tests.store.spill_world import STORE_ID as OWNER
from tests.store.test_spill_store import Rig


def _run_of(rig: Rig) -> Run:
    (run,) = [source for source in rig.sources() if isinstance(source, Run) and not source.is_index]
    return run


def _written() -> tuple[Rig, Run]:
    """A store with one run; its records are none of ours, so no page can be made again from them."""
    rig = Rig(segment_bytes=4_000)
    for due_ms in range(100_000, 100_040):
        rig.accept(due_ms, size=60)
    rig.settle(0)
    rig.settle(10_000)
    run = _run_of(rig)
    assert (run.first, run.end, run.rows_per_page) == (0, run.count, 3)
    assert run.shape.pages >= 6
    return rig, run


def _damage(run: Run, *pages: int) -> None:
    for page in pages:
        run.file.pwrite(b"????", FILE_HEADER_BYTES + page * run.shape.page_bytes + 40)


def _keys(run: Run, *pages: int) -> list[Key]:
    return [
        key for page in pages for key in zip(run.page(page).dues.tolist(), run.page(page).ids.tolist(), strict=True)
    ]


def _damage_ids(run: Run, *pages: int) -> None:
    for page in pages:
        run.file.pwrite(b"????", run.shape.id_at + page * run.shape.page_bytes + 40)


def test_their_keys_are_on_the_id_pages() -> None:
    rig, run = _written()
    last = run.shape.pages - 1
    keys = _keys(run, 0, 2, 3, last)
    _damage(run, 0, 2, 3, last)
    rig.restart()
    assert (rig.store.hidden_rows(), rig.store.hides) == ([], False), "nobody has looked yet"
    assert len(rig.dues()) == 40 - len(keys)
    (rows,) = rig.store.hidden_rows()
    assert rows == HiddenRows(file=run.path.name, keys=keys, unknown=0)
    assert rig.store.hidden_rows(run.shape.due_max + 1) == rig.store.hidden_rows(0, run.shape.due_min - 1) == []


def test_without_an_id_page_their_number_is_known() -> None:
    rig, run = _written()
    keys = _keys(run, 1, 2, 3)
    named = [id_ for number in range(2, run.shape.id_pages) for id_ in run.id_rows(number)["id"].tolist()]
    _damage(run, 1, 2, 3)
    _damage_ids(run, 0, 1)
    rig.restart()
    rig.dues()
    (rows,) = rig.store.hidden_rows()
    assert rows.keys == [key for key in keys if key[1] in named]
    assert (len(rows.keys) + rows.unknown, rows.unknown > 0) == (9, True)


def test_what_is_done_is_not_hidden() -> None:
    rig, run = _written()
    keys = _keys(run, 1)
    _damage(run, 1)
    rig.restart()
    rig.dues()
    while keys:
        with rig.store.lock:
            assert rig.store.cancel(keys.pop()[1]) is not None
        assert [rows.keys for rows in rig.store.hidden_rows()] == [keys] * bool(keys)
    assert (rig.store.hidden_rows(), rig.store.hides) == ([], True)


@pytest.mark.parametrize("ids_too", [False, True])
def test_the_repair_names_what_it_cannot_make_reachable_again(ids_too: bool) -> None:
    rig, run = _written()
    keys = _keys(run, 1)
    with rig.store.lock:
        assert rig.store.cancel(keys.pop(0)[1]) is not None
    rig.checkpoint()
    _damage(run, 1)
    if ids_too:
        _damage_ids(run, *range(run.shape.id_pages))
    rig.store.close()
    aside = AsideDir(rig.disk, STORE.parent)
    repair_spill(rig.disk, STORE, OWNER, rig.section, aside)
    (line,) = aside.report
    if ids_too:
        assert line.endswith("2 pending messages cannot be delivered; of 2 of them the offsets are unknown")
    else:
        named = ", ".join(f"{id_:#x} (due at {due_ms})" for due_ms, id_ in keys)
        assert line.endswith(
            f"2 pending messages cannot be delivered. Their offsets, by which they can be cancelled, and "
            f"due times (epoch ms): {named}"
        )


def _below(rig: Rig, *bounds: int) -> tuple[list[int], bool]:
    counts, exact = rig.store.outlook.counts_below(as_bounds(bounds))
    return counts.tolist(), exact


@pytest.mark.parametrize("ids_too", [False, True])
def test_a_count_by_due_time_goes_on_within_a_hidden_page(ids_too: bool) -> None:
    rig, run = _written()
    dues = run.page(2).dues.tolist()
    before = dues[0] - 100_000
    assert _below(rig, *dues, 100_040) == ([before, before + 1, before + 2, 40], True)
    _damage(run, 2, run.shape.pages - 1)
    if ids_too:
        _damage_ids(run, *range(run.shape.id_pages))
    rig.restart()
    (*inside, total), exact = _below(rig, *dues, 100_040)
    assert (total, exact) == (40, False)
    assert all(before <= count <= before + run.rows_per_page for count in inside)
    assert inside == sorted(inside)
    assert _below(rig, dues[0] - 1, dues[-1] + 2) == ([before - 1, before + 4], True)
    first_ms, last_ms = run.page(run.shape.pages - 2).dues.item(-1) + 1, run.shape.due_max
    assert rig.store.outlook.last_due(last_ms + 1) == (first_ms if ids_too else last_ms)
    assert rig.store.outlook.last_due(dues[-1] + 1) in (range(dues[0] - 1, dues[-1] + 1) if ids_too else [dues[-1]])
