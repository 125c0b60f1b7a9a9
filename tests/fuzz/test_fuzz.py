"""A share of the long run for every target, and proof that whoever finds nothing would find something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from struct import unpack_from

import pytest

import remoting.messages.batch
from remoting.errors import MessageError
from remoting.messages import batch
from tests.fuzz import engine
from tests.fuzz.engine import BLOCK, Target, input_of, run_block
from tests.fuzz.targets import TARGETS, shares
from tests.fuzz.wire_targets import _batches
from tests.support.examples import TIMES

INPUTS = 300_000
"""For all targets together, with all examples; `./run soak` tries others for as long as it is told to."""
FEWEST = 500
"""Of a target, in a quick run."""
SEED = 20_250_801
SHARES = shares(TARGETS, INPUTS)
INPUTS_OF = {
    name: count if TIMES >= 1 else max(min(count, FEWEST), round(count * TIMES)) for name, count in SHARES.items()
}
"""How many this run tries of each target."""

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_is_a_surprise(name: str) -> None:
    target = TARGETS[name]
    count = INPUTS_OF[name]
    for block in range(-(-count // BLOCK)):
        tally = run_block(target, SEED, block, min(BLOCK, count - block * BLOCK))
        assert not tally.findings, "\n".join(map(str, tally.findings))
        assert tally.kept > 0, "no input of a block ended anywhere new"


@pytest.mark.parametrize("name", TARGETS)
def test_what_our_own_encoders_made_is_taken(name: str) -> None:
    """Else only the first check of a reader would ever be tried."""
    target = TARGETS[name]
    taken = 0
    for data in target.corpus():
        try:
            target.run(data)
        except target.errors:
            continue
        taken += 1
    assert taken


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.repair])
def test_a_repair_leaves_what_is_right_as_it_is(name: str) -> None:
    target = TARGETS[name]
    assert target.repair is not None
    kept = sum(target.run(target.repair(data)) == target.run(data) for data in target.corpus()[:1])
    assert kept == 1


def planted(run: Callable[[bytes], object]) -> Target:
    return Target("planted", run, _batches, (MessageError,), (remoting.messages.batch,))


def trusting_split(data: bytes) -> int:
    """A batch decoder as one writes it in a hurry: the length of a body is believed."""
    at = count = 0
    while at < len(data):
        (length,) = unpack_from(">i", data, at + 16)
        at += 20 + length
        at += 2 + int.from_bytes(data[at : at + 2], "big")
        count += 1
    return count


def endless_split(data: bytes) -> int:
    """One that goes back when a length is negative, and never comes out again."""
    at = 0
    while at < len(data) - 20:
        at = max(0, at + 22 + unpack_from(">i", data, at + 16)[0])
    return at


def careless_split(data: bytes) -> object:
    """One that forgets the properties of an element that is not the first."""
    found = batch.split_batch(data)
    assert all(properties for _, body, properties in found if body) or len(found) < 2, found
    return len(found)


@pytest.mark.parametrize(
    ("run", "words"),
    [(trusting_split, "error"), (endless_split, "hangs"), (careless_split, "AssertionError")],
)
def test_a_planted_bug_is_found(run: Callable[[bytes], object], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CPU_SECONDS_MAX", 1)
    target = planted(run)
    tally = run_block(target, 5, 3, 3_000)
    assert tally.findings, "3,000 inputs did not find it"
    assert any(words in finding.problem for finding in tally.findings), [str(found) for found in tally.findings]
    first = tally.findings[0]
    assert input_of(target, 5, first.number) == first.data, "the number does not give the input again"


def test_memory_beyond_the_input_is_found() -> None:
    def greedy(data: bytes) -> int:
        return len(bytes(min(int.from_bytes(data[16:20], "big"), 16 << 20)))

    tally = run_block(planted(greedy), 5, 0, 6_000)
    assert any("bytes of memory for" in finding.problem for finding in tally.findings)


def test_an_input_that_holds_the_loop_is_found() -> None:
    """What is quadratic in its length shows in an input that is long."""

    def quadratic(data: bytes) -> int:
        if len(data) > 16_384:
            return sum(data.count(data[at : at + 8]) for at in range(0, 65_536, 8))
        return 0

    tally = run_block(replace(planted(quadratic), in_loop=True), 5, 0, 6_000)
    assert any("holds the loop" in finding.problem for finding in tally.findings)


def test_a_block_is_one_story() -> None:
    """Whatever ran before it: the same inputs, the same ends."""
    target = TARGETS["sql92"]
    first = run_block(target, 1, 2, 300)
    run_block(TARGETS["json_bodies"], 1, 0, 50)
    second = run_block(target, 1, 2, 300)
    assert (first.rejected, first.kept, first.lines) == (second.rejected, second.kept, second.lines)
    assert input_of(target, 1, 2 * BLOCK + 299) == input_of(target, 1, 2 * BLOCK + 299)
