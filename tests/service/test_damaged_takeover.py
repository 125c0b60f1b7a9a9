"""Takeover records that are damaged: the own one is written again, and nothing that its owner wrote is void."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.lease import LEASE_MS
from service.core.lines import Line, LineKind
from service.core.progress import Picture, ProgressRecord
from service.core.shard import Shard
from service.core.states import OwnerState
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


def taking_over(picture: Picture, lines: list[Line], mono_ms: int = 0) -> tuple[Shard, list[int]]:
    """A successor that has read these lines, and then its own record; the entries that wait."""
    shard = Shard("broker-a/3")
    shard.take_over("me")
    shard.load(picture, 0)
    end = len(lines)
    waiting = shard.read([*lines, Line(end, LineKind.TAKEOVER, owner="me")], end + 1, mono_ms)
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
    owner.read(lines[2:], 5, 0)
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


def test_an_owner_is_fenced_by_what_was_written_under_a_damaged_takeover() -> None:
    shard, _ = taking_over(Picture(), [])
    shard.settle(Picture(), 0)
    assert shard.record() is not None
    shard.saved()
    shard.end_seen(0, 1)
    shard.read([Line(1, damaged=True)], 2, 0)
    assert shard.state is OwnerState.OWNING, "a damaged entry is no takeover"
    shard.read([Line(2, LineKind.ROLL, generation=1, about=0, entry=0)], 3, 0)
    assert shard.state is OwnerState.FENCED


def test_an_owner_that_did_not_look_for_long_takes_a_damaged_record_for_a_takeover() -> None:
    """Who wrote it may have read it while it was whole, and deliver: two owners, until one writes something."""
    shard, _ = taking_over(Picture(), [])
    shard.settle(Picture(), 0)
    assert shard.record() is not None
    shard.saved()
    shard.end_seen(0, 1)
    shard.read([Line(1, damaged=True)], 2, LEASE_MS)
    assert shard.state is OwnerState.FENCED


@given(st.lists(st.sampled_from(["entry", "takeover", "roll", "late roll"]), max_size=12), st.integers(0, 12))
def test_one_damaged_takeover_changes_nothing_that_was_written_under_it(kinds: list[str], which: int) -> None:
    """Rolls of the last owner count, those of one before it do not; the same if one takeover record is damaged.

    If nothing was written under it, nobody can tell it from an entry, and what its predecessor wrote late counts.
    """
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
    chosen = [line.offset for line in lines if line.kind is LineKind.TAKEOVER]
    hurt = chosen[which % len(chosen)] if chosen else -1
    torn = [Line(line.offset, damaged=True) if line.offset == hurt else line for line in lines]
    _, whole = taking_over(Picture(), lines)
    _, waiting = taking_over(Picture(), torn)
    assert [at for at in waiting if at != hurt] == whole
