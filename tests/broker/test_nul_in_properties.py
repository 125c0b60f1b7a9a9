"""A NUL in a property: refused at every door through which a client's properties come in; bodies may hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import join_batch
from tests.broker.core_rig import Rig, properties

PLACES = {
    "value": "a\x01b\x02user\x01x\0y\x02",
    "only a NUL": "user\x01\0\x02",
    "many": "user\x01" + 1_023 * "\0" + "\x02",
    "first of all": "\0user\x01x\x02",
    "name": "us\0er\x01x\x02",
    "last": "user\x01x\x02\0",
    "without separators": "\0",
    "key": "UNIQ_KEY\x01\0abc\x02",
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("", {}),
    "another topic's first": ("", {"c": "TBW102", "d": 8}),
    "reconsumed": ("", {"j": 1}),
    "timed": ("__STARTDELIVERTIME\x011700000100000\x02", {}),
    "level": ("DELAY\x013\x02", {}),
    "half": ("TRAN_MSG\x01true\x02PGROUP\x01pg\x02", {"f": 4}),
}


@pytest.fixture
def rig(tmp_path: Path):
    rig = Rig(tmp_path / "store", DelayPlugin(), storeReplyMessageEnable="true")
    yield rig
    assert (rig.store.put_count, rig.core.turn.put_count) == (0, 0)
    rig.close()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_send(rig: Rig, kind: str, place: str) -> None:
    text, fields = KINDS[kind]
    for whole in (text + PLACES[place], PLACES[place] + "\x02" + text):
        reply = rig.client().send("T", whole, b"x", **fields)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"character {whole.index(chr(0))} of the properties" in reply.remark


def test_the_remark_names_the_property(rig: Rig) -> None:
    assert "in the value of property 'user'" in rig.client().send("T", PLACES["value"]).remark
    assert "name that begins with 'us'" in rig.client().send("T", PLACES["name"]).remark


def test_the_long_header_and_a_oneway_send(rig: Rig) -> None:
    client = rig.client()
    ext = {"producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0}
    ext |= {"sysFlag": 0, "bornTimestamp": 5, "flag": 0, "properties": PLACES["value"]}
    assert client.ask(RequestCode.SEND_MESSAGE, ext, b"one").code == ResponseCode.MESSAGE_ILLEGAL
    client.tell(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", PLACES["value"]), b"one")
    assert client.take() == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("names", [True, False], ids=["of one make", "of different makes"])
def test_a_batch_is_refused_as_a_whole(rig: Rig, names: bool, place: str) -> None:
    client = rig.client()
    others = [properties(UNIQ_KEY=f"{n}") if names else properties(**{f"n{n}": n}) for n in range(3)]
    for at in range(4):
        texts = [*others[:at], PLACES[place], *others[at:]]
        body = join_batch([(0, b"body", text) for text in texts])
        reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL and f"message {at} of the batch" in reply.remark


def test_a_half_messages_producer_group(rig: Rig) -> None:
    reply = rig.client().send("T", "TRAN_MSG\x01true\x02", b"x", f=4, a="p\0g")
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL and "'p\\x00g'" in reply.remark


def test_a_reply_is_neither_stored_nor_pushed(rig: Rig) -> None:
    asker, replier = rig.client(50001), rig.client(50002)
    asker.heartbeat("asker")
    text = properties(CORRELATION_ID="c", REPLY_TO_CLIENT="asker") + PLACES["value"]
    fields = replier.send_fields("DefaultCluster_REPLY_TOPIC", text)
    answer = replier.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"reply")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert asker.take() == []


def test_a_body_may_hold_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store")
    client = rig.client()
    assert client.send("T", properties(a="b"), bytes(5_000)).code == 0
    body = join_batch([(0, bytes(700), properties(UNIQ_KEY=f"{n}")) for n in range(3)])
    assert client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body).code == 0
    assert [message.body for message in client.messages("T")] == [bytes(5_000), *[bytes(700)] * 3]
    rig.close()
