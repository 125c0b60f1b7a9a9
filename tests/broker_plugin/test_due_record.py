"""The quick way to a delivery answers what `put_record_of` of `store.put.plugin_api` answers, for every record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_plugin.due_record import due_record
from remoting.messages.message import Message, RecordError, encode_record
from store.put.plugin_api import PutRecord, put_record_of

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
HOST6 = bytes(20)
USUAL = "WAIT\x01true\x02UNIQ_KEY\x01U1\x02KEYS\x01k1\x02TAGS\x01TagA\x02__TW_ID\x011a\x02__TW_DUE\x015\x02"


def same(record: bytes) -> None:
    wanted: PutRecord | None
    try:
        wanted = put_record_of(record, 5)
    except RecordError:
        wanted = None
    if wanted is None:
        with pytest.raises(RecordError):
            due_record(record, 5)
        return
    found = due_record(record, 5)
    for name in ("topic", "queue_id", "record", "tags_code", "keys", "due_ms", "guarded"):
        assert getattr(found, name) == getattr(wanted, name), name


names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "__TW_ID", "X", "XKEYS", ""])
values = st.sampled_from(["", "a", "ü", "k1 k2", " ", "1a.3", "long" * 20, "KEYS\x01no"])


@given(
    st.lists(st.tuples(names, values), max_size=9),
    st.sampled_from(["T", "Tü", "t" * 127, "t" * 200]),
    st.sampled_from([b"", b"\x02KEYS\x01body\x02", bytes(300)]),
    st.sampled_from([HOST, HOST6]),
    st.booleans(),
)
def test_every_record(pairs: list[tuple[str, str]], topic: str, body: bytes, host: bytes, ended: bool) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + ("\x02" if ended else "")
    same(encode_record(Message(topic, 3, body=body, properties=text), host))
    same(encode_record(Message(topic, 3, body=body, properties=text + USUAL), host))


def test_bytes_that_are_no_text() -> None:
    record = encode_record(Message("T", properties=USUAL), HOST)
    for at in range(88, len(record)):
        same(record[:at] + b"\xff" + record[at + 1 :])


def test_what_is_cut_off_or_damaged() -> None:
    record = encode_record(Message("T", body=b"hello", properties=USUAL), HOST)
    for size in range(len(record)):
        same(record[:size])
    for at in range(88):
        for value in (0, 2, 127, 255):
            same(record[:at] + bytes((value,)) + record[at + 1 :])


def test_a_length_of_the_properties_that_is_not_theirs() -> None:
    record = encode_record(Message("T", 1, body=b"b", born_host=HOST, properties=USUAL), HOST)
    at = len(record) - len(USUAL) - 2
    for length in (0, 1, len(USUAL) - 20, len(USUAL) - 1, len(USUAL), len(USUAL) + 1, 30_000, 65_535):
        same(record[:at] + length.to_bytes(2, "big") + record[at + 2 :])


KEY, TAG = "KEYS\x01k1\x02", "TAGS\x01TagA\x02"


@pytest.mark.parametrize("first", ["", "UNIQ_KEY\x01U0\x02", KEY, TAG, "X\x01UNIQ_KEY\x02"])
@pytest.mark.parametrize("left_out", ["UNIQ_KEY\x01U1\x02", KEY, TAG, "__TW_ID\x011a\x02", ""])
def test_what_senders_leave_out_or_put_first(first: str, left_out: str) -> None:
    for text in (USUAL, USUAL.replace(KEY, "").replace(TAG, "")):
        properties = first + text.replace(left_out, "")
        same(encode_record(Message("T", 1, body=b"b", born_host=HOST, properties=properties), HOST))
