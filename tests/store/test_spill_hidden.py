"""Hidden rows: records of a page that can be neither read nor made again are known by their keys."""

from __future__ import annotations

import pytest

from remoting.layout import FILE_HEADER_BYTES
from store.disk.aside import AsideDir
from store.spill.rows.model import Key
from store.spill.runs.run import Run
from store.spill.state.hidden import HiddenRows
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
    shape = run.shape
    assert rows == HiddenRows(file=run.path.name, keys=keys, unknown=0, first_ms=shape.due_min, last_ms=shape.due_max)


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
