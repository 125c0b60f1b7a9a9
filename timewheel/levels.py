"""Slot arithmetic of the wheel: pure functions on integers, no state.

A due time is read as digits of ``slot_bits`` bits each, the lowest digit counting milliseconds::

    due_ms  =  d2 d1 d0        slot_bits = 3:  0o1750  ->  d3=1 d2=7 d1=5 d0=0

The **level** of a due time, seen from a position, is the place of the highest digit in which the two differ:
level 0 holds what is due in the position's own row of milliseconds, level 1 what is due in the same row of
rows, and so on. All due times of one slot of level k share their digits k and above, so they differ in their
low ``k * slot_bits`` bits only, and all of level k is due before anything of level k + 1.

Seen from position 0o1750 with three bits a digit:

==========  =====  ====  ==========================================================
due         level  slot  why
==========  =====  ====  ==========================================================
``0o1753``  0      3     differs in digit 0 only
``0o1761``  1      6     digit 1 is the highest that differs
``0o2000``  3      2     one row after 0o1777: near in time, yet digit 3 differs
==========  =====  ====  ==========================================================

The last line is why the top level is a ring (`ring_distance`): what lies less than one full turn ahead has a
slot there, however many digits differ.
"""

from __future__ import annotations

__all__ = [
    "level_of",
    "level_table",
    "lowest_bit",
    "ring_distance",
    "slot_of",
    "slot_start_ms",
]


def level_of(due_ms: int, at_ms: int, slot_bits: int, levels: int) -> int:
    """Return the level of a due time not before ``at_ms``: its highest differing digit, at most the top level.

    >>> [level_of(due, 0o1750, 3, 4) for due in (0o1750, 0o1753, 0o1761, 0o2000, 0o7654321)]
    [0, 0, 1, 3, 3]
    """
    differing_bits = (due_ms ^ at_ms).bit_length()
    if differing_bits == 0:
        return 0
    return min((differing_bits - 1) // slot_bits, levels - 1)


def level_table(slot_bits: int, levels: int) -> tuple[int, ...]:
    """Return `level_of` as a table over the number of differing bits, 0 to 63.

    >>> level_table(8, 5)[:18]
    (0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2)
    """
    return tuple(min(max(bits - 1, 0) // slot_bits, levels - 1) for bits in range(64))


def slot_of(due_ms: int, level: int, slot_bits: int) -> int:
    """Return the slot of a due time within its level: digit ``level``.

    >>> slot_of(0o1753, 1, 3)
    5
    """
    return (due_ms >> (level * slot_bits)) & ((1 << slot_bits) - 1)


def slot_start_ms(at_ms: int, level: int, slot: int, slot_bits: int) -> int:
    """Return the first millisecond of a slot that lies in the same turn of its level as ``at_ms``.

    >>> oct(slot_start_ms(0o1753, 1, 6, 3))
    '0o1760'
    """
    turn = at_ms >> ((level + 1) * slot_bits)
    return ((turn << slot_bits) + slot) << (level * slot_bits)


def lowest_bit(bits: int) -> int:
    """Return the place of the lowest bit that is set, or -1 if none is.

    >>> lowest_bit(0b101000), lowest_bit(0)
    (3, -1)
    """
    return (bits & -bits).bit_length() - 1


def ring_distance(bits: int, slot: int, slot_count: int) -> int:
    """Return how many slots ahead of ``slot`` the next set bit of a ring lies, or -1 if none is set.

    >>> ring_distance(0b00000010, 6, 8)
    3
    """
    return lowest_bit((bits >> slot) | (bits << (slot_count - slot)))
