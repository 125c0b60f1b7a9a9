"""Copies of popped messages by the short way are those of the long way, whatever the message."""

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.pop import retry_record
from broker.pop.retry_record import all_for_reply, for_reply, revived
from remoting.errors import MessageError, RecordError
from remoting.hosts import NO_HOST
from remoting.layout import BODY_AT, FLAG_AT, OFFSET_AT, QUEUE_OFFSET_AT, STORE_MS_AT
from remoting.layout.table import INT, LONG
from remoting.messages.message import Message, encode_record
from remoting.messages.remade import plain_text
from tests.support import hostile

HOSTS = (NO_HOST, bytes(range(8)), bytes(range(20)))
TOPICS = ("T", "%RETRY%G_T", "t" * 127, "t" * 128, "é" * 60)
TEXTS = (
    *("", "k\x01v", "k\x01v\x02", "__TW_ID\x015\x02k\x01v\x02", "POP_CK\x01old\x02", "1ST_POP_TIME\x017\x02"),
    *("é\x01ü\x02", "UNIQ_KEY\x01u\x02KEYS\x01a b\x02TAGS\x01t\x02"),
    *("\0", "k\x01\0v\x02", "\0k\x01v\x02", "1ST_POP_TIME\x01\0\x02"),
)
HANDLES = ("0 1 2 3 1 b 0 0", "a\x01b", "h" * 90)


def any_record(rng):
    """A record as acceptance, or an append, may have left it."""
    what = rng.randrange(3)
    text = (
        rng.choice(TEXTS)
        if what
        else hostile.property_text(
            rng, hostile.plain_properties(rng) | hostile.broker_properties(rng, 1_700_000_000_000)
        )
    )
    if rng.randrange(8) == 0:
        text += "k" * rng.choice((32_700, 32_767)) + "\x01v\x02"
    message = Message(
        rng.choice(TOPICS),
        rng.choice((0, 3, -1)),
        rng.choice((0, -1, 2**31 - 1)),
        hostile.sys_flag(rng),
        rng.choice((0, 1_700_000_000_000, -1)),
        rng.choice(HOSTS),
        rng.choice((0, 1, 2**31 - 1, -1)),
        rng.choice((0, 0, 0, 4_711)),
        hostile.body(rng, 3_000),
        text,
    )
    try:
        data = bytearray(encode_record(message, rng.choice(HOSTS), 5))
    except MessageError:
        return any_record(rng)
    LONG.pack_into(data, QUEUE_OFFSET_AT, 7)
    LONG.pack_into(data, OFFSET_AT, 4_096)
    spoilt = rng.randrange(6)
    if spoilt == 0:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif spoilt == 1:
        del data[rng.randrange(len(data)) :]
    elif spoilt == 2:
        data += rng.randbytes(rng.randrange(1, 4))
    elif spoilt == 3:
        INT.pack_into(data, BODY_AT - 4, rng.choice((-1, 0, len(data), 2**31 - 1)))
    return bytes(data)


def outcome(call, *args):
    try:
        put = call(*args)
    except (RecordError, MessageError) as error:
        return type(error)
    if isinstance(put, bytes):
        return put
    return (put.topic, put.queue_id, bytes(put.record), put.tags_code, put.keys, put.due_ms, put.guarded)


@given(st.randoms(use_true_random=False), st.sampled_from(TOPICS))
@example(Random(0), "T")
def test_a_copy_is_the_same_by_either_way(rng, topic):
    record = any_record(rng)
    asked = (record, topic, 1_700_000_000_000, 1_700_000_060_000, "1a.ff")
    assert outcome(revived, *asked) == outcome(retry_record._revived_by_fields, *asked)


@given(st.randoms(use_true_random=False), st.sampled_from(TOPICS), st.sampled_from(HANDLES))
def test_a_consumer_sees_the_same_by_either_way(rng, topic, handle):
    record = any_record(rng)
    if plain_text(record, check_crc=True) is None:
        return  # the long way answers another checksum for a damaged body: not compared
    assert outcome(for_reply, record, topic, handle) == outcome(
        retry_record._for_reply_by_fields, record, topic, handle
    )


@given(st.randoms(use_true_random=False), st.sampled_from(TOPICS), st.sampled_from(("0 1 2 3 1 b 0 ", "a\x01b ", "é ")))
def test_a_whole_reply_is_what_its_records_are_one_by_one(rng, topic, lead):
    offsets = [0, 7, 2**62]
    records = [any_record(rng) for _ in offsets]
    one_by_one = [for_reply(record, topic, f"{lead}{offset}") for record, offset in zip(records, offsets, strict=True)]
    assert all_for_reply(records, topic, lead, offsets) == one_by_one


def test_most_messages_go_the_short_way(monkeypatch):
    """Otherwise nothing above is about it."""
    monkeypatch.setattr(retry_record, "_revived_by_fields", pytest.fail)
    monkeypatch.setattr(retry_record, "_for_reply_by_fields", pytest.fail)
    for text in TEXTS:
        record = encode_record(Message("T", body=b"b", properties=text), NO_HOST)
        copy = bytes(revived(record, "%RETRY%G_T", 1, 2, "1a.ff").record)
        assert for_reply(copy, "T", "handle") != copy


def test_a_damaged_body_is_neither_copied_nor_vouched_for():
    record = bytearray(encode_record(Message("%RETRY%G_T", body=b"body", properties="k\x01v\x02"), NO_HOST))
    record[BODY_AT] ^= 1
    with pytest.raises(RecordError, match="body CRC"):
        revived(bytes(record), "%RETRY%G_T", 1, 2, "1a.ff")
    shown = for_reply(bytes(record), "T", "handle")
    assert shown[8:12] == record[8:12]  # the sender's checksum: the consumer sees the damage
    assert shown[FLAG_AT:STORE_MS_AT] == record[FLAG_AT:STORE_MS_AT]
