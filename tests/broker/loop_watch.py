"""How long the network loop is held: a broker in process whose loop is timed, step by step.

The requests come as bytes, cut into reads of 256 KiB as the server reads them; a step is whatever the loop does without
looking at anything else: one such read with the end of its turn, or a piece of a task. Of each step counts the
processor time of the loop's own thread. What runs in other threads is not counted; they hand on the interpreter after
half a millisecond, unless they are within one call of a C library.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

import pytest

from broker.cli.common import GC_THRESHOLDS
from broker.core import BrokerCore
from broker.net.channel import BROKER_PORT, ChannelState, MemoryChannel
from remoting.codes import REQUEST_HEADER_MAX_BYTES
from remoting.command import RemotingCommand
from remoting.connection import FrameDecoder
from remoting.errors import ProtocolError
from tests.support.wait import until

__all__ = ["BOUND_MS", "LOOP_MS", "READ_BYTES", "LoopWatch", "bound_ms"]

LOOP_MS = 20.0
"""What one request may hold the loop for."""
READ_BYTES = 256 << 10
NOISE = 1.5
"""By how much a step may be slower than it is: caches, the other core, the collector of the machine's host."""
BOUND_MS = LOOP_MS * NOISE
"""The bound of what `LoopWatch.step_ms` finds."""
_USUAL_MS = 14.0
"""What `_work` takes on the machine on which the bounds of the broker were chosen."""
_TRIES = 8
_WAIT_S = 120.0


def _work() -> int:
    found, table = 0, {}
    for number in range(100_000):
        table[number & 1023] = str(number)
        found += len(table[number & 1023])
    return found


def _cpu_ms(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return 1000 * (time.thread_time() - begin)


def _slower(times: int) -> float:
    """How much slower than usual this machine runs Python just now: at least 1."""
    return max(1.0, min(_cpu_ms(_work) for _ in range(times)) / _USUAL_MS)


def bound_ms() -> float:
    """`BOUND_MS` on this machine, now: more on one that runs Python slower than usual."""
    return BOUND_MS * _slower(5)


class AnsweringChannel:
    """A client that answers whatever it is asked with the same body.

    It repeats what `MemoryChannel` does: nothing can inherit from that one in a compiled build.
    """

    def __init__(self, watch: LoopWatch, peer: tuple[str, int], body: bytes = b"") -> None:
        self.peer = peer
        self.state = ChannelState(peer)
        self.closed = False
        self.kept_bytes = 0
        self.watch = watch
        self.body = body

    def send(self, data: bytes) -> None:
        """Answer."""
        for asked in FrameDecoder().feed(data):
            if not asked.is_response and not asked.is_oneway:
                answer = asked.reply(0, None, {}, self.body)
                asyncio.get_running_loop().call_soon(self.watch.core.dispatcher.received, self, [answer])

    def send_at_once(self, data: bytes) -> None:
        """Answer."""
        self.send(data)

    def keep(self, size: int) -> None:
        """Count what is kept."""
        self.kept_bytes += size

    def close(self) -> None:
        """Take nothing any more."""
        self.closed = True


class LoopWatch:
    """Feeds a broker with bytes and notes the longest step. Use it as a context."""

    def __init__(self) -> None:
        self.core: BrokerCore
        self.loop = asyncio.new_event_loop()
        self._longest_ms = 0.0
        self._thresholds = gc.get_threshold()
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        run = asyncio.events.Handle._run

        def timed(handle: Any) -> None:
            begin = time.thread_time()
            run(handle)
            self._longest_ms = max(self._longest_ms, 1000 * (time.thread_time() - begin))

        self._patch.setattr(asyncio.events.Handle, "_run", timed)
        return self

    def settle(self) -> None:
        """Have the collector of cycles leave alone what is there now, as `broker.cli.common.settle` does it."""
        gc.collect()
        gc.freeze()
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*GC_THRESHOLDS)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as it was: see tests/conftest.py
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def schedule(self) -> None:
        """The turn ends with the step that has begun it, or soon."""
        self.loop.call_soon(self.core.end_turn)

    def call(self, work: Callable[[], object]) -> None:
        """Do something in the loop, and wait until nothing is left to do."""

        async def calls() -> None:
            self.loop.call_soon(work)
            await self._idle(rounds=100)

        self.loop.run_until_complete(calls())

    def held_ms(self, data: bytes, port: str = BROKER_PORT, channel: MemoryChannel | None = None) -> float:
        """The longest step that some bytes lead to; the least of several times if it is too long."""
        return self.step_ms(lambda: self.feed(data, port, channel))

    def step_ms(self, work: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
        """The longest step of some work, the least of several times if it is too long.

        A machine may be slow just while one of them is done: one that is too long counts as what it would take on the
        machine on which the bounds were chosen, by what a piece of Python took before and after it. The first one that
        is within `BOUND_MS` decides: others could only be shorter.
        """
        least, before = float("inf"), 1.0
        for _ in range(_TRIES):
            prepare()
            self._longest_ms = 0.0
            work()
            if self._longest_ms < LOOP_MS:
                return min(least, self._longest_ms)
            after = _slower(1)
            least, before = min(least, self._longest_ms / max(before, after)), after
            if least < BOUND_MS:
                break
        return least

    def feed(self, data: bytes, port: str = BROKER_PORT, channel: MemoryChannel | None = None) -> list[RemotingCommand]:
        """Have the broker read some bytes; what it answered."""
        if channel is None:
            channel = MemoryChannel(("192.0.2.9", 50001))
        channel.state.port = port
        decoder = FrameDecoder(max_header_bytes=REQUEST_HEADER_MAX_BYTES)

        def step(piece: bytes) -> None:
            try:
                commands = decoder.feed(piece)
            except ProtocolError:
                return
            self.core.dispatcher.received(channel, commands)
            self.core.end_turn()

        async def reads() -> None:
            for at in range(0, len(data), READ_BYTES):
                self.loop.call_soon(step, data[at : at + READ_BYTES])
                await asyncio.sleep(0)
            await self._idle()

        self.loop.run_until_complete(reads())
        return FrameDecoder().feed(channel.take())

    async def _idle(self, rounds: int = 3) -> None:
        """Wait until nothing runs any more but this."""
        end = self.loop.time() + _WAIT_S
        for _ in range(rounds):
            await asyncio.sleep(0)
        while others := _others():
            await asyncio.wait(others, timeout=1)
            assert self.loop.time() < end, f"still running: {list(others)}"
        tables = self.core.topics._late, self.core.groups._late

        def is_idle() -> bool:
            return not self.core.dispatcher.running and not any(t._gathering or t._writing for t in tables)

        await until(is_idle, _WAIT_S)
        await asyncio.sleep(0)


def _others() -> Iterable[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}
