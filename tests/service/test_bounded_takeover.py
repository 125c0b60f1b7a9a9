"""A takeover does not read all that waits: stories in the simulated cluster, planted bugs, and how much is read."""

from __future__ import annotations

import json
import zlib
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import commands
from service.core.backfill import Backfill
from service.core.commands import CommandTable, CommandVerdict
from service.core.done_entries import DoneEntries
from service.core.lines import Line, LineKind
from service.core.progress import Picture, ProgressRecord, read_record
from service.core.shard import READ_ON_MAX, Shard
from service.core.states import OwnerState
from tests.service.cluster_world import HarshWorld, Node, World, assign, resuming, story
from tests.service.planted_backfill import BACKFILL_BUGS
from tests.service.rotten_verdicts import RottenVerdicts
from tests.service.rotten_world import RottenWorld, TornWorld
from tests.service.test_simulation import FAIR
from tests.support.examples import seeds

STORIES = 150
"""Most stories that a bug may take to be found."""
FIRST_SEED = 123_310_000
FIRST = {"owned blind": 124_152_041}
"""Stories before this one did not show it when it was planted."""
WAITING = 800
SINCE = 100


@pytest.mark.parametrize("kind", [World, HarshWorld, RottenWorld, TornWorld])
def test_nothing_is_lost_early_or_twice(kind: type[World]) -> None:
    early = 0
    for seed in seeds(16):
        world = resuming(kind(seed))
        assert story(world) == FAIR, f"{kind.__name__}, seed {seed}"
        early += world.sent_early
    assert early or kind in (RottenWorld, TornWorld), "nothing was delivered before everything was read"


@pytest.mark.parametrize("name", BACKFILL_BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    shard, violation = BACKFILL_BUGS[name]
    kind = HarshWorld if "roll" in name or "decided" in name else RottenVerdicts if "blind" in name else World
    first = FIRST.get(name, FIRST_SEED)
    for seed in range(first, first + STORIES):
        world = resuming(kind(seed, shard))
        world.piece, world.hurry = min(world.piece, 16), min(world.hurry, 0.3)
        if story(world)[violation]:
            return
    raise AssertionError(f"{name!r} was not found by {violation!r} in {STORIES} stories")


def first_delivery(waiting: int, *, resumes: bool) -> tuple[int, int]:
    """Records that a new owner has read before its first delivery, and how many it reads in the end."""
    world = World(0)
    world.resumes, world.faulty, world.quiet = resumes, False, True
    node = Node(world, "first")
    assign(world, lying=False)
    for _ in range(waiting):
        world.send(10**9)
    world.run(20_000)
    assert node.shard is not None and node.shard.state is OwnerState.OWNING and node.shard.read_to == waiting + 1
    for _ in range(SINCE):
        world.send(10**9)
    node.dead = True
    world.send(world.now)
    second = Node(world, "second")
    read: set[int] = set()
    pulled = world.pulled

    def noted(begin: int) -> object:
        found = pulled(begin)
        read.update(line.offset for line in found[0])
        return found

    world.pulled = noted  # type: ignore[method-assign, assignment]
    world.hurry = 0.0
    world.faulty = True  # only so that the backfill waits
    world.lost_requests = world.lost_answers = 0.0
    assign(world, lying=False)
    while not world.copies and world.now < 600_000:
        world.run(world.now + 100)
    count = len(read)
    world.faulty = False
    world.run(world.now + 100_000)
    assert second.shard is not None and second.shard.backfill.is_whole
    return count, len(second.pending)


@pytest.mark.parametrize("waiting", [10, WAITING])
def test_the_first_delivery_after_a_takeover_does_not_wait_for_all_that_waits(waiting: int) -> None:
    """It reads what came since the last progress. The rest is there in the end."""
    read, pending = first_delivery(waiting, resumes=True)
    assert read <= SINCE + 10 and pending == waiting + SINCE


def test_without_that_it_reads_everything() -> None:
    """As with the progress of an earlier program."""
    read, pending = first_delivery(WAITING, resumes=False)
    assert read >= WAITING and pending == WAITING + SINCE


def test_what_is_done_is_left_out() -> None:
    """A message due in a year makes no new owner read a year."""
    shard = Shard("broker-a/3")
    shard.done.merge(1, range(10, 9000))
    shard.backfill = Backfill(1, 9010)
    assert shard.backfilled([], 9) == [] and shard.backfill.at == 9
    assert shard.backfilled([], 10) == [] and shard.backfill.at == 9000


@given(st.sets(st.integers(0, 80)), st.integers(0, 90), st.integers(0, 90))
def test_the_next_pending_one_is_the_next_pending_one(offsets: set[int], first: int, until: int) -> None:
    done = DoneEntries(3)
    done.merge(3, offsets)
    assert done.next_pending(first, until) == next((at for at in range(first, until) if at not in done), until)


# ---------------------------------------------------------------------------------------------- what the progress says


def owner_that_read(lines: list[Line]) -> tuple[Shard, ProgressRecord]:
    """An owner, its takeover record behind entry 0, and its first progress after it has read these lines."""
    owner = Shard("broker-a/3")
    owner.take_over("before")
    owner.load(Picture(), 0)
    owner.read([Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before")], 2, 0)
    owner.settle(Picture(), 0)
    owner.read(lines, len(lines) + 2, 0)
    record = owner.record()
    assert record is not None
    return owner, record


def moved(at: int, entry: int, due_ms: int) -> list[Line]:
    """A move and its verdict."""
    return [
        Line(at, LineKind.MOVE, due_ms, about=entry),
        Line(at + 1, LineKind.VERDICT, due_ms, generation=1, about=at, entry=entry, verdict="done"),
    ]


def successor(picture: Picture, lines: list[Line]) -> Shard:
    """It has read these lines, and its own record behind them."""
    shard = Shard("broker-a/3")
    shard.load(picture, 0)
    shard.take_over("me")
    end = lines[-1].offset + 1 if lines else shard.read_from
    shard.read([*lines, Line(end, LineKind.TAKEOVER, owner="me")], end + 1, 0)
    return shard


def test_moves_are_told_once_and_all_of_them_in_a_snapshot() -> None:
    owner, first = owner_that_read([Line(2, due_ms=6), *moved(3, 0, 7000), *moved(5, 2, 8000)])
    assert first.moves == {0: 7000, 2: 8000} and first.read == 7 and first.owner == "before"
    owner.saved()
    owner.read(moved(7, 0, 9000), 9, 0)
    change = owner.record()
    assert change is not None and change.moves == {0: 9000} and change.read == 9
    picture = Picture.of([read_record(record.encode()) for record in (first, change)])
    assert picture.moves == {0: 9000, 2: 8000} and picture.resumed_at() == 9
    owner.saved()
    owner.renew_chain()
    owner.read([], 9, 0)
    whole = owner.record()
    assert whole is not None and whole.moves == {0: 9000, 2: 8000}


def test_with_more_moves_than_are_named_everything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MOVES_MAX", 2)
    entries = [Line(at, due_ms=6) for at in range(2, 10)]
    lines = [line for at in range(8) for line in moved(10 + 2 * at, at + 2, 7000 + at)]
    owner, first = owner_that_read([*entries, *lines])
    assert first.read == -1 and first.moves == {}
    owner.saved()
    owner.renew_chain()
    owner.read(moved(26, 2, 1), 28, 0)
    later = owner.record()
    assert later is not None and later.read == -1 and later.moves == {}
    assert Picture.of([first, later]).resumed_at() == -1


def test_a_move_that_cannot_be_read_in_one_record_makes_the_rest_of_its_chain_say_nothing() -> None:
    """The later records have the later moves only."""
    owner, first = owner_that_read([])
    owner.saved()
    owner.read(moved(2, 0, 7000), 4, 0)
    second = owner.record()
    owner.saved()
    owner.read([Line(4)], 5, 0)
    owner._finish(4)
    third = owner.record()
    assert second is not None and third is not None and third.read == 5
    assert Picture.of([first, second, third]).resumed_at() == 5
    second.read = -1
    assert Picture.of([first, second, third]).resumed_at() == -1


def test_who_does_not_know_a_verdict_says_so() -> None:
    """A record could not be read: a verdict that somebody else has read. Until it is given again, nothing is named."""
    lines = [Line(2, LineKind.MOVE, 7000, about=0), Line(3, damaged=True)]
    shard = successor(Picture(), [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), *lines])
    shard.settle(Picture(), 0)
    record = shard.record()
    assert record is not None and record.read == -1


def test_a_record_that_was_passed_over_is_read_again() -> None:
    """It may be a roll: then its first copy must not be delivered from the older part."""
    shard = successor(Picture(), [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), Line(3)])
    shard.settle(Picture(), 0)
    record = shard.record()
    assert record is not None and record.read == -1
    shard.saved()
    shard._finish(2)
    later = shard.record()
    assert later is not None and later.read == 5


def test_a_roll_that_proves_its_takeover_counts_in_the_older_part() -> None:
    """The takeover record itself had rotted when it was read."""
    lines = [Line(0, due_ms=5), Line(1, damaged=True), Line(2, LineKind.ROLL, generation=1, about=0, entry=0)]
    first = successor(Picture(), lines)
    first._finish(1)  # the damaged record was rejected
    first.settle(Picture(), 0)
    record = first.record()
    assert record is not None and record.read == 4 and record.takeovers == {2: 1, 3: 3}
    shard = successor(Picture.of([record]), [])
    assert [line.offset for line in shard.backfilled(lines, 4)] == [2] and shard.commands.place_of(0) == 2


def test_a_cancelled_roll_is_known_by_its_first_name_before_the_roll_is_read() -> None:
    """Its verdict is read in the newer part. A second cancel was answered: too late."""
    roll = Line(2, LineKind.ROLL, generation=1, about=0, entry=0)
    _, record = owner_that_read([roll, Line(3, LineKind.CANCEL, about=0)])
    verdict = Line(4, LineKind.VERDICT, generation=1, about=3, entry=2, verdict="done", origin=0)
    shard = successor(Picture.of([record]), [verdict])
    assert list(shard.commands.cancelled) == [2, 0]


def test_a_cancelled_message_is_known_although_not_all_of_its_rolls_are() -> None:
    """A later roll stands where everything is done, and was left out. A move was answered: too late."""
    table, done = CommandTable(), DoneEntries(9)
    table.learn([7, 0], 0)
    table.join([], array("q", [3]), array("q", [0]))
    assert table.judged(Line(9, LineKind.MOVE, 5, about=0), table.place_of(0), done, 0) is CommandVerdict.CANCELLED


def test_progress_is_written_when_much_was_read_although_nothing_is_done() -> None:
    """Else the next owner would read all of it before it delivers."""
    owner, _ = owner_that_read([])
    owner.saved()
    owner.aim(("T", "broker-a", 0), 0)
    assert owner.record() is not None
    owner.saved()
    owner.read([Line(at, due_ms=10**9) for at in range(2, READ_ON_MAX + 1)], READ_ON_MAX + 1, 0)
    assert not owner.is_changed
    owner.read([Line(READ_ON_MAX + 1, due_ms=10**9)], READ_ON_MAX + 2, 0)
    assert owner.is_changed
    record = owner.record()
    assert record is not None and record.read == READ_ON_MAX + 2
    owner.saved()
    assert not owner.is_changed


def changed(record: ProgressRecord, **fields: Any) -> bytes:
    """The record with other fields; None leaves one out."""
    line, _, packed = record.encode().partition(b"\n")
    head = {name: value for name, value in {**json.loads(line), **fields}.items() if value is not None}
    return json.dumps(head).encode() + b"\n" + packed


@pytest.mark.parametrize(
    "fields",
    [
        {"read": None},
        {"read": -1},
        {"read": 1},
        {"read": True},
        {"read": "7"},
        {"read": 7.5},
        {"read": 1 << 62},
        {"moves": None},
        {"moves": 7},
        {"moves": {"0": 5}},
        {"moves": [[0]]},
        {"moves": [[0, "5"]]},
        {"moves": [[0, -5]]},
        {"moves": [[True, 5]]},
        {"owner": None},
        {"owner": 5},
        {"since": 1},
        {"takeovers": []},
        {"takeovers": [[0, 0]]},
        {"low": 6, "since": 6},
    ],
)
def test_progress_that_makes_no_sense_there_means_that_everything_is_read(fields: dict[str, Any]) -> None:
    """Also that of an earlier program. The rest of the record counts."""
    _, record = owner_that_read([Line(2)])
    record.read = 3
    found = read_record(changed(record, **fields))
    assert found.generation == 1
    assert Picture.of([read_record(record.encode())]).resumed_at() == 3
    assert Picture.of([found]).resumed_at() == -1


def test_an_earlier_program_reads_the_rest_of_the_record() -> None:
    """It knows these fields, and this format; what it does not know it leaves alone."""
    _, record = owner_that_read([Line(2)])
    line, _, packed = record.encode().partition(b"\n")
    head = json.loads(line)
    assert head["v"] == 1 and zlib.decompress(packed) is not None
    assert {"shard", "generation", "sequence", "low", "lowGeneration", "tails", "doubts", "snapshot"} <= head.keys()


def test_too_many_moves_are_forgotten_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of entries that are done do not count."""
    monkeypatch.setattr(commands, "MOVES_MAX", 2)
    table, done = CommandTable(), DoneEntries()
    for entry in range(8):
        verdict = Line(100 + entry, LineKind.VERDICT, 9, generation=1, about=50, entry=entry, verdict="done")
        table.saw_verdict(verdict, done)
        done.add(entry)
    assert table.is_sure and table.moves_to_save(done, whole=True) == {}
