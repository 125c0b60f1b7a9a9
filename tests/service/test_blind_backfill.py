"""A record cannot be read, and not everything before it was read in its order: then everything is read, anew.

It may be a verdict. Its command then is decided again, unless a later one on the same entry has changed that.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.backfill import Backfill
from service.core.commands import CommandTable
from service.core.done_entries import DoneEntries
from service.core.lines import Line, LineKind
from service.core.progress import Picture
from service.core.shard import Shard
from service.core.states import OwnerState
from service.core.takeovers import Takeovers
from tests.service.cluster_world import resuming, story
from tests.service.rotten_verdicts import HarshRottenVerdicts, RottenVerdicts
from tests.service.test_bounded_takeover import owner_that_read, successor
from tests.service.test_simulation import FAIR
from tests.support.examples import seeds

BEGIN = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before")]


@pytest.mark.parametrize("kind", [RottenVerdicts, HarshRottenVerdicts])
@pytest.mark.parametrize("resumes", [False, True])
def test_no_command_is_carried_out_after_a_later_one(kind: type[RottenVerdicts], resumes: bool) -> None:
    rotten = anew = 0
    for seed in seeds(16):
        world = resuming(kind(seed)) if resumes else kind(seed)
        assert story(world) == {**FAIR, "again": 0}, f"{kind.__name__}, seed {seed}"
        rotten, anew = rotten + len(world.rotten), anew + world.begun_anew
    assert rotten, "nothing rotted"
    assert bool(anew) is resumes, "takeovers that begin anew are those that do not read everything"


def following(picture: Picture, lines: Sequence[Line], *, reads_all: bool = False) -> Shard:
    """A follower that has read these lines."""
    shard = Shard("broker-a/3")
    shard.reads_all = reads_all
    shard.load(picture, 0)
    shard.read(lines, lines[-1].offset + 1, 0)
    return shard


BROKEN = {"damaged": [Line(3, damaged=True), Line(4)], "missing": [Line(4)]}


@pytest.mark.parametrize("fate", BROKEN)
@pytest.mark.parametrize("older", ["not read", "read", "done"])
def test_what_may_be_a_verdict_on_an_older_command_makes_the_takeover_begin_anew(fate: str, older: str) -> None:
    """Somebody was told that the entry is moved. A standby may have left out what is done, or read it later."""
    lines = [*BEGIN, move(2)]
    _, record = owner_that_read(lines[2:])
    picture = Picture.of([record])
    shard = following(picture, [Line(3)])
    if older == "done":
        shard.backfill.skip_min = 1
    if older != "not read":
        shard.backfilled(lines, 3)
        assert shard.backfill.is_whole and not shard.needs_all
    shard.read([Line(at + 1, damaged=line.damaged) for at, line in enumerate(BROKEN[fate], 3)][:1], 5, 0)
    if fate == "missing":
        shard.read([], 6, 0)
    assert shard.needs_all and shard.state is OwnerState.FOLLOWER
    shard.take_over("me")
    shard.read([Line(6, LineKind.TAKEOVER, owner="me")], 7, 0)
    assert shard.state is OwnerState.READING_BACK and not shard.fence_is_over(10**6), "it never owns"
    anew = following(picture, [*lines, *BROKEN[fate]], reads_all=True)
    assert not anew.needs_all and anew.backfill.until == 0 and list(anew.commands.asked) == [2]


def test_what_an_owner_cannot_read_ends_it_and_the_next_one_reads_everything() -> None:
    _, record = owner_that_read([move(2)])
    shard = successor(Picture.of([record]), [])
    assert shard.state is OwnerState.READING_BACK
    shard.read([Line(4, damaged=True)], 5, 0)
    assert shard.state is OwnerState.FENCED and shard.needs_all


def owning(*lines: Line) -> Shard:
    """An owner that has read everything in its order. Its predecessor had read the first three."""
    _, record = owner_that_read(list(lines[2:3]))
    picture = Picture.of([record])
    picture.read = -1
    shard = successor(picture, list(lines))
    assert shard.fence_is_over(10**6)
    shard.settle(picture, 0)
    assert shard.record() is not None
    shard.saved()
    shard.end_seen(0, shard.read_to)
    shard.commands.changing.clear()  # the cache has the new due times
    return shard


def verdict(at: int, command: int, entry: int, what: str = "done", origin: int = -1, due_ms: int = 9000) -> Line:
    return Line(
        at, LineKind.VERDICT, due_ms, generation=1, about=command, entry=entry, verdict=what, origin=origin
    )  # fmt: skip


def move(at: int, about: int = 0, due_ms: int = 7000) -> Line:
    return Line(at, LineKind.MOVE, due_ms, about=about)


def test_a_later_verdict_settles_an_earlier_one_that_cannot_be_read() -> None:
    """Moved twice. The first verdict cannot be read, the second one can: the first move must not come once more."""
    shard = owning(*BEGIN, move(2), Line(3, damaged=True), move(4, due_ms=9000), verdict(5, 4, 0))
    assert shard.decide(2, 0, 9000) is None and 2 in shard.done
    assert not shard.commands.asked and not shard.commands.may_change(0)


@pytest.mark.parametrize("origin", [0, -1], ids=["names the first entry", "of an earlier version"])
@pytest.mark.parametrize("about", [0, 2])
def test_also_by_another_name_of_its_entry(origin: int, about: int) -> None:
    """The entry was rolled. Which one a command is about is known once the roll was read."""
    roll = Line(2, LineKind.ROLL, generation=1, about=0, entry=0)
    lines = (move(3, about), Line(4, damaged=True), move(5, 2 - about, due_ms=9000), verdict(6, 5, 2, origin=origin))
    shard = owning(*BEGIN, roll, *lines)
    assert shard.decide(3, 2, 9000) is None and 3 in shard.done


def test_also_by_the_name_of_a_roll_that_is_done() -> None:
    """It was rolled once more."""
    rolls = [Line(at, LineKind.ROLL, generation=1, about=at - 1, entry=3) for at in (4, 5)]
    older = [*BEGIN, Line(2, due_ms=5), Line(3, due_ms=5), *rolls, move(6, 4)]
    shard = owning(*older, Line(7, damaged=True), move(8, 3, due_ms=9000), verdict(9, 8, 5, origin=3))
    assert shard.decide(6, 5, 9000) is None and 6 in shard.done


@pytest.mark.parametrize("later", [verdict(5, 4, 0, "already"), verdict(5, 4, 1), Line(5)], ids=["same", "other", "no"])
def test_without_a_later_change_it_is_decided_again(later: Line) -> None:
    """Who sent it may have been told that its entry is moved."""
    shard = owning(*BEGIN, move(2), Line(3, damaged=True), move(4, max(0, later.entry), due_ms=9000), later)
    assert shard.commands.may_change(0) and shard.decide(2, 0, 5) is not None


def test_a_command_behind_what_cannot_be_read_keeps_its_verdict() -> None:
    """It has none yet: it was refused when the later one was decided, and that verdict was not stored."""
    shard = owning(*BEGIN, move(2), Line(3, damaged=True), move(4), move(5, due_ms=9000), verdict(6, 5, 0))
    assert list(shard.commands.asked) == [4] and shard.decide(4, 0, 9000) is not None


@pytest.mark.parametrize("kind", [LineKind.GET, LineKind.ASK])
def test_a_question_is_answered_all_the_same(kind: LineKind) -> None:
    shard = owning(*BEGIN, Line(2, kind, about=0), Line(3, damaged=True), move(4, due_ms=9000), verdict(5, 4, 0))
    assert list(shard.commands.asked) == [2]


def test_an_earlier_versions_verdict_on_a_roll_cancels_the_senders_entry_too() -> None:
    """It does not name that, and the roll is read later. The next owner may not read it at all."""
    roll = Line(2, LineKind.ROLL, generation=1, about=0, entry=0)
    _, record = owner_that_read([roll, Line(3, LineKind.CANCEL, about=0)])
    shard = successor(Picture.of([record]), [verdict(4, 3, 2, due_ms=0)])
    shard.settle(Picture.of([record]), 0)
    assert list(shard.commands.cancelled) == [2] and shard.record() is not None
    shard.saved()
    shard.backfilled([*BEGIN, roll, Line(3, LineKind.CANCEL, about=0)], 4)
    assert list(shard.commands.cancelled) == [2, 0]
    later = shard.record()
    assert later is not None and later.cancelled == (0,)


@given(st.lists(st.integers(1, 4), max_size=12), st.integers(0, 60), st.sets(st.integers(0, 50)))
def test_what_was_passed_over_is_known(gaps: list[int], until: int, finished: set[int]) -> None:
    backfill, done, missing = Backfill(0, 100), DoneEntries(), set()
    done.merge(0, finished)
    for gap in gaps:
        backfill.read([Line(backfill.at)], backfill.at + 1, DoneEntries(), Takeovers())
        missing |= set(range(backfill.at, backfill.at + gap))
        backfill.read([], backfill.at + gap, DoneEntries(), Takeovers())
    assert {at for at in range(120) if backfill.is_missing(at)} == missing
    assert backfill.misses_any(until, done) is any(at < until and at not in done for at in missing)


@given(st.sets(st.integers(0, 30)), st.integers(0, 32))
def test_the_last_takeover_before_an_offset_is_found(offsets: set[int], offset: int) -> None:
    takeovers = Takeovers()
    for at in sorted(offsets):
        takeovers.saw(at, at - at % 3, "me")
    assert takeovers.before(offset) == max((at - at % 3 for at in offsets if at < offset), default=-1)


def test_rolls_of_the_older_part_take_little_memory() -> None:
    """There may be hundreds of thousands of them."""
    backfill = Backfill(0, 1000)
    takeovers = Takeovers()
    takeovers.saw(0, 0, "before")
    rolls = [Line(at, LineKind.ROLL, generation=0, about=at - 1, entry=1) for at in range(2, 1000)]
    backfill.read([Line(0), Line(1), *rolls], 1000, DoneEntries(), takeovers)
    table = CommandTable()
    assert backfill.rolls.itemsize == 8
    backfill.hand_over(table, DoneEntries())
    assert table.place_of(1) == 999 and not backfill.rolls and not backfill.origins
