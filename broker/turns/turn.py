"""One turn of the network loop: all messages that it has read are stored by one write and answered after it.

While a turn lasts, processors hand over messages (`Turn.put`, `Turn.put_request`, and a whole batch as columns by
`Turn.put_uniform`). Each is shown to the plug-ins at once, goes to the level scheduler's topic if it asks for a level,
and becomes a finished record. At the end of the turn `Turn.commit` makes

1. one ``commit_turn`` of the plug-ins: everything that they keep for later, as one frame;
2. one ``put_batch`` of the store: everything else, as one write;
3. the replies, which the server sends as one write for each connection.

If the store refuses a part of a batch, the plug-ins take their part back. The batch is answered when that is durable;
the other requests of the turn do not wait for it. Under SYNC_FLUSH a ticket for 1 and 2 goes to the flusher, and the
replies are made when it reports that the bytes are durable: nothing is answered before the promise of the flush mode
is true. Meanwhile the next turns go on; one sync serves all turns that wait for it. After a failed sync the answer is
FLUSH_DISK_TIMEOUT, which in RocketMQ means "stored, but perhaps not on the disk".

Cost: for one message a `PutSend`, a `PutRecord` and the record itself; no closure, no dictionary, no command.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.net.channel import Channel
from broker.tables.table_writer import NotYetError, Waited
from broker.turns.durable_replies import DurableReplies
from broker.turns.large_batch import LargeBatch, Looking
from broker.turns.plugin_chain import chained, chained_for_batches, committed_by, taken_back_by
from broker.turns.put_request import Entry, PutRequest, PutSend, request_of_held, request_of_large, request_of_rows
from broker.turns.recall_handle import recallable
from remoting.codes import FLAG_ONEWAY
from remoting.command import REGION, RemotingCommand
from remoting.messages.message import Message, MessageError, UniformBatch, encode_record, message_keys, tags_code
from remoting.messages.proof import VOUCHER, vouching_flag
from store.disk.errors import StoreError
from store.put.plugin_abilities import Aside, AsidePlugin
from store.put.plugin_api import (
    Held,
    OneByOne,
    Plugin,
    Put,
    PutRecord,
    PutResult,
    PutRows,
    PutStatus,
    Refused,
    Unsettled,
)
from store.put.put_group import put_of

if TYPE_CHECKING:
    from store.disk.ticket import Ticket
    from store.message_store import MessageStore

__all__ = ["Turn"]

_LOG = logging.getLogger(__name__)
_STORED = frozenset((PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT))


class Turn(DurableReplies):
    """The messages that the current turn has gathered. Only the network loop uses it.

    Args:
        store: Where messages are appended; its ``store_host`` must be set.
        plugins: Asked in this order; the first one that holds or refuses a message decides.
        route_level: Redirects a message with a delay level to the level scheduler's topic; returns its delay in ms, or
            0.
        wake_levels: Called with the earliest due time (epoch ms) of a turn's level messages.
        schedule: Called at the first message of a turn: must let `commit` be called at its end.
        flush_sync: SYNC_FLUSH.
        call_soon_threadsafe: Runs something in the network loop; called from the flusher's thread.
        region, trace_on: MSG_REGION and TRACE_ON of replies.
        recall_name: The broker's name in recall handles; None: no handles are given out.
        waiting_max: Most sends that may wait for their sync (``sendThreadPoolQueueCapacity``).
    """

    def __init__(
        self,
        store: MessageStore,
        plugins: Sequence[Plugin],
        *,
        route_level: Callable[[Message], int],
        wake_levels: Callable[[int], None],
        schedule: Callable[[], None] = lambda: None,
        flush_sync: bool = False,
        call_soon_threadsafe: Callable[[Callable[[], None]], object] = lambda call: call(),
        region: str = REGION,
        trace_on: bool = True,
        recall_name: str | None = None,
        waiting_max: int = 10_000,
    ) -> None:
        super().__init__(store, region, trace_on, call_soon_threadsafe, waiting_max)
        self._plugins = tuple(plugins)
        self._before_put = chained(self._plugins)
        self._before_put_batch = chained_for_batches(self._plugins)
        self._route_level = route_level
        self._wake_levels = wake_levels
        self._schedule = schedule
        self._flush_sync = flush_sync
        self._recall_name = recall_name
        self._entries: list[Entry] = []
        self._messages = 0  # of this turn
        self._held = 0  # of these, those that plug-ins hold
        self._mixed = False  # whether a request of this turn is partly held, partly appended
        self._level_delay_ms = 0  # the shortest of this turn; 0: no level message
        self.tally: Callable[[Sequence[Put], Sequence[PutResult]], None] | None = None  # counts by topic
        self.large_batch: Callable[[], Waited | None] = lambda: None
        """The large batch that is being checked in slices; None if there is none."""
        self.put_count = 0
        """Messages stored or held since the start."""
        self.turn_count = 0
        """Turns that had messages since the start."""

    # ------------------------------------------------------------------------------------------------ gathering

    def put(
        self, channel: Channel, command: RemotingCommand, message: Message, unique_key: str, now_ms: int
    ) -> RemotingCommand | None:
        """Gather one send, to be answered after the turn; returns the reply if it is refused at once.

        Raises NotYetError if it depends on a message that is not stored yet.
        """
        queue_id = message.queue_id
        put: Put | None = None
        held: Held | None = None
        outcome = None if self._before_put is None else self._before_put(message, now_ms)
        if outcome is None:
            try:
                if "DELAY\x01" in message.properties:
                    self._note_level(self._route_level(message))
                record = encode_record(message, self.store_host)
                properties = message.properties
            except MessageError as error:
                return self.refusal(command, PutStatus.MESSAGE_ILLEGAL, str(error))
            keys = message_keys(properties) if "KEYS\x01" in properties else (unique_key,)
            put = PutRecord(message.topic, message.queue_id, record, tags_code(properties), keys, message.due_ms)
        elif isinstance(outcome, Refused):
            if isinstance(outcome, Unsettled):
                raise NotYetError(self._end_early)
            return self.refusal(command, outcome.status, outcome.remark)
        else:
            held = outcome
            self._held += 1
        entries = self._entries
        if not entries:
            self._schedule()
        self._messages += 1
        asker = None if command.flag & FLAG_ONEWAY else channel
        if self._recall_name is not None and held is not None:
            request = recallable(self, command, message, unique_key, held, self._recall_name)
            request.asked_by(asker, command)
            entries.append(request)
        else:
            entries.append(PutSend(asker, command, put, queue_id, unique_key, held))
        return None

    def put_request(
        self,
        channel: Channel,
        command: RemotingCommand,
        messages: Sequence[Message],
        answer: Callable[[list[PutResult]], RemotingCommand | None],
        now_ms: int,
        copies: bool = False,
    ) -> RemotingCommand | None:
        """Gather a request of several messages, all or none; returns the reply if one of them is refused at once.

        ``answer`` makes the reply from one result for each message (a held one has its virtual offset); ``copies``: of
        stored messages. Raises NotYetError as `put` does.
        """
        request = PutRequest(answer)
        records: list[PutRecord] = []
        shortest_ms = 0
        try:
            for message in messages:
                outcome = None if self._before_put is None else self._before_put(message, now_ms)
                if isinstance(outcome, Refused):
                    outcome = request.settled(outcome)
                if isinstance(outcome, Unsettled):
                    raise NotYetError(self._end_early)
                if isinstance(outcome, Refused):
                    self._take_back(request)
                    return self.refusal(command, outcome.status, outcome.remark)
                request.parts.append(outcome)
                if outcome is None:
                    if message.prepared_offset == VOUCHER:
                        if records:
                            message.flag = vouching_flag(records[-1].record)
                        else:  # a plug-in holds the message before it: another record will precede this one
                            message.prepared_offset = 0
                    record, delay_ms = self._encoded(message)
                    if delay_ms and not 0 < shortest_ms < delay_ms:
                        shortest_ms = delay_ms
                    records.append(record)
        except MessageError as error:
            self._take_back(request)
            return self.refusal(command, PutStatus.MESSAGE_ILLEGAL, str(error))
        except BaseException:
            # Also for NotYetError: the request comes again, and its messages with it.
            self._take_back(request)
            raise
        self._note_level(shortest_ms)
        if records:
            request.put = put_of(records)
            request.put.copied = copies
        self._held += len(request.parts) - len(records)
        self._gather(channel, command, request, len(request.parts))
        return None

    def put_uniform(
        self,
        channel: Channel,
        command: RemotingCommand,
        batch: UniformBatch,
        answer: Callable[[PutResult, Sequence[int]], RemotingCommand | None],
        now_ms: int,
    ) -> bool:
        """Gather a client batch as columns; False: nothing was done, gather its messages one by one.

        Its properties include none of the broker's own, no level and no transaction mark. ``answer`` makes the reply
        from the result of its first message and the positions of all messages, real or virtual.
        """
        outcome = self._before_put_batch(batch, now_ms)
        if isinstance(outcome, OneByOne):
            return False
        if outcome is not None:
            self._held += len(batch)
            self._gather(channel, command, request_of_held(outcome, answer), len(batch))
            return True
        try:
            request = request_of_rows(PutRows(batch, self.store_host), answer)
        except MessageError:
            return False
        self._gather(channel, command, request, len(batch))
        return True

    def put_large(
        self,
        channel: Channel,
        command: RemotingCommand,
        batch: LargeBatch,
        answer: Callable[[list[PutResult]], RemotingCommand | None],
    ) -> None:
        """Gather a large batch that was checked in slices. ``answer`` gets one result for all appended messages, if
        there are any, and one for all that plug-ins hold.
        """
        request = request_of_large(batch, answer)
        for aside in request.asides:
            aside.put_back()
        self._note_level(batch.level_delay_ms)
        self._held += len(batch.held_ids)
        self._gather(channel, command, request, batch.count)

    def looking(self) -> Looking | None:
        """The turn's work for each message of a large batch; None if a plug-in cannot check one in slices."""
        if not all(isinstance(plugin, AsidePlugin) for plugin in self._plugins):
            return None
        return Looking(self._before_put, self._before_put_batch, self._encoded, self.store_host, self.end_held)

    def asides(self) -> list[Aside]:
        """Begin a large batch in each plug-in; returns what holds its messages."""
        return [plugin.aside() for plugin in self._plugins if isinstance(plugin, AsidePlugin)]

    def _encoded(self, message: Message) -> tuple[PutRecord, int]:
        """The put of a message of a batch, and the delay of its level in ms (0: none). Raises MessageError."""
        delay_ms = self._route_level(message) if "DELAY\x01" in message.properties else 0
        record = encode_record(message, self.store_host)
        code, keys = tags_code(message.properties), message_keys(message.properties)
        return PutRecord(message.topic, message.queue_id, record, code, keys, message.due_ms), delay_ms

    def end_held(self) -> None:
        """End the turn now if plug-ins hold anything of it."""
        if self._held:
            self.commit()

    def _end_early(self) -> Waited | None:
        """End the turn for a message that depends on another; returns what to wait for if that is in a large batch."""
        if not self._entries:
            return self.large_batch()
        self.commit()
        return None

    def _gather(self, channel: Channel, command: RemotingCommand, request: PutRequest, messages: int) -> None:
        self._messages += messages
        self._mixed = self._mixed or (request.put is not None and request.is_held)
        if not self._entries:
            self._schedule()
        request.asked_by(None if command.flag & FLAG_ONEWAY else channel, command)
        self._entries.append(request)

    def _note_level(self, delay_ms: int) -> None:
        if delay_ms and not 0 < self._level_delay_ms < delay_ms:
            self._level_delay_ms = delay_ms

    def _take_back(self, request: PutRequest) -> None:
        """Let the plug-ins forget their messages of a request that is refused as a whole."""
        if request.asides:
            for aside in request.asides:
                aside.take_back()
            return
        for held in request.parts:
            if held is not None:
                for plugin in self._plugins:
                    plugin.take_back(held)

    # ------------------------------------------------------------------------------------------------ the end of a turn

    def commit(self) -> None:
        """End the turn: store what it has gathered, and answer."""
        entries = self._entries
        if not entries:
            return
        try:
            if self._mixed:
                # No held message may be delivered before it is known whether the rest of its batch was stored: after
                # a delivery it could not be taken back.
                with self._store.checkpoint.lock:
                    stored = self._store_all(entries)
            else:
                stored = self._store_all(entries)
        except Exception:
            _LOG.exception("a turn of %d requests failed", len(entries))
            self.answer_failed(entries, PutStatus.UNKNOWN_ERROR, "the broker's log has the details")
            return
        entries, results, ticket = stored
        self.turn_count += 1
        if ticket is None:
            self.answer(entries, results, True)
        else:
            self.answer_after(ticket, entries, results)

    def _store_all(self, entries: list[Entry]) -> tuple[list[Entry], Sequence[PutResult], Ticket | None]:
        """Journal what is held, append the rest; returns the entries to answer, with the store's results."""
        messages, held, level_delay_ms, mixed = self._messages, self._held, self._level_delay_ms, self._mixed
        self._entries, self._messages, self._held, self._level_delay_ms, self._mixed = [], 0, 0, 0, False
        ticket: Ticket | None = None
        results: Sequence[PutResult] = ()
        # Plug-ins first: what they hold can be taken back if the store refuses the rest; an append cannot.
        if held:
            try:
                ticket = committed_by(self._plugins)
            except StoreError as error:
                _LOG.error("%d delayed messages were refused: %s", held, error)
                self._refuse([entry for entry in entries if entry.is_held], str(error))
                entries = [entry for entry in entries if not entry.is_held]
        puts = [entry.put for entry in entries if entry.put is not None]
        if puts:
            results = self._store.put_batch(puts)
            if self.tally is not None:
                self.tally(puts, results)
            if level_delay_ms:
                self._wake_levels(results[0].store_ms + level_delay_ms)
            if self._flush_sync:
                ticket = self._store.commit_ticket().joined(ticket)
        self.put_count += messages
        if mixed and results:
            entries, results = self._take_back_refused(entries, results)
        return entries, results, ticket if self._flush_sync else None

    def _refuse(self, entries: list[Entry], remark: str) -> None:
        """Answer that nothing was stored, as soon as no crash can bring back what plug-ins had written of it."""
        ticket = taken_back_by(self._plugins)
        if ticket is None:
            self.answer_failed(entries, PutStatus.SERVICE_NOT_AVAILABLE, remark)
            return
        self.refuse_after(ticket, entries, remark)

    def _take_back_refused(
        self, entries: list[Entry], results: Sequence[PutResult]
    ) -> tuple[list[Entry], Sequence[PutResult]]:
        """If the store refused a part of a batch, take back what plug-ins hold of it.

        Such batches are answered when no crash can bring that back. Returns the other entries and their results.
        """
        refused: list[tuple[Entry, PutResult]] = []
        others: list[Entry] = []
        left: list[PutResult] = []
        number = 0
        for entry in entries:
            if entry.put is None:
                others.append(entry)
                continue
            result = results[number]
            number += 1
            if result.status not in _STORED and isinstance(entry, PutRequest) and entry.is_held:
                self._take_back(entry)
                refused.append((entry, result))
            else:
                others.append(entry)
                left.append(result)
        ticket = taken_back_by(self._plugins) if refused else None
        if ticket is None:
            return entries, results
        self.answer_after(ticket, [entry for entry, _ in refused], [result for _, result in refused], durably=True)
        return others, left
