"""Content that nobody would send and every broker is sent: for the simulation and for property-based tests.

All of it is drawn from a `random.Random` (Hypothesis has one that shrinks: ``st.randoms(use_true_random=False)``).
Whatever a broker refuses of it is refused; what it acknowledges it has to keep.

===================  =========================================================================================
`body`               all bytes; long runs of NUL; what looks like a record, a blank, a journal frame; every length
                     about the limit
`plain_properties`   names and values that mean nothing to a broker: all characters, NUL in long runs, none at all
`broker_properties`  the names that brokers themselves set and read, with values that are no numbers, or too large
`long_value`         a value that makes the property text as long as may be, or a little more or less
`property_text`      properties as no client would join them: separators missing, doubled, in the wrong place
`sys_flag`           any sysFlag
===================  =========================================================================================
"""

from __future__ import annotations

from random import Random

from remoting.messages.message import Message, encode_record
from remoting.messages.properties import (
    DELAY,
    KEYS,
    PROPERTY_SEPARATOR,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    format_properties,
)

__all__ = ["BROKERS_NAMES", "body", "broker_properties", "long_value", "plain_properties", "property_text", "sys_flag"]

NAME_VALUE_SEPARATOR = "\x01"

SECTOR = 512
BROKERS_NAMES = (
    *(KEYS, TAGS, UNIQ_KEY, "WAIT", "BUYER_ID", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "PGROUP", "MIN_OFFSET"),
    *("MAX_OFFSET", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "MSG_REGION", "TRACE_ON"),
    *("INSTANCE_ID", "CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "PUSH_REPLY_TIME", "POP_CK"),
    *("__BORNHOST", "BORN_TIMESTAMP", "__SHARDINGKEY", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "__TW_ID"),
    *("__TW_DUE", "__TW_LEVEL", "__transactionId__", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"),
    *("CHECK_IMMUNITY_TIME_IN_SECONDS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS"),
    *("TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "INNER_NUM", "INNER_BASE", "DUP_INFO", "EXTEND_UNIQ_INFO"),
    *("CRC32", "__CRC32#", "1ST_POP_TIME", "POP_TIME", "TIMER_PRECISION", "%RETRY%", "i", "TRAN_MSGX"),
)
"""Names that mean something to a broker, Apache's or this one; those that make it wait: see `broker_properties`."""
NUMBERS = (-(1 << 63), -(1 << 31), -1, 0, 1, 2, 18, 19, (1 << 31) - 1, 1 << 31, (1 << 62), (1 << 63) - 1, 1 << 63)
WORDS = ("", " ", "true", "TRUE", "null", "NaN", "1e3", "+1", "-0", "0x10", "١٢", "1" * 400, "%RETRY%g", "%DLQ%g", "T")


def body(rng: Random, limit: int) -> bytes:
    """A body of at least one byte, as a rule below the limit, sometimes at it or one beyond."""
    what = rng.randrange(7)
    if what == 0:
        data = bytes(rng.choice((1, SECTOR - 1, SECTOR, 2 * SECTOR - 1, 2 * SECTOR, 3 * SECTOR)))
    elif what == 1:
        data = rng.randbytes(rng.choice((1, 7, 90))) + bytes(rng.choice((SECTOR, 2 * SECTOR + 1)))
    elif what == 2:
        data = bytes(range(256)) * rng.randint(1, 3)
    elif what == 3:
        data = _looks_like_a_record(rng)
    elif what == 4:
        data = bytes.fromhex("cbd43194" * rng.randint(1, 9)) + bytes(8)  # blanks, one behind the other
    elif what == 5:
        data = rng.randbytes(max(1, limit + rng.choice((-1, 0, 1))))
    else:
        data = rng.randbytes(rng.randint(1, 40))
    return data if what == 5 else data[:limit]


def _looks_like_a_record(rng: Random) -> bytes:
    """A half message, or an op message, or a delivery: a whole record, with a right checksum."""
    topic = rng.choice(("T", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"))
    properties = format_properties({"REAL_TOPIC": "T", "REAL_QID": "0", "PGROUP": "pg", UNIQ_KEY: "A" * 32})
    message = Message(
        topic, 0, 0, rng.choice((0, 4, 8, 12)), 5, bytes((192, 0, 2, 1, 0, 0, 0, 1)), 0, 0, b"0.forged", properties
    )
    return bytes(encode_record(message, bytes((192, 0, 2, 1, 0, 0, 42, 159))))


def plain_properties(rng: Random, room: int = 600) -> dict[str, str]:
    """Properties that only their receiver understands."""
    made: dict[str, str] = {}
    for _ in range(rng.randint(1, 3)):
        name = "h" + _text(rng, rng.choice((0, 1, 5, 40)))
        value = _text(rng, rng.choice((1, 3, 30, SECTOR, 2 * SECTOR - 1)))[:room] or "v"
        made[name] = value
        room -= len(value.encode())
        if room <= 0:
            break
    return made


def _text(rng: Random, size: int) -> str:
    """Characters of one sort, but for those that separate properties."""
    what = rng.randrange(5)
    if what == 0:
        return "\x00" * size
    if what == 1:
        return "".join(chr(rng.choice((0, 3, 9, 10, 13, 27, 34, 92, 127, 133))) for _ in range(size))
    if what == 2:
        return "".join(rng.choice("äß€漢\u2028\ufeff😀\U0010ffff") for _ in range(size))
    if what == 3:
        return "".join(chr(rng.randint(3, 0xD7FF)) for _ in range(size))
    return "".join(chr(rng.randint(32, 126)) for _ in range(size))


def broker_properties(rng: Random, now_ms: int) -> dict[str, str]:
    """Properties that brokers themselves use, with any value; due times among them lie within some seconds."""
    made = {rng.choice(BROKERS_NAMES): value(rng) for _ in range(rng.randint(1, 4))}
    what = rng.randrange(6)
    if what == 0:
        made[DELAY] = rng.choice(("1", "2", "0", "-1", "99", "+1", "x", "2147483648", " 1", "١"))
    elif what == 1:
        made[rng.choice((TIMER_DELIVER_MS, "__STARTDELIVERTIME"))] = str(now_ms + rng.randint(-2000, 3000))
    elif what == 2:
        made[TIMER_DELAY_MS] = rng.choice(("0", "1", "700", "-5", "x"))
    elif what == 3:
        made[TIMER_DELAY_SEC] = rng.choice(("0", "1", "2", "-5", ""))
    return made


def value(rng: Random) -> str:
    """Any value of a property."""
    return rng.choice((str(rng.choice(NUMBERS)), rng.choice(WORDS), _text(rng, rng.choice((1, 20, SECTOR)))))


def long_value(rng: Random, values: dict[str, str], limit: int, added: int = 0) -> str:
    """A value that brings the text of all to about ``limit`` bytes, of which a broker adds about ``added``."""
    left = limit - len(format_properties({**values, "long": ""}).encode()) - rng.choice((0, 0, added))
    return "v" * max(1, left + rng.choice((-1, 0, 1, rng.randint(-150, 150))))


def property_text(rng: Random, values: dict[str, str]) -> str:
    """The properties as one text, joined as clients do, or as none does."""
    text = format_properties(values)
    what = rng.randrange(8)
    if what == 0:
        return text.rstrip(PROPERTY_SEPARATOR)
    if what == 1:
        return PROPERTY_SEPARATOR * rng.randint(1, 3) + text
    if what == 2:
        return text + NAME_VALUE_SEPARATOR + PROPERTY_SEPARATOR
    if what == 3:
        return text + "x" + NAME_VALUE_SEPARATOR + PROPERTY_SEPARATOR
    if what == 4:
        # Not a name that `plain_properties` draws: of two properties with one name the last counts.
        return text + "x0" + NAME_VALUE_SEPARATOR + "a" + NAME_VALUE_SEPARATOR + "b" + PROPERTY_SEPARATOR
    return text


def sys_flag(rng: Random) -> int:
    """A sysFlag that is no half message's: compressed, decided, of an IPv6 host, of an inner batch, or none at all."""
    return rng.choice((0, 0, 1, 2, 3, 8, 12, 16, 32, 48, 64, 128, 192, 1 << 8, 0x700, 1 << 16, (1 << 31) - 8, -8))
