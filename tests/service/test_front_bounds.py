"""What hostile senders can make an instance keep: all of it is counted, and none of it stays when they are gone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import cast

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from service.front import passage as passage_module
from service.front.frames import FrameCutter
from service.front.passage import UNDER_WAY_BYTES, Passage
from service.front.places import NamesPlace
from service.front.wire import PassageWire
from tests.service.front_world import FrontWorld, MemoryWire
from tests.service.test_front_passage import send, stored, story
from timewheel_client.net.client_core import ClientCore
from timewheel_client.values.errors import ConnectionFailedError

BODY = bytes(100_003)


def bodies() -> Iterator[int]:
    """Sizes of the bodies of all requests that somebody keeps; other tests may have left some."""
    gc.collect()
    return (len(one.body) for one in gc.get_objects() if isinstance(one, RemotingCommand))


class _Names:
    """The port of the name server, whose real one does not answer."""

    def __init__(self) -> None:
        world = FrontWorld()
        self.waits = asyncio.Event()
        self.asked: list[str] = []
        world.core.ask_namesrv = self._ask  # type: ignore[attr-defined]
        self.place = NamesPlace(world, ["127.0.0.1:1"])
        self.near = MemoryWire()
        self.passage = Passage(self.place)
        self.passage.opened(cast(PassageWire, self.near))

    async def _ask(self, _code: int, ext: dict[str, str]) -> RemotingCommand:
        self.asked.append(ext["topic"])
        await self.waits.wait()
        return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST, 1, 1, remark="none")

    def asks(self, opaque: int, topic: str) -> None:
        ask = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque, ext={"topic": topic}, body=BODY)
        self.passage.received(cast(PassageWire, self.near), FrameCutter().feed(encode_command(ask)))


@pytest.mark.pure
def test_requests_for_routes_that_wait_keep_no_bodies() -> None:
    async def run() -> None:
        names = _Names()
        for opaque in range(5):
            names.asks(opaque, "orders")
        await asyncio.sleep(0)
        assert len(names.asked) == 5 and len(BODY) not in bodies()
        names.waits.set()
        await asyncio.gather(*names.place.tasks())
        assert sorted((reply.opaque, reply.code) for reply in names.near.answers()) == [(at, 17) for at in range(5)]

    asyncio.run(run())


def test_a_name_that_no_topic_has_is_asked_nobody() -> None:
    async def run() -> None:
        names = _Names()
        names.asks(7, "x" * 100_000)
        assert not names.place.tasks()
        assert [(reply.opaque, reply.code) for reply in names.near.answers()] == [(7, 17)]

    asyncio.run(run())


def test_answers_are_counted_when_they_are_written() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7))
        world.near.pending_bytes = 77_000
        world.core.connections.sent[0][4].set_result(stored(1))
        await world.settle()
        assert world.held_bytes == 77_000

    story(tell)


def test_requests_under_way_are_counted() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(*(send(opaque, "") for opaque in range(9)))
        assert world.held_bytes == 9 * UNDER_WAY_BYTES
        await world.answers(stored(1))
        world.passage.lost(cast(PassageWire, world.near), "closed")
        assert world.held_bytes == 0

    story(tell)


def test_what_a_broker_does_not_read_is_counted_and_dropped_after_its_sender_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passage_module, "LEFT_MS", 0)

    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7, ""))
        far, aborted = world.far, []
        far.pending_bytes = 16_000_000
        far.close = lambda: None  # type: ignore[method-assign]  # it closes when all is written
        far.abort = aborted.append  # type: ignore[method-assign]
        world.passage.lost(cast(PassageWire, world.near), "closed")
        assert world.held_bytes == 16_000_000 and not aborted
        await world.settle()
        assert aborted == ["its sender is gone"]
        world.passage.lost(cast(PassageWire, far), "aborted")
        assert world.held_bytes == 0

    story(tell)


def test_a_connection_to_the_cluster_is_not_read_for_a_sender_that_did_not_read_before_it_was_there() -> None:
    async def tell(world: FrontWorld) -> None:
        world.gate.clear()
        await world.sends(send(7, ""))
        world.passage.pressed(cast(PassageWire, world.near), True)
        world.gate.set()
        await world.settle()
        assert world.far.written and not world.far.reading
        world.passage.pressed(cast(PassageWire, world.near), False)
        assert world.far.reading

    story(tell)


def test_made_up_topics_are_not_looked_for_when_name_servers_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> RemotingCommand:
        raise ConnectionFailedError("refused")

    core = ClientCore("127.0.0.1:1", dict)
    monkeypatch.setattr(core, "ask_namesrv", away)

    async def tell(world: FrontWorld) -> None:
        world.cluster.core = core
        await world.sends(*(send(opaque, topic=f"made-up-{opaque}") for opaque in range(20)))
        await asyncio.sleep(0)
        for _ in range(20):
            await world.settle()
        assert len(world.near.answers()) == 20
        assert not core._wanted

    story(tell)
