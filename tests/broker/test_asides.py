"""Long work beside the network loop: one task at a time, the connections in rotation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context

import pytest

from broker.net.asides import ASKER, Asides, AskerGoneError
from broker.net.channel import MemoryChannel
from broker.net.dispatcher import Dispatcher
from remoting.command import RemotingCommand


class World:
    """An `Asides` whose first task lasts until it is let go; ``done`` says in which order the others ran."""

    def __init__(self, in_order: bool = False) -> None:
        self.asides = Asides(in_order)
        self.done: list[str] = []
        self.go = threading.Event()

    def ask(self, channel: MemoryChannel | None, name: str) -> asyncio.Task[None]:
        context = copy_context()
        context.run(ASKER.set, channel)
        return asyncio.get_running_loop().create_task(self._ask(name), context=context)

    async def _ask(self, name: str) -> None:
        await self.asides.run(self.go.wait if name == "first" else lambda: self.done.append(name))


def run(scenario: Callable[[World, MemoryChannel, MemoryChannel], Awaitable[None]], in_order: bool = False) -> World:
    world = World(in_order)

    async def within() -> None:
        async with asyncio.timeout(10):
            await scenario(world, MemoryChannel(("192.0.2.1", 1)), MemoryChannel(("192.0.2.2", 2)))

    asyncio.run(within())
    assert world.asides._lines == {} and not world.asides._busy
    return world


@pytest.mark.parametrize(
    ("in_order", "expected"),
    [(False, ["g0", "m0", "g1", "m1", "g2", "g3"]), (True, ["g0", "g1", "g2", "g3", "m0", "m1"])],
)
def test_a_greedy_connection_waits_for_itself(in_order: bool, expected: list[str]) -> None:
    """25,000 lists that fifty peers asked for kept another one's waiting for more than half a minute."""

    async def scenario(world: World, greedy: MemoryChannel, modest: MemoryChannel) -> None:
        tasks = [world.ask(greedy, "first"), *(world.ask(greedy, f"g{number}") for number in range(4))]
        tasks += [world.ask(modest, f"m{number}") for number in range(2)]
        await asyncio.sleep(0)
        world.go.set()
        await asyncio.gather(*tasks)

    assert run(scenario, in_order).done == expected


def test_nothing_is_done_for_who_has_left() -> None:
    async def scenario(world: World, leaves: MemoryChannel, stays: MemoryChannel) -> None:
        first, gone, other = world.ask(stays, "first"), world.ask(leaves, "gone"), world.ask(stays, "stays")
        await asyncio.sleep(0)
        leaves.close()
        world.go.set()
        await asyncio.gather(first, other)
        with pytest.raises(AskerGoneError):
            await gone

    assert run(scenario).done == ["stays"]


def test_a_task_that_is_cancelled_while_it_waits_is_passed_over() -> None:
    async def scenario(world: World, one: MemoryChannel, other: MemoryChannel) -> None:
        first, cancelled, last = world.ask(one, "first"), world.ask(one, "cancelled"), world.ask(other, "last")
        await asyncio.sleep(0)
        cancelled.cancel()
        world.go.set()
        await asyncio.gather(first, last)
        assert cancelled.cancelled()

    assert run(scenario).done == ["last"]


def test_a_task_that_is_cancelled_as_its_turn_comes_hands_the_turn_on() -> None:
    async def scenario(world: World, one: MemoryChannel, other: MemoryChannel) -> None:
        world.asides._busy = True
        cancelled, last = world.ask(one, "cancelled"), world.ask(other, "last")
        await asyncio.sleep(0)
        world.asides.end()
        cancelled.cancel()
        await last
        assert cancelled.cancelled()

    assert run(scenario).done == ["last"]


def test_a_request_whose_asker_has_left_is_let_go_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        asides, dispatcher = Asides(), Dispatcher(lambda: 0)
        channel = MemoryChannel(("192.0.2.1", 1))

        class Lists:
            def handlers(self) -> dict[int, Callable[..., Awaitable[RemotingCommand]]]:
                return {7: self.answer}

            async def answer(self, asker: MemoryChannel, _command: RemotingCommand, _now_ms: int) -> RemotingCommand:
                asker.close()
                await asides.run(bool)
                raise AssertionError("done in vain")

        dispatcher.add(Lists())  # type: ignore[arg-type]
        dispatcher.received(channel, [RemotingCommand(7, 1)])
        while dispatcher.running:
            await asyncio.sleep(0)
        assert channel.kept_bytes == 0

    asyncio.run(scenario())
    assert caplog.text == ""
