"""The core of a shard's ownership: the table of states, leases, what counts for whom, and what may be sent."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.done_entries import DoneEntries
from service.core.lease import Timing
from service.core.lines import Line, LineKind
from service.core.progress import Doubt, Picture, ProgressRecord, read_record
from service.core.shard import SKEW_MS, MaySend, Shard
from service.core.states import MOVES, IllegalStateError, OwnerState, moved
from service.running.takeover import TakeoverError, need_followed
from tests.service.target_world import owned_shard

QUEUE = ("orders", "broker-a", 0)
OTHER = ("orders", "broker-b", 0)
TOPICS = ("orders",)


def takeover(offset: int, owner: str) -> Line:
    return Line(offset, LineKind.TAKEOVER, owner=owner)


def owning(lines: list[Line] | None = None, picture: Picture | None = None) -> Shard:
    """A shard that has taken over behind these lines, at monotonic time 0, and may deliver from 3200 ms on."""
    lines = lines or []
    shard = Shard("broker-e/0")
    shard.take_over("me")
    shard.load(picture or Picture(), 0)
    shard.read([*lines, takeover(len(lines), "me")], len(lines) + 1, 0)
    assert shard.fence_is_over(shard.timing.fence_ms)
    shard.settle(picture or Picture(), 0)
    assert shard.record() is not None
    shard.saved()
    shard.end_seen(3200, len(lines) + 1)
    assert shard.state is OwnerState.OWNING
    return shard


def named(shard: Shard, *queues: tuple[str, str, int]) -> Shard:
    for queue in queues:
        shard.aim(queue, 0)
    assert shard.record() is not None
    shard.saved()
    return shard


# ------------------------------------------------------------------------------------------------ states


@pytest.mark.parametrize(("old", "new"), [*itertools.product(OwnerState, OwnerState)])
def test_the_table_is_executed(old: OwnerState, new: OwnerState) -> None:
    if new in MOVES[old]:
        assert moved(old, new) is new
    else:
        with pytest.raises(IllegalStateError, match=f"{old.value} -> {new.value}"):
            moved(old, new)


def test_every_state_is_reached_and_left() -> None:
    assert set(MOVES) == set(OwnerState)
    assert set().union(*MOVES.values()) == set(OwnerState)
    assert all(MOVES.values())


def chain(*rows: ProgressRecord) -> Picture:
    return Picture.of(read_record(row.encode()) for row in rows)


def test_a_snapshot_that_arrives_again_takes_nothing_away() -> None:
    """It got no answer from a broker that hung, was sent again, and both were stored, one behind later records."""
    snapshot = ProgressRecord("s", 5, 0, 0, -1, {}, [], DoneEntries(0))
    changes = [ProgressRecord("s", 5, number, 0, -1, {QUEUE: number}, added=(10 + number,)) for number in (1, 2)]
    whole = chain(snapshot, *changes)
    assert {11, 12} == set(whole.done.offsets()) and whole.tails == {QUEUE: 2}
    again = chain(snapshot, changes[0], snapshot, changes[1], changes[0])
    assert again.done.pack() == whole.done.pack() and again.tails == whole.tails
    assert chain(snapshot, changes[1]).generation == -1, "the record between them is missing: read further back"


# ------------------------------------------------------------------------------------------------ leases


def test_delivers_only_for_two_seconds_after_it_asked() -> None:
    shard = owning([Line(0)])
    assert shard.may_send(0, 0, 1, 5199, TOPICS) is MaySend.GO
    assert shard.may_send(0, 0, 1, 5200, TOPICS) is MaySend.NOT_OWNER
    shard.end_seen(5200, 3)  # there is a line that was not read: perhaps a takeover
    assert shard.may_send(0, 0, 1, 5200, TOPICS) is MaySend.NOT_OWNER
    shard.end_seen(5200, 2)
    assert shard.may_send(0, 0, 1, 7199, TOPICS) is MaySend.GO


def test_an_old_answer_does_not_shorten_the_lease() -> None:
    shard = owning([Line(0)])
    shard.end_seen(4000, 2)
    shard.end_seen(3500, 2)
    assert shard.may_send(0, 0, 1, 5999, TOPICS) is MaySend.GO


def test_the_new_owner_waits_longer_than_any_lease_of_the_old_one() -> None:
    timing = Timing()
    assert timing.fence_ms > timing.lease_ms + timing.drift_ms
    shard = Shard("s")
    shard.take_over("me")
    shard.load(Picture(), 0)
    shard.read([takeover(0, "other"), takeover(1, "me")], 2, 1000)
    assert shard.state is OwnerState.READING_BACK
    assert not shard.fence_is_over(999 + timing.fence_ms)
    assert shard.fence_is_over(1000 + timing.fence_ms)


def test_a_release_of_the_last_owner_spares_the_wait_and_no_other_does() -> None:
    release = Line(1, LineKind.RELEASE, generation=0)
    for lines, waits in (
        ([takeover(0, "other"), release], False),
        ([takeover(0, "other"), Line(1, LineKind.RELEASE, generation=5)], True),
        ([takeover(0, "other"), release, takeover(2, "third")], True),
        ([takeover(0, "other"), takeover(1, "third"), Line(2, LineKind.RELEASE, generation=0)], True),
    ):
        shard = Shard("s")
        shard.take_over("me")
        shard.load(Picture(), 0)
        shard.read([*lines, takeover(len(lines), "me")], len(lines) + 1, 1000)
        assert shard.fence_is_over(1000) is not waits, lines


@pytest.mark.parametrize("state", [OwnerState.READING_BACK, OwnerState.OWNING, OwnerState.RELEASING])
def test_a_later_takeover_fences(state: OwnerState) -> None:
    shard = owning([Line(0)])
    if state is OwnerState.RELEASING:
        shard.release()
    if state is OwnerState.READING_BACK:
        shard = Shard("s")
        shard.take_over("me")
        shard.load(Picture(), 0)
        shard.read([Line(0), takeover(1, "me")], 2, 0)
    assert shard.state is state
    shard.read([takeover(2, "other")], 3, 3300)
    shard.end_seen(3300, 3)
    assert shard.state is OwnerState.FENCED
    assert shard.may_send(0, 0, 1, 3301, TOPICS) is MaySend.NOT_OWNER


# ------------------------------------------------------------------------------------------------ deliveries


def test_nothing_is_sent_before_it_is_due() -> None:
    shard = owning([Line(0)])
    assert shard.may_send(0, 1000, 999, 3300, TOPICS) is MaySend.NOT_DUE
    assert shard.may_send(0, 1000, 1000, 3300, TOPICS) is MaySend.GO


def test_a_queue_is_used_only_when_the_saved_progress_names_it() -> None:
    shard = owning([Line(0)])
    shard.aim(QUEUE, 7)
    with pytest.raises(IllegalStateError, match="does not name"):
        shard.sending([0], QUEUE)
    record = shard.record()
    assert record is not None and record.tails == {QUEUE: 7}
    assert not shard.is_named(QUEUE)
    shard.saved()
    shard.sending([0], QUEUE)


def test_a_tail_moves_only_when_nothing_is_under_way_to_its_queue() -> None:
    shard = named(owning([Line(0), Line(1), Line(2)]), QUEUE)
    shard.sending([0], QUEUE)
    shard.sending([1], QUEUE)
    shard.acknowledged([1], QUEUE, 11)  # 10 may be the other one's place
    assert shard.tails[QUEUE] == 0
    shard.lose(0)
    shard.sending([2], QUEUE)
    shard.acknowledged([2], QUEUE, 12)
    assert shard.tails[QUEUE] == 0
    assert shard.may_send(0, 0, 1, 3300, TOPICS) is MaySend.DOUBT
    assert shard.scans() == {QUEUE: 0}
    shard.scanned(QUEUE, [1, 2], [0])
    assert shard.may_send(0, 0, 1, 3300, TOPICS) is MaySend.GO
    shard.sending([0], QUEUE)
    shard.acknowledged([0], QUEUE, 13)
    assert shard.tails[QUEUE] == 14


def test_what_was_lost_and_is_found_is_done() -> None:
    shard = named(owning([Line(0)]), QUEUE)
    shard.sending([0], QUEUE)
    shard.lose(0)
    shard.scanned(QUEUE, [0], [0])
    assert shard.may_send(0, 0, 1, 3300, TOPICS) is MaySend.ALREADY


def test_a_send_lost_after_a_scan_began_stays_lost() -> None:
    shard = named(owning([Line(0)]), QUEUE)
    shard.sending([0], QUEUE)
    shard.lose(0)
    shard.scanned(QUEUE, [], [])
    assert shard.may_send(0, 0, 1, 3300, TOPICS) is MaySend.DOUBT


def test_what_the_predecessor_may_have_delivered_waits_for_its_queues() -> None:
    picture = Picture(0, 0, -1, DoneEntries(), {QUEUE: 5, OTHER: 6})
    shard = Shard("s")
    shard.take_over("me")
    shard.load(picture, 0)
    shard.read([takeover(0, "other"), Line(1), Line(2), takeover(3, "me"), Line(4)], 5, 0)
    shard.settle(picture, 1_000_000)
    assert shard.record() is not None
    shard.saved()
    shard.end_seen(4000, 5)

    def ask(offset: int, due_ms: int, topics: tuple[str, ...] = TOPICS) -> MaySend:
        return shard.may_send(offset, due_ms, 10**9, 4001, topics)

    assert ask(1, 0) is MaySend.DOUBT
    assert ask(1, 0, ("another",)) is MaySend.GO, "nothing of this topic can stand in those queues"
    assert ask(4, 0) is MaySend.GO, "it came after the takeover"
    assert ask(2, 1_000_000 + SKEW_MS + 1) is MaySend.GO, "it was not due then, not even by a wrong clock"
    assert shard.scans() == {QUEUE: 5, OTHER: 6}
    shard.scanned(QUEUE, [1], [])
    assert ask(1, 0) is MaySend.ALREADY
    assert ask(2, 0) is MaySend.DOUBT
    shard.scanned(OTHER, [], [])
    assert ask(2, 0) is MaySend.GO


def test_doubts_outlive_an_owner_that_could_not_resolve_them() -> None:
    doubt = Doubt(9, 1000, {QUEUE: 5})
    shard = Shard("s")
    shard.take_over("me")
    picture = Picture(0, 0, -1, DoneEntries(), {}, [doubt])
    shard.load(picture, 0)
    shard.read([takeover(0, "other"), Line(1), takeover(2, "me")], 3, 0)
    shard.settle(picture, 0)
    record = shard.record()
    assert record is not None and read_record(record.encode()).doubts == [doubt]


def test_entries_that_the_cluster_deleted_are_counted() -> None:
    """By the last progress of the owner: it has delivered what it had read itself."""
    done = DoneEntries(3)
    done.add(5)
    shard = Shard("s")
    shard.take_over("me")
    shard.load(Picture(1, 3, -1, done), 8)
    assert shard.read_from == 8
    shard.read([takeover(8, "me")], 9, 0)
    later = done.copy()
    later.add(6)
    shard.settle(Picture(1, 3, -1, later), 0)
    assert shard.expired == 3  # 3, 4, 7


def test_a_follower_keeps_what_the_cluster_has_deleted_since() -> None:
    """Also what it could not read, if that is done; but not if entries may be missing in it."""
    shard = Shard("s")
    shard.load(Picture(), 0)
    shard.read([Line(at) for at in range(4)], 4, 0)
    for begin in range(5):
        need_followed(shard, begin)
    with pytest.raises(TakeoverError, match="not followed"):
        need_followed(shard, 5)
    shard.read([], 6, 0)  # 4 and 5 were missing in the answer
    need_followed(shard, 4)
    with pytest.raises(TakeoverError, match="not followed"):
        need_followed(shard, 5)
    shard.follow(Picture(done=DoneEntries(6), low=6))
    shard.read([Line(6)], 7, 0)
    need_followed(shard, 7)


# ------------------------------------------------------------------------------------------------ rolling


def test_a_roll_counts_where_it_is_read_and_only_of_the_present_owner() -> None:
    shard = owning([Line(0), Line(1)])  # its generation is 2
    roll = shard.roll(0, 1 << 60)
    assert roll is not None and roll.generation == 2
    assert shard.may_send(0, 0, 1, 3300, TOPICS) is MaySend.DOUBT
    assert shard.roll(0, 1 << 60) is None
    assert shard.read([Line(3, LineKind.ROLL, generation=1, about=1)], 4, 0) == []
    assert 3 in shard.done and 1 not in shard.done, "of an owner that is none"
    copy = Line(4, LineKind.ROLL, generation=2, about=0)
    assert shard.read([copy], 5, 0) == [copy]
    assert 0 in shard.done and 4 not in shard.done


def test_a_roll_is_read_again_by_the_next_owner() -> None:
    done = DoneEntries()
    done.add(1)  # the first copy, and the takeover of the owner that rolled it
    done.add(0)
    picture = Picture(0, done.low, -1, done)
    shard = Shard("s")
    shard.take_over("me")
    shard.load(picture, 0)
    copy = Line(2, LineKind.ROLL, generation=0, about=1)
    assert shard.read([takeover(0, "other"), Line(1), copy, takeover(3, "me")], 4, 0) == [copy]


@pytest.mark.parametrize("kind", [LineKind.VERDICT, LineKind.ROLL])
@pytest.mark.parametrize(("about", "entry"), [(10**17, 1), (1, 10**17), (9, -1), (3, -1)])
def test_a_record_about_what_comes_later_is_void(kind: LineKind, about: int, entry: int) -> None:
    """No owner writes it, but a sender can: every owner that read it ended there, for ever, or passed entries over."""
    shard = owning()
    end = shard.read_to
    about, entry = (at if at != 3 else end for at in (about, entry))
    forged = Line(end, kind, generation=shard.generation, about=about, entry=entry, verdict="done")
    entries = [Line(end + at, due_ms=5) for at in range(1, 9)]
    assert shard.read([forged, *entries], end + 9, 0) == entries
    assert end in shard.done and not any(line.offset in shard.done for line in entries)


def test_a_failed_roll_leaves_the_entry_as_it_was() -> None:
    shard = owning([Line(0)])
    assert shard.roll(0, 1 << 60) is not None
    shard.roll_failed(0)
    assert shard.may_send(0, 0, 1, 3300, TOPICS) is MaySend.GO


# ------------------------------------------------------------------------------------------------ releasing


def test_a_shard_is_released_when_all_is_known_and_saved() -> None:
    shard = named(owning([Line(0)]), QUEUE)
    shard.sending([0], QUEUE)
    shard.release()
    assert shard.may_send(0, 0, 1, 3300, TOPICS) is MaySend.NOT_OWNER
    assert not shard.may_release, "a delivery is under way"
    shard.acknowledged([0], QUEUE, 3)
    assert not shard.may_release, "what is done is not saved"
    assert shard.record() is not None
    assert not shard.may_release, "it is being saved"
    shard.saved()
    assert shard.may_release


# ------------------------------------------------------------------------------------------------ done sets, progress

OFFSETS = st.lists(st.integers(0, 300), max_size=120)


@given(OFFSETS, st.integers(0, 40))
def test_a_done_set_is_a_set(offsets: list[int], low: int) -> None:
    done, model = DoneEntries(low), set(range(low))
    for offset in offsets:
        assert done.add(offset) is (offset not in model)
        model.add(offset)
    assert all((offset in done) == (offset in model) for offset in range(320))
    assert done.low == next(offset for offset in itertools.count() if offset not in model)
    assert list(done.offsets()) == sorted(offset for offset in model if offset >= done.low)
    again = DoneEntries.unpack(done.low, done.pack())
    assert (again.low, list(again.offsets())) == (done.low, list(done.offsets()))
    assert list(done.pending(0, 310)) == [offset for offset in range(310) if offset not in model]


@given(OFFSETS, OFFSETS, st.integers(1, 5))
def test_a_chain_says_what_its_records_say(first: list[int], more: list[int], parts: int) -> None:
    done = DoneEntries()
    for offset in first:
        done.add(offset)
    records = [ProgressRecord("s", 7, 0, done.low, 3, {QUEUE: 1}, [], done.copy())]
    for number in range(parts):
        added = [offset for offset in more[number::parts] if done.add(offset)]
        records.append(ProgressRecord("s", 7, number + 1, done.low, 4, {QUEUE: number}, [], None, added))
    late = ProgressRecord("s", 6, 9, 400, 0, {OTHER: 9}, [], None, [350])  # of a fenced owner
    picture = Picture.of(read_record(record.encode()) for record in [*records, late])
    assert (picture.generation, picture.low, picture.low_generation) == (7, done.low, 4)
    assert list(picture.done.offsets()) == list(done.offsets())
    assert picture.tails == {QUEUE: parts - 1}


def test_changes_without_their_snapshot_say_nothing() -> None:
    change = ProgressRecord("s", 7, 1, 5, 3, {QUEUE: 1}, [], None, [6])
    assert Picture.of([change]).generation == -1


@given(st.binary(max_size=60))
def test_garbage_is_no_progress(body: bytes) -> None:
    for data in (body, b'{"v":1}\n' + body, b"[]\n" + body, b'{"v":2,"low":0}\n'):
        with pytest.raises(ValueError, match=r"."):
            read_record(data)


def test_a_done_set_has_a_bound() -> None:
    with pytest.raises(ValueError, match="at most"):
        DoneEntries().add(1 << 29)


# ------------------------------------------------------------------------------------------------ warm standby


@given(st.integers(0, 40), st.sets(st.integers(0, 60)), st.integers(0, 40), st.sets(st.integers(0, 60)))
def test_what_is_done_here_and_not_there(low: int, offsets: set[int], other_low: int, others: set[int]) -> None:
    here, there = DoneEntries(low), DoneEntries(other_low)
    here.merge(low, offsets)
    there.merge(other_low, others)
    plain = [offset for offset in range(200) if offset in here and offset not in there]
    assert here.beyond(there) == plain


def test_a_standby_learns_what_its_owner_has_done_and_takes_over_without_reading_again() -> None:
    standby = Shard("broker-e/0")
    standby.load(Picture(), 0)
    lines = [takeover(0, "other"), Line(1), Line(2), Line(3)]
    assert [line.offset for line in standby.read(lines, 4, 0)] == [1, 2, 3]
    assert standby.follow(Picture(done=DoneEntries(2))) == [1]
    assert standby.follow(Picture(done=DoneEntries(2))) == []
    standby.take_over("me")
    assert standby.read_from == 4
    standby.read([takeover(4, "me")], 5, 100)
    assert standby.state is OwnerState.READING_BACK and not standby.fence_is_over(100)
    standby.settle(Picture(done=DoneEntries(3)), 0)
    assert standby.record() is not None
    standby.saved()
    standby.end_seen(3300, 5)
    assert standby.may_send(2, 0, 1, 3300, TOPICS) is MaySend.ALREADY
    assert standby.may_send(3, 0, 1, 3300, TOPICS) is MaySend.GO


def test_what_may_have_been_delivered_is_not_rolled() -> None:
    """By an owner whose clock was ahead. The copy would be a new entry, of which nobody doubts anything."""
    shard = Shard("broker-a/3")
    shard.take_over("me")
    shard.load(Picture(), 0)
    shard.read([Line(0, due_ms=40_000), Line(1, LineKind.TAKEOVER, owner="me")], 2, 0)
    shard.settle(Picture(generation=-1, tails={("T", "b", 0): 0}), 1000)
    assert shard.record() is not None
    shard.saved()
    assert shard.roll(0, 40_000) is None
    shard.scanned(("T", "b", 0), [], [])
    assert shard.roll(0, 40_000) is not None


def test_an_ownership_that_an_error_ends_is_over() -> None:
    """The table had no such move: the error of that kept the tasks and the cache of the ended ownership alive."""
    shard = owned_shard("broker-a/3")
    assert shard.state is OwnerState.OWNING
    shard.ended()
    assert shard.state is OwnerState.FOLLOWER and not shard.may_write(0)
