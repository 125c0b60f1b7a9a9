"""What is written down of a cancel that was refused is taken back, however often the disk refuses that, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_plugin.pending import cancelled
from store.disk.errors import StoreError, StoreFullError
from store.put.pending_api import PendingName, PendingQuery, PendingVerb, PendingVerdict
from store.spill.spill_store import SpillStore
from store.spill.state.message_rows import MessageRows
from tests.broker_plugin.test_pending_desk import NOW, Desk

V = PendingVerdict
FAR = NOW + 60_000


def full(desk: Desk, *folders: str) -> None:
    """Have no write into these folders work."""

    def fault(operation: str, path: Path) -> None:
        if operation == "pwrite" and path.parent.name in folders:
            raise StoreFullError(f"{path}: no room")

    desk.world.disk.fault = fault if folders else None


@contextmanager
def journal_refuses(desk: Desk, cancel: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The block's cancels have their rows written, and the journal refuses them; nor can rows be taken back then."""

    def no_room(*_: Any) -> Any:
        full(desk, "cancelled")
        raise StoreFullError("journal: no room")

    with monkeypatch.context() as patched:
        patched.setattr(SpillStore, cancel, no_room)
        with pytest.raises(StoreError):
            yield


def refused(desk: Desk, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel whose row is written and which the journal refuses; nor can the row be taken back then."""
    with journal_refuses(desk, "cancel", monkeypatch):
        desk.change(offset)


def row_says(desk: Desk, offset: int) -> bool:
    """Whether a message is called cancelled by what is written down of it."""
    past = desk.world.plugin.pending._changes._past
    assert past is not None
    return past.find(offset) is not None


def test_such_a_row_is_not_believed_and_goes_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    offset, other = desk.send(FAR), desk.send(FAR + 1)
    assert desk.change(desk.send(FAR)).verdict is V.DONE
    refused(desk, offset, monkeypatch)
    assert not row_says(desk, offset)
    full(desk)
    assert desk.change(other).verdict is V.DONE
    desk.world.store.flusher.sync_all()
    desk.world.kill()
    assert (row_says(desk, offset), row_says(desk, other)) == (False, True)


def test_it_goes_by_and_by_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (lambda desk: desk.world.plugin.rooms.tidy(desk.now), lambda desk: desk.world.stop_and_start()):
        desk = Desk()
        offset = desk.send(FAR)
        refused(desk, offset, monkeypatch)
        full(desk)
        end(desk)
        rows = desk.world.plugin.rooms
        assert rows is not None
        assert len(rows.cancelled._owed) == 0
        assert rows.past.find(offset) is None


def test_no_row_is_written_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes back what stands at the end of the file."""
    desk = Desk()
    offset, other = desk.send(FAR), desk.send(FAR + 1)
    refused(desk, offset, monkeypatch)
    assert desk.change(other).verdict is V.DONE  # on a full disk a cancel has no row
    desk.world.disk.fault = None
    desk.world.store.flusher.sync_all()
    desk.world.kill()
    assert not row_says(desk, offset)
    assert desk.change(other).verdict is V.UNKNOWN  # without a row nothing tells it from a delivery that is damaged


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("how", ["tidy", "cancel", "stop"])
def test_a_row_for_which_there_was_no_room_is_written_when_there_is(how: str, bulk: bool) -> None:
    desk = Desk()
    offset, other = desk.send(FAR, __DELAYKEY="k"), desk.send(FAR + 1)
    full(desk, "cancelled")
    if bulk:
        query = PendingQuery(key_prefix="k")
        assert desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, dry_run=False).verdicts == {V.DONE: 1}
    else:
        assert desk.change(offset).verdict is V.DONE
    rooms = desk.world.plugin.rooms
    assert rooms is not None
    rooms.tidy(NOW)
    assert len(rooms.cancelled._lacking) == 1
    assert row_says(desk, offset)
    assert rooms.cancelled.find_key("T", "k") == offset
    assert desk.change(offset).verdict is V.ALREADY
    full(desk)
    if how == "tidy":
        rooms.tidy(NOW)
    elif how == "cancel":
        assert desk.change(other).verdict is V.DONE
    if how == "stop":
        desk.world.stop_and_start()
    else:
        assert len(rooms.cancelled._lacking) == 0
        desk.world.store.flusher.sync_all()
        desk.world.kill()
    assert desk.change(offset).verdict is V.ALREADY
    assert desk.desk.get(PendingName(topic="T", key="k")).verdict is V.CANCELLED


def test_no_more_rows_wait_for_room_than_memory_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelled, "LACKING_MAX", 3)
    desk = Desk()
    sent = [desk.send(FAR) for _ in range(5)]
    full(desk, "cancelled")
    assert [desk.change(offset).verdict for offset in sent] == [V.DONE] * 5
    assert [desk.change(offset).verdict for offset in sent] == [V.ALREADY] * 3 + [V.UNKNOWN] * 2


def test_a_cancel_that_comes_true_keeps_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    offset = desk.send(FAR)
    refused(desk, offset, monkeypatch)
    assert desk.change(offset).verdict is V.DONE
    assert row_says(desk, offset)
    full(desk)
    assert desk.desk.change_matching(PendingQuery(topic="T"), PendingVerb.CANCEL, NOW, dry_run=False).looked_at == 0
    assert row_says(desk, offset)


def test_rows_that_wait_for_room_are_written_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further cancel, and each tidying, wrote all of them under the delivery lock: up to 20,000."""
    monkeypatch.setattr(cancelled, "AT_ONCE", 4)
    desk = Desk()
    sent = [desk.send(FAR) for _ in range(23)]
    full(desk, "cancelled")
    for offset in sent[:21]:
        assert desk.change(offset).verdict is V.DONE
    rooms = desk.world.plugin.rooms
    assert rooms is not None
    holds: list[int] = []
    add = MessageRows.add

    def noted(rows: MessageRows, given: Any) -> None:
        holds.append(len(given))
        add(rows, given)

    monkeypatch.setattr(MessageRows, "add", noted)
    assert desk.change(sent[21]).verdict is V.DONE
    rooms.tidy(NOW)
    assert (holds, len(rooms.cancelled._lacking)) == ([4, 4], 22)
    full(desk)
    assert desk.change(sent[22]).verdict is V.DONE
    assert len(rooms.cancelled._lacking) == 18
    pauses: list[int] = []
    rooms.pause = lambda: pauses.append(len(rooms.cancelled._lacking))
    rooms.tidy(NOW)
    assert pauses == [14, 10, 6, 2], "deliveries get the lock between two slices"
    assert max(holds) == 4
    desk.world.store.flusher.sync_all()
    desk.world.kill()
    assert [desk.change(offset).verdict for offset in sent] == [V.ALREADY] * 23


def test_a_disk_without_room_for_rows_does_not_keep_others_from_being_tidied(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    full(desk, "cancelled")
    assert desk.change(desk.send(FAR)).verdict is V.DONE
    rooms = desk.world.plugin.rooms
    assert rooms is not None
    settled: list[int] = []
    monkeypatch.setattr(rooms.keyed.put_backs, "settle", lambda: settled.append(1))
    rooms.tidy(NOW)
    assert settled


def test_rows_of_which_only_some_could_be_written_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones stood in a file that was full then; the next file could not be made, and nothing was cancelled."""
    desk = Desk()
    sent = [desk.send(FAR + at, __DELAYKEY=f"k{at}") for at in range(3)]
    rooms = desk.world.plugin.rooms
    assert rooms is not None
    monkeypatch.setattr(rooms.past, "_rows_a_file", 2)

    def fault(operation: str, path: Path) -> None:
        if operation == "pwrite" and path.name == "0000000002" and path.parent.name == "cancelled":
            raise StoreError(f"{path}: the disk does not write")

    desk.world.disk.fault = fault
    query = PendingQuery(key_prefix="k")
    with pytest.raises(StoreError):
        desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, dry_run=False)
    assert [row_says(desk, offset) for offset in sent] == [False] * 3
    desk.world.disk.fault = None
    rooms.tidy(NOW)
    assert len(rooms.cancelled._owed) == 0
    assert [row_says(desk, offset) for offset in sent] == [False] * 3


@pytest.mark.pure  # it has a method of the store replaced
def test_a_start_does_not_believe_the_row_of_a_delivered_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cancel was refused, the row could not be taken back, it was delivered, and the process was killed."""
    desk = Desk()
    offset = desk.send(NOW + 1_000)
    refused(desk, offset, monkeypatch)
    desk.world.run(5_000)
    assert offset in desk.delivered()
    desk.world.disk.fault = None
    desk.world.store.flusher.sync_all()
    desk.world.kill()
    assert not row_says(desk, offset)
    monkeypatch.setattr(desk.world.store, "find_delivered", lambda _: None)  # as when the log has lost it
    desk.desk._changes._lookup = desk.world.store
    assert desk.change(offset).verdict is V.UNKNOWN


def test_what_no_row_was_written_of_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk that refuses cancels, too, each try was kept in memory, and written by the next one."""
    desk = Desk()
    offset = desk.send(FAR)
    full(desk, "cancelled")

    def no_room(*_: Any) -> Any:
        raise StoreFullError("journal: no room")

    monkeypatch.setattr(SpillStore, "cancel", no_room)
    with pytest.raises(StoreError):
        desk.change(offset)
    rooms = desk.world.plugin.rooms
    assert rooms is not None
    assert (len(rooms.cancelled._owed), len(rooms.cancelled._lacking)) == (0, 0)


@pytest.mark.parametrize("clears", [True, False])
def test_rows_of_a_write_that_failed_are_not_left_behind_later_ones(
    monkeypatch: pytest.MonkeyPatch, clears: bool
) -> None:
    """They got through, and nothing was cancelled. A start voids untrue rows from the end on, up to a true one."""
    desk = Desk()
    sent = [desk.send(FAR + at, __DELAYKEY=f"k{at}") for at in range(4)]
    disk = desk.world.disk

    def fault(operation: str, path: Path) -> None:
        if path.parent.name == "cancelled" and operation in ("pwrite", "truncate" if not clears else ""):
            raise StoreError(f"{path}: the disk does not write")

    disk.fault = fault
    monkeypatch.setattr(disk.rng, "randint", lambda _, most: most)
    with pytest.raises(StoreError):
        desk.desk.change_matching(PendingQuery(key_prefix="k"), PendingVerb.CANCEL, NOW, dry_run=False)
    monkeypatch.undo()
    disk.fault = None
    assert desk.change(sent[3]).verdict is V.DONE
    desk.world.store.flusher.sync_all()
    desk.world.kill()
    assert [row_says(desk, offset) for offset in sent] == [False] * 3 + [True]


def test_one_of_several_refused_cancels_that_comes_true_hides_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start voids untrue rows from the end on; the last one had come true meanwhile, without a row of its own."""
    desk = Desk()
    sent = [desk.send(FAR + at, __DELAYKEY=f"k{at}") for at in range(3)]

    query = PendingQuery(key_prefix="k")
    with journal_refuses(desk, "cancel_many", monkeypatch):
        desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, dry_run=False)
    assert desk.change(sent[2]).verdict is V.DONE  # no room for void rows, nor for a row of its own
    desk.world.disk.fault = None
    desk.world.store.flusher.sync_all()
    desk.world.kill()
    assert [row_says(desk, offset) for offset in sent] == [False, False, True]
