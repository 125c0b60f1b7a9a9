"""sysFlag's bits that only a broker sets: what a sender may not say, and what happens if a store holds it all the same.

Apache's broker takes 12 on a send and acknowledges it, but no consumer ever gets it; ours gave it a number that the
recovery after a kill did not know of, and gave again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.sending.send_back import retry_message
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import SYS_FLAG_AT, decode_record, join_batch
from store.derived.dispatch import as_queued, is_queued
from store.disk.files import Files
from store.disk.slab import Slab
from store.message_store import MessageStore
from store.put.plugin_api import PutBlock, PutGroup, PutRecord
from tests.broker.core_rig import Client, Rig, greeted, properties, sound
from tests.store.test_message_store import Clock, bodies, made, opened
from tests.support.raw_puts import append
from tests.support.simdisk import SimDisk


@pytest.fixture
def rig(tmp_path: Path):
    yield from sound(Rig(tmp_path / "store"))


@pytest.fixture
def client(rig: Rig) -> Client:
    return greeted(rig, "client")


@pytest.mark.parametrize(
    ("sent", "stored"), [(0, 0), (1, 1), (2, 2), (8, 0), (9, 1), (0x10, 0), (0x30, 0), (0x100, 0x100), (0x708, 0x700)]
)
def test_what_an_ordinary_message_may_say(client: Client, sent: int, stored: int) -> None:
    assert client.send("T", f=sent).code == 0
    (message,) = client.messages("T")
    assert message.sys_flag == stored


@pytest.mark.parametrize("sent", [12, 13, 0x3C, 0x10C, 0x40, 0x80, 0x8C, -1])
@pytest.mark.parametrize("text", ["", properties(DELAY=1), properties(TIMER_DELIVER_MS=1), properties(TAGS="A")])
def test_what_it_may_not_say(client: Client, rig: Rig, sent: int, text: str) -> None:
    reply = client.send("T", text, f=sent)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"sysFlag {sent} says" in (reply.remark or "")
    assert rig.store.put_count == 0


@pytest.mark.parametrize("sent", [4, 8, 12, 13, 0x34, 0xFF, 0x10C, -1])
@pytest.mark.parametrize("more", ["", properties(DELAY=1)])
def test_a_batch_is_not_part_of_a_transaction(client: Client, rig: Rig, sent: int, more: str) -> None:
    """As Apache says."""
    body = join_batch([(0, b"1", ""), (0, b"2", more)])
    reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true", f=sent), body)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"sysFlag {sent} says" in (reply.remark or "")
    assert rig.store.put_count == 0


def test_a_half_message_that_says_more_is_a_half_message(client: Client) -> None:
    """As on Apache's broker, TRAN_MSG decides."""
    for sent in (0, 4, 8, 12):
        text = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY=f"K{sent}")
        assert client.send("T", text, g=client.rig.now_ms, f=sent).code == 0
    assert [message.sys_flag for message in client.messages("RMQ_SYS_TRANS_HALF_TOPIC")] == [0] * 4
    assert client.messages("T") == []


@pytest.mark.parametrize("sent", [4, 8, 12, 0x40, 0xCF])
def test_a_stored_reply_is_queued_before_a_kill_and_after_it(tmp_path: Path, sent: int) -> None:
    rig = Rig(tmp_path / "store", storeReplyMessageEnable="true")
    client = rig.client()
    client.heartbeat("client")
    fields = client.send_fields("DefaultCluster_REPLY_TOPIC", properties(REPLY_TO_CLIENT="gone"), f=sent)
    client.submit(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"reply")
    rig.core.end_turn()
    before = rig.store.queue_entries("DefaultCluster_REPLY_TOPIC", 0, 0, 10)
    assert len(before) == 1
    rig.store._release()
    again = Rig(tmp_path / "store", storeReplyMessageEnable="true")
    assert again.store.queue_entries("DefaultCluster_REPLY_TOPIC", 0, 0, 10) == before
    assert [one.sys_flag for one in again.client().messages("DefaultCluster_REPLY_TOPIC")] == [sent & ~0xCC]
    again.close()


# ------------------------------------------------------------------------------------------------ in the store


def flagged(body: bytes, sys_flag: int, **properties: str) -> PutRecord:
    """A record as only an older version has accepted it."""
    put = made(body, **properties)
    record = bytearray(put.record)
    record[SYS_FLAG_AT + 3] = sys_flag
    return PutRecord(put.topic, put.queue_id, bytes(record), put.tags_code, put.keys, put.due_ms, put.guarded)


@pytest.mark.parametrize("sys_flag", [4, 12, 13])
@pytest.mark.parametrize("clean", [False, True])
def test_a_pending_message_that_says_so_is_delivered_and_stays_delivered(sys_flag: int, clean: bool) -> None:
    """One that an older version accepted with a due time."""
    disk = SimDisk(1)
    store = opened(disk)
    for n in range(2):
        store.put_batch([flagged(b"%d" % n, sys_flag)])
    store.put_batch([PutGroup([flagged(b"2", sys_flag), made(b"other")])])
    assert bodies(store) == [b"0", b"1", b"2", b"other"]
    assert decode_record(store.read(*store.pull("T", 0, 0, 1, 1000, None).positions[0])).sys_flag == sys_flag & 1
    assert store.check() == []
    if clean:
        store.close()
    disk.kill()
    store = opened(disk)
    assert bodies(store) == [b"0", b"1", b"2", b"other"]
    assert store.check() == []
    store.close()


def test_a_block_leaves_such_records_to_the_longer_way() -> None:
    records = [bytes(flagged(b"1", flag, __TW_ID="1", __TW_DUE="1", UNIQ_KEY="K").record) for flag in (12, 12)]
    assert PutBlock.of(Slab.of(records), 0) is None


def test_one_rule() -> None:
    assert [flag for flag in range(16) if not is_queued(flag)] == [4, 5, 6, 7, 12, 13, 14, 15]
    for flag in range(256):
        record = bytes(39) + bytes([flag]) + b"more"
        queued = as_queued(record)
        assert is_queued(queued[39])
        assert queued == record if is_queued(flag) else queued[39] == flag & ~12
        assert queued[:39] + queued[40:] == bytes(39) + b"more"


def test_what_an_older_version_had_queued_keeps_its_place() -> None:
    """Else a number is given twice, and what stands behind it makes the recovery derive everything anew."""
    disk = SimDisk(1)
    store = opened(disk)
    store.put_batch([made(b"first")])
    store._keeper.finish()
    put = flagged(b"old", 12, UNIQ_KEY="K")
    queue = store.queues.get("T", 0)
    log = store.commit_log
    offsets, error = append(log, [put.record], [1], 1_700_000_000_000)  # as that version did
    assert error is None
    queue.add(offsets[0], len(put.record), 0)
    store.put_batch([made(b"behind")])
    disk.kill()
    store = opened(disk)
    assert (bodies(store), store.recovery.rebuilt) == ([b"first", b"old", b"behind"], False)
    assert len(store.query("T", "K", 9, 0, 1 << 60)) == 1
    assert store.check() == []
    store.close()


def test_sent_back_such_a_message_waits_as_any_does() -> None:
    stored = decode_record(flagged(b"1", 12).record)
    assert retry_message(stored, "%RETRY%cg", 0, 3).sys_flag == 0
    committed = decode_record(flagged(b"1", 8).record)
    assert retry_message(committed, "%RETRY%cg", 0, 3).sys_flag == 8


# ------------------------------------------------------------------------------------------------ the check


def checked(disk: Files, spoil: Any) -> list[str]:
    store: MessageStore = opened(disk, Clock())
    store.put_batch([made(b"%d" % n) for n in range(4)])
    spoil(store)
    return store.check()


def test_the_check_tells_of_a_record_without_its_entry() -> None:
    def spoil(store: MessageStore) -> None:
        queue = store.queues.get("T", 0)
        queue.count = queue.next = 3
        del queue.buffer[60:]

    (sentence,) = checked(SimDisk(1), spoil)
    assert sentence.endswith(": T/0 has no entry 3 for it")


def test_the_check_tells_of_a_number_that_two_records_have() -> None:
    def spoil(store: MessageStore) -> None:
        queue = store.queues.get("T", 0)
        queue.count = queue.next = 2
        del queue.buffer[40:]
        store.put_batch([made(b"again")])

    first, second = checked(SimDisk(1), spoil)
    assert "T/0 has another record as number 2" in first
    assert second.endswith("T/0 has no entry 3 for it")


def test_the_check_counts_what_it_does_not_show() -> None:
    def spoil(store: MessageStore) -> None:
        store.put_batch([made(b"more") for _ in range(40)])
        queue = store.queues.get("T", 0)
        queue.count = queue.next = 1
        del queue.buffer[20:]

    found = checked(SimDisk(1), spoil)
    assert len(found) == 21
    assert found[-1] == "and 23 more records without their entries"


def test_a_topic_that_was_made_again_owes_its_earlier_life_nothing() -> None:
    def spoil(store: MessageStore) -> None:
        assert store.delete_topic("T")
        assert store.check() == []
        store.put_batch([made(b"new")])

    assert checked(SimDisk(1), spoil) == []
