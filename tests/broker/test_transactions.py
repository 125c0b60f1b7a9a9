"""Half messages, decisions and check-backs, over memory channels and in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.core import BrokerCore
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import StoredMessage, decode_record, parse_message_id
from remoting.messages.proof import is_vouched_for, is_voucher, sum_before, text_sum
from remoting.messages.properties import parse_properties
from store.disk.errors import StoreError
from store.put.plugin_api import PutRecord, PutStatus
from tests.broker.core_rig import Client, Rig, properties

HALF, OP, DISCARDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
CHECK = RequestCode.CHECK_TRANSACTION_STATE


@pytest.fixture
def rig(tmp_path: Path):
    rig = Rig(tmp_path / "store")
    yield rig
    assert rig.core.halves.check() == []
    rig.close()


@pytest.fixture
def client(rig: Rig) -> Client:
    made = rig.client()
    made.heartbeat("producer-1")
    return made


def half(client: Client, body: bytes = b"body", topic: str = "T", **more: Any) -> dict[str, Any]:
    """Send a half message; what its END_TRANSACTION has to say."""
    fields = {"g": client.rig.now_ms, "e": 1, "f": 4}
    text = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY=f"KEY-{body.decode()}", TAGS="A", **more)
    reply = client.send(topic, text, body, **fields)
    assert reply.code == 0, reply
    assert reply.ext["queueId"] == "1", "as asked"
    return {
        "producerGroup": "pg",
        "tranStateTableOffset": reply.ext["queueOffset"],
        "commitLogOffset": parse_message_id(reply.ext["msgId"])[1],
        "msgId": reply.ext["transactionId"],
        "transactionId": reply.ext["transactionId"],
    }


def end(client: Client, ids: dict[str, Any], outcome: int, **more: Any) -> int:
    """Ask for a decision, with a reply; its code."""
    return client.ask(RequestCode.END_TRANSACTION, {**ids, "commitOrRollback": outcome, **more}).code


def check_round(rig: Rig, ms: int = 30_000) -> None:
    """Let time pass until the next round of checks, and do it."""
    rig.now_ms += ms
    rig.core.processors.checks.step(rig.now_ms)
    rig.core.end_turn()


def checks_of(client: Client) -> list[tuple[dict[str, str], StoredMessage]]:
    return [(command.ext, decode_record(command.body)) for command in client.take() if command.code == CHECK]


def bodies(client: Client, topic: str = "T", queue_id: int = 1) -> list[bytes]:
    return [message.body for message in client.messages(topic, queue_id)]


def test_a_half_message_waits_in_apaches_topic_and_nobody_else_sees_it(client: Client, rig: Rig) -> None:
    ids = half(client)
    assert rig.store.max_offset("T", 1) == 0
    (stored,) = client.messages(HALF)
    assert (stored.sys_flag, stored.queue_id, stored.offset) == (0, 0, ids["commitLogOffset"])
    assert parse_properties(stored.properties) == {
        "TRAN_MSG": "true",
        "PGROUP": "pg",
        "UNIQ_KEY": "KEY-body",
        "TAGS": "A",
        "__transactionId__": "KEY-body",
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    assert list(rig.core.halves.undecided) == [0]


def test_a_commit_delivers_once(client: Client, rig: Rig) -> None:
    ids = half(client)
    rig.now_ms += 50
    assert end(client, ids, COMMIT) == 0
    (stored,) = client.messages("T", 1)
    assert (stored.body, stored.sys_flag, stored.prepared_offset) == (b"body", 8, ids["commitLogOffset"])
    assert stored.store_ms == rig.now_ms
    assert stored.born_ms == rig.now_ms - 50
    assert "TRAN_MSG" not in parse_properties(stored.properties)
    assert (
        parse_properties(stored.properties).items()
        >= {"UNIQ_KEY": "KEY-body", "PGROUP": "pg", "__transactionId__": "KEY-body"}.items()
    )
    (op,) = client.messages(OP)
    assert (op.body, parse_properties(op.properties)) == (b"0,", {"TAGS": "d"})
    assert end(client, ids, COMMIT) == 0, "the reply was lost: asked again"
    assert end(client, ids, COMMIT, fromTransactionCheck="true") == 0
    assert end(client, ids, ROLLBACK) == ResponseCode.ILLEGAL_OPERATION
    assert bodies(client) == [b"body"]
    assert not rig.core.halves.undecided


def test_the_op_message_of_a_decision_vouches_for_the_record_before_it(client: Client, rig: Rig) -> None:
    assert client.send("P").code == 0
    first, second = half(client, b"1"), half(client, b"2")
    assert end(client, first, COMMIT) == end(client, second, ROLLBACK) == 0
    records = [record for _, record in rig.store.scan(0)]
    committed, op, rollback = records[3:]
    assert is_vouched_for(committed)
    assert (is_voucher(op), sum_before(op)) == (True, text_sum(committed))
    assert not is_voucher(rollback)


def test_a_rollback_never_delivers(client: Client, rig: Rig) -> None:
    ids = half(client)
    assert end(client, ids, ROLLBACK) == 0
    assert end(client, ids, ROLLBACK) == 0
    assert end(client, ids, COMMIT) == ResponseCode.ILLEGAL_OPERATION
    check_round(rig)
    assert checks_of(client) == []
    assert bodies(client) == []


def test_two_decisions_in_one_turn(client: Client, rig: Rig) -> None:
    """Both are read before the first is stored: the first counts, and everybody is answered."""
    ids = half(client)
    asked = [
        client.submit(RequestCode.END_TRANSACTION, {**ids, "commitOrRollback": outcome})
        for outcome in (COMMIT, ROLLBACK, COMMIT)
    ]
    rig.core.end_turn()
    codes = {reply.opaque: reply.code for reply in client.take()}
    assert [codes[opaque] for opaque in asked] == [0, ResponseCode.ILLEGAL_OPERATION, 0]
    assert bodies(client) == [b"body"]


def test_unknown_is_not_answered_and_changes_nothing(client: Client, rig: Rig) -> None:
    ids = half(client)
    client.submit(RequestCode.END_TRANSACTION, {**ids, "commitOrRollback": UNKNOWN})
    client.submit(RequestCode.END_TRANSACTION, {**ids, "commitOrRollback": 4})
    rig.core.end_turn()
    assert client.take() == []
    assert list(rig.core.halves.undecided) == [0]


@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        ({"producerGroup": "other"}, "producer group"),
        ({"tranStateTableOffset": 1}, "state table offset"),
        ({"commitLogOffset": 7}, "Find prepared"),
        ({"commitLogOffset": -1}, "Find prepared"),
        ({"commitLogOffset": 1 << 50}, "Find prepared"),
        ({"commitLogOffset": 1 << 62}, "Find prepared"),
    ],
)
def test_what_does_not_belong_together_is_refused(client: Client, wrong: dict[str, Any], remark: str) -> None:
    ids = half(client)
    reply = client.ask(RequestCode.END_TRANSACTION, {**ids, "commitOrRollback": COMMIT, **wrong})
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert remark in (reply.remark or "")
    assert bodies(client) == []
    assert end(client, ids, COMMIT) == 0


def test_an_ordinary_message_is_no_half_message(client: Client) -> None:
    reply = client.send("T", properties(PGROUP="pg"))
    ids = {"producerGroup": "pg", "tranStateTableOffset": 0, "commitLogOffset": parse_message_id(reply.ext["msgId"])[1]}
    assert end(client, ids, COMMIT) == ResponseCode.SYSTEM_ERROR
    assert len(client.messages("T")) == 1


def test_the_producer_is_asked_after_the_timeout_and_its_answer_counts(client: Client, rig: Rig) -> None:
    check_round(rig)  # the first sets the rhythm
    ids = half(client)
    check_round(rig, 30_000 - 1)
    assert checks_of(client) == [], "too early for a round"
    check_round(rig, 1)
    ((ext, seen),) = checks_of(client)
    assert (
        ext.items()
        >= {
            "tranStateTableOffset": ids["tranStateTableOffset"],
            "commitLogOffset": str(ids["commitLogOffset"]),
            "msgId": "KEY-body",
            "transactionId": "KEY-body",
            "bname": "broker-a",
        }.items()
    )
    assert (seen.topic, seen.queue_id, seen.body) == ("T", 1, b"body")
    assert (seen.offset, seen.queue_offset) == (ids["commitLogOffset"], int(ids["tranStateTableOffset"]))
    assert parse_properties(seen.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    assert seen.message_id == ext["offsetMsgId"]
    assert end(client, ids, COMMIT, fromTransactionCheck="true") == 0
    (stored,) = client.messages("T", 1)
    assert parse_properties(stored.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    check_round(rig)
    assert checks_of(client) == []


def test_a_young_one_waits_for_a_later_round(client: Client, rig: Rig) -> None:
    check_round(rig)
    rig.now_ms += 25_000
    half(client)
    check_round(rig, 5_000)
    assert checks_of(client) == [], "5 s old, and 6 s are the time-out"
    check_round(rig)
    assert len(checks_of(client)) == 1


def test_the_producers_own_immunity(client: Client, rig: Rig) -> None:
    check_round(rig)
    ids = half(client, CHECK_IMMUNITY_TIME_IN_SECONDS=100)
    for _ in range(3):
        check_round(rig)
        assert checks_of(client) == []
    check_round(rig)
    assert len(checks_of(client)) == 1
    assert end(client, ids, COMMIT) == ResponseCode.ILLEGAL_OPERATION, "late, and not an answer to the check"
    assert end(client, ids, COMMIT, fromTransactionCheck="true") == 0


def test_too_many_checks_lead_to_the_discard_topic(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", transactionCheckMax=3, transactionCheckInterval=1000, transactionTimeOut=500)
    client = rig.client()
    client.heartbeat("producer-1")
    check_round(rig, 1000)
    ids = half(client)
    times = []
    for _ in range(6):
        check_round(rig, 1000)
        times += [parse_properties(seen.properties)["TRANSACTION_CHECK_TIMES"] for _, seen in checks_of(client)]
    assert times == ["1", "2", "3"]
    (stored,) = client.messages(DISCARDED)
    assert stored.body == b"body"
    assert parse_properties(stored.properties).items() >= {"REAL_TOPIC": "T", "TRANSACTION_CHECK_TIMES": "3"}.items()
    assert end(client, ids, COMMIT) == ResponseCode.ILLEGAL_OPERATION
    assert end(client, ids, ROLLBACK) == 0
    assert bodies(client) == []
    info = rig.core.processors.transactions.runtime_info()
    assert (info["transactionsDiscarded"], info["transactionsUndecided"]) == ("1", "0")
    rig.close()


def test_the_oldest_go_to_the_discard_topic_whatever_their_checks(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", fileReservedTime=1, transactionCheckInterval=3_600_001)
    client = rig.client()
    check_round(rig)
    half(client)
    check_round(rig, 3_600_001)
    assert len(client.messages(DISCARDED)) == 1
    rig.close()


def test_live_producers_of_the_group_are_asked_in_turn(client: Client, rig: Rig) -> None:
    other = rig.client(50002)
    other.heartbeat("producer-2")
    gone = rig.client(50003)
    gone.heartbeat("producer-3")
    gone.channel.close()
    check_round(rig)
    for n in range(4):
        half(client, b"%d" % n)
    check_round(rig)
    assert (len(checks_of(client)), len(checks_of(other))) == (2, 2)
    assert gone.take() == []


def test_without_a_producer_a_round_counts_as_with_one(client: Client, rig: Rig) -> None:
    check_round(rig)
    half(client)
    rig.core.channel_closed(client.channel)
    check_round(rig)
    assert rig.core.halves.undecided[0].checks == 1
    assert rig.core.processors.checks.unsent_count == 1
    client.heartbeat("producer-1")
    check_round(rig)
    ((_, seen),) = checks_of(client)
    assert parse_properties(seen.properties)["TRANSACTION_CHECK_TIMES"] == "2"


def test_a_full_disk_leaves_it_undecided(client: Client, rig: Rig) -> None:
    ids = half(client)
    rig.store.retention.disk_status = PutStatus.SERVICE_NOT_AVAILABLE
    assert end(client, ids, COMMIT) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert client.send("T", properties(TRAN_MSG="true")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    check_round(rig)
    check_round(rig)
    assert checks_of(client) == [], "what cannot be counted is not asked"
    rig.store.retention.disk_status = PutStatus.PUT_OK
    check_round(rig)
    assert len(checks_of(client)) == 1
    assert end(client, ids, COMMIT) == 0
    assert bodies(client) == [b"body"]


def test_a_deleted_topic_gets_nothing_and_the_message_is_not_lost(client: Client, rig: Rig) -> None:
    ids = half(client)
    rig.core.delete_topic("T")
    assert end(client, ids, COMMIT) == ResponseCode.TOPIC_NOT_EXIST
    assert list(rig.core.halves.undecided) == [0]


def test_half_messages_can_be_switched_off(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", rejectTransactionMessage="true")
    reply = rig.client().send("T", properties(TRAN_MSG="true"))
    assert reply.code == ResponseCode.NO_PERMISSION
    assert "transaction message is forbidden" in reply.remark
    assert rig.store.put_count == 0
    rig.close()


def test_one_that_is_marked_by_its_flag_alone_is_a_half_message_too(client: Client) -> None:
    assert client.send("T", "", a="pg-2", f=4).code == 0
    (stored,) = client.messages(HALF)
    assert parse_properties(stored.properties).items() >= {"TRAN_MSG": "true", "PGROUP": "pg-2"}.items()


def test_a_time_on_a_half_message_is_refused_by_the_delay_plugin(tmp_path: Path) -> None:
    from broker_plugin.plugin import DelayPlugin

    rig = Rig(tmp_path / "store", DelayPlugin())
    client = rig.client()
    for name, value in (("__STARTDELIVERTIME", rig.now_ms + 5000), ("TIMER_DELAY_MS", 5000), ("TIMER_DELIVER_MS", 1)):
        reply = client.send("T", properties(TRAN_MSG="true", **{name: value}))
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert "half message cannot be delayed" in reply.remark
    assert rig.store.put_count == 0
    rig.close()


# ------------------------------------------------------------------------------------------------ restarts


def again(rig: Rig, root: Path, **values: Any) -> tuple[Rig, Client]:
    """Start on the same store a while later; without `close` before it, that is after a kill."""
    made = Rig.__new__(Rig)
    made.now_ms = rig.now_ms + 1000
    Rig.__init__(made, root, **values)
    made.now_ms = rig.now_ms + 1000
    client = made.client()
    client.heartbeat("producer-1")
    return made, client


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_asks_about_what_was_undecided_and_only_that(tmp_path: Path, clean: bool) -> None:
    root = tmp_path / "store"
    rig = Rig(root)
    client = rig.client()
    client.heartbeat("producer-1")
    check_round(rig)
    ids = [half(client, b"%d" % n) for n in range(6)]
    check_round(rig)
    assert len(checks_of(client)) == 6
    end(client, ids[0], COMMIT)
    if not clean:
        rig.store.take_checkpoint()  # one in the middle
    end(client, ids[1], ROLLBACK)
    end(client, ids[4], COMMIT)
    if clean:
        rig.close()
    else:
        rig.store._release()  # the process is gone, its files stay as they are
    rig, client = again(rig, root)
    assert list(rig.core.halves.undecided) == [2, 3, 5]
    assert [half.checks for half in rig.core.halves.undecided.values()] == [1, 1, 1]
    check_round(rig)
    check_round(rig)
    seen = checks_of(client)
    assert [message.body for _, message in seen] == [b"2", b"3", b"5"] * (len(seen) // 3)
    assert parse_properties(seen[0][1].properties)["TRANSACTION_CHECK_TIMES"] == "2"
    assert end(client, ids[4], COMMIT) == 0
    assert end(client, ids[1], COMMIT) == ResponseCode.ILLEGAL_OPERATION
    assert end(client, ids[3], COMMIT) == 0
    assert bodies(client) == [b"0", b"4", b"3"]
    rig.close()


def test_a_decision_whose_second_record_a_crash_took_is_completed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    rig = Rig(root)
    client = rig.client()
    ids = [half(client, b"%d" % n) for n in range(2)]
    end(client, ids[1], COMMIT)
    op = client.messages(OP)[0]
    rig.store._release()
    segment = root / "commitlog" / f"{0:020d}"
    with segment.open("r+b") as file:
        file.seek(op.offset)
        file.write(bytes(op.size))
    rig, client = again(rig, root)
    assert list(rig.core.halves.undecided) == [0]
    assert [message.body for message in client.messages(OP)] == [b"1,"], "for an Apache broker that comes after us"
    assert end(client, ids[1], COMMIT) == 0
    assert bodies(client) == [b"1"]
    rig.close()


def test_apaches_offsets_are_kept_and_believed(tmp_path: Path) -> None:
    """An Apache broker goes on from CID_RMQ_SYS_TRANS; what it has done meanwhile is not asked about again."""
    root = tmp_path / "store"
    rig = Rig(root)
    client = rig.client()
    ids = [half(client, b"%d" % n) for n in range(4)]
    end(client, ids[0], COMMIT)
    end(client, ids[1], ROLLBACK)
    rig.close()
    offsets = root / "config" / "consumerOffset.json"
    text = offsets.read_text()
    assert f'"{HALF}@CID_RMQ_SYS_TRANS":{{"0":2}}' in text
    assert f'"{OP}@CID_RMQ_SYS_TRANS":{{"0":0}}' in text
    offsets.write_text(text.replace('{"0":2}', '{"0":3}'))
    rig, client = again(rig, root)
    assert list(rig.core.halves.undecided) == [3]
    rig.close()


def test_a_store_without_our_checkpoint_is_read_from_apaches_offsets(tmp_path: Path) -> None:
    root = tmp_path / "store"
    rig = Rig(root)
    client = rig.client()
    ids = [half(client, b"%d" % n) for n in range(4)]
    end(client, ids[2], COMMIT)
    rig.close()
    (root / "timewheel" / "checkpoint").unlink()
    rig, client = again(rig, root)
    assert list(rig.core.halves.undecided) == [0, 1, 3]
    rig.close()


def test_retention_keeps_what_is_undecided(tmp_path: Path) -> None:
    rig = Rig(
        tmp_path / "store",
        mappedFileSizeCommitLog=4096,
        fileReservedTime=0,
        deleteWhen="0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
    )
    client = rig.client()
    core: BrokerCore = rig.core
    first = half(client, b"x" * 100)
    for _ in range(20):
        assert client.send("T", body=b"y" * 1500).code == 0
    rig.now_ms += 86_400_000
    core.processors.checks.publish(rig.now_ms)
    core.store.take_checkpoint()
    for _ in range(3):
        core.store.housekeeper.step(rig.now_ms)
        rig.now_ms += 3000
    core.store.delete_expired(4_000_000_000_000)
    assert core.store.commit_log.begin == 0
    assert end(client, first, ROLLBACK) == 0
    core.processors.checks.publish(rig.now_ms)
    assert core.halves.needed_offset() == first["commitLogOffset"], "a power cut may take the decision"
    core.store.take_checkpoint()
    core.processors.checks.publish(rig.now_ms)
    assert core.halves.needed_offset() == 1 << 62
    for _ in range(8):
        core.store.housekeeper.step(rig.now_ms)
        rig.now_ms += 3000
    core.store.delete_expired(4_000_000_000_000)
    assert core.store.commit_log.begin > 0
    rig.close()


def test_what_was_decided_before_it_was_ever_in_a_snapshot_is_kept_until_the_decision_is_durable(
    client: Client, rig: Rig
) -> None:
    halves, checks = rig.core.halves, rig.core.processors.checks
    checks.publish(rig.now_ms, force=True)
    rig.store.take_checkpoint()
    assert client.send("P").code == 0
    first, second = half(client, b"1"), half(client, b"2")
    assert end(client, first, COMMIT) == 0
    checks.publish(rig.now_ms, force=True)
    assert halves.needed_offset() == first["commitLogOffset"]
    rig.store.take_checkpoint()
    checks.publish(rig.now_ms)
    assert halves.needed_offset() == second["commitLogOffset"]


def test_what_is_stored_and_waits_for_its_sync_is_needed(client: Client, rig: Rig) -> None:
    half(client, b"1")
    halves, store = rig.core.halves, rig.store
    record = store.read_record(halves.undecided[0].offset)
    assert record is not None
    halves.apply(0, "d", [0])
    for _ in range(2):
        rig.core.processors.checks.publish(rig.now_ms, force=True)
        store.take_checkpoint()
    (result,) = store.put_batch([PutRecord(HALF, 0, record, 0, ())])
    assert halves.seen == 1, "it is not accounted for"
    assert halves.needed_offset() == result.offset
    halves.follow()
    assert halves.needed_offset() == result.offset


def test_many_are_checked_in_slices(client: Client, rig: Rig) -> None:
    check_round(rig)
    for n in range(150):
        half(client, b"%d" % n)
    check_round(rig)
    assert [seen.body for _, seen in checks_of(client)] == [b"%d" % n for n in range(150)]
    ops = client.messages(OP)
    assert [parse_properties(op.properties)["TAGS"] for op in ops] == ["c"] * 3


def test_a_half_message_whose_queue_cannot_be_read_is_decided_all_the_same(
    rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody else of its turn goes without an answer."""
    right = type(rig.store).queue_entries

    def unreadable(store: Any, topic: str, *rest: int) -> Any:
        if topic == HALF:
            raise StoreError("cannot read /x: Input/output error (errno 5)")
        return right(store, topic, *rest)

    with monkeypatch.context() as broken:
        broken.setattr(type(rig.store), "queue_entries", unreadable)
        ids = half(client)
    assert end(client, ids, COMMIT) == 0
    assert end(client, ids, COMMIT) == 0
    assert [message.body for message in client.messages("T", 1)] == [b"body"]


def test_a_decision_is_not_taken_for_another_transaction(rig: Rig, client: Client) -> None:
    """A power cut took the half message that is meant, and another one stands where it stood."""
    ids = half(client)
    lost = {**ids, "transactionId": "KEY-lost", "msgId": "KEY-lost"}
    assert end(client, lost, ROLLBACK) == ResponseCode.SYSTEM_ERROR
    assert end(client, lost, COMMIT) == ResponseCode.SYSTEM_ERROR
    assert list(rig.core.halves.undecided) == [0]
    assert end(client, {**ids, "transactionId": "", "msgId": ""}, COMMIT) == 0, "clients that name none are believed"
    assert [message.body for message in client.messages("T", 1)] == [b"body"]


@pytest.mark.parametrize(("before", "told"), [(0, True), (60, True), (64, False)])
def test_messages_with_its_key_do_not_hide_a_commit(client: Client, rig: Rig, before: int, told: bool) -> None:
    """Anybody may send with a key that was used: what stands behind the commit is not looked at."""
    ids = half(client)
    for _ in range(before):
        assert client.send("T", properties(UNIQ_KEY="KEY-body"), b"same").code == 0
    assert end(client, ids, COMMIT) == 0
    for _ in range(70):
        assert client.send("T", properties(UNIQ_KEY="KEY-body"), b"same").code == 0
    assert end(client, ids, COMMIT) == (0 if told else ResponseCode.SYSTEM_ERROR)
    assert end(client, ids, ROLLBACK) == (ResponseCode.ILLEGAL_OPERATION if told else ResponseCode.SYSTEM_ERROR)
    assert len(rig.core.halves.undecided) == 0
