"""Changes by a query through the door: counts that are true, cursors, takeovers, calls that are made again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Self

import pytest

from service.door import bulk, orders
from service.door.bulk import BulkDesk, BulkOrder, gathered
from service.door.coverage import ShardSight, Sighting
from service.door.orders import OrderDesk
from store.put.pending_api import PendingQuery
from tests.service.door_world import BASE_MS, FAR, FIRST, FOLLOWED, ME, DoorWorld, placed
from tests.support.plain_pending import row
from timewheel_client import ChangeResult, ConnectionFailedError, RequestTimeoutError


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DoorWorld]:
    with DoorWorld(tmp_path) as made:
        made.forgotten = {FOLLOWED, FAR}
        yield made


def entry(name: str) -> int:
    return int(name.rpartition("/")[2])


def within(world: DoorWorld, first: int, last: int) -> dict[str, Any]:
    return {"due_from": world.at(first), "due_to": world.at(last)}


def test_a_dry_run_writes_nothing_and_counts(world: DoorWorld) -> None:
    world.send(*(60_000 + n for n in range(12)))
    for more in ({}, {"dry_run": True}):
        answer = world.post("bulk/cancel", {"query": within(world, 0, 100_000), **more})
        assert (answer.status, answer.json["dry_run"], answer.json["verdicts"]) == (200, True, {"done": 12})
        assert (answer.json["next"], answer.json["undecided"], answer.json["whole"]) == (None, 0, False)
    found = world.post("bulk/cancel", {"query": within(world, 0, 100_000), "limit": 5}).json
    assert len(found["answers"]) == 5
    found = world.post("bulk/cancel", {"query": within(world, 0, 100_000), "after": found["next"]}).json
    assert (len(found["answers"]), found["next"]) == (7, None)
    assert world.commands == 0


def test_what_matches_is_cancelled_one_record_each(world: DoorWorld) -> None:
    names = world.send(*(60_000 + 1000 * n for n in range(10)))
    order = {"query": within(world, 62_000, 67_000), "dry_run": False, "limit": 3}
    first = world.post("bulk/cancel", order).json
    assert (first["verdicts"], [one["id"] for one in first["answers"]]) == ({"done": 3}, names[2:5])
    assert world.commands == 3
    again = world.post("bulk/cancel", order).json  # with the same cursor, none
    assert set(again["verdicts"]) <= {"done", "already"}
    rest = world.post("bulk/cancel", {**order, "after": first["next"]}).json
    assert set(rest["verdicts"]) <= {"done", "already"}
    assert rest["next"] is None
    world.run_to(120_000)
    assert sorted(world.sim.copies) == [entry(name) for name in (*names[:2], *names[7:])]
    assert world.sim.verdict() == {"lost": 0, "early": 0, "twice": 0, "undead": 0, "wrong": 0}


def test_what_was_delivered_meanwhile_is_too_late(world: DoorWorld) -> None:
    """The list still has them; their owner knows better."""
    names = world.send(8_000, 8_001, 60_000)
    rows = world.sights()[0].control
    assert rows is not None
    sights = world.sights()
    order = BulkOrder(query=PendingQuery(topic="T"), verb="cancel", dry_run=False)
    found = gathered(sights, BulkOrder(query=PendingQuery(due_from_ms=1), verb="cancel"), lambda: 0)
    assert [one["id"] for one in found.rows] == names
    world.run_to(12_000)
    told = asyncio.run(changed(world.desk, found, order))
    assert told["verdicts"] == {"too_late": 2, "done": 1}
    world.run_to(120_000)
    assert sorted(world.sim.copies) == [entry(name) for name in names[:2]]


async def changed(desk: OrderDesk, found: Any, order: BulkOrder) -> dict[str, Any]:
    return await BulkDesk(desk, lambda: BASE_MS, lambda: 0).change(found, order)


def test_an_interval_is_added_once_however_often_it_is_asked_for(world: DoorWorld) -> None:
    names = world.send(60_000, 61_000, 62_500)
    order = {"query": within(world, 60_000, 63_000), "by_ms": 3_000, "dry_run": False}
    for _ in range(3):
        assert set(world.post("bulk/move", order).json["verdicts"]) <= {"done", "already"}
    world.run_to(world.sim.now + 2000)
    assert world.post("bulk/move", order).json["answers"] == []
    assert [world.sim.due[entry(name)] for name in names] == [63_000, 64_000, 65_500]
    for wide in ({"by_ms": 2_999}, {"by_ms": -2_999}, {"by_ms": 0}):
        answer = world.post("bulk/move", {**order, **wide})
        assert (answer.status, "by_ms=" in answer.json["error"]) == (400, True)
    answer = world.post("bulk/move", {"query": {"topic": "T0"}, "by_ms": 3_000})
    assert "needs due_from and due_to, at most 3000 ms apart" in answer.json["error"]
    past = world.post("bulk/move", {"query": within(world, 63_000, 66_000), "by_ms": -600_000, "dry_run": False}).json
    assert past["verdicts"] == {"refused": 3}


BAD: list[tuple[str, Any, int, str]] = [
    ("cancel", {}, 400, "could change everything"),
    ("cancel", {"query": {}}, 400, "could change everything"),
    ("cancel", {"query": {"due_to": BASE_MS}}, 400, "could change everything"),
    ("cancel", {"query": {"key_prefix": "a"}}, 400, "'key_prefix' is unknown here"),
    ("cancel", {"query": {"topc": "a"}}, 400, "unknown here"),
    ("cancel", {"query": "T"}, 400, "object of filters"),
    ("cancel", {"query": {"topic": "T"}, "dry_run": "false"}, 400, "true or false"),
    ("cancel", {"query": {"topic": "T"}, "limit": 1001}, 400, "from 1 to 1000"),
    ("cancel", {"query": {"topic": "T"}, "limit": 0}, 400, "limit"),
    ("cancel", {"query": {"topic": "T"}, "after": 7}, 400, "after"),
    ("cancel", {"query": {"topic": "T"}, "after": "x"}, 400, "no cursor"),
    ("cancel", {"query": {"topic": "T"}, "due_ms": BASE_MS}, 400, "unknown here"),
    ("cancel", {"ids": ["a"]}, 400, "unknown here"),
    ("move", {"query": {"topic": "T"}}, 400, "either due_ms"),
    ("move", {"query": {"topic": "T"}, "due_ms": BASE_MS - 60_000}, 400, "in the past"),
    ("move", {"query": {"topic": "T"}, "due_ms": BASE_MS // 1000}, 400, "looks like seconds"),
    ("restart", {"query": {"topic": "T"}}, 404, "cancel, move, now"),
]


@pytest.mark.parametrize(("verb", "document", "status", "text"), BAD, ids=[f"{v} {d!r:.40}" for v, d, _, _ in BAD])
def test_a_bad_order_changes_nothing(world: DoorWorld, verb: str, document: Any, status: int, text: str) -> None:
    world.send(60_000)
    for dry in ({}, {"dry_run": False}):
        answer = world.post(f"bulk/{verb}", {**dry, **document})
        assert (answer.status, text in answer.json["error"]) == (status, True), answer.body[:300]
    assert world.commands == 0


# ------------------------------------------------------------------------------------------------ time, and who is away


class Hand:
    """Answers orders as a test says: by the name of the entry."""

    def __init__(self, says: Callable[[str], Awaitable[str]]) -> None:
        self.says = says
        self.asked: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def cancel(self, name: str) -> ChangeResult:
        self.asked.append(name)
        return ChangeResult(verdict=await self.says(name), id=name)


def sight(name: str, count: int) -> ShardSight:
    rows = [row(n, BASE_MS + n) for n in range(count)]
    return ShardSight(name, Sighting.OWNED, ME, "", placed(rows), FIRST)


def cancelled(hand: Hand, sights: list[ShardSight], clock: list[int], **more: Any) -> dict[str, Any]:
    order = BulkOrder(query=PendingQuery(topic="T"), verb="cancel", dry_run=False, **{"limit": 1000, **more})
    found = gathered(sights, order, lambda: clock[0])
    desk = BulkDesk(OrderDesk(lambda: hand), lambda: BASE_MS, lambda: clock[0])  # type: ignore[arg-type,return-value]
    return asyncio.run(desk.change(found, order))


def test_no_further_command_is_begun_when_the_time_is_over() -> None:
    """Each verdict takes a second; the cursor goes on behind the last command."""
    clock, sights, after, seen = [0], [sight("b/0", 40), sight("b/1", 25)], "", []

    async def says(_: str) -> str:
        clock[0] += 1000
        return "done"

    calls = 0
    while after is not None:
        hand = Hand(says)
        told = cancelled(hand, sights, clock, after=after)
        assert told["verdicts"] == {"done": len(hand.asked)}
        seen += hand.asked
        after, calls = told["next"], calls + 1
    assert len(seen) == len(set(seen)) == 65
    assert calls > 3


@pytest.mark.parametrize("trouble", [RequestTimeoutError("x"), ConnectionFailedError("refused")], ids=["mute", "away"])
def test_a_shard_that_does_not_answer_is_left_alone_and_the_others_go_on(trouble: Exception) -> None:
    clock, sights = [0], [sight("b/0", 200), sight("b/1", 200)]

    async def says(name: str) -> str:
        await asyncio.sleep(0)
        if name.startswith("b/1/"):
            raise trouble
        return "done"

    hand = Hand(says)
    told = cancelled(hand, sights, clock)
    verdict = "undecided" if isinstance(trouble, RequestTimeoutError) else "refused"
    assert told["verdicts"]["done"] == 200
    assert told["verdicts"][verdict] == sum(name.startswith("b/1/") for name in hand.asked) <= bulk.AT_ONCE
    assert told["undecided"] == (told["verdicts"][verdict] if verdict == "undecided" else 0)
    assert told["next"].startswith("b%2F0=.;b%2F1=")
    before = len(hand.asked)
    cancelled(hand, sights, clock, after=told["next"])
    assert not any(name.startswith("b/0/") for name in hand.asked[before:])


def test_a_verdict_is_waited_for_so_long_and_others_may_order_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "VERDICT_S", 0.05)
    monkeypatch.setattr(orders, "UNDER_WAY_MAX", 0)  # a bulk change is not counted among those of one entry

    async def says(_: str) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    told = cancelled(Hand(says), [sight("b/0", 3)], [0])
    assert told["verdicts"] == {"undecided": 3}
    assert "it stands and will be decided" in told["answers"][0]["detail"]


def test_one_bulk_change_at_a_time() -> None:
    async def work() -> None:
        going = asyncio.Event()

        async def says(_: str) -> str:
            await going.wait()
            return "done"

        order = BulkOrder(query=PendingQuery(topic="T"), verb="cancel", dry_run=False)
        found = gathered([sight("b/0", 3)], order, lambda: 0)
        desk = BulkDesk(OrderDesk(lambda: Hand(says)), lambda: BASE_MS, lambda: 0)  # type: ignore[arg-type,return-value]
        first = asyncio.ensure_future(desk.change(found, order))
        await asyncio.sleep(0)
        with pytest.raises(bulk.BusyError, match="nothing was changed"):
            await desk.change(found, order)
        going.set()
        assert (await first)["verdicts"] == {"done": 3}
        assert (await desk.change(found, order))["verdicts"] == {"done": 3}

    asyncio.run(work())


# ------------------------------------------------------------------------------------------------ stories


def check_end(world: DoorWorld, wanted: dict[int, int | None], told_of: dict[int, set[str]]) -> None:
    """Everything is delivered once, or was cancelled; what was told of it is so."""
    for at, due_ms in wanted.items():
        if due_ms is not None and not world.sim.copies[at]:
            assert world.sim.due[at] == due_ms, "moved once, or not at all"
    world.sim.quiet = True
    world.run_to(world.sim.now + 300_000)
    for at, due_ms in wanted.items():
        told = told_of.get(at, set())
        assert world.sim.copies[at] == (at not in world.sim.cancelled)
        assert world.sim.copies[at] or due_ms is None
        assert world.sim.copies[at] or not any("too_late" in text for text in told)
        assert told or world.sim.copies[at], "whoever is not told of was delivered"
        assert not (world.sim.copies[at] and told & {"cancel done", "cancel already"})
    assert world.sim.verdict() == {"lost": 0, "early": 0, "twice": 0, "undead": 0, "wrong": 0}


@pytest.mark.parametrize("seed", range(16))
def test_stories_against_a_list(tmp_path: Path, seed: int) -> None:
    """Takeovers in the middle, verdicts that nobody waits for, calls made again: what is told is so, and done once."""
    draw = Random(seed)
    with DoorWorld(tmp_path, seed=seed + 100) as world:
        world.forgotten = {FOLLOWED, FAR}
        told_of: dict[int, set[str]] = {}

        def bad_luck(_: int) -> None:
            world.patience_ms = 30_000
            luck = draw.random()
            if luck < 0.08:
                world.take_over()
            if luck < 0.3:
                world.patience_ms = draw.choice((0, 100))

        wanted: dict[int, int | None] = {}  # due time, None: cancelled
        for _ in range(4):
            now = world.sim.now
            for name in world.send(
                *(now + draw.choice((500, 60_000)) + draw.randrange(40_000) for _ in range(draw.randrange(4, 15)))
            ):
                wanted[entry(name)] = world.sim.due[entry(name)]
            first = now + draw.choice((500, 60_000)) + draw.randrange(20_000)
            last = first + draw.randrange(5_000, 20_000)
            verb, more = draw.choice(
                (
                    ("cancel", {}),
                    ("cancel", {}),
                    ("move", {"by_ms": 20_000}),
                    ("move", {"due_ms": world.at(now + 90_000)}),
                )
            )
            order = {"query": within(world, first, last), "dry_run": False, "limit": draw.choice((3, 100)), **more}
            for at, due_ms in wanted.items():
                if due_ms is not None and first <= due_ms < last:
                    wanted[at] = None if verb == "cancel" else due_ms + 20_000 if "by_ms" in more else now + 90_000
            world.before_verdict = bad_luck
            after: str | None = ""
            while after is not None:
                if not world.is_owned or draw.random() < 0.4:  # else the list may be old
                    world.settle()
                answer = world.post(f"bulk/{verb}", {**order, "after": after})
                assert answer.status == 200, answer.body
                found = answer.json
                counts = Counter(one["verdict"] for one in found["answers"])
                assert (found["verdicts"], found["undecided"]) == (counts, counts["undecided"])
                for one in found["answers"]:
                    if verb == "cancel" and one["verdict"] in ("done", "already"):
                        assert world.sim.origin[entry(one["id"])] in world.sim.cancelled, "and not only will be"
                    told_of.setdefault(world.sim.origin[entry(one["id"])], set()).add(f"{verb} {one['verdict']}")
                if not found["undecided"] and draw.random() < 0.8:  # else once more, with the same cursor
                    after = found["next"]
            world.before_verdict = lambda _: None
            world.patience_ms = 30_000
            world.settle()
        check_end(world, wanted, told_of)
