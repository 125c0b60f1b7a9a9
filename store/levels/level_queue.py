"""The pending messages of one delay level: stretches of its queue, each in order of due time.

A level's queue is in order of store time, hence of due time, unless the clock stepped back: then messages stored after
the step are due before those stored just before it. So the queue is cut into **stretches** wherever the due time falls.
Each stretch is delivered from its front. A clock step costs one more stretch, and no message waits behind one that was
stored by a wrong clock.

    queue    0 … 411 | 412 …  903 | 904 …        clock steps back before 412 and before 904
    pending  [37, 412)  [412, 904)  [904, open)

A message that cannot be put becomes a stretch of its own and is tried again later; the others continue.

Progress is exactly the list of pending numbers (`LevelQueue.pending`); it is what the checkpoint stores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

__all__ = ["Entry", "LevelQueue", "Stretch"]

Entry: TypeAlias = tuple[int, int, int]
"""CommitLog offset, size, due_ms: one ConsumeQueue entry."""

_READ_ENTRIES = 256
_STRETCHES_MAX = 256
_PRE_BLANK = 0x7FFF_FFFF


class Stretch:
    """Numbers ``next`` to ``end`` of a level's queue, in order of due time; a few of the entries at its front."""

    __slots__ = ("end", "entries", "failures", "next", "retry_ms")

    def __init__(self, first: int, end: int) -> None:
        self.next = first
        self.end = end
        self.entries: deque[Entry] = deque()  # of next, next + 1, …
        self.retry_ms = 0
        self.failures = 0

    def drop_front(self) -> None:
        """Remove the first number, which is done."""
        self.next += 1
        if self.entries:
            self.entries.popleft()


class LevelQueue:
    """One level: its pending stretches, and the end of the part of its queue that was read (``seen``).

    ``read(number, limit)`` returns the queue's entries from a number on; empty if it has none (yet).
    """

    __slots__ = ("_last_due_ms", "_read", "failures", "level", "retry_ms", "seen", "stretches")

    def __init__(self, level: int, read: Callable[[int, int], Sequence[Entry]]) -> None:
        self.level = level
        self.seen = 0
        self.stretches: list[Stretch] = []
        self.retry_ms = 0
        self.failures = 0
        self._read = read
        self._last_due_ms: int | None = None

    # ---------------------------------------------------------------- progress

    @property
    def lowest(self) -> int:
        """The lowest number that is not done: what Apache's delayOffset.json calls the level's offset."""
        return self.stretches[0].next if self.stretches else self.seen

    def pending(self) -> list[tuple[int, int | None]]:
        """All pending numbers, as (first, end) with an open end for the last."""
        return [*((stretch.next, stretch.end) for stretch in self.stretches), (self.seen, None)]

    def restore(self, pending: Sequence[tuple[int, int | None]]) -> None:
        """Load the result of `pending`; the stretches must be in order with gaps between. Raises ValueError if they are
        not."""
        at = 0
        for first, end in pending[:-1]:
            if end is None or not at <= first < end:
                raise ValueError(f"level {self.level}: stretches out of order: {pending}")
            at = end
        last, open_end = pending[-1]
        if open_end is not None or last < at:
            raise ValueError(f"level {self.level}: stretches out of order: {pending}")
        self.stretches = [Stretch(first, end) for first, end in pending[:-1] if end is not None]
        self.seen = last
        self._last_due_ms = None

    def forget_below(self, number: int) -> int:
        """Mark everything below a number as done; returns the number of messages that were pending."""
        forgotten = 0
        kept = []
        for stretch in self.stretches:
            if stretch.end <= number:
                forgotten += stretch.end - stretch.next
                continue
            if stretch.next < number:
                forgotten += number - stretch.next
                stretch.next = number
                stretch.entries.clear()
            kept.append(stretch)
        self.stretches = kept
        if self.seen < number:
            forgotten += number - self.seen
            self.seen = number
            self._last_due_ms = None
        return forgotten

    def forget_from(self, number: int) -> None:
        """Note that the queue was cut at a number: later entries from there on are pending."""
        if self.seen <= number:
            return
        self.seen = number
        self._last_due_ms = None
        self.stretches = [stretch for stretch in self.stretches if stretch.next < number]
        for stretch in self.stretches:
            stretch.end = min(stretch.end, number)
            stretch.entries.clear()

    def mark_done(self, number: int) -> bool:
        """Remove one number from the pending ones; False if it was not pending. Cheap at the front of a stretch."""
        if number >= self.seen:
            if number > self.seen:
                self.stretches.append(Stretch(self.seen, number))
            self.seen = number + 1
            self._last_due_ms = None
            return True
        for index, stretch in enumerate(self.stretches):
            if stretch.next <= number < stretch.end:
                self._cut(index, number, None)
                return True
        return False

    def set_aside(self, number: int, retry_ms: int, failures: int) -> None:
        """Delay one number until ``retry_ms`` without delaying the others of its stretch."""
        for index, stretch in enumerate(self.stretches):
            if stretch.next <= number < stretch.end:
                alone = Stretch(number, number + 1)
                alone.retry_ms = retry_ms
                alone.failures = failures
                self._cut(index, number, alone)
                return

    def _cut(self, index: int, number: int, alone: Stretch | None) -> None:
        """Remove a number from a stretch, or replace it by a stretch of its own."""
        stretch = self.stretches[index]
        parts: list[Stretch] = [] if alone is None else [alone]
        if number == stretch.next:
            stretch.drop_front()
            if stretch.next < stretch.end:
                parts.append(stretch)
        else:
            behind = Stretch(number + 1, stretch.end)
            stretch.end = number
            while len(stretch.entries) > number - stretch.next:
                stretch.entries.pop()
            parts.insert(0, stretch)
            if behind.next < behind.end:
                parts.append(behind)
        self.stretches[index : index + 1] = parts

    # ---------------------------------------------------------------- reading

    def look_ahead(self) -> bool:
        """Read a few hundred more entries of the queue; False if it has no more.

        Pre-blanks (numbers whose records were gone when the queue was rebuilt) are skipped.
        """
        entries = self._read(self.seen, _READ_ENTRIES)
        if not entries:
            return False
        for number, entry in enumerate(entries, self.seen):
            _, size, due_ms = entry
            if size == _PRE_BLANK:
                continue
            last = self.stretches[-1] if self.stretches else None
            in_order = self._last_due_ms is not None and due_ms >= self._last_due_ms
            if (
                last is not None
                and last.end == number
                and last.retry_ms == 0
                and (in_order or len(self.stretches) >= _STRETCHES_MAX)
            ):
                if len(last.entries) == number - last.next < _READ_ENTRIES:
                    last.entries.append(entry)
                last.end = number + 1
            else:
                last = Stretch(number, number + 1)
                last.entries.append(entry)
                self.stretches.append(last)
            self._last_due_ms = due_ms
        self.seen += len(entries)
        return True

    def front(self, stretch: Stretch) -> Entry | None:
        """The first entry of a stretch; None if the queue does not have it (any more)."""
        if not stretch.entries:
            limit = min(_READ_ENTRIES, stretch.end - stretch.next)
            stretch.entries.extend(self._read(stretch.next, limit)[:limit])
            if not stretch.entries:
                return None
        return stretch.entries[0]

    def due(self, stretch: Stretch, now_ms: int, limit: int) -> Iterator[tuple[int, Entry]]:
        """Yield up to ``limit`` (number, entry) from the front of a stretch that are due at ``now_ms``."""
        if self.front(stretch) is None:
            return
        for number, entry in enumerate(stretch.entries, stretch.next):
            if limit <= 0 or entry[2] > now_ms:
                return
            yield number, entry
            limit -= 1

    def check(self) -> list[str]:
        """Return a sentence for each fault of the stretches."""
        problems = []
        at = 0
        for stretch in self.stretches:
            if not at <= stretch.next < stretch.end or len(stretch.entries) > stretch.end - stretch.next:
                problems.append(f"level {self.level}: stretch {stretch.next} to {stretch.end} behind {at}")
            at = stretch.end
        if at > self.seen:
            problems.append(f"level {self.level}: pending up to {at}, but looked through up to {self.seen}")
        return problems
