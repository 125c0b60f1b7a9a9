"""Reads the due time from a message's properties, or refuses the message and says why.

If several properties are set, the first one in this order decides, whatever the others say::

    DELAY > 0               a fixed level: the timer properties are removed, the level scheduler has it
    __STARTDELIVERTIME      epoch ms; Aliyun ONS, ali-ons, and this product's own
    TIMER_DELAY_SEC         seconds from now         ─┐
    TIMER_DELAY_MS          milliseconds from now     ├ RocketMQ 5's, in its order
    TIMER_DELIVER_MS        epoch ms                 ─┘

Only that property is read; its value must be a whole number in ASCII digits. Apache reads it with Java's
``Long.parseLong``, which also takes ``+5`` and the digits of other scripts. No client writes those, so they
are refused like ``" 5"``, ``1e3`` and the empty text: a message must not be delivered at a time that its sender
did not mean.

A stored message never carries a time that would delay it again when its consumer sends it on or back. So relative
properties are removed, and also an absolute one that lies after the due time (another property has decided). The
absolute one that decided stays: it is past at delivery, and the consumer sees what was sent. The plug-in's own
names are removed from everything that a client sends.
"""

from __future__ import annotations

from remoting.messages.message import whole_numbers
from remoting.messages.properties import (
    DELAY,
    OWN_PROPERTIES,
    STARTDELIVERTIME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    TW_DUE,
    TW_ID,
    get_property,
    remove_properties,
)
from store.disk.delay_id import DELAY_ID_BASE, id_text, parse_id_text

__all__ = [
    "ABSOLUTE",
    "DUE_MAX_MS",
    "PRECEDENCE",
    "RELATIVE",
    "TRANSACTION_TYPE",
    "TimerError",
    "delay_level",
    "delivered_as",
    "disarmed",
    "has_start_time_only",
    "is_half",
    "may_be_timed",
    "own_properties_of",
    "plain_start_ms",
    "read_due",
    "read_dues",
    "stamped",
    "stamped_texts",
    "without_timers",
]

RELATIVE = {TIMER_DELAY_SEC: 1000, TIMER_DELAY_MS: 1}
"""Properties that count from now: name to milliseconds per unit."""
ABSOLUTE = (STARTDELIVERTIME, TIMER_DELIVER_MS)
PRECEDENCE = (STARTDELIVERTIME, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The first of these that is present decides."""
_FIRST = (STARTDELIVERTIME,)

DUE_MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""

_VALUE_SHOWN = 60
TRANSACTION_TYPE = 0xC
"""The bits of a sysflag that say which part of a transaction a message is; 0: none."""
_PREPARED = 0x4
_OWN_MARK = "__TW_"
_START_PATTERN = STARTDELIVERTIME + "\x01"
_DELIVER_PATTERN = TIMER_DELIVER_MS + "\x01"
_STAMPED = f"%b{TW_ID}\x01%x\x02{TW_DUE}\x01%d\x02".encode()


class TimerError(Exception):
    """A timer property without a readable due time; the text has its name and value, for the sender."""


def may_be_timed(text: str) -> bool:
    """True if a timer property may be set: a quick test, of which only False is certain."""
    return "__STARTD" in text or "TIMER_DEL" in text


def plain_start_ms(text: str) -> int:
    """Read the due time (epoch ms) of the common case: one absolute property, and nothing else about delay; else -1.

    ONS, ali-ons and our own client send __STARTDELIVERTIME, RocketMQ 5's clients TIMER_DELIVER_MS. This takes a third
    of the time of `read_due` and the checks around it. A result other than -1 is that of `read_due`, and also means: no
    half message by its properties, no level, nothing to disarm.

    >>> plain_start_ms("A\\x01b\\x02__STARTDELIVERTIME\\x0190000\\x02"), plain_start_ms("TIMER_DELIVER_MS\\x015")
    (90000, 5)
    >>> plain_start_ms("__STARTDELIVERTIME\\x01soon\\x02")
    -1
    """
    if _OWN_MARK in text or "DELAY\x01" in text or TRAN_MSG in text:
        return -1
    pattern = _START_PATTERN
    if "TIMER_DEL" in text:
        if "TIMER_DELAY_" in text or "__STARTD" in text:
            return -1
        pattern = _DELIVER_PATTERN
    at = text.rfind(pattern)
    if at < 0 or (at > 0 and text[at - 1] != "\x02"):
        return -1
    begin = at + len(pattern)
    end = text.find("\x02", begin)
    value = text[begin:end] if end >= 0 else text[begin:]
    # Fewer than 15 digits are certainly before the year 9999.
    if len(value) < 15 and value.isascii() and value.isdecimal():
        return int(value)
    return -1


def has_start_time_only(text: str) -> bool:
    """True if `read_due` has left nothing to disarm: a quick test, of which only True is certain."""
    return "TIMER_DEL" not in text and _OWN_MARK not in text


def read_due(text: str, now_ms: int, max_delay_ms: int | None = None) -> int | None:
    """Read the due time, epoch ms, from a property text; None if no timer property is set.

    The answer may lie in the past. Raises `TimerError` when the property that decides is not a number, negative,
    beyond the year 9999, or further ahead than ``max_delay_ms``.

    >>> read_due("TIMER_DELAY_SEC\\x0190\\x02TIMER_DELIVER_MS\\x015\\x02", 1_000)
    91000
    """
    for name in PRECEDENCE if "TIMER_DEL" in text else _FIRST:
        value = _value(text, name)
        if value is None:
            continue
        number = _number(name, value)
        unit = RELATIVE.get(name)
        due_ms = number if unit is None else now_ms + number * unit
        if due_ms > DUE_MAX_MS:
            raise TimerError(f"property {name}: {_shown(value)} lies beyond the year 9999")
        if max_delay_ms is not None and due_ms - now_ms > max_delay_ms:
            raise TimerError(
                f"property {name}: {_shown(value)} is {due_ms - now_ms} ms ahead, "
                f"at most {max_delay_ms} ms are allowed (timerMaxDelaySec)"
            )
        return due_ms
    return None


def _value(text: str, name: str) -> str | None:
    """Look a value up. Unlike with `get_property`, a name without a value has the empty one."""
    if name not in text:
        return None
    value = get_property(text, name)
    if value is None and f"\x02{name}\x01" in f"\x02{text}":
        return ""
    return value


def _number(name: str, value: str) -> int:
    if value.isdecimal() and value.isascii() and len(value) < 20:
        return int(value)
    if len(value) > 1 and value[0] == "-" and value[1:].isdecimal() and value.isascii():
        raise TimerError(f"property {name}: {_shown(value)} is negative")
    if value.isdecimal() and value.isascii():
        raise TimerError(f"property {name}: {_shown(value)} lies beyond the year 9999")
    raise TimerError(f"property {name}: {_shown(value)} is not a whole number")


def _shown(value: str) -> str:
    return repr(value) if len(value) <= _VALUE_SHOWN else f"{value[:_VALUE_SHOWN]!r}…"


def delay_level(text: str) -> int:
    """Read the fixed delay level as the level scheduler does; 0 for none. Raises `TimerError` if it is no number.

    A level that is refused without a timer property is also refused beside one, as on Apache's broker.
    """
    if "DELAY\x01" not in text:  # TIMER_DELAY_MS does not contain this
        return 0
    value = get_property(text, DELAY)
    if value is None:
        return 0
    digits = value[1:] if value[:1] in ("-", "+") else value
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 10:
        raise TimerError(f"property {DELAY}: {_shown(value)} is not a whole number")
    return max(0, int(value))


def is_half(text: str, sys_flag: int) -> bool:
    """True if this is a transaction's half message: prepared by its flag, or marked by a property without any flag."""
    kind = sys_flag & TRANSACTION_TYPE
    if kind:
        return kind == _PREPARED
    marked = get_property(text, TRAN_MSG)
    return marked is not None and marked.lower() == "true"


def without_timers(text: str) -> str:
    """Remove every timer property and the plug-in's own, for a message that goes to the level scheduler."""
    return remove_properties(text, (*PRECEDENCE, *OWN_PROPERTIES))


def disarmed(text: str, due_ms: int) -> str:
    """Remove properties that would delay the message again after ``due_ms``, and the plug-in's own."""
    if _OWN_MARK in text:
        text = remove_properties(text, OWN_PROPERTIES)
    if "TIMER_DELAY_" in text:
        text = remove_properties(text, RELATIVE)
    for name in ABSOLUTE:
        value = _value(text, name)
        if value is not None and not _is_past(value, due_ms):
            text = remove_properties(text, (name,))
    return text


def _is_past(value: str, due_ms: int) -> bool:
    return value.isascii() and value.isdecimal() and len(value) < 20 and int(value) <= due_ms


def stamped(text: str, delay_id: int, due_ms: int, version: int = 0) -> str:
    """Append the plug-in's own properties (id, version, due time) to a text that has none of them."""
    if text and text[-1] != "\x02":
        text += "\x02"
    return f"{text}{TW_ID}\x01{id_text(delay_id, version)}\x02{TW_DUE}\x01{due_ms}\x02"


def read_dues(values: list[bytes], now_ms: int, max_delay_ms: int | None) -> list[int] | None:
    """Read the absolute due times (epoch ms) of a batch; None if `read_due` would refuse one, or if one is past."""
    dues = whole_numbers(values)
    if dues is None:
        return None
    latest_ms = DUE_MAX_MS if max_delay_ms is None else min(DUE_MAX_MS, now_ms + max_delay_ms)
    return dues if now_ms < min(dues) and max(dues) <= latest_ms else None


def stamped_texts(texts: list[bytes], delay_ids: range, dues: list[int]) -> list[bytes]:
    """Append the plug-in's own properties to texts that have none of them. Each text ends with a separator."""
    first = delay_ids.start - DELAY_ID_BASE
    return [_STAMPED % stamp for stamp in zip(texts, range(first, first + len(texts)), dues, strict=True)]


def own_properties_of(text: str) -> tuple[int, int, int] | None:
    """Read (delay id, version, due ms) from a delivered message's properties; None if they are missing or invalid."""
    name = get_property(text, TW_ID)
    due = get_property(text, TW_DUE)
    if name is None or due is None or not due.isdecimal():
        return None
    try:
        delay_id, version = parse_id_text(name)
        return delay_id, version, int(due)
    except ValueError:
        return None


def delivered_as(text: str, delay_id: int, due_ms: int, version: int) -> str:
    """A pending message's properties for another due time and version."""
    return stamped(disarmed(text, due_ms), delay_id, due_ms, version)
