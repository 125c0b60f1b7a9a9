"""One run of the benchmarks: its systems and settings. Starts systems and generators, and cleans up after them.

A workload goes through `Session.turns`: in each repeat all systems in turn (A B, B A), so that other work on the
machine affects all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from bench.fetching.cache import FetchError, MissingToolError
from bench.figures.results import Section, SystemNote
from bench.generator.arrivals import Arrivals
from bench.generator.intake import Reception
from bench.generator.load import Load, LoadResult
from bench.generator.popper import PopTask
from bench.peers.system import Running, Setup, System
from bench.running.machine import PageCache, disk_limits, memory_limits, socket_limits
from bench.running.warmth import MOST_SECONDS, TURN_SECONDS, Warmth, warm_up

__all__ = ["BenchError", "Catch", "Session", "answer", "end", "in_turn", "spawn"]

ROOT = Path(__file__).parent.parent
WARM_NUMBERS_A_TURN = 1 << 32


class BenchError(Exception):
    """A system or a generator failed. The text names it and shows the end of its output."""


@dataclasses.dataclass(slots=True)
class Session:
    """The state that all workloads of a run share. ``say`` gets one line about the present step."""

    folder: Path
    systems: list[System]
    quick: bool = False
    repeats: int = 5
    seconds: float = 30.0
    warm_up_seconds: float | None = None
    sustain_seconds: float = 600.0
    sustain_rate: int | None = None
    bodies: tuple[int, ...] = (1024,)
    generators: int = 1
    peers: list[str] = dataclasses.field(default_factory=list)
    counts: tuple[int, ...] = ()
    pending: tuple[Section, Section] | None = None
    say: Callable[[str], object] = lambda _line: None
    notes: dict[str, SystemNote] = dataclasses.field(default_factory=dict)
    limits: dict[str, float] = dataclasses.field(default_factory=dict)
    page_cache: PageCache | None = None
    shards: tuple[int, ...] = ()
    pure: bool = False
    brokers: int = 1

    def measure_limits(self) -> None:
        """Measure the bare socket, the bare disk and bare memory, once a run."""
        self.say("bare socket, bare disk, bare memory")
        self.limits = {**socket_limits(), **disk_limits(self.folder), **memory_limits()}

    def available(self, wanted: Sequence[System]) -> list[System]:
        """Return the systems that are available, fetching what is missing. The others are noted with the reason."""
        found = []
        for system in wanted:
            if system.name not in self.notes:
                self.say(f"{system.title}: looking for it")
                note = SystemNote(system.name, system.title)
                try:
                    system.need()
                    note.version = system.version()
                except (MissingToolError, FetchError, OSError) as error:
                    note.left_out = " ".join(str(error).split())[:300]
                self.notes[system.name] = note
            if not self.notes[system.name].left_out:
                found.append(system)
        return found

    def turns(self, systems: Sequence[System], what: str) -> Iterator[tuple[int, System]]:
        """Go through the systems in turn (`in_turn`), again for each repeat."""
        for repeat in range(self.repeats):
            for system in in_turn(systems, repeat):
                self.say(f"{what}: {system.title} ({repeat + 1} of {self.repeats})")
                yield repeat, system

    @contextlib.contextmanager
    def running(self, system: System, setup: Setup | None = None, start: bool = True) -> Iterator[Running]:
        """Start a system with an empty store of its own. At the end, kill it and remove its store in any case.

        Raises BenchError if it cannot be started.
        """
        if self.page_cache is not None:
            self.page_cache.fill()
        place = Path(tempfile.mkdtemp(prefix=f"{system.name}-", dir=self.folder))
        running = system.make(place, setup or Setup(quick=self.quick))
        self.brokers = system.shards
        try:
            if start:
                running.start()
            self.notes[system.name].configuration = dict(running.configuration)
            yield running
        except AssertionError as error:
            raise BenchError(f"{system.title}: {error}") from error
        finally:
            running.kill()
            running.close()
            shutil.rmtree(place, ignore_errors=True)

    def generate(self, load: Load) -> LoadResult:
        """Run a load in a generator process (or in several that share it) and wait for its result."""
        with self.generating(load) as wait:
            return wait()

    def warm(self, system: System, load: Load, section: Section) -> Warmth:
        """Warm a system up with this load, until its rate no longer rises; the section gets a note of it."""
        numbers = iter(range(load.first_number, 1 << 62, WARM_NUMBERS_A_TURN))

        def once(seconds: float) -> float:
            part = dataclasses.replace(load, seconds=seconds, first_number=next(numbers))
            return self.generate(part).per_second

        return self.warm_by(system, once, section)

    def warm_by(self, system: System, turn: Callable[[float], float], section: Section) -> Warmth:
        """Warm a system up by turns of anything that answers with its rate; the section gets a note of it.

        ``warm_up_seconds`` of the session takes the place of the system's own, with no more turns than that; a quick
        run warms for a second and a half.
        """
        if self.quick:
            least, most, length = 1.5, 1.5, 1.5
        elif self.warm_up_seconds is not None:
            least = most = self.warm_up_seconds
            length = min(TURN_SECONDS, least)
        else:
            least, most, length = system.warm_up_seconds, MOST_SECONDS, TURN_SECONDS
        warmth = warm_up(turn, least, most, length)
        if not self.quick:
            section.note(f"{system.title}: {warmth.text()}")
        return warmth

    @contextlib.contextmanager
    def generating(self, load: Load) -> Iterator[Callable[[], LoadResult]]:
        """Run a load beside other things: yields a function that waits for the result."""
        load = dataclasses.replace(load, brokers=self.brokers)
        count = min(self.generators, load.connections)
        children = [spawn("bench.generator", dataclasses.asdict(part)) for part in shares(load, count)]
        try:
            yield lambda: merged([LoadResult.of(answer(child)) for child in children])
        finally:
            for child in children:
                end(child)

    def accepted_numbers(self) -> set[int]:
        """Read, once, which messages of a tolerant load were acknowledged."""
        numbers: set[int] = set()
        for path in self.folder.glob("accepted*.npy"):
            numbers.update(np.load(path).tolist())
            path.unlink()
        return numbers

    def receiving(
        self, system: System, running: Running, topic: str, queues: int, reconnect: bool = False
    ) -> AbstractContextManager[Catch]:
        """Receive a topic in a process beside other things."""
        task = Reception(running.port, system.protocol, topic, queues, "", reconnect=reconnect, brokers=self.brokers)
        return self.catching("bench.generator.receiver", task)

    @contextlib.contextmanager
    def catching(self, module: str, task: Reception | PopTask) -> Iterator[Catch]:
        """Let a process record what it receives, beside other things. Its task gets the path of the rows."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            path = Path(place) / "rows.npy"
            child = spawn(module, dataclasses.asdict(dataclasses.replace(task, store_path=str(path))))
            try:
                assert child.stdout is not None
                if not child.stdout.readline():
                    answer(child)
                yield Catch(child, path)
            finally:
                end(child)


@dataclasses.dataclass(slots=True)
class Catch:
    """A receiver in a process of its own."""

    child: subprocess.Popen[str]
    path: Path

    def wait(self, expect: int, until_ms: float, quiet_ms: float = 0.0) -> Arrivals:
        """Wait for this number of messages, or until this epoch millisecond; return all deliveries.

        The wait goes on beyond it until nothing has come for ``quiet_ms``: what comes late is late, not lost.
        """
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps({"expect": expect, "until_ms": until_ms, "quiet_ms": quiet_ms}) + "\n")
        self.child.stdin.flush()
        answer(self.child)
        return Arrivals(np.load(self.path))


def in_turn(systems: Sequence[System], turn: int) -> list[System]:
    """Return the systems in the order of this turn. Each turn begins with the next of them.

    The first one of a turn has often worse figures than the same system in second place.

    >>> in_turn(["ours", "theirs"], 1)
    ['theirs', 'ours']
    """
    first = turn % max(1, len(systems))
    return [*systems[first:], *systems[:first]]


def shares(load: Load, count: int) -> list[Load]:
    """Divide a load among this number of processes."""
    parts = []
    for at in range(count):
        connections = load.connections // count + (at < load.connections % count)
        parts.append(
            dataclasses.replace(
                load,
                connections=connections,
                rate=load.rate / count,
                count=load.count // count,
                first_number=load.first_number + at * 1_000_000_000,
                seed=load.seed + at,
            )
        )
    return parts


def merged(results: list[LoadResult]) -> LoadResult:
    """Put the results of several processes together; percentiles are those of the slowest."""
    first = results[0]
    if len(results) == 1:
        return first
    return LoadResult(
        sent=sum(r.sent for r in results),
        accepted=sum(r.accepted for r in results),
        refused=sum(r.refused for r in results),
        seconds=max(r.seconds for r in results),
        per_second=round(sum(r.per_second for r in results), 1),
        generator_cpu=max(r.generator_cpu for r in results),
        waited=min(r.waited for r in results),
        reply_p50_us=max(r.reply_p50_us for r in results),
        reply_p99_us=max(r.reply_p99_us for r in results),
        behind_ms=max(r.behind_ms for r in results),
        broken=any(r.broken for r in results),
        first_accepted_ms=min(r.first_accepted_ms for r in results),
        refusal=next((r.refusal for r in results if r.refusal), ""),
    )


def spawn(module: str, question: dict[str, Any]) -> subprocess.Popen[str]:
    """Start one of our measuring processes and hand it its task."""
    child = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(question) + "\n")
    child.stdin.flush()
    return child


def answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a measuring process and read its result; BenchError if it failed."""
    out, errors = child.communicate()
    if child.returncode:
        tail = "\n".join(errors.strip().splitlines()[-3:])
        raise BenchError(f"a measuring process ended with status {child.returncode}: {tail}")
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def end(child: subprocess.Popen[str]) -> None:
    """Make sure that a measuring process is gone."""
    if child.poll() is None:
        child.kill()
        child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()
