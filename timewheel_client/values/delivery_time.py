"""The delivery time of a message: an instant, a delay or a level, and the property for it.

===========  =====================  =======================================================================
``at``       TIMER_DELIVER_MS       an instant: a datetime with its zone, or epoch milliseconds as an int
``delay``    TIMER_DELAY_MS         a span: a timedelta, or seconds; counted by the broker's clock from when it
                                    accepts the message, so the sender's clock does not matter
``level``    DELAY                  one of the broker's fixed delays, 1 to 18
===========  =====================  =======================================================================

Fractions of a millisecond are rounded up, because a message must never be early. An instant in the past means now. A
number that cannot be milliseconds of this century is refused: a value in seconds would lie in January 1970, so the
message would be delivered at once without any error. A datetime without zone is refused, too, because it means
different times on different machines. All three work with Apache's broker from 5.0 on (``level``
with every version); Apache delivers ``at`` and ``delay`` at whole seconds, up to a second late, and for at most 3 days
ahead.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from remoting.messages.properties import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS
from timewheel_client.values.arguments import need_int, number_text

__all__ = ["MAX_LEVEL", "At", "Delay", "delivery_properties", "epoch_ms", "span_ms"]

MAX_LEVEL = 18
"""The highest of the brokers' fixed delays, as they are set up from the start."""

At = datetime | int
Delay = timedelta | float

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_CENTURY_MS = 946_684_800_000
_NEXT_CENTURY_MS = 4_102_444_800_000
_MAX_MS = (1 << 63) - 1


def epoch_ms(at: At) -> int:
    """Turn an instant into epoch milliseconds, rounded up.

    Raises TypeError for what is neither a datetime nor an int, ValueError for a datetime without zone or before 1970,
    and for a number that is no millisecond of the years 2000 to 2099.

    >>> epoch_ms(datetime(2030, 1, 1, tzinfo=UTC)), epoch_ms(1_893_456_000_000)
    (1893456000000, 1893456000000)
    """
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise ValueError(f"at has no time zone: {at!r}; say which, as tzinfo=UTC, or .astimezone() for local time")
        ms = -((_EPOCH - at) // _MS)
        if ms < 0:
            raise ValueError(f"at lies before 1970: {at!r}")
        return ms
    if not isinstance(at, int) or isinstance(at, bool):
        advice = "; multiply seconds by 1000 and make them an int" if isinstance(at, float) else ""
        found = f"{at!r} ({type(at).__name__})"
        raise TypeError(f"at must be a datetime with its zone or epoch milliseconds as int, found {found}{advice}")
    if not _CENTURY_MS <= at < _NEXT_CENTURY_MS:
        raise ValueError(
            f"at={number_text(at)} is no time of this century in epoch milliseconds{_advice(at)}; "
            "a datetime with its zone says any other time"
        )
    return at


def _advice(at: int) -> str:
    """Guess the unit that a number was meant in."""
    if abs(at) >= 10**30:  # no unit, and too much for a float
        return ""
    for unit, times in (("seconds: multiply them by 1,000", 1_000.0), ("microseconds", 1e-3), ("nanoseconds", 1e-6)):
        if _CENTURY_MS <= at * times < _NEXT_CENTURY_MS:
            return f" (it looks like {unit}{'' if times > 1 else ': divide them'})"
    return ""


def span_ms(delay: Delay) -> int:
    """Turn a span into milliseconds, rounded up; raises ValueError for a negative one and for one beyond int64.

    >>> span_ms(timedelta(minutes=47)), span_ms(0.0001)
    (2820000, 1)

    Raises TypeError for what is neither a timedelta nor a finite number of seconds.
    """
    if isinstance(delay, timedelta):
        whole, rest = divmod(delay, _MS)
        ms = whole + bool(rest)
    elif (
        isinstance(delay, int | float)
        and not isinstance(delay, bool)
        and (isinstance(delay, int) or math.isfinite(delay))
    ):
        ms = _ms_of_seconds(delay)
    else:
        raise TypeError(f"delay must be a timedelta or seconds, found {delay!r} ({type(delay).__name__})")
    if ms < 0:
        raise ValueError(f"delay is negative: {_shown(delay)}")
    if ms > _MAX_MS:
        raise ValueError(f"delay is too long for a message, at most {_MAX_MS} ms: {_shown(delay)}")
    return ms


def _shown(delay: Delay) -> str:
    return number_text(delay) if isinstance(delay, int) else repr(delay)


def _ms_of_seconds(seconds: float) -> int:
    if isinstance(seconds, int):
        return seconds * 1000
    ms = round(seconds * 1000, 6)  # no millisecond more for the error of floating point
    return math.ceil(ms) if math.isfinite(ms) else _MAX_MS + 1


def delivery_properties(
    at: At | None = None, delay: Delay | None = None, level: int | None = None
) -> tuple[tuple[str, str], ...]:
    """Answer with the property that asks for a delivery time; none at all means at once.

    Raises ValueError when more than one is given, and for a level outside 1 to 18.
    """
    if at is None and delay is None and level is None:
        return ()
    if (at is not None) + (delay is not None) + (level is not None) > 1:
        raise ValueError("at, delay and level exclude each other")
    if at is not None:
        return ((TIMER_DELIVER_MS, str(epoch_ms(at))),)
    if delay is not None:
        return ((TIMER_DELAY_MS, str(span_ms(delay))),)
    return ((DELAY, str(need_int("level", level, 1, MAX_LEVEL))),)
