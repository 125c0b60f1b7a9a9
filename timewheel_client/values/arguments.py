"""Checks of arguments: an error names the argument, its value, and what is allowed.

TypeError for a value of a wrong type, ValueError for an impossible value of the right type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["need_bytes", "need_int", "need_many", "need_text", "need_texts", "number_text"]

_NO_TEXT = ("\0", "\x01", "\x02")


def need_text(what: str, value: object, *, empty: bool = False) -> str:
    """A text without NUL and without the two characters that separate properties.

    >>> need_text("tags", 5)
    Traceback (most recent call last):
    TypeError: tags must be a text (str), found 5 (int)

    Raises TypeError for what is no text, ValueError for an empty one (unless ``empty``) or one with such a character.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text (str), found {value!r:.100} ({type(value).__name__})")
    if not value and not empty:
        raise ValueError(f"{what} is empty")
    if "\0" in value or "\x01" in value or "\x02" in value:
        bad = next(sign for sign in _NO_TEXT if sign in value)
        raise ValueError(f"{what} contains the control character {bad!r}, which no broker can keep: {value!r:.100}")
    return value


def need_texts(what: str, value: object) -> list[str]:
    """A text, or a sequence of texts; a single one becomes a list of one.

    >>> need_texts("keys", "a"), need_texts("keys", ["a", "b"])
    (['a'], ['a', 'b'])

    Raises TypeError if it is none.
    """
    if isinstance(value, str):
        return [need_text(what, value)]
    if not isinstance(value, Sequence | set | frozenset) or isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{what} must be a text or several texts, found {value!r:.100} ({type(value).__name__})")
    return [need_text(f"each of {what}", one) for one in value]


def need_int(what: str, value: object, low: int, high: int) -> int:
    """An int between two limits, both allowed.

    >>> need_int("level", 99, 1, 18)
    Traceback (most recent call last):
    ValueError: level must lie between 1 and 18, found 99

    Raises TypeError for what is no int (a bool is none).
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int from {low} to {high}, found {value!r:.100} ({type(value).__name__})")
    if not low <= value <= high:
        raise ValueError(f"{what} must lie between {low} and {high}, found {number_text(value)}")
    return value


def number_text(value: int) -> str:
    """An int as a message shows it: Python refuses to write one of more than 4,300 digits, and nobody reads it.

    >>> number_text(-47), number_text(10**5_000)
    ('-47', 'a number of about 5,001 digits')
    """
    if abs(value) < 10**30:
        return str(value)
    return f"a number of about {int(value.bit_length() * math.log10(2)) + 1:,} digits"


def need_bytes(what: str, value: object) -> bytes:
    """Bytes, or a text, which becomes UTF-8.

    >>> need_bytes("body", 4711)
    Traceback (most recent call last):
    TypeError: body must be bytes or str, found 4711 (int)
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{what} must be bytes or str, found {value!r:.100} ({type(value).__name__})")


def need_many(what: str, value: object) -> list[object]:
    """Several things in order: a list, a tuple or another iterable, but no text, no bytes and no mapping.

    Raises TypeError if it is none.
    """
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a list of messages, found {value!r:.100} ({type(value).__name__})")
    return list(value)
