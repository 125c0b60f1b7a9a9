"""The door of an instance: what would be believed wrongly, such as sums of nothing, or an order that was not taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from service.door import reading
from service.door.coverage import ShardSight, Sighting
from store.disk.errors import StoreError
from tests.service.door_world import FAR, DoorWorld
from tests.support.plain_pending import PlainPending, row

MINE, FOLLOWED = "broker-e/0", "broker-e/1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DoorWorld]:
    with DoorWorld(tmp_path) as made:
        yield made


def closed(*_: Any) -> Any:
    raise StoreError("the spill store is closed")


def give_up(*shards: Any) -> None:
    for shard in shards:
        for name in ("count", "page", "forecast"):
            setattr(shard, name, closed)


def test_where_all_shards_are_given_up_meanwhile_no_nought_is_told(world: DoorWorld) -> None:
    world.send(60_000)
    give_up(world.mine, world.followed)
    for path in ("pending", "pending/count", "pending/forecast"):
        answer = world.get(path)
        assert (answer.status, "given up" in answer.json.get("error", "")) == (503, True), (path, answer.body[:200])


def test_a_list_whose_shard_is_given_up_under_way_ends_with_an_error(world: DoorWorld) -> None:
    world.send(*(60_000 + n for n in range(40)))
    after = quote(world.get("pending?limit=5").json["next"])
    give_up(world.followed)
    answer = world.get(f"pending?limit=5&after={after}")
    assert (answer.status, FOLLOWED in answer.json.get("error", "")) == (400, True), answer.body[:300]


@pytest.mark.parametrize("path", ["pending", "pending/count", "pending/forecast"])
def test_what_is_given_up_while_it_is_read_is_not_told_as_owned(world: DoorWorld, path: str) -> None:
    """The lease was held when the shards were looked at, and not any more when they had answered."""
    world.forgotten = set()
    seen = world.sights
    answers = [Sighting.OWNED]

    def sights() -> list[ShardSight]:
        state = answers.pop(0) if answers else Sighting.STALE
        return [
            ShardSight(one.name, state, one.owner, "", one.control or PlainPending(), one.first)
            if one.name in (MINE, FAR)
            else one
            for one in seen()
        ]

    world.sights = sights  # type: ignore[method-assign]
    found = world.get(path).json
    assert (found["whole"], [one["state"] for one in found["shards"]]) == (False, ["stale", "followed", "stale"])


def test_a_forecast_of_a_topic_ends_when_nobody_waits_for_it_any_more() -> None:
    """Each shard may read 200,000 messages: one asker of many shards would hold the threads that readiness needs."""
    clock = [0]
    asked: list[str] = []

    class Slow(PlainPending):
        def forecast(self, *given: Any) -> Any:
            asked.append("")
            clock[0] += 8_000
            return super().forecast(*given)

    sights = [ShardSight(f"b/{n}", Sighting.OWNED, "me", "", Slow([row(1, 5)])) for n in range(50)]
    with pytest.raises(Exception, match="shorter range"):
        reading.forecast(sights, 0, 1000, 10, "T", lambda: clock[0])
    assert len(asked) <= 4
