"""Records: golden bytes of the reference, round trips, garbage."""

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.layout import MAGIC_AT
from remoting.messages.message import (
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    QUEUE_OFFSET_AT,
    Message,
    MessageError,
    RecordError,
    decode_host,
    decode_record,
    encode_host,
    encode_record,
    java_hash,
    join_batch,
    message_id,
    message_keys,
    parse_message_id,
    record_fields,
    record_size,
    split_batch,
    store_ms_at,
    tags_code,
)
from remoting.messages.properties import format_properties, parse_properties
from tests.support.commitlog import without_sum

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
hosts = st.one_of(
    st.builds(encode_host, st.ip_addresses(v=4).map(str), st.integers(0, 65535)),
    st.builds(encode_host, st.ip_addresses(v=6).map(str), st.integers(0, 65535)),
)
messages = st.builds(
    Message,
    topic=st.one_of(st.text("tT%_-", min_size=1, max_size=10), st.text("t", min_size=126, max_size=255)),
    queue_id=int32,
    flag=int32,
    sys_flag=int32,
    born_ms=int64,
    born_host=hosts,
    reconsume_times=int32,
    prepared_offset=int64,
    body=st.binary(max_size=50),
    properties=texts,
)


def placed(record: bytes, queue_offset: int, offset: int, store_ms: int) -> bytes:
    changed = bytearray(record)
    struct.pack_into(">qq", changed, QUEUE_OFFSET_AT, queue_offset, offset)
    struct.pack_into(">q", changed, store_ms_at(record), store_ms)
    return bytes(changed)


GOLDEN = bytes.fromhex(
    "0000006e" "daa320a7" "3610a686" "00000003" "00000007"  # size, magic, CRC, queue, flag
    "0000000000000005" "0000000000000100" "00000000"  # queue offset, position, sysflag
    "0000019a9bcd2c00" "7f000001" "00009c40"  # born
    "0000019a9bcd2c01" "c0000201" "00002a9f"  # stored
    "00000001" "0000000000000000"  # reconsumed, prepared offset
    "00000005" "68656c6c6f" "01" "54" "000d"  # body, topic, properties length
    "54414753" "01" "54616741" "02" "4b0142"
)  # fmt: skip


def test_the_golden_record_of_the_reference():
    message = Message(
        "T",
        3,
        7,
        0,
        0x019A9BCD2C00,
        encode_host("127.0.0.1", 40000),
        1,
        0,
        b"hello",
        "TAGS\x01TagA\x02K\x01B",
    )
    record = encode_record(message, encode_host("192.0.2.1", 10911))
    assert placed(without_sum(record), 5, 256, 0x019A9BCD2C01) == GOLDEN
    assert record[76:84] == b"\xd7CRC" + crc32(b"\x01T\0\x0dTAGS\x01TagA\x02K\x01B").to_bytes(4, "big")
    assert record_size(GOLDEN) == len(GOLDEN)
    assert struct.unpack_from(">I", GOLDEN, MAGIC_AT) == (MAGIC_V1,)
    stored = decode_record(b"before" + GOLDEN + b"after", 6)
    assert (stored.topic, stored.queue_id, stored.queue_offset, stored.offset) == ("T", 3, 5, 256)
    assert stored.message_id == "C000020100002A9F0000000000000100"
    assert parse_properties(stored.properties) == {"TAGS": "TagA", "K": "B"}


def test_hashes_of_the_reference():
    assert java_hash("TagA") == 2598919
    assert abs(java_hash("TopicTest#KEY0")) == 1656969517
    assert crc32(b"hello") & 0x7FFFFFFF == 907060870
    assert java_hash("") == 0
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_the_least_record_has_91_bytes_and_the_topic():
    assert len(encode_record(Message("T"), NO_HOST)) == 92


FIELDS = {
    "topic",
    "queue_id",
    "flag",
    "sys_flag",
    "born_ms",
    "born_host",
    "reconsume_times",
    "prepared_offset",
    "body",
    "properties",
    "due_ms",
}


@given(messages, hosts, int64, int64, int64)
def test_what_is_encoded_is_decoded(message, store_host, queue_offset, offset, store_ms):
    record = encode_record(message, store_host)
    assert struct.unpack_from(">qq", record, QUEUE_OFFSET_AT) == (0, 0)
    assert record_size(record) == len(record)
    assert struct.unpack_from(">I", record, MAGIC_AT) == (MAGIC_V1 if len(message.topic) < 128 else MAGIC_V2,)
    stored = decode_record(placed(record, queue_offset, offset, store_ms))
    sys_flag = message.sys_flag & ~0x30
    sys_flag |= 0x10 * (len(message.born_host) == 20) | 0x20 * (len(store_host) == 20)
    assert stored.sys_flag == sys_flag
    assert stored.size == len(record)
    assert (stored.queue_offset, stored.offset, stored.store_ms) == (queue_offset, offset, store_ms)
    assert stored.store_host == store_host
    again = stored.message()
    for name in FIELDS - {"sys_flag"}:
        assert getattr(again, name) == getattr(message, name)
    assert record_fields(record) == (message.topic, message.queue_id, message.properties)
    assert record_fields(memoryview(record)) == record_fields(bytearray(record))


@given(messages, hosts, st.data())
def test_a_cut_or_damaged_record_gives_a_record_error_or_another_record(message, store_host, data):
    record = bytearray(encode_record(message, store_host))
    cut = data.draw(st.integers(0, len(record) - 1))
    with pytest.raises(RecordError):
        decode_record(bytes(record[:cut]))
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decode_record(bytes(record))
    except RecordError:
        pass
    try:
        record_fields(bytes(record))
    except RecordError:
        pass


@given(st.binary(max_size=200))
def test_garbage_is_a_record_error(data):
    with pytest.raises(RecordError):
        decode_record(data)
    for reader in (record_fields, record_size):
        try:
            reader(data)
        except RecordError:
            pass


def test_a_damaged_body_is_noticed_unless_unchecked():
    damaged = GOLDEN.replace(b"hello", b"hellp")
    with pytest.raises(RecordError, match="CRC"):
        decode_record(damaged)
    assert decode_record(damaged, check_crc=False).body == b"hellp"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message(""), "topic is empty"),
        (Message("t" * 256), "topic has 256 bytes"),
        (Message("\ud800"), "topic"),
        (Message("t", properties="x" * 32768), "properties have 32768 bytes"),
        (Message("t", properties="\udc00"), "properties are not"),
        (Message("t", queue_id=2**31), "queue id 2147483648"),
        (Message("t", born_ms=2**63), "born"),
        (Message("t", born_host=b"123"), "host must have"),
    ],
)
def test_what_has_no_room_is_refused_by_name(message, text):
    with pytest.raises(MessageError, match=text):
        encode_record(message, NO_HOST)


def test_the_longest_properties_fit():
    record = encode_record(Message("t", properties="x" * 32767), NO_HOST)
    assert len(decode_record(record).properties) == 32767


def test_what_is_no_utf8_is_read_as_java_reads_it():
    assert parse_properties(decode_record(GOLDEN.replace(b"TagA", b"Ta\xffA")).properties)["TAGS"] == "Ta�A"


def test_keys_and_tags_of_a_property_text():
    assert tags_code("") == 0
    assert tags_code("TAGS\x01TagA\x02") == 2598919
    assert tags_code("XTAGS\x01TagA\x02") == 0
    text = format_properties({"KEYS": "a  b c ", "UNIQ_KEY": "U"})
    assert message_keys(text) == ("U", "a", "b", "c")
    assert message_keys("KEYS\x01one\x02") == ("one",)
    assert message_keys("UNIQ_KEY\x01u") == ("u",)
    assert message_keys("") == ()


def test_hosts_and_ids():
    assert encode_host("127.0.0.1", 10911) == bytes.fromhex("7f00000100002a9f")
    assert encode_host("::ffff:127.0.0.1", 10911) == encode_host("127.0.0.1", 10911)
    assert decode_host(encode_host("fe80::1%eth0", 5)) == ("fe80::1", 5)
    assert decode_host(encode_host("192.0.2.7", 65535)) == ("192.0.2.7", 65535)
    host = encode_host("192.0.2.7", 10911)
    assert message_id(host, 2**62 + 10) == "C000020700002A9F400000000000000A"
    for bad in ("", "zz" * 16, "00" * 15, "0" * 31, "00 " * 16):
        with pytest.raises(MessageError):
            parse_message_id(bad)
    for ip, port in (("localhost", 1), ("1.2.3", 1), ("1.2.3.4", 2**31)):
        with pytest.raises(MessageError):
            encode_host(ip, port)
    with pytest.raises(RecordError):
        decode_host(b"1234567")


@given(hosts, int64.filter(lambda offset: offset >= 0))
def test_a_message_id_is_read_back(host, offset):
    text = message_id(host, offset)
    assert len(text) in (32, 56)
    assert parse_message_id(text) == (host, offset)
    assert parse_message_id(text.lower()) == (host, offset)


elements = st.lists(st.tuples(int32, st.binary(max_size=20), texts), max_size=5)


@given(elements)
def test_a_batch_is_split_as_it_was_joined(parts):
    body = join_batch(parts)
    assert split_batch(body) == parts
    if body:
        with pytest.raises(MessageError):
            split_batch(body[:-1])


@given(st.binary(max_size=100))
def test_a_garbage_batch_is_a_message_error(body):
    try:
        split_batch(body)
    except MessageError:
        pass


def test_a_batch_element_that_has_no_room_is_refused():
    with pytest.raises(MessageError, match="32768 characters of properties"):
        join_batch([(0, b"", "x" * 32768)])


def test_a_batch_of_the_java_client():
    body = bytes.fromhex("0000001f 00000000 00000000 00000009 00000002 6162 0007 4b015602 4c0157")
    assert split_batch(body) == [(9, b"ab", "K\x01V\x02L\x01W")]
