"""Rows of delay keys and of cancels whose pages were lost after a failed sync: no answer relies on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.disk.errors import SyncFailedError
from store.put.pending_api import PendingOrder, PendingVerb, PendingVerdict
from store.put.plugin_api import Refused
from tests.broker_plugin.test_delay_keys import NOW, by_key, held, put
from tests.broker_plugin.test_pending_desk import Desk
from tests.support.delay_world import ROOT


def no_sync_of(desk: Desk, folder: str) -> None:
    """Have no sync of a file in this folder work."""

    def fault(operation: str, path: Path) -> None:
        if operation == "sync" and path.parent.name == folder:
            raise SyncFailedError("input/output error")

    desk.world.disk.fault = fault


def drop_pages(desk: Desk, folder: str) -> None:
    """The disk works again, and the rows read as they were before they were written."""
    disk = desk.world.disk
    disk.fault = None
    file = disk.open(ROOT / "timewheel" / "delay" / folder / "0000000001")
    file.pwrite(bytes(file.size()), 0)


def test_a_key_is_still_taken_after_a_checkpoint_and_a_power_cut() -> None:
    desk = Desk()
    no_sync_of(desk, "keys")
    first = held(put(desk, NOW + 9_000))
    with pytest.raises(SyncFailedError):
        desk.world.plugin.rooms.sync()  # type: ignore[union-attr]
    drop_pages(desk, "keys")
    desk.world.plugin.rooms.sync()  # type: ignore[union-attr]
    desk.world.store.flusher.sync_all()
    desk.world.store.take_checkpoint()
    desk.world.disk.power_cut(0.0)
    desk.world.open()
    assert isinstance(put(desk, NOW + 9_000), Refused)
    assert desk.desk.get(by_key()).offset == first.offset


@pytest.mark.parametrize("at_once", [False, True])
def test_a_repeated_cancel_is_already_at_once_and_after_a_checkpoint_and_a_power_cut(at_once: bool) -> None:
    desk = Desk()
    held(put(desk, NOW + 9_000))
    cancel = PendingOrder(verb=PendingVerb.CANCEL, name=by_key())
    no_sync_of(desk, "cancelled")
    with pytest.raises(SyncFailedError):
        desk.desk.change(cancel, desk.now)
    drop_pages(desk, "cancelled")
    if at_once:
        assert desk.desk.change(cancel, desk.now).verdict is PendingVerdict.ALREADY
    else:
        desk.world.plugin.rooms.past.sync()  # type: ignore[union-attr]
    desk.world.store.flusher.sync_all()
    desk.world.store.take_checkpoint()
    desk.world.disk.power_cut(0.0)
    desk.world.open()
    assert desk.desk.change(cancel, desk.now).verdict is PendingVerdict.ALREADY
