"""Handles: what a consumer of a popped message names it by, and the names of the topics of its retries.

A handle is a text of blank-separated parts, ``start popTime invisible reviveQid retry broker queue offset``. A client
makes it from the fields of a pop's reply, so that its parts are what that reply has said. The proxy adds a ninth part
and signs nothing: anybody who knows a queue can write one, so no part of it is believed.
"""

from __future__ import annotations

from broker.tables.topic_names import RETRY_PREFIX
from remoting.errors import HeaderError

__all__ = [
    "NORMAL",
    "ORDER_QID",
    "RETRY_V1",
    "RETRY_V2",
    "Handle",
    "normal_topic",
    "parse_handle",
    "real_topic",
    "retry_flag",
    "retry_topic",
]

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
"""The part that says whether a message was popped from its own topic or from one of its retries."""
ORDER_QID = 999
"""The reviveQid of messages that were popped in order."""
_PARTS_MIN = 6
_TEXT_MAX = 2_000
_NUMBER_END = 1 << 63


class Handle:
    """A handle's parts: ``start``, ``pop_ms``, ``invisible_ms``, ``revive_qid``, ``retry`` and ``broker``."""

    __slots__ = ("broker", "invisible_ms", "pop_ms", "retry", "revive_qid", "start")

    def __init__(self, start: int, pop_ms: int, invisible_ms: int, revive_qid: int, retry: str, broker: str) -> None:
        self.start = start
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.revive_qid = revive_qid
        self.retry = retry
        self.broker = broker

    @property
    def in_order(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_qid == ORDER_QID

    def text(self, queue_id: int, offset: int) -> str:
        """Write the handle of one message.

        >>> Handle(3, 1000, 60000, 0, "0", "broker-a").text(2, 5)
        '3 1000 60000 0 0 broker-a 2 5'
        """
        return f"{self.lead(queue_id)}{offset}"

    def lead(self, queue_id: int) -> str:
        """Write what the handles of all messages of one pop from one queue begin with: all but the number."""
        return (
            f"{self.start} {self.pop_ms} {self.invisible_ms} {self.revive_qid} {self.retry} {self.broker} {queue_id} "
        )


def parse_handle(text: str) -> Handle:
    """Read a handle. Raises HeaderError for what is none.

    >>> parse_handle("3 1000 60000 0 0 broker-a 2 5").start
    3
    """
    parts = text[:_TEXT_MAX].split(" ")
    try:
        if len(parts) < _PARTS_MIN or len(text) > _TEXT_MAX or not text.isascii():
            raise ValueError
        if any("_" in part for part in parts[:4]):  # `int` takes 1_0 for ten; no client writes that
            raise ValueError
        start, pop_ms, invisible_ms, revive_qid = (int(part) for part in parts[:4])
        if max(map(abs, (start, pop_ms, invisible_ms, revive_qid))) >= _NUMBER_END:
            raise ValueError
    except ValueError:
        wanted = "a handle: start popTime invisibleTime reviveQid retry brokerName queueId offset"
        raise HeaderError("extraInfo", text, wanted) from None
    return Handle(start, pop_ms, invisible_ms, revive_qid, parts[4], parts[5])


def retry_topic(topic: str, group: str, version: str = RETRY_V1) -> str:
    """Name the topic of a group's retries of a topic.

    >>> retry_topic("Orders", "billing"), retry_topic("Orders", "billing", RETRY_V2)
    ('%RETRY%billing_Orders', '%RETRY%billing+Orders')
    """
    return f"{RETRY_PREFIX}{group}{'+' if version == RETRY_V2 else '_'}{topic}"


def real_topic(topic: str, group: str, retry: str) -> str:
    """Name the topic that a message stands in, by a handle's part. Raises HeaderError for an unknown part."""
    if retry == NORMAL:
        return topic
    if retry in (RETRY_V1, RETRY_V2):
        return retry_topic(topic, group, retry)
    raise HeaderError("retry", retry, "0, 1 or 2")


def retry_flag(topic: str) -> str:
    """Say by a topic's name what a handle's part is for it."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def normal_topic(topic: str, group: str) -> str:
    """Name the topic whose retries a topic has for a group; the topic itself if it has none."""
    for separator in "_+":
        begin = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(begin):
            return topic.removeprefix(begin)
    return topic
