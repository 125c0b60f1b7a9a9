"""Figures as people read them: counts, milliseconds, shares, times of day, bytes."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from remoting.printable import printable

__all__ = [
    "count",
    "lateness_text",
    "limit_text",
    "milliseconds",
    "name_text",
    "percent",
    "short_count",
    "short_ms",
    "utc",
    "utc_from_ms",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPANS = (
    (31_557_600_000, "y"),
    (86_400_000, "d"),
    (3_600_000, "h"),
    (60_000, "min"),
    (1_000, "s"),
)


def count(number: int) -> str:
    """1234567 as "1,234,567"."""
    return f"{number:,}"


def milliseconds(value: int) -> str:
    """A lateness as it was measured, with a coarser reading from ten seconds on: "123,456 ms (2.1 min)"."""
    exact = f"{value:,}\u00a0ms"
    return f"{exact} ({short_ms(value)})" if abs(value) >= 10_000 else exact


def lateness_text(value: int) -> str:
    """A lateness as people say it: milliseconds below ten seconds, else the unit that fits.

    >>> lateness_text(9_999), lateness_text(12_399), lateness_text(3_565_000), lateness_text(-90_061_000)
    ('9,999 ms', '12.4 s', '59 min', '-1 d')
    """
    return f"{value:,} ms" if abs(value) < 10_000 else short_ms(value).replace("\u00a0", " ")


def limit_text(value: int) -> str:
    """A limit as people set it: whole seconds, minutes and hours as such.

    >>> limit_text(10), limit_text(1_000), limit_text(1_500), limit_text(90_000), limit_text(3_600_000)
    ('10 ms', '1 s', '1,500 ms', '90 s', '1 h')
    """
    for unit_ms, unit in ((3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if value and value % unit_ms == 0:
            return f"{value // unit_ms:,} {unit}"
    return f"{value:,} ms"


def name_text(name: str, letters: int = 120) -> str:
    """A name or key from outside: one line, nothing in it that is obeyed, its middle left out where it is long.

    >>> name_text("a\\nb"), name_text("x" * 300, 9)
    ('a\\\\nb', 'xxxx…xxxx')
    """
    name = printable(name)
    half = (letters - 1) // 2
    return name if len(name) <= letters else f"{name[:half]}…{name[-half:]}"


def short_ms(value: float) -> str:
    """A span for an axis or a remark, at most three digits: "0", "1 ms", "1.5 s", "2 min", "3 d"."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size == 0:
        return "0"
    for unit_ms, unit in _SPANS:
        if size >= unit_ms:
            digits = 3 if unit == "s" else 2
            return f"{sign}{_digits(size / unit_ms, digits)}\u00a0{unit}"
    return f"{sign}{_digits(size, 3)}\u00a0ms"


def _digits(value: float, digits: int) -> str:
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def short_count(number: float) -> str:
    """A count for an axis: 1500 as "1.5k", 2000000 as "2M"."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{_digits(number / size, 3)}{unit}"
    return _digits(number, 3) if number else "0"


def percent(part: int, whole: int) -> str:
    """A share in percent that never rounds up to 100 or down to 0: "99.99 %", "100 %", "< 0.0001 %"."""
    if whole <= 0:
        return "-"
    if part == whole:
        return "100\u00a0%"
    if part == 0:
        return "0\u00a0%"
    digits = 2 if part * 10_000 >= whole else 4
    missing = whole - part
    if missing * 10 < whole:
        digits = max(digits, min(9, math.ceil(-math.log10(missing / whole)) - 1))
    scale = 10**digits
    shown = part * 100 * scale // whole
    if shown == 0:
        return f"< {1 / scale:.{digits}f}\u00a0%"
    text = f"{shown // scale}.{shown % scale:0{digits}d}"
    return f"{text.rstrip('0').rstrip('.')}\u00a0%"


def utc_from_ms(epoch_ms: int) -> datetime | None:
    """The moment in UTC; None where the calendar ends (before year 1, after year 9999)."""
    try:
        return _EPOCH + timedelta(milliseconds=epoch_ms)
    except OverflowError:
        return None


def utc(epoch_ms: int | None) -> str:
    """A moment as "2026-11-22 03:06:30 UTC"; "-" for none, the bare number where the calendar ends."""
    if epoch_ms is None:
        return "-"
    moment = utc_from_ms(epoch_ms)
    return f"{epoch_ms} ms" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
