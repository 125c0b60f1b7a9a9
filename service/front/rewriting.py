"""Turns a sender's send into a send to the entry topic, or says why not.

==========================================  =========================================================================
the send                                    what is done with it
==========================================  =========================================================================
no ``__STARTDELIVERTIME``, no ``TIMER_*``   passed on as it is
one of them, and a delay level above 0      passed on as it is: the level wins, as with every broker
to ``%RETRY%…``, to a system topic          passed on as it is: these topics are not for delayed messages
one of them that cannot be read             refused (MESSAGE_ILLEGAL)
to the progress topic of the service        refused (MESSAGE_ILLEGAL)
a batch with one of them                    the whole batch becomes entries, stored together or not at all. Messages
                                            without a due time are due at once. One whose request has a due
                                            time as well is refused (MESSAGE_ILLEGAL)
all others                                  sent as an entry to the entry topic, with ``TW_TOPIC`` and the due time
==========================================  =========================================================================

An absolute due time becomes ``TW_DELIVER_MS``. A delay becomes ``TW_DELAY_MS``, which counts from the store time of the
entry at the cluster's broker, so no clock of the service matters. The sender's properties for the due time are removed,
because brokers would delay the entry. Properties of the service (``TW_…``) are removed, too, so that a sender cannot
write records of the service. All other properties and the body stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_plugin.rules.properties import PRECEDENCE, TimerError, delay_level, is_half, may_be_timed, read_due
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import HeaderError, SendHeader
from remoting.messages.batch import join_batch, split_batch
from remoting.messages.message import MessageError
from remoting.messages.properties import remove_properties, with_property
from service.link.progress_log import progress_topic
from service.running.entries import (
    DELAY_MS,
    DELIVER_MS,
    NAME_RULE,
    SERVICE_PROPERTIES,
    TOPIC,
    is_for_senders,
    is_topic_name,
)

__all__ = ["SENDS", "EntrySend", "SendRefusedError", "entry_of", "entry_properties"]

SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
PROPERTIES_MAX_BYTES = 32_767 - 512
"""Most bytes of an entry's properties: a broker adds some of its own, and the delivery has a name and a due time."""
_REMOVED = (TOPIC, DELIVER_MS, DELAY_MS, *PRECEDENCE, *SERVICE_PROPERTIES)


class SendRefusedError(Exception):
    """The send is refused, with ``code`` and this text as the answer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class EntrySend:
    """A send to the entry topic. ``topic`` and ``queue_id`` are those that the sender named.

    ``half``: a half message, which only the broker that the sender chose may store.
    """

    topic: str
    header: SendHeader
    code: int
    body: bytes
    half: bool


def entry_of(command: RemotingCommand, entry_topic: str, now_ms: int) -> EntrySend | None:
    """Turn a send into an entry; None if it is passed on as it is. Raises SendRefusedError.

    ``command.code`` is one of `SENDS`. ``now_ms`` (epoch ms) serves only to refuse delays beyond the year 9999.
    """
    plain = command.code == RequestCode.SEND_MESSAGE
    text = command.ext.get("properties" if plain else "i", "")
    in_body = command.code == RequestCode.SEND_BATCH_MESSAGE or "true" in (
        command.ext.get("batch", ""),
        command.ext.get("m", ""),
    )
    if not (may_be_timed(text) or (in_body and (b"__STARTD" in command.body or b"TIMER_DEL" in command.body))):
        return None
    try:
        header = SendHeader.from_v1(command.ext) if plain else SendHeader.from_v2(command.ext)
    except HeaderError:
        return None  # the broker says what is wrong with it
    topic = header.topic
    if not is_for_senders(topic, entry_topic):
        return None
    if command.code == RequestCode.SEND_BATCH_MESSAGE or header.batch:
        body = _batch(command.body, topic, entry_topic, now_ms, header.properties)
        if body is None:
            return None
        header.batch = True
        # Apache's brokers add the properties of the request to those of each message.
        header.properties = remove_properties(header.properties, _REMOVED)
        code, half = RequestCode.SEND_BATCH_MESSAGE, False
    else:
        due = _due(header.properties, now_ms)
        if due is None:
            return None
        _check_name(topic, entry_topic)
        half = is_half(header.properties, header.sys_flag)
        code, body = RequestCode.SEND_MESSAGE_V2, command.body
        header.properties = entry_properties(header.properties, topic, due)
    # No send may create the entry topic. And an entry does not take over the sender's count of deliveries.
    header.topic = header.default_topic = entry_topic
    header.reconsume_times, header.max_reconsume_times = 0, None
    return EntrySend(topic, header, code, body, half)


def entry_properties(text: str, topic: str, due: tuple[str, int]) -> str:
    """The property text of an entry: the sender's without due times and ``TW_…``, plus topic and due time.

    >>> entry_properties("A\\x01b\\x02TIMER_DELAY_SEC\\x015\\x02", "orders", ("TW_DELAY_MS", 5000))
    'A\\x01b\\x02TW_TOPIC\\x01orders\\x02TW_DELAY_MS\\x015000\\x02'

    Raises SendRefusedError if that is too long.
    """
    text = remove_properties(text, _REMOVED)
    made = with_property(with_property(text, TOPIC, topic), due[0], str(due[1]))
    size = len(made.encode("utf-8", "surrogatepass"))
    if size > PROPERTIES_MAX_BYTES:
        raise SendRefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{size} bytes of properties with those of the delay; at most {PROPERTIES_MAX_BYTES} are allowed",
        )
    return made


def _due(text: str, now_ms: int) -> tuple[str, int] | None:
    """The due time as a property of the service, name and value; None if the message has none."""
    if not may_be_timed(text) or delay_level(text) > 0:
        return None
    try:
        due_ms = read_due(text, now_ms)
        if due_ms is None:
            return None
        relative = read_due(text, now_ms - 1) != due_ms
    except TimerError as error:
        raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    return (DELAY_MS, due_ms - now_ms) if relative else (DELIVER_MS, due_ms)


def _batch(body: bytes, topic: str, entry_topic: str, now_ms: int, of_all: str) -> bytes | None:
    """Turn a batch into entries; None if no message has a due time, or the batch cannot be read.

    ``of_all``: the property text of the request.
    """
    try:
        elements = split_batch(body)
    except MessageError:
        return None  # the broker says what is wrong with it
    dues = [_due(text, now_ms) for _, _, text in elements]
    if not any(dues):
        return None
    _check_name(topic, entry_topic)
    if may_be_timed(of_all):
        text = "a due time in the properties of the batch itself: give each of its messages its own"
        raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, text)
    if delay_level(of_all) > 0 or any(delay_level(text) > 0 for _, _, text in elements):
        text = "a batch with both due times and delay levels: send the two kinds in separate batches"
        raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, text)
    return join_batch(
        (flag, inner, entry_properties(text, topic, due or (DELAY_MS, 0)))
        for (flag, inner, text), due in zip(elements, dues, strict=True)
    )


def _check_name(topic: str, entry_topic: str) -> None:
    if not is_topic_name(topic):
        raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"{topic[:130]!r} is not a topic name: {NAME_RULE}")
    if topic == progress_topic(entry_topic):
        text = f"{topic} is the service's own progress: nobody else writes into it"
        raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, text)
