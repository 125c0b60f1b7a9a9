"""Dispatches requests to processors by their code, and pushes requests of our own to clients.

A processor is any object with ``handlers()``: a mapping of request code to a method ``(channel, command, now_ms)``
that returns

===============  =====================================================================================
RemotingCommand  the reply, sent at once (and dropped if the request was one-way)
None             no reply, or one that comes later: the method sends it itself
coroutine        runs as a task; its result is treated in the same way
NotYetError      (raised) the request is handled again, or answered, when what it needs is there
===============  =====================================================================================

Each port answers its own codes only, so a firewall in front of a port protects its codes.

A method raises `HeaderError` (or another ProtocolError) for a request that it cannot read. That error, and any bug, is
answered with SYSTEM_ERROR and the error's text, and the connection stays usable. A request whose reply would not fit
into a frame gets SYSTEM_ERROR, too: Apache's frames also end at 16 MiB, and its clients close a connection that brings
a longer one.

A request that runs as a task waits for a client (request-reply, questions of administrators) or for the disk, and is
kept whole until it is answered. Its bytes count as kept for its connection. Beyond `KEPT_OF_ONE_MAX_BYTES` of one
connection, or ``running_max`` requests of all, further ones are refused with SYSTEM_BUSY. The same holds for requests
that wait for a table.

When a table is written, the requests that waited for it are queued. `_SLICE` of them are handled in one turn of the
loop, fewer if that takes `_SLICE_MS`, in order of arrival. Those of a closed connection are dropped, except those that
have changed a table: if a client deletes a topic and disconnects, its messages are deleted all the same. Requests that
a connection sends while some of its own are queued are queued behind them. So no send overtakes an earlier one of the
same connection to the same new topic: the topic becomes visible at the same moment at which the earlier send is queued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from heapq import heappop, heappush
from typing import Any

from broker.net.asides import ASKER, AskerGoneError
from broker.net.asking import Asking
from broker.net.channel import (
    BROKER_PORT,
    KEPT_OF_ONE_MAX_BYTES,
    NAME_SERVER_PORT,
    NO_PORT,
    SHARDS_PORT,
    Channel,
    kept_size,
    peer_text,
)
from broker.net.processor import Guard, Handler, Processor, Reply
from broker.tables.table_writer import NotYetError
from remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.errors import ProtocolError

__all__ = ["Dispatcher"]


_LOG = logging.getLogger(__name__)
_SLICE = 64
"""Most queued requests handled in one turn of the loop, and most requests of one read that start to wait."""
_SLICE_MS = 10
"""The same in time: 64 deletions of topics take longer, each goes through the offsets of all groups."""
_TABLES_MAX = 16
"""Tables that one request may wait for, one after the other: its group, the group's retry topic, the dead letters."""


class _Wait:
    """A request that waits for a table, or is queued behind one that did."""

    __slots__ = ("again", "channel", "command", "error", "number", "size", "then")

    def __init__(self, channel: Channel, command: RemotingCommand, size: int, number: int) -> None:
        self.channel = channel
        self.command = command
        self.size = size
        self.number = number  # in the order in which requests came
        self.again = 0  # number of tables it has waited for
        self.then: Callable[[], Reply] | None = None
        self.error: Exception | None = None


class Dispatcher(Asking):
    """The table of handlers and the requests under way. Only the network loop uses it.

    Args:
        now_ms: The clock that handlers are told.
        spawn: Runs a coroutine; by default as a task of the running loop.
        running_max: Most requests that wait for a client's answer or the disk (``replyThreadPoolQueueCapacity``).
        call_soon: Runs a function in one of the next turns of the loop.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], None] | None = None,
        running_max: int = 10_000,
        call_soon: Callable[[Callable[[], None]], object] = lambda call: call(),
    ) -> None:
        self._now_ms = now_ms
        self.spawn = spawn or self._spawn_task
        ports = (BROKER_PORT, NAME_SERVER_PORT, SHARDS_PORT, NO_PORT)
        self._handlers: dict[str, dict[int, Handler]] = {port: {} for port in ports}
        self.guard: Guard | None = None
        """Asked before every handler that is added after it is set."""
        self.call_soon = call_soon
        """Runs something in one of the next turns of the loop (any thread)."""
        self._line: list[tuple[int, _Wait]] = []
        self._number = 0
        self._line_moves = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.running_max = running_max
        self.running = 0
        """Requests that run as tasks and are not answered yet."""
        self.refused_count = 0
        """Requests refused since the start because too many ran."""

    def add(self, processor: Processor, port: str = BROKER_PORT) -> None:
        """Register a processor for its codes on one of the ports."""
        handlers = self._handlers[port]
        for code, handler in processor.handlers().items():
            free = self.guard is None or port == SHARDS_PORT
            handlers[int(code)] = handler if free or self.guard is None else _guarded(self.guard, handler)

    def codes(self, port: str = BROKER_PORT) -> set[int]:
        """List the codes that are answered on a port."""
        return set(self._handlers[port])

    def received(self, channel: Channel, commands: Sequence[RemotingCommand]) -> None:
        """Handle the requests of one read of a channel, in order."""
        now_ms = self._now_ms()
        handlers = self._handlers[channel.state.port]
        in_line = channel.state.waits_in_line > 0 or channel.state.parked is not None
        wait_count = 0
        for command in commands:
            handler = handlers.get(command.code)
            if command.flag & FLAG_RESPONSE:
                self.answered(channel, command)
                continue
            if in_line:
                wait = self._kept(channel, command)
                if wait is not None:
                    self._stand_in_line(wait)
                continue
            if handler is None:
                self.answer(channel, command, self._not_supported(command))
                continue
            try:
                result = handler(channel, command, now_ms)
            except NotYetError as need:
                self._wait(self._kept(channel, command), need)
                wait_count += 1
                in_line = wait_count >= _SLICE or need.alone is not None  # the rest of the read in later turns
                continue
            except Exception as error:
                self._failed(channel, command, error)
                continue
            if result is None:
                continue
            if isinstance(result, RemotingCommand):
                self.answer(channel, command, result)
                if channel.closed:
                    return  # the channel was closed because its peer takes no replies: do not make more of them
            else:
                self._run_later(channel, command, result)

    @staticmethod
    def _not_supported(command: RemotingCommand) -> RemotingCommand:
        remark = f" request type {command.code} not supported"
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def answer(self, channel: Channel, command: RemotingCommand, reply: RemotingCommand) -> None:
        """Send a reply, unless the request was one-way; send an error instead if the reply exceeds a frame."""
        if command.flag & FLAG_ONEWAY:
            return
        try:
            frame = encode_command(reply)
        except ProtocolError as error:
            _LOG.warning("%s: no reply to request %d: %s", peer_text(channel), command.code, error)
            remark = f"the reply to request {command.code} cannot be sent: {error!s:.300}; ask for less at a time"
            frame = encode_command(command.reply(ResponseCode.SYSTEM_ERROR, remark))
        channel.send_at_once(frame)

    async def stop(self) -> None:
        """Cancel the requests that still run."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _failed(self, channel: Channel, command: RemotingCommand, error: Exception) -> None:
        if isinstance(error, ProtocolError):
            _LOG.warning("%s: request %d refused: %s", peer_text(channel), command.code, error)
        else:
            _LOG.exception("%s: request %d failed", peer_text(channel), command.code, exc_info=error)
        text = f"{type(error).__name__}: {error}"
        self.answer(channel, command, command.reply(ResponseCode.SYSTEM_ERROR, text))

    # ------------------------------------------------------------------------------------------- waiting for tables

    def _kept(self, channel: Channel, command: RemotingCommand) -> _Wait | None:
        """Keep a request as the newest one; None if it was refused."""
        size = self._keep(channel, command)
        if size is None:
            return None
        self._number += 1
        return _Wait(channel, command, size, self._number)

    def _wait(self, wait: _Wait | None, need: NotYetError) -> None:
        """Let a request wait until a table is written."""
        if wait is not None:
            wait.again += 1
            wait.then = need.then
            batch = need.begin()
            if batch is None:
                self._written(wait, None)
            elif need.alone is None:
                batch.waiting.append(lambda error: self._written(wait, error))
            else:
                wait.channel.state.parked = []
                batch.waiting.append(lambda error: self._released(wait, error))
                # Only when it is in `waiting`: the work may end within this call.
                need.alone()

    def _released(self, wait: _Wait, error: Exception | None) -> None:
        """Queue a request whose table is written, and behind it all that waited for that request."""
        parked, wait.channel.state.parked = wait.channel.state.parked or [], None
        self._written(wait, error)
        for behind in parked:
            self._stand_in_line(behind)

    def _written(self, wait: _Wait, error: Exception | None) -> None:
        """Queue a request whose table is written."""
        wait.error = error
        self._stand_in_line(wait)

    def _stand_in_line(self, wait: _Wait) -> None:
        if wait.channel.state.parked is not None:
            wait.channel.state.parked.append(wait)
            return
        # Numbers differ, so the heap never compares two `_Wait`.
        heappush(self._line, (wait.number, wait))
        wait.channel.state.waits_in_line += 1
        if not self._line_moves:
            self._line_moves = True
            self.call_soon(self._move_line)

    def _move_line(self) -> None:
        """Handle some of the queued requests."""
        end_ms = self._now_ms() + _SLICE_MS
        try:
            for number in range(min(_SLICE, len(self._line))):
                if number and self._now_ms() >= end_ms:
                    break
                wait = heappop(self._line)[1]
                wait.channel.state.waits_in_line -= 1
                if wait.channel.state.parked is not None:
                    wait.channel.state.parked.append(wait)
                elif not self._waits_on(wait):
                    self.running -= 1
                    wait.channel.keep(-wait.size)
        finally:
            self._line_moves = bool(self._line)
            if self._line_moves:
                self.call_soon(self._move_line)

    def finish_line(self) -> None:
        """Handle all queued requests now, because the broker stops."""
        while self._line:
            self._move_line()

    def _waits_on(self, wait: _Wait) -> bool:
        """Handle a queued request; answer whether it has to wait for another table."""
        channel, command = wait.channel, wait.command
        if channel.closed and (wait.then is None or wait.error is not None):
            return False  # nobody waits for the answer; only a request with a ``then`` must be finished
        if wait.error is not None:
            self._failed(channel, command, wait.error)
            return False
        try:
            if wait.then is not None:
                result: Reply | Coroutine[Any, Any, Reply] = wait.then()
            else:
                handler = self._handlers[channel.state.port].get(command.code)
                if handler is None:
                    result = self._not_supported(command)
                else:
                    result = handler(channel, command, self._now_ms())
        except NotYetError as need:
            if wait.again < _TABLES_MAX:
                self._wait(wait, need)
                return True
            self._failed(channel, command, need)
            return False
        except Exception as error:
            self._failed(channel, command, error)
            return False
        if isinstance(result, RemotingCommand):
            self.answer(channel, command, result)
        elif result is not None:
            self._run_later(channel, command, result)
        return False

    # ------------------------------------------------------------------------------------------- running as tasks

    def _keep(self, channel: Channel, command: RemotingCommand) -> int | None:
        """Count a request that is kept until it is answered; return its size, or None if it was refused."""
        size = kept_size(command)
        kept = channel.kept_bytes + size
        if self.running >= self.running_max or kept > KEPT_OF_ONE_MAX_BYTES:
            self.refused_count += 1
            remark = (
                f"[OVERLOAD]system busy, start flow control for a while: {self.running} requests wait to be answered "
                f"(limit replyThreadPoolQueueCapacity={self.running_max}); "
                f"with this one, {kept} bytes of this connection wait (limit {KEPT_OF_ONE_MAX_BYTES})"
            )
            self.answer(channel, command, command.reply(ResponseCode.SYSTEM_BUSY, remark))
            return None
        channel.keep(size)
        if channel.closed:  # all connections together kept too many bytes, and this one the most: it was closed
            return None
        self.running += 1
        return size

    def _run_later(self, channel: Channel, command: RemotingCommand, work: Coroutine[Any, Any, Reply]) -> None:
        """Run a request as a task, unless too many run."""
        size = self._keep(channel, command)
        if size is None:
            work.close()
        else:
            self.spawn(self._run(channel, command, work, size))

    async def _run(
        self, channel: Channel, command: RemotingCommand, work: Coroutine[Any, Any, Reply], size: int
    ) -> None:
        ASKER.set(channel)
        try:
            reply = await work
        except AskerGoneError:
            pass
        except NotYetError as need:
            self._wait(self._kept(channel, command), need)
        except Exception as error:
            self._failed(channel, command, error)
        else:
            if reply is not None:
                self.answer(channel, command, reply)
        finally:
            self.running -= 1
            channel.keep(-size)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _guarded(guard: Guard, handler: Handler) -> Handler:
    def guarded(channel: Channel, command: RemotingCommand, now_ms: int) -> Reply | Coroutine[Any, Any, Reply]:
        refusal = guard(channel, command)
        return handler(channel, command, now_ms) if refusal is None else refusal

    return guarded
