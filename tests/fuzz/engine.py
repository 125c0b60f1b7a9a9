"""Inputs by the million for one decoder: how they are made, run, judged and found again.

A `Target` is a function of bytes, valid inputs made by our own encoders, and the errors that it documents. An input is
one of these inputs after a few mutations. A finding is any other exception (an `AssertionError` is how a target says
that an invariant does not hold), more than `CPU_SECONDS_MAX` of processor time, or more memory than the input can
account for.

Inputs are numbered. A block of `BLOCK` of them begins from nothing but the target, the seed and its own number, so the
input of a finding is had again from (target, seed, number), and blocks can be run in any order by any process.

Guidance. Within a block, an input joins the pool that later ones are made of when it *ends somewhere new*: its
error was raised at a line where no error of this block was, or the target's answer was new. That costs nothing, so
every input is looked at. Besides, one input in `TRACE_EVERY` is run once more under `sys.settrace` and joins when it
reaches a line of the target's modules that is new to the block. So it is guided by outcomes and, on a sample, by lines;
not by branches or values, and what one block has learned the next one does not know.
"""

from __future__ import annotations

import functools
import gc
import resource
import signal
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

__all__ = ["BLOCK", "Finding", "Tally", "Target", "input_of", "run_block"]

BLOCK = 20_000
"""Inputs that begin from nothing together."""
TRACE_EVERY = 64
MEASURE_EVERY = 512
STRETCH_EVERY = 2_000
STRETCHED_BYTES = 64 << 10
LOOP_SECONDS_MAX = 0.1
"""Processor time of this thread that an input of a target with ``in_loop`` may take.

The network loop may be held for 20 ms; a target reads an input several times, and the machine is shared.
"""
INPUT_BYTES_MAX = 8_192
POOL_MAX = 400
CPU_SECONDS_MAX = 10
"""Processor time (not time: the machine may be busy) after which one input counts as hung."""
MEMORY_FREE = 4 << 20
"""Bytes that any input may take besides `Target.memory` for each of its bytes."""
RESIDENT_GROWTH_MAX = 256 << 20
"""Bytes by which the process may grow in one block."""

_NUMBERS = tuple(
    number & 0xFFFF_FFFF_FFFF_FFFF
    for number in (
        *(0, 1, 2, 7, 8, 16, 20, 48, 64, 127, 128, 255, 256, 511, 512, 1023, 4096, 0x7FFF, 0x8000, 0xFFFF, 0x10000),
        *(0xFFFFFF, 0x1000000, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 32, 1 << 40, 1 << 62),
        *((1 << 63) - 1, 1 << 63, -1, -2, -8, -512, -0x7FFFFFFF),
    )
)
_ANY = tuple(range(16))
_IN_PLACE = (0, 1, 2, 3, 4, 5, 11, 12)
"""Kinds of mutation (see `_mutated`) that leave the length as it is."""
_OUR_PACKAGES = ("broker", "broker_plugin", "remoting", "store")


@dataclass(frozen=True)
class Target:
    """One decoder or reader.

    ============  ==================================================================================================
    ``run``       reads one input; raises one of ``errors``, AssertionError when an invariant is broken, or answers
                  with something hashable and coarse: inputs with a new answer are worth keeping
    ``corpus``    makes the valid inputs, the same every time
    ``modules``   whose lines are counted
    ``words``     bytes that mean something to the decoder, to be put in anywhere
    ``repair``    makes the checksums (and what else is the same in every input) right again
    ``make``      makes an input from nothing, by the grammar
    ``memory``    bytes that one byte of input may take while it is read
    ``in_loop``   the network loop does this work: an input that takes longer than `LOOP_SECONDS_MAX` is a finding
    ``in_place``  an input has its places: nothing is put in or taken out
    ============  ==================================================================================================
    """

    name: str
    run: Callable[[bytes], Hashable]
    corpus: Callable[[], list[bytes]]
    errors: tuple[type[Exception], ...]
    modules: tuple[ModuleType, ...]
    words: tuple[bytes, ...] = ()
    repair: Callable[[bytes], bytes] | None = None
    make: Callable[[Random], bytes] | None = None
    memory: int = 400
    in_place: bool = False
    in_loop: bool = False


@dataclass
class Finding:
    """An input that a target did not take as documented."""

    target: str
    seed: int
    number: int
    problem: str
    data: bytes
    kind: str
    """Findings of one kind are told once."""

    def __str__(self) -> str:
        shown = self.data.hex() if len(self.data) <= 200 else f"{self.data[:200].hex()}… ({len(self.data)} bytes)"
        return (
            f"FOUND {self.target}: {self.problem}\n  input {shown}\n"
            f"  again: python -m tests.fuzz --target {self.target} --seed {self.seed} --number {self.number}"
        )


@dataclass
class Tally:
    """What some blocks of one target came to. ``lines`` were reached, of ``known`` in the functions entered."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    rejected: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    longest_s: float = 0.0
    longest_number: int = -1
    lines: set[tuple[str, int]] = field(default_factory=set)
    known: set[tuple[str, int]] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count another one in; findings of one kind are kept once."""
        self.inputs += other.inputs
        self.seconds += other.seconds
        self.rejected += other.rejected
        self.kept += other.kept
        if other.longest_s > self.longest_s:
            self.longest_s, self.longest_number = other.longest_s, other.longest_number
        self.lines |= other.lines
        self.known |= other.known
        kinds = {finding.kind for finding in self.findings}
        self.findings += [finding for finding in other.findings if finding.kind not in kinds]


class HangError(BaseException):
    """One input has taken too much processor time."""


# ------------------------------------------------------------------------------------------------ making inputs


def _mutated(rng: Random, data: bytes, pool: Sequence[bytes], words: Sequence[bytes], kinds: Sequence[int]) -> bytes:
    """Change an input in one to six places."""
    random = rng.random
    out = bytearray(data)
    for _ in range(1 + int(random() * random() * 6)):
        size = len(out)
        at = int(random() * (size + 1))
        kind = kinds[int(random() * len(kinds))]
        if kind == 0 and size:
            at = min(at, size - 1)
            out[at] ^= 1 << int(random() * 8)
        elif kind == 1 and size:
            out[min(at, size - 1)] = int(random() * 256)
        elif kind <= 4:  # an extreme number in a field, mostly where fields begin
            width = (1, 2, 4, 4, 8)[int(random() * 5)]
            if random() < 0.7:
                at -= at % width
            number = _NUMBERS[int(random() * len(_NUMBERS))] & (1 << 8 * width) - 1
            out[at : at + width] = number.to_bytes(width, "big" if random() < 0.5 else "little")
        elif kind == 5 and size:  # a field a little larger or smaller
            at = min(at, size - 1)
            out[at] = (out[at] + int(random() * 33) - 16) & 0xFF
        elif kind == 6:
            del out[at : at + 1 + int(random() * random() * 64)]
        elif kind == 7:
            del out[at:]
        elif kind == 8:
            part = out[at : at + 1 + int(random() * random() * 128)]
            out[at:at] = part * (1 + int(random() * random() * 6))
        elif kind == 9:
            other = pool[int(random() * len(pool))]
            begin = int(random() * (len(other) + 1))
            out[at:at] = other[begin : begin + 1 + int(random() * 64)]
        elif kind == 10:
            other = pool[int(random() * len(pool))]
            begin = at if random() < 0.5 else int(random() * (len(other) + 1))
            out[at:] = other[begin:]
        elif kind == 11:
            other = pool[int(random() * len(pool))]
            span = 1 + int(random() * 64)
            out[at : at + span] = other[at : at + span]
        elif kind == 12:
            span = 1 + int(random() * random() * 64)
            out[at : at + span] = (b"\0" if random() < 0.5 else b"\xff") * span
        elif kind == 13:
            out[at:at] = rng.randbytes(1 + int(random() * 8))
        elif words:
            word = words[int(random() * len(words))]
            out[at : at + (len(word) if random() < 0.5 else 0)] = word
    return bytes(out)


def _stretched(rng: Random, data: bytes) -> bytes:
    """Repeat a piece of an input until it is long: what costs more than its length shows here."""
    begin = rng.randrange(len(data) + 1)
    piece = data[begin : begin + 1 + rng.randrange(40)] or b"\0"
    return data[:begin] + piece * (rng.randrange(STRETCHED_BYTES) // len(piece)) + data[begin:]


class _Inputs:
    """The inputs of one block, one after the other."""

    def __init__(self, target: Target, seed: int, block: int) -> None:
        self._target = target
        self._rng = Random(f"{target.name} {seed} {block}")
        self.pool = target.corpus()
        self.bytes_max = max(INPUT_BYTES_MAX, *map(len, self.pool))

    def make(self) -> bytes:
        """The next input."""
        rng, target = self._rng, self._target
        random = rng.random
        data = self.pool[int(random() * len(self.pool))]
        if target.make is not None and random() < 0.25:
            data = target.make(rng)
            if random() < 0.5:
                return data
        data = _mutated(rng, data, self.pool, target.words, _IN_PLACE if target.in_place else _ANY)
        data = data[: self.bytes_max]
        if random() * STRETCH_EVERY < 1 and not target.in_place:
            data = _stretched(rng, data)
        if target.repair is not None and random() < 0.8:
            data = target.repair(data)
        return data

    def keep(self, data: bytes) -> bool:
        """Take an input into the pool, unless it is long or the pool is full."""
        if len(data) > self.bytes_max or len(self.pool) >= POOL_MAX:
            return False
        self.pool.append(data)
        return True


# ------------------------------------------------------------------------------------------------ running them


def run_block(target: Target, seed: int, block: int, count: int = BLOCK) -> Tally:
    """Run the first ``count`` inputs of a block."""
    return _Block(target, seed, block).run(count)


def input_of(target: Target, seed: int, number: int) -> bytes:
    """The input with this number, by running its block up to there."""
    block, place = divmod(number, BLOCK)
    run = _Block(target, seed, block)
    run.run(place)
    return run.inputs.make()


class _Block:
    def __init__(self, target: Target, seed: int, block: int) -> None:
        for cached in _caches():
            cached.cache_clear()  # or the lines that are reached would depend on what was run before
        self.target = target
        self.seed = seed
        self.first = block * BLOCK
        self.inputs = _Inputs(target, seed, block)
        self.tally = Tally(target.name)
        self._files = frozenset(str(module.__file__) for module in target.modules)
        self._outcomes: set[Hashable] = set()
        self._codes: set[CodeType] = set()
        self._number = -1
        self._hung = False

    def run(self, count: int) -> Tally:
        """Run so many inputs."""
        tally = self.tally
        begin = time.perf_counter()
        resident = _resident()
        restore = self._watch()
        try:
            for data in self.inputs.pool[:]:
                self._trace(data)
            for place in range(count):
                self._number = place
                tally.inputs += 1
                self._one(place, self.inputs.make())
                if self._hung:
                    break  # others of its kind would take as long
        finally:
            restore()
        grown = _resident() - resident
        if grown > RESIDENT_GROWTH_MAX:
            self._found(max(0, self._number), f"the process grew by {grown >> 20} MiB in one block", b"")
        tally.seconds += time.perf_counter() - begin
        for code in self._codes:
            tally.known |= {(code.co_filename, line) for *_, line in code.co_lines() if line is not None}
        return tally

    def _one(self, place: int, data: bytes) -> None:
        measured = place % MEASURE_EVERY == 0 or len(data) > self.inputs.bytes_max
        if measured:
            tracemalloc.start()
        begin = time.thread_time()
        outcome, problem = self._outcome(data)
        seconds = time.thread_time() - begin
        if measured:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            if peak > MEMORY_FREE + self.target.memory * len(data):
                problem = problem or f"{peak} bytes of memory for {len(data)} bytes of input"
        elif seconds > self.tally.longest_s:
            self.tally.longest_s, self.tally.longest_number = seconds, self.first + place
        if self.target.in_loop and seconds > LOOP_SECONDS_MAX and not problem:
            problem = self._held(data)
        if problem:
            self._found(place, problem, data)
        new = outcome not in self._outcomes
        if new:
            self._outcomes.add(outcome)
        if place % TRACE_EVERY == 0 and not problem:
            new = self._trace(data) or new
        if new and not problem and self.inputs.keep(data):
            self.tally.kept += 1

    def _held(self, data: bytes) -> str:
        """Measure an input that took long, three times; what is wrong if each of them did."""
        best = CPU_SECONDS_MAX * 1.0
        rejected = self.tally.rejected.copy()
        for _ in range(3):
            for cached in _caches():
                cached.cache_clear()
            begin = time.thread_time()
            self._outcome(data)
            best = min(best, time.thread_time() - begin)
        self.tally.rejected = rejected
        return f"holds the loop: {1000 * best:.0f} ms for {len(data)} bytes" if best > LOOP_SECONDS_MAX else ""

    def _outcome(self, data: bytes) -> tuple[Hashable, str]:
        """Where an input ended, and what is wrong with that."""
        try:
            return self.target.run(data), ""
        except self.target.errors as error:
            name = type(error).__name__
            self.tally.rejected[name] += 1
            return (name, _place(error.__traceback__)), ""
        except HangError:
            self._hung = True
            return None, f"hangs: more than {CPU_SECONDS_MAX} s of processor time"
        except Exception as error:
            code, line = _place(error.__traceback__)
            text = f"{type(error).__name__}: {error!s:.200}, raised in {code.co_qualname}, line {line}"
            return (type(error).__name__, code, line), text

    def _found(self, place: int, problem: str, data: bytes) -> None:
        name = self.target.name
        kind = problem.partition("raised in ")[2] or problem.lstrip("0123456789 ")[:20]
        found = Finding(name, self.seed, self.first + place, problem, data, kind)
        self.tally.add(Tally(name, findings=[found]))

    def _trace(self, data: bytes) -> bool:
        """Run an input under a tracer; whether it reached a new line."""
        lines: set[tuple[CodeType, int]] = set()
        files = self._files

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                lines.add((frame.f_code, frame.f_lineno))
            return line

        def call(frame: FrameType, _event: str, _: Any) -> Any:
            return line if frame.f_code.co_filename in files else None

        before = sys.gettrace()
        rejected = self.tally.rejected.copy()
        sys.settrace(call)
        try:
            self._outcome(data)
        finally:
            sys.settrace(before)
            self.tally.rejected = rejected
        reached = {(code.co_filename, number) for code, number in lines}
        new = not reached <= self.tally.lines
        if new:
            self.tally.lines |= reached
            self._codes |= {code for code, _ in lines}
        return new

    def _watch(self) -> Callable[[], None]:
        """Raise HangError in an input that goes on and on; answers what ends that."""
        seen = [-1, 0]

        def tick(_signal: int, _frame: FrameType | None) -> None:
            if seen[0] != self._number:
                seen[:] = [self._number, 0]
                return
            seen[1] += 1
            if seen[1] >= CPU_SECONDS_MAX:
                seen[1] = 0
                raise HangError

        before = signal.signal(signal.SIGVTALRM, tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, 1, 1)

        def restore() -> None:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)

        return restore


def _place(traceback: TracebackType | None) -> tuple[CodeType, int]:
    """Where an exception was raised: the innermost frame."""
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code, traceback.tb_lineno


def _resident() -> int:
    """Most bytes of memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@functools.cache
def _caches() -> list[Any]:
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # `gc.get_objects` leaves out what is frozen, as all modules are under pytest
    found = [
        each
        for each in gc.get_objects()
        if isinstance(each, functools._lru_cache_wrapper) and str(each.__module__).startswith(_OUR_PACKAGES)
    ]
    if frozen:
        gc.freeze()
    return found
