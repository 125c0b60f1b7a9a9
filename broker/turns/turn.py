"""One turn of the network loop: all messages that it has read are stored by one write and answered after it.

While a turn lasts, processors hand over messages (`Turn.put`, `Turn.put_request`, and a whole batch as columns by
`Turn.put_uniform`). Each is shown to the plug-ins at once, goes to the level scheduler's topic if it asks for a level,
and becomes a finished record. At the end of the turn `Turn.commit` makes

1. one ``commit_turn`` of the plug-ins: everything that they keep for later, as one frame;
2. one ``put_batch`` of the store: everything else, as one write;
3. the replies, which the server sends as one write for each connection.

Where the store refuses a part of a batch, plug-ins take theirs back, and the turn is answered when that is durable.
Under SYNC_FLUSH a ticket for both goes to the flusher between 2 and 3, and the replies are made when it says
that the bytes are durable: nothing is answered before the flush mode's promise is true. Meanwhile the next turns go
on; one sync serves all turns that wait for it. A sync that fails is answered with FLUSH_DISK_TIMEOUT, RocketMQ's word
for "stored, but not known to be on the disk".

Cost: for one message a tuple of six and what the record itself needs; no closure, no dictionary, no command.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.net.channel import Channel
from broker.turns.large_batch import LargeBatch, Looking
from broker.turns.plugin_chain import chained, chained_for_batches
from broker.turns.put_request import PutRequest, request_of_held, request_of_large, request_of_rows
from broker.turns.put_status import failure
from broker.turns.recall_handle import recallable
from remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from remoting.command import REGION, RemotingCommand, encode_command, send_reply_encoder
from remoting.messages.message import (
    Message,
    MessageError,
    UniformBatch,
    encode_record,
    message_ids,
    message_keys,
    tags_code,
)
from remoting.messages.proof import VOUCHER, vouching_flag
from store.disk.errors import StoreError
from store.log.commit_log import KEPT_BYTES_MAX
from store.put.plugin_api import (
    Aside,
    AsidePlugin,
    DurablyRefusingPlugin,
    Held,
    OneByOne,
    Plugin,
    PutRecord,
    PutResult,
    PutRows,
    PutStatus,
    Refused,
)
from store.put.ready_rows import ReadyRows

if TYPE_CHECKING:
    from store.disk.flusher import Ticket
    from store.message_store import MessageStore

__all__ = ["Turn"]

_LOG = logging.getLogger(__name__)
_PUT_OK = PutStatus.PUT_OK
_STORED = frozenset((PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT))

# channel (None: nobody wants a reply), serialize type, opaque, queue id as asked, unique key, and where it is:
# 0: the store's next result; above 0: held under this virtual offset; _REQUEST: the fifth is a `PutRequest` instead
_Entry = tuple[Channel | None, int, int, int, Any, int]
_REQUEST = -1


class Turn:
    """What the current turn has gathered. Only the network loop uses it.

    Args:
        store: Where messages are appended; its ``store_host`` must be set.
        plugins: Asked in this order; the first one that wants a message or refuses it decides.
        route_level: Sends a message with a delay level to the level scheduler's topic; its delay in ms, or 0.
        wake_levels: Told the earliest due time (epoch ms) of a turn's level messages.
        schedule: Has `commit` called at the end of the turn; called at the first message of each.
        flush_sync: SYNC_FLUSH.
        call_soon_threadsafe: Runs something in the network loop; called from the flusher's thread.
        region, trace_on: What replies carry as MSG_REGION and TRACE_ON.
        recall_name: The broker's name in recall handles, or None: none are given out.
        waiting_max: So many sends may wait for their sync (``sendThreadPoolQueueCapacity``).
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
        self._store = store
        self._store_host = store.store_host
        self.store_host = store.store_host
        """As records hold it."""
        self._id_prefix = store.store_host.hex().upper()
        self._plugins = tuple(plugins)
        self._before_put = chained(self._plugins)
        self._before_put_batch = chained_for_batches(self._plugins)
        self._route_level = route_level
        self._wake_levels = wake_levels
        self._schedule = schedule
        self._flush_sync = flush_sync
        self._call_soon_threadsafe = call_soon_threadsafe
        self._recall_name = recall_name
        self._encode_reply = send_reply_encoder(self._id_prefix)
        self._usual_reply = region == REGION and trace_on
        self.reply_ext = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
        self._entries: list[_Entry] = []
        self._records: list[PutRecord | PutRows | ReadyRows] = []
        self._held = 0
        self._in_rows = 0  # messages of this turn that are not records of their own
        self._batches = False  # whether a request of this turn has several records, which go together
        self._mixed = False  # whether a request of this turn is partly held, partly appended
        self._level_delay_ms = 0  # the shortest of this turn; 0: no level message
        self._durable: deque[tuple[list[_Entry], Sequence[PutResult], bool]] = deque()
        self._answering = False
        self.put_count = 0
        """Messages stored or held since the start."""
        self.turn_count = 0
        """Turns that had messages since the start."""
        self.waiting = 0
        """Requests that are stored and wait for their sync (SYNC_FLUSH): what a slow disk lets grow."""
        self.waiting_max = waiting_max
        self.unsynced_bytes = 0
        """What no sync has covered yet, as of the last `look_at_disk`."""
        self.refusing = False
        """Whether sends are to be turned away until the disk has caught up; `busy_remark` says why."""

    # ------------------------------------------------------------------------------------------------ gathering

    def put(
        self, channel: Channel, command: RemotingCommand, message: Message, unique_key: str, now_ms: int
    ) -> RemotingCommand | None:
        """Gather one send, to be answered after the turn; the reply if it is refused at once."""
        queue_id = message.queue_id
        at = 0
        outcome = None if self._before_put is None else self._before_put(message, now_ms)
        if outcome is None:
            try:
                if "DELAY\x01" in message.properties:
                    self._note_level(self._route_level(message))
                record = encode_record(message, self._store_host)
                properties = message.properties
            except MessageError as error:
                return self.refusal(command, PutStatus.MESSAGE_ILLEGAL, str(error))
            keys = message_keys(properties) if "KEYS\x01" in properties else (unique_key,)
            code = tags_code(properties)
            self._records.append(PutRecord(message.topic, message.queue_id, record, code, keys, message.due_ms))
        elif isinstance(outcome, Refused):
            return self.refusal(command, outcome.status, outcome.remark)
        else:
            self._held += 1
            at = outcome.offset
        entries = self._entries
        if not entries:
            self._schedule()
        asker = None if command.flag & FLAG_ONEWAY else channel
        if self._recall_name is not None and isinstance(outcome, Held):
            request = recallable(self, command, message, unique_key, outcome, self._recall_name)
            entries.append((asker, command.serialize_type, command.opaque, 0, request, _REQUEST))
            return None
        entries.append((asker, command.serialize_type, command.opaque, queue_id, unique_key, at))
        return None

    def put_request(
        self,
        channel: Channel,
        command: RemotingCommand,
        messages: Sequence[Message],
        answer: Callable[[list[PutResult]], RemotingCommand | None],
        now_ms: int,
    ) -> RemotingCommand | None:
        """Gather a request of several messages, all or none of them; the reply if one of them is refused at once.

        ``answer`` makes the reply of one result for each message (a held one has its virtual offset).
        """
        request = PutRequest(answer)
        shortest_ms = 0
        try:
            for message in messages:
                outcome = None if self._before_put is None else self._before_put(message, now_ms)
                if isinstance(outcome, Refused):
                    self._take_back(request)
                    return self.refusal(command, outcome.status, outcome.remark)
                request.parts.append(outcome)
                if outcome is None:
                    delay_ms = self._route_level(message) if "DELAY\x01" in message.properties else 0
                    if delay_ms and not 0 < shortest_ms < delay_ms:
                        shortest_ms = delay_ms
                    if message.prepared_offset == VOUCHER:
                        before = request.records[-1] if request.records else None
                        if isinstance(before, PutRecord):
                            message.flag = vouching_flag(before.record)
                        else:  # a plug-in holds it: another record will stand in front of this one
                            message.prepared_offset = 0
                    record = encode_record(message, self._store_host)
                    code, keys = tags_code(message.properties), message_keys(message.properties)
                    request.records.append(
                        PutRecord(message.topic, message.queue_id, record, code, keys, message.due_ms)
                    )
        except MessageError as error:
            self._take_back(request)
            return self.refusal(command, PutStatus.MESSAGE_ILLEGAL, str(error))
        except BaseException:
            self._take_back(request)
            raise
        self._note_level(shortest_ms)
        self._batches = self._batches or len(request.records) > 1
        self._mixed = self._mixed or 0 < len(request.records) < len(request.parts)
        self._gather(channel, command, request, len(request.parts) - len(request.records))
        return None

    def put_uniform(
        self,
        channel: Channel,
        command: RemotingCommand,
        batch: UniformBatch,
        answer: Callable[[PutResult, Sequence[int]], RemotingCommand | None],
        now_ms: int,
    ) -> bool:
        """Gather a client batch as columns; False: nothing was done, its messages have to be gathered one by one.

        Its texts have none of a broker's own properties, no level and no transaction mark. ``answer`` makes the reply
        of what became of it (of its first message), and the positions of its messages, real or virtual.
        """
        outcome = self._before_put_batch(batch, now_ms)
        if isinstance(outcome, OneByOne):
            return False
        if outcome is not None:
            self._gather(channel, command, request_of_held(outcome, answer), len(batch))
            return True
        try:
            request = request_of_rows(PutRows(batch, self._store_host), answer)
        except MessageError:
            return False
        self._batches = True
        self._in_rows += len(batch) - 1
        self._gather(channel, command, request, 0)
        return True

    def put_large(
        self,
        channel: Channel,
        command: RemotingCommand,
        batch: LargeBatch,
        answer: Callable[[list[PutResult]], RemotingCommand | None],
    ) -> None:
        """Gather a large batch that was looked at in slices. ``answer`` gets a result for all that is appended, if
        anything is, and one for all that plug-ins hold.
        """
        request = request_of_large(batch, answer)
        for aside in request.asides:
            aside.put_back()
        self._note_level(batch.level_delay_ms)
        self._batches = self._batches or bool(request.records)
        self._mixed = self._mixed or len(request.parts) > 1
        self._in_rows += max(len(batch.ready) - 1, 0)
        self._gather(channel, command, request, len(batch.held_ids))

    def looking(self) -> Looking | None:
        """What is done with each message of a large batch; None if a plug-in cannot look at one in slices."""
        if not all(isinstance(plugin, AsidePlugin) for plugin in self._plugins):
            return None
        return Looking(self._before_put, self._before_put_batch, self._encoded, self._store_host)

    def asides(self) -> list[Aside]:
        """Have each plug-in begin a large batch."""
        return [plugin.aside() for plugin in self._plugins if isinstance(plugin, AsidePlugin)]

    def _encoded(self, message: Message) -> tuple[PutRecord, int]:
        """The record of a message of a batch, and its level's delay in ms (0: none). Raises MessageError."""
        delay_ms = self._route_level(message) if "DELAY\x01" in message.properties else 0
        record = encode_record(message, self._store_host)
        code, keys = tags_code(message.properties), message_keys(message.properties)
        return PutRecord(message.topic, message.queue_id, record, code, keys, message.due_ms), delay_ms

    def _gather(self, channel: Channel, command: RemotingCommand, request: PutRequest, held: int) -> None:
        self._held += held
        self._records += request.records
        if not self._entries:
            self._schedule()
        asker = None if command.flag & FLAG_ONEWAY else channel
        self._entries.append((asker, command.serialize_type, command.opaque, 0, request, _REQUEST))

    def refusal(self, command: RemotingCommand, status: PutStatus, remark: str) -> RemotingCommand:
        """Make the reply to a send that was not stored."""
        code, text = failure(status, remark, self._store.options.max_message_bytes)
        return command.reply(code, text, dict(self.reply_ext))

    def stored(
        self,
        serialize_type: int,
        opaque: int,
        message_ids: str,
        queue_id: int,
        queue_offset: int,
        unique_key: str | None,
        flushed: bool = True,
    ) -> RemotingCommand:
        """Make the reply to a send that was stored; a batch's ``message_ids`` are joined by commas."""
        ext = {"msgId": message_ids, "queueId": str(queue_id), "queueOffset": str(queue_offset), **self.reply_ext}
        if unique_key is not None:
            ext["transactionId"] = unique_key
        code = ResponseCode.SUCCESS if flushed else ResponseCode.FLUSH_DISK_TIMEOUT
        return RemotingCommand(code, opaque, FLAG_RESPONSE, ext=ext, serialize_type=serialize_type)

    def message_id(self, offset: int) -> str:
        """Write the id of a message at a position, in the CommitLog or virtual."""
        return f"{self._id_prefix}{offset:016X}"

    def message_ids(self, offsets: Sequence[int]) -> str:
        """Write the ids of a batch's messages, joined by commas."""
        return message_ids(self._store_host, offsets)

    def _note_level(self, delay_ms: int) -> None:
        if delay_ms and not 0 < self._level_delay_ms < delay_ms:
            self._level_delay_ms = delay_ms

    def _take_back(self, request: PutRequest) -> None:
        """Have the plug-ins forget what they took of a request that is refused as a whole."""
        if request.asides:
            for aside in request.asides:
                aside.take_back()
            return
        for held in request.parts:
            if held is not None:
                for plugin in self._plugins:
                    plugin.take_back(held)

    # ------------------------------------------------------------------------------------------------ flow control

    def look_at_disk(self) -> None:
        """See how far the disk is behind; to be called some times a second."""
        log = self._store.commit_log
        self.unsynced_bytes = log.written - log.synced
        self._decide()

    def busy_remark(self) -> str:
        """Why sends are turned away, in Apache's words."""
        if self.waiting >= self.waiting_max:
            return (
                "[OVERLOAD]system busy, start flow control for a while: "
                f"{self.waiting} sends wait for the disk, "
                f"at most {self.waiting_max} may (sendThreadPoolQueueCapacity)"
            )
        return (
            "[REJECTREQUEST]system busy, start flow control for a while: "
            f"{self.unsynced_bytes} bytes wait for the disk to sync them, at most {KEPT_BYTES_MAX} may"
        )

    def _decide(self) -> None:
        self.refusing = self.waiting >= self.waiting_max or self.unsynced_bytes > KEPT_BYTES_MAX

    # ------------------------------------------------------------------------------------------------ the end of a turn

    def commit(self) -> None:
        """Store what the turn has gathered, and answer."""
        entries = self._entries
        if not entries:
            return
        try:
            if self._mixed:
                # Nothing that is held may be delivered before it is known whether the rest of its batch was stored.
                with self._store.checkpoint.lock:
                    stored = self._store_all(entries)
            else:
                stored = self._store_all(entries)
        except Exception:
            _LOG.exception("a turn of %d requests failed", len(entries))
            self._answer_failed(entries, PutStatus.UNKNOWN_ERROR, "the broker's log has the details")
            return
        entries, results, ticket = stored
        self.turn_count += 1
        if ticket is not None:
            self.waiting += len(entries)
            self._decide()
            self._store.flusher.submit(ticket, partial(self._flushed, entries, results))
        else:
            self._answer(entries, results, True)

    def _store_all(self, entries: list[_Entry]) -> tuple[list[_Entry], Sequence[PutResult], Ticket | None]:
        """Journal what is held, append the rest; what is left to be answered, with the store's results."""
        records, held, level_delay_ms = self._records, self._held, self._level_delay_ms
        batches, mixed, in_rows = self._batches, self._mixed, self._in_rows
        self._entries, self._records, self._held, self._level_delay_ms, self._in_rows = [], [], 0, 0, 0
        self._batches = self._mixed = False
        ticket: Ticket | None = None
        refused: Ticket | None = None
        results: Sequence[PutResult] = ()
        if held:
            try:
                ticket = self._commit_plugins()
            except StoreError as error:
                _LOG.error("%d delayed messages were refused: %s", held, error)
                entries, records = self._without_held(entries, records, str(error))
        if records:
            results = self._store.put_batch(records, self._units(entries) if batches else None)
            if mixed and self._take_back_refused(entries, results):
                refused = self._taken_back()
            if level_delay_ms:
                self._wake_levels(results[0].store_ms + level_delay_ms)
            if self._flush_sync:
                ticket = self._store.commit_ticket().joined(ticket)
        if not self._flush_sync:
            ticket = refused
        elif refused is not None:
            ticket = refused.joined(ticket)
        self.put_count += len(records) + held + in_rows
        return entries, results, ticket

    def _commit_plugins(self) -> Ticket | None:
        """Have the plug-ins write what they hold. If one of them fails, all that was held counts as failed."""
        ticket: Ticket | None = None
        for plugin in self._plugins:
            written = plugin.commit_turn()
            if written is not None:
                ticket = written.joined(ticket)
        return ticket

    @staticmethod
    def _units(entries: list[_Entry]) -> list[int]:
        """How many records, one behind the other, belong to the same request."""
        counts = [1 if entry[5] == 0 else len(entry[4].records) if entry[5] == _REQUEST else 0 for entry in entries]
        return [count for count in counts if count]

    def _without_held(
        self, entries: list[_Entry], records: list[PutRecord | PutRows | ReadyRows], remark: str
    ) -> tuple[list[_Entry], list[PutRecord | PutRows | ReadyRows]]:
        """Answer all requests with held messages that they failed; what remains of the turn."""
        kept: list[_Entry] = []
        failed: list[_Entry] = []
        remaining: list[PutRecord | PutRows | ReadyRows] = []
        number = 0
        for entry in entries:
            extra, at = entry[4], entry[5]
            end = number + (1 if at == 0 else len(extra.records) if at == _REQUEST else 0)
            if at > 0 or (at == _REQUEST and any(part is not None for part in extra.parts)):
                failed.append(entry)
            else:
                kept.append(entry)
                remaining += records[number:end]
            number = end
        self._refuse(failed, remark)
        return kept, remaining

    def _refuse(self, entries: list[_Entry], remark: str) -> None:
        """Answer that nothing was stored, when a crash cannot bring back what plug-ins had written of it either."""
        ticket = self._taken_back()
        if ticket is None:
            self._answer_failed(entries, PutStatus.SERVICE_NOT_AVAILABLE, remark)
            return
        self.waiting += len(entries)
        self._decide()

        def over() -> None:
            self.waiting -= len(entries)
            self._answer_failed(entries, PutStatus.SERVICE_NOT_AVAILABLE, remark)
            self._decide()

        def done(_ok: bool) -> None:
            self._call_soon_threadsafe(over)

        self._store.flusher.submit(ticket, done)

    def _taken_back(self) -> Ticket | None:
        """A ticket for what plug-ins have written to take messages back."""
        ticket: Ticket | None = None
        for plugin in self._plugins:
            if isinstance(plugin, DurablyRefusingPlugin):
                written = plugin.taken_back()
                if written is not None:
                    ticket = written.joined(ticket)
        return ticket

    def _take_back_refused(self, entries: list[_Entry], results: Sequence[PutResult]) -> bool:
        """Where the store refused some of a batch, what plug-ins hold of it must not be delivered either."""
        number, some = 0, False
        for entry in entries:
            count = 1 if entry[5] == 0 else len(entry[4].records) if entry[5] == _REQUEST else 0
            if entry[5] == _REQUEST and any(r.status not in _STORED for r in results[number : number + count]):
                self._take_back(entry[4])
                some = True
            number += count
        return some

    # ------------------------------------------------------------------------------------------------ answering

    def _flushed(self, entries: list[_Entry], results: Sequence[PutResult], ok: bool) -> None:
        """The flusher says that a turn is durable, in its own thread."""
        self._durable.append((entries, results, ok))
        if not self._answering:
            self._answering = True
            self._call_soon_threadsafe(self._answer_durable)

    def _answer_durable(self) -> None:
        self._answering = False
        durable = self._durable
        while durable:
            entries, results, ok = durable.popleft()
            self.waiting -= len(entries)
            self._answer(entries, results, ok)
        self._decide()

    def _answer(self, entries: list[_Entry], results: Sequence[PutResult], flushed: bool) -> None:
        encode = self._encode_reply
        usual = flushed and self._usual_reply
        number = 0
        for channel, serialize_type, opaque, queue_id, extra, at in entries:
            queue_offset = 0
            if at == 0:
                result = results[number]
                number += 1
                if result.status is not _PUT_OK:
                    self._fail(channel, serialize_type, opaque, result.status, result.remark)
                    continue
                at = result.offset
                queue_offset = result.queue_offset
            elif at < 0:
                own, number = self._results_of(extra, results, number, flushed)
                self._answer_request(channel, serialize_type, opaque, extra, own)
                continue
            if channel is None:
                continue
            if usual:
                channel.send(encode(serialize_type, opaque, at, queue_id, queue_offset, extra))
            else:
                ids = self.message_id(at)
                reply = self.stored(serialize_type, opaque, ids, queue_id, queue_offset, extra, flushed)
                channel.send(encode_command(reply))

    @staticmethod
    def _results_of(
        request: PutRequest, results: Sequence[PutResult], number: int, flushed: bool
    ) -> tuple[list[PutResult], int]:
        """The results of one `PutRequest`, which begin at a number; and the number of the next request's first."""
        own: list[PutResult] = []
        for part in request.parts:
            if part is None:
                result = results[number]
                number += 1
            else:
                result = PutResult(_PUT_OK, part.offset)
            if not flushed and result.status is _PUT_OK:
                result = PutResult(PutStatus.FLUSH_DISK_TIMEOUT, result.offset, result.queue_offset, result.store_ms)
            own.append(result)
        return own, number

    def _answer_request(
        self, channel: Channel | None, serialize_type: int, opaque: int, request: PutRequest, own: list[PutResult]
    ) -> None:
        """Answer one `PutRequest`. An error of its own rule is its own: the others of the turn are answered as well."""
        try:
            reply = request.answer(own)
            frame = None if reply is None or channel is None else encode_command(reply)
        except Exception as error:
            _LOG.exception("a request's answer failed")
            text = f"{type(error).__name__}: {error!s:.300}"
            reply = RemotingCommand(
                ResponseCode.SYSTEM_ERROR, opaque, FLAG_RESPONSE, remark=text, serialize_type=serialize_type
            )
            frame = encode_command(reply)
        if frame is not None and channel is not None:
            channel.send(frame)

    def _answer_failed(self, entries: Sequence[_Entry], status: PutStatus, remark: str) -> None:
        for channel, serialize_type, opaque, _, extra, at in entries:
            if at == _REQUEST:
                failed = [PutResult(status, remark=remark)] * len(extra.parts)
                self._answer_request(channel, serialize_type, opaque, extra, failed)
            else:
                self._fail(channel, serialize_type, opaque, status, remark)

    def _fail(self, channel: Channel | None, serialize_type: int, opaque: int, status: PutStatus, remark: str) -> None:
        if channel is not None:
            code, text = failure(status, remark, self._store.options.max_message_bytes)
            reply = RemotingCommand(code, opaque, FLAG_RESPONSE, remark=text, serialize_type=serialize_type)
            reply.ext.update(self.reply_ext)
            channel.send(encode_command(reply))
