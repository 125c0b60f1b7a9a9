"""A consumer's subscription to each topic: tags, or an SQL92 expression over properties.

===================  =================================================================================================
``"*"``              everything
``"a || b"``         messages with one of these tags
``Sql("price > 5")`` messages whose properties make the expression true; the broker decides, and must be set up with
                     ``enablePropertyFilter=true``
===================  =================================================================================================

A retried message (`Message.retry`) matched already, so the group's retry topic is read without a filter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remoting.command import ProtocolError
from remoting.filters.subscription import split_expression
from remoting.messages.message import java_hash
from timewheel_client.values.arguments import need_text

__all__ = ["Sql", "Subscription", "Topics", "need_name", "subscriptions_of"]

NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression over properties: ``Sql("price BETWEEN 5 AND 10 AND colour IN ('red', 'blue')")``."""

    text: str


Topics = str | Iterable[str] | Mapping[str, "str | Sql"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription to one topic: the expression, its type in RocketMQ's words, and its tags (None: all)."""

    topic: str
    expression: str
    kind: str
    tags: tuple[str, ...] | None

    def data(self, version: int) -> dict[str, object]:
        """SubscriptionData, as a heartbeat has it."""
        tags = self.tags or ()
        return {
            "topic": self.topic,
            "subString": self.expression,
            "tagsSet": list(tags),
            "codeSet": [java_hash(tag) for tag in tags],
            "subVersion": version,
            "expressionType": self.kind,
            "classFilterMode": False,
        }


def need_name(what: str, name: object) -> str:
    """Check the name of a topic or group; raises TypeError, or ValueError for a name that every broker refuses."""
    text = need_text(what, name, empty=True)
    if NAME.fullmatch(text) is None:
        raise ValueError(f"{what} {text!r:.200} must consist of letters, digits and %|_- only, and not be empty")
    return text


def subscriptions_of(group: str, topics: Topics, tags: str, sql: str | None) -> dict[str, Subscription]:
    """Read a consumer's arguments; the result includes the group's retry topic.

    >>> sorted(subscriptions_of("g", ["a", "b"], "*", None))
    ['%RETRY%g', 'a', 'b']

    Raises TypeError or ValueError if there is no topic, or tags and SQL for one.
    """
    need_name("group", group)
    if sql is not None and tags != "*":
        raise ValueError("tags and sql exclude each other")
    default: str | Sql = need_text("tags", tags, empty=True) if sql is None else Sql(need_text("sql", sql))
    wanted: Mapping[str, str | Sql]
    if isinstance(topics, str):
        wanted = {topics: default}
    elif isinstance(topics, Mapping):
        wanted = topics
    elif isinstance(topics, Iterable) and not isinstance(topics, bytes | bytearray | memoryview):
        wanted = {need_text("each of topics", topic, empty=True): default for topic in topics}
    else:
        raise TypeError(f"topics must be a text, several or a mapping, found {topics!r:.100} ({type(topics).__name__})")
    if not wanted:
        raise ValueError("no topic given")
    found = {topic: _subscription(need_name("topic", topic), wish) for topic, wish in wanted.items()}
    retry = f"%RETRY%{group}"
    found[retry] = Subscription(retry, "*", "TAG", None)
    return found


def _subscription(topic: str, wish: object) -> Subscription:
    if isinstance(wish, Sql):
        return Subscription(topic, need_text(f"sql of {topic}", wish.text), "SQL92", None)
    expression = need_text(f"tags of {topic}", "*" if wish is None else wish, empty=True) or "*"
    try:
        tags = split_expression(expression)
    except ProtocolError as error:
        raise ValueError(str(error)) from None
    return Subscription(topic, expression, "TAG", None if tags is None else tuple(tags))
