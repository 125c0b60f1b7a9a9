"""Requests that something is wrong with: for each code a request as it should be, and what is done to it.

A case is a code, header fields and a body. They are made from the table below by taking away each field, by values
that are no numbers or out of range, by unknown topics and groups, and by bodies that cannot be read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.pull_fields import pull_fields

__all__ = [
    "BROKER",
    "DIFFERENCES",
    "FRAMES",
    "GROUP",
    "NAME_SERVER",
    "NO_VALUE",
    "TOPIC",
    "Case",
    "Difference",
    "cases",
]

TOPIC, GROUP = "bad-topic", "bad-group"
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True)
class Case:
    """One request: what is wrong, the fields and the body, and a text that the refusal should hold."""

    code: int
    wrong: str
    fields: dict[str, str] = field(hash=False)
    body: bytes = b""
    value: str = ""

    @property
    def name(self) -> str:
        """Code and fault."""
        return f"{self.code} {self.wrong}"


@dataclass(frozen=True)
class Good:
    """A request as it should be."""

    fields: dict[str, Any]
    body: bytes = b""


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _batch(*bodies: bytes) -> bytes:
    """Write messages as a batch holds them, without properties."""
    elements = [struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)) + body + b"\0\0" for body in bodies]
    return b"".join(elements)


_SEND = {
    "producerGroup": "bad-p",
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 1_700_000_000_000,
    "flag": 0,
    "properties": "KEYS\x01k\x02",
    "reconsumeTimes": 0,
    "unitMode": "false",
    "batch": "false",
}
_SEND_V2 = dict(zip("abcdefghijkm", _SEND.values(), strict=True))
_PULL = pull_fields(GROUP, TOPIC)
_QUEUE = {"topic": TOPIC, "queueId": 0}
_NEW_TOPIC = {
    "topic": "bad-new",
    "defaultTopic": "TBW102",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": "false",
}
_LOCK = _json(
    {"consumerGroup": GROUP, "clientId": "c", "mqSet": [{"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}]}
)
_HEART = _json({"clientID": "bad-client", "producerDataSet": [], "consumerDataSet": []})
_BROKER_ID = {"brokerName": "bad-broker", "brokerAddr": "192.0.2.1:1", "clusterName": "bad-cluster", "brokerId": 0}

BROKER: dict[int, Good] = {
    10: Good(_SEND, b"body"),
    310: Good(_SEND_V2, b"body"),
    320: Good({**_SEND_V2, "m": "true"}, _batch(b"one", b"two")),
    11: Good(_PULL),
    361: Good(_PULL),
    12: Good({"topic": TOPIC, "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": LONG_MAX}),
    14: Good({"consumerGroup": GROUP, **_QUEUE}),
    15: Good({"consumerGroup": GROUP, **_QUEUE, "commitOffset": 0}),
    17: Good(_NEW_TOPIC),
    18: Good(
        {}, _json({"topicConfigList": [{"topicName": "bad-new", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}]})
    ),
    25: Good({}, b"fileReservedTime=72"),
    29: Good({**_QUEUE, "timestamp": 0}),
    30: Good(_QUEUE),
    31: Good(_QUEUE),
    32: Good(_QUEUE),
    33: Good({"offset": 0, "topic": TOPIC}),
    34: Good({}, _HEART),
    35: Good({"clientID": "bad-client", "producerGroup": "bad-p", "consumerGroup": GROUP}),
    36: Good(
        {
            "offset": 0,
            "group": GROUP,
            "delayLevel": 3,
            "originMsgId": "x",
            "originTopic": TOPIC,
            "unitMode": "false",
            "maxReconsumeTimes": 16,
        }
    ),
    38: Good({"consumerGroup": GROUP}),
    41: Good({}, _LOCK),
    42: Good({}, _LOCK),
    46: Good({}, _json({"clientId": "c", "group": GROUP, "subscriptionData": {"topic": TOPIC, "subString": "*"}})),
    200: Good({}, _json({"groupName": GROUP})),
    202: Good({"topic": TOPIC}),
    203: Good({"consumerGroup": GROUP}),
    204: Good({"producerGroup": "bad-p"}),
    207: Good({"groupName": "bad-gone", "cleanOffset": "true"}),
    208: Good({"consumerGroup": GROUP, "topic": TOPIC}),
    215: Good({"topic": "bad-gone"}),
    222: Good({"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": "true", "offset": 0, "queueId": 0}),
    225: Good({}, _json({"groupConfigList": [{"groupName": GROUP}]})),
    300: Good({"topic": TOPIC}),
    303: Good({"topic": TOPIC, "group": GROUP}),
    307: Good({"consumerGroup": GROUP, "clientId": "bad-client", "jstackEnable": "false"}),
    309: Good({"consumerGroup": GROUP, "clientId": "bad-client", "msgId": "7F00000100002A9F0000000000000000"}),
    314: Good({"srcGroup": GROUP, "destGroup": "bad-clone", "topic": TOPIC, "offline": "false"}),
    315: Good({"statsName": "TOPIC_PUT_NUMS", "statsKey": "unheard-of"}),
    317: Good({"isOrder": "false"}),
    321: Good({**_QUEUE, "index": 0, "count": 10, "consumerGroup": ""}),
    343: Good({"group": GROUP}),
    345: Good({"group": GROUP, "topic": TOPIC}),
    351: Good({"topic": TOPIC}),
    352: Good({"group": GROUP}),
}
"""By code; a code that is served and does not stand here is asked without any fields only."""

NAME_SERVER: dict[int, Good] = {
    100: Good({"namespace": "bad", "key": "k", "value": "v"}),
    101: Good({"namespace": "bad", "key": "k"}),
    102: Good({"namespace": "bad", "key": "k"}),
    103: Good({**_BROKER_ID, "haServerAddr": "192.0.2.1:2", "compressed": "false", "bodyCrc32": 0}),
    104: Good(_BROKER_ID),
    105: Good({"topic": TOPIC}),
    205: Good({"brokerName": "bad-broker"}),
    216: Good({"topic": "bad-gone"}),
    217: Good({"topic": "bad-new"}, _json({"queueDatas": []})),
    219: Good({"namespace": "bad"}),
    224: Good({"cluster": "bad-cluster"}),
    318: Good({}, b"orderMessageEnable=false"),
    322: Good(_BROKER_ID, _json({"counter": 0, "stateVersion": 0, "timestamp": 0})),
    327: Good({"brokerName": "bad-broker"}),
    901: Good({"brokerName": "bad-broker", "clusterName": "bad-cluster"}),
    904: Good(_BROKER_ID),
}


@dataclass(frozen=True)
class Difference:
    """Cases (a pattern of their names) that are answered otherwise on purpose: our code, Apache's, and why."""

    cases: str
    ours: int
    apache: int
    why: str


_NEEDED = "what the header class needs must be there: the refusal names it, Apache's broker goes on with null"
_NUMBER = "a value that is no number is refused with the value; Apache's broker drops the field"
_ILLEGAL = (
    "MESSAGE_ILLEGAL tells a client that trying again is of no use; Apache's code 1 (an exception) has it try again"
)
_BODY = "a body that is no object is refused; Apache's broker takes it for an empty one"
_RANGE = "an impossible number is refused; Apache's broker creates a topic that cannot work"
DIFFERENCES = [
    Difference(r"\d+ without .*", 1, 0, _NEEDED),
    Difference(r"(101|219) without .*", 1, 22, _NEEDED),
    Difference(r"(12) without (topic|key)", 1, 22, _NEEDED),
    Difference(r"370 without anything", 1, 16, "the header is read before it is looked up whether recalls are allowed"),
    Difference(r"37000\d without anything", 29, 3, "our own codes, which Apache's broker does not know"),
    Difference(r"37000[346] without anything", 0, 3, "the same; without a condition it is about all that is pending"),
    Difference(r"(15|222) without (consumerGroup|group)", 1, 26, _NEEDED),
    Difference(r"\d+ \w+=(x|99999999999999999999)", 1, 0, _NUMBER),
    Difference(
        r"310 [gh]=99999999999999999999", 13, 1, "is noticed where the record is written: no check for each send"
    ),
    Difference(
        r"310 d=(x|99999999999999999999)", 0, 1, "is used for a topic that has to be made only: no check for each send"
    ),
    Difference(r"(10|310|320) no body", 13, 1, _ILLEGAL),
    Difference(r"320 (body over the limit|batch .*)", 13, 1, _ILLEGAL),
    Difference(r"17 \w+=-1", 29, 0, _RANGE),
    Difference(
        r"25 body .*", 1, 0, "a line that is no setting is refused as an unknown key; Apache's broker ignores it"
    ),
    Difference(r"(46|200|217) body is null", 1, 0, _BODY),
    Difference(r"(217|322) no body", 1, 0, _BODY),
    Difference(
        r"15 queueId=(-1|8|2147483647)", 29, 0, "there is no such queue; Apache's broker notes an offset for it"
    ),
    Difference(r"222 queueId=(8|2147483647)", 29, 0, "there is no such queue; Apache's broker notes an offset for it"),
    Difference(
        r"321 queueId=(-1|8|2147483647)", 1, 0, "there is no such queue; Apache's broker makes it by looking at it"
    ),
]
"""The one table of codes that deliberately differ from Apache's."""

NO_VALUE = {
    r"(11|361) queueOffset=.*": "the remark is Apache's name of what was found; the next offset stands in the header",
    r"361 consumerGroup=.*": "the same",
    r"(11|361) subscription=.*": "Apache's sentence",
    r"15 without commitOffset": "Apache's sentence: Offset is null",
    r"14 queueId=.*": "Apache's sentence for what has no offset yet, which is no error",
    r"(307|309) without .*": "the sentence says which client is not online",
}
"""Refusals whose remark does not hold the value, and why."""

_TOPIC_FIELDS = frozenset(("topic", "b", "originTopic"))
_GROUP_FIELDS = frozenset(("consumerGroup", "group", "srcGroup"))
_OFFSETS = frozenset(("queueOffset", "offset", "commitOffset", "index", "timestamp"))
_QUEUES = frozenset(("queueId", "e"))
_BODIES = {"no body": b"", "body of noise": b"\xff\xfe\x00noise", "body is a list": b"[1]", "body is null": b"null"}


def _values(name: str, good: Any, sends: bool) -> Iterator[str]:
    """Bad values of one field."""
    if isinstance(good, int):
        yield "x"
        yield "99999999999999999999"
    if name in _TOPIC_FIELDS:
        yield "unheard-of"
        if sends:
            yield "bad topic!"
            yield "SCHEDULE_TOPIC_XXXX"
            yield "t" * 300
    if name in _GROUP_FIELDS:
        yield "unheard-of-group"
        yield "bad group!"
    if name in _OFFSETS:
        yield "-1"
        yield "77777777"
        yield str(-LONG_MAX - 1)
    if name in _QUEUES:
        yield "-1"
        yield "8"
        yield str(INT_MAX)
    if name in ("maxMsgNums", "maxNum", "count"):
        yield "0"
        yield "-5"
    if name == "subscription":
        yield "||"
    if name in ("readQueueNums", "writeQueueNums", "perm"):
        yield "-1"
    if name == "topicFilterType":
        yield "NONSENSE"
    if name in ("i", "properties"):
        yield "P\x01" + "v" * 33_000 + "\x02"
        yield "no separators"
    if name == "msgId":
        yield "nonsense"


def _shown(bad: str) -> str:
    """What a refusal shows of a value: of long properties how long they are."""
    return "bytes, at most 32767" if len(bad) > 1_000 else bad


def _of(code: int, good: Good) -> Iterator[Case]:
    sends = code in (10, 310, 320)
    fields = {name: str(value) for name, value in good.fields.items()}
    for name, value in good.fields.items():
        left = {key: text for key, text in fields.items() if key != name}
        yield Case(code, f"without {name}", left, good.body, name)
        for bad in _values(name, value, sends):
            yield Case(code, f"{name}={bad:.24}", {**fields, name: bad}, good.body, _shown(bad))
    if good.body and not sends:
        for wrong, body in _BODIES.items():
            yield Case(code, wrong, fields, body)
    if sends:
        yield Case(code, "no body", fields, b"", "0 bytes")
        yield Case(code, "body over the limit", fields, b"x" * (4 * 2**20 + 1), str(4 * 2**20 + 1))
    if code == 320:
        yield Case(code, "batch of noise", fields, b"\0\0\0\x10noise that is no batch")
        yield Case(code, "batch is cut off", fields, good.body[:-3])
        yield Case(code, "batch with a size of 0", fields, bytes(4) + good.body)


def cases(codes: list[int], goods: dict[int, Good]) -> Iterator[Case]:
    """Yield all cases of some codes, the emptiest one first."""
    for code in codes:
        yield Case(code, "without anything", {})
        if code in goods:
            yield from _of(code, goods[code])


def _framed(header: bytes, body: bytes = b"", kind: int = 0, length: int | None = None) -> bytes:
    word = kind << 24 | (len(header) if length is None else length)
    return struct.pack(">iI", 4 + len(header) + len(body), word) + header + body


_CODE = 999
"""A code that nobody serves, so what is read as a request is answered with REQUEST_CODE_NOT_SUPPORTED."""


def _binary(remark: int = 0, ext: int = 0, rest: bytes = b"") -> bytes:
    """Write a binary header with lengths that may be wrong."""
    return struct.pack(">hBhiii", _CODE, 7, 409, 1, 0, remark) + struct.pack(">i", ext) + rest


_HEAD = b'{"code":%d,"language":"JAVA","version":409,"opaque":1,"flag":0' % _CODE
FRAMES: dict[str, bytes] = {
    "JSON header": _framed(_HEAD + b"}"),
    "binary header": _framed(_binary(), kind=1),
    "no JSON": _framed(b"this is no JSON"),
    "JSON is cut off": _framed(_HEAD),
    "JSON is a list": _framed(b"[1,2]"),
    "JSON code is a word": _framed(_HEAD.replace(b"999", b'"x"') + b"}"),
    "JSON opaque is a word": _framed(_HEAD.replace(b'"opaque":1', b'"opaque":"x"') + b"}"),
    "JSON extFields is a list": _framed(_HEAD + b',"extFields":[1]}'),
    "JSON extFields has an object": _framed(_HEAD + b',"extFields":{"a":{"b":1}}}'),
    "JSON extFields has a number": _framed(_HEAD + b',"extFields":{"a":1}}'),
    "JSON extFields is null": _framed(_HEAD + b',"extFields":null}'),
    "JSON of noise": _framed(b"\xff\xfe\xfd\xfc"),
    "binary is cut off": _framed(_binary()[:9], kind=1),
    "binary remark too long": _framed(_binary(remark=1_000), kind=1),
    "binary ext too long": _framed(_binary(ext=1_000), kind=1),
    "binary ext entry too long": _framed(_binary(ext=6, rest=b"\x7f\xffabcd"), kind=1),
    "unknown serialize type": _framed(_HEAD + b"}", kind=7),
    "header longer than the frame": _framed(_HEAD + b"}", length=100_000),
    "frame of a negative size": struct.pack(">iI", -5, 0) + b"rest",
    "frame over the limit": struct.pack(">iI", 1 << 30, 0) + b"rest",
}
"""Whole frames, the first two as they should be."""
