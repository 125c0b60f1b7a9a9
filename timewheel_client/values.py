"""What goes into a send and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remoting.errors import MessageError
from remoting.properties import KEYS, TAGS, UNIQ_KEY, format_properties
from timewheel_client.delivery_time import At, Delay, delivery_properties
from timewheel_client.routes import MessageQueue

__all__ = ["BatchMessage", "SendResult", "as_body", "properties_text"]


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message was stored.

    ========================  =========================================================================
    ``message_id``            str, the producer's id of the message (UNIQ_KEY): what consumers see
    ``offset_message_id``     str, the broker's id: its address and a position, 32 hex digits
    ``queue``                 `MessageQueue`
    ``queue_offset``          int, number in the queue; of a pending message, what the broker says (0)
    ``status``                str, SEND_OK, or stored but: FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT,
                              SLAVE_NOT_AVAILABLE
    ========================  =========================================================================
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    status: str = "SEND_OK"


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """One message of a batch; the fields mean what the arguments of `Producer.send` mean.

    A delivery time in a batch needs a Timewheel broker: Apache's answers OK and delivers at once.
    """

    body: bytes | str
    tags: str | None = None
    keys: str | Sequence[str] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    at: At | None = None
    delay: Delay | None = None


def as_body(body: bytes | bytearray | memoryview | str) -> bytes:
    """Answer with the bytes of a body; text is encoded as UTF-8."""
    return body.encode() if isinstance(body, str) else bytes(body)


def properties_text(
    unique_id: str,
    tags: str | None = None,
    keys: str | Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
    at: At | None = None,
    delay: Delay | None = None,
    level: int | None = None,
) -> str:
    """Write the property text of a message.

    Raises ValueError for a name or value that is empty or contains a separator, for a property that is given twice (as
    ``tags`` and as ``TAGS``), and as `delivery_properties` does.
    """
    merged: dict[str, str] = {}
    if properties:
        for name, value in properties.items():
            if not name or not isinstance(value, str) or not value:
                raise ValueError(f"property {name!r} must have a name and a value that is a text, found {value!r}")
            merged[name] = value
    given: list[tuple[str, str]] = [*delivery_properties(at, delay, level)]
    if tags:
        given.append((TAGS, tags))
    if keys:
        given.append((KEYS, keys if isinstance(keys, str) else " ".join(keys)))
    for name, value in given:
        if name in merged:
            raise ValueError(f"{name} is given twice: as an argument and among the properties")
        merged[name] = value
    merged.setdefault(UNIQ_KEY, unique_id)
    try:
        return format_properties(merged)
    except MessageError as error:
        raise ValueError(str(error)) from None
