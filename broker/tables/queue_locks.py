"""Locks of queues for ordered consumption: each is held by one client of a group.

A lock that is not renewed for 60 s (``lockMaxLiveTime``) goes to the next client that asks.
"""

from __future__ import annotations

__all__ = ["LOCKS_MAX", "LOCK_LIFE_MS", "Queue", "QueueLocks"]

LOCK_LIFE_MS = 60_000
LOCKS_MAX = 200_000
"""Most locks of all groups."""

Queue = tuple[str, str, int]
"""Topic, broker name, queue id."""


class QueueLocks:
    """The locks of all groups: queue to client. Only the network loop uses them."""

    __slots__ = ("_groups", "_life_ms", "count", "count_max")

    def __init__(self, life_ms: int = LOCK_LIFE_MS, count_max: int = LOCKS_MAX) -> None:
        """``life_ms``: how long a lock holds that is not renewed. ``count_max``: most locks of all groups."""
        self._life_ms = life_ms
        self.count = 0
        self.count_max = count_max
        self._groups: dict[str, dict[Queue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queue: Queue, now_ms: int) -> bool:
        """Take or renew a lock. Returns whether the client has it now."""
        held = self._groups.get(group)
        owner = None if held is None else held.get(queue)
        if owner is None:
            if self.count >= self.count_max:
                return False
            self.count += 1
            if held is None:
                held = self._groups[group] = {}
        elif owner[0] != client_id and now_ms - owner[1] <= self._life_ms:
            return False
        assert held is not None
        held[queue] = (client_id, now_ms)
        return True

    def unlock(self, group: str, client_id: str, queue: Queue) -> bool:
        """Give a lock back; False if the client does not own it."""
        held = self._groups.get(group)
        if held is None or held.get(queue, ("",))[0] != client_id:
            return False
        del held[queue]
        self.count -= 1
        if not held:
            del self._groups[group]
        return True

    def any_live(self, group: str, now_ms: int) -> bool:
        """True if a group holds any lock: then it consumes in order."""
        held = self._groups.get(group)
        return held is not None and any(now_ms - renewed_ms <= self._life_ms for _, renewed_ms in held.values())

    def expire(self, now_ms: int) -> None:
        """Drop locks that nobody renewed in time."""
        for group in list(self._groups):
            held = self._groups[group]
            for queue in [queue for queue, (_, renewed_ms) in held.items() if now_ms - renewed_ms > self._life_ms]:
                del held[queue]
                self.count -= 1
            if not held:
                del self._groups[group]
