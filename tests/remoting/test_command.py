"""Frames: both header forms, recorded frames whole and byte by byte, garbage."""

import json
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.codes import MAX_FRAME_BYTES, LanguageCode, RequestCode
from remoting.command import ProtocolError, RemotingCommand, encode_command, request
from remoting.connection import FrameDecoder
from remoting.send_reply import encode_send_reply, send_reply_encoder
from tests.support.frames import decode_frame

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
commands = st.builds(
    RemotingCommand,
    code=int16,
    opaque=int32,
    flag=int32,
    language=st.sampled_from([code.name for code in LanguageCode]),
    version=int16,
    remark=st.none() | texts,
    ext=st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=30),
    serialize_type=st.sampled_from([0, 1]),
)


def frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), serialize_type << 24 | len(header)) + header + body


JAVA_HEADER = (
    b'{"code":310,"extFields":{"a":"pg","b":"TopicTest","c":"TBW102","d":"4","e":"2","f":"0","g":"1763600000000",'
    b'"h":"0","i":"UNIQ_KEY\\u0001U\\u0002TAGS\\u0001TagA","j":"0","k":"false","m":"false"},"flag":0,'
    b'"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}'
)
ALI_ONS_HEADER = (
    b'{"code":34,"language":"JAVA","opaque":-2147483648,"flag":0,"version":121,"remark":null,'
    b'"extFields":{"queueId":0,"ok":true,"no":false,"big":12345678901234567890123,"f":1.50,"none":null,"s":"x"}}'
)
ONS_HEADER = b'{"code":105,"flag":0,"language":"JAVA","namespaceId":"x","opaque":3,"version":2147481759}'
BINARY_HEADER = bytes.fromhex(
    "000b" "00" "0199" "00000009" "00000000" "00000000" "0000001b"
    "0005" "746f706963" "00000002" "7431" "0001" "71" "00000001" "33" "0000" "00000000"
)  # fmt: skip
RECORDED = [
    frame(JAVA_HEADER, b"hello"),
    frame(ALI_ONS_HEADER),
    frame(ONS_HEADER),
    frame(BINARY_HEADER, b"body", 1),
    frame(b'{"code":0,"flag":1,"opaque":1}'),
]


def test_a_java_send():
    command = decode_frame(RECORDED[0][4:])
    assert command.code == RequestCode.SEND_MESSAGE_V2
    assert command.ext["i"] == "UNIQ_KEY\x01U\x02TAGS\x01TagA"
    assert (command.opaque, command.body, command.version) == (7, b"hello", 409)
    assert not command.is_response
    assert not command.is_oneway


def test_values_that_are_not_strings_keep_their_text():
    assert decode_frame(RECORDED[1][4:]).ext == {
        "queueId": "0",
        "ok": "true",
        "no": "false",
        "big": "12345678901234567890123",
        "f": "1.50",
        "s": "x",
    }


def test_versions_beyond_16_bits_and_unknown_fields():
    command = decode_frame(RECORDED[2][4:])
    assert (command.version, command.ext, command.remark) == (2147481759, {}, None)


def test_a_binary_frame():
    command = decode_frame(RECORDED[3][4:])
    assert (command.code, command.language, command.version, command.opaque) == (11, "JAVA", 409, 9)
    assert command.ext == {"topic": "t1", "q": "3"}
    assert (command.body, command.serialize_type) == (b"body", 1)


@given(commands)
def test_a_command_is_read_as_it_was_written(command):
    data = encode_command(command)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert decode_frame(data[4:]) == command
    assert FrameDecoder().feed(memoryview(data)) == [command]


@given(commands)
def test_a_reply_answers_in_the_same_form(command):
    reply = command.reply(17, "no such topic", {"a": "b"}, b"x")
    assert reply.is_response
    assert (reply.opaque, reply.serialize_type, reply.version) == (command.opaque, command.serialize_type, 409)
    assert decode_frame(encode_command(reply)[4:]) == reply


def test_numbers_beyond_16_bits_are_cut_off_in_the_binary_form():
    command = RemotingCommand(200050, 1, version=2147481759, serialize_type=1)
    read = decode_frame(encode_command(command)[4:])
    assert (read.code, read.version) == (200050 - 196608 - (65536 if 200050 - 196608 > 32767 else 0), -1889)


def test_a_reply_header_is_compact_json_of_strings():
    data = encode_command(request(105, opaque=4).reply(0, None, {"n": "1"}, b"b"))
    header = data[8:-1]
    assert b": " not in header
    assert json.loads(header)["extFields"] == {"n": "1"}
    assert json.loads(header)["language"] == "JAVA"


@given(st.sampled_from([0, 1]), int32, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), texts)
def test_the_quick_send_reply_is_an_ordinary_reply(serialize_type, opaque, queue_id, queue_offset, transaction_id):
    data = encode_send_reply(serialize_type, opaque, "0A,0B", queue_id, queue_offset, transaction_id)
    ext = {
        "msgId": "0A,0B",
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "transactionId": transaction_id,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    asked = RemotingCommand(310, opaque, serialize_type=serialize_type)
    assert FrameDecoder().feed(data) == [asked.reply(0, None, ext)]
    encode = send_reply_encoder("7F00000100002A9F")
    again = encode(serialize_type, opaque, queue_offset, queue_id, queue_offset, transaction_id)
    ids = f"7F00000100002A9F{queue_offset:016X}"
    assert again == encode_send_reply(serialize_type, opaque, ids, queue_id, queue_offset, transaction_id)


def test_recorded_frames_byte_by_byte_and_in_all_cuts():
    stream = b"".join(RECORDED)
    whole = FrameDecoder().feed(stream)
    assert len(whole) == len(RECORDED)
    decoder = FrameDecoder()
    one_by_one = [command for at in range(len(stream)) for command in decoder.feed(stream[at : at + 1])]
    assert one_by_one == whole
    assert decoder.pending_bytes == 0
    for cut in range(len(stream)):
        decoder = FrameDecoder()
        assert decoder.feed(stream[:cut]) + decoder.feed(stream[cut:]) == whole


@given(st.lists(commands, max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_any_chunks_give_the_same_commands(sent, cuts):
    stream = b"".join(map(encode_command, sent))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = FrameDecoder()
    got = []
    for begin, end in pairwise(edges):
        got += decoder.feed(stream[begin:end])
    assert got == sent


def test_a_long_frame_in_small_pieces():
    data = encode_command(request(310, {"a": "b"}, bytes(1_000_000)))
    decoder = FrameDecoder()
    got = [command for at in range(0, len(data), 1000) for command in decoder.feed(data[at : at + 1000])]
    assert [len(command.body) for command in got] == [1_000_000]
    assert type(got[0].body) is bytes


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", MAX_FRAME_BYTES - 3),
        struct.pack(">I", 3),
        struct.pack(">I", 0xFFFFFFFF),
        b"\x16\x03\x01\x02\x00",
        struct.pack(">II", 4, 1),
        struct.pack(">II", 4, 0),
        struct.pack(">II", 4, 7 << 24),
        frame(b"[]"),
        frame(b"{"),
        frame(b'{"code":"x"}'),
        frame(b'{"code":1.5}'),
        frame(b'{"code":true}'),
        frame(b'{"opaque":123456789012345678901234}'),
        frame(b'{"language":1}'),
        frame(b'{"remark":1}'),
        frame(b'{"extFields":[]}'),
        frame(b'{"extFields":5}'),
        frame(b'{"extFields":"' + b"[" * 3000 + b'"}'),
        frame(b"[" * 100_000),
        frame(BINARY_HEADER[:-1], b"", 1),
        frame(BINARY_HEADER.replace(b"topic", b"topi"), b"", 1),
        frame(b"", b"", 1),
    ],
)
def test_what_is_no_frame_is_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(data)


def test_tls_is_told_by_name():
    with pytest.raises(ProtocolError, match="TLS"):
        FrameDecoder().feed(b"\x16\x03\x01\x02\x00\x01\x00\x01")


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_garbage_gives_commands_or_the_protocol_error(chunks):
    decoder = FrameDecoder()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
    except ProtocolError:
        pass


@given(st.sampled_from(RECORDED), st.data())
def test_damaged_frames_give_commands_or_the_protocol_error(recorded, data):
    changed = bytearray(recorded)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        for command in FrameDecoder().feed(changed):
            encode_command(command.reply(1, "?"))
    except ProtocolError:
        pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)
header_names = st.sampled_from(["code", "flag", "opaque", "version", "language", "remark", "extFields", "x"])


@given(st.dictionaries(header_names, json_values))
def test_any_json_header_gives_a_command_or_the_protocol_error(header):
    try:
        (command,) = FrameDecoder().feed(frame(json.dumps(header).encode()))
    except ProtocolError:
        return
    assert all(type(value) is str for value in command.ext.values())


@given(st.binary(max_size=60))
def test_any_binary_header_gives_a_command_or_the_protocol_error(header):
    try:
        FrameDecoder().feed(frame(header, b"", 1))
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand(0, 1, ext={"a": "\ud800"}),
        RemotingCommand(0, 1, ext={"a": "\ud800"}, serialize_type=1),
        RemotingCommand(0, 2**31, serialize_type=1),
        RemotingCommand(0, 1, ext={"k" * 32768: "v"}, serialize_type=1),
        RemotingCommand(0, 1, body=bytes(MAX_FRAME_BYTES)),
    ],
)
def test_what_cannot_be_written_is_a_protocol_error(command):
    with pytest.raises(ProtocolError):
        encode_command(command)


def test_ext_values_of_any_kind_are_text() -> None:
    """What another library writes as a number, a list or an object is read as Apache's broker reads it: as its text."""
    header = b'{"code":1,"extFields":{"a":{"b":1.50,"c":["x"]},"d":7,"e":true,"f":null,"g":[1,"\\u00e4"]}}'
    command = decode_frame(frame(header)[4:])
    assert command.ext == {"a": '{"b":1.5,"c":["x"]}', "d": "7", "e": "true", "g": '[1,"ä"]'}
