"""What an owner had judged stays judged if everything is read in its order, also if its records have rotted since."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.core.lines import Line, LineKind
from service.core.progress import Picture, read_record
from service.core.shard import MaySend, Shard
from tests.service.test_backfilling import MOVED_MS, QUEUE, due_of, ended, moved, served, service_of
from tests.service.test_bounded_takeover import moved as move_and_verdict
from tests.service.test_bounded_takeover import owner_that_read, successor
from tests.support.wait import until


def blotted(lines: list[Line], *offsets: int) -> list[Line]:
    return [Line(line.offset, damaged=True) if line.offset in offsets else line for line in lines]


def test_a_move_that_the_progress_has_holds_although_its_records_have_rotted() -> None:
    """A command and its verdict stand beside each other on the disk. Then one more record cannot be read."""
    lines = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), *move_and_verdict(2, 0, 7000), Line(4)]
    _, record = owner_that_read(lines[2:])
    picture = Picture.of([read_record(record.encode())])
    assert picture.moves == {0: 7000} and picture.resumed_at() == 5
    torn = blotted([*lines, Line(5), Line(6, LineKind.TAKEOVER, owner="me")], 2, 3, 5)
    shard = Shard("broker-a/3")
    shard.reads_all = True
    shard.load(picture, 0)
    shard.take_over("me")
    shard.read(torn, 7, 0)
    shard.settle(picture, 0)
    assert shard.record() is not None
    shard.saved()
    shard.end_seen(0, 7)
    assert shard.may_send(0, 5, 100, 100, ("T",)) is not MaySend.GO, "early"


def test_a_relative_move_that_the_progress_has_as_done_is_not_made_once_more() -> None:
    """The entry was rolled since: its copy has the later time already."""
    roll = Line(4, LineKind.ROLL, 6000, generation=1, about=0, entry=0)
    verdict = Line(3, LineKind.VERDICT, 6000, generation=1, about=2, entry=0, verdict="done")
    lines = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), Line(2, LineKind.MOVE, about=0, by_ms=1000)]
    lines += [verdict, roll]
    _, record = owner_that_read(lines[2:])
    shard = Shard("broker-a/3")
    shard.reads_all = True
    shard.load(Picture.of([read_record(record.encode())]), 0)
    shard.read(blotted([*lines, Line(5)], 3, 5), 6, 0)
    assert not shard.commands.asked and shard.commands.is_sure


def test_what_is_judged_later_is_not() -> None:
    """The move was read before that progress was written, and its verdict afterwards."""
    lines = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), *move_and_verdict(2, 0, 7000)]
    owner, record = owner_that_read(lines[2:3])
    shard = Shard("broker-a/3")
    shard.reads_all = True
    shard.load(Picture.of([read_record(record.encode())]), 0)
    owner.saved()
    owner.read(lines[3:], 4, 0)
    later = owner.record()
    assert later is not None
    shard.follow(Picture.of([record, later]))
    assert 2 in shard.done
    shard.read(blotted(lines, 3), 4, 0)
    assert list(shard.commands.asked) == [2] and shard.commands.may_change(0)


ENTRY = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before")]


def verdict(entry: int, due_ms: int = 0, origin: int = 0, at: int = 5) -> list[Line]:
    """The second command of the queue, and its verdict."""
    kind = LineKind.MOVE if due_ms else LineKind.CANCEL
    found = Line(at, LineKind.VERDICT, due_ms, generation=1, about=4, entry=entry, verdict="done", origin=origin)
    return [Line(4, kind, due_ms, about=0), found]


def test_a_message_is_cancelled_also_if_its_roll_has_rotted() -> None:
    """The verdict names the roll and the sender's entry. That was not done, as the roll was not read, and was sent."""
    shard = successor(Picture(), [*ENTRY, Line(2, damaged=True), Line(3), *verdict(2)])
    assert 0 in shard.done and list(shard.commands.cancelled) == [2, 0]


def test_also_if_it_was_rolled_before_that() -> None:
    """Then it waits at its first roll."""
    roll = Line(2, LineKind.ROLL, generation=1, about=0, entry=0)
    shard = successor(Picture(), [*ENTRY, roll, Line(3, damaged=True), *verdict(3)])
    assert 2 in shard.done and list(shard.commands.cancelled) == [3, 0, 2]


def test_a_message_is_moved_also_if_its_roll_has_rotted() -> None:
    shard = successor(Picture(), [*ENTRY, Line(2, damaged=True), Line(3), *verdict(2, 9000)])
    assert shard.commands.changing == {2: 9000, 0: 9000} and 0 not in shard.done


def test_a_roll_that_names_another_entry_ends_none() -> None:
    """A digit of its property has rotted, which no checksum covers, and its verdict repeats it."""
    roll = Line(3, LineKind.ROLL, generation=1, about=0, entry=2)
    shard = successor(Picture(), [*ENTRY, Line(2, due_ms=5), roll, *verdict(3, origin=2)])
    assert 3 in shard.done and 2 not in shard.done


@pytest.mark.parametrize("origin", [5, 9, 1 << 40])
def test_a_verdict_that_names_a_later_entry_is_no_verdict(origin: int) -> None:
    """It ended every owner that read it, or an entry that was sent later."""
    later = [Line(at) for at in range(6, 10)]
    shard = successor(Picture(), [*ENTRY, Line(2), Line(3), *verdict(2, origin=origin), *later])
    assert not shard.commands.cancelled and 2 not in shard.done and 9 not in shard.done
    assert list(shard.commands.asked) == [4]


def test_also_with_a_real_owner(tmp_path: Path) -> None:
    async def story() -> None:
        queues = await served()
        for at, text in ((200, f"move\x02TW_ABOUT\x015\x02TW_DELIVER_MS\x01{MOVED_MS}"), (201, "verdict")):
            queues.logs[QUEUE][at].properties, queues.logs[QUEUE][at].body = f"TW_KIND\x01{text}\x02", b"-"
        _, at = await moved(queues, 8, MOVED_MS)
        queues.rotten |= {200, 201, at}
        queues.gate.set()
        service = service_of(queues, tmp_path)
        while await ended(service):
            pass
        owner = service._owners[QUEUE]
        await until(lambda: owner.shard.backfill.is_whole and owner.is_filled and not owner.shard.commands.changing)
        assert due_of(owner, 5) == MOVED_MS
        run = service._runs[QUEUE]
        owner.leave()
        await run

    asyncio.run(story())
