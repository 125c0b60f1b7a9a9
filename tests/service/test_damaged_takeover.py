"""Takeover records that are damaged: the own one is written again, and nothing that its owner wrote is void."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.commands import CommandVerdict
from service.core.lease import LEASE_MS
from service.core.lines import Line, LineKind
from service.core.progress import Picture, ProgressRecord, read_record
from service.core.shard import MaySend, Shard
from service.core.states import OwnerState
from service.core.takeovers import TAKEOVERS_MAX
from service.link.cluster import ClusterLink, Pull
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from service.running.takeover import TakeoverError
from timewheel_client.consuming.pulled import BadRecord


def test_an_owner_whose_record_is_damaged_says_so_and_ends(tmp_path: Path) -> None:
    """It would wait for ever: it owns from where it reads its record. The next try writes another one."""

    async def work() -> None:
        link = ClusterLink("127.0.0.1:1", "TIMEWHEEL")
        queue = ("TIMEWHEEL", "broker-a", 3)
        owner = Owner(link, queue, "me", tmp_path / "cache", 1000, InstanceCounts())
        owner.shard.take_over("me")
        owner.claimed_at = 5
        owner._take(Pull([], 5))
        with pytest.raises(TakeoverError, match=r"broker-a/3: .* offset 5 .* damaged .* broker-a"):
            owner._take(Pull([], 6, bad=(BadRecord(b"rotten", "a wrong CRC", 5, 99),)))

    asyncio.run(work())


def taking_over(
    picture: Picture, lines: list[Line], mono_ms: int = 0, size: int | None = None
) -> tuple[Shard, list[int]]:
    """A successor that has read these lines, and then its own record; the entries that wait."""
    shard = Shard("broker-a/3")
    shard.take_over("me")
    shard.load(picture, 0)
    end = len(lines) if size is None else size
    waiting = shard.read([*lines, Line(end, LineKind.TAKEOVER, owner="me")], end + 1, mono_ms)
    waiting += shard.backfilled(lines, end)
    return shard, [line.offset for line in waiting]


def story(damaged: bool) -> tuple[Picture, list[Line]]:
    """Entry 0, an owner's record at 1, entry 2, 0 rolled to 3, released; its progress."""
    second = Line(1, damaged=True) if damaged else Line(1, LineKind.TAKEOVER, owner="before")
    roll = Line(3, LineKind.ROLL, generation=1, about=0, entry=0)
    lines = [Line(0), second, Line(2), roll, Line(4, LineKind.RELEASE, generation=1)]
    owner = Shard("broker-a/3")
    owner.take_over("before")
    owner.load(Picture(), 0)
    owner.read([lines[0], Line(1, LineKind.TAKEOVER, owner="before")], 2, 0)
    owner.settle(Picture(), 0)
    owner.read(lines[2:4], 4, 0)
    record = owner.record()
    assert isinstance(record, ProgressRecord)
    return Picture.of([record]), lines


@pytest.mark.parametrize("damaged", [False, True])
def test_a_copy_written_under_a_damaged_takeover_waits(damaged: bool) -> None:
    """The first copy is done, by the progress: were the second one void, the message would be lost."""
    picture, lines = story(damaged)
    shard, waiting = taking_over(picture, lines)
    assert 0 in shard.done and set(waiting) == {2, 3}
    assert shard.fence_is_over(0), "its release counts, too"


def owning() -> Shard:
    shard, _ = taking_over(Picture(), [])
    shard.settle(Picture(), 0)
    assert shard.record() is not None
    shard.saved()
    shard.end_seen(0, 1)
    return shard


@pytest.mark.parametrize("mono_ms", [0, LEASE_MS])
@pytest.mark.parametrize("lines", [[Line(1, damaged=True)], [], [Line(2)]], ids=["damaged", "missing", "gap"])
def test_an_owner_takes_what_cannot_be_read_for_a_takeover(lines: list[Line], mono_ms: int) -> None:
    """Who wrote it may have read it while it was whole, and deliver: two owners, until one writes something."""
    shard = owning()
    shard.read(lines, max((line.offset for line in lines), default=1) + 1, mono_ms)
    assert shard.state is OwnerState.FENCED and shard.blind_at == 1


def test_what_names_a_generation_that_is_none_counts_for_nobody() -> None:
    """A stranger's: what the owner has told its senders must not become void by it."""
    shard = owning()
    shard.read([Line(1), Line(2, LineKind.RELEASE, generation=1), Line(3, LineKind.RELEASE, generation=9)], 4, 0)
    assert shard.state is OwnerState.OWNING and shard.takeovers.generation == 0


def test_who_was_stopped_while_it_took_over_does_not_go_on_beside_a_later_owner() -> None:
    """Its snapshot would stand behind that of the later one, and say what is not true any more."""
    first, _ = taking_over(Picture(), [])
    assert first.agrees(Picture())
    later, _ = taking_over(Picture(), [Line(0, LineKind.TAKEOVER, owner="first")])
    later.settle(Picture(), 0)
    record = later.record()
    assert record is not None
    assert not first.agrees(Picture.of([record]))


@pytest.mark.parametrize("where", [1, 2, 3])
def test_no_release_counts_beside_what_cannot_be_read(where: int) -> None:
    """Somebody may have taken the shard over there, and deliver: without the wait there would be two."""
    lines = [Line(0, LineKind.TAKEOVER, owner="before"), Line(1), Line(2, LineKind.RELEASE, generation=0), Line(3)]
    assert taking_over(Picture(), lines)[0].fence_is_over(0)
    lines[where] = Line(where, damaged=True)
    assert not taking_over(Picture(), lines)[0].fence_is_over(0)
    del lines[where]
    shard = Shard("broker-a/3")
    shard.take_over("me")
    shard.load(Picture(), 0)
    shard.read([*lines, Line(4, LineKind.TAKEOVER, owner="me")], 5, 0)
    assert shard.state is OwnerState.READING_BACK and not shard.fence_is_over(0)


def rotten(line: Line, how: str) -> list[Line]:
    """What may be read of a takeover record some time later."""
    return {"damaged": [Line(line.offset, damaged=True)], "missing": [], "entry": [Line(line.offset)]}[how]


@given(
    st.lists(st.sampled_from(["entry", "takeover", "roll", "late roll"]), max_size=12),
    st.lists(st.sampled_from(["whole", "damaged", "missing", "entry"]), min_size=25, max_size=25),
)
def test_what_an_owner_has_counted_counts_for_all_after_it(kinds: list[str], fates: list[str]) -> None:
    """Whatever becomes of the takeover records: the progress has noted them."""
    lines = queue_of(kinds)
    owner, waits = taking_over(Picture(), lines)
    owner.settle(Picture(), 0)
    record = owner.record()
    assert record is not None
    picture = Picture.of([read_record(record.encode())])
    lines.append(Line(len(lines), LineKind.TAKEOVER, owner="me"))
    torn: list[Line] = []
    for line, fate in zip(lines, fates, strict=False):
        torn += [line] if line.kind is not LineKind.TAKEOVER or fate == "whole" else rotten(line, fate)
    shard, waiting = Shard("broker-a/3"), []
    shard.load(picture, 0)
    waiting = [line.offset for line in (*shard.read(torn, len(lines), 0), *shard.backfilled(torn, len(lines)))]
    assert sorted(waiting) == [at for at in waits if at >= min(picture.low, picture.generation)]
    assert shard.takeovers.generation == owner.generation and shard.agrees(picture)


@given(st.lists(st.sampled_from(["entry", "takeover", "roll"]), max_size=12), st.data())
def test_who_has_read_other_takeovers_than_the_owner_reads_anew(kinds: list[str], data: st.DataObject) -> None:
    """A standby has read a record before it rotted, or after; the owner the other way round."""
    lines = queue_of(["takeover", *kinds])
    which = data.draw(st.sampled_from([line for line in lines if line.kind is LineKind.TAKEOVER]))
    how = data.draw(st.sampled_from(["damaged", "missing", "entry"]))
    torn = [one for line in lines for one in (rotten(line, how) if line is which else [line])]
    for mine, others in ((lines, torn), (torn, lines)):
        owner, _ = taking_over(Picture(), others, size=len(lines))
        owner.settle(Picture(), 0)
        record = owner.record()
        assert record is not None
        picture = Picture.of([record])
        standby = Shard("broker-a/3")
        standby.load(Picture(), 0)
        standby.read(mine, len(lines), 0)
        mine_too = {at: number for at, number in standby.takeovers._rows if at < owner.generation}
        same = view(picture.since, picture.takeovers, owner) == view(picture.since, mine_too, owner)
        assert standby.agrees(picture) is same
        standby = Shard("broker-a/3")
        standby.load(picture, 0)
        standby.read(mine, len(lines), 0)
        assert standby.agrees(picture)


def of_an_earlier_program(record: ProgressRecord) -> Picture:
    """Progress that does not say how far its owner has read, nor what was moved."""
    picture = Picture.of([record])
    picture.read = -1
    return picture


def test_a_move_that_somebody_was_told_is_not_forgotten_with_its_verdict() -> None:
    """Early: the entry would go at its first due time. Who reads it next decides about the command once more."""
    move = Line(2, LineKind.MOVE, 9000, about=0)
    verdict = Line(3, LineKind.VERDICT, 9000, generation=1, about=2, entry=0, verdict="done")
    lines = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), move, verdict]
    owner, _ = taking_over(Picture(), lines)
    assert owner.commands.changing == {0: 9000}
    owner.settle(Picture(), 0)
    record = owner.record()
    assert record is not None
    for picture in (Picture(), of_an_earlier_program(record)):
        shard, _ = taking_over(picture, [*lines[:3], Line(3, damaged=True)])
        shard.settle(picture, 0)
        assert shard.record() is not None
        shard.saved()
        shard.end_seen(0, 5)
        assert shard.may_send(0, 5, 100, 100, ("T",)) is MaySend.DOUBT
        assert shard.roll(0, 5) is None, "its copy would have the first due time"
        decision = shard.decide(2, 0, 5)
        assert decision is not None and decision.verdict is CommandVerdict.DONE
        assert shard.may_send(0, 5, 100, 100, ("T",)) is MaySend.DOUBT
        again = Line(5, LineKind.VERDICT, 9000, generation=shard.generation, about=2, entry=0, verdict="done")
        shard.read([again], 6, 100)
        assert shard.commands.changing == {0: 9000}
        shard.commands.changing.clear()
        assert shard.may_send(0, 9000, 100, 100, ("T",)) is MaySend.NOT_DUE
        assert shard.may_send(0, 9000, 9000, 100, ("T",)) is MaySend.GO


@pytest.mark.parametrize("rotten", [4, 5])
def test_of_two_moves_the_last_one_holds_whichever_verdict_rots(rotten: int) -> None:
    """To decide about the first one again would take back the second one."""
    moves = [Line(at, LineKind.MOVE, due_ms, about=0) for at, due_ms in ((2, 7000), (3, 9000))]
    verdicts = [
        Line(at + 2, LineKind.VERDICT, line.due_ms, generation=1, about=at, entry=0, verdict="done")
        for at, line in enumerate(moves, 2)
    ]
    lines = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), *moves, *verdicts]
    owner, _ = taking_over(Picture(), lines)
    owner.settle(Picture(), 0)
    record = owner.record()
    assert record is not None
    lines[rotten] = Line(rotten, damaged=True)
    for picture in (Picture(), of_an_earlier_program(record)):
        shard, _ = taking_over(picture, lines)
        asked = [] if rotten == 4 else [3]
        assert list(shard.commands.asked) == asked
        assert shard.commands.changing == {0: 9000 if rotten == 4 else 7000}
        assert shard.commands.may_change(0) is bool(asked)
    shard, _ = taking_over(Picture.of([record]), lines)
    assert shard.commands.changing == {0: 9000} and not shard.commands.may_change(0), "the progress has the move"


def test_an_answer_about_an_entry_is_no_verdict_on_its_moves() -> None:
    """It says ``pending``, at the later time; the move itself is still to be decided again."""
    lines = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), Line(2, LineKind.MOVE, 9000, about=0)]
    lines += [Line(3, LineKind.GET, about=0), Line(4, damaged=True)]
    lines.append(Line(5, LineKind.VERDICT, 9000, generation=1, about=3, entry=0, verdict="pending"))
    shard, _ = taking_over(Picture(), lines)
    assert list(shard.commands.asked) == [2] and shard.commands.may_change(0)


def view(since: int, rows: dict[int, int], owner: Shard) -> tuple[list[int], list[tuple[int, int]]]:
    """Which generation counts at an offset, and what counts from there on up to the owner's own record."""
    ordered = sorted(rows.items())
    return [number for at, number in ordered if at < since][-1:], [
        row for row in ordered if since <= row[0] < owner.generation
    ]


def test_more_takeovers_than_a_snapshot_names() -> None:
    """The last ones are named, and from where on these are all."""
    count = TAKEOVERS_MAX + 10
    lines = [Line(0), *(Line(at, LineKind.TAKEOVER, owner=str(at)) for at in range(1, count))]
    owner, _ = taking_over(Picture(), lines)
    owner.settle(Picture(), 0)
    record = owner.record()
    assert record is not None and len(record.takeovers) == TAKEOVERS_MAX + 1
    picture = Picture.of([read_record(record.encode())])
    for how in ("missing", "damaged"):
        shard = Shard("broker-a/3")
        shard.load(picture, 0)
        shard.read([*lines[:20], *(one for line in lines[20:] for one in rotten(line, how))], count + 1, 0)
        assert shard.agrees(picture) and shard.takeovers.generation == count


def queue_of(kinds: list[str]) -> list[Line]:
    lines: list[Line] = []
    takeovers = [-1, -1]
    for kind in kinds:
        at = len(lines)
        if kind == "takeover":
            lines.append(Line(at, LineKind.TAKEOVER, owner=str(at)))
            takeovers.append(at)
            lines.append(Line(at + 1, LineKind.ROLL, generation=at, about=0, entry=0))
        elif kind == "entry":
            lines.append(Line(at))
        else:
            generation = takeovers[-1 if kind == "roll" else -2]
            lines.append(Line(at, LineKind.ROLL, generation=generation, about=0, entry=0))
    return lines


@given(st.lists(st.sampled_from(["entry", "takeover", "roll", "late roll"]), max_size=12), st.integers(0, 12))
def test_one_damaged_takeover_changes_nothing_that_was_written_under_it(kinds: list[str], which: int) -> None:
    """Rolls of the last owner count, those of one before it do not; the same if one takeover record is damaged.

    If nothing was written under it, nobody can tell it from an entry, and what its predecessor wrote late counts.
    """
    lines = queue_of(kinds)
    chosen = [line.offset for line in lines if line.kind is LineKind.TAKEOVER]
    hurt = chosen[which % len(chosen)] if chosen else -1
    torn = [Line(line.offset, damaged=True) if line.offset == hurt else line for line in lines]
    _, whole = taking_over(Picture(), lines)
    _, waiting = taking_over(Picture(), torn)
    assert [at for at in waiting if at != hurt] == whole
