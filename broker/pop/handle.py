"""Handles, by which a consumer names a popped message, and the names of retry topics.

A handle is a text of blank-separated parts, ``start popTime invisible reviveQid retry broker queue offset``. A client
makes it from the fields of a pop's reply. The proxy adds a ninth part. A handle has no signature: anybody who knows a
queue can write one, so the broker trusts none of its parts.
"""

from __future__ import annotations

from broker.tables.topic_names import RETRY_PREFIX
from remoting.errors import HeaderError
from remoting.messages.message import MAX_TOPIC_BYTES

__all__ = [
    "NORMAL",
    "ORDER_QID",
    "RETRY_V1",
    "RETRY_V2",
    "Handle",
    "name_problem",
    "normal_topic",
    "parse_handle",
    "real_topic",
    "retry_flag",
    "retry_topic",
]

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
"""The part ``retry``: popped from the topic itself, or from its retry topic of name format V1 or V2."""
ORDER_QID = 999
"""The reviveQid of messages that were popped in order."""
_PARTS_MIN, _PARTS_MAX = 6, 8
_TEXT_MAX = 2_000
_NUMBER_END = 1 << 63


class Handle:
    """A handle's parts: ``start``, ``pop_ms``, ``invisible_ms``, ``revive_qid``, ``retry`` and ``broker``.

    ``queue_id`` and ``offset`` are -1 if it does not say them.
    """

    __slots__ = ("broker", "invisible_ms", "offset", "pop_ms", "queue_id", "retry", "revive_qid", "start")

    def __init__(
        self,
        start: int,
        pop_ms: int,
        invisible_ms: int,
        revive_qid: int,
        retry: str,
        broker: str,
        queue_id: int = -1,
        offset: int = -1,
    ) -> None:
        self.start = start
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.revive_qid = revive_qid
        self.retry = retry
        self.broker = broker
        self.queue_id = queue_id
        self.offset = offset

    def names(self, queue_id: int, offset: int) -> bool:
        """True unless it says another queue or another message.

        >>> parse_handle("3 1000 60000 0 0 broker-a 2 5").names(2, 6)
        False
        """
        return self.queue_id in (-1, queue_id) and self.offset in (-1, offset)

    @property
    def in_order(self) -> bool:
        """True if the message was popped in order."""
        return self.revive_qid == ORDER_QID

    def text(self, queue_id: int, offset: int) -> str:
        """Write the handle of one message.

        >>> Handle(3, 1000, 60000, 0, "0", "broker-a").text(2, 5)
        '3 1000 60000 0 0 broker-a 2 5'
        """
        return f"{self.lead(queue_id)}{offset}"

    def lead(self, queue_id: int) -> str:
        """Write the common beginning of the handles of one pop from one queue: all parts but the offset."""
        return (
            f"{self.start} {self.pop_ms} {self.invisible_ms} {self.revive_qid} {self.retry} {self.broker} {queue_id} "
        )


def parse_handle(text: str) -> Handle:
    """Read a handle. Raises HeaderError for any other text.

    >>> parse_handle("3 1000 60000 0 0 broker-a 2 5").start
    3
    """
    parts = text[:_TEXT_MAX].split(" ")
    try:
        if len(parts) < _PARTS_MIN or len(text) > _TEXT_MAX or not text.isascii():
            raise ValueError
        texts = parts[:4] + parts[_PARTS_MIN:_PARTS_MAX]
        if any("_" in text for text in texts):  # `int` takes 1_0 for ten; no client writes that
            raise ValueError
        start, pop_ms, invisible_ms, revive_qid, *where = map(int, texts)
        if max(map(abs, (start, pop_ms, invisible_ms, revive_qid, *where))) >= _NUMBER_END:
            raise ValueError
    except ValueError:
        wanted = "a handle: start popTime invisibleTime reviveQid retry brokerName queueId offset"
        raise HeaderError("extraInfo", text, wanted) from None
    return Handle(start, pop_ms, invisible_ms, revive_qid, parts[4], parts[5], *where)


def retry_topic(topic: str, group: str, version: str = RETRY_V1) -> str:
    """Return the name of a group's retry topic of a topic.

    >>> retry_topic("Orders", "billing"), retry_topic("Orders", "billing", RETRY_V2)
    ('%RETRY%billing_Orders', '%RETRY%billing+Orders')
    """
    return f"{RETRY_PREFIX}{group}{'+' if version == RETRY_V2 else '_'}{topic}"


def name_problem(topic: str, group: str) -> str:
    """Say why a group cannot pop a topic: its retry topic would have too long a name; empty if it can.

    >>> name_problem("Orders", "billing"), name_problem("%DLQ%" + "x" * 250, "billing")[:30]
    ('', "the group's retry topic of the")
    """
    size = 0 if retry_flag(topic) != NORMAL else len(retry_topic(topic, group).encode("utf-8", "surrogatepass"))
    if size <= MAX_TOPIC_BYTES:
        return ""
    return (
        f"the group's retry topic of the topic, {retry_topic('TOPIC', 'GROUP')}, would have a name of {size} bytes, at "
        f"most {MAX_TOPIC_BYTES} are possible: pull this topic, or pop it with a group that has a shorter name"
    )


def real_topic(topic: str, group: str, retry: str) -> str:
    """Return the topic that stores a message, by its handle's part ``retry``. Raises HeaderError for an unknown one."""
    if retry == NORMAL:
        return topic
    if retry in (RETRY_V1, RETRY_V2):
        return retry_topic(topic, group, retry)
    raise HeaderError("retry", retry, "0, 1 or 2")


def retry_flag(topic: str) -> str:
    """Return the part ``retry`` of handles for messages of a topic."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def normal_topic(topic: str, group: str) -> str:
    """Return the topic that a retry topic of a group belongs to; any other topic is returned as it is."""
    for separator in "_+":
        begin = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(begin):
            return topic.removeprefix(begin)
    return topic
