"""A message whose time had passed when it was read, and had not when it was stored: the clock was set back between."""

from __future__ import annotations

from pathlib import Path

from broker.turns.put_status import failure
from remoting.codes import ResponseCode
from remoting.messages.message import Message, encode_host
from store.disk.files import Files
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_api import PutStatus, put_record

NOON_MS = 1_800_000_000_000


def test_it_is_not_stored_before_its_time_and_the_sender_is_told(tmp_path: Path) -> None:
    now = [NOON_MS]
    store = MessageStore.open(Files(), tmp_path, StoreOptions.from_config({}), lambda: now[0])
    try:
        record = put_record(Message("T", body=b"b", properties="UNIQ_KEY\x01k\x02"), encode_host("127.0.0.1", 10911))
        record.due_ms = NOON_MS - 10  # passed, by the clock that the plug-in was told
        now[0] -= 1_000
        assert [result.status for result in store.put_batch([record])] == [PutStatus.NOT_DUE]
        assert store.commit_log.end == 0
        now[0] = NOON_MS - 10
        assert [result.status for result in store.put_batch([record])] == [PutStatus.PUT_OK]
    finally:
        store.close()


def test_the_answer_says_send_it_again() -> None:
    code, text = failure(PutStatus.NOT_DUE, "", 1)
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "send it again" in text
