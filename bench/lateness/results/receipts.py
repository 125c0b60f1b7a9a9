"""Words for receipts of consumers that count for no delivery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["receipts_in_words"]


def receipts_in_words(end: Mapping[str, Any], brief: bool = False) -> list[str]:
    """Return sentences about the unmatched receipts of ``end_to_end`` in a summary's total.

    Ordinary messages have receipts, too. So with ``brief``, receipts without a delivery are only told if there are no
    others.

    >>> for line in receipts_in_words({"received": 0, "repeated": 0, "unmatched": 6, "ambiguous": 5}):
    ...     print(line)
    5 of 6 receipts lead to deliveries in several of these logs, as with copies of one log, and count for none
    1 of 6 receipts leads to no delivery in these logs
    >>> receipts_in_words({"received": 4, "repeated": 1, "unmatched": 2}, brief=True)
    []
    """
    ambiguous = end.get("ambiguous", 0)
    without = end.get("unmatched", 0) - ambiguous
    several = end["received"] + end["repeated"] + without + ambiguous
    lines = []
    if ambiguous:
        what = "deliveries in several of these logs, as with copies of one log, and"
        lines.append(f"{_lead(ambiguous, several)} to {what} {'count' if ambiguous > 1 else 'counts'} for none")
    if without and without == several:
        lines.append(f"none of {several:,} receipts leads to a delivery in these logs")
    elif without and not (brief and end["received"]):
        lines.append(f"{_lead(without, several)} to no delivery in these logs")
    return lines


def _lead(some: int, several: int) -> str:
    return f"{some:,} of {several:,} receipts {'lead' if some > 1 else 'leads'}"
