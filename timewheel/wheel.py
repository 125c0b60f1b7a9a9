"""`TimingWheel`: millions of timers, in due order, at a cost that does not grow with their number.

The problem
    A heap pays log n for every timer it fires (2.6 us at a million), cannot cancel, and moves tuples about.
    Most delay queues that use a wheel instead are late or early by up to a tick, or limited to the span of
    the wheel.

The idea
    A timing wheel files a timer under its due time, as a calendar does. Ours has ``levels`` levels of
    ``2**slot_bits`` slots: a slot of level 0 is one millisecond, a slot of level k spans ``2**(k *
    slot_bits)`` of them. The level is the highest digit in which the due time differs from the wheel's
    position (see `timewheel.levels`), so a timer is filed once, by two table look-ups. Each level keeps one
    integer of occupied bits: the next slot that holds anything is one bit scan away, and a week without
    timers costs as much as a millisecond.

    The usual cost of a hierarchical wheel is the cascade: when the position enters a slot of level k, its timers are
    dealt out to level k - 1, one by one, k times in a timer's life. Here nothing cascades:

    * a slot with up to ``slot_limit`` timers is a *leaf*. When its time comes it is sorted once, by a
      stable sort, and then drained by index: a *run*;
    * a slot with more becomes a *row* of slots of the next lower level: the timers it has so far are dealt
      out once, what comes later goes straight to the smaller slots. When its time comes the row is the lower
      level: it is adopted whole, by one assignment.

    So no step touches more than ``slot_limit`` timers, whatever the wheel holds.

    The top level is a ring. What lies a turn of the ring ahead or more waits in overflow buckets, one for
    each future turn, and enters the ring slot by slot, whole. With 6 bits and 7 levels the ring is 139
    years long.

A worked example, ``slot_bits=6``
    Position 1000 has digits 15, 40. A timer due at 1010 (15, 50) differs in digit 0: level 0, slot 50. One
    due at 5000 (1, 14, 8) differs in digit 2: level 2, slot 1, which spans 4096 to 8191. A year later,
    31536001000, differs in digit 5: level 5, slot 29. ``next_wake_ms()`` says 1010; then 4096: the slot
    opens, its leaf becomes a run; then 5000.

Handles
    What a million timers cost is memory that is reached in random order. So a timer is two entries at the end of its
    leaf's columns, due time and item, and nothing else: no number, no column of its own. Its handle is where it stands,
    ``(number of the leaf << 32) + position``; a leaf's number never comes again, so a handle of a leaf that is no more
    is stale, and so is one before the head of a run: firing writes nothing. To cancel is to set one byte of the leaf. A
    leaf that has become a row is kept until the row's time has passed, and its items are replaced by their new handles;
    see `timewheel.slots`.

The way to a leaf
    Most leaves stand at one level, that at which a slot holds a few hundred to ``slot_limit`` timers. The
    leaves of that level are in one dictionary by slot number, ``due_ms >> shift``: `insert` is a shift and a
    look-up. Timers for other levels go through the rows; when many do, the dictionary changes its level.

Order
    Timers fire by due time; those of the same millisecond in the order in which they were inserted; a moved
    timer counts as inserted by the move. The order needs no sequence number: a run was filed before
    anything that is filed below it afterwards, so on a tie the higher level goes first, and a leaf is in
    order of insertion.

Time going backwards
    The position never goes back while the wheel holds anything. A timer due before the position goes to a
    heap of *late* ones, which fire when ``now_ms`` has reached them, before everything else. On a steady
    clock that heap holds what was due already when it came.

Cost
    ``insert``, ``cancel``, ``move`` O(1); a fired timer O(log slot_limit) for its share of the sort, at
    most. A timer takes 16 bytes beside its item, and a byte if any of its leaf was cancelled; the columns grow
    by an eighth at a time. A cancelled timer keeps them, and its item, until its time comes or seven eighths
    of its leaf are cancelled: then the leaf is cleared. Measured figures: ``docs/wheel.md``.

Sources
    G. Varghese, A. Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987, scheme 7. tokio
    (``runtime/time/wheel``) chooses the level by the highest differing bit and keeps occupied bits; it
    cascades timer by timer. Kafka (``TimingWheel.java``) keeps slots in a delay queue and fires up to a
    tick early. Linux (``kernel/time/timer.c``) does not cascade and is up to 12.5 % late by design. Leaves
    that become rows are the buckets of a radix trie (burst tries, Heinz, Zobel and Williams 2002).

To be kept in step: `timewheel.check` knows every rule that is stated here; the model test calls it at each step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop
from itertools import islice
from operator import le
from typing import Any

from timewheel.dial import CLEAR_MASK, LATE_BITS, LATE_MASK, Dial
from timewheel.slots import POSITION_BITS, POSITION_MASK

__all__ = ["TimingWheel"]


class TimingWheel(Dial):
    """A set of timers, each an item with a due time, drained in due order; see the module's text.

    Not thread-safe: one owner, or a lock around it. Knows no clock: time is what `advance` is told.

    Args:
        now_ms: where the wheel starts, in milliseconds (any epoch), not negative.
        slot_bits: bits of a digit; a level has ``2**slot_bits`` slots.
        levels: number of levels; the ring of the top level spans ``2**(slot_bits * levels)`` milliseconds.
        slot_limit: timers a slot may hold before it is split into a row of smaller slots.

    >>> wheel = TimingWheel(now_ms=1_000)
    >>> first, second = wheel.insert_many([5_000, 3_000], [7, 8])
    >>> wheel.next_wake_ms() <= 3_000
    True
    >>> wheel.cancel(first), wheel.cancel(first)
    (True, False)
    >>> second = wheel.move(second, 4_000)
    >>> wheel.advance(3_999, limit=10), wheel.advance(4_000, limit=10), len(wheel)
    (([], []), ([4000], [8]), 0)
    """

    __slots__ = ()

    @property
    def now_ms(self) -> int:
        """The wheel's position: nothing in its slots is due before it."""
        return self._at

    # ---------------------------------------------------------------- insert, cancel, move

    def insert(self, due_ms: int, item: Any) -> int:
        """File a timer and return its handle, which is never 0 and never comes again.

        A due time in the past is legal: the timer fires at the next `advance` that has reached it.
        Raises OverflowError if ``due_ms`` does not fit into 64 bits.
        """
        leaf = self._near.get(due_ms >> self._near_shift)
        if leaf is not None:
            items = leaf.items
            count = len(items)
            if count < self._slot_limit:
                # The due time first: if it does not fit, this raises and nothing has changed.
                leaf.dues.append(due_ms)
                items.append(item)
                self._live += 1
                return leaf.base + count
        return self._file(due_ms, item)

    def insert_many(self, dues: Sequence[int], items: Sequence[Any]) -> list[int]:
        """File timers in the order given and return their handles: `insert` at less cost for each.

        Cheapest when ``dues`` is sorted: then it costs a copy for each slot. All are filed or, on an error, none.

        Raises ValueError if the two have not the same length.
        """
        if len(dues) != len(items):
            raise ValueError(f"{len(dues)} due times for {len(items)} items")
        handles: list[int] = []
        try:
            if all(map(le, dues, islice(dues, 1, None))):
                self._insert_sorted(dues, items, handles)
            else:
                self._insert_each(dues, items, handles)
        except (OverflowError, TypeError):
            for handle in handles:
                self.cancel(handle)
            raise
        return handles

    def _insert_sorted(self, dues: Sequence[int], items: Sequence[Any], handles: list[int]) -> None:
        """File slot by slot what is in due order."""
        count, start = len(dues), bisect_left(dues, self._at)
        handles.extend(self._file(dues[index], items[index]) for index in range(start))
        if start < count and dues[-1] >> 63:
            raise OverflowError(f"due_ms={dues[-1]} does not fit into 64 bits")
        while start < count:
            due_ms = dues[start]
            leaf, shift = self._leaf_for(due_ms)
            filled = len(leaf.items)
            end = min(start + self._slot_limit - filled, count)
            end = bisect_left(dues, ((due_ms >> shift) + 1) << shift, start, end)
            # `fromlist` takes all or, on an error, nothing: so both columns stay equally long.
            leaf.dues.fromlist(list(dues[start:end]))
            leaf.items += items[start:end]
            self._live += end - start
            first = leaf.base + filled
            handles += range(first, first + end - start)
            start = end

    def _insert_each(self, dues: Sequence[int], items: Sequence[Any], handles: list[int]) -> None:
        """`insert` as a loop."""
        near, shift, limit, append = self._near, self._near_shift, self._slot_limit, handles.append
        filed = 0
        try:
            for due_ms, item in zip(dues, items, strict=True):
                leaf = near.get(due_ms >> shift)
                if leaf is not None:
                    column = leaf.items
                    count = len(column)
                    if count < limit:
                        leaf.dues.append(due_ms)
                        column.append(item)
                        filed += 1
                        append(leaf.base + count)
                        continue
                append(self._file(due_ms, item))
                # `_file` may have moved the dictionary to another level.
                near, shift = self._near, self._near_shift
        finally:
            self._live += filed

    def cancel(self, handle: int) -> bool:
        """Take a timer out; False if it has fired, was cancelled or moved, or never was."""
        number = handle >> POSITION_BITS
        leaf = self._leaves.get(number)
        if leaf is None:
            return (number in self._others or handle in self._late_items) and self._cancel_slowly(handle)
        index = handle & POSITION_MASK
        if index >= len(leaf):
            return self._cancel_slowly(handle)
        if leaf[index]:
            return False
        leaf[index] = 1
        leaf.dead = dead = leaf.dead + 1
        self._live -= 1
        if not dead & CLEAR_MASK:
            self._clear(leaf)
        return True

    def move(self, handle: int, due_ms: int) -> int:
        """Give a timer another due time and return its new handle, or 0 if the handle is not live.

        The moved timer counts as inserted now; the old handle is refused from here on.
        """
        found = self._find(handle)
        if found is not None:
            # Before the cancel: if the due time does not fit, the timer stays where it is.
            moved = self.insert(due_ms, found[0].items[found[1]])
        elif handle in self._late_items:
            moved = self.insert(due_ms, self._late_items[handle])
        else:
            return 0
        self.cancel(handle)
        return moved

    # ---------------------------------------------------------------- advance

    def advance(self, now_ms: int, limit: int) -> tuple[list[int], list[Any]]:
        """Take out what is due at ``now_ms``, in order, at most ``limit`` timers; call again until it is empty.

        Returns due times and items, side by side. Nothing comes before its due time. A ``now_ms`` before an
        earlier one is no error, and nothing fires early by it.
        """
        dues: list[int] = []
        items: list[Any] = []
        if self._late:
            self._take_late(now_ms, limit, dues, items)
        if now_ms >= self._at:
            while (room := limit - len(dues)) > 0 and self._step(now_ms, room, dues, items):
                pass
        elif self._is_bare():
            self._at = max(now_ms, 0)  # the clock stepped back over an empty wheel
        return dues, items

    def next_wake_ms(self) -> int | None:
        """Return when `advance` has something to do, None if the wheel is empty.

        Never later than the earliest due time. It may be earlier: a slot must be opened when it begins, and a
        cancelled timer may still stand in front.
        """
        if not self._live:
            return None
        candidates = [run.head_ms for run in self._runs]
        if self._late:
            candidates.append(self._late[0] >> LATE_BITS)
        if self._wheel[0].occupied:
            candidates.append(self._first_millisecond())
        else:
            start = self._next_slot_ms()
            if start is not None:
                candidates.append(start)
        return min(candidates)

    def _step(self, now_ms: int, room: int, dues: list[int], items: list[Any]) -> bool:
        """Drain one run, or open one slot; False if nothing more is due at ``now_ms``."""
        start: int | None
        if self._wheel[0].occupied:
            # What is unopened lies behind level 0, and a run comes before a leaf of the same millisecond.
            start, opens = self._first_millisecond(), self._open_millisecond
            bound = start
        else:
            start, opens = self._next_slot_ms(), self._open
            bound = now_ms if start is None else start - 1
        if self._runs and self._drain_run(min(bound, now_ms), room, dues, items):
            return True
        if start is None or start > now_ms:
            self._set_position(now_ms)
            return False
        opens(start)
        return True

    def _drain_run(self, bound_ms: int, room: int, dues: list[int], items: list[Any]) -> bool:
        """Take from the run with the earliest head what is due up to ``bound_ms``; False if nothing is."""
        runs = self._runs
        run = runs[0]
        head_ms = run.head_ms
        for other in runs[1:]:
            if other.head_ms < head_ms:  # on a tie the higher level goes first
                bound_ms = min(bound_ms, head_ms - 1)
                run, head_ms = other, other.head_ms
            else:
                bound_ms = min(bound_ms, other.head_ms)
        if head_ms > bound_ms:
            return False
        start, length = run.position, len(run.dues)
        end = bisect_right(run.dues, bound_ms, start, min(start + room, length))
        self._set_position(run.dues[end - 1])
        taken_dues, taken = run.take(end)
        self._live -= len(taken)
        dues += taken_dues
        items += taken
        if end == length and not self._turn_over(run):
            runs.remove(run)
        return True

    def _take_late(self, now_ms: int, limit: int, dues: list[int], items: list[Any]) -> None:
        late = self._late
        while late and len(dues) < limit and late[0] >> LATE_BITS <= now_ms:
            key = heappop(late)
            handle = (key & LATE_MASK) << POSITION_BITS
            if handle in self._late_items:
                self._live -= 1
                dues.append(key >> LATE_BITS)
                items.append(self._late_items.pop(handle))
