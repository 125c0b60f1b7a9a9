"""Popping against a model: never two holders before a time is over, none lost, none early, whatever is done.

The model knows of each message when its holder's time is over, by when the broker has promised that, and what of it is
durable. A kill and a stop change nothing of what it knows. After a power cut only what was durable is sure. The clock
is set back, writes and syncs fail alone and in pairs, and each copy has its message's properties. Everything runs on a
broker without threads: the reviver, the flusher and the journal's chore are steps of the machine.
"""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from remoting.codes import ResponseCode
from remoting.messages.message import decode_record
from remoting.messages.properties import TW_POP, format_properties, get_property, parse_properties
from store.disk.errors import StoreError
from tests.broker.core_rig import Rig, properties
from tests.broker.pop_client import Popped, Popper
from tests.support.hostile import plain_properties
from tests.support.simdisk import SimDisk

QUEUES = 2
TIMES = st.sampled_from([1, 2, 10, 1_000, 60_000])
Known = tuple[int, str, bool]
"""When the holder's time is over, the handle that counts (`worth`), whether it is acknowledged."""
NEW: Known = (0, "", False)


def worth(one: Popped) -> str:
    """What its handle is known by: popped in order, a message keeps its pop time when its time is changed."""
    parts = one.handle.split(" ")
    return parts[1] if parts[3] == "999" else one.handle


class PopMachine(RuleBasedStateMachine):
    """One group that pops a topic of two queues, and uses handles of now and of before."""

    handles = Bundle("handles")

    @initialize()
    def begin(self) -> None:
        self.disk = SimDisk()
        self.open(0)
        self.rig.client().send("T", body=b"begin", d=QUEUES)
        self.rig.store.flusher.sync_all()
        self.popper = Popper(self.rig.client())
        self.known: dict[bytes, Known] = {b"begin": NEW}
        self.durable: dict[bytes, Known] = dict(self.known)
        self.loose: set[bytes] = set()  # a power cut has taken what is known of them
        self.gone: set[bytes] = set()  # a power cut may have taken them
        self.odd: dict[bytes, dict[str, str]] = {}
        self.number = 0

    def open(self, now_ms: int) -> None:
        self.rig = Rig(Path("/store"), files=self.disk, popInflightMessageThreshold=50, mappedFileSizeCommitLog=200_000)
        self.rig.now_ms = max(now_ms, self.rig.now_ms)
        self.pops = self.rig.core.processors.pop
        self.pops.journal.tail_bytes = 400
        self.pops.reviver.copier.block_min = 2
        self.popper = Popper(self.rig.client())

    @rule(queue_id=st.integers(0, QUEUES - 1), rng=st.randoms(use_true_random=False))
    def send_odd(self, queue_id: int, rng: Random) -> None:
        """A message whose properties every copy of it has to have."""
        self.number += 1
        body = b"m%d" % self.number
        odd = {name: value for name, value in plain_properties(rng).items() if "\0" not in name + value}
        if self.rig.client().send("T", format_properties(odd), body, e=queue_id).code == 0:
            self.known[body], self.odd[body] = NEW, odd

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 4))
    def send(self, queue_id: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            body = b"m%d" % self.number
            key = properties(UNIQ_KEY=self.number) if self.number % 3 else ""
            assert self.rig.client().send("T", key, body, e=queue_id).code == 0
            self.known[body] = NEW

    def got(self, one: Popped, until_ms: int) -> None:
        """A message was handed out."""
        if one.body in self.loose:
            return
        until, _, acked = self.known[one.body]
        assert not acked, f"{one.body!r} was acknowledged"
        assert until <= self.rig.now_ms, f"{one.body!r} has a holder"
        self.known[one.body] = until_ms, worth(one), False

    @rule(
        target=handles,
        count=st.integers(1, 32),
        invisible_ms=TIMES,
        queue_id=st.integers(-1, QUEUES - 1),
        order=st.sampled_from(["false", "false", "true"]),
    )
    def pop(self, count: int, invisible_ms: int, queue_id: int, order: str) -> list[Popped]:
        """Groups may change between popping in order and without."""
        got = self.popper.pop(maxMsgNums=count, invisibleTime=invisible_ms, queueId=queue_id, order=order)
        assert len(got) <= count
        for one in got:
            self.got(one, self.rig.now_ms + invisible_ms)
        return got

    @rule(got=handles, which=st.integers(0, 31))
    def ack(self, got: list[Popped], which: int) -> None:
        if not got:
            return
        one = got[which % len(got)]
        reply = self.popper.ack(one)
        if one.body in self.gone and reply.code == ResponseCode.NO_MESSAGE:
            return  # it is not there any more
        assert reply.code == 0
        if one.body in self.loose:
            return
        until, handle, acked = self.known[one.body]
        valid = handle == worth(one) and not acked
        if reply.remark is None:
            assert valid, f"{one.body!r} was acknowledged by a handle that is worth nothing"
            self.known[one.body] = until, handle, True
        elif valid:
            assert until <= self.rig.now_ms, f"{one.body!r} could not be acknowledged in its time"

    @rule(target=handles, got=handles, which=st.integers(0, 31), invisible_ms=st.sampled_from([0, 1, 10, 60_000]))
    def change(self, got: list[Popped], which: int, invisible_ms: int) -> list[Popped]:
        if not got or got[which % len(got)].body in self.loose:
            return []
        one = got[which % len(got)]
        until, handle, acked = self.known[one.body]
        valid = handle == worth(one) and not acked
        reply = self.popper.change(one, invisible_ms)
        if reply.code != 0:
            assert reply.code == ResponseCode.NO_MESSAGE
            assert not valid or until <= self.rig.now_ms
            return []
        assert valid
        parts = one.handle.split(" ")
        parts[:4] = [str(one.offset), reply.ext["popTime"], reply.ext["invisibleTime"], reply.ext["reviveQid"]]
        changed = Popped(**{**one.__dict__, "handle": " ".join(parts)})
        assert parts[3] == "999" or changed.handle != one.handle
        self.known[one.body] = int(reply.ext["popTime"]) + int(reply.ext["invisibleTime"]), worth(changed), False
        return [changed]

    @rule(ms=st.sampled_from([1, 5, 999, 1_000, 30_000]))
    def wait(self, ms: int) -> None:
        self.rig.pass_ms(ms)

    @rule()
    def revive(self) -> None:
        self.pops.reviver.step(self.rig.now_ms)
        self.rig.core.end_turn()

    @rule(
        calls=st.sets(st.integers(1, 4), min_size=1, max_size=3),
        operation=st.sampled_from(["pwrite", "pwrite", "sync"]),
        where=st.sampled_from(["commitlog", "pop", ""]),
        ms=st.sampled_from([0, 1, 1_000, 60_000]),
    )
    def revive_while_writes_fail(self, calls: set[int], operation: str, where: str, ms: int) -> None:
        self.rig.now_ms += ms
        self.disk.fail_at(operation, calls, self.disk.full(), where)
        for _ in range(3):
            for step in (self.pops.reviver.step, self.pops.journal.step):
                with suppress(StoreError):
                    step(self.rig.now_ms)
        self.rig.core.end_turn()
        self.disk.fault = None
        for _ in range(4):  # after a pause
            self.pops.journal.step(self.rig.now_ms + 1_000)

    @rule(ms=st.sampled_from([1, 10, 1_000, 70_000]))
    def set_clock_back(self, ms: int) -> None:
        """What was over stays over: its copy may be there."""
        for body, (until, handle, acked) in self.known.items():
            if until <= self.rig.now_ms:
                self.known[body] = 0, handle, acked
        self.rig.now_ms -= ms

    @rule()
    def sync(self) -> None:
        self.rig.store.flusher.sync_all()
        self.durable = dict(self.known)

    @rule(times=st.integers(1, 4))
    def write_journal(self, times: int) -> None:
        for _ in range(times):
            self.pops.journal.step(self.rig.now_ms)

    @rule()
    def save_offsets(self) -> None:
        self.rig.core.save_offsets()

    @rule()
    def stop_and_start(self) -> None:
        """Nothing of what is known changes, and all of it is durable."""
        self.rig.close()
        self.durable = dict(self.known)
        self.open(self.rig.now_ms)

    @rule(seed=st.integers(0, 1 << 20))
    def kill_and_start(self, seed: int) -> None:
        """Nothing of what is known changes."""
        self.disk = self.disk.crashed(Random(seed), None)
        self.open(self.rig.now_ms)

    @rule(seed=st.integers(0, 1 << 20), keep=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    def power_fails(self, seed: int, keep: float) -> None:
        """What is not durable may be so or not; what is durable, and has not changed since, is sure."""
        self.disk = self.disk.crashed(Random(seed), keep)
        self.open(self.rig.now_ms + 1)  # a machine takes longer to start than that: handles of before name nothing
        for body, known in self.known.items():
            before = self.durable.get(body)
            if before is None:
                self.gone.add(body)
            if before != known or (not known[2] and known[0] <= self.rig.now_ms):  # it may have come again since
                self.loose.add(body)
        self.durable = dict(self.known)

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "rig"):
            assert self.pops.check() == []

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            try:
                self.drain()
            finally:
                self.rig.close()

    def drain(self) -> None:
        """Nothing is lost: what was not acknowledged comes, if one only waits."""
        came: set[bytes] = set()
        for _ in range(8):
            self.rig.pass_ms(60_000)
            for _ in range(6):
                self.pops.reviver.step(self.rig.now_ms)
                self.rig.store.flusher.sync_all()
            while got := self.popper.pop():
                for one in got:
                    self.got(one, self.rig.now_ms + 60_000)
                    came.add(one.body)
                    assert self.popper.ack(one).remark is None
        lost = {body for body, known in self.known.items() if not known[2]} - came - self.loose - self.gone
        assert not lost, f"lost: {sorted(lost)}"
        assert self.pops.in_flight.count == 0
        self.each_comes_again_once()

    def each_comes_again_once(self) -> None:
        """Of one popping there is one copy, over any crash; a power cut may take what was popped, and give it again."""
        copies: Counter[tuple[bytes, str | None]] = Counter()
        for _, record in self.rig.store.scan(self.rig.store.commit_log.begin):
            stored = decode_record(record)
            assert self.odd.get(stored.body, {}).items() <= parse_properties(stored.properties).items()
            if stored.reconsume_times:
                copies[stored.body, get_property(stored.properties, TW_POP)] += 1
        twice = [key for key, count in copies.items() if count > 1 and key[0] not in self.loose]
        assert not twice, f"came again twice: {twice}"


TestPop = PopMachine.TestCase
TestPop.settings = settings(
    max_examples=10,
    stateful_step_count=30,
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
