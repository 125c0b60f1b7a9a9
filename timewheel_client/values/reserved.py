"""Reserved property names, which brokers and clients use among themselves and senders may not set.

Most are those that Apache's Java client refuses, too (``MessageConst.STRING_HASH_SET`` of 5.5.0). Some of them change
the fate of a message (``TRAN_MSG`` makes it a half message, which no consumer ever gets); others are overwritten or
dropped on the way. So a sender that sets one gets an error instead of a surprise.

The properties of a message that was *received* have such names among them, because brokers and clients put them
there. `forwarded` says which of them a new message takes over.
"""

from __future__ import annotations

from collections.abc import Mapping

from remoting.messages.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DELAY,
    KEYS,
    OWN_PROPERTIES,
    SHARDING_KEY,
    STARTDELIVERTIME,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    UNIQ_KEY,
)

__all__ = ["RESERVED_NAMES", "ReceivedProperties", "forwarded", "is_reserved", "why_reserved"]

_TIMES = (DELAY, TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC, STARTDELIVERTIME)
_INSTEAD = {
    TAGS: "use tags=",
    KEYS: "use keys=",
    UNIQ_KEY: "each message gets an id of its own",
    **dict.fromkeys(_TIMES, "use at=, delay= or level="),
    **dict.fromkeys(OWN_PROPERTIES, "only a broker sets it"),
}
_OF_APACHE = """
    1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CLUSTER CONSUME_START_TIME CORRECTION_FLAG CORRELATION_ID DELAY
    DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC DUP_INFO EXTEND_UNIQ_INFO INNER_MULTI_QUEUE_OFFSET INSTANCE_ID KEYS
    MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG MSG_REGION MSG_TYPE ORIGIN_GROUP ORIGIN_MESSAGE_ID PGROUP
    POP_CK POP_CK_OFFSET PUSH_REPLY_TIME REAL_QID REAL_TOPIC RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TAGS
    TIMER_DELAY_LEVEL TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DEL_UNIQKEY TIMER_DEQUEUE_MS
    TIMER_ENQUEUE_MS TIMER_OUT_MS TIMER_ROLL_TIMES TRACE_ON TRANSFER_FLAG TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET TTL
    UNIQ_KEY WAIT _SYS_MSG_PRIORITY_ __BORNHOST __CRC32# __LITE_TOPIC
"""
_TRANSIENT_PREFIX = "__RMQ.TRANSIENT."

RESERVED_NAMES = frozenset(_OF_APACHE.split()) | {
    *OWN_PROPERTIES,
    STARTDELIVERTIME,
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
}
"""Names that `Producer.send` refuses among ``properties``; so are those that begin with ``__RMQ.TRANSIENT.``."""

_KEPT = frozenset({TAGS, KEYS, SHARDING_KEY})


class ReceivedProperties(dict[str, str]):
    """The properties of a received message, the system's among them: `Producer.send` knows them by this type."""


def is_reserved(name: str) -> bool:
    """True if senders may not set this property.

    >>> is_reserved("TRAN_MSG"), is_reserved("colour")
    (True, False)
    """
    return name in RESERVED_NAMES or name.startswith(_TRANSIENT_PREFIX)


def why_reserved(names: list[str]) -> str:
    """Say which names are refused, and what to do instead.

    >>> why_reserved(["TAGS"])
    "reserved property name 'TAGS' (use tags=)"
    """
    each = [f"{name!r} ({_INSTEAD[name]})" if name in _INSTEAD else repr(name) for name in names]
    text = f"reserved property name{'s' if len(names) > 1 else ''} {', '.join(each)}"
    if UNIQ_KEY in names:
        text += "; to forward a message's properties, give message.properties itself or message.user_properties"
    return text


def forwarded(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that a new message takes over from a received one: the sender's own, tags and keys.

    >>> forwarded({"UNIQ_KEY": "A", "TAGS": "t", "colour": "red", "MSG_REGION": "r"})
    {'TAGS': 't', 'colour': 'red'}
    """
    return {name: value for name, value in properties.items() if name in _KEPT or not is_reserved(name)}
