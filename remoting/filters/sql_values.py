"""Java's conversion of texts to numbers, and its order of doubles, for the comparisons of SQL92 filters.

A property is a text. To be compared with a number it is read as Java would read it (``Integer.valueOf``,
``Long.valueOf``, ``Double.valueOf``). So neither "3000000000" nor "5.0" is an Integer.
"""

from __future__ import annotations

import re
from math import copysign, inf, nan

__all__ = ["IncomparableError", "compare_doubles", "java_double", "java_integer"]

INTEGER_BITS, LONG_BITS = 32, 64
_DIGITS_MAX = 19  # more than a long has, and few enough for int() to be cheap
# Every part can match in one way only, so that a long text that does not match costs no more than its length.
_DECIMAL = re.compile(r"([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]{1,9})[fFdD]?")
_BLANKS = "".join(map(chr, range(33)))  # what String.trim takes off


class IncomparableError(ValueError):
    """Two values that cannot be compared, such as a number and a text that is none."""


def java_integer(text: str, bits: int) -> int:
    """Read a whole number of ``bits`` bits. Raises IncomparableError for any other text.

    >>> java_integer("+12", 32), java_integer("-007", 64)
    (12, -7)
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if digits.isdecimal():
        digits = digits.lstrip("0") or "0"
        if len(digits) <= _DIGITS_MAX:
            value = -int(digits) if text[0] == "-" else int(digits)
            if -1 << bits - 1 <= value < 1 << bits - 1:
                return value
    raise IncomparableError(f"no whole number of {bits} bits: {text!r:.100}")


def java_double(text: str) -> float:
    """Read a double: decimal or hexadecimal, NaN, Infinity, blanks around it; raises IncomparableError.

    >>> java_double(" 1.5e3 "), java_double("-Infinity"), java_double("0x1p4")
    (1500.0, -inf, 16.0)
    """
    text = text.strip(_BLANKS)
    found = _DECIMAL.fullmatch(text)
    if found is not None:
        sign, not_a_number, infinity, number = found.groups()
        value = nan if not_a_number else inf if infinity else float(number)
        return -value if sign == "-" else value
    found = _HEXADECIMAL.fullmatch(text)
    if found is None:
        raise IncomparableError(f"no number: {text!r:.100}")
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -inf if text[0] == "-" else inf


def compare_doubles(left: float, right: float) -> int:
    """-1, 0 or 1 for less, equal, greater, in Java's order: NaN is above everything, -0.0 below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    left_rank = (left != left, copysign(1.0, left) if left == 0 else 0.0)
    right_rank = (right != right, copysign(1.0, right) if right == 0 else 0.0)
    return (left_rank > right_rank) - (left_rank < right_rank)
