"""What cannot be meant is refused where it is said: the error names the argument, the value and what is right."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.messages.properties import parse_properties
from tests.support.fake_broker import FakeBroker
from timewheel_client import BatchMessage, Consumer, MessageQueue, Producer, Sql
from timewheel_client.values.client_values import properties_text
from timewheel_client.values.reserved import RESERVED_NAMES, ReceivedProperties

SEND = RequestCode.SEND_MESSAGE_V2

WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"topic": 5}, "topic must be a text (str), found 5 (int)"),
    ({"topic": b"t"}, "topic must be a text (str), found b't' (bytes)"),
    ({"body": 4711}, "body must be bytes or str, found 4711 (int)"),
    ({"body": None}, "body must be bytes or str, found None (NoneType)"),
    ({"body": [1, 2]}, "body must be bytes or str, found [1, 2] (list)"),
    ({"tags": 5}, "tags must be a text (str), found 5 (int)"),
    ({"tags": ["a"]}, "tags must be a text (str), found ['a'] (list)"),
    ({"keys": 5}, "keys must be a text or several texts, found 5 (int)"),
    ({"keys": b"k"}, "keys must be a text or several texts, found b'k' (bytes)"),
    ({"keys": ["a", 5]}, "each of keys must be a text (str), found 5 (int)"),
    ({"properties": [("a", "b")]}, "properties must be a mapping of text to text"),
    ({"properties": {"a": 5}}, "property 'a' must be a text (str), found 5 (int)"),
    ({"properties": {5: "a"}}, "the name of a property must be a text (str), found 5 (int)"),
    ({"sharding_key": 7}, "sharding_key must be a text (str), found 7 (int)"),
    ({"queue": "0"}, "queue must be an int from 0 to 2147483647, found '0' (str)"),
    ({"queue": True}, "queue must be an int from 0 to 2147483647, found True (bool)"),
    ({"flag": "1"}, "flag must be an int from -2147483648 to 2147483647, found '1' (str)"),
    ({"level": "3"}, "level must be an int from 1 to 18, found '3' (str)"),
    ({"at": 1.5}, "at must be a datetime with its zone or epoch milliseconds as int, found 1.5 (float)"),
    ({"delay": "1s"}, "delay must be a timedelta or seconds, found '1s' (str)"),
]
WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"topic": ""}, "topic is empty"),
    ({"level": 99}, "level must lie between 1 and 18, found 99"),
    ({"level": 0}, "level must lie between 1 and 18, found 0"),
    ({"flag": 1 << 31}, "flag must lie between -2147483648 and 2147483647, found 2147483648"),
    ({"queue": -1}, "queue must lie between 0 and 2147483647, found -1"),
    ({"queue": MessageQueue("other", "broker-a", 0)}, "queue is one of topic 'other', the message goes to 't'"),
    ({"at": 10**4_999}, "at=a number of about 5,000 digits is no time of this century"),
    ({"delay": 10**4_999}, "delay is too long for a message, at most 9223372036854775807 ms: a number of about 5,000"),
    ({"delay": -(10**4_999)}, "delay is negative: a number of about 5,000 digits"),
    ({"level": 10**4_999}, "level must lie between 1 and 18, found a number of about 5,000 digits"),
    ({"at": 1_893_456_000}, "at=1893456000 is no time of this century in epoch milliseconds"),
    ({"tags": "a\0"}, r"tags contains the control character '\x00', which no broker can keep"),
    ({"keys": ["a\x01"]}, r"each of keys contains the control character '\x01'"),
    ({"sharding_key": "\x02"}, r"sharding_key contains the control character '\x02'"),
    ({"properties": {"a": "x\0"}}, r"property 'a' contains the control character '\x00'"),
    ({"properties": {"a\x01": "x"}}, r"the name of a property contains the control character '\x01'"),
    ({"properties": {"a": "\x02x"}}, r"property 'a' contains the control character '\x02'"),
    ({"properties": {"TRAN_MSG": "true"}}, "reserved property name 'TRAN_MSG'"),
    ({"properties": {"TAGS": "t"}}, "reserved property name 'TAGS' (use tags=)"),
    ({"properties": {"TIMER_DELIVER_MS": "5", "x": "y"}}, "'TIMER_DELIVER_MS' (use at=, delay= or level=)"),
    ({"properties": {"UNIQ_KEY": "A"}}, "give message.properties itself or message.user_properties"),
    ({"properties": {"WAIT": "true", "DELAY": "3"}}, "reserved property names 'WAIT', 'DELAY'"),
    ({"properties": {"__RMQ.TRANSIENT.X": "1"}}, "reserved property name '__RMQ.TRANSIENT.X'"),
]


@pytest.mark.asyncio
async def test_what_cannot_be_sent_is_refused_before_anything_is_sent() -> None:
    async with FakeBroker({"t": 1}) as broker, Producer(broker.address) as producer:
        for kind, cases in ((TypeError, WRONG_TYPES), (ValueError, WRONG_VALUES)):
            for wrong, text in cases:
                arguments = {"topic": "t", "body": b"x", **wrong}
                for send in (producer.send, producer.send_oneway):
                    with pytest.raises(kind, match=re.escape(text)):
                        await send(**arguments)
        assert not broker.of(SEND)


@pytest.mark.asyncio
async def test_a_batch_is_a_list_of_messages() -> None:
    """``send_batch(topic, "abc")`` sent three messages."""
    async with FakeBroker({"t": 1}) as broker, Producer(broker.address) as producer:
        for wrong in ("abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), 5, None, {"a": 1}):
            with pytest.raises(TypeError, match="messages must be a list of messages"):
                await producer.send_batch("t", wrong)  # type: ignore[arg-type]
        for element in (5, None, ["a"], BatchMessage(5)):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"message 1 .*must be bytes or str"):
                await producer.send_batch("t", ["a", element])  # type: ignore[list-item]
        assert not broker.of(RequestCode.SEND_BATCH_MESSAGE)


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"topics": 5}, TypeError, "topics must be a text, several or a mapping, found 5 (int)"),
        ({"topics": ["a", 5]}, TypeError, "each of topics must be a text (str), found 5 (int)"),
        ({"topics": {"a": 5}}, TypeError, "tags of a must be a text (str), found 5 (int)"),
        ({"topics": {"a": Sql("")}}, ValueError, "sql of a is empty"),
        ({"topics": b"t"}, TypeError, "topics must be a text, several or a mapping"),
        ({"group": 5}, TypeError, "group must be a text (str), found 5 (int)"),
        ({"tags": 5}, TypeError, "tags must be a text (str), found 5 (int)"),
        ({"sql": 5}, TypeError, "sql must be a text (str), found 5 (int)"),
        ({"sql": "a = 1", "tags": "a"}, ValueError, "tags and sql exclude each other"),
        ({"pull_count": "9"}, TypeError, "pull_count must be an int from 1"),
        ({"max_open": 0}, ValueError, "max_open must lie between 1 and"),
        ({"max_body_bytes": 0}, ValueError, "max_body_bytes must lie between 1 and"),
        ({"on_undecodable": 5}, TypeError, "on_undecodable must be an async function, found 5"),
        ({"namesrv": 9876}, TypeError, "namesrv must be a text HOST:PORT;HOST:PORT or a list of HOST:PORT, found 9876"),
        ({"namesrv": ["h:1", 5]}, TypeError, "namesrv must be a text (str), found 5 (int)"),
        ({"tls": 5}, TypeError, "tls must be a bool, a path or an SSLContext, found 5 (int)"),
        ({"tls": "/nowhere.pem"}, ValueError, "tls: cannot use /nowhere.pem: No such file or directory"),
    ],
)
def test_a_consumer_s_arguments(wrong: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        Consumer(**{"namesrv": "h:1", "group": "g", "topics": "t", **wrong})


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"timeout_ms": 0}, ValueError, "timeout_ms must lie between 1 and"),
        ({"timeout_ms": 1.5}, TypeError, "timeout_ms must be an int from 1"),
        ({"attempt_timeout_ms": -1}, ValueError, "attempt_timeout_ms must lie between 1 and"),
        ({"attempts": 0}, ValueError, "attempts must lie between 1 and"),
        ({"group": ""}, ValueError, "group is empty"),
    ],
)
def test_a_producer_s_arguments(wrong: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        Producer(**{"namesrv": "h:1", **wrong})


@given(st.sampled_from(sorted(RESERVED_NAMES)), st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_no_reserved_name_gets_through(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=re.escape(name)):
        properties_text("ID", properties={"x": "y", name: value})


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_properties_arrive_as_they_were_given_or_are_refused(properties: dict[str, str]) -> None:
    try:
        text = properties_text("ID", properties=properties)
    except ValueError:
        signs = "".join([*properties, *properties.values()])
        refused = any(sign in signs for sign in "\0\x01\x02") or "" in properties or "" in properties.values()
        assert refused or RESERVED_NAMES & properties.keys()
    else:
        assert parse_properties(text) == {**properties, "UNIQ_KEY": "ID"}


@pytest.mark.asyncio
async def test_forwarded_properties_make_a_new_message() -> None:
    """A message that was sent on with the properties of another one had that one's id, and was taken for a repeat."""
    received = ReceivedProperties(
        {
            "UNIQ_KEY": "OLD",
            "TAGS": "t",
            "KEYS": "k l",
            "colour": "red",
            "TRAN_MSG": "true",
            "PGROUP": "p",
            "MSG_REGION": "r",
            "DELAY": "3",
            "TIMER_DELIVER_MS": "99",
            "RETRY_TOPIC": "other",
            "__TW_ID": "1.2",
            "__TW_DUE": "99",
        }
    )
    async with FakeBroker({"t": 1}) as broker, Producer(broker.address) as producer:
        broker.handlers[SEND] = _stored
        broker.handlers[RequestCode.SEND_BATCH_MESSAGE] = _stored
        sent = await producer.send("t", b"x", properties=received)
        (again,) = await producer.send_batch("t", [BatchMessage(b"x", tags="new", properties=received)])
        with pytest.raises(ValueError, match="'UNIQ_KEY'"):
            await producer.send("t", b"x", properties=dict(received))
        kept = parse_properties(broker.of(SEND)[0].ext["i"])
    assert kept == {"UNIQ_KEY": sent.message_id, "TAGS": "t", "KEYS": "k l", "colour": "red"}
    assert len({"OLD", sent.message_id, again.message_id}) == 3


def _stored(command: RemotingCommand) -> RemotingCommand:
    return command.reply(ext={"msgId": "A" * 32, "queueId": "0", "queueOffset": "0"})


@pytest.mark.asyncio
async def test_a_reply_whose_numbers_are_none_is_stored_all_the_same() -> None:
    async with FakeBroker({"t": 1}) as broker, Producer(broker.address) as producer:
        broker.handlers[SEND] = lambda command: command.reply(ext={"queueOffset": "9" * 5000, "queueId": "?"})
        async with asyncio.timeout(5):
            result = await producer.send("t", b"x")
    assert (result.queue.queue_id, result.queue_offset, result.status) == (0, 0, "SEND_OK")
