"""Reading far back: in order and whole, whatever pieces come short, fail or are damaged, and not one piece a trip."""

from __future__ import annotations

import asyncio
import gc
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remoting.messages.message import StoredMessage
from service.core.progress import TargetQueue
from service.link.cluster import ClusterLink, Pull
from service.link.read_ahead import BYTES_MAX, PIECE_MS_MAX, PIECES_ANEW, PIECES_MAX, ReadAhead
from timewheel_client.consuming.pulled import BadRecord
from timewheel_client.values.errors import ClientError

QUEUE: TargetQueue = ("TIMEWHEEL", "broker-a", 3)
OF_APACHE = 32


def message(offset: int) -> StoredMessage:
    return cast(StoredMessage, SimpleNamespace(queue_offset=offset))


class Broker:
    """A queue behind a line on which an answer takes one trip; ``trip`` ends one for all pulls that are under way."""

    def __init__(self, end: int, most: int = OF_APACHE, each: int = 100) -> None:
        self.end, self.most, self.each = end, most, each
        self.tells_end = True
        self.asked: list[tuple[int, bool, int]] = []
        self.under_way: list[asyncio.Future[None]] = []
        self.trips = self.widest = 0
        self.held = 0

    async def pull(self, queue: TargetQueue, offset: int, *, wait: bool, count: int = 1024) -> Pull:
        assert queue == QUEUE
        self.asked.append((offset, wait, count))
        arrives = asyncio.get_running_loop().create_future()
        self.under_way.append(arrives)
        self.widest = max(self.widest, len(self.under_way))
        await arrives
        return self.answer(offset, count)

    def answer(self, offset: int, count: int) -> Pull:
        until = min(self.end, offset + min(count, self.most))
        found = [message(at) for at in range(offset, until)]
        end = self.end if self.tells_end else -1
        return Pull(found, max(offset, until), end=end, size=self.each * len(found))

    def trip(self) -> None:
        self.trips += 1
        arrived, self.under_way = self.under_way, []
        for future in arrived:
            if not future.done():
                future.set_result(None)


async def read(broker: Broker, ahead: ReadAhead, offset: int, end: int) -> list[int]:
    """The offsets that are handed on. A reader that a call fails for goes on at the same place, as an owner does."""
    found: list[int] = []
    while offset < end:
        work = asyncio.ensure_future(ahead.pull(offset, wait=False))
        while not work.done():
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if not work.done():
                broker.trip()
                await asyncio.sleep(0)
        try:
            pull = work.result()
        except ClientError:
            continue
        found += sorted([row.queue_offset for row in pull.messages] + [row.queue_offset for row in pull.bad])
        offset = pull.next_offset
    return found


def ahead_of(broker: Broker) -> ReadAhead:
    return ReadAhead(cast(ClusterLink, broker), QUEUE)


def test_many_records_take_few_trips() -> None:
    """One pull at a time took 100 of them for these; on a busy machine a trip took 27 ms, and a takeover minutes."""

    async def work() -> None:
        broker = Broker(100 * OF_APACHE)
        assert await read(broker, ahead_of(broker), 0, broker.end) == list(range(broker.end))
        assert broker.trips <= 100 / PIECES_MAX + 6  # the first ones with fewer pieces
        assert broker.widest == PIECES_MAX and len(broker.asked) == 100

    asyncio.run(work())


def test_at_the_end_nothing_is_asked_for_ahead() -> None:
    async def work() -> None:
        broker = Broker(7)
        ahead = ahead_of(broker)
        assert await read(broker, ahead, 0, 7) == list(range(7))
        assert len(broker.asked) == 1
        broker.end = 8
        waiting = asyncio.ensure_future(ahead.pull(7, wait=True))
        await asyncio.sleep(0)
        broker.trip()
        assert (await waiting).next_offset == 8 and broker.asked[1:] == [(7, True, 1024)]

    asyncio.run(work())


def test_a_broker_that_does_not_tell_its_end_is_read_one_piece_at_a_time() -> None:
    async def work() -> None:
        broker = Broker(10 * OF_APACHE)
        broker.tells_end = False
        assert await read(broker, ahead_of(broker), 0, broker.end) == list(range(broker.end))
        assert broker.widest == 1 and broker.trips == 10

    asyncio.run(work())


@pytest.mark.parametrize("each, widest", [(BYTES_MAX // OF_APACHE // 2, 2), (BYTES_MAX // OF_APACHE + 1, 1)])
def test_large_records_are_not_held_by_the_dozen(each: int, widest: int) -> None:
    """A piece that is handed on is not counted: beside it, `BYTES_MAX` may be under way."""

    async def work() -> None:
        broker = Broker(10 * OF_APACHE, each=each)
        assert await read(broker, ahead_of(broker), 0, broker.end) == list(range(broker.end))
        assert broker.widest == widest

    asyncio.run(work())


class Narrow(Broker):
    """More than two answers at once all come too late."""

    lost = 0

    def trip(self) -> None:
        if len(self.under_way) <= 2:
            return super().trip()
        self.trips += 1
        late, self.under_way = self.under_way, []
        for future in late:
            self.lost += 1
            if not future.done():
                future.set_exception(ClientError("no answer in time"))
        return None


def test_a_slow_line_is_not_filled_again_and_again() -> None:
    """With eight pieces after each error, every second try failed: two trips for each piece."""

    async def work() -> None:
        broker = Narrow(400 * OF_APACHE)
        assert await read(broker, ahead_of(broker), 0, broker.end) == list(range(broker.end))
        assert broker.trips <= 0.8 * 400 and broker.lost < 60, (broker.trips, broker.lost)

    asyncio.run(work())


class Rough(Broker):
    """Pieces come short, fail, and are damaged, at random; the queue grows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        super().__init__(self.random.randrange(1, 2000), self.random.choice([1, 8, 32, 1024]))
        self.bad_left = 40

    def answer(self, offset: int, count: int) -> Pull:
        lot = self.random.random()
        if lot < 0.03:
            raise ClientError("connection lost")
        if lot < 0.06:
            self.end += self.random.randrange(50)
        pull = super().answer(offset, self.random.randint(1, count) if lot < 0.3 else count)
        if lot > 0.97 and pull.messages and self.bad_left:
            self.bad_left -= 1
            which = self.random.randrange(len(pull.messages))
            bad = BadRecord(b"x", "a wrong CRC", pull.messages[which].queue_offset, -1)
            rest = [row for row in pull.messages if row.queue_offset != bad.queue_offset]
            return Pull(rest, pull.next_offset, bad=(bad,), end=self.end, size=pull.size)
        return pull


FIRST, SEEDS = 123_000_000, 150


def test_everything_is_handed_on_once_and_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """Random pieces, errors and damage; what nobody waits for any more leaves no words in the log either."""

    async def work(seed: int) -> None:
        broker = Rough(seed)
        ahead = ahead_of(broker)
        end = broker.end
        found = await read(broker, ahead, 0, end)
        assert found == list(range(len(found))) and len(found) >= end, f"seed {seed}"
        assert broker.widest <= PIECES_MAX + 1
        ahead.close()
        broker.trip()
        await asyncio.sleep(0)

    for seed in range(FIRST, FIRST + SEEDS):
        asyncio.run(work(seed))
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_reader_that_is_cancelled_leaves_no_pull_under_way() -> None:
    async def work() -> None:
        broker = Broker(100 * OF_APACHE)
        ahead = ahead_of(broker)
        for offset in range(0, 4 * OF_APACHE, OF_APACHE):
            await answered(broker, ahead, offset)
        second = asyncio.ensure_future(ahead.pull(4 * OF_APACHE, wait=False))
        await asyncio.sleep(0)
        assert len(broker.under_way) >= PIECES_MAX / 2
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await asyncio.sleep(0)
        assert all(future.cancelled() for future in broker.under_way)
        others: set[asyncio.Task[Any]] = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
        assert not others

    asyncio.run(work())


async def answered(broker: Broker, ahead: ReadAhead, offset: int, *, wait: bool = False) -> Pull:
    """One pull, while each trip ends at once."""
    work = asyncio.ensure_future(ahead.pull(offset, wait=wait))
    while not work.done():
        broker.trip()
        await asyncio.sleep(0)
    return work.result()


class Replaced(Broker):
    """Its log can lose its end and be filled with other messages; each has the number of its log."""

    log = 1

    def answer(self, offset: int, count: int) -> Pull:
        pull = super().answer(offset, count)
        for row in pull.messages:
            row.body = bytes([self.log])
        return pull


@pytest.mark.parametrize("waits_ms, log", [(PIECE_MS_MAX - 1, 1), (PIECE_MS_MAX, 2)])
def test_a_piece_that_has_waited_for_its_reader_is_asked_for_again(
    waits_ms: int, log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's disk was full, and the broker lost the end of its log: a takeover there was never read."""
    clock = [1000]
    monkeypatch.setattr("service.link.read_ahead.mono_ms", lambda: clock[0], raising=False)

    async def work() -> None:
        broker = Replaced(100 * OF_APACHE)
        ahead = ahead_of(broker)
        await answered(broker, ahead, 0)
        await asyncio.sleep(0)  # the pieces are asked for
        broker.trip()
        await asyncio.sleep(0)
        clock[0] += waits_ms
        broker.log = 2
        pull = await answered(broker, ahead, OF_APACHE)
        assert [row.queue_offset for row in pull.messages] == list(range(OF_APACHE, 2 * OF_APACHE))
        assert {row.body[0] for row in pull.messages} == {log}

    asyncio.run(work())


def test_an_end_that_moves_back_ends_the_pieces_beyond_it() -> None:
    async def work() -> None:
        broker = Replaced(100 * OF_APACHE)
        ahead = ahead_of(broker)
        await answered(broker, ahead, 0)
        await asyncio.sleep(0)
        first, *others = broker.under_way
        broker.under_way = others
        broker.trip()
        await asyncio.sleep(0)
        broker.under_way, broker.end = [first], 2 * OF_APACHE
        assert (await answered(broker, ahead, OF_APACHE)).reached_end
        broker.log, broker.end = 2, 100 * OF_APACHE
        pull = await answered(broker, ahead, 2 * OF_APACHE, wait=True)
        assert {row.body[0] for row in pull.messages} == {2} and (2 * OF_APACHE, True, 1024) in broker.asked

    asyncio.run(work())


class Mixed(Broker):
    """Some records are so large that an answer has only one."""

    def __init__(self, end: int, large: set[int]) -> None:
        super().__init__(end)
        self.large = large

    def answer(self, offset: int, count: int) -> Pull:
        until = min(self.end, offset + min(count, self.most))
        until = min([until, *(max(at, offset + 1) for at in self.large if offset <= at < until)])
        found = [message(at) for at in range(offset, until)]
        size = sum(200_000 if at in self.large else 100 for at in range(offset, until))
        return Pull(found, max(offset, until), end=self.end, size=size)


def test_a_large_record_does_not_make_all_pieces_small() -> None:
    """It was alone in its answer, and all that followed was asked for one record at a time: a million trips for 8."""

    async def work() -> None:
        broker = Mixed(300 * OF_APACHE, {0})
        assert await read(broker, ahead_of(broker), 0, broker.end) == list(range(broker.end))
        assert broker.trips <= PIECES_ANEW / PIECES_MAX + 300 / PIECES_MAX + 10

    asyncio.run(work())


def test_small_answers_make_small_pieces() -> None:
    """The first had many small records; the later ones have one large record each, and a rest takes a trip each."""

    async def work() -> None:
        broker = Mixed(600, set(range(OF_APACHE, 600)))
        assert await read(broker, ahead_of(broker), 0, broker.end) == list(range(broker.end))
        assert broker.trips <= 600 / PIECES_MAX + PIECES_MAX * OF_APACHE + 10

    asyncio.run(work())


class Ahead(Broker):
    """Tells a later end than it has: a piece is asked for there, and its answer names an earlier offset."""

    told = False

    def answer(self, offset: int, count: int) -> Pull:
        if offset == 2 * OF_APACHE and not self.told:
            self.told = True
            return Pull([], offset - 1, True, end=self.end)
        return super().answer(offset, count)


def test_a_piece_that_brings_nothing_is_asked_for_again() -> None:
    """An owner gave up: the queue ended before what it had read, as if the broker had lost the end of its log."""

    async def work() -> None:
        broker = Ahead(10 * OF_APACHE)
        assert await read(broker, ahead_of(broker), 0, broker.end) == list(range(broker.end))

    asyncio.run(work())


@pytest.mark.parametrize(
    "pull, is_end",
    [
        (Pull([], 7), True),
        (Pull([], 7, end=8), True),  # before the broker has made it readable; the next pull may wait
        (Pull([], 7, end=1 << 62), True),
        (Pull([message(6)], 7), False),
        (Pull([message(6)], 7, end=7), True),
        (Pull([message(6)], 7, end=8), False),
        (Pull([message(6)], 7, end=0), False),  # no end that these records have
        (Pull([], 7, end=9, bad=(BadRecord(b"", "", 6, -1),)), False),
    ],
)
def test_the_end_is_what_brings_nothing_or_what_the_broker_names(pull: Pull, is_end: bool) -> None:
    """A broker that named a later end than it had was asked without a pause; one that named 0, five times a second."""
    assert pull.reached_end is is_end
