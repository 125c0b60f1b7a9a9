"""Zeros in properties and a kill: the broker refuses them, and a store that has them from before loses nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remoting.messages.message import Message, encode_host
from store.disk.files import Files
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_api import PutStatus, put_record
from tests.support.commitlog import without_sum
from tests.support.fault_ledger import stored_messages
from tests.support.fault_storm import FaultyBroker
from tests.support.wire import Wire, WireError

pytestmark = pytest.mark.process

SEND = {"a": "g", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "j": 0, "k": "false"}
SIZES = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000"}
NULS = "user\x01" + 1_023 * "\0" + "\x02"


def send(wire: Wire, number: int, more: str = "") -> int:
    """Send one message; the response code."""
    try:
        wire.ask(310, {**SEND, "i": f"UNIQ_KEY\x01u{number}\x02{more}"}, b"x")
    except WireError as refused:
        assert "the value of property 'user'" in str(refused)
        return refused.code
    return 0


def keys(store: Path) -> list[str]:
    return [message.key for message in stored_messages(store)]


def test_a_send_with_zeros_in_a_property_takes_nothing_with_it(tmp_path: Path) -> None:
    """Eight sends, each on the disk before it is answered, the second with 1,023 NULs in a property."""
    due_ms = int(time.time() * 1000) + 600_000
    kinds = ("", f"__STARTDELIVERTIME\x01{due_ms}\x02", "DELAY\x013\x02", "TRAN_MSG\x01true\x02")
    broker = FaultyBroker(tmp_path, {"flushDiskType": "SYNC_FLUSH"})
    try:
        broker.up()
        with Wire(broker.address) as wire:
            codes = [send(wire, number, NULS if number == 1 else "") for number in range(8)]
            assert [send(wire, 99, kind + NULS) for kind in kinds] == [13] * 4
        broker.kill()
        broker.up()
    finally:
        broker.kill()
    assert codes == [0, 13, 0, 0, 0, 0, 0, 0]
    assert keys(broker.store) == [f"u{number}" for number in (0, 2, 3, 4, 5, 6, 7)]


@pytest.mark.parametrize("clean", [True, False])
def test_a_store_that_has_them_from_before_keeps_everything(tmp_path: Path, clean: bool) -> None:
    """Records without a checksum, as before: whole ones stay, in the middle of the log and last in it."""
    broker = FaultyBroker(tmp_path, {"flushDiskType": "SYNC_FLUSH", **SIZES})
    try:
        broker.up()  # makes the topic
        with Wire(broker.address) as wire:
            wire.create_topic("T")
        broker.stop()
        config = StoreOptions(commit_log_segment_bytes=1 << 20, consume_queue_segment_bytes=20_000)
        store = MessageStore.open(Files(), broker.store, config, lambda: int(time.time() * 1000))
        for number in (0, 1, 2):
            text = f"UNIQ_KEY\x01u{number}\x02{NULS if number else ''}"
            put = put_record(Message("T", 0, body=b"x", properties=text), encode_host("127.0.0.1", 10911))
            put.record = without_sum(put.record)
            assert store.put_batch([put])[0].status is PutStatus.PUT_OK
        if clean:
            store.close()
        else:
            store.commit_log.sync()
            store._release()
        broker.up()
        with Wire(broker.address) as wire:
            assert send(wire, 3) == 0
        broker.kill()
        broker.up()
        with Wire(broker.address) as wire:
            assert wire.max_offset("T", 0) == 4
    finally:
        broker.kill()
    assert keys(broker.store) == ["u0", "u1", "u2", "u3"]
