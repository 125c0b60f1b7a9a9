"""What stands in a slot of the wheel: nothing, a leaf, or a row of smaller slots.

A **leaf** holds timers in the order in which they were inserted, in two columns: due times and items. A leaf that is
full becomes a **row**: one level further down, with the leaf's timers dealt out to its slots. A slot of the lowest
level spans one millisecond, all its timers are equally due and there is nothing to deal: a full leaf there goes behind
a new one, as its ``older``.

A **run** is a leaf whose time has come: put in order once, then drained by index.

A handle says where its timer stands, ``(number of the leaf << 32) + position in the leaf``, so a timer needs no
column that leads back to its handle. Three things make a leaf tell more than that (`Leaf.index_of`):

* cancelled timers are cleared away: ``kept`` has the positions of those that stayed, in ascending order, and ``base``
  grows by what went, so that the next timer still gets the next position;
* the timers are dealt out to a row: ``items`` holds their new handles (``dealt``);
* the leaf is being drained: what is before the head of its ``run`` has fired.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, TypeAlias

__all__ = ["POSITION_BITS", "POSITION_MASK", "Leaf", "LeafRun", "Row", "Slot"]

POSITION_BITS = 32
POSITION_MASK = (1 << POSITION_BITS) - 1
WORN_OUT = 1 << (POSITION_BITS - 1)
"""A leaf that has given out so many positions is not cleared any more: it fills up, and new leaves take its place."""


class Row:
    """One turn of a level: its slots, and one integer whose bits say which of them are occupied.

    ``shift`` is the place of the level's digit in bits; ``origin`` the number of the leaf that was dealt out to the
    row, 0 if it was made empty.
    """

    __slots__ = ("occupied", "origin", "shift", "slots")

    def __init__(self, slot_count: int, shift: int) -> None:
        self.slots: list[Any] = [None] * slot_count  # each a Slot; Any spares the hot paths their casts
        self.occupied = 0
        self.shift = shift
        self.origin = 0

    def take(self, slot: int) -> Slot:
        """Empty a slot and return what stood there."""
        content: Slot = self.slots[slot]
        self.slots[slot] = None
        self.occupied &= ~(1 << slot)
        return content

    def place(self, slot: int, content: Leaf | Row) -> None:
        """Fill an empty slot."""
        self.slots[slot] = content
        self.occupied |= 1 << slot


class Leaf(bytearray):
    """Timers in the order in which they were inserted; the handle of the next one is ``base + len(items)``.

    As a bytearray it has a byte for each timer, not 0 if it was cancelled; it may be shorter than the columns. To
    cancel is to write there: the item itself, somewhere in memory, is not touched until the leaf is cleared or drained.
    (The leaf *is* the bytes, rather than having them: each object on the way to them is a cache miss, which made a
    quarter of the cost.)
    """

    __slots__ = ("base", "dead", "dealt", "dues", "items", "kept", "older", "run")

    def __init__(self, number: int) -> None:
        self.base = number << POSITION_BITS
        self.dues = array("Q")
        self.items: list[Any] = []
        self.dead = 0  # how many bytes are not 0
        self.older: Leaf | None = None
        self.kept: array[int] | None = None
        self.dealt = False
        self.run: LeafRun | None = None

    @property
    def number(self) -> int:
        """What the leaf is called in its handles."""
        return self.base >> POSITION_BITS

    def index_of(self, handle: int) -> int:
        """Return where the timer of a handle stands in the columns, or -1: it never was, or was cleared away."""
        index = handle - self.base
        kept = self.kept
        if kept is None or index >= len(kept):
            return index if 0 <= index < len(self.items) else -1
        position = handle & POSITION_MASK
        index = bisect_left(kept, position)
        return index if index < len(kept) and kept[index] == position else -1

    def is_gone(self, index: int) -> bool:
        """Say whether the timer was cancelled."""
        return index < len(self) and self[index] != 0

    def mark(self, index: int) -> None:
        """Note that the timer is cancelled."""
        if index >= len(self):
            self.extend(bytes(len(self.items) - len(self)))
        self[index] = 1
        self.dead += 1

    def has_fired(self, index: int) -> bool:
        """Say whether the timer was taken out already by the run."""
        run, dues = self.run, self.dues
        if run is None:
            return False
        if run.position == len(run.order):
            return True
        head = run.order[run.position]
        return (dues[index], index) < (dues[head], head)

    def live_indices(self) -> Sequence[int]:
        """Return where in the columns the timers are that were not cancelled."""
        count = len(self.items)
        if not self.dead:
            return range(count)
        live = [index for index, gone in enumerate(self) if not gone]
        live += range(len(self), count)
        return live

    def clear_away(self) -> None:
        """Let go of the cancelled timers; handles of the others stay good."""
        live, kept, dues, items = self.live_indices(), self.kept, self.dues, self.items
        shift = self.base & POSITION_MASK
        if kept is None:
            self.kept = array("I", live)
        else:
            known = len(kept)
            self.kept = array("I", [kept[index] if index < known else index + shift for index in live])
        self.base += len(items) - len(live)
        self.dues = array("Q", [dues[index] for index in live])
        self.items = [items[index] for index in live]
        del self[:]
        self.dead = 0


Slot: TypeAlias = "Leaf | Row | None"


class LeafRun:
    """A leaf in due order, drained up to ``position``; ``level`` is that of the slot it was in.

    ``rest`` has the leaves that come after it, the next one last: more timers of the same millisecond.
    """

    __slots__ = ("_span_mask", "dues", "leaf", "level", "order", "position", "rest")

    def __init__(self, level: int, span_mask: int, leaf: Leaf, rest: list[Leaf]) -> None:
        self.level = level
        self.rest = rest
        self._span_mask = span_mask
        self.leaf = leaf
        self.order: Sequence[int] = ()
        self.dues: Sequence[int] = ()
        self.position = 0
        self.begin(leaf)

    def begin(self, leaf: Leaf) -> None:
        """Put a leaf in order, to be drained next."""
        dues, order = leaf.dues, leaf.live_indices()
        if self.level and order:
            # The sort sees what differs within the slot: integers below 2**30 compare several times faster.
            mask = self._span_mask
            order = sorted(order, key=[due & mask for due in dues].__getitem__)  # stable: equals keep their order
            self.dues = [dues[index] for index in order]
        else:
            self.dues = [dues[0]] * len(order) if order else []
        leaf.dead = 0  # from here on those that are cancelled in the run
        leaf.run = self
        self.leaf, self.order, self.position = leaf, order, 0

    @property
    def head_ms(self) -> int:
        """The earliest due time that has not been drained."""
        return self.dues[self.position]

    def take(self, end: int) -> tuple[Sequence[int], list[Any]]:
        """Take out the timers up to index ``end``: due times and items of those that were not cancelled."""
        start, order, leaf = self.position, self.order, self.leaf
        self.position = end
        items = leaf.items
        if not leaf.dead:
            taken = items[start:end] if type(order) is range else [items[index] for index in order[start:end]]
            return self.dues[start:end], taken
        live = [at for at in range(start, end) if not leaf.is_gone(order[at])]
        return [self.dues[at] for at in live], [items[order[at]] for at in live]
