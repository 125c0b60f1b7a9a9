"""Arguments and results of sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remoting.errors import MessageError
from remoting.messages.properties import KEYS, SHARDING_KEY, TAGS, UNIQ_KEY, format_properties
from timewheel_client.values.arguments import need_text, need_texts
from timewheel_client.values.delivery_time import At, Delay, delivery_properties
from timewheel_client.values.reserved import ReceivedProperties, forwarded, is_reserved, why_reserved
from timewheel_client.values.routes import MessageQueue

__all__ = ["BatchMessage", "RecallResult", "SendResult", "properties_text"]


@dataclass(frozen=True, slots=True)
class SendResult:
    """The place where a message was stored.

    ========================  =========================================================================
    ``message_id``            str, the producer's id of the message (UNIQ_KEY): what consumers see
    ``offset_message_id``     str, the broker's id: its address and a position, 32 hex digits
    ``queue``                 `MessageQueue`
    ``queue_offset``          int, number in the queue; of a pending message, what the broker says (0)
    ``status``                str, SEND_OK, or stored but: FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT,
                              SLAVE_NOT_AVAILABLE
    ``recall_handle``         str, for `Producer.recall`; empty if the broker gave none (not a timed
                              message, one of a batch, or ``recallMessageEnable`` is off)
    ========================  =========================================================================
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    status: str = "SEND_OK"
    recall_handle: str = ""


@dataclass(frozen=True, slots=True)
class RecallResult:
    """The result of a `Producer.recall`; true in a condition if the message will not be delivered.

    ================  ==================================================================================
    ``recalled``      bool: whether the broker took the message back
    ``message_id``    str, the message's id; empty if it was not recalled
    ``remark``        str, the broker's words: why not, or "it was recalled before"
    ================  ==================================================================================
    """

    recalled: bool
    message_id: str
    remark: str = ""

    def __bool__(self) -> bool:
        return self.recalled


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


def properties_text(
    unique_id: str,
    tags: str | None = None,
    keys: str | Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
    at: At | None = None,
    delay: Delay | None = None,
    level: int | None = None,
    sharding_key: str | None = None,
) -> str:
    """Write the property text of a message.

    ``properties`` are the sender's own; those of a received message (`Message.properties`) are `forwarded`.

    Raises TypeError for a value that is not text; ValueError for a reserved name (see
    `timewheel_client.values.reserved`), for a name or value that is empty or contains NUL or a separator, and as
    `delivery_properties` does.
    """
    merged: dict[str, str] = {}
    if properties:
        merged = forwarded(properties) if isinstance(properties, ReceivedProperties) else _own(properties)
    for name, value in delivery_properties(at, delay, level):
        merged[name] = value
    if tags is not None and tags != "":
        merged[TAGS] = need_text("tags", tags)
    if keys is not None and keys != "":
        joined = " ".join(need_texts("keys", keys))
        if joined:
            merged[KEYS] = joined
    if sharding_key is not None:
        merged[SHARDING_KEY] = need_text("sharding_key", sharding_key)
    merged[UNIQ_KEY] = unique_id
    try:
        return format_properties(merged)
    except MessageError as error:
        raise ValueError(str(error)) from None


def _own(properties: object) -> dict[str, str]:
    """Check a sender's own properties; raises as `properties_text` does."""
    if not isinstance(properties, Mapping):
        found = f"{properties!r:.100} ({type(properties).__name__})"
        raise TypeError(f"properties must be a mapping of text to text, found {found}")
    own: dict[str, str] = {}
    for name, value in properties.items():
        need_text("the name of a property", name)
        if (
            type(value) is not str or not value or not value.isprintable()
        ):  # the words for it only where they are needed
            need_text(f"property {name!r}", value)
        own[name] = value
    reserved = [name for name in own if is_reserved(name)]
    if reserved:
        raise ValueError(why_reserved(reserved))
    return own
