"""A few thousand crash points of the simulation, and that a seed is one story and no other."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from store.message_store import MessageStore
from store.put.plugin_api import Put, PutBlock, PutResult, PutStatus
from tests.simulation.baton import Baton, Deadlock, SimLock, Task
from tests.simulation.crashes import replay_line, run_seed
from tests.simulation.fresh import FRESH_SEED
from tests.simulation.kinds import Violation
from tests.simulation.life import Life
from tests.simulation.rot import Rotten
from tests.simulation.world import World
from tests.support.examples import TIMES, examples

pytestmark = pytest.mark.pure

SEEDS = 5 * examples(8)
"""`./run soak` runs others for as long as it is told to."""
SHARE = 0.02
FRESH_SECONDS = min(30 * TIMES, 20)
"""Of each half one seed at least."""
FOUND_ROT = (236954144593, 700002231, 700003275, 700003630, 910000429)
"""A sweeper that stands still between its append and its count: what is in the log is pending to the limits. Rows of
delay keys that a killed process had not synced, a start that relied on them, and a power cut. Cancels of what cannot be
read, and a limit of its topic. A bit of a half message, and one of the properties of a message that is popped."""
FIXED_ROT = (*range(max(20, examples(40))), *FOUND_ROT, 651233583907)
"""The last one: a bit of the last written journal file, behind which a half-made one stood."""
FRESH_ROT = int(os.environ.get("TIMEWHEEL_ROT_SEEDS") or examples(20))


@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_crash_points(first: int) -> None:
    for seed in range(first, first + 5):
        tally = run_seed(seed, SHARE)
        assert not tally.findings, "\n".join(map(str, tally.findings))


@pytest.mark.parametrize("part", range(2))
def test_crash_points_of_fresh_seeds(part: int) -> None:
    """What was found by nobody yet may be found today."""
    begin = time.monotonic()
    first = seed = FRESH_SEED + part * 1_000_000
    while time.monotonic() < begin + FRESH_SECONDS / 2:
        tally = run_seed(seed, SHARE)
        assert not tally.findings, "\n".join(map(str, tally.findings))
        seed += 1
    print(f"fresh seeds {first} to {seed - 1}: nothing found")


def test_a_bit_that_flips_is_refused_told_or_harmless() -> None:
    outcomes = Counter[str]()
    for seed in [*FIXED_ROT, *range(FRESH_SEED, FRESH_SEED + FRESH_ROT)]:
        life = Rotten(seed, length=16, order=seed not in FOUND_ROT)  # those are stories of before
        try:
            life.run()
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
        finally:
            if life.world.baton is not None:
                life.world.bury()
        outcomes[life.outcome] += 1
    assert min(outcomes[outcome] for outcome in ("refused", "told", "harmless")) > 0, outcomes


def test_a_seed_is_one_story() -> None:
    told: list[list[str]] = []
    disks: list[dict[str, bytes]] = []
    for _ in range(2):
        lines: list[str] = []
        life = Life(11, say=lines.append)
        life.run()
        told.append(lines)
        disk = life.world.disk
        disks.append({str(path): bytes(inode.seen) for path, inode in disk._seen.items() if inode is not None})
    assert told[0] == told[1]
    assert disks[0] == disks[1]
    assert len(told[0]) > 30


def test_crash_points_do_not_change_the_story() -> None:
    plain, probed = Life(5), Life(5, lambda _world, _call: None)
    plain.run()
    probed.run()
    assert plain.world.calls == probed.world.calls
    seen: list[str] = []
    only = run_seed(5, only=100, say=seen.append)
    assert only.points == 1
    assert not only.findings
    assert any(line.startswith("--") for line in seen)


def test_a_finding_names_the_command_that_shows_it() -> None:
    assert replay_line(3, 17) == "python -m tests.simulation --seed 3 --crash 17"
    assert replay_line(3, None) == "python -m tests.simulation --seed 3"


def test_every_kind_of_thing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A story that never fails, never fills a segment, never spills would prove little."""
    put_batch = MessageStore.put_batch

    def counted(self: MessageStore, puts: Sequence[Put]) -> list[PutResult]:
        results = put_batch(self, puts)
        total["blocks"] += sum(
            isinstance(put, PutBlock) and len(put) > 1 and result.status is PutStatus.PUT_OK
            for put, result in zip(puts, results, strict=True)
        )
        return results

    monkeypatch.setattr(MessageStore, "put_batch", counted)
    kinds = ("acked", "refused", "unsure", "cancelled", "moved", "runs", "starts", "levels", "blocks")
    total = dict.fromkeys(kinds, 0)
    modes: set[bool] = set()
    for seed in range(30):
        life = Life(seed)
        runs: list[int] = []
        world: World = life.world
        world.call_seen = lambda world=world, runs=runs: (
            runs.append(world.plugin.spill.run_count) if world.core else None
        )
        life.run()
        sent = world.ledger.sent.values()
        for state in ("acked", "refused", "unsure"):
            total[state] += sum(message.state == state for message in sent)
        total["cancelled"] += sum(message.cancel == "done" for message in sent)
        total["moved"] += sum(0 not in message.dues for message in sent)
        total["levels"] += sum(message.kind == "level" and message.must for message in sent)
        total["runs"] += max(runs, default=0)
        total["starts"] += world.starts
        modes.add(world.shape.sync)
    assert modes == {True, False}
    assert min(total.values()) >= 10, total
    assert total["acked"] > 500


def test_a_baton_suspends_whoever_meets_a_lock() -> None:
    baton = Baton(lambda: False)
    lock, order = SimLock(baton), []

    def hold() -> None:
        with lock:
            order.append("held")
            baton._park(first)
            order.append("let go")

    def want() -> None:
        with lock:
            order.append("got")

    first, second = Task("first", hold), Task("second", want)
    baton.resume(first)
    baton.resume(second)
    assert order == ["held"]
    assert not second.ready
    with pytest.raises(Deadlock):
        lock.acquire()
    baton.resume(first)
    assert second.ready
    baton.resume(second)
    assert order == ["held", "let go", "got"]
    assert first.done
    assert second.done
    assert threading.current_thread() is threading.main_thread()


def _counting(world: World, runs: list[int]) -> Callable[[], None]:
    def look() -> None:
        if world.core is not None:
            runs.append(world.plugin.spill.run_count)

    return look
