"""Targets: what comes over the network, and the texts that clients put into it."""

from __future__ import annotations

import json
from collections.abc import Hashable
from random import Random
from struct import pack
from typing import Any
from zlib import crc32

import broker.access.acl
import broker.naming.registration
import broker.naming.routes
import broker.net.clients
import broker.processors.lock
import broker_plugin.rules.properties
import remoting.command
import remoting.connection
import remoting.filters.sql_filter
import remoting.filters.sql_nodes
import remoting.filters.sql_tokens
import remoting.filters.sql_values
import remoting.filters.subscription
import remoting.headers
import remoting.hosts
import remoting.json_dialect
import remoting.messages.batch
import remoting.messages.keys
import remoting.messages.properties
from broker.naming.registration import parse_registration
from broker.tables.subscriptions import GroupSubscription
from broker_plugin.rules.properties import TimerError, disarmed, own_properties_of, read_due, stamped, without_timers
from remoting.codes import SERIALIZE_BINARY, SERIALIZE_JSON
from remoting.command import RemotingCommand, encode_command, request
from remoting.connection import FrameDecoder
from remoting.errors import HeaderError, MessageError, ProtocolError
from remoting.filters.sql_filter import Sql92Error, compile_sql92
from remoting.filters.subscription import TagFilter
from remoting.headers import (
    EndTransactionHeader,
    PullHeader,
    QueryMessageHeader,
    SendBackHeader,
    SendHeader,
    TopicHeader,
)
from remoting.hosts import decode_host, message_id, parse_message_id
from remoting.json_dialect import BODY_BYTES_MAX, DIALECT_BYTES_MAX, dump_queue_map, dumps, loads, loads_body, queue_map
from remoting.messages.batch import join_batch, split_batch
from remoting.messages.keys import message_keys, tags_code
from remoting.messages.properties import get_property, has_property, parse_properties, remove_properties, with_property
from tests.fuzz.engine import Target
from tests.support.frames import decode_frame

__all__ = ["TARGETS"]

FRAME_MAX = 8_192

PROPERTIES = "KEYS\x01k1 k2\x02TAGS\x01TagA\x02UNIQ_KEY\x01C0A8010100002A9F4D8C0A1B2C3D0000\x02WAIT\x01true\x02"
TIMED = "__STARTDELIVERTIME\x011763600000000\x02TIMER_DELAY_SEC\x0190\x02TIMER_DELAY_MS\x015\x02DELAY\x010\x02"
OWN = "__TW_ID\x0110000000005.2\x02__TW_DUE\x011763600000000\x02__TW_LEVEL\x013:17\x02TIMER_DELIVER_MS\x0117\x02"

SEND_EXT = SendHeader("pg", "TopicTest", queue_id=2, born_ms=1763600000000, properties=PROPERTIES).to_v2()
PULL_EXT = {
    "consumerGroup": "g",
    "topic": "TopicTest",
    "queueId": "1",
    "queueOffset": "17",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "3",
    "suspendTimeoutMillis": "15000",
    "subscription": "TagA || TagB",
    "subVersion": "1763600000000",
    "expressionType": "TAG",
    "maxMsgBytes": "-1",
}
OTHER_EXT = {
    "producerGroup": "pg",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "properties": PROPERTIES,
    "reconsumeTimes": "3",
    "maxReconsumeTimes": "16",
    "batch": "true",
    "unitMode": "false",
    "offset": "99",
    "group": "g",
    "delayLevel": "3",
    "originMsgId": "x",
    "originTopic": "o",
    "tranStateTableOffset": "1",
    "commitLogOffset": "2",
    "commitOrRollback": "8",
    "fromTransactionCheck": "true",
    "msgId": "m",
    "transactionId": "t",
    "key": "k",
    "maxNum": "32",
    "beginTimestamp": "0",
    "endTimestamp": "9223372036854775807",
    "_UNIQUE_KEY_QUERY": "true",
    "readQueueNums": "8",
    "writeQueueNums": "8",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "order": "false",
    "attributes": "+a=b,-c",
}
EXTS = (SEND_EXT, PULL_EXT, OTHER_EXT, {})
NUMBERS = (
    b"0",
    b"-1",
    b"2147483648",
    b"-9223372036854775809",
    b"9" * 30,
    b"1e400",
    b"-0.0",
    b"1.5",
    b"+7",
    b"\xd9\xa3",
)


# ------------------------------------------------------------------------------------------------ frames and headers


def _commands() -> list[RemotingCommand]:
    made = [
        request(code, dict(ext), body, opaque=opaque, oneway=opaque == 3, serialize_type=kind)
        for kind in (SERIALIZE_JSON, SERIALIZE_BINARY)
        for opaque, (code, ext, body) in enumerate(
            ((310, SEND_EXT, b"hello"), (11, PULL_EXT, b""), (10, OTHER_EXT, bytes(40)), (34, {}, b"{}"))
        )
    ]
    return [*made, made[0].reply(2, "busy", {"a": "ä"}, b"body"), made[4].reply(1, "why", {"b": "c"})]


def _frames() -> list[bytes]:
    frames = [encode_command(command) for command in _commands()]
    odd = (
        b'{"code":34,"language":"JAVA","opaque":-2147483648,"flag":0,"version":121,"remark":null,"extFields":{"q":0,'
        b'"ok":true,"no":false,"big":12345678901234567890123,"f":1.50,"none":null,"list":[1,{"a":"b"}],"s":"x"}}'
    )
    return [*frames, b"".join(frames[:4]), b"".join(frames[3:8]), pack(">II", 4 + len(odd), len(odd)) + odd]


def _take(pieces: list[bytes], most: int = FRAME_MAX) -> tuple[list[RemotingCommand], str, int]:
    """All commands, how it ended, bytes of an unfinished frame."""
    decoder = FrameDecoder(most)
    commands: list[RemotingCommand] = []
    for piece in pieces:
        try:
            commands += decoder.feed(piece)
        except ProtocolError as error:
            return commands, str(error), 0
        assert decoder.pending_bytes < max(most, 8) + len(piece), "more is held than one frame"
    return commands, "", decoder.pending_bytes


def run_frames(data: bytes) -> Hashable:
    """Whole, byte for byte (if it is short) and cut at places of its own: the same commands and the same end."""
    whole, problem, pending = _take([data])
    cuts = Random(crc32(data))
    pieces = []
    at = 0
    while at < len(data):
        size = 1 if len(data) < 40 else cuts.choice((1, 3, 4, 7, 8, 9, 60, 500))
        pieces.append(data[at : at + size])
        at += size
    cut, cut_problem, cut_pending = _take(pieces)
    assert cut_problem == problem, f"whole: {problem!r}, in pieces: {cut_problem!r}"
    assert cut_pending == pending, f"whole: {pending} bytes are left, in pieces: {cut_pending}"
    assert problem or cut == whole, "other commands when it comes in pieces"
    return len(whole), bool(problem), pending > 0


def _check_command(command: RemotingCommand) -> Hashable:
    for name in ("code", "opaque", "flag", "version"):
        assert type(getattr(command, name)) is int, f"{name} is {getattr(command, name)!r}"
    assert isinstance(command.language, str)
    assert command.remark is None or isinstance(command.remark, str)
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in command.ext.items()), command.ext
    command.ext.pop("", None)  # the binary form cannot say it
    try:
        frame = encode_command(command)
    except ProtocolError:
        return "not to be written"
    again = decode_frame(frame[4:])
    if command.serialize_type == SERIALIZE_JSON:
        assert again == command, f"{command!r} is read back as {again!r}"
    else:
        assert again.ext == {name: value for name, value in command.ext.items() if value}, "other fields are read back"
    return len(command.ext) > 3, command.remark is None, len(command.body) > 0


def run_header(data: bytes) -> Hashable:
    """One frame without its length: header form by its fifth byte."""
    return _check_command(decode_frame(data))


def _json_headers() -> list[bytes]:
    return [frame[4:] for frame in _frames() if frame[4] == SERIALIZE_JSON]


def _binary_headers() -> list[bytes]:
    return [frame[4:] for frame in _frames() if frame[4] == SERIALIZE_BINARY]


def _right_length(data: bytes) -> bytes:
    """Let the header's length be that of its JSON, as far as that can be told."""
    size = data.rfind(b"}") + 1 - 4
    return pack(">I", size) + data[4:] if size > 0 else data


def run_fields(data: bytes) -> Hashable:
    """A JSON object as the fields of a request: all headers are read from it."""
    try:
        ext = json.loads(data)
    except (ValueError, RecursionError):
        ext = None
    if not isinstance(ext, dict):
        return "no fields"
    ext = {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in ext.items()}
    ended = []
    for read in (
        *(SendHeader.from_v1, SendHeader.from_v2, PullHeader, SendBackHeader, EndTransactionHeader),
        *(QueryMessageHeader, TopicHeader),
    ):
        try:
            header: Any = read(ext)
        except HeaderError as error:
            ended.append(error.name)
        else:
            ended.append("")
            for name in header.__slots__:
                value = getattr(header, name)
                assert not isinstance(value, int) or -(1 << 63) <= value < 1 << 63, f"{name} is {value}"
    return tuple(ended)


# ------------------------------------------------------------------------------------------------ properties, batches


def run_properties(data: bytes) -> Hashable:
    """A property text: reading one, reading all, changing and the plug-in's view of it agree."""
    text = data.decode("utf-8", "replace")
    parsed = parse_properties(text)
    for name in (*list(parsed)[:8], "KEYS", "TAGS", "UNIQ_KEY", "DELAY", "__TW_ID"):
        assert get_property(text, name) == parsed.get(name), f"{name!r}: {get_property(text, name)!r}, {parsed!r}"
        assert has_property(text, name) == (name in parsed)
    names = list(parsed)[:2]
    kept = remove_properties(text, names)
    assert parse_properties(kept) == {name: value for name, value in parsed.items() if name not in names}
    assert parse_properties(with_property(text, "new", "1"))["new"] == "1"
    keys, code = message_keys(text), tags_code(text)
    assert all(keys[1:]), keys
    assert -(1 << 31) <= code < 1 << 31
    own = own_properties_of(text)
    plain = without_timers(text)
    assert "__TW_ID" not in parse_properties(plain)
    try:
        due_ms = read_due(text, 1_000, 86_400_000)
    except TimerError:
        return "not timed", len(keys) > 1, own is None
    if due_ms is not None:
        assert 0 <= due_ms <= 1_000 + 86_400_000, due_ms
        clean = disarmed(text, due_ms)
        again = read_due(clean, due_ms)
        assert again is None or again <= due_ms, "it would be delayed once more"
        assert own_properties_of(stamped(clean, (1 << 62) | 5, due_ms, 1)) == ((1 << 62) | 5, 1, due_ms)
    return due_ms is None, len(keys) > 1, own is None


def run_batch(data: bytes) -> Hashable:
    """A client batch: what is read can be written, and is the same when it is read again."""
    elements = split_batch(data)
    assert sum(22 + len(body) for _, body, _ in elements) <= len(data)
    try:
        joined = join_batch(elements)
    except MessageError:
        return "too long as text"  # what was no UTF-8 needs more room
    assert split_batch(joined) == elements
    return len(elements)


def _batches() -> list[bytes]:
    return [
        join_batch([(0, b"body", PROPERTIES)]),
        join_batch([(n, b"x" * n, "a\x01b\x02") for n in range(6)]),
        join_batch([(-1, b"", "")] * 3),
        b"",
    ]


def run_message_id(data: bytes) -> Hashable:
    """A message id as text: one that is read is written in the same way, but for capitals."""
    text = data.decode("utf-8", "replace")
    host, offset = parse_message_id(text)
    ip, _port = decode_host(host)
    assert (message_id(host, offset) if offset >= 0 else text.upper()) == text.upper()
    return ":" in ip, offset >= 0


# ------------------------------------------------------------------------------------------------ JSON bodies


HEARTBEAT = {
    "clientID": "10.0.0.1@17",
    "producerDataSet": [{"groupName": "pg"}],
    "consumerDataSet": [
        {
            "groupName": "g",
            "subscriptionDataSet": [
                {"topic": "T", "subString": "a || b", "tagsSet": ["a", "b"], "codeSet": [97, 98], "subVersion": 1},
                {"topic": "S", "subString": "a IS NOT NULL AND b > 5", "expressionType": "SQL92", "subVersion": 2},
            ],
        }
    ],
}
REGISTRATION = {
    "filterServerList": [],
    "topicConfigSerializeWrapper": {
        "dataVersion": {"counter": 1, "timestamp": 17, "stateVersion": 0},
        "topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}},
    },
}
JSON_WORDS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"'", b"\\", b"null", b"true", b"Infinity", b"-Infinity", b"NaN"),
    *(b'{"$ref":"$.a"}', b"{{", b"}}:1", b'\\ud800"', b"1e999", b"0L", b"5D", b'"topic"', b'"queueId"'),
    *(b'"mqSet"', b'"tagsSet"', b'"subVersion"', b'"counter"', b'"stateVersion"', b"\xc2\xb2", b"9" * 5000),
    *NUMBERS,
)


def _json_bodies() -> list[bytes]:
    queues = [(("T", "b", n), {"offset": n}) for n in range(3)]
    lock = {"consumerGroup": "g", "clientId": "c", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 1}]}
    return [
        dumps(HEARTBEAT),
        dumps(REGISTRATION),
        dumps(lock),
        dump_queue_map("offsetTable", queues, {"more": [1, 2.5, None, True]}),
        b'{0:5,1:{\'a\':\'b\\\'c\'},"x":[1L,2.0D,-3,{"$ref":"$.a"}],{"q":{"z":[]}}:"\\u00e4"}',
    ]


def make_json(rng: Random) -> bytes:
    """A document of the dialect, now and then deep, with objects for keys."""
    deep = rng.choice((3, 4, 6, 40, 70))

    def value(depth: int) -> str:
        kind = rng.random()
        if depth >= deep or kind < 0.3:
            return rng.choice(
                ('"t"', "'s'", "5", "-1L", "null", "true", "1e3", '"\\"q\\""', "Infinity", '{"$ref":"$"}')
            )
        width = 1 if deep > 6 else rng.randrange(3)
        if kind < 0.4:
            return "[" + ",".join(value(depth + 1) for _ in range(width)) + "]"
        pairs = []
        for _ in range(width):
            key = value(depth + 1) if rng.random() < 0.5 else rng.choice(('"k"', "7", "'topic'", "mqSet"))
            pairs.append(f"{key}:{value(depth + 1) if rng.random() < 0.8 else 1}")
        return "{" + ",".join(pairs) + "}"

    return value(0).encode()


def run_json(data: bytes) -> Hashable:
    """A body in JSON or its dialect; what was read can be written, and the readers of bodies name what they miss."""
    document = loads(data)
    ended: list[object] = [type(document).__name__]
    try:
        loads(dumps(document))
    except ProtocolError:
        ended.append("not to be written")  # whole numbers beyond 64 bits
    if isinstance(document, dict):
        command = RemotingCommand(0, 0, body=data)
        ended += [_refused(read, document) for read in (queue_map, GroupSubscription.from_json)]
        ended.append(_refused(broker.processors.lock._read, command))
        ended += [_refused(GroupSubscription.from_json, entry) for entry in _entries(document)]
    ended.append(_refused(lambda body: parse_registration(body, False), data))
    return tuple(ended)


def run_loop_json(data: bytes) -> Hashable:
    """A body that is read while others wait."""
    return type(loads_body(data)).__name__


_LARGEST = (
    *(
        (b"[", b"[],", b"[]]"),
        (b"[", b"{},", b"1]"),
        (b"{", b"1:1,", b"1:1}"),
        (b"[", b"'a\\',", b"1]"),
        (b"[", b"1.5e300,", b"1]"),
    ),
    *((b"[", b'"\\u0041",', b"1]"), (b"[", b"9", b"]"), (b"[" * 60, b"[1],", b"1" + b"]" * 60), (b"{1:", b"{2:", b"}")),
    *((b'{"mqSet":[', b'{"a":1},', b"1]}"), (b"", b"[", b""), (b"", b'{"a":', b""), (b"[", b"{{1:1}:1},", b"1]")),
)


def make_largest(rng: Random) -> bytes:
    """A body as long as one may be, of one piece again and again."""
    begin, piece, end = rng.choice(_LARGEST)
    size = rng.choice((DIALECT_BYTES_MAX, BODY_BYTES_MAX)) + rng.randrange(-1, 2)
    count, more = divmod(size - len(begin) - len(end), len(piece))
    return begin + piece * count + b" " * more + end


def _entries(document: dict[str, Any]) -> list[Any]:
    consumers = document.get("consumerDataSet")
    first = consumers[0] if isinstance(consumers, list) and consumers else None
    entries = first.get("subscriptionDataSet") if isinstance(first, dict) else None
    return entries[:3] if isinstance(entries, list) else []


def _refused(read: Any, argument: Any) -> bool:
    try:
        read(argument)
    except ProtocolError:
        return True
    return False


# ------------------------------------------------------------------------------------------------ filters


SQL_TEXTS = (
    "region IN ('north', 'east') AND price BETWEEN 10 AND 20.5",
    "a IS NOT NULL OR NOT (b = TRUE) AND c <> 'it''s'",
    "-5.5e3 < a AND 07 > - - b OR x CONTAINS 'y' AND z NOT STARTSWITH 'q' AND e ENDSWITH ''",
    "a NOT BETWEEN -1 AND 0x OR b NOT IN ('1','2') -- to the end\n /* and ** this */ AND 12345678901L >= c",
    "((((a = 1)))) AND b IS NULL",
)
SQL_WORDS = tuple(
    f" {word} ".encode()
    for word in (
        *("(", ")", "=", "<>", ">", ">=", "<", "<=", ",", "+", "-", "NOT", "AND", "OR", "IN", "IS", "NULL", "TRUE"),
        *("FALSE", "BETWEEN", "CONTAINS", "STARTSWITH", "ENDSWITH"),
        *(
            "'x'",
            "''",
            "5",
            "5.5",
            ".5e400",
            "9223372036854775807",
            "9223372036854775808",
            "0",
            "1L",
            "a",
            "b",
            "price",
        ),
        *("--", "/*", "*/", "\n", "'", "1e-400", "IS NOT NULL", "NOT NOT", "- -"),
    )
)
MESSAGES = (
    "",
    "a\x01b\x02price\x0115\x02region\x01north\x02x\x01yy\x02b\x01TRUE\x02",
    "a\x015\x02b\x01-1.5e3\x02c\x01NaN\x02price\x010x1p4\x02z\x019999999999999999999\x02e\x01 7 \x02",
    "a\x01\u0663\x02b\x01Infinity\x02c\x01true\x02price\x01-0\x02",
)


def make_sql(rng: Random) -> bytes:
    """An expression by the grammar, sometimes deeper than is allowed."""

    def primary(depth: int) -> str:
        if depth <= 0 or rng.random() < 0.7:
            return rng.choice(("a", "b", "price", "5", "-1.5", "'x'", "TRUE", "NULL", "3000000000", "'7'", "1e3", "c"))
        return f"({condition(depth - 1)})"

    def condition(depth: int) -> str:
        left = f"{rng.choice(('', '', '-', 'NOT ', '+'))}{primary(depth)}"
        kind = rng.randrange(7)
        if kind == 0:
            left = f"{left} {rng.choice(('=', '<>', '<', '<=', '>', '>='))} {primary(depth)}"
        elif kind == 1:
            left = f"{left} {rng.choice(('', 'NOT '))}BETWEEN {primary(depth)} AND {primary(depth)}"
        elif kind == 2:
            left = f"{left} {rng.choice(('', 'NOT '))}IN ('x', '5', 'TRUE')"
        elif kind == 3:
            left = f"{left} IS {rng.choice(('', 'NOT '))}NULL"
        elif kind == 4:
            left = f"{left} {rng.choice(('CONTAINS', 'NOT STARTSWITH', 'ENDSWITH'))} 'x'"
        elif kind == 5:
            left = f"{left} {rng.choice(('AND', 'OR', '=', '<>'))} {condition(depth - 1) if depth > 0 else 'TRUE'}"
        return left

    text = condition(rng.choice((1, 2, 3, 5)))
    if rng.random() < 0.02:
        deep = rng.randrange(60, 140)
        text = rng.choice(("(", "-", "NOT ", "a = (")) * deep + text + ")" * rng.choice((0, deep))
    return text.encode()


def run_sql(data: bytes) -> Hashable:
    """A filter: it compiles or says where it does not; then it answers True or False for every message."""
    wants = compile_sql92(data.decode("utf-8", "replace"))
    return tuple(_boolean(wants.matches(message)) for message in MESSAGES)


def _boolean(value: object) -> bool:
    assert isinstance(value, bool), value
    return value


def run_tags(data: bytes) -> Hashable:
    """A tag expression."""
    codes = TagFilter.from_expression(data.decode("utf-8", "replace")).codes
    return None if codes is None else len(codes)


_JSON_MODULES = (
    remoting.json_dialect,
    broker.net.clients,
    broker.processors.lock,
    broker.naming.registration,
    broker.naming.routes,
)
_EXT_WORDS = (b'"extFields":{', b'":"', b'","', b'":[', b'":{', b"},", b'"code":', b'"opaque":', b'"remark":')

TARGETS = (
    Target("frames", run_frames, _frames, (), (remoting.connection, remoting.command), words=_EXT_WORDS, in_loop=True),
    Target(
        *("json_header", run_header, _json_headers, (ProtocolError,), (remoting.command,)),
        words=(*_EXT_WORDS, *JSON_WORDS),
        repair=_right_length,
        in_loop=True,
    ),
    Target(
        *("binary_header", run_header, _binary_headers, (ProtocolError,), (remoting.command,)),
        words=(b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\x01a\0\0\0\x01b", b"\x01\0\0\0"),
        in_loop=True,
    ),
    Target(
        *("header_fields", run_fields, lambda: [json.dumps(ext).encode() for ext in EXTS], (), (remoting.headers,)),
        words=(*NUMBERS, *(f'"{name}"'.encode() for name in (*SEND_EXT, *PULL_EXT)), b'""', b'"true"', b"null"),
        in_loop=True,
    ),
    Target(
        *("properties", run_properties, lambda: [text.encode() for text in (PROPERTIES, TIMED, OWN, "")], ()),
        (remoting.messages.properties, remoting.messages.keys, broker_plugin.rules.properties),
        words=(
            *(b"\x01", b"\x02", b"KEYS\x01", b"\x02TAGS\x01", b"__TW_ID\x01", b"TIMER_DELIVER_MS\x01", b"DELAY\x01"),
            *(
                b"__STARTDELIVERTIME\x01",
                b"TIMER_DELAY_SEC\x01",
                b"\x02\x02",
                b"\x01\x02",
                b"KEYS",
                *NUMBERS,
                b"9" * 5000,
            ),
        ),
        in_loop=True,
    ),
    Target("batch", run_batch, _batches, (MessageError,), (remoting.messages.batch,), in_loop=True),
    Target(
        *("message_id", run_message_id, lambda: [b"C0A8010100002A9F0000000000000064", b"0" * 56], (MessageError,)),
        (remoting.hosts,),
        words=(b" ", b"\xc3\xa4", b"f", b"\xff"),
    ),
    Target(
        *("json_bodies", run_json, _json_bodies, (ProtocolError,), _JSON_MODULES),
        words=JSON_WORDS,
        make=make_json,
        memory=2_000,
    ),
    Target(
        *("json_in_loop", run_loop_json, _json_bodies, (ProtocolError,), (remoting.json_dialect,)),
        words=JSON_WORDS,
        make=make_largest,
        memory=2_000,
        in_loop=True,
    ),
    Target(
        *("sql92", run_sql, lambda: [text.encode() for text in SQL_TEXTS], (Sql92Error,)),
        (
            remoting.filters.sql_filter,
            remoting.filters.sql_nodes,
            remoting.filters.sql_tokens,
            remoting.filters.sql_values,
        ),
        words=SQL_WORDS,
        make=make_sql,
        memory=2_000,
        in_loop=True,
    ),
    Target(
        *("tags", run_tags, lambda: [b"*", b"TagA || TagB", b"||", b" a||||b "], (ProtocolError,)),
        (remoting.filters.subscription,),
        words=(b"||", b"|", b"*", b" ", b"\xf0\x9f\x98\x80"),
        in_loop=True,
    ),
)
