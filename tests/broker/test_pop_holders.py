"""Who holds a popped message stays its holder: beside cold reads, other queues, other groups and a change of mind."""

import pytest

from broker.pop.pop_reader import PopReader
from broker.pulling.cold_reads import ColdReads
from remoting.codes import RequestCode, ResponseCode
from store.disk.errors import StoreError
from tests.broker.pop_client import Popper
from tests.broker.test_pop_restart import Machine
from tests.simulation.faults import fails


@pytest.fixture
def machine():
    return Machine()


def in_order(machine, **fields):
    return machine.popper.pop(order="true", **fields)


def expire(machine, ms=1_000):
    machine.rig.pass_ms(ms)
    machine.revive()
    assert machine.pops.check() == []


@pytest.mark.pure  # a method of the reader's is replaced
class TestBesideAColdRead:
    """What the holder of messages popped in order does while another pop waits for the disk."""

    def pop_while(self, machine, monkeypatch, meanwhile, **fields):
        """Pop in order; ``meanwhile`` runs while the records are read from the disk."""
        read = PopReader.read

        async def slowly(reader, pop, need):
            meanwhile()
            return await read(reader, pop, need)

        machine.disk.cold = True
        monkeypatch.setattr(ColdReads, "hot", lambda *_: None)
        monkeypatch.setattr(PopReader, "read", slowly)
        got = Popper(machine.rig.client(50_100)).pop(order="true", **fields)
        monkeypatch.undo()
        machine.disk.cold = False
        assert machine.pops.check() == []
        return got

    def test_what_it_acknowledges_is_not_handed_out_again(self, machine, monkeypatch):
        machine.send(b"a", b"b", b"c")
        got = in_order(machine, maxMsgNums=2, invisibleTime=1_000)
        expire(machine)

        def acknowledge():
            assert machine.popper.ack(got[0]).remark is None

        again = self.pop_while(machine, monkeypatch, acknowledge)
        assert [one.body for one in again] == [b"b"]
        for one in again:
            assert machine.popper.ack(one).remark is None
        assert machine.committed() == 3
        assert [one.body for one in in_order(machine)] == [b"c"]

    def test_all_of_it(self, machine, monkeypatch):
        machine.send(b"a", b"b")
        (got,) = in_order(machine, maxMsgNums=1, invisibleTime=1_000)
        expire(machine)
        again = self.pop_while(machine, monkeypatch, lambda: machine.popper.ack(got))
        assert [one.body for one in again + in_order(machine)] == [b"b"]

    def test_what_it_holds_for_longer_has_one_holder(self, machine, monkeypatch):
        machine.send(b"a")
        (got,) = in_order(machine, invisibleTime=1_000)
        expire(machine)
        assert self.pop_while(machine, monkeypatch, lambda: machine.popper.change(got, 5_000)) == []
        assert machine.popper.ack(got).remark is None, "it is still the holder"
        assert machine.committed() == 2


@pytest.mark.pure  # a method of the reader's is replaced
def test_a_read_that_fails_keeps_only_its_queue(machine, monkeypatch):
    machine.send(b"a")
    (got,) = in_order(machine, invisibleTime=1_000)
    expire(machine)

    def broken(*_):
        raise StoreError("cannot read")

    monkeypatch.setattr(ColdReads, "hot", broken)
    assert [one.body for one in in_order(machine)] == [b"a"], "it is read as what is cold is"
    assert machine.popper.ack(got).remark is not None


class TestWithoutOrderNow:
    """A group that has popped in order pops without order."""

    def test_what_was_not_acknowledged_comes_when_its_time_is_over(self, machine):
        machine.send(b"a", b"b", b"c", b"d")
        got = in_order(machine, maxMsgNums=3, invisibleTime=1_000)
        machine.popper.ack(got[1])
        assert machine.bodies() == [], "it has a holder"
        expire(machine)
        again = machine.popper.pop(maxMsgNums=1)
        assert [one.body for one in again] == [b"a"]
        for _ in range(2):  # a reply has one stretch of each queue
            again += machine.popper.pop(invisibleTime=1_000)
        assert [one.body for one in again] == [b"a", b"c", b"d"]
        assert machine.popper.ack(got[0]).remark is not None, "the handle of before is worth nothing"
        machine.popper.ack(again[0])
        machine.popper.ack(again[2])
        assert machine.committed() == 3
        expire(machine)
        assert machine.bodies() == [b"c"], "from the retry topic"
        machine.revive()
        assert machine.committed() == 5

    def test_what_is_left_comes_in_order_only_when_nobody_holds_what_is_before_it(self, machine):
        machine.send(b"a", b"b")
        in_order(machine, invisibleTime=1_000)
        expire(machine)
        (a,) = machine.popper.pop(maxMsgNums=1)
        assert in_order(machine) == []
        assert machine.popper.ack(a).remark is None
        assert [one.body for one in in_order(machine)] == [b"b"]

    @pytest.mark.parametrize("keep", [None, 1.0])
    def test_a_kill_loses_and_repeats_nothing(self, machine, keep):
        machine.send(b"a", b"b")
        in_order(machine, invisibleTime=1_000)
        expire(machine)
        (a, _) = machine.popper.pop()
        machine.popper.ack(a)
        machine.rig.store.flusher.sync_all()
        machine.kill(keep)
        assert machine.pops.check() == []
        assert machine.bodies() == []
        expire(machine, 60_000)
        assert machine.bodies() == [b"b"]

    def test_a_waiting_pop_gets_it(self, machine):
        machine.send(b"a")
        in_order(machine, invisibleTime=1_000)
        client = machine.rig.client(50_100)
        client.submit(RequestCode.POP_MESSAGE, Popper(client).fields(pollTime=20_000))
        machine.rig.core.end_turn()
        assert client.take() == []
        expire(machine)
        expire(machine, 1)
        assert [reply.code for reply in client.take()] == [ResponseCode.SUCCESS]

    def test_a_pop_in_order_that_waits_goes_on_when_what_is_before_is_done_with(self, machine):
        machine.send(b"a", b"b")
        in_order(machine, invisibleTime=1_000)
        expire(machine)
        (a,) = machine.popper.pop(maxMsgNums=1)
        client = machine.rig.client(50_100)
        client.submit(RequestCode.POP_MESSAGE, Popper(client).fields(pollTime=20_000, order="true"))
        machine.rig.core.end_turn()
        assert client.take() == []
        assert machine.popper.ack(a).remark is None
        machine.rig.pass_ms(1)
        assert [reply.code for reply in client.take()] == [ResponseCode.SUCCESS]

    def test_a_notification_says_what_a_pop_would_get(self, machine):
        def told(order):
            fields = {"consumerGroup": "G", "topic": "T", "queueId": -1, "pollTime": 0, "bornTime": 0, "order": order}
            return machine.rig.client().ask(RequestCode.NOTIFICATION, fields).ext["hasMsg"]

        machine.send(b"a", b"b")
        in_order(machine, invisibleTime=1_000)
        assert (told("true"), told("false")) == ("false", "false")
        machine.send(b"c")
        assert (told("true"), told("false")) == ("false", "false"), "it is behind them"
        expire(machine)
        assert (told("true"), told("false")) == ("true", "true")
        (a,) = machine.popper.pop(maxMsgNums=1)
        assert (told("true"), told("false")) == ("false", "true")
        machine.popper.ack(a)
        assert (told("true"), told("false")) == ("true", "true")

    def test_retries_popped_in_order_by_their_own_name(self, machine):
        machine.send(b"a", b"b")
        machine.popper.pop(invisibleTime=1_000)
        expire(machine)
        retries = Popper(machine.rig.client(), topic="%RETRY%G_T")
        got = retries.pop(order="true", initMode=0)
        assert [one.body for one in got] == [b"a", b"b"]
        for one in got:
            assert machine.popper.ack(one, topic="%RETRY%G_T").remark is None
        assert retries.pop(order="true") == []


class TestHandles:
    """A handle is worth something for one message of one queue only."""

    @pytest.fixture
    def two(self, machine):
        """The first messages of two queues, popped at once: their handles differ only in the queue."""
        client = machine.rig.client()
        assert client.send("Two", body=b"0", d=2, e=0).code == client.send("Two", body=b"1", e=1).code == 0
        popper = Popper(machine.rig.client(), topic="Two")
        got = sorted(popper.pop(initMode=0), key=lambda one: one.queue_id)
        assert [one.handle.split(" ")[:6] for one in got[:1]] == [one.handle.split(" ")[:6] for one in got[1:]]
        return popper, got

    def test_another_queues(self, machine, two):
        popper, (zero, one) = two
        reply = popper.ack(zero, extraInfo=one.handle)
        assert (reply.code, "is not in flight" in (reply.remark or "")) == (ResponseCode.SUCCESS, True)
        assert popper.change(zero, 5, extraInfo=one.handle).code == ResponseCode.NO_MESSAGE
        assert machine.pops.in_flight.count == 2
        for popped in (zero, one):
            assert popper.ack(popped).remark is None

    def test_another_messages(self, machine):
        machine.send(b"a", b"b")
        a, b = machine.popper.pop()
        assert machine.popper.ack(a, extraInfo=b.handle).remark is not None
        assert machine.popper.change(a, 5, extraInfo=b.handle).code == ResponseCode.NO_MESSAGE
        assert machine.pops.in_flight.count == 2

    def test_one_that_does_not_say_them(self, machine):
        machine.send(b"a", b"b")
        a, b = machine.popper.pop()
        assert machine.popper.ack(a, extraInfo=" ".join(a.handle.split(" ")[:6])).remark is None
        assert machine.popper.ack(b, extraInfo=b.handle + " 4711").remark is None, "the proxy adds a ninth part"
        assert machine.pops.in_flight.count == 0

    @pytest.mark.parametrize("where", ["x 0", "0 x", "1_0 0", f"0 {1 << 63}"])
    def test_unreadable_ones(self, machine, where):
        machine.send(b"a")
        (a,) = machine.popper.pop()
        reply = machine.popper.ack(a, extraInfo=" ".join([*a.handle.split(" ")[:6], where]))
        assert (reply.code, "extraInfo" in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_groups_that_pop_in_turn_all_get_their_retries(machine):
    """Five groups in lockstep: one look of five asks the retries first, of each group."""
    client = machine.rig.client()
    poppers = [Popper(client, f"five{number}") for number in range(5)]
    for popper in poppers:
        client.heartbeat(f"{popper.group}-c", popper.group)
        popper.pop(initMode=0)
    machine.send(b"again")
    for popper in poppers:
        assert [one.body for one in popper.pop(invisibleTime=1_000)] == [b"again"]
    expire(machine)
    machine.send(*[b"%d" % number for number in range(40)])
    got = {popper.group: [] for popper in poppers}
    for _ in range(5):
        for popper in poppers:
            got[popper.group] += [one.body for one in popper.pop(maxMsgNums=1)]
    assert all(b"again" in bodies for bodies in got.values()), got


class TestWhatIsKept:
    """What is done with takes no memory, also above one message that is held for long."""

    def test_changes_of_one_message(self, machine):
        machine.send(b"a")
        (held,) = machine.popper.pop()
        for _ in range(2_000):
            held = machine.popper.changed(held, 60_000)
        (queue,) = [one for one in machine.pops.in_flight.queues() if one.topic == "T"]
        assert len(queue.heap) <= 128
        assert machine.popper.ack(held).remark is None
        assert machine.committed() == 2

    def test_messages_that_come_again_above_it(self, machine):
        machine.send(b"held")
        held = machine.popper.changed(*machine.popper.pop(), 7_200_000)
        for number in range(300):
            machine.send(b"%d" % number)
            (popped,) = machine.popper.pop(queueId=0)
            machine.popper.changed(popped, 1)
            expire(machine, 1)
            for again in machine.popper.pop():
                machine.popper.ack(again)
        assert all(len(queue.heap) <= 128 for queue in machine.pops.in_flight.queues())
        assert machine.committed() == 1
        assert machine.popper.ack(held).remark is None
        expire(machine)
        assert machine.committed() == 302


def test_nothing_is_changed_while_the_journal_cannot_be_written(machine):
    """Each change would keep its rows in memory, however long a disk stays full."""
    machine.send(b"a", b"b")
    a, b = machine.popper.pop()
    machine.disk.fault = fails("full", "timewheel/pop", [(0, 1_000)])
    assert machine.popper.ack(b).code == ResponseCode.SYSTEM_ERROR
    reply = machine.popper.change(a, 90_000)
    assert (reply.code, "not changed: " in reply.remark) == (ResponseCode.SYSTEM_ERROR, True)
    machine.disk.fault = None
    machine.pops.journal.commit()  # as the housekeeper does it
    assert machine.popper.change(a, 90_000).code == ResponseCode.SUCCESS, "its handle is worth what it was"
