"""Names of pending messages: one text for an offset, or for a topic and a delay key.

=====================================  ===================================================================
``7F00000100002A9F4000010000000005``   the message id that the send was answered with (``offsetMsgId``)
``4611687117939015685``                its virtual offset, decimal; or ``0x4000010000000005``
``djEgT3JkZXJ…``                       the recall handle that the send was answered with
``key:order-4711``                     its delay key (property ``__DELAYKEY``), with the topic beside it
=====================================  ===================================================================
"""

from __future__ import annotations

from broker.turns.recall_handle import RecallHandle
from remoting.errors import MessageError, ProtocolError
from remoting.hosts import decode_host, message_id, parse_message_id
from store.disk.delay_id import DELAY_ID_BASE
from store.put.pending_api import PendingError, PendingName

__all__ = ["KEY_PREFIX", "NAME_CHARS_MAX", "name_text", "read_name"]

KEY_PREFIX = "key:"
NAME_CHARS_MAX = 4096
"""The longest text that is looked at."""
_OFFSET_DIGITS_MAX = 19
_HOST_AND_OFFSET = (32, 56)
_OFFSET_HEX = 16


def read_name(text: str, topic: str = "", store_host: bytes = b"") -> PendingName:
    """Read a name; PendingError says what was wrong with it. A ``topic`` that is given must be the message's.

    ``store_host`` is the broker's address: the message id of another broker is refused, because the same offset may be
    another message here.

    >>> read_name("key:order-1", "Orders")
    PendingName(offset=0, topic='Orders', key='order-1', unique_key='')
    >>> read_name("7F00000100002A9F4000010000000005").offset == 0x4000010000000005
    True
    """
    if not text or len(text) > NAME_CHARS_MAX:
        raise PendingError(f"a message's name has 1 to {NAME_CHARS_MAX} characters, found {len(text)}: {text!r:.60}")
    if text.startswith(KEY_PREFIX):
        key = text.removeprefix(KEY_PREFIX)
        if not key or not topic:
            raise PendingError(f"a delay key needs its topic: found {text!r:.80} and topic {topic!r:.80}")
        return PendingName(topic=topic, key=key)
    offset = _offset_of(text)
    if offset is not None:
        if not _may_wait(offset):
            raise PendingError(
                f"{text!r:.80} names no pending message: take the offsetMsgId of the send's answer (a message id "
                "that the client made is found by listing with the property UNIQ_KEY)"
            )
        if store_host and len(text) in _HOST_AND_OFFSET and bytes.fromhex(text[:-_OFFSET_HEX]) != store_host:
            ip, port = decode_host(parse_message_id(text)[0])
            raise PendingError(
                f"{text!r:.80} is an id of the broker at {ip}:{port}: ask there; if this broker had that address "
                f"once, name the message by its offset {offset:#x}"
            )
        return PendingName(offset=offset, topic=topic)
    try:
        handle = RecallHandle.decode(text)
    except ProtocolError:
        raise PendingError(
            f"{text!r:.80} is neither a message id, nor a virtual offset, nor a recall handle, nor key:…"
        ) from None
    if topic and handle.topic != topic:
        raise PendingError(f"the recall handle is of topic {handle.topic!r:.80}, not of {topic!r:.80}")
    if not _may_wait(handle.offset):
        raise PendingError(f"{text!r:.80} is a recall handle that no send has returned")
    return PendingName(offset=handle.offset, topic=handle.topic, unique_key=handle.unique_key)


def _may_wait(offset: int) -> bool:
    """True if an offset is one that messages which wait have."""
    return DELAY_ID_BASE <= offset < 2 * DELAY_ID_BASE


def _offset_of(text: str) -> int | None:
    """Read the offset of a message id or of a bare number; None if the text is neither."""
    if not text.isascii():
        return None
    if text.isdigit() and len(text) <= _OFFSET_DIGITS_MAX:
        return int(text)
    if text[:2].lower() == "0x" and len(text) <= 2 + 16 and text[2:].isalnum():
        try:
            return int(text, 0)
        except ValueError:
            return None
    if len(text) in _HOST_AND_OFFSET:
        try:
            return parse_message_id(text)[1]
        except MessageError:
            return None
    return None


def name_text(offset: int, store_host: bytes) -> str:
    """Write the message id of a pending message, as its sender was told it; ``store_host`` is the broker's."""
    return message_id(store_host, offset)
