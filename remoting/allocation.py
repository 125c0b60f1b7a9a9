"""The queues that each member of a group reads: each member computes them by the same rule.

Every member sorts the same list of members and the same list of queues and takes its share. If the division leaves a
rest, the first members get one queue more (AllocateMessageQueueAveragely, the default of Apache's clients, so that
Python and Java members can share a group)::

    5 queues, 2 members:  a: 0 1 2   b: 3 4
    2 queues, 3 members:  a: 0       b: 1       c: none
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["allocate_evenly"]

Queue = TypeVar("Queue")


def allocate_evenly(me: str, members: Sequence[str], queues: Sequence[Queue]) -> list[Queue]:
    """Return the share of ``me``; both lists must be sorted and free of repeats. Empty if ``me`` is not a member.

    >>> allocate_evenly("b", ["a", "b"], [0, 1, 2, 3, 4])
    [3, 4]
    """
    if me not in members:
        return []
    index = members.index(me)
    share, odd = divmod(len(queues), len(members))
    begin = index * share + min(index, odd)
    return list(queues[begin : begin + share + (index < odd)])
