"""The delay plug-in as one state machine, against a model that is the table of legal moves.

Everything is tiny (a wheel of a few messages, a hand of four, batches of two), so that hot seconds, hand-overs and
crowded ranges happen in every run. The target fails at random, the clock is set both ways, the process crashes
and comes back. Whatever happens: nothing early, nothing twice, nothing lost, every answer definite.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker_plugin.failures import BACKOFF_MAX_MS
from broker_plugin.rules.properties import own_properties_of
from broker_plugin.rules.states import PENDING, Move, State, after, answer
from remoting.messages.message import record_fields
from store.put.plugin_api import CommandOutcome, PutRecord
from tests.support.delay_rig import Rig, body_of
from tests.support.examples import examples

delays = st.one_of(st.integers(1, 12), st.sampled_from([5, 5, 40, 900, 1000, 1001, 3000]))


class _Sent:
    """The model of one message."""

    def __init__(self, number: int, topic: str, queue_id: int, due_ms: int) -> None:
        self.number = number
        self.topic = topic
        self.queue_id = queue_id
        self.due_ms = due_ms
        self.version = 0
        self.state = State.OFFERED

    def take(self, *moves: Move) -> None:
        for move in moves:
            self.state = after(self.state, move)


class DelayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = self.make_rig()
        self.sent: dict[int, _Sent] = {}
        self.uncommitted: list[int] = []
        self.seen = 0
        self.order_holds = True
        self.last_of: dict[tuple[str, int, int], int] = {}

    def make_rig(self) -> Rig:
        return Rig(armed_max=8, hand_max=4, scan_max=3, batch_max=2)

    # ------------------------------------------------------------------------------------------------ sending

    @rule(delay_ms=delays, topic=st.sampled_from("TTU"), queue_id=st.integers(0, 1), count=st.integers(1, 6))
    def send(self, delay_ms: int, topic: str, queue_id: int, count: int) -> None:
        for _ in range(count):
            due_ms = self.rig.clock.now_ms + delay_ms
            number = len(self.sent) + 1
            offset = self.rig.send(b"%d" % number, at_ms=due_ms, topic=topic, queue_id=queue_id, commit=False)
            assert offset is not None
            assert offset not in self.sent
            self.sent[offset] = _Sent(number, topic, queue_id, due_ms)
            self.uncommitted.append(offset)

    @rule()
    def commit(self) -> None:
        self.rig.gate.commit_turn()
        for offset in self.uncommitted:
            self.sent[offset].take(Move.ACCEPT)
        self.uncommitted.clear()

    # ------------------------------------------------------------------------------------------------ running

    @rule(
        wait_ms=st.integers(-3, 20), count=st.integers(4, 30), spread=st.sampled_from([1, 1, 2, 5]), swept=st.booleans()
    )
    def send_many_and_run(self, wait_ms: int, count: int, spread: int, swept: bool) -> None:
        """A crowd due at nearly one time, and time until about then."""
        self.commit()
        for number in range(count):
            self.send(10 + number % spread, "TTU"[number % 3], 0, 1)
            if swept and number % 7 == 6:
                self.commit()
                self.rig.sweeper.step(self.rig.clock.now_ms)
        self.commit()
        self.pass_time(max(0, wait_ms))

    @rule()
    def sweep_once(self) -> None:
        self.rig.sweeper.step(self.rig.clock.now_ms)

    @rule()
    def recover_once(self) -> None:
        self.rig.recovery.step(self.rig.clock.now_ms)

    @rule(ms=st.integers(0, 60))
    def pass_time(self, ms: int) -> None:
        self.rig.run(self.rig.clock.now_ms + ms)

    @rule(ms=st.sampled_from([1, 10, 500, 1500, 5000]))
    def stand_still(self, ms: int) -> None:
        """Time passes, and nobody runs."""
        self.rig.clock.now_ms += ms

    @rule(ms=st.sampled_from([1, 5, 19, 20, 21, 100, 1500, 5000]))
    def set_clock_back(self, ms: int) -> None:
        self.rig.clock.now_ms -= ms
        self.order_holds = False

    @rule()
    def crash(self) -> None:
        for offset in self.uncommitted:
            del self.sent[offset]
        self.uncommitted.clear()
        self.rig.crash()

    # ------------------------------------------------------------------------------------------------ faults

    @rule()
    def store_refuses(self) -> None:
        self.rig.target.refuses = not self.rig.target.refuses

    @rule(room=st.one_of(st.none(), st.integers(0, 5)))
    def disk_has_room_for(self, room: int | None) -> None:
        self.rig.target.room = room

    @rule(topic=st.sampled_from("TU"), told=st.booleans())
    def topic_comes_or_goes(self, topic: str, told: bool) -> None:
        self.rig.target.missing ^= {topic}
        self.order_holds = False
        if told:
            self.rig.recovery.topics_changed()

    # ------------------------------------------------------------------------------------------------ commands

    def _any(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.sent)), label="offset")

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        offset = self._any(data)
        found = self.sent[offset]
        result = self.rig.commands.cancel(offset)
        assert result.outcome is answer(self._known(found))
        if result.outcome is CommandOutcome.DONE:
            found.take(Move.CANCEL)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), delay_ms=st.one_of(delays, st.integers(-5, 0)))
    def move(self, data: st.DataObject, delay_ms: int) -> None:
        offset = self._any(data)
        found = self.sent[offset]
        now = self.rig.clock.now_ms
        result = self.rig.commands.move(offset, now + delay_ms, now)
        assert result.outcome is answer(self._known(found))
        due_ms = max(now, now + delay_ms)
        if result.outcome is CommandOutcome.DONE and due_ms != found.due_ms:  # else it stays what it is
            found.take(Move.MOVE)
            found.state = State.ACCEPTED  # its next version
            found.version += 1
            found.due_ms = due_ms

    def _known(self, found: _Sent) -> State:
        return found.state

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def view(self, data: st.DataObject) -> None:
        offset = self._any(data)
        found = self.sent[offset]
        record = self.rig.commands.view(offset)
        assert (record is not None) == (found.state in PENDING)
        if record is not None:
            assert body_of(record) == b"%d" % found.number

    @rule()
    def list_all(self) -> None:
        rows = self.rig.commands.list_pending(None, 1000, self.rig.clock.now_ms)
        pending = sorted((s.due_ms, o, s.version) for o, s in self.sent.items() if s.state in PENDING)
        assert [(row.due_ms, row.offset, row.version) for row in rows] == pending

    # ------------------------------------------------------------------------------------------------ what must hold

    def _arrived(self, now: int, put: PutRecord) -> None:
        own = own_properties_of(record_fields(put.record)[2])
        assert own is not None
        offset, version, due_ms = own
        found = self.sent[offset]
        assert found.version == version, "an old version was delivered"
        assert found.due_ms == due_ms
        assert now >= due_ms, "early"
        found.take(Move.ARM, Move.CLAIM, Move.PUT_OK)  # raises if it was delivered or cancelled before
        assert body_of(put.record) == b"%d" % found.number
        if self.order_holds and not self.rig.stats.handed_over and not version:
            key = (found.topic, found.queue_id, due_ms)
            assert self.last_of.get(key, 0) < found.number, "out of order"
            self.last_of[key] = found.number

    @invariant()
    def arrivals_are_legal(self) -> None:
        log = self.rig.target.log
        for now, put in log[self.seen :]:
            self._arrived(now, put)
        self.seen = len(log)
        if self.rig.stats.handed_over:
            self.order_holds = False

    @invariant()
    def counts_agree(self) -> None:
        pending = sum(1 for found in self.sent.values() if found.state in PENDING)
        assert self.rig.spill.pending_count == pending
        assert self.rig.recovery.failed_count >= 0

    @invariant()
    def parts_are_well(self) -> None:
        self.rig.check()
        assert self.rig.sweeper.armed_count <= 8 + 4 + 3 + 8

    def teardown(self) -> None:
        rig = self.rig
        if self.uncommitted:
            self.commit()
        rig.target.refuses = False
        rig.target.room = None
        rig.target.missing.clear()
        rig.recovery.topics_changed()
        latest = max((found.due_ms for found in self.sent.values()), default=0)
        # A retry that came to nothing because the clock had been set back is counted until the next one.
        rig.run(max(rig.clock.now_ms, latest) + BACKOFF_MAX_MS + 2000)
        self.arrivals_are_legal()
        lost = {hex(offset): found.state for offset, found in self.sent.items() if found.state in PENDING}
        assert not lost
        assert rig.recovery.failed_count == 0
        assert rig.commands.list_pending(None, 10, rig.clock.now_ms) == []


DelayMachine.TestCase.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestDelayPlugin = DelayMachine.TestCase
