"""Attributes of topics and groups: how signed changes are checked and applied, and which attributes replies show.

A request carries changes, ``+name=value`` or ``-name``; the table keeps the result, without signs. Names, values and
remarks are those of Apache's broker 5.5.0. For topics only attributes that this broker can honour are accepted. For
groups all attributes that Apache knows are kept and shown; what they are for (lite topics, priorities) is not served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

__all__ = ["MESSAGE_TYPE", "MIXED", "RefusedAttributeError", "alter_group", "alter_topic", "parse", "typed"]

MESSAGE_TYPE, MIXED = "message.type", "MIXED"
_LONG_MAX = (1 << 63) - 1
_VALUE_MAX = 255

_TOPIC: dict[str, tuple[str, ...]] = {
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
}
"""Attributes of a topic and their values that this broker can honour."""


class RefusedAttributeError(Exception):
    """Why an attribute is refused, in Apache's words where it has some."""


def typed(attributes: Mapping[str, str]) -> Mapping[str, str]:
    """The attributes that GET_TOPIC_CONFIG shows: a topic without a type takes every kind of message.

    The proxy of RocketMQ 5 reads a missing type as NORMAL and refuses all other messages before we see them.

    >>> typed({})
    {'message.type': 'MIXED'}
    >>> typed({"message.type": "FIFO"})
    {'message.type': 'FIFO'}
    """
    return attributes if MESSAGE_TYPE in attributes else {**attributes, MESSAGE_TYPE: MIXED}


def parse(text: str) -> dict[str, str]:
    """Read ``+name=value,-name``; a sign is part of the name. Raises RefusedAttributeError for a wrong form."""
    attributes: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = part.partition("=")
        if (name[:1] == "+") != bool(separator) or name[:1] not in "+-" or len(name) < 2:
            raise RefusedAttributeError(f"kv string format wrong: {part}")
        attributes[name] = value
    return attributes


def alter_topic(current: Mapping[str, str], changes: Mapping[str, str], creating: bool) -> dict[str, str]:
    """Apply signed changes (no sign: add) to a topic's attributes, refusing what cannot be honoured.

    Raises RefusedAttributeError for an attribute or a value that is not served.
    """
    altered = dict(current)
    for signed, value in changes.items():
        name = signed.lstrip("+-")
        if name not in _TOPIC:
            raise RefusedAttributeError(f"unsupported key: {name}")
        if signed[:1] == "-":
            if creating:
                raise RefusedAttributeError(f"only add attribute is supported while creating topic. key: {name}")
            altered.pop(name, None)
        elif value not in _TOPIC[name]:
            allowed = ", ".join(_TOPIC[name])
            raise RefusedAttributeError(f"attribute {name}={value} is not served here, only {allowed}")
        else:
            altered[name] = value
    return altered


def _long(least: int, most: int) -> Callable[[str], str]:
    def problem(value: str) -> str:
        digits = value[1:] if value[:1] in ("-", "+") else value
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
            return f'For input string: "{value:.100}"'
        return "" if least <= int(value) <= most else f"value is not in range({least}, {most})"

    return problem


def _boolean(value: str) -> str:
    return "" if value.lower() in ("true", "false") else "boolean attribute format is wrong."


def _one_of(*values: str) -> Callable[[str], str]:
    return lambda value: "" if value in values else f"value is not in set: [{', '.join(values)}]"


def _short(value: str) -> str:
    return "" if len(value) <= _VALUE_MAX else f"value has {len(value)} characters, at most {_VALUE_MAX} are kept"


_GROUP: dict[str, Callable[[str], str]] = {
    "priority.factor": _long(0, 100),
    "lite.bind.topic": _short,
    "lite.sub.model": _one_of("Shared", "Exclusive"),
    "lite.sub.reset.offset.exclusive": _boolean,
    "lite.sub.reset.offset.unsubscribe": _boolean,
    "lite.sub.client.quota": _long(-1, _LONG_MAX),
    "lite.sub.client.max.event.cnt": _long(10, _LONG_MAX),
    "lite.sub.wildcard": _short,
}
"""Attributes of a group (SubscriptionGroupAttributes), each with a function that says what is wrong with a value."""


def alter_group(current: Mapping[str, str], changes: Mapping[str, str], creating: bool) -> dict[str, str]:
    """Apply signed changes to a group's attributes as Apache's AttributeUtil does.

    Raises RefusedAttributeError for a wrong form, attribute or value.
    """
    altered = dict(current)
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, name = (signed[:1], signed[1:]) if signed[:1] in ("+", "-") else ("", signed)
        if not name.strip() or "+" in name or "-" in name:
            raise RefusedAttributeError(f"kv string format wrong. key: {signed:.100}")
        if name in seen:
            raise RefusedAttributeError(f"alter duplication key. key: {name:.100}")
        seen.add(name)
        if creating and sign != "+":
            raise RefusedAttributeError(f"only add attribute is supported while creating topic. key: {name:.100}")
        if not sign:
            raise RefusedAttributeError(f"wrong format key: {name:.100}")
        if name not in _GROUP:
            raise RefusedAttributeError(f"unsupported key: {name:.100}")
        if sign == "-":
            if name not in altered:
                raise RefusedAttributeError(f"attempt to delete a nonexistent key: {name}")
            del altered[name]
        elif problem := _GROUP[name](value):
            raise RefusedAttributeError(f"{problem} key: {name}, value: {value:.100}")
        else:
            altered[name] = value
    return altered
