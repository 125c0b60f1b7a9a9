"""Messages on their way to a target, and which of them one request may carry.

A request that carries several messages is a *batch* (SEND_MESSAGE_V2 with ``batch``): the broker stores each message as
a record of its own, with the properties that it has in the batch, or stores none. It gives all of them the flags and
times of the request::

    of the request, so the same for all    topic, queue, born time, flags of the body, born host
    of each message                        body, flag, properties: also its delay id and due time

So a delivery of a batch cannot be told from one that was sent alone, except by the order of its properties. Searches
for deliveries in doubt find it as they find any other.

To a message that goes alone, Apache's broker 5.5 adds ``CLUSTER``, ``MSG_REGION``, ``TRACE_ON`` and a missing
``UNIQ_KEY``. To one in a batch it adds nothing (4.9 adds ``CLUSTER`` to each). An entry that went alone has them
already. A message goes alone if

- it has no ``CLUSTER`` (a consumer that replies to a request needs it), or no ``UNIQ_KEY``, or an empty one: a broker
  adds it only if the message goes alone;
- it has a property that a broker reads or removes at a send (`_ODD`): it does not look for them in a batch;
- it has long properties: Apache's broker writes their length as a short, unchecked; or a large body;
- it was sent back by a consumer, or goes to `TIMEWHEEL_REJECTED`;
- a broker has refused it before, or a request that carried it got no clear answer: it may have been the reason;
- it has no ``KEYS``, and its broker has not stored such a message of its topic in the last minute. A topic with
  ``cleanup.policy=COMPACTION`` refuses a message without keys. In a batch it takes it, and no consumer ever gets it.

A message without a body, which can only have come in a batch, goes as a batch of one: alone, it would get a Java
exception from Apache's broker 5.5 and a refusal from ours, for ever.

The properties of the *request* stay empty. With a UNIQ_KEY in them, a broker of version 5 would store the whole batch
as one record in topics of ``queue.type=BatchCQ``, and nobody would find the delay ids in it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

from remoting.messages.message import MAX_PROPERTIES_BYTES, StoredMessage, join_batch
from remoting.messages.properties import PROPERTY_SEPARATOR, get_property
from service.core.progress import TargetQueue
from store.put.plugin_api import PutResult
from timewheel_client.values.routes import MessageQueue

__all__ = ["BATCH_MAX", "Kind", "Parcel", "Spread", "batch_body", "groups_of", "has_keys", "kind_of", "text_bytes_max"]

BATCH_MAX = 64
"""Most messages of one batch."""
BATCH_BYTES = 128 << 10
"""Most bytes of the bodies and properties of one batch, if it has more than one message. Brokers take 4 MiB."""
BODY_MAX = 16 << 10
"""Largest body of a message in a batch: a request of its own costs a larger one little."""
TEXT_MAX = 4096
"""Most characters of properties of a message in a batch; the broker adds its own, and 32,767 bytes are possible."""
BODILESS_TEXT_BYTES = 32_000
"""Most bytes of properties of a message without a body. What the broker adds to them is then still a short."""
BODY_FLAGS = 0x701
"""Of a sysflag, what says how the body is compressed."""
ALONE_MS = 10_000
"""After a batch that was not stored, the messages of its topic go alone for this long."""
PROOF_MS = 60_000
"""For so long it is believed that a topic takes messages without keys. To change that, it must be created again."""
REMEMBERED_MAX = 10_000
"""Most topics, or entries, of which something is remembered; beyond it all are forgotten."""
_ODD = re.compile(
    r"\x02(?=[_CDIPRTUW1])(?:_(?!_SHARDINGKEY\x01)|INNER_|TIMER_|DELAY\x01|TRAN|WAIT\x01(?!true\x02)|POP_CK|1ST_POP|REAL_"
    r"|RETRY_TOPIC|DUP_INFO|(?:CLUSTER|UNIQ_KEY)\x01(?:\x02|\Z))"
)
"""Properties that a broker reads or removes at a send. It reads those of the request only, and not those in a batch.
Also CLUSTER and UNIQ_KEY without a value."""

Kind: TypeAlias = tuple[str, int, int]
"""Topic, born time (epoch ms) and flags of the body: what messages of one batch have in common."""


class Parcel:
    """One message on its way out. ``kind``: of the batch that it may be part of; None if it goes alone."""

    __slots__ = ("due_ms", "kind", "message", "offset", "queue", "result", "topics")

    def __init__(self, offset: int, due_ms: int, message: StoredMessage, rejected_topic: str) -> None:
        self.offset = offset
        self.due_ms = due_ms
        self.message = message
        self.topics = (message.topic, rejected_topic)
        self.kind: Kind | None = None
        self.queue: TargetQueue | None = None
        self.result: PutResult | None = None

    @property
    def size(self) -> int:
        """Bytes of body and properties, nearly."""
        return len(self.message.body) + len(self.message.properties)


def kind_of(message: StoredMessage) -> Kind | None:
    """The kind of a message; None if it goes alone."""
    text, size = message.properties, len(message.body)
    if not 0 < size <= BODY_MAX or len(text) > TEXT_MAX or message.reconsume_times:
        return None
    led = PROPERTY_SEPARATOR + text
    if "\x02CLUSTER\x01" not in led or "\x02UNIQ_KEY\x01" not in led:
        return None
    if "\0" in text or _ODD.search(led):
        return None
    return message.topic, message.born_ms, message.sys_flag & BODY_FLAGS


def text_bytes_max(body: bytes) -> int:
    """Most bytes of properties that a message with this body may have on its way."""
    return MAX_PROPERTIES_BYTES if body else BODILESS_TEXT_BYTES


def has_keys(text: str) -> bool:
    """True if a property text has ``KEYS`` that Apache's broker takes for keys.

    >>> has_keys("KEYS\\x01a\\x02"), has_keys("KEYS\\x01 \\x02"), has_keys("UNIQ_KEYS\\x01a\\x02")
    (True, False, False)
    """
    return "KEYS" in text and bool((get_property(text, "KEYS") or "").strip())


def batch_body(messages: Sequence[StoredMessage]) -> bytes:
    """The body of a batch. Raises MessageError for a message that cannot be encoded."""
    return join_batch((message.flag, message.body, message.properties) for message in messages)


def groups_of(parcels: Sequence[Parcel]) -> list[list[Parcel]]:
    """The requests that carry these messages: each has one message, or several of one kind and queue.

    The order of the messages of each queue stays as it is.
    """
    last: dict[TargetQueue | None, tuple[Kind | None, list[Parcel], int]] = {}
    groups: list[list[Parcel]] = []
    for parcel in parcels:
        kind, group, size = last.get(parcel.queue, (None, [], 0))
        size += parcel.size
        if parcel.kind is None or kind != parcel.kind or len(group) >= BATCH_MAX or size > BATCH_BYTES:
            group, size = [], parcel.size
            groups.append(group)
        group.append(parcel)
        last[parcel.queue] = parcel.kind, group, size
    return groups


class Spread:
    """Spreads messages over queues: in turns, but as many of a kind to one queue as make a batch.

    Times are monotonic ms of this machine.
    """

    def __init__(self) -> None:
        self._turn = itertools.count()
        self._open: dict[Kind, tuple[int, int]] = {}
        self._alone_until_ms: dict[str, int] = {}
        self._takes_keyless_until_ms: dict[tuple[str, str], int] = {}  # topics at brokers
        self._not_stored: set[int] = set()  # entries of requests that were not stored, or nobody knows

    def begin(self) -> None:
        """Note that what was due together so far is on its way."""
        self._open.clear()

    def aim(self, parcel: Parcel, among: Sequence[MessageQueue], alone: bool, mono_ms: int) -> None:
        """Choose the queue of a message, and the kind of batch that it may be part of. ``alone``: of none."""
        topic = parcel.message.topic
        if self._alone_until_ms and not alone:
            alone = mono_ms < self._alone_until_ms.get(topic, 0)
        alone = alone or parcel.offset in self._not_stored
        kind = None if alone else kind_of(parcel.message)
        chosen = among[self._number(kind) % len(among)]
        parcel.queue = (chosen.topic, chosen.broker_name, chosen.queue_id)
        if kind is not None and not has_keys(parcel.message.properties):
            kind = kind if mono_ms < self._takes_keyless_until_ms.get(parcel.queue[:2], 0) else None
        parcel.kind = kind

    def _number(self, kind: Kind | None) -> int:
        if kind is None:
            return next(self._turn)
        number, left = self._open.get(kind, (0, 0))
        if not left:
            number, left = next(self._turn), BATCH_MAX
        self._open[kind] = number, left - 1
        return number

    def answered(self, group: Sequence[Parcel], is_stored: bool, mono_ms: int) -> None:
        """Note whether a broker has stored what one request carried; False also if nobody knows.

        A batch that was not stored, perhaps because of one message, is not tried again soon. Its messages go alone
        from then on, however long it takes to find out that they were not stored. So the message that is the reason
        disturbs others only once.
        """
        (first, *others) = group
        if not is_stored:
            if len(self._not_stored) >= REMEMBERED_MAX:
                self._not_stored.clear()
            self._not_stored.update(parcel.offset for parcel in group)
            if others:
                _remember(self._alone_until_ms, first.message.topic, mono_ms + ALONE_MS)
        elif not others:
            self._not_stored.discard(first.offset)
            # Without a body it was a batch, too, which proves nothing.
            if first.queue is not None and first.message.body and not has_keys(first.message.properties):
                _remember(self._takes_keyless_until_ms, first.queue[:2], mono_ms + PROOF_MS)


_K = TypeVar("_K")


def _remember(table: dict[_K, int], key: _K, until_ms: int) -> None:
    if len(table) >= REMEMBERED_MAX:
        table.clear()
    table[key] = until_ms
