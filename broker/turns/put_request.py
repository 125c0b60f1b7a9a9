"""The requests of a turn: for each the connection, what it puts, and how it is answered.

`PutSend` is one message, answered by the common rule. `PutRequest` has a rule of its own and any number of messages, of
which some may be appended and others held by plug-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from broker.net.channel import Channel
from broker.turns.plugin_chain import refused_for_two
from remoting.command import RemotingCommand
from store.put.plugin_api import Held, HeldBatch, Put, PutResult, PutRows, PutStatus, Refused, Unsettled
from store.put.put_group import results_of

if TYPE_CHECKING:
    from broker.turns.large_batch import LargeBatch
    from store.put.plugin_abilities import Aside

__all__ = ["Entry", "PutRequest", "PutSend", "request_of_held", "request_of_large", "request_of_rows"]

BatchAnswer = Callable[[PutResult, Sequence[int]], "RemotingCommand | None"]


class Entry:
    """A request of the turn.

    ==================  ============================================================================
    ``channel``         `Channel`; None: nobody wants a reply
    ``serialize_type``  int, of the request and its reply
    ``opaque``          int, of the request and its reply
    ``put``             `Put`, the part that the store appends; None: plug-ins hold all of it
    ==================  ============================================================================
    """

    __slots__ = ("channel", "opaque", "put", "serialize_type")

    channel: Channel | None
    serialize_type: int
    opaque: int
    put: Put | None

    @property
    def is_held(self) -> bool:
        """True if plug-ins hold any of its messages."""
        raise NotImplementedError


class PutSend(Entry):
    """A send of one message. ``queue_id`` is that of the reply; ``held`` says where a plug-in holds it, if one does.

    The plug-in may change that until the turn has ended: then another message than the one that it took the place of
    has the delay key.
    """

    __slots__ = ("held", "queue_id", "unique_key")

    def __init__(
        self,
        channel: Channel | None,
        command: RemotingCommand,
        put: Put | None,
        queue_id: int,
        unique_key: str,
        held: Held | None,
    ) -> None:
        self.channel = channel
        self.serialize_type = command.serialize_type
        self.opaque = command.opaque
        self.put = put
        self.queue_id = queue_id
        self.unique_key = unique_key
        self.held = held

    @property
    def is_held(self) -> bool:
        """True if a plug-in holds it."""
        return self.put is None


class PutRequest(Entry):
    """A request of any number of messages, with the rule that makes its answer.

    ``parts`` has the `Held` of each message that a plug-in holds, and None for each that the store appends. A batch
    that is put as a whole has one part.
    """

    __slots__ = ("answer", "asides", "parts")

    def __init__(self, answer: Callable[[list[PutResult]], RemotingCommand | None]) -> None:
        self.put = None
        self.answer = answer
        self.parts: list[Held | None] = []
        self.asides: list[Aside] = []
        """Of a large batch: where plug-ins keep its messages, instead of ``parts``."""

    def asked_by(self, channel: Channel | None, command: RemotingCommand) -> None:
        """Set the connection that gets the reply; None: one-way."""
        self.channel = channel
        self.serialize_type = command.serialize_type
        self.opaque = command.opaque

    @property
    def is_held(self) -> bool:
        """True if plug-ins hold some of it."""
        return any(part is not None for part in self.parts)

    def settled(self, outcome: Refused) -> Held | Refused:
        """Decide about the next message if it depends on an earlier one of this request; else ``outcome`` itself."""
        if isinstance(outcome, Unsettled):
            for place, part in enumerate(self.parts):
                if part is not None and part.offset == outcome.offset:
                    return refused_for_two(outcome.settle(), place, len(self.parts))
        return outcome

    def results(self, result: PutResult | None, flushed: bool) -> list[PutResult]:
        """A result for each part; ``result`` is the store's for the part that it was given, None if there is none."""
        if self.put is None and flushed:
            return [PutResult(PutStatus.PUT_OK, part.offset) for part in self.parts if part is not None]
        appended = [] if self.put is None or result is None else results_of(self.put, result)
        results: list[PutResult] = []
        number = 0
        for part in self.parts:
            if part is None:
                own = appended[number]
                number += 1
            else:
                own = PutResult(PutStatus.PUT_OK, part.offset)
            if not flushed and own.status is PutStatus.PUT_OK:
                own = PutResult(PutStatus.FLUSH_DISK_TIMEOUT, own.offset, own.queue_offset, own.store_ms)
            results.append(own)
        return results


def request_of_rows(rows: PutRows, answer: BatchAnswer) -> PutRequest:
    """Make the request of a batch that is appended as a whole; ``answer`` gets the position of each message."""
    sizes = rows.rows.sizes
    # Without the last size, which would give the position behind the batch.
    request = PutRequest(lambda results: answer(results[0], list(accumulate(sizes[:-1], initial=results[0].offset))))
    request.parts.append(None)
    request.put = rows
    return request


def request_of_held(held: HeldBatch, answer: BatchAnswer) -> PutRequest:
    """Make the request of a batch that a plug-in holds as a whole: one part stands for all messages."""
    request = PutRequest(lambda results: answer(results[0], held.offsets))
    request.parts.append(Held(held.offsets[0], held.due_ms))
    return request


def request_of_large(batch: LargeBatch, answer: Callable[[list[PutResult]], RemotingCommand | None]) -> PutRequest:
    """Make the request of a large batch: one part for all appended messages, one for all that plug-ins hold."""
    request = PutRequest(answer)
    if len(batch.ready):
        request.parts.append(None)
        request.put = batch.ready
    if batch.held_ids:
        request.parts.append(Held(batch.held_ids[0], 0))
        request.asides = batch.asides
    return request
