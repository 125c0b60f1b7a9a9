"""Popping, on a broker without sockets and threads: who gets what, what comes again and when, what is refused."""

from base64 import b64encode

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.json_dialect import dumps
from remoting.messages.message import Message
from remoting.messages.properties import parse_properties
from store.put.plugin_api import put_record
from tests.broker.core_rig import Rig, properties, sound
from tests.broker.pop_client import Popper, popped_of

OK = ResponseCode.SUCCESS
HALF_A_DAY_MS = 12 * 3_600_000


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path, enablePropertyFilter="true")
    rig.now_ms += 1  # pops go by a later time than the start
    yield from sound(rig)


@pytest.fixture
def popper(rig):
    rig.client().send("T", body=b"first")
    rig.client().heartbeat("c", "G")
    popper = Popper(rig.client())
    (popped,) = popper.pop()
    popper.ack(popped)
    return popper


def send(rig, *bodies, tag="", **fields):
    for body in bodies:
        assert rig.client().send("T", properties(TAGS=tag) if tag else "", body, **fields).code == OK


def revive(rig):
    """What the reviver's thread does, until it has nothing to do now; the flusher's part in between."""
    reviver = rig.core.processors.pop.reviver
    for _ in range(100):
        wake_ms = reviver.step(rig.now_ms)
        rig.store.flusher.sync_all()
        if wake_ms is None or wake_ms > rig.now_ms:
            break
    reviver.step(rig.now_ms)
    rig.core.end_turn()


def pass_ms(rig, ms):
    rig.pass_ms(ms)
    revive(rig)
    assert rig.core.processors.pop.in_flight.check() == []


def committed(rig, queue_id=0, topic="T"):
    return rig.core.offsets.get("G", topic, queue_id)


def bodies(popped):
    return [one.body for one in popped]


class TestWhoGetsWhat:
    def test_a_message_belongs_to_one_holder(self, rig, popper):
        send(rig, b"a", b"b", b"c")
        first = popper.pop(maxMsgNums=2)
        second = popper.pop()
        assert bodies(first) == [b"a", b"b"]
        assert bodies(second) == [b"c"]
        assert popper.pop() == []

    def test_answers_that_leave_another_whole_answer_behind_are_counted(self, rig, popper):
        send(rig, b"a", b"b", b"c", b"d", b"e")
        before = rig.core.processors.owing()
        for owing in (1, 1, 1):  # 3 are left of 5, then 1, then none
            popper.pop(maxMsgNums=2)
            assert rig.core.processors.owing() - before == owing

    def test_all_queues_are_popped(self, rig, popper):
        for queue_id in range(4):
            send(rig, b"%d" % queue_id, e=queue_id)
        assert sorted(bodies(popper.pop())) == [b"0", b"1", b"2", b"3"]

    def test_one_queue_is_popped(self, rig, popper):
        for queue_id in range(4):
            send(rig, b"%d" % queue_id, e=queue_id)
        assert bodies(popper.pop(queueId=2)) == [b"2"]

    def test_groups_do_not_share(self, rig, popper):
        send(rig, b"a")
        assert bodies(popper.pop()) == [b"a"]
        assert bodies(Popper(rig.client(), "H").pop()) == [b"first", b"a"]

    def test_the_reply_has_apaches_fields(self, rig, popper):
        send(rig, b"a", b"b")
        reply = popper.ask()
        assert (reply.code, reply.remark) == (0, "FOUND")
        assert reply.ext.pop("reviveQid") in set("01234567")
        assert reply.ext == {
            "popTime": str(rig.now_ms), "invisibleTime": "60000", "restNum": "0",
            "startOffsetInfo": "0 0 1", "msgOffsetInfo": "0 0 1,2",
        }  # fmt: skip

    def test_the_rest_is_told(self, rig, popper):
        send(rig, b"a", b"b", b"c")
        assert popper.ask(maxMsgNums=1).ext["restNum"] == "2"

    def test_what_is_in_flight_of_a_queue_is_limited(self, tmp_path):
        rig = Rig(tmp_path, popInflightMessageThreshold=3)
        send(rig, *(b"%d" % number for number in range(5)))
        popper = Popper(rig.client())
        got = popper.pop()
        assert len(got) == 3
        assert popper.pop() == []
        popper.ack(got[0])
        assert bodies(popper.pop()) == [b"3"]
        rig.close()

    def test_a_group_that_begins_at_the_end_gets_what_a_young_queue_has(self, rig):
        send(rig, b"a", b"b")
        assert bodies(Popper(rig.client()).pop()) == [b"a", b"b"]

    def test_an_offset_that_was_reset_counts(self, rig, popper):
        send(rig, b"a", b"b")
        assert len(popper.pop()) == 2
        rig.core.offsets.reset("G", "T", {0: 1})
        assert bodies(popper.pop()) == [b"a", b"b"]
        assert rig.core.processors.pop.in_flight.check() == []


class TestFilters:
    def test_by_tag(self, rig, popper):
        send(rig, b"a", tag="x")
        send(rig, b"b", tag="y")
        send(rig, b"c", tag="x")
        got = popper.pop(expType="TAG", exp="x")
        assert bodies(got) == [b"a", b"c"]
        for one in got:
            popper.ack(one)
        assert committed(rig) == 4

    def test_by_property(self, rig, popper):
        rig.client().send("T", properties(size="5"), b"small")
        rig.client().send("T", properties(size="50"), b"large")
        assert bodies(popper.pop(expType="SQL92", exp="size > 10")) == [b"large"]

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"expType": "SQL92", "exp": "size >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            ({"expType": "XYZ", "exp": "a"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ],
    )
    def test_an_expression_that_cannot_be_read_is_refused(self, popper, fields, code):
        assert popper.ask(**fields).code == code


class TestAcks:
    def test_the_offset_follows_the_lowest_that_is_not_acknowledged(self, rig, popper):
        send(rig, b"a", b"b", b"c")
        got = popper.pop()
        popper.ack(got[1])
        assert committed(rig) == 1
        popper.ack(got[0])
        assert committed(rig) == 3
        popper.ack(got[2])
        assert committed(rig) == 4
        pass_ms(rig, 100_000)
        assert popper.pop() == []

    def test_twice_is_said_and_changes_nothing(self, rig, popper):
        send(rig, b"a")
        (got,) = popper.pop()
        assert popper.ack(got).remark is None
        again = popper.ack(got)
        assert (again.code, "is not in flight" in again.remark, got.handle in again.remark) == (OK, True, True)

    @pytest.mark.parametrize(
        "parts",
        [
            {0: "0"},  # begins elsewhere
            {0: "-9223372036854775807"},
            {1: "1"},  # another pop
            {5: "broker-b"},
        ],
    )
    def test_a_handle_of_something_else_changes_nothing(self, rig, popper, parts):
        send(rig, b"a", b"b")
        got = popper.pop()[0]
        handle = got.handle.split(" ")
        for place, text in parts.items():
            handle[place] = text
        assert popper.ack(got, extraInfo=" ".join(handle)).code == OK
        assert rig.core.processors.pop.in_flight.count == 2
        reply = popper.change(got, 1_000, extraInfo=" ".join(handle))
        assert (reply.code, got.body) == (ResponseCode.NO_MESSAGE, b"a")
        assert rig.core.processors.pop.in_flight.count == 2

    def test_a_handle_of_another_group_or_queue_changes_nothing(self, rig, popper):
        send(rig, b"a")
        send(rig, b"b", e=1)
        (got, _) = popper.pop()
        other = Popper(rig.client(), "H")
        assert other.ack(got).code == OK
        assert other.change(got, 1_000).code == ResponseCode.NO_MESSAGE
        assert popper.ack(got, queueId=1 - got.queue_id, offset=0).code == OK
        assert rig.core.processors.pop.in_flight.count == 2

    @pytest.mark.parametrize(
        "handle",
        ["", "1", "1 2 3 4 5", "a b c d e f", "1 2 3 4 5", "1 2 3 9" + "9" * 30 + " 0 b", "²", "1_0 2 3 0 0 b 0 1"],
    )
    def test_what_is_no_handle_is_named(self, rig, popper, handle):
        send(rig, b"a")
        (got,) = popper.pop()
        for reply in (popper.ack(got, extraInfo=handle), popper.change(got, 5, extraInfo=handle)):
            assert (reply.code, "extraInfo" in reply.remark) == (ResponseCode.SYSTEM_ERROR, True)
        assert rig.core.processors.pop.in_flight.count == 1

    def test_queues_and_offsets_that_are_not_there(self, rig, popper):
        send(rig, b"a")
        (got,) = popper.pop()
        assert popper.ack(got, topic="None").code == ResponseCode.TOPIC_NOT_EXIST
        for queue_id in (-1, 4, 1_000_000_000):
            reply = popper.ack(got, queueId=queue_id)
            assert (reply.code, f"queueId[{queue_id}]" in reply.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
        for offset in (-1, 1_000_000_000):
            reply = popper.ack(got, offset=offset)
            assert (reply.code, f"commit:{offset}" in reply.remark) == (ResponseCode.NO_MESSAGE, True)

    def test_a_batch_acknowledges_what_it_names(self, rig, popper):
        send(rig, b"a", b"b", b"c")
        got = popper.pop()
        start, pop_ms, invisible_ms, revive_qid = got[0].handle.split(" ")[:4]
        entry = {"c": "G", "t": "T", "r": "0", "so": int(start), "q": 0, "rq": int(revive_qid), "pt": int(pop_ms)}
        body = dumps(
            {"brokerName": "broker-a", "acks": [{**entry, "it": int(invisible_ms), "b": b64encode(b"\5").decode()}]}
        )
        assert popper.client.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body).code == OK
        assert committed(rig) == 2
        assert rig.core.processors.pop.in_flight.count == 1

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"", 208), (b'{"acks":[]}', 208), (b"[]", 208), (b"{", 1), (b'{"acks":[5]}', 1),
            (b'{"acks":"x"}', 1), (b'{"acks":[{"c":"G","t":"T","r":"0","so":0,"q":0,"rq":0,"pt":0}]}', 1),
            (b'{"acks":[{"c":"G","t":"T","r":"7","so":0,"q":0,"rq":0,"pt":0,"b":"AA=="}]}', 1),
            (b'{"acks":[{"c":"G","t":"T","r":"0","so":"x","q":0,"rq":0,"pt":0,"b":"AA=="}]}', 1),
            (b'{"acks":[{"c":"G","t":"T","r":"0","so":0,"q":0,"rq":0,"pt":0,"b":"?"}]}', 1),
        ],
    )  # fmt: skip
    def test_a_batch_that_cannot_be_read_is_refused(self, popper, body, code):
        assert popper.client.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body).code == code


class TestComingAgain:
    def test_not_a_millisecond_early_and_with_one_try_more(self, rig, popper):
        send(rig, b"a")
        (got,) = popper.pop(invisibleTime=1_000)
        pass_ms(rig, 999)
        assert popper.pop() == []
        pass_ms(rig, 1)
        (again,) = popper.pop()
        assert (again.body, again.tries, again.topic) == (b"a", 1, "%RETRY%G_T")
        assert again.message.topic == "T"
        assert parse_properties(again.message.properties)["1ST_POP_TIME"] == got.handle.split(" ")[1]
        assert committed(rig) == 2
        assert popper.ack(again).remark is None
        pass_ms(rig, 100_000)
        assert popper.pop() == []

    def test_and_again(self, rig, popper):
        send(rig, b"a")
        for tries in range(5):
            ((one),) = popper.pop(invisibleTime=1_000)
            assert (one.body, one.tries) == (b"a", tries)
            pass_ms(rig, 1_000)

    def test_only_what_was_not_acknowledged(self, rig, popper):
        send(rig, b"a", b"b", b"c")
        got = popper.pop(invisibleTime=1_000)
        popper.ack(got[1])
        pass_ms(rig, 1_000)
        assert bodies(popper.pop()) == [b"a", b"c"]

    def test_an_ack_that_comes_too_late_is_success(self, rig, popper):
        send(rig, b"a")
        (got,) = popper.pop(invisibleTime=1_000)
        pass_ms(rig, 1_000)
        late = popper.ack(got)
        assert (late.code, "is not in flight" in late.remark) == (OK, True)
        assert len(popper.pop()) == 1

    def test_the_offset_waits_until_the_copy_is_durable(self, rig, popper):
        send(rig, b"a")
        rig.store.flusher.sync_all()
        popper.pop(invisibleTime=1_000)
        rig.pass_ms(1_000)
        reviver = rig.core.processors.pop.reviver
        for _ in range(5):
            reviver.step(rig.now_ms)
        assert rig.store.max_offset("%RETRY%G_T", 0) == 1
        assert committed(rig) == 1
        rig.store.flusher.sync_all()
        reviver.step(rig.now_ms)
        assert committed(rig) == 2

    def test_a_put_that_fails_is_tried_until_it_succeeds(self, rig, popper, monkeypatch):
        send(rig, b"a")
        popper.pop(invisibleTime=1_000)
        monkeypatch.setattr(rig.store, "topic_guard", lambda *_: rig.core._guard("None", 0))
        pass_ms(rig, 1_000)
        pass_ms(rig, 1_000)
        assert committed(rig) == 1
        assert popper.pop() == []
        monkeypatch.setattr(rig.store, "topic_guard", rig.core._guard)
        pass_ms(rig, 10_000)
        assert bodies(popper.pop()) == [b"a"]

    def test_one_that_cannot_come_again_yet_can_be_acknowledged(self, rig, popper, monkeypatch):
        send(rig, b"a")
        (got,) = popper.pop(invisibleTime=1_000)
        monkeypatch.setattr(rig.store, "topic_guard", lambda *_: rig.core._guard("None", 0))
        pass_ms(rig, 1_000)
        assert popper.ack(got).remark is None
        pass_ms(rig, 100_000)
        assert committed(rig) == 2

    def test_nothing_comes_again_of_a_deleted_topic_or_group(self, rig, popper):
        send(rig, b"a")
        popper.pop(invisibleTime=1_000)
        assert rig.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == OK
        send(rig, b"new")
        pass_ms(rig, 1_000)
        assert bodies(popper.pop(invisibleTime=1_000)) == [b"new"]
        assert rig.client().ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}).code == OK
        pass_ms(rig, 1_000)
        assert rig.store.max_offset("%RETRY%G_T", 0) == 0

    def test_retries_of_version_2_are_popped_too(self, rig, popper):
        rig.core.topics.create_for_group("%RETRY%G+T", 1)
        rig.store.put_batch([put_record(Message("%RETRY%G+T", body=b"v2"), rig.store.store_host)])
        got = [one for _ in range(5) for one in popper.pop()]
        assert bodies(got) == [b"v2"]
        assert got[0].handle.split(" ")[4] == "2"
        assert popper.ack(got[0]).remark is None


class TestChanges:
    def test_later_and_sooner(self, rig, popper):
        send(rig, b"a", b"b")
        a, b = popper.pop(invisibleTime=10_000)
        pass_ms(rig, 1)  # in the very millisecond of the pop it would be one later: a handle names one thing
        b = popper.changed(b, 20_000)
        a = popper.changed(a, 1_000)
        pass_ms(rig, 999)
        assert popper.pop() == []
        pass_ms(rig, 1)
        assert bodies(popper.pop(invisibleTime=HALF_A_DAY_MS)) == [b"a"]
        pass_ms(rig, 18_999)
        assert popper.pop() == []
        pass_ms(rig, 1)
        assert bodies(popper.pop()) == [b"b"]

    def test_the_old_handle_is_worth_nothing(self, rig, popper):
        send(rig, b"a")
        (old,) = popper.pop()
        new = popper.changed(old, 60_000)
        assert new.handle != old.handle
        assert popper.ack(old).remark is not None
        assert rig.core.processors.pop.in_flight.count == 1
        reply = popper.change(old, 1_000)
        assert (reply.code, old.handle in reply.remark) == (ResponseCode.NO_MESSAGE, True)
        assert popper.ack(new).remark is None
        assert rig.core.processors.pop.in_flight.count == 0

    def test_no_handle_of_before_comes_to_life_in_one_millisecond(self, rig, popper):
        send(rig, b"a", b"b")
        for got in popper.pop():
            handles = [got]
            for _ in range(4):
                handles.append(popper.changed(handles[-1], 60_000))
            assert len({one.handle for one in handles}) == len(handles)
            for old in handles[:-1]:
                assert popper.ack(old).remark is not None
                assert popper.change(old, 0).code == ResponseCode.NO_MESSAGE
            assert popper.ack(handles[-1]).remark is None

    def test_now(self, rig, popper):
        send(rig, b"a")
        (got,) = popper.pop()
        popper.changed(got, 0)
        pass_ms(rig, 1)
        assert bodies(popper.pop()) == [b"a"]

    @pytest.mark.parametrize("ms", [-1, HALF_A_DAY_MS + 1, 100 * 365 * 86_400_000])
    def test_a_time_that_is_refused_changes_nothing(self, rig, popper, ms):
        send(rig, b"a")
        (got,) = popper.pop(invisibleTime=1_000)
        reply = popper.change(got, ms)
        assert (reply.code, str(ms) in reply.remark) == (ResponseCode.INVALID_PARAMETER, True)
        assert popper.ack(got).remark is None


class TestInOrder:
    def test_a_queue_is_blocked_until_all_is_acknowledged(self, rig, popper):
        send(rig, b"a", b"b", b"c")
        got = popper.pop(order="true", maxMsgNums=2)
        assert bodies(got) == [b"a", b"b"]
        assert got[0].handle.split(" ")[3] == "999"
        assert popper.pop(order="true") == []
        popper.ack(got[0])
        assert popper.pop(order="true") == []
        assert committed(rig) == 2
        popper.ack(got[1])
        assert committed(rig) == 3
        assert bodies(popper.pop(order="true")) == [b"c"]

    def test_what_was_not_acknowledged_comes_again_and_is_counted(self, rig, popper):
        send(rig, b"a", b"b", b"c", b"d")
        got = popper.pop(order="true", maxMsgNums=3, invisibleTime=1_000)
        popper.ack(got[1])
        pass_ms(rig, 999)
        assert popper.pop(order="true") == []
        pass_ms(rig, 1)
        reply = popper.ask(order="true", invisibleTime=1_000)
        again = popped_of(reply, "G")
        assert bodies(again) == [b"a", b"c"]
        assert reply.ext["orderCountInfo"] == "0 qo0%1 1;0 qo0%3 1;0 0 1"
        assert popper.ack(got[0]).remark is not None, "the handle of the first time is worth nothing"
        for one in again:
            assert popper.ack(one).remark is None
        assert bodies(popper.pop(order="true")) == [b"d"]
        assert rig.store.max_offset("%RETRY%G_T", 0) == 0

    def test_the_same_attempt_may_have_them_again(self, rig, popper):
        send(rig, b"a")
        popper.pop(order="true", attemptId="one")
        assert popper.pop(order="true", attemptId="two") == []
        reply = popper.ask(order="true", attemptId="one")
        assert bodies(popped_of(reply, "G")) == [b"a"]
        assert reply.ext["orderCountInfo"] == "0 0 0"

    def test_the_time_can_be_changed(self, rig, popper):
        send(rig, b"a")
        (got,) = popper.pop(order="true", invisibleTime=60_000)
        reply = popper.change(got, 1_000)
        assert reply.ext == {"popTime": got.handle.split(" ")[1], "invisibleTime": "1000", "reviveQid": "999"}
        pass_ms(rig, 1_000)
        assert bodies(popper.pop(order="true")) == [b"a"]


class TestWaiting:
    def wait(self, popper, **fields):
        fields = popper.fields(pollTime=15_000, **fields)
        popper.client.submit(RequestCode.POP_MESSAGE, fields)
        popper.client.rig.core.end_turn()

    def test_a_pop_waits_for_a_message(self, rig, popper):
        self.wait(popper)
        assert popper.client.take() == []
        send(rig, b"a")
        rig.core.end_turn()
        (reply,) = popper.client.take()
        assert bodies(popped_of(reply, "G")) == [b"a"]

    def test_until_its_time_is_over(self, rig, popper):
        self.wait(popper)
        rig.pass_ms(15_000)
        (reply,) = popper.client.take()
        assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

    def test_it_is_woken_by_what_comes_again(self, rig, popper):
        send(rig, b"a")
        popper.pop(invisibleTime=1_000)
        self.wait(popper)
        pass_ms(rig, 1_000)
        (reply,) = popper.client.take()
        assert bodies(popped_of(reply, "G")) == [b"a"]

    @pytest.mark.parametrize("acked", [True, False])
    def test_it_is_woken_by_a_queue_that_is_unblocked(self, rig, popper, acked):
        send(rig, b"a", b"b")
        (got,) = popper.pop(order="true", maxMsgNums=1, invisibleTime=1_000)
        other = Popper(rig.client(50002))
        self.wait(other, order="true")
        assert other.client.take() == []
        if acked:
            popper.ack(got)
        else:
            pass_ms(rig, 1_000)
        rig.core.end_turn()
        (reply,) = other.client.take()
        assert bodies(popped_of(reply, "G")) == [b"b" if acked else b"a"]

    def test_it_ends_with_its_topic(self, rig, popper):
        self.wait(popper)
        rig.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        rig.core.end_turn()
        assert [reply.code for reply in popper.client.take()] == [ResponseCode.TOPIC_NOT_EXIST]

    def test_those_that_wait_are_counted(self, rig, popper):
        info = {"consumerGroup": "G", "topic": "T", "queueId": -1}
        assert rig.client().ask(RequestCode.POLLING_INFO, info).ext == {"pollingNum": "0"}
        self.wait(popper)
        assert rig.client().ask(RequestCode.POLLING_INFO, info).ext == {"pollingNum": "1"}

    def test_who_asks_too_late_is_told(self, popper, rig):
        assert popper.ask(bornTime=rig.now_ms - 1_000, pollTime=100).code == ResponseCode.POLLING_TIMEOUT

    def test_nothing_is_kept_of_pops_that_ended(self, rig):
        for number in range(500):
            other = Popper(rig.client(), "G", f"T{number}")
            rig.core.topics.create_for_group(f"T{number}", 1)
            self.wait(other)
            rig.pass_ms(15_000)
        assert len(rig.core.processors.pop.polls._names) < 100


class TestLooks:
    def test_a_peek_takes_nothing(self, rig, popper):
        send(rig, b"a", b"b")
        fields = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 32}
        for _ in range(2):
            reply = rig.client().ask(RequestCode.PEEK_MESSAGE, fields)
            assert (reply.code, reply.remark, reply.ext["restNum"]) == (OK, "FOUND", "2")
        popper.pop()
        assert rig.client().ask(RequestCode.PEEK_MESSAGE, fields).code == ResponseCode.PULL_NOT_FOUND

    def test_a_notification_says_whether_there_is_something(self, rig, popper):
        fields = {"consumerGroup": "G", "topic": "T", "queueId": -1, "pollTime": 0, "bornTime": 0}
        assert rig.client().ask(RequestCode.NOTIFICATION, fields).ext == {"hasMsg": "false", "pollingFull": "false"}
        client = rig.client(50003)
        client.submit(RequestCode.NOTIFICATION, {**fields, "pollTime": 15_000})
        rig.core.end_turn()
        assert client.take() == []
        send(rig, b"a")
        rig.core.end_turn()
        assert [reply.ext["hasMsg"] for reply in client.take()] == ["true"]
        assert len(popper.pop()) == 1, "it takes nothing"


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "code", "text"),
        [
            ({"maxMsgNums": 33}, 29, "33"),
            ({"maxMsgNums": 1_000_000_000}, 29, "1000000000"),
            ({"maxMsgNums": -1}, 29, "-1"),
            ({"maxMsgNums": 0}, 210, "NO_MESSAGE_IN_QUEUE"),
            ({"invisibleTime": 0}, 29, "invisibleTime is 0 ms"),
            ({"invisibleTime": -1}, 29, "invisibleTime is -1 ms"),
            ({"invisibleTime": HALF_A_DAY_MS + 1}, 29, "43200001"),
            ({"invisibleTime": 100 * 365 * 86_400_000}, 29, "3153600000000"),
            ({"queueId": 4}, 29, "queueId[4] is illegal"),
            ({"topic": "None"}, 17, "topic[None] not exist"),
            ({"consumerGroup": "a b"}, 26, "subscription group [a b] does not exist"),
            ({"invisibleTime": "x"}, 1, "invisibleTime"),
        ],
    )
    def test_what_is_refused_hands_out_nothing(self, rig, popper, fields, code, text):
        send(rig, b"a")
        reply = popper.ask(**fields)
        assert (reply.code, text in reply.remark) == (code, True), reply.remark
        assert rig.core.processors.pop.in_flight.count == 0
        assert bodies(popper.pop()) == [b"a"]


def test_what_comes_due_later_does_not_wait_for_all_of_a_hot_moment(rig):
    send(rig, *(b"hot%d" % n for n in range(2_000)))
    rig.client().heartbeat("c", "G")
    popper = Popper(rig.client())
    while popper.pop(invisibleTime=1_000, initMode=0):
        pass
    assert rig.client().send("Other", body=b"probe").code == OK
    other = Popper(rig.client(), topic="Other")
    (_,) = other.pop(invisibleTime=1_010, initMode=0)
    pop = rig.core.processors.pop
    rig.pass_ms(1_000)
    pop.reviver.step(rig.now_ms)
    rig.core.end_turn()
    hot = pop.reviver.revived_count
    assert 0 < hot < 1_000
    rig.pass_ms(10)
    pop.reviver.step(rig.now_ms)
    rig.core.end_turn()
    (again,) = other.pop()
    assert again.body == b"probe"
    assert pop.reviver.revived_count < hot + 700
    revive(rig)
    assert pop.reviver.revived_count == 2_001
    assert pop.in_flight.check() == []


def test_the_name_of_an_attempt_is_kept_short(rig):
    """One is kept for each queue and group that is popped in order, and a header may have 256 KiB."""
    send(rig, b"first")
    rig.client().heartbeat("c", "G")
    popper = Popper(rig.client())
    name = "попытка\t" * 9_000
    (_,) = popper.pop(order="true", initMode=0, attemptId=name)
    assert popper.pop(order="true", attemptId=name[:-1] + "x") == []
    (again,) = popper.pop(order="true", attemptId=name)
    assert again.body == b"first"
    block = rig.core.processors.pop.in_flight.find("G", "T", 0).block
    assert len(block.attempt_id) <= 128
