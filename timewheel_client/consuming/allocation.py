"""Who of a group reads which queues: worked out by each member for itself, so all must do the same sum.

Every member sorts the same list of members and the same list of queues and takes its share: the first ones get
one queue more where it does not come out even (AllocateMessageQueueAveragely, the default of Apache's clients, so that
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
    """Answer with the share of ``me``; both lists must be sorted and free of repeats. Empty if ``me`` is no member.

    >>> allocate_evenly("b", ["a", "b"], [0, 1, 2, 3, 4])
    [3, 4]
    """
    if me not in members:
        return []
    index = members.index(me)
    share, odd = divmod(len(queues), len(members))
    begin = index * share + min(index, odd)
    return list(queues[begin : begin + share + (index < odd)])
