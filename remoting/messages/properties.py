"""The property text of a message: ``name \\x01 value \\x02 name \\x01 value \\x02 …``.

The text, not a dictionary, goes from the wire to the disk, so the broker reads properties from the text in place: a
lookup that finds nothing costs one substring search.

Rules, as Apache's MessageDecoder reads it: the name ends at the first ``\\x01``, the value at the next ``\\x02``
(the last one may be missing); a pair without name or value does not exist; of two pairs with one name the
last counts. `get_property` and `parse_properties` agree on all of that for every text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from remoting.errors import MessageError

__all__ = [
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "CLUSTER",
    "DELAY",
    "DELAY_KEY",
    "DELAY_KEY_MODE",
    "FIRST_POP_TIME",
    "KEYS",
    "MAX_RECONSUME_TIMES",
    "MSG_REGION",
    "ORIGIN_MESSAGE_ID",
    "OWN_LEAD",
    "OWN_PROPERTIES",
    "PGROUP",
    "POP_CK",
    "PROPERTY_SEPARATOR",
    "PUSH_REPLY_TIME",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "REPLY_TO_CLIENT",
    "RETRY_TOPIC",
    "SHARDING_KEY",
    "STARTDELIVERTIME",
    "TAGS",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES",
    "TRACE_ON",
    "TRANSACTION_CHECK_TIMES",
    "TRANSACTION_ID",
    "TRAN_MSG",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TW_DUE",
    "TW_ID",
    "TW_LEVEL",
    "TW_POP",
    "UNIQ_KEY",
    "WAIT",
    "find_property",
    "format_properties",
    "get_property",
    "has_property",
    "parse_properties",
    "remove_properties",
    "with_properties",
    "with_property",
    "without_own",
]

PROPERTY_SEPARATOR = "\x02"

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
CLUSTER = "CLUSTER"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
POP_CK = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
SHARDING_KEY = "__SHARDINGKEY"

STARTDELIVERTIME = "__STARTDELIVERTIME"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"

DELAY_KEY: Final = "__DELAYKEY"
"""A name of the sender's own for a delayed message, unique within its topic while the message is pending."""
DELAY_KEY_MODE = "__DELAYKEY_MODE"
"""Effect of a second send with the same key: ``reject`` (the default), ``keep`` or ``replace``."""

TW_ID = "__TW_ID"
"""The delay id of a delivered message: hex of epoch and sequence, with ``.version`` after a move."""
TW_DUE = "__TW_DUE"
"""The due time of a delivered message, epoch ms."""
TW_LEVEL = "__TW_LEVEL"
"""Origin of a message that was delayed by level: ``level:queue offset`` in SCHEDULE_TOPIC_XXXX."""
TW_POP = "__TW_POP"
"""On a copy of a popped message that was not acknowledged in time: ``name.offset``, both hex, of what was popped."""
OWN_PROPERTIES = (TW_ID, TW_DUE, TW_LEVEL, TW_POP)
"""The names that only a Timewheel broker may set; they are stripped from whatever a client sends."""
OWN_LEAD = "__TW_"
"""The prefix of all `OWN_PROPERTIES`."""
_OF_A_POP = (*OWN_PROPERTIES, POP_CK)


def get_property(text: str, name: str) -> str | None:
    """Look one property up without parsing the rest; None if it is absent or empty."""
    # Most names are absent: `in` says so before a pattern is joined or a position looked for.
    return find_property(text, name + "\x01") if name in text else None


def find_property(text: str, pattern: str) -> str | None:
    """`get_property` for a name that is usually present; ``pattern`` is the name and its separator."""
    end = len(text)  # from the end, because the last of two pairs with one name counts
    while True:
        at = text.rfind(pattern, 0, end)
        if at < 0:
            return None
        if at == 0 or text[at - 1] == "\x02":
            begin = at + len(pattern)
            stop = text.find("\x02", begin)
            value = text[begin:] if stop < 0 else text[begin:stop]
            if value:
                return value
        end = at + len(pattern) - 1


def has_property(text: str, name: str) -> bool:
    """True if the property exists and is not empty."""
    return name in text and get_property(text, name) is not None


def parse_properties(text: str) -> dict[str, str]:
    """Read the whole text; pairs without name or value are dropped, the last of a name counts."""
    properties: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator and name and value:
            properties[name] = value
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Write a property text with its last separator; raises MessageError if a name or value holds one."""
    return with_properties("", properties)


def with_property(text: str, name: str, value: str) -> str:
    """Append one pair, which then wins over an earlier one of that name.

    Raises MessageError if the name or value contains a separator.
    """
    if "\x01" in value or "\x02" in value or "\x01" in name or "\x02" in name:
        raise MessageError(f"property {name!r} contains a separator (0x01 or 0x02): {value!r:.100}")
    if text and text[-1] != "\x02":
        return f"{text}\x02{name}\x01{value}\x02"
    return f"{text}{name}\x01{value}\x02"


def with_properties(text: str, properties: Mapping[str, str]) -> str:
    """Append several pairs; raises MessageError as `with_property` does."""
    for name, value in properties.items():
        text = with_property(text, name, value)
    return text


def remove_properties(text: str, names: Iterable[str]) -> str:
    """Drop every pair with one of these names; the text itself comes back if there is none."""
    unwanted = [name for name in names if name in text]
    if not unwanted:
        return text
    kept = [pair for pair in text.split("\x02") if pair and pair.partition("\x01")[0] not in unwanted]
    return "\x02".join(kept) + "\x02" if kept else ""


def without_own(text: str) -> str:
    """Drop what only a broker sets, and the handle of a pop: what is left its sender has given.

    >>> without_own("a\\x01b\\x02__TW_POP\\x011a.0\\x02")
    'a\\x01b\\x02'
    """
    return remove_properties(text, _OF_A_POP) if OWN_LEAD in text or POP_CK in text else text
