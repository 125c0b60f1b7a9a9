"""What others write into the queues of a shard, and instances that come, go and share a name: the ledger stays fair.

Anybody who may send to the entry topic may write records of the service into it. That costs takeovers, never a message.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from remoting.messages.message import StoredMessage
from service.core.done_entries import SPAN_MAX, DoneEntries
from service.core.lines import Line, LineKind
from service.core.progress import Picture, ProgressRecord, read_record
from service.link.cluster import ClusterLink, Pull
from service.link.progress_log import ProgressLog
from tests.service.cluster_world import Node, World, assign, story
from tests.support.examples import seeds
from timewheel_client.values.errors import ClientError

FIRST = 71_000


def _takeovers(world: World) -> list[int]:
    return [line.offset for line in world.entry_log if line.kind is LineKind.TAKEOVER]


def old_takeover(world: World) -> None:
    if takeovers := _takeovers(world):
        world.append(replace(world.entry_log[world.random.choice(takeovers)], offset=-1))


def strange_takeover(world: World) -> None:
    owner = world.random.choice(["", "x" * 5000, "a#b", "\x00", "n0#1", "é"])
    world.append(Line(-1, LineKind.TAKEOVER, owner=owner))


def old_release(world: World) -> None:
    generation = world.random.choice([-1, 1 << 60, *_takeovers(world)[:-1]])
    world.append(Line(-1, LineKind.RELEASE, generation=generation))


def same_name(world: World) -> None:
    alive = [node for node in world.nodes if not node.dead]
    first, other = (alive * 2)[:2]
    other.name, other.takes = first.name, first.takes


def come_and_go(world: World) -> None:
    Node(world, f"n{len(world.nodes)}")
    alive = [node for node in world.nodes if not node.dead]
    if len(alive) > 4:
        world.random.choice(alive).dead = True
    assign(world, lying=False)


@pytest.mark.parametrize("attack", [old_takeover, strange_takeover, old_release, same_name, come_and_go])
def test_nothing_is_lost_early_or_twice(attack: Callable[[World], None]) -> None:
    for seed in seeds(2, FIRST):
        world = World(seed)
        for when in range(500, 90_000, 3000):
            world.at(when, lambda world=world: attack(world))  # type: ignore[misc]
        assert not any(story(world).values()), f"seed {seed}"


@pytest.mark.parametrize("generation,low", [(7, 0), (1 << 62, 0), (3, 8)])
def test_progress_of_another_queue_stops_the_shard(generation: int, low: int) -> None:
    """The entry topic was made anew, or a record was made up: what is done there are other entries."""
    record = ProgressRecord("broker-a/0", generation, 0, low, -1, {}, [], DoneEntries(low))

    class Link(ClusterLink):
        async def end(self, queue: tuple[str, str, int]) -> int:
            return 7 if queue[0] == "TIMEWHEEL" else 1

        async def begin(self, queue: tuple[str, str, int]) -> int:
            return 0 * queue[2]

        async def pull(self, queue: tuple[str, str, int], offset: int, *, wait: bool) -> Pull:
            assert queue[0] == "TIMEWHEEL_PROGRESS" and not wait
            return Pull(
                [cast(StoredMessage, SimpleNamespace(body=record.encode(), properties="", queue_offset=offset))],
                offset + 1,
            )

    async def read() -> Picture:
        link = Link("127.0.0.1:1", "TIMEWHEEL")
        return await ProgressLog(link, "broker-a/0", ("TIMEWHEEL_PROGRESS", "broker-a", 0)).read()

    with pytest.raises(ClientError, match="made anew"):
        asyncio.run(read())
    record.generation = 6
    if low <= 7:
        assert asyncio.run(read()).generation == 6


def _body(packed: bytes, **fields: object) -> bytes:
    head: dict[str, object] = {"v": 1, "shard": "s", "generation": 1, "sequence": 0, "low": 0, "lowGeneration": -1}
    head |= {"tails": [], "doubts": [], "snapshot": False, "cancelled": [], "forgot": 0, **fields}
    return json.dumps(head).encode() + b"\n" + packed


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b"\xff" * 20,
        _body(zlib.compress(b"123456789")),
        _body(zlib.compress(bytes(8))[:-3]),
        _body(zlib.compress(bytes(SPAN_MAX // 8 + 64))),
        _body(zlib.compress(bytes(SPAN_MAX // 8 + 64)), snapshot=True),
        _body(zlib.compress(b""), low=1e400),
        _body(zlib.compress(b""), generation="9" * 5000),
        _body(zlib.compress(b""), tails=[[1, 2]]),
        _body(zlib.compress(b""), doubts=[[1, 2, [["t", "b", [], 3]]]]),
    ],
    ids=range(12),
)
def test_what_is_no_progress_record_is_passed_over(body: bytes) -> None:
    """Anything else but ValueError would end each takeover of the shard, for as long as the record stands there."""
    with pytest.raises(ValueError):
        read_record(body)
