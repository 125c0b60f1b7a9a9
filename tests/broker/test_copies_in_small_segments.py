"""All copies of a message fit the segment that had room for the message: retries, dead letters, commits."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode, ResponseCode
from store import store_writer
from tests.broker.core_rig import Client, Rig, properties
from tests.broker.pop_client import Popper
from tests.broker.test_pop import pass_ms

SEGMENT = 16384
GROUPS = ("G", "G" * 120)
TOPICS = ("T", "T" * 127)


def rig_of(root: Path, *groups: str) -> tuple[Rig, Client]:
    rig = Rig(root, DelayPlugin(), mappedFileSizeCommitLog=SEGMENT, maxMessageSize=SEGMENT)
    rig.now_ms += 1
    client = rig.client()
    for group in groups:
        client.heartbeat("c", group)
    return rig, client


def send_largest(client: Client, topic: str, text: str) -> int:
    """Send the largest message that is accepted; where it is in the log."""
    for size in range(SEGMENT, 0, -1):
        reply = client.send(topic, text, bytes(size), d=1)
        if reply.code == ResponseCode.SUCCESS:
            return int(reply.ext["msgId"][-16:], 16)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    raise AssertionError("nothing is accepted")


def send_back(client: Client, offset: int, group: str, level: int) -> None:
    fields = {"offset": offset, "group": group, "delayLevel": level, "originTopic": "T"}
    reply = client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


def pop_again(rig: Rig, group: str, topic: str) -> str:
    """Pop all that is there and let its time end; the topic in which it comes again."""
    popper = Popper(rig.client(), group, topic)
    assert [popped for _ in range(9) for popped in popper.pop()]
    pass_ms(rig, 60_001)
    return topic if topic.startswith("%RETRY%") else f"%RETRY%{group}_{topic}"


def newest(rig: Rig, topic: str) -> int:
    """Where the newest message of a topic is in the log."""
    rig.now_ms += 1_000
    rig.deliver_levels()
    return rig.client().messages(topic)[-1].offset


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("popped", [False, True])
@pytest.mark.parametrize("level", [1, -1])
def test_the_largest_message_can_be_sent_back(tmp_path: Path, group: str, topic: str, popped: bool, level: int) -> None:
    """Its copy has four properties more, was refused as too long, and went neither to the retries nor to the dead."""
    rig, client = rig_of(tmp_path, group)
    offset = send_largest(client, topic, properties(UNIQ_KEY="U"))
    if popped:
        offset = newest(rig, pop_again(rig, group, topic))
    send_back(client, offset, group, level)
    rig.now_ms += 1_000
    rig.deliver_levels()
    assert len(client.messages(f"%DLQ%{group}" if level < 0 else f"%RETRY%{group}")) == 1
    rig.close()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_becomes_of_the_largest_message_it_can_go_on(tmp_path: Path, seed: int) -> None:
    """Popped, sent back, dead, popped there by another group, and so on: each step makes a copy of the last one."""
    draw = Random(seed)
    group, topic = draw.choice(GROUPS), draw.choice(TOPICS)
    other = "H" * draw.choice((1, 120))
    rig, client = rig_of(tmp_path, group, other)
    how = draw.choice((properties(UNIQ_KEY="U"), properties(UNIQ_KEY="U", DELAY=1)))
    send_largest(client, topic, how)
    place = topic
    for _ in range(8):
        offset, reader = newest(rig, place), draw.choice((group, other))
        if draw.random() < 0.5:
            place = pop_again(rig, reader, place)
        else:
            level = draw.choice((1, -1))
            send_back(client, offset, reader, level)
            place = f"%DLQ%{reader}" if level < 0 else f"%RETRY%{reader}"
        assert newest(rig, place) > offset
    reviver = rig.core.processors.pop.reviver
    assert (reviver.gone_count, reviver.failed_count) == (0, 0)
    rig.close()


def test_a_half_message_that_an_older_broker_accepted_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept less room for copies; the commit was refused as too long, and so was giving it up."""
    monkeypatch.setattr(store_writer, "COPY_BYTES", 0)
    rig, client = rig_of(tmp_path)
    text = properties(TRAN_MSG="true", UNIQ_KEY="U", PGROUP="pg")
    for size in range(SEGMENT, 0, -1):
        reply = client.send("T", text, bytes(size), d=1)
        if reply.code == ResponseCode.SUCCESS:
            break
    offset = int(reply.ext["msgId"][-16:], 16)
    monkeypatch.undo()
    fields = {
        "producerGroup": "pg",
        "tranStateTableOffset": reply.ext["queueOffset"],
        "commitLogOffset": offset,
        "commitOrRollback": 8,
        "fromTransactionCheck": "false",
        "msgId": "U",
        "transactionId": "U",
    }
    answer = client.ask(RequestCode.END_TRANSACTION, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert len(client.messages("T")) == 1
    rig.close()


def test_a_topic_whose_retry_topic_had_too_long_a_name_is_not_popped(tmp_path: Path) -> None:
    """Names of dead-letter topics may be that long. What was popped there and not acknowledged was lost."""
    rig, client = rig_of(tmp_path, "G")
    for size, code in ((246, ResponseCode.SUCCESS), (247, ResponseCode.INVALID_PARAMETER)):
        topic = "%DLQ%" + "x" * (size - 5)
        assert client.send(topic, "", b"b", d=1).code == ResponseCode.SUCCESS
        answer = Popper(client, "G", topic).ask()
        assert answer.code == code
    assert "shorter name" in answer.remark
    assert len(client.messages(topic)) == 1
    rig.close()
