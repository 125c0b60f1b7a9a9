"""What can be asked of pending messages, and the definite answers: types and one protocol, no behaviour.

A plug-in that keeps messages until they are due and can show and change them is a `PendingPlugin`; what it can do is
its `PendingControl`. Doors (requests of the wire, HTTP, a command line) are built on this and on nothing else.

A message is named by a `PendingName`: by its virtual offset, or by its delay key (property ``__DELAYKEY``), which is
unique within its topic while the message is pending.

===========  ==========================================================================================
verdict      of a change (cancel, move, now, restart)
===========  ==========================================================================================
`DONE`       it was pending, it is changed; durable when the answer is given
`ALREADY`    what was asked for stands already (cancelled before; due at that very time): a success
`TOO_LATE`   it was delivered: ``when_ms`` says when, ``where`` says where
`CANCELLED`  it was cancelled, so it can be neither moved nor restarted
`CHANGED`    it has another version than the one that the caller named: look again; nothing was changed
`UNKNOWN`    nothing is or was pending under this name, or it is long gone
`REFUSED`    the order itself is not possible (a due time beyond the year 9999); ``detail`` says what to do
===========  ==========================================================================================

Threads: everything here may be called from any thread but the network loop's: changes wait for the disk, and all of it
takes the delivery lock for moments. `PendingControl.figures` and `PendingControl.topics` take no lock and read no disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from remoting.pending_rules import width_fault
from store.put.plugin_api import Plugin

__all__ = [
    "BULK_MAX",
    "FORECAST_BARS_MAX",
    "PAGE_MAX",
    "Forecast",
    "ForecastBar",
    "PendingAnswer",
    "PendingBulk",
    "PendingControl",
    "PendingCount",
    "PendingError",
    "PendingFigures",
    "PendingName",
    "PendingOrder",
    "PendingPage",
    "PendingPlugin",
    "PendingQuery",
    "PendingRow",
    "PendingTopic",
    "PendingVerb",
    "PendingVerdict",
]

PAGE_MAX = 1000
"""Most rows of one page of a listing."""
BULK_MAX = 10_000
"""Most messages that one call of `PendingControl.change_matching` changes; its cursor goes on from there."""
FORECAST_BARS_MAX = 2000
"""Most bars of a forecast."""


class PendingError(Exception):
    """An order or a query that is not possible; the text names the value and says what to do. Nothing was changed."""


class PendingVerb(StrEnum):
    """What can be done to a pending message."""

    CANCEL = "cancel"
    """It is never delivered."""
    MOVE = "move"
    """It gets another due time, given as such or as a shift in ms."""
    NOW = "now"
    """It is due now."""
    RESTART = "restart"
    """Its due time is now plus the delay with which it was sent: a dead man's switch that was seen to."""


class PendingVerdict(StrEnum):
    """What became of an order; see the text on top."""

    DONE = "done"
    ALREADY = "already"
    TOO_LATE = "too_late"
    CANCELLED = "cancelled"
    CHANGED = "changed"
    UNKNOWN = "unknown"
    REFUSED = "refused"

    @property
    def is_success(self) -> bool:
        """Whether what was asked for stands."""
        return self in (PendingVerdict.DONE, PendingVerdict.ALREADY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingName:
    """How a caller names a message: ``offset``, or ``topic`` and ``key``.

    With an offset, a ``topic`` and a ``unique_key`` (the property ``UNIQ_KEY``) that are given must be the message's,
    else it is unknown: who may see one topic sees no other by guessing.
    """

    offset: int = 0
    topic: str = ""
    key: str = ""
    unique_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOrder:
    """One change of one message.

    ``due_ms`` (epoch ms, absolute) or ``by_ms`` (added to the due time that it has) for `PendingVerb.MOVE`, and for it
    alone. A time in the past is refused (`remoting.pending_rules.past_fault`). With ``version`` the change happens only
    if the message has that version (compare and set): a message that was never moved has version 0.
    """

    verb: PendingVerb
    name: PendingName
    due_ms: int | None = None
    by_ms: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuery:
    """Which messages: all conditions that are given must hold. Times in epoch ms, ``from`` inclusive, ``to`` exclusive.

    ``accepted`` is when the broker took the message (by its own clock; of a message from an older store the sender's).
    ``properties`` are names with the value that each must have. No condition needs the body of a message, and the due
    range not even the message.
    """

    topic: str = ""
    tag: str = ""
    key_prefix: str = ""
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    accepted_from_ms: int | None = None
    accepted_to_ms: int | None = None
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it is true of every message."""
        return self == PendingQuery()

    @property
    def width_fault(self) -> str:
        """Why a bulk change by it is refused; empty if it is not."""
        texts = self.topic, self.tag, self.key_prefix, *(name for name, _ in self.properties)
        due = self.due_from_ms, self.due_to_ms
        return width_fault(texts, (due, (self.accepted_from_ms, self.accepted_to_ms)))

    @property
    def is_of_topic(self) -> bool:
        """Whether nothing but the topic of a message within the due range has to be looked at."""
        rest = self.tag, self.key_prefix, self.accepted_from_ms, self.accepted_to_ms, self.properties
        return rest == ("", "", None, None, ())

    @property
    def is_of_due(self) -> bool:
        """Whether it has no other condition than the due range, so that the indexes alone answer it."""
        return self == PendingQuery(due_from_ms=self.due_from_ms, due_to_ms=self.due_to_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRow:
    """One message of a listing. Times in epoch ms."""

    offset: int
    version: int
    due_ms: int
    accepted_ms: int
    topic: str
    queue_id: int
    size: int
    """Bytes of its record."""
    tag: str = ""
    key: str = ""
    """Its delay key; empty if it has none."""
    unique_key: str = ""
    failed: bool = False
    """It is overdue because a delivery was refused; tried again for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAnswer:
    """What became of an order, or of a look.

    ``offset`` names the message whatever the caller named it by (0: none was found). ``due_ms`` and ``version`` are
    those that it has now, or had. ``when_ms`` is the time of the delivery (`PendingVerdict.TOO_LATE`) or of the cancel,
    0 if that is not known any more. ``where`` is ``topic/queue id/queue offset`` of a delivery. ``row``,
    ``properties`` and ``body`` are there for `PendingControl.get` of a message that is pending.
    """

    verdict: PendingVerdict
    detail: str = ""
    offset: int = 0
    version: int = 0
    due_ms: int = 0
    when_ms: int = 0
    where: str = ""
    row: PendingRow | None = None
    properties: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPage:
    """Some rows in (due, offset) order; ``next`` is the ``after`` of the next page, empty behind the last one.

    A page may be short, even empty, with a ``next``: a call looks at a bounded number of messages.
    """

    rows: tuple[PendingRow, ...]
    next: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCount:
    """How many match. ``next`` is not empty if the call ended before the end: call again with it and add up.

    ``bytes_exact`` is False where no message was read: then bytes are what the delay store holds, or a share of that.
    """

    count: int
    bytes: int
    bytes_exact: bool = True
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    next: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBulk:
    """What one call of a bulk change did.

    ``verdicts`` counts by verdict (a dry run: what would be asked for, as `PendingVerdict.DONE`). ``answers`` has one
    for each message, in order. ``next`` resumes, also after a crash of either side: what was
    cancelled does not match again.
    """

    verdicts: dict[PendingVerdict, int] = field(default_factory=dict)
    answers: Sequence[PendingAnswer] = ()
    looked_at: int = 0
    next: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastBar:
    """How many come due within [``from_ms``, ``from_ms`` + the forecast's ``step_ms``)."""

    from_ms: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """How many come when. ``exact`` is False where a bar is interpolated within a page of a run (some 300 messages)."""

    from_ms: int
    to_ms: int
    step_ms: int
    bars: tuple[ForecastBar, ...]
    """Without the empty ones; ascending."""
    total: int
    """All that is pending: the bars, ``overdue`` and ``later``. Of a topic: the bars."""
    overdue: int
    """Due before ``from_ms``. Of a topic that is not counted: 0."""
    later: int
    """Due at ``to_ms`` or later. Of a topic that is not counted: 0."""
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTopic:
    """What is pending of one topic; ``known`` is False while a shard's start still counts (some seconds with millions).

    ``bytes_exact`` is False if they are the topic's share of all, by its count.
    """

    topic: str
    count: int
    bytes: int
    bytes_exact: bool = True
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFigures:
    """What is pending in all. Any thread, no lock, no disk."""

    count: int
    bytes: int
    armed: int
    """In the wheel: due within about a second."""
    failed: int
    """Overdue because a delivery was refused."""
    journal_bytes: int
    runs: int
    next_due_ms: int | None
    """Of what is armed; None if nothing is due within about a second."""
    verdicts: dict[tuple[PendingVerb, PendingVerdict], int]
    """Answers given since the start."""
    topics_known: bool = True
    """False while a start still counts by topic (some seconds with millions): `PendingControl.topics` is empty then."""


class PendingControl(Protocol):
    """What a plug-in can be asked of its pending messages. Any thread but the network loop's.

    StoreError from a change: it has to be asked for again. ``now_ms`` is the wall clock, epoch ms.
    """

    def get(self, name: PendingName) -> PendingAnswer:
        """Look at one message: `PendingVerdict.DONE` with row, properties and body if it is pending."""
        ...

    def page(self, query: PendingQuery, limit: int, after: str = "") -> PendingPage:
        """List what matches in (due, offset) order, at most `PAGE_MAX`. PendingError: bad limit or cursor."""
        ...

    def count(self, query: PendingQuery, after: str = "") -> PendingCount:
        """Count what matches; an empty query counts all, at once."""
        ...

    def forecast(self, from_ms: int, to_ms: int, bars: int, topic: str = "") -> Forecast:
        """Say how many come due when; at most `FORECAST_BARS_MAX` bars of equal length. PendingError: bad range."""
        ...

    def accepted_ms(self, offset: int) -> int:
        """When a message was accepted, epoch ms, also one that was delivered a moment ago; 0 if it is not known."""
        ...

    def last_due(self) -> int | None:
        """When the last pending message is due, epoch ms; None if there is none."""
        ...

    def change(self, order: PendingOrder, now_ms: int) -> PendingAnswer:
        """Do one change; durable when it returns."""
        ...

    def change_many(self, orders: Sequence[PendingOrder], now_ms: int, *, dry_run: bool = False) -> list[PendingAnswer]:
        """Do several, one answer each, in order; at most `BULK_MAX`. Not one transaction: each stands for itself.

        Durable when it returns. If the disk fails in between, or the time of a call is over, those that it could not
        change are REFUSED. With ``dry_run`` nothing is changed, and the answers are those of `get` without properties
        and body; REFUSED for what cannot be read now.
        """
        ...

    def change_matching(
        self,
        query: PendingQuery,
        verb: PendingVerb,
        now_ms: int,
        *,
        limit: int = BULK_MAX,
        dry_run: bool = True,
        after: str = "",
        due_ms: int | None = None,
        by_ms: int | None = None,
    ) -> PendingBulk:
        """Change what matches, up to ``limit`` messages; durable when it returns. PendingError for one that is too
        wide (`PendingQuery.width_fault`). It ends early when the time of a call is over, as where ``limit`` is reached.

        To purge what a deleted topic has left: `PendingVerb.CANCEL` with ``PendingQuery(topic=...)``.
        """
        ...

    def figures(self) -> PendingFigures:
        """Figures for dashboards."""
        ...

    def topics(self) -> Sequence[PendingTopic]:
        """What is pending by topic, largest first."""
        ...


@runtime_checkable
class PendingPlugin(Plugin, Protocol):
    """A plug-in whose pending messages can be seen and changed."""

    @property
    def pending(self) -> PendingControl:
        """What it can be asked; from ``open`` to ``close``."""
        ...
