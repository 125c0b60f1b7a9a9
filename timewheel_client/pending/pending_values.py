"""Queries for pending messages, and their results."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any

from remoting.pending_rules import width_fault
from timewheel_client.pending.cursors import cursor_of

__all__ = [
    "ChangeResult",
    "CountResult",
    "MatchingResult",
    "OutlookResult",
    "TopicWaiting",
    "WaitingMessage",
    "WaitingPage",
    "Which",
    "change_of",
    "topic_of",
    "waiting_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """A query: all given conditions must hold. Times in epoch ms, ``from`` inclusive, ``to`` exclusive.

    >>> Which(topic="Orders", due_to_ms=1_700_000_000_000).fields()
    {'topic': 'Orders', 'dueToMs': '1700000000000'}
    """

    topic: str = ""
    tag: str = ""
    key_prefix: str = ""
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    accepted_from_ms: int | None = None
    accepted_to_ms: int | None = None
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def width_fault(self) -> str:
        """Why a bulk change by it is refused; empty if it is not."""
        texts = self.topic, self.tag, self.key_prefix, *self.properties
        due = self.due_from_ms, self.due_to_ms
        return width_fault(texts, (due, (self.accepted_from_ms, self.accepted_to_ms)))

    def fields(self) -> dict[str, str]:
        """Fields of a request's header."""
        pairs = {
            "topic": self.topic,
            "tag": self.tag,
            "keyPrefix": self.key_prefix,
            "dueFromMs": self.due_from_ms,
            "dueToMs": self.due_to_ms,
            "acceptedFromMs": self.accepted_from_ms,
            "acceptedToMs": self.accepted_to_ms,
            "properties": "".join(f"{name}\x01{value}\x02" for name, value in self.properties.items()),
        }
        return {name: str(value) for name, value in pairs.items() if value not in ("", None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessage:
    """A pending message. Times in epoch ms; ``body`` and ``properties`` are there if it was asked for alone."""

    id: str
    broker: str
    topic: str
    due_ms: int
    accepted_ms: int
    version: int
    queue_id: int
    size: int
    tag: str = ""
    key: str = ""
    unique_key: str = ""
    failed: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPage:
    """Some pending messages in due order, and the cursor behind which the rest comes; empty if that was all."""

    messages: list[WaitingMessage]
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult:
    """Result of a change or a look-up; ``verdict`` is one of docs/pending.md. True if the wanted state is reached.

    ``others`` has the answers of further brokers that know the delay key. The result is false if a message of theirs
    waits on unchanged.
    """

    verdict: str
    detail: str = ""
    id: str = ""
    broker: str = ""
    version: int = 0
    due_ms: int = 0
    when_ms: int = 0
    where: str = ""
    message: WaitingMessage | None = None
    others: tuple[ChangeResult, ...] = ()

    def __bool__(self) -> bool:
        waiting = any(other.verdict in ("changed", "refused") for other in self.others)
        return self.verdict in ("done", "already") and not waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingResult:
    """Result of a bulk change (or of its dry run) on all brokers: counts by verdict, and some thousand answers."""

    verdicts: dict[str, int]
    answers: list[ChangeResult]
    dry_run: bool
    unfinished: dict[str, str]
    """Brokers with more to do than the limit or an error let, each with its cursor."""
    errors: dict[str, str] = field(default_factory=dict)
    """The broker whose call failed after others had succeeded, with the error's text; empty if none did."""
    unread: int = 0
    """Messages that may match and were passed over, because a broker can neither read nor compare them. Only if this is
    0, a change that came to its end has left nothing that matches. A delay service does not say it: 0."""
    remarks: dict[str, str] = field(default_factory=dict)
    """Brokers with such messages, each with a text: which these are, and what to do."""

    @property
    def next(self) -> str:
        """The cursor behind which the rest is to be done; empty if that was all."""
        return cursor_of(self.unfinished)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountResult:
    """How many match on each broker.

    ``unread`` messages that may match are not among them, because a broker can neither read nor compare them;
    ``remarks`` has the brokers with such messages, each with a text: which these are, and what to do.
    """

    counts: dict[str, int]
    unread: int = 0
    remarks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlookResult:
    """Forecast of all brokers together; ``bars`` are (epoch ms, count), without the empty ones."""

    from_ms: int
    to_ms: int
    step_ms: int
    bars: list[tuple[int, int]]
    total: int
    overdue: int
    later: int
    exact: bool
    unread: int = 0
    """Of one topic: messages in the range, of any topic, that could not be read. They are in no bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWaiting:
    """Pending messages of one topic: count, bytes of their records, first and last due time, epoch ms."""

    topic: str
    count: int
    bytes: int
    first_due_ms: int
    last_due_ms: int

    def plus(self, other: TopicWaiting) -> TopicWaiting:
        """Both together."""
        return TopicWaiting(
            topic=self.topic,
            count=self.count + other.count,
            bytes=self.bytes + other.bytes,
            first_due_ms=min(self.first_due_ms, other.first_due_ms),
            last_due_ms=max(self.last_due_ms, other.last_due_ms),
        )


def topic_of(document: dict[str, Any]) -> TopicWaiting:
    """Read the sums of a topic."""
    numbers = {name: int(document[name]) for name in ("count", "bytes", "first_due_ms", "last_due_ms")}
    return TopicWaiting(topic=str(document["topic"]), **numbers)


def waiting_of(document: dict[str, Any], broker: str) -> WaitingMessage:
    """Read a message of an answer."""
    return WaitingMessage(
        id=str(document["id"]),
        broker=broker,
        topic=str(document["topic"]),
        due_ms=int(document["due_ms"]),
        accepted_ms=int(document.get("accepted_ms", 0)),
        version=int(document.get("version", 0)),
        queue_id=int(document.get("queue_id", 0)),
        size=int(document.get("size", 0)),
        tag=str(document.get("tag", "")),
        key=str(document.get("key", "")),
        unique_key=str(document.get("unique_key", "")),
        failed=bool(document.get("failed", False)),
        properties=dict(document.get("properties", {})),
        body=b64decode(document.get("body", "")),
    )


def change_of(document: dict[str, Any], broker: str) -> ChangeResult:
    """Read one answer."""
    message = document.get("message")
    return ChangeResult(
        verdict=str(document["verdict"]),
        detail=str(document.get("detail", "")),
        id=str(document.get("id", "")),
        broker=broker,
        version=int(document.get("version", 0)),
        due_ms=int(document.get("due_ms", 0)),
        when_ms=int(document.get("when_ms", 0)),
        where=str(document.get("where", "")),
        message=None if message is None else waiting_of(message, broker),
    )
