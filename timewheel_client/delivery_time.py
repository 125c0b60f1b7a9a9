"""When a message is to be delivered: an instant, a delay or a level, turned into the property that says so.

===========  =====================  =======================================================================
``at``       TIMER_DELIVER_MS       an instant: epoch milliseconds, or a datetime (without zone: local time)
``delay``    TIMER_DELAY_MS         a span: a timedelta, or seconds; counted by the broker's clock from when it
                                    accepts the message, so the sender's clock does not matter
``level``    DELAY                  one of the broker's fixed delays, 1 to 18
===========  =====================  =======================================================================

Fractions of a millisecond are rounded up, because a message is never to be early. An instant that has
passed means now. All three work with Apache's broker from 5.0 on (``level`` with every version); Apache delivers ``at``
and ``delay`` at whole seconds, up to a second late, and for at most 3 days ahead.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from remoting.properties import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS

__all__ = ["At", "Delay", "delivery_properties", "epoch_ms", "span_ms"]

At = datetime | int
Delay = timedelta | float

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def epoch_ms(at: At) -> int:
    """Turn an instant into epoch milliseconds, rounded up; raises ValueError for one before 1970.

    >>> epoch_ms(datetime(2030, 1, 1, tzinfo=UTC)), epoch_ms(1_893_456_000_000)
    (1893456000000, 1893456000000)
    """
    if isinstance(at, datetime):
        ms = -((_EPOCH - at.astimezone(UTC)) // _MS)
    elif isinstance(at, int) and not isinstance(at, bool):
        ms = at
    else:
        raise TypeError(f"at must be a datetime or epoch milliseconds as int, found {at!r}")
    if ms < 0:
        raise ValueError(f"at lies before 1970: {at!r}")
    return ms


def span_ms(delay: Delay) -> int:
    """Turn a span into milliseconds, rounded up; raises ValueError for a negative one.

    >>> span_ms(timedelta(minutes=47)), span_ms(0.0001)
    (2820000, 1)
    """
    if isinstance(delay, timedelta):
        ms = -((-delay) // _MS)
    elif isinstance(delay, int | float) and not isinstance(delay, bool) and math.isfinite(delay):
        ms = math.ceil(round(delay * 1000, 6))
    else:
        raise TypeError(f"delay must be a timedelta or seconds, found {delay!r}")
    if ms < 0:
        raise ValueError(f"delay is negative: {delay!r}")
    return ms


def delivery_properties(
    at: At | None = None, delay: Delay | None = None, level: int | None = None
) -> tuple[tuple[str, str], ...]:
    """Answer with the property that asks for a delivery time; none at all means at once.

    Raises ValueError when more than one is given.
    """
    if at is None and delay is None and level is None:
        return ()
    if (at is not None) + (delay is not None) + (level is not None) > 1:
        raise ValueError("at, delay and level exclude each other")
    if at is not None:
        return ((TIMER_DELIVER_MS, str(epoch_ms(at))),)
    if delay is not None:
        return ((TIMER_DELAY_MS, str(span_ms(delay))),)
    if not isinstance(level, int) or isinstance(level, bool) or level < 1:
        raise ValueError(f"level is 1 or more, found {level!r}")
    return ((DELAY, str(level)),)
