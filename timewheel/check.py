"""Every rule of the wheel's structure, checked against the whole of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from timewheel.levels import level_of, slot_of
from timewheel.slots import POSITION_BITS, Leaf, LeafRun, Row

if TYPE_CHECKING:
    from timewheel.wheel import TimingWheel

__all__ = ["problems_of"]

_LATE_MASK = (1 << 64) - 1


def problems_of(wheel: TimingWheel) -> list[str]:
    """Return one sentence for each broken rule; empty when all hold."""
    problems: list[str] = []
    held: list[Leaf] = []
    live = len(wheel._late_items)
    for leaf, problem in _leaves(wheel):
        if problem:
            problems.append(problem)
        if leaf is not None:
            held.append(leaf)
            live += _live_in(leaf)
    if live != len(wheel):
        problems.append(f"{live} live timers are held, but the count is {len(wheel)}")
    known = wheel._leaves | wheel._others
    if len(known) != len(wheel._leaves) + len(wheel._others):
        problems.append("a leaf is registered twice")
    numbers = [leaf.number for leaf in held]
    if len(set(numbers)) != len(numbers):
        problems.append("a leaf is in two places")
    if any(known.get(leaf.number) is not leaf for leaf in held):
        problems.append("a leaf is not registered under its number")
    dealt = {number for number, leaf in known.items() if leaf.dealt}
    if known.keys() - dealt != set(numbers):
        problems.append("a leaf that is registered stands nowhere")
    if not dealt <= set(_origins(wheel)):
        problems.append("a leaf that was dealt out is kept without its row")
    for number, leaf in wheel._leaves.items():
        if leaf.kept is not None or leaf.dealt or leaf.run is not None:
            problems.append(f"leaf {number} should be set aside")
    if any(leaf.run or leaf.dealt or known.get(leaf.number) is not leaf for leaf in wheel._near.values()):
        problems.append("timers can be put into a leaf that is closed")
    late = {(key & _LATE_MASK) << POSITION_BITS for key in wheel._late}
    if not wheel._late_items.keys() <= late or len(late) != len(wheel._late):
        problems.append("the heap of late timers and their items differ")
    return problems


def _live_in(leaf: Leaf) -> int:
    return sum(not leaf.is_gone(index) and not leaf.has_fired(index) for index in range(len(leaf.items)))


def _origins(wheel: TimingWheel) -> Iterator[int]:
    waiting = [*wheel._wheel, *wheel._overflow.values()]
    while waiting:
        row = waiting.pop()
        yield row.origin
        waiting += [content for content in row.slots if isinstance(content, Row)]


def _leaves(wheel: TimingWheel) -> Iterator[tuple[Leaf | None, str]]:
    """Yield each leaf that is held, and what is wrong with its place."""
    at, bits, top = wheel._at, wheel._slot_bits, wheel._top
    for level, row in enumerate(wheel._wheel):
        for leaf, problem in _row(wheel, row, level):
            yield leaf, problem
            for due in leaf.dues if leaf is not None else ():
                ahead = (due >> wheel._top_shift) - (at >> wheel._top_shift)
                if due < at:
                    yield None, f"a timer due {due} is before the position {at}"
                elif level_of(due, at, bits, top + 1) != level or ahead >= wheel._slot_count:
                    yield None, f"a timer due {due} does not belong to level {level} at {at}"
    for turn, row in wheel._overflow.items():
        for leaf, problem in _row(wheel, row, top):
            yield leaf, problem
            for due in leaf.dues if leaf is not None else ():
                ahead = (due >> wheel._top_shift) - (at >> wheel._top_shift)
                if due >> (wheel._top_shift + bits) != turn or ahead < wheel._slot_count:
                    yield None, f"a timer due {due} does not belong to overflow bucket {turn}"
    if sorted(wheel._overflow_turns) != sorted(wheel._overflow):
        yield None, "the overflow heap and the overflow buckets differ"
    levels = [run.level for run in wheel._runs]
    if levels != sorted(set(levels), reverse=True):
        yield None, f"the levels of the runs are out of order: {levels}"
    for run in wheel._runs:
        yield from _run(wheel, run)


def _run(wheel: TimingWheel, run: LeafRun) -> Iterator[tuple[Leaf | None, str]]:
    rest = list(run.dues[run.position :])
    kept = [run.leaf.dues[index] for index in run.order[run.position :]]
    if not rest or rest != kept or rest != sorted(rest) or rest[0] < wheel._at or run.leaf.run is not run:
        yield None, f"the run of level {run.level} is broken"
    yield run.leaf, ""
    for leaf in run.rest:
        wrong = run.level or leaf.older is not None or set(leaf.dues) - set(run.leaf.dues)
        yield leaf, "a leaf waits in the wrong run" if wrong else _columns(leaf)


def _row(wheel: TimingWheel, row: Row, level: int) -> Iterator[tuple[Leaf | None, str]]:
    """Yield the leaves of a row and of what is below it."""
    if row.shift != level * wheel._slot_bits:
        yield None, f"a row of level {level} has shift {row.shift}"
    for slot, content in enumerate(row.slots):
        if (content is not None) != bool(row.occupied >> slot & 1):
            yield None, f"level {level}, slot {slot}: the occupied bit is wrong"
        if isinstance(content, Row):
            if not level:
                yield None, f"level {level}, slot {slot}: a row that should not be there"
            for leaf, problem in _row(wheel, content, level - 1):
                wrong = leaf is not None and any(slot_of(due, level, wheel._slot_bits) != slot for due in leaf.dues)
                yield leaf, f"leaf {leaf.number} is in the wrong slot" if leaf is not None and wrong else problem
        while isinstance(content, Leaf):
            wrong = any(slot_of(due, level, wheel._slot_bits) != slot for due in content.dues)
            near = wheel._near.get(content.dues[0] >> row.shift) if content.dues else None
            if near is not None and row.shift == wheel._near_shift and near is not row.slots[slot]:
                yield None, f"level {level}, slot {slot}: another leaf is said to be there"
            if len(content.items) > wheel._slot_limit or (level and content.older is not None):
                yield None, f"level {level}, slot {slot}: too many timers"
            yield content, f"leaf {content.number} is in slot {slot} of level {level}" if wrong else _columns(content)
            content = content.older


def _columns(leaf: Leaf) -> str:
    """Say what is wrong with a leaf that is not a run."""
    if len(leaf.dues) != len(leaf.items):
        return f"leaf {leaf.number}: the columns differ in length"
    if leaf.dead != len(leaf) - leaf.count(0) or len(leaf) > len(leaf.items):
        return f"leaf {leaf.number}: the count of cancelled timers is wrong"
    if leaf.run is not None or leaf.dealt:
        return f"leaf {leaf.number}: waits in a slot, though it was opened"
    return ""
