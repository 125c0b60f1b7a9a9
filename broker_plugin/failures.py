"""Failed deliveries: never given up, counted, listed, retried with back-off; in bounded memory.

A million messages may be pending for a topic that somebody deletes. So failures are kept in *groups*, one for each
(reason, topic): the range of due times in which its messages lie, how many there are, and when to retry. The
messages stay in the spill store, not done. A retry scans the group's range and delivers the messages of the group.

================  =====================================================================================
topic failures    TOPIC_NOT_EXIST, NO_PERMISSION, TOPIC_AWAY: the first few messages stand for all. While they
                  fail, the rest is not tried. `topics_changed` retries them at once
others            each retry tries every message: one that can never be delivered must not stop the others
================  =====================================================================================

Records that cannot be read are a group of their own, with the topic ``*`` (any).

Back-off doubles from `BACKOFF_MIN_MS` to `Failures.backoff_max_ms`. Above `GROUPS_MAX` groups, new failures go to a
group with the topic ``*``.
"""

from __future__ import annotations

from store.put.plugin_api import PutStatus

__all__ = ["ANY_TOPIC", "BACKOFF_MAX_MS", "BACKOFF_MIN_MS", "UNREADABLE", "FailedGroup", "Failures", "backoff_ms"]

BACKOFF_MIN_MS = 100
BACKOFF_MAX_MS = 60_000
GROUPS_MAX = 10_000
ANY_TOPIC = "*"
UNREADABLE = "UNREADABLE"
"""Reason for a record that could not be read back or is no record; also used as its topic, which is unknown."""
_TOPIC_REASONS = frozenset({PutStatus.TOPIC_NOT_EXIST.name, PutStatus.NO_PERMISSION.name, PutStatus.TOPIC_AWAY.name})


def backoff_ms(attempts: int) -> int:
    """Pause in ms after this many failures in a row.

    >>> [backoff_ms(n) for n in (1, 2, 3, 10, 11, 1000)]
    [100, 200, 400, 51200, 60000, 60000]
    """
    return min(BACKOFF_MAX_MS, BACKOFF_MIN_MS << min(attempts - 1, 16))


class FailedGroup:
    """Failed deliveries of one topic for one reason, between two due times (both inclusive)."""

    __slots__ = ("attempts", "count", "first_ms", "last_ms", "next_ms", "reason", "topic")

    def __init__(self, reason: str, topic: str, due_ms: int, next_ms: int) -> None:
        self.reason = reason
        self.topic = topic
        self.first_ms = due_ms
        self.last_ms = due_ms
        self.count = 0
        self.attempts = 1
        self.next_ms = next_ms

    @property
    def is_about_topic(self) -> bool:
        """True if the reason is the topic's, so that one failure means that all messages of the group would fail."""
        return self.reason in _TOPIC_REASONS

    def takes(self, topic: str) -> bool:
        """True if a message of this topic may belong to the group."""
        return self.topic in (topic, ANY_TOPIC)

    def covers(self, topic: str, due_ms: int) -> bool:
        """True if an overdue message of this topic and due time counts as one of the group."""
        return self.first_ms <= due_ms <= self.last_ms and self.takes(topic)

    def __repr__(self) -> str:
        return (
            f"FailedGroup({self.reason}, {self.topic!r}, {self.count} due {self.first_ms}..{self.last_ms}, "
            f"attempts={self.attempts}, next_ms={self.next_ms})"
        )


class Failures:
    """All failed groups. Not thread-safe: it lives under the delivery lock."""

    __slots__ = ("_groups", "backoff_max_ms")

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], FailedGroup] = {}
        self.backoff_max_ms = BACKOFF_MAX_MS
        """Longest pause between two tries, at most `BACKOFF_MAX_MS`."""

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> list[FailedGroup]:
        """All groups, in no particular order."""
        return list(self._groups.values())

    @property
    def count(self) -> int:
        """Failed messages, as of each group's last try. Any thread."""
        # A copy, because the holder of the delivery lock may add a group meanwhile.
        return sum(group.count for group in list(self._groups.values()))

    def add(self, reason: str, topic: str, due_ms: int, now_ms: int) -> None:
        """Count one failed delivery."""
        group = self._groups.get((reason, topic))
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                topic = ANY_TOPIC
                group = self._groups.get((reason, topic))
            if group is None:
                group = FailedGroup(reason, topic, due_ms, now_ms + BACKOFF_MIN_MS)
                self._groups[reason, topic] = group
        group.count += 1
        if due_ms < group.first_ms:
            group.first_ms = due_ms
        if due_ms > group.last_ms:
            group.last_ms = due_ms

    def removed(self, topic: str, due_ms: int) -> None:
        """Note that a message was cancelled or moved: if it counts as failed, its group has one less."""
        for group in self._groups.values():
            if group.count and group.covers(topic, due_ms):
                group.count -= 1
                return

    def belongs(self, group: FailedGroup, topic: str, due_ms: int) -> bool:
        """True if a message within the due times of ``group``, which `take_due` has taken out, belongs to it.

        A group for any topic takes what no other group claims. An unreadable record may belong to any group, so the one
        that meets it takes it, unless the group of the unreadable covers it.
        """
        if topic == UNREADABLE:
            unreadable = self._groups.get((UNREADABLE, ANY_TOPIC))
            return group.reason == UNREADABLE or unreadable is None or not unreadable.covers(topic, due_ms)
        if group.topic != ANY_TOPIC:
            return group.topic == topic
        return not self.is_failed(topic, due_ms)

    def is_failed(self, topic: str, due_ms: int) -> bool:
        """True if an overdue message counts as failed."""
        return any(group.covers(topic, due_ms) for group in self._groups.values())

    def take_due(self, now_ms: int) -> FailedGroup | None:
        """Take out the group whose retry is due first; None if none is due. End with `put_back` or `went_on`."""
        best: FailedGroup | None = None
        for group in self._groups.values():
            if group.next_ms <= now_ms and (best is None or group.next_ms < best.next_ms):
                best = group
        if best is not None:
            del self._groups[best.reason, best.topic]
        return best

    def put_back(self, group: FailedGroup, now_ms: int) -> None:
        """Return a group whose retry was given up: it waits longer. Failures since `take_due` are joined to it."""
        group.attempts += 1
        group.next_ms = now_ms + self._pause_ms(group)
        newer = self._groups.get((group.reason, group.topic))
        if newer is not None:
            group.count += newer.count
            group.first_ms = min(group.first_ms, newer.first_ms)
            group.last_ms = max(group.last_ms, newer.last_ms)
        self._groups[group.reason, group.topic] = group

    def went_on(self, group: FailedGroup, now_ms: int) -> None:
        """Note that a retry went through its whole range: messages that failed again wait longer."""
        again = self._groups.get((group.reason, group.topic))
        if again is not None:
            again.attempts = group.attempts + 1
            again.next_ms = now_ms + self._pause_ms(again)

    def _pause_ms(self, group: FailedGroup) -> int:
        return min(self.backoff_max_ms, backoff_ms(group.attempts))

    def next_ms(self) -> int | None:
        """Time of the next retry, epoch ms; None without failures."""
        return min((group.next_ms for group in self._groups.values()), default=None)

    def topics_changed(self, now_ms: int) -> None:
        """Retry all topic failures at once; their back-off starts anew."""
        for group in self._groups.values():
            if group.is_about_topic:
                group.attempts = 0
                group.next_ms = now_ms

    def try_all(self, now_ms: int) -> None:
        """Retry everything at once; the back-off starts anew."""
        for group in self._groups.values():
            group.attempts = 0
            group.next_ms = now_ms

    def clock_went_back(self, now_ms: int) -> None:
        """Cut the pauses after the clock was set back: no retry waits longer than the longest back-off."""
        for group in self._groups.values():
            group.next_ms = min(group.next_ms, now_ms + BACKOFF_MAX_MS)
