"""Queries, commands and answers about pending messages, as values; `store.put.pending_api` has the methods.

A message is named by a `PendingName`: by its virtual offset, or by its delay key (property ``__DELAYKEY``), which is
unique within its topic while the message is pending.

===========  ==========================================================================================
verdict      of a change (cancel, move, now, restart)
===========  ==========================================================================================
`DONE`       it was pending and is changed; durable when the answer is given
`ALREADY`    it is in the requested state already (cancelled before; due at that very time): a success
`TOO_LATE`   it was delivered: ``when_ms`` says when, ``where`` says where
`CANCELLED`  it was cancelled, so it can be neither moved nor restarted
`CHANGED`    its version is not the one that the caller named: query again; nothing was changed
`UNKNOWN`    no message is or was pending under this name, or it is long gone, or its delivery cannot be read
`REFUSED`    the command is not possible (a due time beyond the year 9999); ``detail`` says what to do
===========  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from remoting.pending_rules import width_fault

__all__ = [
    "BULK_MAX",
    "FORECAST_BARS_MAX",
    "PAGE_MAX",
    "Forecast",
    "ForecastBar",
    "PendingAnswer",
    "PendingBulk",
    "PendingCount",
    "PendingError",
    "PendingFigures",
    "PendingName",
    "PendingOrder",
    "PendingPage",
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
    """The changes of a pending message."""

    CANCEL = "cancel"
    """It is never delivered."""
    MOVE = "move"
    """It gets another due time, absolute or as a shift in ms."""
    NOW = "now"
    """It is due now."""
    RESTART = "restart"
    """It becomes due at now plus the delay with which it was sent, as a dead man's switch needs it."""


class PendingVerdict(StrEnum):
    """The result of an order; see the table at the top."""

    DONE = "done"
    ALREADY = "already"
    TOO_LATE = "too_late"
    CANCELLED = "cancelled"
    CHANGED = "changed"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingName:
    """A caller's name of a message: ``offset``, or ``topic`` and ``key``.

    With an offset, a given ``topic`` or ``unique_key`` (the property ``UNIQ_KEY``) must be the message's, else it is
    unknown, as if there were no message. So an account that may see one topic finds no message of another by guessing
    offsets.
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
    """Conditions for messages; all given ones must hold. Times in epoch ms, ``from`` inclusive, ``to`` exclusive.

    ``accepted`` is when the broker accepted the message, by its own clock (for messages of an older store, by the
    sender's). ``properties`` are names, each with the value that it must have. No condition needs the body of a
    message; the due range alone is answered without reading messages.
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
        """True if it has no condition, so that every message matches."""
        return self == PendingQuery()

    @property
    def width_fault(self) -> str:
        """Why a bulk change by this query is refused as too wide; empty if it is allowed."""
        texts = self.topic, self.tag, self.key_prefix, *(name for name, _ in self.properties)
        due = self.due_from_ms, self.due_to_ms
        return width_fault(texts, (due, (self.accepted_from_ms, self.accepted_to_ms)))

    @property
    def is_of_topic(self) -> bool:
        """True if it has no conditions other than topic and due range."""
        rest = self.tag, self.key_prefix, self.accepted_from_ms, self.accepted_to_ms, self.properties
        return rest == ("", "", None, None, ())

    @property
    def is_of_due(self) -> bool:
        """True if it has no condition other than the due range, so that the indexes alone answer it."""
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
    """True if it is overdue because a delivery was refused; the delivery is retried without limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAnswer:
    """The answer to an order, or to `PendingControl.get`.

    ``offset`` names the message, however the caller has named it (0: none was found). ``due_ms`` and ``version`` are
    its present or last ones. ``when_ms`` is the time of the delivery (`PendingVerdict.TOO_LATE`) or of the cancel, 0 if
    that is no longer known. ``where`` is ``topic/queue id/queue offset`` of a delivery. ``row``, ``properties`` and
    ``body`` are set by `PendingControl.get` for a message that is pending.
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
    """The number of matching messages. If ``next`` is not empty, the call ended early: call again with it and add up.

    ``bytes_exact`` is False if no message was read: then ``bytes`` is the size of the delay store, or a share of it.

    ``unread`` messages were passed over, because they can be neither read nor compared with the query; ``remark`` says
    which, and what to do. Of several calls add the numbers up. A count for which no message was read has those in it.
    """

    count: int
    bytes: int
    bytes_exact: bool = True
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    next: str = ""
    unread: int = 0
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBulk:
    """The result of one call of a bulk change.

    ``verdicts`` counts answers by verdict (in a dry run: those that the change would give). ``answers`` has one for
    each message, in order. ``next`` resumes, also after a crash of either side: cancelled messages no longer match.

    ``unread`` messages that may match were passed over, because they can be neither read nor compared with the query;
    ``remark`` says which, and what to do. Of several calls add the numbers up: only if the sum is 0, an empty ``next``
    means that nothing which matches is left.
    """

    verdicts: dict[PendingVerdict, int] = field(default_factory=dict)
    answers: Sequence[PendingAnswer] = ()
    looked_at: int = 0
    next: str = ""
    dry_run: bool = False
    unread: int = 0
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastBar:
    """The number of messages due within [``from_ms``, ``from_ms`` + the forecast's ``step_ms``)."""

    from_ms: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Numbers of messages by due time. If ``exact`` is False, a bar may be off by a page of a run (some 300)."""

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
    unread: int = 0
    """Of a topic: messages in the range, of any topic, that could not be read; they are in no bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTopic:
    """Pending messages of one topic. ``known`` is False while a shard that starts still counts (seconds for millions).

    ``bytes_exact`` is False if ``bytes`` is the topic's share of all bytes, by its count.
    """

    topic: str
    count: int
    bytes: int
    bytes_exact: bool = True
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFigures:
    """Figures over all pending messages."""

    count: int
    bytes: int
    armed: int
    """In the wheel: due within about a second."""
    failed: int
    """Overdue because a delivery was refused."""
    journal_bytes: int
    runs: int
    next_due_ms: int | None
    """The first due time in the wheel; None if nothing is due within about a second."""
    verdicts: dict[tuple[PendingVerb, PendingVerdict], int]
    """Answers given since the start."""
    topics_known: bool = True
    """False while a start still counts by topic (seconds for millions); until then `PendingControl.topics` is empty."""
