"""The request of a batch, and what is noted about it: the parts that a batch and a single message do not share."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remoting.codes import RequestCode
from remoting.messages.message import StoredMessage
from service.link.cluster import ClusterLink
from service.link.parcels import Parcel, Spread, batch_body, groups_of, kind_of
from service.running import target
from service.running.entries import REJECTED_TOPIC
from tests.service.target_world import TargetWorld, names
from tests.service.test_parcels import in_world, message, together
from timewheel_client.net.connection import ClientConnection
from timewheel_client.values.errors import ConnectionFailedError
from timewheel_client.values.routes import MessageQueue

KEYLESS = "CLUSTER\x01c\x02UNIQ_KEY\x01u\x02"


def test_what_is_asked_of_the_broker() -> None:
    """Born time, queue and ``batch`` of the request, no properties, and the last look at the lease."""
    asked: list[tuple[int, dict[str, str], bytes, bool]] = []
    parts = [message(KEYLESS), message(KEYLESS, b"other")]

    async def send() -> None:
        def request_now(code: int, ext: dict[str, str], body: bytes, *, timeout_ms: int, may: Any) -> Any:
            del timeout_ms
            asked.append((code, ext, body, may()))
            return asyncio.get_running_loop().create_future()

        connection = cast(ClientConnection, SimpleNamespace(request_now=request_now))
        ClusterLink("127.0.0.1:1", "TIMEWHEEL").deliver_now(connection, ("T", "b", 2), parts, lambda: False)

    asyncio.run(send())
    ((code, ext, body, may),) = asked
    assert (code, ext["i"], ext["m"], ext["e"], may) == (RequestCode.SEND_MESSAGE_V2, "", "true", "2", False)
    assert ext["g"] == str(parts[0].born_ms)
    assert body == batch_body(parts)


def test_the_place_of_the_first_is_the_tail_of_all() -> None:
    async def story(world: TargetWorld) -> None:
        await world.put(*together(world, 1, 2, 3))
        (queue,) = {queue for queue, _ in world.stored}
        assert world.shard.tails[queue] == 2, "the first was stored at 1"

    in_world(story)


def test_what_was_rolled_while_the_connection_opened_is_not_written() -> None:
    async def story(world: TargetWorld) -> None:
        connection = world.connection

        async def slow(topic: str, broker: str) -> Any:
            world.shard.roll(2, 1 << 50)
            return await connection(topic, broker)

        world.connection = slow  # type: ignore[method-assign]
        assert names(await world.put(*together(world, 1, 2, 3))) == ["PUT_OK", "UNKNOWN_ERROR", "PUT_OK"]
        assert [body for _, body in world.stored] == [b"1", b"3"]

    in_world(story)


def test_a_refused_message_is_no_part_of_a_batch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(parts: list[StoredMessage]) -> tuple[int, str] | None:
        return (13, "illegal") if any(one.body == b"3" for one in parts) else None

    async def story(world: TargetWorld) -> None:
        monkeypatch.setattr("service.link.parcels.ALONE_MS", 0)
        world.refuses = wrong
        await world.put(*together(world, 1, 2, 3))
        del world.requests[:]
        await world.put(*together(world, 3, 4, 5))
        assert sorted(world.requests) == [1, 2]

    in_world(story)


def test_a_proof_without_keys_is_of_one_broker_and_batches_do_not_renew_it() -> None:
    spread = Spread()

    def aimed(broker: str, now_ms: int) -> Parcel:
        one = Parcel(0, 1, message(KEYLESS), REJECTED_TOPIC)
        spread.aim(one, [MessageQueue("T", broker, 0)], False, now_ms)
        return one

    first = aimed("broker-0", 0)
    assert first.kind is None
    spread.answered([first], True, 0)
    assert aimed("broker-0", 1).kind is not None
    assert aimed("broker-1", 1).kind is None
    spread.answered([aimed("broker-0", 59_000), aimed("broker-0", 59_000)], True, 59_000)
    assert aimed("broker-0", 60_000).kind is None


def test_a_batch_is_bounded_in_bytes() -> None:
    parcels = [Parcel(number, 1, message(KEYLESS, bytes(16 << 10)), REJECTED_TOPIC) for number in range(20)]
    for parcel in parcels:
        parcel.queue, parcel.kind = ("T", "b", 0), kind_of(parcel.message)
    assert [len(group) for group in groups_of(parcels)] == [7, 7, 6]


def test_a_connection_that_breaks_between_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not written is told so. What was written is in doubt, and nothing of it is told as not sent."""

    async def story(world: TargetWorld) -> None:
        monkeypatch.setattr(target, "ANSWER_MS", 50)
        deliver, sizes = world.deliver_now, []

        def once(*args: Any) -> Any:
            sizes.append(len(args[2]))
            if len(sizes) > 1:
                raise ConnectionFailedError("gone")
            return deliver(*args)

        world.deliver_now = once  # type: ignore[method-assign]
        world.hanging.add("broker-0")
        results = await world.put(*together(world, *range(1, 70), key="k"))
        assert sizes == [64, 5]
        assert names(results) == ["UNKNOWN_ERROR"] * 64 + ["TOPIC_AWAY"] * 5
        assert set(world.shard._in_flight) == set(range(1, 65))
        world.waiting[0].set_exception(ConnectionFailedError("cut"))
        await asyncio.gather(*world.target._under_way)
        assert set(world.shard.lost) == set(range(1, 65))
        assert not world.shard._in_flight

    in_world(story)
