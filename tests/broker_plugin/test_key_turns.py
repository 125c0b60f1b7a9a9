"""Turns with several messages of one delay key, of which some are taken back, against a model of what each key names.

Between the look at a message and the end of its turn the message that has its key may be moved, cancelled or delivered.
A turn may fail at any write. Then the process is killed, or the power fails, and all of it must still be so. All the
while the limits count what is pending, whatever replaced what.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_plugin.aside import GateAside
from store.disk.errors import StoreError, StoreFullError
from store.put.pending_api import PendingOrder, PendingVerb, PendingVerdict
from store.put.plugin_api import Held, Unsettled
from tests.broker_plugin.test_delay_keys import by_key, message
from tests.broker_plugin.test_pending_desk import Desk
from tests.broker_plugin.test_pending_limits import check_counts
from tests.support import delay_world
from tests.support.examples import examples

V = PendingVerdict
KEYS = ("a", "b")
LIMITS = {"timewheelTopicPendingMax": "1000", "timewheelTopicPendingBytesMax": "1000000"}
between = st.sampled_from(["", "", "", "move", "cancel", "deliver"])
send = st.tuples(st.sampled_from(KEYS), st.sampled_from(["", "keep", "replace", "replace"]), st.booleans(), between)
turn = st.tuples(
    st.lists(send, min_size=1, max_size=4),
    st.integers(0, 12).map(lambda number: number if number < 6 else 0),
    st.sampled_from(["", "", "kill", "stop_and_start", "power_cut"]),
)


class _Key:
    """What a key names: a pending message, or what became of its last one."""

    def __init__(self) -> None:
        self.pending: tuple[bytes, int] | None = None
        self.past = V.UNKNOWN


class _World:
    def __init__(self) -> None:
        self.desk = Desk()
        self.keys = {key: _Key() for key in KEYS}
        self.expected: list[bytes] = []
        self.count = 0
        self.failed = False

    def verdict(self, key: str) -> tuple[PendingVerdict, bytes, int]:
        answer = self.desk.desk.get(by_key(key))
        return answer.verdict, answer.body, answer.due_ms if answer.verdict is V.DONE else 0

    def check(self) -> None:
        for name, key in self.keys.items():
            want = (key.past, b"", 0) if key.pending is None else (V.DONE, *key.pending)
            found = self.verdict(name)
            if key.past is V.UNKNOWN and found[0] is V.CANCELLED:
                found = want  # all that ever had the key was refused: after a start that is what is known
            if key.pending is None and found[0] is V.UNKNOWN and self.failed:
                found = want  # the row of a message whose frame could not be written names nothing
            assert found == want, name
        check_counts(self.desk)

    def run(self, ms: int) -> None:
        self.desk.world.run(ms)
        for key in self.keys.values():
            if key.pending is not None and key.pending[1] <= self.desk.now:
                self.expected.append(key.pending[0])
                key.pending, key.past = None, V.TOO_LATE

    def order(self, key: str, verb: PendingVerb, due_ms: int | None = None) -> None:
        done = self.desk.desk.change(PendingOrder(verb=verb, name=by_key(key), due_ms=due_ms), self.desk.now)
        assert done.verdict is V.DONE

    def change(self, name: str, what: str) -> None:
        key = self.keys[name]
        if key.pending is None:
            return
        if what == "move":
            self.count += 1
            key.pending = key.pending[0], self.desk.now + 60_000 + self.count
            self.order(name, PendingVerb.MOVE, key.pending[1])
        elif what == "cancel":
            self.order(name, PendingVerb.CANCEL)
            key.pending, key.past = None, V.CANCELLED
        elif what == "deliver":
            self.order(name, PendingVerb.NOW)
            key.pending = key.pending[0], self.desk.now
            self.run(20)

    def turn(self, sends: list[tuple[str, str, bool, str]], fails_at: int) -> None:
        desk, plugin = self.desk, self.desk.world.plugin
        held: list[tuple[str, bytes, int, Held, bool, bool]] = []
        fresh: set[str] = set()
        for key, mode, stays, _ in sends:
            self.count += 1
            body, due_ms = b"%d." % self.count * (1 + self.count % 7), desk.now + 90_000 + self.count
            pending = self.keys[key].pending
            answer = plugin.before_put(message(due_ms, key, body, mode, "T"), desk.now)
            assert isinstance(answer, Held) is (key not in fresh and (pending is None or mode != "")), answer
            if isinstance(answer, Held):
                if pending is None:
                    fresh.add(key)
                kept = pending is not None and mode == "keep"
                held.append((key, body, due_ms, answer, stays, kept))
        for key, _, _, what in sends:
            if key not in fresh:  # those of this turn are nobody's yet
                self.change(key, what)
        if fails_at:
            desk.world.disk.fail_at("pwrite", {fails_at}, StoreFullError("full"))
        failed = False
        with plugin.lock:
            try:
                plugin.commit_turn()
            except StoreError:
                failed = True
            desk.world.disk.fault = None
            if not failed:
                for _, _, _, answer, stays, _ in held:
                    if not stays:
                        plugin.take_back(answer)
        if not failed:
            for key, body, due_ms, _, stays, kept in held:
                if stays and not kept:
                    self.keys[key].pending = body, due_ms
        self.failed = self.failed or failed
        plugin.taken_back()
        desk.world.store.flusher.sync_all()


@patch.dict(delay_world.CONFIG, LIMITS)
@settings(max_examples=examples(25), deadline=None)
@given(st.lists(turn, min_size=1, max_size=6))
def test_what_a_key_names_is_what_its_senders_were_told(
    turns: list[tuple[list[tuple[str, str, bool, str]], int, str]],
) -> None:
    world = _World()
    for sends, fails_at, how in turns:
        world.turn(sends, fails_at)
        world.check()
        if how == "power_cut":
            world.desk.world.store.flusher.sync_all()
        if how:
            getattr(world.desk.world, how)()
            world.check()
    world.run(400_000)
    world.check()
    assert sorted(body for *_, body in world.desk.delivered().values()) == sorted(world.expected)
    assert world.desk.world.plugin.check() == []


@pytest.mark.parametrize("how", ["", "kill", "stop_and_start", "power_cut"])
@pytest.mark.parametrize("replaced", [1, 2])
def test_a_large_batch_that_is_refused_behind_its_turn_leaves_nothing_pending(how: str, replaced: int) -> None:
    """Two or three of its messages have one delay key, and each takes the place of the one before it."""
    desk = Desk()
    plugin = desk.world.plugin
    aside = GateAside(plugin.gate)
    aside.begin()
    plugin.before_put(message(desk.now + 500, "a", b"first", "", "T"), desk.now)
    for number in range(replaced):
        second = plugin.before_put(message(desk.now + 600 + number, "a", b"second", "replace", "T"), desk.now)
        assert isinstance(second, Unsettled)
        assert isinstance(second.settle(), Held)
    aside.take()
    aside.put_back()
    with plugin.lock:
        plugin.commit_turn()
        aside.take_back()
    ticket = plugin.taken_back()
    assert ticket is not None
    desk.world.store.flusher.sync_all()
    assert ticket.is_done()
    if how:
        getattr(desk.world, how)()
    assert desk.desk.figures().count == 0
    desk.world.run(2_000)
    assert desk.delivered() == {}
    assert desk.world.plugin.check() == []
