"""Reads times that people type (instants for ``--at``, spans for ``--in``) and writes them for people.

The command line prints the time as it understood it, because times are easily misunderstood.
"""

from __future__ import annotations

import re
from datetime import datetime

from timewheel_client.values.delivery_time import epoch_ms

__all__ = ["format_instant", "format_span", "parse_instant", "parse_span"]

_DIGITS_MAX = 19
_MAX_MS = (1 << 63) - 1
_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[wdhms])\s*")
_INSTANTS = "an ISO 8601 time such as 2030-01-01T10:00:00.250+01:00 (without zone: local time) or epoch milliseconds"


def parse_instant(text: str) -> int:
    """Read an instant as epoch milliseconds; raises ValueError that says what is expected.

    >>> parse_instant("2030-01-01T10:00:00.250Z"), parse_instant("1893492000250")
    (1893492000250, 1893492000250)
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        if len(text) < 12:
            raise ValueError(f"{text} is too short for epoch milliseconds (13 digits); expected {_INSTANTS}")
        if len(text) > _DIGITS_MAX:
            raise ValueError(f"{text:.30}… is too long for epoch milliseconds (13 digits); expected {_INSTANTS}")
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return epoch_ms(at if at.tzinfo is not None else at.astimezone())
    except (ValueError, OverflowError):
        raise ValueError(f"not a time: {text!r:.100}; expected {_INSTANTS}") from None


def parse_span(text: str) -> int:
    """Read a span as milliseconds, rounded up; raises ValueError.

    >>> parse_span("47m"), parse_span("1h30m"), parse_span("1500ms"), parse_span("1.5 s")
    (2820000, 5400000, 1500, 1500)
    """
    at, total = 0, 0.0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            break
        total += float(part[1]) * _UNITS_MS[part[2]]
        at = part.end()
    if at != len(text) or at == 0:
        raise ValueError(
            f"not a span: {text!r:.100}; expected numbers with w, d, h, m, s or ms, such as 47m, 1h30m or 1500ms"
        )
    if not total < _MAX_MS:  # infinite included
        raise ValueError(f"{text:.30} is too long for a span, at most {_MAX_MS} ms")
    return -int(-total // 1)


def format_instant(ms: int) -> str:
    """Write epoch milliseconds as local time with its zone."""
    try:
        return (
            datetime.fromtimestamp(ms // 1000)
            .astimezone()
            .replace(microsecond=ms % 1000 * 1000)
            .isoformat(sep=" ", timespec="milliseconds")
        )
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms after 1970"


def format_span(ms: int) -> str:
    """Write milliseconds in the units that people use, the two largest; below a minute with milliseconds.

    >>> format_span(2_820_000), format_span(5_400_000), format_span(1_500), format_span(93_784_000)
    ('47m', '1h 30m', '1.5s', '1d 2h')
    """
    if ms < 0:
        return "-" + format_span(-ms)
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:g}s"
    parts: list[str] = []
    rest = ms
    for unit in ("w", "d", "h", "m", "s"):
        count, rest = divmod(rest, _UNITS_MS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts))
