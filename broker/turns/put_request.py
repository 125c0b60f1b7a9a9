"""`PutRequest`: what a turn of the network loop keeps of a request that is answered by a rule of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from store.put.plugin_api import Held

if TYPE_CHECKING:
    from broker.turns.large_batch import LargeBatch
    from remoting.command import RemotingCommand
    from store.put.plugin_api import Aside, HeldBatch, PutRecord, PutResult, PutRows
    from store.put.ready_rows import ReadyRows

__all__ = ["PutRequest", "request_of_held", "request_of_large", "request_of_rows"]

BatchAnswer = Callable[["PutResult", Sequence[int]], "RemotingCommand | None"]


class PutRequest:
    """A request of any number of messages: what became of each, and the rule that makes its answer."""

    __slots__ = ("answer", "asides", "parts", "records")

    def __init__(self, answer: Callable[[list[PutResult]], RemotingCommand | None]) -> None:
        self.answer = answer
        self.parts: list[Held | None] = []  # None: the store appends it
        self.records: list[PutRecord | PutRows | ReadyRows] = []
        self.asides: list[Aside] = []
        """Of a large batch: what plug-ins hold of it, in the place of ``parts``."""


def request_of_rows(rows: PutRows, answer: BatchAnswer) -> PutRequest:
    """Make the request of a batch that is appended as a whole; its answer is told the position of each message."""
    sizes = rows.rows.sizes
    request = PutRequest(lambda results: answer(results[0], list(accumulate(sizes[:-1], initial=results[0].offset))))
    request.parts.append(None)
    request.records.append(rows)
    return request


def request_of_held(held: HeldBatch, answer: BatchAnswer) -> PutRequest:
    """Make the request of a batch that a plug-in holds as a whole: one part, which stands for all of it."""
    request = PutRequest(lambda results: answer(results[0], held.offsets))
    request.parts.append(Held(held.offsets[0], held.due_ms))
    return request


def request_of_large(batch: LargeBatch, answer: Callable[[list[PutResult]], RemotingCommand | None]) -> PutRequest:
    """Make the request of a large batch: a part for all that is appended, and one for all that plug-ins hold."""
    request = PutRequest(answer)
    if len(batch.ready):
        request.parts.append(None)
        request.records.append(batch.ready)
    if batch.held_ids:
        request.parts.append(Held(batch.held_ids[0], 0))
        request.asides = batch.asides
    return request
