"""`PopPolls`: the keys under which waiting pops are held in `LongPoll`, and which arrivals wake which keys.

A pop may wait for all queues of a topic, and for the retry topics of its group. So it is held under a key of its own,
``(topic NUL group, queue id or -1)``. `PopPolls` knows which keys an arrival in a queue wakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from broker.pop.handle import RETRY_V1, RETRY_V2, retry_topic
from broker.pulling.long_poll import LongPoll

__all__ = ["Mark", "PopPolls"]

Queue = tuple[str, int]
Mark = list[tuple["_Name", int]]
"""The last arrivals when a pop began to look. If they are the same later, the pop has missed nothing."""


class _Name:
    """One topic: the keys that an arrival in it wakes, and the number of the last arrival."""

    __slots__ = ("arrival", "keys")

    def __init__(self) -> None:
        self.keys: set[Queue] = set()
        self.arrival = 0


class PopPolls:
    """Knows which held pops an arrival wakes. `arrived`: any thread; the rest: network loop only."""

    def __init__(self, long_poll: LongPoll) -> None:
        self._long_poll = long_poll
        self._names: dict[str, _Name] = {}
        self._numbers = count(1)

    @staticmethod
    def key(topic: str, group: str, queue_id: int) -> Queue:
        """The key under which a pop waits."""
        return f"{topic}\0{group}", max(queue_id, -1)

    def add(self, topic: str, group: str, queue_id: int) -> Mark:
        """Let arrivals wake the pops held under a key from now on; return the last arrivals."""
        key = self.key(topic, group, queue_id)
        mark: Mark = []
        if len(self._names) > 64 + 8 * (self._long_poll.count + 1):
            self._clear()
        for name in (topic, retry_topic(topic, group, RETRY_V1), retry_topic(topic, group, RETRY_V2)):
            entry = self._names.get(name)
            if entry is None:
                entry = self._names[name] = _Name()
            entry.keys.add(key)
            mark.append((entry, entry.arrival))
        return mark

    def _clear(self) -> None:
        """Forget keys under which no pop is held. A pop that is still looking notices by its mark."""
        held, table = self._long_poll.held, {}
        for name, entry in self._names.items():
            entry.keys = {key for key in entry.keys if held(key)}
            if entry.keys:
                table[name] = entry
        self._names = table

    def arrived(self, queues: Sequence[Queue]) -> None:
        """Wake pulls and pops: messages have arrived in these queues (any thread)."""
        self._long_poll.arrived(queues)
        names = self._names
        if not names:
            return
        woken: list[Queue] = []
        for topic, queue_id in queues:
            entry = names.get(topic)
            if entry is not None:
                # The number before the keys: a pop whose key comes too late to be woken begins its look after it.
                entry.arrival = next(self._numbers)
                own = f"{topic}\0"
                # A copy of the keys: the network loop may add some meanwhile.
                woken += [key for key in tuple(entry.keys) if key[1] in (-1, queue_id) or not key[0].startswith(own)]
        if woken:
            self._long_poll.arrived(woken)

    def wake(self, topic: str, group: str) -> None:
        """Wake a group's pops of a topic: messages can be popped that could not be before."""
        entry = self._names.get(topic)
        if entry is not None and self._long_poll.count:
            self._long_poll.arrived([key for key in entry.keys if key[0] == f"{topic}\0{group}"])
            self._long_poll.wake()

    def release(self, topic: str) -> None:
        """Answer the pops of a topic that was deleted."""
        entry = self._names.pop(topic, None)
        for name in {key[0] for key in (() if entry is None else entry.keys)}:
            if name.startswith(f"{topic}\0"):
                self._long_poll.release(name)

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Number of pops that wait under a key."""
        return self._long_poll.held(self.key(topic, group, queue_id))
