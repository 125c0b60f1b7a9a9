"""Pops: POP_MESSAGE (200050), with long polling.

A pop names a topic and a group. It gets messages, of any queue, that no other consumer of the group holds. The
consumer acknowledges them within their invisible time (`broker.pop.acks`); otherwise they are delivered again
(`broker.pop.reviver`). Every fifth pop looks at the group's retry topics first, the others look at them last. The
queues take turns at being first. A pop that finds nothing waits, as a pull does, until a message arrives, is delivered
again, or is no longer blocked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from broker.net.asides import ASKER, Asides, AskerGoneError
from broker.net.channel import KEPT_OF_ONE_MAX_BYTES, Channel
from broker.net.processor import Handler
from broker.pop.handle import ORDER_QID, name_problem
from broker.pop.pop_polls import PopPolls
from broker.pop.pop_reader import PopReader
from broker.pop.requests import INVISIBLE_MAX_MS, Checks, PopHeader, bare
from broker.pop.under_way import Cold, Pop, Read, Work
from broker.pulling.long_poll import Hold, LongPoll
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.errors import ProtocolError
from remoting.filters.sql_filter import SQL92, compile_sql92
from remoting.filters.subscription import TagFilter, split_expression
from store.disk.errors import StoreError

__all__ = ["PopProcessor"]

_LOG = logging.getLogger(__name__)

_LATE_MS = 500
_HOLD_MAX_MS = 300_000
_OF_ONE_MAX = 4_096
_KEPT_BYTES = 3_000
_EXPRESSION_CHAR_BYTES = 150
_REVIVE_QUEUES = 8


class PopProcessor:
    """Answers pops.

    Args:
        reader: Looks at queues.
        checks: Refuses pops that may not read a topic.
        polls: Knows which held pops an arrival wakes.
        long_poll: Holds pops that wait.
        spawn: Runs a coroutine that answers later.
        now_ms: The clock, for pops that have waited.
        send: Sends a reply once the journal of pops has its changes (`broker.pop.answers`).
        waiting: Returns how many requests wait for messages or the disk, and how many may.
    """

    def __init__(
        self,
        *,
        reader: PopReader,
        checks: Checks,
        polls: PopPolls,
        long_poll: LongPoll,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        now_ms: Callable[[], int],
        send: Callable[[Channel, RemotingCommand, RemotingCommand], None],
        waiting: Callable[[], tuple[int, int]] = lambda: (0, 100_000),
    ) -> None:
        self._reader = reader
        self._checks = checks
        self._polls = polls
        self._long_poll = long_poll
        self._spawn = spawn
        self._now_ms = now_ms
        self._send = send
        self._waiting = waiting
        self._asides = Asides()
        self._cold = 0
        self.message_count = 0
        """Messages handed out since the start."""
        self.owing_count = 0
        """Answers that left messages for another whole answer behind: their consumers are behind."""

    @property
    def reading(self) -> int:
        """Pops that wait for the disk."""
        return self._cold

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.POP_MESSAGE: self.pop}

    # ------------------------------------------------------------------------------------------------ a request

    def pop(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand | None:
        """POP_MESSAGE."""
        channel.state.consumes = True
        needed = ("maxMsgNums", "invisibleTime", "pollTime", "initMode")
        header = PopHeader(command.ext, now_ms, *needed)
        if command.is_oneway:
            return None  # nobody would get the messages
        if header.end_ms + _LATE_MS < now_ms:
            remark = (
                f"pop message is timeout too much: bornTime {header.born_ms} and pollTime {header.poll_ms} are over"
            )
            return command.reply(ResponseCode.POLLING_TIMEOUT, remark, self._fields(header, now_ms))
        topic = self._checks.readable(channel, command, header, "pop")
        if isinstance(topic, RemotingCommand):
            return topic
        problem = name_problem(header.topic, header.group)
        if problem:
            return command.reply(ResponseCode.INVALID_PARAMETER, problem)
        if not 0 < header.invisible_ms <= INVISIBLE_MAX_MS:
            remark = f"invisibleTime is {header.invisible_ms} ms: 1 to {INVISIBLE_MAX_MS} are possible"
            return command.reply(ResponseCode.INVALID_PARAMETER, remark)
        pop = Pop(channel, command, header, topic.read_queue_nums)
        refused = self._select(pop)
        if refused is not None:
            return refused
        pop.command = bare(command)  # it may have to wait
        if not self._try(pop, now_ms, self._answer_or_hold):
            self._answer_or_hold(pop, now_ms)
        return None

    def _select(self, pop: Pop) -> RemotingCommand | None:
        """Read the expression into the pop; returns the reply that refuses a bad one.

        As with Apache's broker, pops may filter by properties whatever ``enablePropertyFilter`` says of pulls.
        """
        kind, text = pop.header.expression_type, pop.header.expression
        if not text:
            return None
        try:
            if kind in ("", "TAG"):
                tags = split_expression(text)
                pop.filter = None if tags is None else TagFilter.from_tags(tags)
                if pop.filter is not None and pop.filter.codes is None:
                    pop.filter = None
                return None
            if kind != SQL92:
                raise ProtocolError(f"expType is {kind:.80}: TAG or {SQL92} are possible")
            pop.wants = compile_sql92(text)
        except ProtocolError as error:
            remark = f"parse the consumer's subscription failed: {error}"
            return pop.command.reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        return None

    def _try(self, pop: Pop, now_ms: int, later: Callable[[Pop, int], None]) -> bool:
        """Look at all queues; returns whether the pop is answered, or will be after disk reads (else by ``later``)."""
        header = pop.header
        # Before the look: what arrives during it will differ from this mark.
        mark = self._polls.add(header.topic, header.group, header.queue_id)
        pop.begin(self._reader.pop_ms(now_ms), mark)
        work = self._reader.look(pop)
        try:
            need = next(work)
        except StopIteration:
            return self._found(pop)
        self._cold += 1
        pop.channel.keep(_KEPT_BYTES)
        self._spawn(self._go_on(pop, work, need, later))
        return True

    async def _go_on(self, pop: Pop, work: Work, need: Cold | None, later: Callable[[Pop, int], None]) -> None:
        """Go on with a look that waits for the disk, or for its turn among other long looks."""
        ASKER.set(pop.channel)
        try:
            while True:
                if need is None:
                    pop.work = 0
                    await self._asides.begin()
                    try:
                        await asyncio.sleep(0)
                        need = work.send(None)
                    finally:
                        self._asides.end()
                else:
                    need = work.send(await self._read(pop, need))
        except StopIteration:
            if not self._found(pop):
                later(pop, self._now_ms())
        except AskerGoneError:
            pass
        except Exception as error:
            self._failed(pop, error)
        finally:
            work.close()
            self._cold -= 1
            pop.channel.keep(-_KEPT_BYTES)

    async def _read(self, pop: Pop, need: Cold) -> Read | None:
        """Read what a look needs; None if that fails. The pop then goes on with other queues."""
        try:
            return await self._reader.read(pop, need)
        except StoreError as error:
            _LOG.error("a pop of %s by %s cannot read a queue: %s", pop.header.topic, pop.header.group, error)
            pop.problem = str(error)
            return None

    def _failed(self, pop: Pop, error: Exception) -> None:
        _LOG.error("a pop of %s by %s failed: %s", pop.header.topic, pop.header.group, error)
        reply = pop.command.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        pop.channel.send_at_once(encode_command(reply))

    # ------------------------------------------------------------------------------------------------ answering

    def _fields(self, header: PopHeader, pop_ms: int) -> dict[str, str]:
        revive_qid = ORDER_QID if header.order else self._reader.turn % _REVIVE_QUEUES
        return {
            "popTime": str(pop_ms),
            "invisibleTime": str(header.invisible_ms),
            "reviveQid": str(revive_qid),
            "restNum": "0",
        }

    def _answer(self, pop: Pop, code: ResponseCode, remark: str) -> None:
        ext = self._fields(pop.header, pop.pop_ms)
        ext["restNum"] = str(pop.rest)
        ext["startOffsetInfo"] = ";".join(pop.starts)
        ext["msgOffsetInfo"] = ";".join(pop.offsets)
        if pop.header.order:
            ext["orderCountInfo"] = ";".join(pop.counts)
        self._send(pop.channel, pop.command, pop.command.reply(code, remark, ext, b"".join(pop.bodies)))

    def _found(self, pop: Pop) -> bool:
        """Answer a pop that has got messages or has failed; returns whether it was answered."""
        if pop.count:
            self.message_count += pop.count
            self.owing_count += pop.rest >= pop.header.max_count
            self._answer(pop, ResponseCode.SUCCESS, "FOUND")
            return True
        if pop.problem:
            self._answer(pop, ResponseCode.SYSTEM_ERROR, f"not popped: {pop.problem}")
        return bool(pop.problem)

    def _answer_or_hold(self, pop: Pop, now_ms: int) -> None:
        """Hold a pop that got nothing, or answer it if it may not wait."""
        header, channel = pop.header, pop.channel
        waiting, most = self._waiting()
        if channel.closed:
            return
        if header.poll_ms <= 0 or header.end_ms <= now_ms or header.max_count == 0:
            self._answer(pop, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
            return
        if waiting >= most or len(channel.state.holds) >= _OF_ONE_MAX or channel.kept_bytes >= KEPT_OF_ONE_MAX_BYTES:
            self._answer(pop, ResponseCode.POLLING_FULL, "NO_MESSAGE_IN_QUEUE")
            return
        key = self._polls.key(header.topic, header.group, header.queue_id)
        until_ms = min(header.end_ms, now_ms + _HOLD_MAX_MS)
        size = _KEPT_BYTES + _EXPRESSION_CHAR_BYTES * len(header.expression)
        kind = f"{header.order} {header.attempt_id}\0{header.expression_type}\0{header.expression}"
        self._long_poll.hold(Hold(channel, key, until_ms, lambda final: self._look_again(pop, final), size, kind))
        if pop.more or self._polls.add(header.topic, header.group, header.queue_id) != pop.mark:
            self._polls.wake(header.topic, header.group)  # a message has arrived since, and found no held pop to wake

    def _look_again(self, pop: Pop, final: bool) -> bool:
        """Look again for a held pop; returns whether it has been answered, or will be."""
        topic = self._checks.readable(pop.channel, pop.command, pop.header, "pop", held=True)
        if isinstance(topic, RemotingCommand):
            pop.channel.send(encode_command(topic))
            return True
        pop.queue_nums = topic.read_queue_nums
        try:
            answered = self._try(pop, self._now_ms(), self._end if final else self._answer_or_hold)
        except Exception as error:  # other held pops must still be served
            self._failed(pop, error)
            return True
        if final and not answered:
            self._end(pop, 0)
        elif pop.more and not answered:
            self._polls.wake(pop.header.topic, pop.header.group)
        return answered or final

    def _end(self, pop: Pop, _now_ms: int) -> None:
        self._answer(pop, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
