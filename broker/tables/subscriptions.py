"""The subscription of a consumer group to a topic, and the filter made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from remoting.errors import ProtocolError
from remoting.filters.sql_filter import SQL92, PropertyFilter, Sql92Error, compile_sql92
from remoting.filters.subscription import SUBSCRIBE_ALL, TagFilter

__all__ = ["TAG", "WORD_CHARS_MAX", "GroupSubscription"]

TAG = "TAG"
WORD_CHARS_MAX = 64
_SUBSCRIPTION_BYTES, _TAG_BYTES, _SQL_CHAR_BYTES = 500, 150, 150


class GroupSubscription:
    """The subscription of one group to one topic.

    ``filter`` is made of the tags' texts, not of the codes that a client computed. With SQL92 ``is_tag`` is False and
    ``wants`` is the filter; if that is None, ``problem`` says what is wrong with the expression. ``size`` is about the
    number of bytes it takes.
    """

    __slots__ = (
        "_problem",
        "_wants",
        "expression",
        "expression_type",
        "filter",
        "size",
        "tags",
        "topic",
        "version",
    )

    def __init__(self, topic: str, expression: str, expression_type: str, version: int, tags: Iterable[str]) -> None:
        self.topic = topic
        self.expression = expression or SUBSCRIBE_ALL
        self.expression_type = expression_type or TAG
        self.version = version
        self.tags = tuple(tags)
        if self.expression == SUBSCRIBE_ALL or not self.is_tag:
            self.filter = TagFilter(None)
        elif self.tags:
            self.filter = TagFilter.from_tags(self.tags)
        else:
            self.filter = TagFilter.from_expression(self.expression)
        self._wants: PropertyFilter | None = None
        self._problem: str | None = None if self.expression_type == SQL92 else ""
        self.size = _SUBSCRIPTION_BYTES + len(topic) + len(self.expression) + len(self.expression_type)
        self.size += sum(map(len, self.tags)) + (len(self.tags) + len(self.filter.codes or ())) * _TAG_BYTES
        self.size += len(self.expression) * _SQL_CHAR_BYTES if self.expression_type == SQL92 else 0

    @property
    def wants(self) -> PropertyFilter | None:
        """The filter of a SQL92 subscription, compiled on first use; None if the expression is invalid."""
        self._compile()
        return self._wants

    @property
    def problem(self) -> str:
        """The fault of a SQL92 expression; empty if it has none."""
        self._compile()
        return self._problem or ""

    def _compile(self) -> None:
        if self._problem is None:
            self._problem = ""
            try:
                self._wants = compile_sql92(self.expression)
            except Sql92Error as error:
                self._problem = str(error)

    @property
    def is_tag(self) -> bool:
        """True if it selects by tags."""
        return self.expression_type == TAG

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GroupSubscription:
        """Read a heartbeat's SubscriptionData; raises ProtocolError."""
        try:
            return cls(
                str(document["topic"]),
                str(document.get("subString") or SUBSCRIBE_ALL),
                str(document.get("expressionType") or TAG),
                int(document.get("subVersion") or 0),
                [str(tag) for tag in document.get("tagsSet") or ()],
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ProtocolError(f"unreadable subscription: {error!r}: {document!r:.200}") from error

    def to_json(self) -> dict[str, Any]:
        """Write it with Apache's names."""
        return {
            "classFilterMode": False,
            "codeSet": sorted(self.filter.codes or ()),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }
