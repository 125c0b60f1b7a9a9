"""The dial: the wheel's rows, leaves and position, and every move of timers between them.

`timewheel.wheel.TimingWheel` is the dial with a public face; the theory stands there. The split is one of files: what
is here is called a few times a slot, what is there once a timer.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from timewheel.levels import level_table, lowest_bit, ring_distance, slot_of, slot_start_ms
from timewheel.slots import POSITION_BITS, POSITION_MASK, WORN_OUT, Leaf, LeafRun, Row

__all__ = ["CLEAR_MASK", "LATE_BITS", "LATE_MASK", "Dial"]

CLEAR_MASK = 15
"""A leaf is looked at for clearing when the number of cancelled timers has none of these bits: every 16 cancels."""
LATE_BITS = 64
LATE_MASK = (1 << LATE_BITS) - 1
"""A late key is (due << 64) + the timer's number, which counts as that of a leaf."""
_CLEAR_AT_LEAST = 64  # a smaller leaf is cleared only when all of it is cancelled
_NEAR_MISSES = 256  # timers that may miss the level of `Dial._near` before another level takes its place
_LATE_GONE_ALLOWED = 4096  # cancelled timers that may wait in the heap of late ones in any case


class Dial:
    """Rows, ring, overflow buckets, runs and late timers of a wheel, and where it stands. Raises ValueError."""

    __slots__ = (
        "_at",
        "_late",
        "_late_items",
        "_leaves",
        "_level_of_bits",
        "_live",
        "_near",
        "_near_misses",
        "_near_shift",
        "_next_slot",
        "_next_slot_known",
        "_number",
        "_others",
        "_overflow",
        "_overflow_turns",
        "_runs",
        "_slot_bits",
        "_slot_count",
        "_slot_limit",
        "_slot_mask",
        "_top",
        "_top_shift",
        "_wheel",
    )

    def __init__(self, now_ms: int = 0, slot_bits: int = 6, levels: int = 7, slot_limit: int = 2048) -> None:
        if now_ms < 0 or slot_bits < 1 or levels < 2 or slot_limit < 1:
            raise ValueError(f"now_ms={now_ms}, slot_bits={slot_bits}, levels={levels}, slot_limit={slot_limit}")
        self._at = now_ms
        self._live = 0  # timers neither fired nor cancelled
        self._slot_bits = slot_bits
        self._slot_count = 1 << slot_bits
        self._slot_mask = self._slot_count - 1
        self._slot_limit = slot_limit
        self._top = levels - 1
        self._top_shift = slot_bits * (levels - 1)
        self._level_of_bits = level_table(slot_bits, levels)
        self._wheel = [Row(self._slot_count, slot_bits * level) for level in range(levels)]
        # For `insert`: the leaves of one level by the number of their slot, `due_ms >> _near_shift`. The level is one
        # at which many leaves stand; timers for the others take the way through the rows.
        self._near: dict[int, Leaf] = {}
        self._near_shift = min(2, self._top) * slot_bits
        self._near_misses = 0
        self._overflow: dict[int, Row] = {}  # future turns of the ring, by number
        self._overflow_turns: list[int] = []  # a heap of its keys
        self._runs: list[LeafRun] = []  # of higher levels first
        self._next_slot: int | None = None  # see `_next_slot_ms`
        self._next_slot_known = False
        # Leaves by number. In `_leaves` a timer stands at the index that its handle names; `_others` are cleared, dealt
        # out to lower levels, or a run.
        self._leaves: dict[int, Leaf] = {}
        self._others: dict[int, Leaf] = {}
        self._number = 0  # the last one given to a leaf or a late timer
        self._late: list[int] = []
        self._late_items: dict[int, Any] = {}  # by handle

    def __len__(self) -> int:
        """Count the timers that are neither fired nor cancelled."""
        return self._live

    # ---------------------------------------------------------------- filing

    def _file(self, due_ms: int, item: Any) -> int:
        """Do all that `insert` has no fast way for: empty slots, full leaves, other levels, late timers."""
        if due_ms >> 63 not in (0, -1):
            raise OverflowError(f"due_ms={due_ms} does not fit into 64 bits")
        self._live += 1
        if due_ms < self._at:
            self._number = number = self._number + 1
            heappush(self._late, (due_ms << LATE_BITS) + number)
            handle = number << POSITION_BITS
            self._late_items[handle] = item
            return handle
        leaf, shift = self._leaf_for(due_ms)
        if shift != self._near_shift:
            self._near_misses += 1
            # The new dictionary begins empty: the more the old one has, the more misses it takes to give it up.
            if self._near_misses > _NEAR_MISSES + len(self._near):
                self._near_misses = 0
                self._near_shift = shift
                self._near = {}
        handle = leaf.base + len(leaf.items)
        leaf.dues.append(due_ms)
        leaf.items.append(item)
        return handle

    def _new_leaf(self) -> Leaf:
        self._number = number = self._number + 1
        leaf = self._leaves[number] = Leaf(number)
        return leaf

    def _forget(self, number: int) -> None:
        """Refuse the handles of a leaf from here on."""
        if self._leaves.pop(number, None) is None:
            self._others.pop(number, None)

    def _set_aside(self, leaf: Leaf) -> None:
        """Note that an index in the leaf's columns does not say enough about a timer any more."""
        number = leaf.number
        self._leaves.pop(number, None)
        self._others[number] = leaf

    def _leaf_for(self, due_ms: int) -> tuple[Leaf, int]:
        """Return a leaf that has room for a due time that is not late, and the shift of its slot."""
        row, slot = self._place_of(due_ms)
        while True:
            leaf, shift = row.slots[slot], row.shift
            if leaf is None:
                leaf = self._new_leaf()
                row.place(slot, leaf)
                self._next_slot_known = False
            elif len(leaf.items) >= self._slot_limit:
                if shift:
                    if shift == self._near_shift:
                        self._near.pop(due_ms >> shift, None)
                    row.slots[slot] = row = self._split(leaf, shift - self._slot_bits)
                    slot = (due_ms >> row.shift) & self._slot_mask
                    continue
                # One millisecond: nothing to deal.
                older, leaf = leaf, self._new_leaf()
                leaf.older = older
                row.slots[slot] = leaf
            if shift == self._near_shift:
                self._near[due_ms >> shift] = leaf
            return leaf, shift

    def _place_of(self, due_ms: int) -> tuple[Row, int]:
        """Return the row and slot in which the leaf for a due time stands or would stand."""
        level = self._level_of_bits[(due_ms ^ self._at).bit_length()]
        row = self._wheel[level]
        if level == self._top:
            number = due_ms >> self._top_shift
            if number - (self._at >> self._top_shift) >= self._slot_count:
                row = self._overflow_row(number >> self._slot_bits)
        while True:
            slot = (due_ms >> row.shift) & self._slot_mask
            content = row.slots[slot]
            if type(content) is not Row:
                return row, slot
            row = content

    def _overflow_row(self, turn: int) -> Row:
        row = self._overflow.get(turn)
        if row is None:
            row = self._overflow[turn] = Row(self._slot_count, self._top_shift)
            heappush(self._overflow_turns, turn)
        return row

    def _split(self, leaf: Leaf, shift: int) -> Row:
        """Deal the timers of a full leaf out to a new row; the leaf stays as the way from old handles to new ones."""
        row = Row(self._slot_count, shift)
        dues, mask, slots, items = leaf.dues, self._slot_mask, row.slots, leaf.items
        # All in one smaller slot: the leaf moves there as a whole, and its handles stay good.
        if min(dues) >> shift == max(dues) >> shift:
            row.place((dues[0] >> shift) & mask, leaf)
            return row
        for index in leaf.live_indices():
            due_ms = dues[index]
            slot = (due_ms >> shift) & mask
            content = slots[slot]
            if content is None:
                content = self._new_leaf()
                row.place(slot, content)
            handle = content.base + len(content.items)
            content.dues.append(due_ms)
            content.items.append(items[index])
            items[index] = handle
        row.origin = leaf.number
        leaf.dealt = True
        del dues[:]
        self._set_aside(leaf)
        return row

    # ---------------------------------------------------------------- position and slots

    def _first_millisecond(self) -> int:
        return (self._at & ~self._slot_mask) + lowest_bit(self._wheel[0].occupied)

    def _next_slot_ms(self) -> int | None:
        """Return when the next occupied slot above level 0 begins, overflow buckets included."""
        if not self._next_slot_known:
            self._next_slot = self._find_next_slot()
            self._next_slot_known = True
        return self._next_slot

    def _find_next_slot(self) -> int | None:
        wheel = self._wheel
        for level in range(1, self._top):
            occupied = wheel[level].occupied
            if occupied:
                return slot_start_ms(self._at, level, lowest_bit(occupied), self._slot_bits)
        number = self._at >> self._top_shift
        occupied = wheel[self._top].occupied
        if occupied:
            return (number + ring_distance(occupied, number & self._slot_mask, self._slot_count)) << self._top_shift
        while self._overflow_turns:
            turn = self._overflow_turns[0]
            occupied = self._overflow[turn].occupied
            if occupied:
                return ((turn << self._slot_bits) + lowest_bit(occupied)) << self._top_shift
            del self._overflow[heappop(self._overflow_turns)]  # all of it was cancelled and cleared away
        return None

    def _is_bare(self) -> bool:
        """Say whether nothing stands in any slot, run or heap, not even what was cancelled."""
        held = self._live or self._runs or self._overflow or self._late
        return not held and not any(row.occupied for row in self._wheel)

    def _set_position(self, at_ms: int) -> None:
        """Go forward over time that holds no unopened slot."""
        crossed = (at_ms ^ self._at) >> self._top_shift
        self._at = at_ms
        if crossed and self._overflow:
            self._enter_ring()

    def _enter_ring(self) -> None:
        """Move the overflow slots that lie less than a turn ahead into the ring, whole."""
        ring = self._wheel[self._top]
        end = (self._at >> self._top_shift) + self._slot_count
        while self._overflow_turns:
            turn = self._overflow_turns[0]
            row = self._overflow[turn]
            while row.occupied and (turn << self._slot_bits) + (slot := lowest_bit(row.occupied)) < end:
                content = row.take(slot)
                assert content is not None
                ring.place(slot, content)
            if row.occupied:
                return
            del self._overflow[heappop(self._overflow_turns)]

    def _open(self, start_ms: int) -> None:
        """Enter the slots that begin at ``start_ms``: adopt their rows as lower levels, make runs of leaves."""
        self._set_position(start_ms)
        self._next_slot_known = False
        for level in range(self._top, 0, -1):
            slot = slot_of(start_ms, level, self._slot_bits)
            row = self._wheel[level]
            if not row.occupied >> slot & 1:
                continue
            content = row.take(slot)
            if isinstance(content, Row):
                self._adopt(content, level - 1)
            elif content is not None:
                self._start_run(content, level)

    def _open_millisecond(self, start_ms: int) -> None:
        """Enter a slot of level 0: make a run of its leaves."""
        self._set_position(start_ms)
        content = self._wheel[0].take(start_ms & self._slot_mask)
        assert isinstance(content, Leaf)
        self._start_run(content, 0)

    def _adopt(self, row: Row, level: int) -> None:
        """Put a row in the place of a level, whose own row is empty and belongs to the past."""
        if self._wheel[level].origin:
            self._forget(self._wheel[level].origin)
        self._wheel[level] = row

    # ---------------------------------------------------------------- runs

    def _start_run(self, leaf: Leaf, level: int) -> None:
        # A run takes no more timers.
        if level * self._slot_bits == self._near_shift:
            self._near.pop(self._at >> self._near_shift, None)
        rest: list[Leaf] = []
        while leaf.older is not None:
            rest.append(leaf)
            older, leaf.older = leaf.older, None
            leaf = older
        self._set_aside(leaf)
        run = LeafRun(level, (1 << level * self._slot_bits) - 1, leaf, rest)
        if run.order or self._turn_over(run):
            self._runs.append(run)

    def _turn_over(self, run: LeafRun) -> bool:
        """Go on to the next leaf of a run that has timers; False if there is none."""
        while True:
            self._forget(run.leaf.number)
            run.leaf.run = None  # no circle: what is drained goes at once, not with the next collection
            if not run.rest:
                return False
            leaf = run.rest.pop()
            self._set_aside(leaf)
            run.begin(leaf)
            if run.order:
                return True

    # ---------------------------------------------------------------- cancelled timers

    def _find(self, handle: int) -> tuple[Leaf, int] | None:
        """Return where a live timer stands: the leaf and the index in its columns. Late timers are not found."""
        while True:
            number = handle >> POSITION_BITS
            leaf = self._leaves.get(number)
            if leaf is not None:
                index = handle & POSITION_MASK
                if index >= len(leaf.items) or (index < len(leaf) and leaf[index]):
                    return None
                return leaf, index
            leaf = self._others.get(number)
            if leaf is None:
                return None
            index = leaf.index_of(handle)
            if index < 0 or leaf.is_gone(index):
                return None
            if not leaf.dealt:
                return None if leaf.has_fired(index) else (leaf, index)
            handle = leaf.items[index]

    def _cancel_slowly(self, handle: int) -> bool:
        """Do what `TimingWheel.cancel` does, for any handle."""
        leaf = self._others.get(handle >> POSITION_BITS)
        if leaf is not None and leaf.kept is not None and leaf.run is None and not leaf.dealt:
            # Only cleared: the common case once most of a leaf is cancelled.
            index = leaf.index_of(handle)
            if index < 0 or (index < len(leaf) and leaf[index]):
                return False
        else:
            found = self._find(handle)
            if found is None:
                return handle in self._late_items and self._cancel_late(handle)
            leaf, index = found
        leaf.mark(index)
        self._live -= 1
        looked_at = not leaf.dead & CLEAR_MASK or (leaf.kept is not None and leaf.dead == len(leaf.items))
        if looked_at and leaf.run is None:
            self._clear(leaf)
        return True

    def _cancel_late(self, handle: int) -> bool:
        del self._late_items[handle]
        self._live -= 1
        if len(self._late) > 2 * len(self._late_items) + _LATE_GONE_ALLOWED:
            self._late = [key for key in self._late if (key & LATE_MASK) << POSITION_BITS in self._late_items]
            heapify(self._late)
        return True

    def _clear(self, leaf: Leaf) -> None:
        """Clear the cancelled timers of a leaf away, if they are most of it; called every few cancels."""
        count = len(leaf.items)
        if leaf.dead * 8 < count * 7 or (leaf.dead < count < _CLEAR_AT_LEAST):
            return
        if leaf.dead == count:
            due_ms = max(leaf.dues[0], self._at)
            row, slot = self._place_of(due_ms)
            if row.slots[slot] is leaf and leaf.older is None:
                row.take(slot)
                self._forget(leaf.number)
                if row.shift == self._near_shift:
                    self._near.pop(due_ms >> row.shift, None)
                self._next_slot_known = False
                return
        if (leaf.base & POSITION_MASK) + count < WORN_OUT:
            leaf.clear_away()
            self._set_aside(leaf)
