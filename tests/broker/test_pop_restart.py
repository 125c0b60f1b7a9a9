"""What was popped, acknowledged and changed is so after a kill, and what becomes of a journal that does not fit."""

from pathlib import Path
from random import Random

import pytest

from broker.cli.check import check_store
from broker.config.broker_config import BrokerConfig
from remoting.codes import RequestCode, ResponseCode
from remoting.layout import FILE_HEADER_BYTES
from remoting.layout.table import LITTLE_INT
from remoting.messages.checksum import crc32
from remoting.messages.message import decode_record
from remoting.messages.properties import TW_POP, get_property
from store.disk.errors import StoreError, StoreFullError, SyncFailedError
from store.pop.journal import file_name
from tests.broker.core_rig import START_MS, Rig, properties
from tests.broker.pop_client import Popper
from tests.simulation.faults import fails, reads_fail
from tests.support.simdisk import SimDisk

ROOT = Path("/store")
PLACE = ROOT / "timewheel" / "pop"


class Machine:
    """A broker on a disk that outlives it."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.start()
        self.rig.client().heartbeat("c", "G")
        self.send(b"first")
        self.popper.ack(*self.popper.pop())

    def start(self, now_ms=START_MS):
        self.rig = Rig(ROOT, start_ms=now_ms, files=self.disk, mappedFileSizeCommitLog=50_000)
        self.rig.now_ms += 1  # pops go by a later time than the start
        self.pops = self.rig.core.processors.pop
        self.pops.reviver.copier.block_min = 2
        self.popper = Popper(self.rig.client())

    def send(self, *bodies):
        for body in bodies:
            assert self.rig.client().send("T", properties(UNIQ_KEY=body.decode()), body, d=1).code == 0

    def kill(self, keep=None):
        self.disk = self.disk.crashed(Random(1), keep)
        self.start(self.rig.now_ms)

    def stop(self):
        self.rig.close()

    def revive(self, sync=True):
        for _ in range(4):
            self.pops.reviver.step(self.rig.now_ms)
            if sync:
                self.rig.store.flusher.sync_all()
        self.rig.core.end_turn()

    def bodies(self, **fields):
        return [one.body for one in self.popper.pop(**fields)]

    def committed(self):
        return self.rig.core.offsets.get("G", "T", 0)


@pytest.fixture
def machine():
    return Machine()


@pytest.mark.parametrize("end", ["kill", "stop"])
class TestEndings:
    """The same for a kill as for a stop."""

    def end(self, machine, end):
        if end == "stop":
            machine.stop()
            machine.start(machine.rig.now_ms)
        else:
            machine.kill()
        assert machine.pops.check() == []

    def test_what_was_acknowledged_never_comes_again(self, machine, end):
        machine.send(b"a", b"b", b"c")
        got = machine.popper.pop(invisibleTime=1_000)
        machine.popper.ack(got[1])
        machine.popper.ack(got[2])
        self.end(machine, end)
        assert machine.bodies() == []
        machine.rig.pass_ms(1_000)
        machine.revive()
        assert machine.bodies() == [b"a"]

    def test_its_holder_keeps_a_message_and_acknowledges_it(self, machine, end):
        machine.send(b"a", b"b")
        a, b = machine.popper.pop(invisibleTime=1_000)
        self.end(machine, end)
        assert machine.bodies() == []
        assert machine.popper.ack(a).remark is None
        longer = machine.popper.changed(b, 60_000)
        machine.rig.pass_ms(1_000)
        machine.revive()
        assert machine.bodies() == []
        self.end(machine, end)
        assert machine.popper.ack(b).remark is not None
        assert machine.popper.ack(longer).remark is None
        assert machine.committed() == 3

    def test_in_order(self, machine, end):
        machine.send(b"a", b"b", b"c")
        a, b = machine.popper.pop(order="true", maxMsgNums=2, invisibleTime=1_000, attemptId="one")
        machine.popper.ack(a)
        self.end(machine, end)
        assert machine.bodies(order="true") == []
        assert machine.bodies(order="true", attemptId="one") == [b"b"]
        machine.rig.pass_ms(60_000)
        (again,) = machine.popper.pop(order="true", maxMsgNums=1)
        self.end(machine, end)
        assert machine.popper.ack(b).remark is not None
        assert machine.popper.ack(again).remark is None
        assert machine.bodies(order="true") == [b"c"]

    def test_a_copy_is_made_once(self, machine, end):
        machine.send(b"a", b"b")
        machine.popper.pop(invisibleTime=1_000)
        machine.rig.pass_ms(1_000)
        machine.pops.reviver.step(machine.rig.now_ms)  # the copies are in the log, and not synced
        assert machine.pops.in_flight.count == 2
        self.end(machine, end)
        assert machine.pops.in_flight.count == 0
        machine.rig.pass_ms(1_000)
        machine.revive()
        assert machine.rig.store.max_offset("%RETRY%G_T", 0) == 2
        assert sorted(machine.bodies()) == [b"a", b"b"]
        assert machine.committed() == 3

    def test_an_offset_that_was_set_counts(self, machine, end):
        machine.send(b"a", b"b")
        machine.popper.pop()
        reset = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", "queueId": 0, "offset": 1}
        assert machine.rig.client().ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == 0
        machine.rig.core.save_offsets()
        self.end(machine, end)
        assert machine.bodies() == [b"a", b"b"]

    def test_a_topic_that_is_made_again_begins_anew(self, machine, end):
        machine.send(b"a", b"b")
        machine.popper.pop()
        assert machine.rig.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        self.end(machine, end)
        machine.send(b"new")
        self.end(machine, end)
        assert machine.bodies() == [b"new"]


def test_a_power_cut_gives_again_and_takes_nothing(machine):
    machine.rig.store.flusher.sync_all()
    machine.send(b"a", b"b", b"c")
    machine.rig.store.flusher.sync_all()
    got = machine.popper.pop()
    machine.rig.store.flusher.sync_all()
    machine.popper.ack(got[0])
    machine.kill(0.0)
    assert machine.bodies() == []
    machine.rig.pass_ms(60_000)
    machine.revive()
    assert machine.bodies() == [b"a", b"b", b"c"]  # the acknowledgement was not half a second old


def test_a_handle_of_before_a_power_cut_names_no_message_of_after(machine):
    machine.rig.store.flusher.sync_all()
    machine.send(b"lost")
    (lost,) = machine.popper.pop()
    changed = machine.popper.changed(lost, 60_000)
    machine.kill(0.0)
    machine.rig.now_ms -= 1  # all this in one millisecond
    machine.send(b"other")
    (other,) = machine.popper.pop()
    assert (other.topic, other.queue_id, other.offset) == (lost.topic, lost.queue_id, lost.offset)
    other = machine.popper.changed(other, 1_000)
    machine.popper.ack(lost)
    machine.popper.ack(changed)
    assert machine.popper.ack(other).remark is None
    machine.rig.pass_ms(60_001)
    machine.revive()
    assert machine.bodies() == []


def test_the_offset_waits_for_the_copy_to_be_durable(machine):
    machine.rig.store.flusher.sync_all()
    machine.send(b"a")
    machine.rig.store.flusher.sync_all()
    machine.popper.pop(invisibleTime=1_000)
    machine.pops.journal.commit()
    machine.rig.pass_ms(1_000)
    machine.pops.reviver.step(machine.rig.now_ms)
    machine.pops.reviver.step(machine.rig.now_ms)
    assert machine.bodies() == [b"a"]
    machine.rig.core.end_turn()
    machine.pops.journal.sync()
    machine.rig.core.save_offsets()
    assert machine.committed() == 1
    machine.kill(0.0)  # takes the copy, which nobody has synced
    assert machine.rig.store.max_offset("%RETRY%G_T", 0) == 0
    machine.revive()
    assert machine.bodies() == [b"a"]


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_names_of_batches_are_never_given_again(machine, starts):
    machine.send(b"a")
    machine.popper.pop(invisibleTime=1)
    machine.rig.pass_ms(1)
    machine.revive()
    machine.popper.ack(*machine.popper.pop())
    known = machine.pops.in_flight.number
    for _ in range(starts):
        machine.stop()
        machine.start(machine.rig.now_ms)
    assert machine.pops.in_flight.number >= known, "the mark of a copy would be given to another one"


def test_no_copy_is_durable_before_its_pop_is(machine):
    machine.send(b"a")
    machine.rig.store.flusher.sync_all()
    machine.popper.pop(invisibleTime=1)  # its row in the journal is not half a second old
    machine.rig.pass_ms(1)
    machine.pops.reviver.step(machine.rig.now_ms)
    assert machine.rig.store.max_offset("%RETRY%G_T", 0) == 1
    machine.rig.store.commit_log.sync()
    machine.kill(0.0)
    machine.revive()
    assert machine.bodies() == [b"a"]


def test_what_the_journal_could_not_take_is_not_copied(machine):
    machine.send(b"a", b"b")
    machine.popper.pop(invisibleTime=1, maxMsgNums=1)
    machine.disk.fault = fails("any", "timewheel/pop", [(0, 1000)])
    machine.popper.ask(invisibleTime=1, maxMsgNums=1)
    machine.rig.pass_ms(1)
    machine.pops.reviver.step(machine.rig.now_ms)
    assert machine.rig.store.max_offset("%RETRY%G_T", 0) <= 1
    machine.kill()
    machine.rig.pass_ms(1)
    machine.revive()
    assert sorted(machine.bodies(maxMsgNums=32)) == [b"a", b"b"]


def test_a_start_that_cannot_read_who_had_the_store_fails(machine):
    machine.send(b"a", b"b")
    a, b = machine.popper.pop()
    machine.popper.ack(a)
    machine.disk = machine.disk.crashed(Random(1), None)
    machine.disk.read_fault = reads_fail("abort", 0, 1)
    with pytest.raises(StoreError, match="abort"):
        machine.start()
    machine.start()
    assert machine.bodies() == [], "as if another broker had had the store meanwhile"
    assert machine.popper.ack(b).remark is None


def test_of_what_the_power_has_taken_numbers_are_given_again(machine):
    machine.rig.store.flusher.sync_all()
    machine.send(b"a", b"b")
    got = machine.popper.pop()
    machine.popper.ack(got[1])
    machine.rig.core.end_turn()
    machine.pops.journal.sync()
    machine.kill(0.0)
    machine.send(b"other a", b"other b")
    assert machine.bodies() == [b"other a", b"other b"]


def test_a_mark_is_only_a_brokers(machine):
    machine.send(b"a")
    machine.popper.pop(invisibleTime=1_000)
    ((name, *_),) = next(iter(machine.pops.in_flight.queues())).rows()
    text = properties(**{TW_POP: f"{name:x}.1"})
    assert machine.rig.client().send("%RETRY%G_T", text, b"forged").code == 0
    machine.kill()
    machine.rig.pass_ms(1_000)
    machine.revive()
    assert sorted(machine.bodies()) == [b"a", b"forged"]
    marks = [get_property(decode_record(r).properties, TW_POP) for _, r in machine.rig.store.scan(0)]
    assert [mark for mark in marks if mark] == [f"{name:x}.1"]


class TestWrongJournals:
    """A journal that is damaged, or not of the last broker: all is offered again from the stored offset on."""

    def prepared(self, machine):
        machine.send(b"a", b"b", b"c")
        got = machine.popper.pop(maxMsgNums=3)
        machine.popper.ack(got[1])

    def test_damaged_after_a_stop(self, machine, caplog):
        self.prepared(machine)
        machine.stop()
        (name,) = machine.disk.listdir(PLACE)
        machine.disk._seen[PLACE / name].seen[-1] ^= 1
        machine.start()
        assert machine.bodies() == [b"a", b"b", b"c"]
        assert "what stands there is no whole frame" in caplog.text
        assert "is not used, groups continue at their stored offsets" in caplog.text
        assert machine.disk.listdir(PLACE) == [f"{name}.aside", file_name(2)]

    def test_missing(self, machine):
        self.prepared(machine)
        machine.stop()
        machine.disk.lose([PLACE])
        machine.start()
        assert machine.bodies() == [b"a", b"b", b"c"]

    @pytest.mark.parametrize("abort", [None, b"4711", b"timewheel 1700000000000"])
    def test_another_broker_had_the_store(self, machine, abort, caplog):
        self.prepared(machine)
        machine.rig.core.save_offsets()
        if abort is None:
            machine.stop()
            machine.start()
            machine.stop()
            journal = machine.disk.listdir(PLACE)
            kept = [bytes(machine.disk._seen[PLACE / name].seen) for name in journal]
            machine.start()
            machine.send(b"d")
            machine.stop()
            machine.disk.lose([PLACE / name for name in machine.disk.listdir(PLACE)])
            for name, data in zip(journal, kept, strict=True):
                machine.disk.replace_file(PLACE / name, data)
        else:
            machine.disk.replace_file(ROOT / "abort", abort)
            machine.disk = machine.disk.crashed(Random(1), None)
        machine.start()
        assert machine.bodies()[:3] == [b"a", b"b", b"c"]
        assert "is not used" in caplog.text

    def test_the_stored_offset_was_set_back(self, machine):
        self.prepared(machine)
        machine.stop()
        path = ROOT / "config" / "consumerOffset.json"
        text = machine.disk.read_file(path)
        assert b'"T@G":{0:1}' in text.replace(b" ", b"").replace(b'"0"', b"0")
        machine.disk.replace_file(path, text.replace(b"0:1", b"0:0").replace(b'"0":1', b'"0":0'))
        machine.start()
        assert machine.bodies() == [b"first", b"a", b"b", b"c"]

    def test_a_later_version_is_refused(self, machine):
        self.prepared(machine)
        machine.stop()
        (name,) = machine.disk.listdir(PLACE)
        head = machine.disk._seen[PLACE / name].seen
        head[:FILE_HEADER_BYTES] = _versioned(bytes(head[:FILE_HEADER_BYTES]), 2)
        with pytest.raises(Exception, match="it has format version 2, this program knows 1") as caught:
            machine.start()
        assert "timewheel check /store" in str(caught.value)


def _versioned(header: bytes, version: int) -> bytes:
    """A header of another version, with a checksum that is right."""
    head = header[:4] + version.to_bytes(4, "little") + header[8:-4]
    return head + LITTLE_INT.pack(crc32(head))


class TestFailingDisk:
    """Nobody is told what is not written."""

    def test_an_answer_says_so_and_the_next_one_makes_up_for_it(self, machine):
        machine.send(b"a", b"b")
        a, b = machine.popper.pop(invisibleTime=1_000)
        machine.disk.fail_at("pwrite", set(range(1, 9)), StoreFullError("no room for a test"), "timewheel/pop")
        reply = machine.popper.ack(a)
        assert (reply.code, "no room for a test" in reply.remark) == (ResponseCode.SYSTEM_ERROR, True)
        assert machine.popper.change(b, 5_000).code == ResponseCode.SYSTEM_ERROR
        machine.send(b"c")
        reply = machine.popper.ask()
        assert (reply.code, "no room for a test" in reply.remark) == (ResponseCode.SYSTEM_ERROR, True)
        machine.disk.fault = None
        assert machine.popper.ack(a).code == 0
        assert machine.bodies() == [b"c"]
        machine.kill()
        assert machine.pops.in_flight.count == 2

    def test_a_topic_is_not_made_again_over_what_is_not_durable(self, machine):
        machine.popper.pop()
        assert machine.rig.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        machine.disk.fail_at("sync", {1}, SyncFailedError("a test"), "timewheel/pop")
        assert machine.rig.client().send("T", "", b"x").code != 0
        machine.disk.fault = None
        for _ in range(3):
            machine.pops.journal.step(machine.rig.now_ms)
        assert machine.rig.client().send("T", "", b"x").code == 0
        assert machine.bodies() == [b"x"]


def test_a_check_knows_the_journal(tmp_path):
    rig = Rig(tmp_path)
    rig.client().send("T", "", b"a", d=1)
    rig.client().send("T", "", b"b", d=1)
    got = Popper(rig.client()).pop()
    Popper(rig.client()).ack(got[1])
    rig.close()
    config = BrokerConfig(tmp_path, {}, plugins=[])
    assert check_store(config).wrong == []
    (path,) = (tmp_path / "timewheel" / "pop").iterdir()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    wrong = check_store(config).wrong
    assert any(f"{path} at " in text for text in wrong)
    assert path.read_bytes() == bytes(data)


def test_a_start_that_fails_closes_nothing(machine, monkeypatch):
    """What a killed broker knew is there after a start that came to nothing in between."""
    machine.send(b"a", b"b")
    got = machine.popper.pop()
    machine.popper.ack(got[1])
    now_ms = machine.rig.now_ms
    machine.disk = machine.disk.crashed(Random(1), None)
    with monkeypatch.context() as patch:
        patch.setattr("broker.core.LevelScheduler.recover", lambda _: (_ for _ in ()).throw(StoreFullError("a test")))
        with pytest.raises(StoreFullError, match="a test"):
            Rig(ROOT, files=machine.disk, mappedFileSizeCommitLog=50_000)
    machine.start(now_ms)
    assert machine.pops.in_flight.count == 1
    assert machine.bodies() == []
