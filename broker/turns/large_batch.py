"""Large batches: checked in slices, so that the network loop is free in between, and stored by one short step.

4 MiB may hold tens of thousands of messages. Splitting, checking and encoding them takes up to half a second, during
which no other request would be served. So the send processor makes a `LargeBatch` of a batch with more than
`SLICE_MESSAGES` messages or `SLICE_TEXT_BYTES` of properties. `LargeBatches` works on one of them at a time, a slice in
each round of the loop. The request waits in the dispatcher, and everything that its connection sends after it waits
too, so order is kept. After the last slice, conditions that may have changed meanwhile are checked again. Then
`Turn.put_large` makes the whole batch a part of the present turn.

Nothing is kept anywhere else before that, so a batch can be dropped at any time: when a message of it is refused, when
its connection closes, when the broker stops. A plug-in keeps its messages of the batch in an `Aside`. If a plug-in
cannot (`store.put.plugin_abilities.AsidePlugin`), batches are checked in one piece.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from broker.net.channel import Channel
from broker.turns.plugin_chain import refused_for_two
from remoting.messages.message import Message, MessageError, UniformBatch, batch_slice, split_batch, split_uniform
from store.put.plugin_abilities import Aside
from store.put.plugin_api import Held, HeldBatch, OneByOne, PutStatus, Refused, Unsettled
from store.put.put_record import PutRecord
from store.put.put_rows import PutRows
from store.put.ready_rows import ReadyRows

if TYPE_CHECKING:
    from broker.tables.table_writer import Outcome

__all__ = ["KEYS_MAX", "SLICE_MESSAGES", "SLICE_TEXT_BYTES", "LargeBatch", "LargeBatches", "Looking"]

SLICE_MESSAGES = 256
"""Most messages of one slice: five milliseconds at most, without the compiled modules."""
SLICE_TEXT_BYTES = 32 << 10
"""A slice ends when the properties of its messages reach this size."""
KEYS_MAX = 4 * 32_768
"""Most keys of a batch, UNIQ_KEY and each word of KEYS: the index gets all of them in one step. A body of 4 MiB has
room for two million, which take 0.2 s; four for each message of the longest batch are enough for honest senders."""


class LargeBatch:
    """One batch on its way.

    Args:
        channel: The sender; when it closes, the batch is dropped.
        body: The batch.
        messages_max: A batch of more messages is refused.
        element: Makes a message of it, without flag, body and properties.
        columns: Whether a slice may be stored as columns.
        complete: Sets flag, body and properties of a message; returns why not, or None.
        asides: Where plug-ins keep their messages.
        looking: The turn's work for every message.
        now_ms: The time from which all delays count.
        slice_messages: Most messages of one slice.
    """

    __slots__ = (
        "_body",
        "_columns",
        "_complete",
        "_element",
        "_held_rows",
        "_late",
        "_looking",
        "_messages_max",
        "_now_ms",
        "_slice_messages",
        "asides",
        "channel",
        "count",
        "error",
        "held_ids",
        "level_delay_ms",
        "ready",
        "refused",
        "settled",
        "stopped",
        "waiting",
    )

    def __init__(
        self,
        channel: Channel,
        body: bytes,
        *,
        messages_max: int,
        element: Callable[[], Message],
        columns: Callable[[UniformBatch], bool],
        complete: Callable[[Message, int, bytes, str], str | None],
        looking: Looking,
        asides: list[Aside],
        now_ms: int,
        slice_messages: int = SLICE_MESSAGES,
    ) -> None:
        self.channel = channel
        self._body = body
        self._messages_max = messages_max
        self._element = element
        self._columns = columns
        self._complete = complete
        self._looking = looking
        self._now_ms = now_ms
        self._slice_messages = slice_messages
        self.asides = asides
        self.ready = ReadyRows()
        """The messages that are appended to the CommitLog."""
        self.held_ids: list[int] = []
        """Virtual offsets of the messages that plug-ins hold."""
        self._held_rows: list[int] = []
        self._late: list[tuple[int, Held]] = []  # messages held one by one, with their places in ``held_ids``
        self.count = 0
        self.level_delay_ms = 0
        """The shortest delay of its level messages; 0: it has none."""
        self.refused: tuple[PutStatus, str] | None = None
        """Why nothing of it is stored; None if it is."""
        self.error: Exception | None = None
        """An unexpected error in a slice."""
        self.stopped = False
        self.settled = False
        """True if it is a part of a turn, or dropped."""
        self.waiting: list[Callable[[Outcome], None]] = []
        """Called when all slices are done, or the batch was dropped."""

    def slices(self) -> Iterator[None]:
        """Check one slice in each step. Faults, as too many messages or keys (MessageError), end up in ``refused``."""
        body, at = self._body, 0
        try:
            while at < len(body):
                end, count = batch_slice(body, at, self._slice_messages, SLICE_TEXT_BYTES, self.count)
                if self.count + count > self._messages_max:
                    raise MessageError(
                        f"a batch of more than {self._messages_max} messages: at most {self._messages_max} are possible"
                    )
                # Journals what plug-ins hold of other requests: a message can then only depend on one of this batch.
                self._looking.end_held()
                for aside in self.asides:
                    aside.begin()
                try:
                    self._look(body[at:end])
                finally:
                    for aside in self.asides:
                        aside.take()
                self.ready.end_slice()
                if self.ready.key_count > KEYS_MAX:
                    raise MessageError(f"the messages of the batch have more than {KEYS_MAX} keys: send it in parts")
                if self.refused is not None:
                    return
                at = end
                yield
        except MessageError as error:
            self.refused = (PutStatus.MESSAGE_ILLEGAL, str(error))
            return
        self._body = b""
        if len(self.ready):
            self.ready.arrange()
            yield
            self.ready.join()

    def _look(self, data: bytes) -> None:
        """Check the messages of a slice: as columns, or one by one."""
        batch = split_uniform(self._element(), data)
        if batch is not None and self._columns(batch):
            outcome = self._looking.before_put_batch(batch, self._now_ms)
            if isinstance(outcome, HeldBatch):
                self._hold(outcome.offsets)
                return
            if outcome is None:
                try:
                    rows = PutRows(batch, self._looking.store_host)
                except MessageError:
                    rows = None  # one by one, the refusal names the message
                if rows is not None:
                    self.ready.add_rows(self.count, rows)
                    self.count += len(batch)
                    return
        for flag, body, properties in split_batch(data):
            message = self._element()
            why = self._complete(message, flag, body, properties)
            if why is not None:
                self.refused = (PutStatus.MESSAGE_ILLEGAL, f"message {self.count} of the batch: {why}")
                return
            looked = self._looking.look(message, self._now_ms)
            if isinstance(looked, Unsettled):
                looked = self._settled(looked)
            if isinstance(looked, Refused):
                self.refused = (looked.status, looked.remark)
                return
            if isinstance(looked, Held):
                self._late.append((len(self.held_ids), looked))
                self._hold((looked.offset,))
            else:
                put, delay_ms = looked
                if delay_ms and not 0 < self.level_delay_ms < delay_ms:
                    self.level_delay_ms = delay_ms
                self.ready.add(self.count, put)
                self.count += 1

    def _settled(self, outcome: Unsettled) -> Held | Refused:
        """Decide about a message that depends on another one of this batch; no other batch is under way."""
        decided = outcome.settle()
        if isinstance(decided, Held) or outcome.offset not in self.held_ids:
            return decided
        return refused_for_two(decided, self._held_rows[self.held_ids.index(outcome.offset)], self.count)

    def _hold(self, offsets: Sequence[int]) -> None:
        self._held_rows += range(self.count, self.count + len(offsets))
        self.held_ids += offsets
        self.count += len(offsets)

    def ids(self, store_host: bytes, position: int) -> str:
        """The ids of all its messages, joined by commas; ``position`` is the CommitLog position of the first record."""
        for at, held in self._late:  # a message that should replace another may have got an offset of its own
            self.held_ids[at] = held.offset
        return self.ready.ids(store_host, position, self._held_rows, self.held_ids)

    def drop(self) -> None:
        """Let plug-ins forget its messages: it is refused before it was a part of a turn."""
        for aside in self.asides:
            aside.take_back()

    @property
    def first_is_held(self) -> bool:
        """True if a plug-in holds its first message, which then has no queue offset."""
        return bool(self._held_rows) and self._held_rows[0] == 0


class Looking:
    """The turn's work for each message of a `LargeBatch`; made by the turn."""

    __slots__ = ("_before_put", "_encode", "before_put_batch", "end_held", "store_host")

    def __init__(
        self,
        before_put: Callable[[Message, int], Held | Refused | None] | None,
        before_put_batch: Callable[[UniformBatch, int], HeldBatch | OneByOne | None],
        encode: Callable[[Message], tuple[PutRecord, int]],
        store_host: bytes,
        end_held: Callable[[], None] = lambda: None,
    ) -> None:
        self.end_held = end_held
        self._before_put = before_put
        self.before_put_batch = before_put_batch
        self._encode = encode
        self.store_host = store_host

    def look(self, message: Message, now_ms: int) -> Held | Refused | tuple[PutRecord, int]:
        """Show a message to the plug-ins, and encode it if none holds it: the put, and its level's delay in ms.

        Raises MessageError.
        """
        outcome = None if self._before_put is None else self._before_put(message, now_ms)
        return self._encode(message) if outcome is None else outcome


class LargeBatches:
    """Checks large batches, one at a time, a slice in each round of the loop. Only the network loop uses it.

    Args:
        call_soon: Runs something in one of the next rounds of the loop.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._batches: deque[LargeBatch] = deque()
        self._slices: Iterator[None] | None = None
        self._last: LargeBatch | None = None  # the one before the first of the queue
        self._stepping = self._awake = False
        self.stopped = False
        self.slicing = True
        """False: batches are checked in one piece, for comparisons."""
        self.slice_messages = SLICE_MESSAGES
        """A batch of more messages is large; lower in tests."""

    def __len__(self) -> int:
        return len(self._batches)

    def begin(self, batch: LargeBatch) -> None:
        """Queue a batch behind the others."""
        if self.stopped:
            self._over(batch, True)
            return
        self._batches.append(batch)
        self._wake()

    def under_way(self) -> LargeBatch | None:
        """The batch that is being checked; None if there is none."""
        return self._batches[0] if self._batches else None

    def settled(self, batch: LargeBatch) -> None:
        """Note that a batch is part of a turn or dropped, so that the next one may begin.

        Not earlier: plug-ins take its held messages into account only from then on.
        """
        batch.settled = True
        if self._batches:
            self._wake()

    @property
    def _may_go_on(self) -> bool:
        return self._last is None or self._last.settled

    def stop(self) -> None:
        """Drop all batches, also those that come from now on: nothing of them was stored."""
        self.stopped = True
        self._slices = None
        while self._batches:
            self._over(self._batches.popleft(), True)

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            if not self._stepping:
                self._call_soon(self._step)

    def _step(self) -> None:
        """Check one slice; all of them if ``call_soon`` calls at once."""
        if self._stepping:
            return
        self._stepping = True
        try:
            self._awake = False
            self._slice()
        finally:
            self._stepping = False
        if self._batches and self._may_go_on:
            self._awake = True
        if self._awake:
            self._call_soon(self._step)

    def _slice(self) -> None:
        if not self._batches or not self._may_go_on:
            return
        batch = self._batches[0]
        if self._slices is None:
            self._slices = batch.slices()
        try:
            if not batch.channel.closed:
                next(self._slices)
                return
        except StopIteration:
            pass
        except Exception as error:
            batch.error = error
        self._slices = None
        self._last = self._batches.popleft()
        self._over(batch, False)

    @staticmethod
    def _over(batch: LargeBatch, stopped: bool) -> None:
        batch.stopped = stopped
        # If nobody waits for it, it cannot become part of a turn any more.
        batch.settled = not batch.waiting
        for told in batch.waiting:
            told(None)
