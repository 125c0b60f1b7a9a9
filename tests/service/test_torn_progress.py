"""Progress records that cannot be read: nothing is forgotten that was delivered, and who cannot know it says so."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoting.messages.message import StoredMessage
from service.core.done_entries import DoneEntries
from service.core.lines import Line, LineKind
from service.core.progress import Doubt, Picture, ProgressRecord, TargetQueue
from service.core.shard import Shard
from service.core.torn_progress import TornProgressError, picture_of
from service.link.cluster import ClusterLink, Pull
from service.link.progress_log import LOOK_BACK, ProgressLog
from timewheel_client.values.errors import ClientError

NAME = "broker-a/0"
PROGRESS = ("TIMEWHEEL_PROGRESS", "broker-a", 0)
QUEUES = [("T", "a", 0), ("T", "b", 0), ("U", "a", 0)]


class Chains:
    """Owners one after the other, each with its chain, and the target queues that they deliver to."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.targets: dict[TargetQueue, list[int]] = {queue: [] for queue in QUEUES}
        self.records: list[ProgressRecord] = []
        self.next = 0

    def own(self, rounds: int) -> None:
        """One owner: it begins where the last one ended, and says so as the service does."""
        draw = self.draw
        picture = picture_of(self.records)
        done, tails = picture.done.copy(), dict[TargetQueue, int]()
        for queue, begin in picture.tails.items():
            done.merge(0, self.targets[queue][begin:])
        generation, fresh = self.next, list[int]()
        self.next += 1
        done.add(generation)
        for sequence in range(rounds):
            whole = sequence == 0 or draw.random() < 0.2
            self.records.append(
                ProgressRecord(
                    NAME,
                    generation,
                    sequence,
                    done.low,
                    -1,
                    dict(tails),
                    [],
                    done.copy() if whole else None,
                    () if whole else tuple(fresh),
                )
            )
            fresh.clear()
            named = list(tails)
            if draw.random() < 0.5:
                queue = draw.choice(QUEUES)
                tails.setdefault(queue, len(self.targets[queue]))
            for queue in named:
                for _ in range(draw.randrange(3)):
                    self.targets[queue].append(self.next)
                    if draw.random() < 0.8:  # else it dies before the answer
                        done.add(self.next)
                        fresh.append(self.next)
                    self.next += 1
                else:
                    if set(self.targets[queue]) <= {entry for entry in self.targets[queue] if entry in done}:
                        tails[queue] = len(self.targets[queue])
                self.next += draw.randrange(2)  # something that still waits


@given(st.integers(0, 1 << 30), st.sets(st.integers(0, 40), max_size=8))
@example(1661, {0, 8, 9})
def test_what_was_delivered_is_known_or_looked_for(seed: int, gone: set[int]) -> None:
    """Whatever records are missing, but for the last one; but nobody can know a queue that only missing ones name."""
    chains = Chains(seed)
    for _ in range(3):
        chains.own(chains.draw.randrange(1, 8))
    rows = [None if at in gone else record for at, record in enumerate(chains.records[:-1])] + chains.records[-1:]
    try:
        picture = picture_of(rows)
    except TornProgressError:
        assert not any(record is not None and record.is_snapshot for record in rows)
        return
    assert picture.generation == chains.records[-1].generation
    named = {queue for record in rows if record is not None for queue in record.tails}
    for queue, log in chains.targets.items():
        if queue not in named:  # the last record of its generation was the first to name it, and is missing
            continue
        begin = picture.tails.get(queue, len(log))
        unknown = [entry for at, entry in enumerate(log) if entry not in picture.done and at < begin]
        assert not unknown, (queue, begin)
    assert picture.is_torn or not any(record is None for record in rows[rows_begin(rows) :])


def rows_begin(rows: list[ProgressRecord | None]) -> int:
    """Where the last snapshot stands."""
    return max(at for at, record in enumerate(rows) if record is not None and record.is_snapshot)


def chain() -> list[ProgressRecord]:
    snapshot = ProgressRecord(NAME, 3, 0, 0, -1, {}, [], DoneEntries(0))
    changes = [ProgressRecord(NAME, 3, at, 0, -1, {QUEUES[0]: 10 * at}, [], None, (10 + at,)) for at in (1, 2, 3)]
    return [snapshot, *changes]


def test_behind_a_gap_tails_do_not_rise() -> None:
    snapshot, first, _, last = chain()
    picture = picture_of([snapshot, first, None, last])
    assert picture.tails == {QUEUES[0]: 10} and set(picture.done.offsets()) == {11, 13} and picture.is_torn
    picture = picture_of([snapshot, None, last])
    assert picture.tails == {QUEUES[0]: 0}, "nobody knows where it stood when it was named"


def test_the_last_record_may_be_missing() -> None:
    snapshot, first, second, _ = chain()
    picture = picture_of([snapshot, first, second, None])
    assert picture.tails == {QUEUES[0]: 20} and picture.is_torn
    assert picture.forgot == 3, "what is done below may have been cancelled: unknown, not too late"


def test_a_torn_chain_is_looked_for_also_behind_a_release() -> None:
    """The release says that all is saved; what was saved last cannot be read."""
    lines = [Line(0), Line(1), Line(2), Line(3, LineKind.TAKEOVER), Line(4, LineKind.RELEASE, generation=3)]
    for rows, wanted in ((chain(), {}), ([*chain()[:3], None], {QUEUES[0]: 20})):
        picture = picture_of(rows)
        shard = Shard(NAME)
        shard.take_over("me")
        shard.load(picture, 0)
        shard.read([*lines, Line(5, LineKind.TAKEOVER, owner="me")], 6, 0)
        assert shard.fence_is_over(0)
        shard.settle(picture, 0)
        assert shard.scans() == wanted


class Link(ClusterLink):
    """A cluster whose progress topic has these records; None: it answers as if there was none at that offset."""

    def __init__(self, rows: list[ProgressRecord | None]) -> None:
        super().__init__("127.0.0.1:1", "TIMEWHEEL")
        self.rows = rows

    async def end(self, queue: TargetQueue) -> int:
        return len(self.rows) if queue == PROGRESS else 1000

    async def begin(self, queue: TargetQueue) -> int:
        return 0 * queue[2]

    async def pull(self, queue: TargetQueue, offset: int, *, wait: bool) -> Pull:
        assert queue == PROGRESS and not wait
        found = [
            cast(StoredMessage, SimpleNamespace(body=record.encode(), properties="", queue_offset=at))
            for at, record in enumerate(self.rows)
            if offset <= at < offset + 7 and record is not None
        ]
        return Pull(found, min(offset + 7, len(self.rows)))


def read(rows: list[ProgressRecord | None]) -> tuple[Picture, list[str]]:
    said: list[str] = []

    async def work() -> Picture:
        return await ProgressLog(Link(rows), NAME, PROGRESS, said.append).read()

    return asyncio.run(work()), said


def test_a_missing_record_is_told() -> None:
    """It was read as progress of nothing: all that the entry queue still had would have been delivered again."""
    long = [ProgressRecord(NAME, 3, at, 0, -1, {}, [], None, (10 + at,)) for at in range(4, 3 * LOOK_BACK)]
    rows: list[ProgressRecord | None] = [*chain(), *long]
    picture, said = read(rows)
    assert picture.generation == 3 and not picture.is_torn and not said
    rows[2] = None
    picture, said = read(rows)
    assert picture.is_torn and 13 in picture.done and 12 not in picture.done
    assert len(said) == 1 and "cannot be read" in said[0]


@pytest.mark.parametrize("count", [1, 4])
def test_without_any_snapshot_the_shard_stops(count: int) -> None:
    rows: list[ProgressRecord | None] = list(chain()[:count])
    rows[0] = None
    with pytest.raises(ClientError, match=r"the progress of broker-a/0: no.* can be read.* nothing is delivered"):
        read(rows)


def test_a_shard_without_progress_begins_with_nothing() -> None:
    picture, said = read([])
    assert picture.generation == -1 and not said


def test_doubts_of_the_same_deliveries_are_one_with_the_lowest_tails() -> None:
    """A search raises its tails about once a second. After a gap each record's were kept: 46 for one."""
    a, b, _ = QUEUES
    tails: list[dict[TargetQueue, int]] = [{a: 5, b: 7}, {a: 9, b: 7}, {a: 12}, {b: 3}]
    done = DoneEntries()
    rows = [
        ProgressRecord(NAME, 1, at, 0, -1, {}, [Doubt(4, 100, at_tails)], done if at == 0 else None)
        for at, at_tails in enumerate(tails)
    ]
    found = picture_of([rows[0], None, *rows[2:]])
    assert found.is_torn and found.doubts == [Doubt(4, 100, {a: 5, b: 3})]
    rows[3].doubts.append(Doubt(4, 101, {a: 12}))
    assert len(picture_of([rows[0], None, *rows[2:]]).doubts) == 2, "others stay apart"
