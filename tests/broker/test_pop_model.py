"""Popping against a model: never two holders before a time is over, none lost, none early, whatever is done.

The model knows of each message when its holder's time is over, by when the broker has promised that. Everything runs on
a broker without threads: the reviver and the flusher are steps of the machine.
"""

from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from remoting.codes import ResponseCode
from remoting.messages.message import decode_record
from tests.broker.core_rig import Rig
from tests.broker.pop_client import Popped, Popper
from tests.support.simdisk import SimDisk

QUEUES = 2
TIMES = st.sampled_from([1, 2, 10, 1_000, 60_000])


class PopMachine(RuleBasedStateMachine):
    """One group that pops a topic of two queues, and uses handles of now and of before."""

    handles = Bundle("handles")

    @initialize()
    def begin(self) -> None:
        self.disk = SimDisk()
        self.rig = Rig(Path("/store"), files=self.disk, popInflightMessageThreshold=50, mappedFileSizeCommitLog=200_000)
        self.rig.client().send("T", body=b"begin", d=QUEUES)
        self.popper = Popper(self.rig.client())
        self.until: dict[bytes, int] = {}  # message: when its holder's time is over
        self.handle: dict[bytes, str] = {}  # message: the handle that counts
        self.acked: set[bytes] = set()
        self.twice: set[bytes] = set()  # a crash came between a copy and the sync behind it (decision 29)
        self.done: set[bytes] = set()  # acknowledged before a crash: may come once more
        self.sent: set[bytes] = {b"begin"}
        self.number = 0

    @property
    def reviver(self):
        return self.rig.core.processors.pop.reviver

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 4))
    def send(self, queue_id: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            body = b"m%d" % self.number
            assert self.rig.client().send("T", body=body, e=queue_id).code == 0
            self.sent.add(body)

    @rule(target=handles, count=st.integers(1, 32), invisible_ms=TIMES, queue_id=st.integers(-1, QUEUES - 1))
    def pop(self, count: int, invisible_ms: int, queue_id: int) -> list[Popped]:
        got = self.popper.pop(maxMsgNums=count, invisibleTime=invisible_ms, queueId=queue_id)
        now_ms = self.rig.now_ms
        assert len(got) <= count
        for one in got:
            if one.body in self.twice:
                continue
            assert one.body not in self.acked, f"{one.body!r} was acknowledged"
            assert self.until.get(one.body, 0) <= now_ms, f"{one.body!r} has a holder"
            self.until[one.body] = now_ms + invisible_ms
            self.handle[one.body] = one.handle
        return got

    @rule(got=handles, which=st.integers(0, 31))
    def ack(self, got: list[Popped], which: int) -> None:
        if not got:
            return
        one = got[which % len(got)]
        reply = self.popper.ack(one)
        assert reply.code == 0
        if one.body in self.twice:
            self.done |= {one.body} if reply.remark is None else set()
            return
        valid = self.handle[one.body] == one.handle and one.body not in self.acked
        if reply.remark is None:
            assert valid, f"{one.body!r} was acknowledged by a handle that is worth nothing"
            self.acked.add(one.body)
        elif valid:
            assert self.until[one.body] <= self.rig.now_ms, f"{one.body!r} could not be acknowledged in its time"

    @rule(target=handles, got=handles, which=st.integers(0, 31), invisible_ms=st.sampled_from([0, 1, 10, 60_000]))
    def change(self, got: list[Popped], which: int, invisible_ms: int) -> list[Popped]:
        if not got:
            return []
        one = got[which % len(got)]
        if one.body in self.twice:
            return []
        valid = self.handle[one.body] == one.handle and one.body not in self.acked
        reply = self.popper.change(one, invisible_ms)
        if reply.code != 0:
            assert reply.code == ResponseCode.NO_MESSAGE
            assert not valid or self.until[one.body] <= self.rig.now_ms
            return []
        assert valid
        parts = one.handle.split(" ")
        parts[:4] = [str(one.offset), reply.ext["popTime"], reply.ext["invisibleTime"], reply.ext["reviveQid"]]
        changed = Popped(**{**one.__dict__, "handle": " ".join(parts)})
        assert changed.handle != one.handle
        self.until[one.body] = int(reply.ext["popTime"]) + int(reply.ext["invisibleTime"])
        self.handle[one.body] = changed.handle
        return [changed]

    @rule(ms=st.sampled_from([1, 5, 999, 1_000, 30_000]))
    def wait(self, ms: int) -> None:
        self.rig.pass_ms(ms)

    @rule()
    def revive(self) -> None:
        self.reviver.step(self.rig.now_ms)
        self.rig.core.end_turn()

    @rule()
    def sync(self) -> None:
        self.rig.store.flusher.sync_all()

    @precondition(lambda self: self.rig.core.offsets.table)
    @rule()
    def crash_and_start(self) -> None:
        """Everything that is not in a file is gone: what the offset does not pass may come once more."""
        store = self.rig.store
        for _, batch in self.reviver._unsynced:
            for offset in batch.offsets():
                entry = store.entry(batch.queue.topic, batch.queue.queue_id, offset)
                assert entry is not None
                record = store.read_record(*entry[:2])
                assert record is not None
                self.twice.add(decode_record(record).body)
        self.rig.close()
        now_ms = self.rig.now_ms
        self.rig = Rig(Path("/store"), files=self.disk, popInflightMessageThreshold=50, mappedFileSizeCommitLog=200_000)
        self.rig.now_ms = now_ms + 1  # a start takes its time: handles of before name nothing
        self.popper = Popper(self.rig.client())
        self.until.clear()
        self.handle = dict.fromkeys(self.handle, "")
        self.done |= self.acked
        self.acked.clear()

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "rig"):
            assert self.rig.core.processors.pop.in_flight.check() == []

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            try:
                self.drain()
            finally:
                self.rig.close()

    def drain(self) -> None:
        """Nothing is lost: what was not acknowledged comes, if one only waits."""
        for _ in range(6):
            self.rig.pass_ms(60_000)
            for _ in range(6):
                self.reviver.step(self.rig.now_ms)
                self.rig.store.flusher.sync_all()
            for one in self.popper.pop():
                assert one.body in self.twice or self.until.get(one.body, 0) <= self.rig.now_ms
                self.acked.add(one.body)
                assert self.popper.ack(one).remark is None
        lost = self.sent - self.acked - self.done
        assert not lost, f"lost: {sorted(lost)}"
        assert self.rig.core.processors.pop.in_flight.count == 0


TestPop = PopMachine.TestCase
TestPop.settings = settings(
    max_examples=8,
    stateful_step_count=25,
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
