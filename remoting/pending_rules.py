"""Checks of queries and orders about pending messages, the same for wire, HTTP and command line, as pure functions.

Each returns what is wrong and what to write instead; an empty text if nothing is.

===============  ==================================================================================================
`time_fault`     a time that looks like seconds
`past_fault`     a new due time in the past: ``now`` is the verb for that
`width_fault`    a bulk change of everything: an order by mistake (a field left empty, a bound of 0 or of the year 9999)
===============  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PAST_MS", "RANGE_MAX_MS", "SECONDS_BELOW", "past_fault", "time_fault", "width_fault"]

SECONDS_BELOW = 100_000_000_000
"""A number of milliseconds below this lies before March 1973: it is a number of seconds."""
PAST_MS = 1000
"""A new due time may lie this far in the past and means now: clocks differ, and requests take time."""
RANGE_MAX_MS = 3660 * 86_400_000
"""A range of times up to this length, some ten years, counts as a condition; a longer one could match everything."""


def time_fault(name: str, value: int) -> str:
    """Describe the fault of a time that should be epoch ms; empty if it has none.

    >>> time_fault("due_from", 1_700_000_000)
    'due_from=1700000000 looks like seconds: milliseconds since 1970 are expected'
    """
    if 0 < value < SECONDS_BELOW:
        return f"{name}={value} looks like seconds: milliseconds since 1970 are expected"
    return ""


def past_fault(name: str, due_ms: int, now_ms: int) -> str:
    """Describe the fault of a new due time, epoch ms; empty if it has none.

    >>> past_fault("due_ms", 1_700_000_000_000, 1_700_000_005_000)
    'due_ms=1700000000000 lies 5000 ms in the past: to have it delivered now, the verb is now'
    """
    if due_ms < now_ms - PAST_MS:
        return f"{name}={due_ms} lies {now_ms - due_ms} ms in the past: to have it delivered now, the verb is now"
    return ""


def width_fault(texts: Iterable[str], ranges: Iterable[tuple[int | None, int | None]]) -> str:
    """Why a bulk change by a query is refused as too wide; empty if it is allowed.

    Args:
        texts: Topic, tag, prefix of the delay key, names of properties; the empty ones are no conditions.
        ranges: From and to, epoch ms, of the due time and of the time of acceptance.

    >>> width_fault(["", "vip"], []), width_fault([], [(1_700_000_000_000, 1_700_000_060_000)])
    ('', '')
    >>> width_fault([""], [(0, None)]).partition(":")[0]
    'this query could change everything that is pending'
    """
    if any(texts):
        return ""
    for first, last in ranges:
        if first is not None and last is not None and last - first <= RANGE_MAX_MS:
            return ""
    return (
        "this query could change everything that is pending: name a topic, a tag, the beginning of a delay key or a "
        "property; or a range of due times (or of times of acceptance) with both ends, ten years long at most"
    )
