"""Requests about popping and assignment that something is wrong with, and a world of popped messages for them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.wait import wait_until
from tests.support.wire import Wire
from tests.support.wire_admin import create_group

__all__ = ["DIFFERENCES", "GROUP", "QUEUES", "TOPIC", "Answer", "Case", "World", "cases"]

TOPIC, OTHER, GROUP, OTHER_GROUP = "pop-bad", "pop-other", "pop-bad-group", "pop-other-group"
QUEUES, INVISIBLE_MS = 4, 600_000
CENTURY_MS = 100 * 365 * 86_400_000
BILLION = 10**9
POP, ACK, PEEK, CHANGE, NOTIFY, POLLING, BATCH = 200050, 200051, 200052, 200053, 200054, 200055, 200151
ASSIGN, SET_MODE, MODES = 400, 401, 402


@dataclass(frozen=True)
class Case:
    """One request: its name, what is asked, and a text that the refusal should hold."""

    name: str
    code: int
    fields: dict[str, Any] = field(hash=False)
    body: bytes = b""
    value: str = ""


@dataclass(frozen=True)
class Answer:
    """What a broker answered."""

    code: int
    remark: str
    fields: dict[str, str]
    body: bytes


class World:
    """A broker with a message in each queue of two topics, popped by a group for ten minutes."""

    def __init__(self, address: str, namesrv: str, broker_name: str = "broker-a") -> None:
        self.wire = Wire(address, 30)
        self.broker_name = broker_name
        for topic in (TOPIC, OTHER):
            self.wire.create_topic(topic, QUEUES)
        for group in (GROUP, OTHER_GROUP):
            create_group(self.wire, group)
        with Wire(namesrv) as names:
            names.wait_route(TOPIC, 30)
        for topic in (TOPIC, OTHER):
            for queue_id in range(QUEUES):
                self.send(topic, queue_id, f"{topic}-{queue_id}".encode())
        self.handles = {queue_id: self._pop(queue_id, INVISIBLE_MS) for queue_id in range(QUEUES)}
        self.send(OTHER, 0, b"soon over")
        self._pop(0, INVISIBLE_MS, OTHER)
        self.expired = self._pop(0, 1_000, OTHER)

    def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> Answer:
        """Make a request."""
        if "bornTime" in fields:
            fields = {**fields, "bornTime": int(time.time() * 1000)}
        opaque = self.wire.send(code, fields, body)
        while True:
            header, data = self.wire.receive()
            if header["opaque"] == opaque and header["flag"] & 1:
                return Answer(header["code"], header.get("remark") or "", header.get("extFields") or {}, data)

    def send(self, topic: str, queue_id: int, body: bytes) -> None:
        """Send a message to a queue."""
        values = ("pop-p", topic, "TBW102", 4, queue_id, 0, 1_700_000_000_000, 0, "", 0, "false", "false")
        assert self.ask(310, dict(zip("abcdefghijkm", values, strict=True)), body).code == 0

    def _pop(self, queue_id: int, invisible_ms: int, topic: str = TOPIC) -> str:
        """Pop one message of a queue; its handle."""
        found: list[str] = []

        def pop() -> bool:
            fields = pop_fields(topic=topic, queueId=queue_id, maxMsgNums=1, invisibleTime=invisible_ms)
            answer = self.ask(POP, fields)
            if answer.code == 0:
                ext = answer.fields
                start = ext["startOffsetInfo"].split(" ")[2]
                offset = ext["msgOffsetInfo"].split(" ")[2]
                parts = (start, ext["popTime"], ext["invisibleTime"], ext["reviveQid"], 0, self.broker_name)
                found.append(" ".join(map(str, (*parts, queue_id, offset))))
            return answer.code == 0

        wait_until(pop, 30, f"a message of {topic}-{queue_id}")
        return found[0]

    def acked_all(self) -> list[int]:
        """Acknowledge what was popped first; the codes."""
        return [self.ask(ACK, ack_fields(handle, queue_id)).code for queue_id, handle in self.handles.items()]

    def close(self) -> None:
        """Close the connection."""
        self.wire.close()


def pop_fields(**fields: Any) -> dict[str, Any]:
    """Header fields of POP_MESSAGE; the other looks take what they need of them."""
    usual = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000}
    rest = {"pollTime": 0, "bornTime": 0, "initMode": 0, "order": "false"}
    return {**usual, **rest, **fields}


def ack_fields(handle: str, queue_id: int, **fields: Any) -> dict[str, Any]:
    """Header fields of ACK_MESSAGE, and of CHANGE_MESSAGE_INVISIBLETIME with ``invisibleTime``."""
    usual = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id, "extraInfo": handle, "offset": 0}
    return {**usual, **fields}


def _handles(world: World) -> Iterator[tuple[str, str]]:
    """Handles that name nothing that is in flight, with a word for each."""
    good = world.handles[0].split(" ")
    yield "handle of noise", "nonsense"
    yield "handle of words", "a b c d e f g h"
    yield "handle cut off", " ".join(good[:4])
    yield "unknown start", " ".join(["1", *good[1:]])
    yield "unknown pop time", " ".join([good[0], str(int(good[1]) - 5), *good[2:]])
    yield "huge numbers", " ".join(["9" * 30, *good[1:]])
    yield "another broker's handle", " ".join([*good[:5], "broker-x", *good[6:]])
    yield "another queue's handle", world.handles[1]
    yield "an expired handle", world.expired


def _acks(world: World) -> Iterator[Case]:
    good = world.handles[0]
    for code, more in ((ACK, {}), (CHANGE, {"invisibleTime": 60_000})):
        for word, handle in _handles(world):
            topic = OTHER if word == "an expired handle" else TOPIC
            offset = 1 if word == "an expired handle" else 0
            yield Case(f"{code} {word}", code, ack_fields(handle, 0, topic=topic, offset=offset, **more))
        for queue_id in (-1, QUEUES, 2**31 - 1):
            fields = ack_fields(good, queue_id, **more)
            yield Case(f"{code} queueId={queue_id}", code, fields, value=str(queue_id))
        for offset in (-1, BILLION):
            fields = ack_fields(good, 0, offset=offset, **more)
            yield Case(f"{code} offset={offset}", code, fields, value=str(offset))
        for name, value in (("topic", "unheard-of"), ("consumerGroup", OTHER_GROUP), ("consumerGroup", "unheard-of")):
            yield Case(f"{code} {name}={value}", code, ack_fields(good, 0, **{name: value}, **more), value="")
        for name in ("topic", "consumerGroup", "queueId", "offset", "extraInfo", *more):
            fields = {key: value for key, value in ack_fields(good, 0, **more).items() if key != name}
            yield Case(f"{code} without {name}", code, fields, value=name)
    for value in (-1, CENTURY_MS, "x"):
        fields = ack_fields(good, 0, invisibleTime=value)
        yield Case(f"{CHANGE} invisibleTime={value}", CHANGE, fields, value=str(value))


def _batches(world: World) -> Iterator[Case]:
    start, pop_ms, invisible_ms, revive = map(int, world.handles[0].split(" ")[:4])
    good = {"c": GROUP, "t": TOPIC, "r": "0", "so": start, "q": 0, "rq": revive, "pt": pop_ms, "it": invisible_ms}
    good["b"] = ""  # no bit is set

    def body(**fields: Any) -> bytes:
        return json.dumps({"brokerName": "broker-a", "acks": [{**good, **fields}]}).encode()

    bodies = {"no body": b"", "body of noise": b"\xff\xfe", "body is a list": b"[1]", "body is null": b"null"}
    bodies |= {"no acks": b"{}", "empty acks": b'{"acks":[]}', "acks of numbers": b'{"acks":[1]}'}
    bodies |= {"acks is a text": b'{"acks":"x"}', "bits of null": body(b=None)}
    bodies |= {"bits of noise": body(b="?!"), "unknown topic": body(t="unheard-of", b="AQ==")}
    bodies |= {"unknown queue": body(q=77, b="AQ=="), "unknown group": body(c="unheard-of", b="AQ==")}
    bodies |= {"unknown pop time": body(pt=5, b="AQ==")}
    for word, data in bodies.items():
        yield Case(f"{BATCH} {word}", BATCH, {}, data)


def _looks() -> Iterator[Case]:
    for code in (POP, PEEK, NOTIFY, POLLING):
        bad: list[tuple[str, Any]] = [("topic", "unheard-of"), ("queueId", QUEUES), ("queueId", 2**31 - 1)]
        needs = ["topic", "consumerGroup", "queueId"]
        if code in (POP, PEEK):
            bad += [("maxMsgNums", value) for value in (-1, 33, BILLION)]
            needs.append("maxMsgNums")
        if code == POP:
            bad += [("invisibleTime", value) for value in (-1, 0, CENTURY_MS)]
            bad += [("exp", "||"), ("expType", "NONSENSE")]
            needs += ["invisibleTime", "pollTime", "initMode"]
        for name, value in bad:
            more = {"exp": "x"} if name == "expType" else {}
            yield Case(f"{code} {name}={value}", code, pop_fields(**more, **{name: value}), value=str(value))
        for name in needs:
            fields = {key: value for key, value in pop_fields().items() if key != name}
            yield Case(f"{code} without {name}", code, fields, value=name)
    yield Case(f"{POP} maxMsgNums=0", POP, pop_fields(maxMsgNums=0))
    yield Case(f"{POP} good sql", POP, pop_fields(expType="SQL92", exp="a > 1"))
    yield Case(f"{POP} bad sql", POP, pop_fields(expType="SQL92", exp="a >"), value="column 4")


def _assignments() -> Iterator[Case]:
    good = {"topic": TOPIC, "consumerGroup": GROUP, "clientId": "c", "strategyName": "AVG"}
    model = {"messageModel": "CLUSTERING"}
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 8}

    def case(word: str, code: int, document: Any, value: str = "") -> Case:
        return Case(f"{code} {word}", code, {}, json.dumps(document).encode(), value)

    for code, whole in ((ASSIGN, good | model), (SET_MODE, mode)):
        yield Case(f"{code} no body", code, {}, b"")
        yield Case(f"{code} body of noise", code, {}, b"\xff\xfe")
        yield case("body is a list", code, [1])
        for name in ("topic", "consumerGroup"):
            yield case(f"without {name}", code, {key: value for key, value in whole.items() if key != name}, name)
        yield case("unknown topic", code, whole | {"topic": "unheard-of"})
    yield case("nobody there", ASSIGN, good | model)
    yield case("broadcasting", ASSIGN, good | {"messageModel": "BROADCASTING"})
    yield case("without messageModel", ASSIGN, good, "messageModel")
    yield case("messageModel=NONSENSE", ASSIGN, good | {"messageModel": "NONSENSE"}, "NONSENSE")
    yield case("without strategyName", ASSIGN, {"topic": TOPIC, "consumerGroup": GROUP, "clientId": "c"} | model)
    yield case("retry topic", SET_MODE, mode | {"topic": f"%RETRY%{GROUP}"}, f"%RETRY%{GROUP}")
    yield case("mode=NONSENSE", SET_MODE, mode | {"mode": "NONSENSE"}, "NONSENSE")
    yield case("popShareQueueNum=x", SET_MODE, mode | {"popShareQueueNum": "x"}, "x")
    yield case("popShareQueueNum too large", SET_MODE, mode | {"popShareQueueNum": 2**40}, str(2**40))
    yield case("good", SET_MODE, mode)
    yield case("good, without mode", SET_MODE, {"topic": TOPIC, "consumerGroup": OTHER_GROUP})
    yield Case(f"{MODES} good", MODES, {})


def cases(world: World) -> list[Case]:
    """All cases, for the handles of one broker."""
    return [*_acks(world), *_batches(world), *_looks(), *_assignments()]


_NEEDED = "what the header class needs must be there: the refusal names it, Apache's broker goes on with null"
_GONE = "nothing is in flight by that handle; Apache's broker says SUCCESS, and delivers the message once more"
_RANGE = "an impossible time is refused with the value; Apache's broker takes it, or ends in an exception"
_PEEKED = "as many as a pop may have; Apache's broker makes room for so many first, and runs out of memory"
DIFFERENCES: list[tuple[str, int, int, str]] = [
    (rf"({ACK}|{CHANGE}) without consumerGroup", 1, 0, _NEEDED),
    (rf"{POP} without (queueId|maxMsgNums|invisibleTime|pollTime|initMode)", 1, 210, _NEEDED),
    (rf"{PEEK} without (queueId|maxMsgNums)", 1, 19, _NEEDED),
    (rf"({NOTIFY}|{POLLING}) without queueId", 1, 0, _NEEDED),
    (rf"{CHANGE} (unknown .*|another .*|an expired handle|consumerGroup=.*)", 208, 0, _GONE),
    (rf"{CHANGE} invisibleTime=-1", 29, 0, _RANGE),
    (rf"{CHANGE} invisibleTime={CENTURY_MS}", 29, 1, _RANGE),
    (rf"{SET_MODE} mode=NONSENSE", 29, 0, "there is no such mode; Apache's broker keeps null and tells clients so"),
    (rf"{PEEK} maxMsgNums=(-1|{BILLION})", 29, 1, _PEEKED),
    (rf"{PEEK} maxMsgNums=33", 29, 19, _PEEKED),
    (rf"{POP} maxMsgNums=-1", 29, 1, "refused by name; Apache's broker ends in an exception"),
    (rf"{POP} invisibleTime=.*", 29, 210, _RANGE),
]
"""Cases (a pattern of their names) that are answered otherwise on purpose: our code, Apache's, and why."""
