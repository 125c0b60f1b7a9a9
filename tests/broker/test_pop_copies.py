"""A message that is not acknowledged comes again, whatever its sender has written into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.pop.retry_record import mark_text, revived
from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import MAX_PROPERTIES_BYTES, Message, encode_record, join_batch
from store.store_writer import COPY_BYTES
from tests.broker.core_rig import Rig, properties, sound
from tests.broker.pop_client import Popper
from tests.broker.test_pop import pass_ms
from tests.broker.test_revive_blocks import pop_all, rig_with

NUMBERS = (-(2**31), -1, 0, 1, 16, 2**31 - 1)
LONGS = (-(2**63), -1, 0, 2**63 - 1)
TEXT = "k\x01v\x02"
TEXTS = (
    "",
    "k",
    "k\x01v",
    "\x02\x02",
    "\x01",
    properties(RETRY_TOPIC="Other", REAL_TOPIC="%RETRY%G_T", REAL_QID="7"),
    properties(POP_CK="0 1 2 3 4 5 6 7", __TW_POP="1.1", __TW_ID="5", **{"1ST_POP_TIME": "x"}),
    properties(TAGS="é", KEYS="ключ a  b", UNIQ_KEY="\U0001f600"),
    properties(UNIQ_KEY="a") + properties(UNIQ_KEY="b"),
    *("k\x01" + "v" * (MAX_PROPERTIES_BYTES - left - 3) + "\x02" for left in (0, 1, 20, 40, 60, 100)),
)
SENT: list[tuple[str, dict[str, int]]] = [
    *((TEXT, {"j": number}) for number in NUMBERS),
    *((TEXT, {"h": number}) for number in NUMBERS),
    *((TEXT, {"g": number}) for number in LONGS),
    *((TEXT, {"f": flags}) for flags in (*range(4), *range(8, 16))),
    *((text, {}) for text in TEXTS),
]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    yield from sound(rig_with(tmp_path))


def test_all_that_was_accepted_comes_again_whatever_is_in_it(rig: Rig) -> None:
    """With the most tries that a record can tell of, the copy had one more: the message was given up, with an error."""
    accepted = {}
    for number, (text, fields) in enumerate(SENT):
        if rig.client().send("T", text, b"%d" % number, d=1, **fields).code == ResponseCode.SUCCESS:
            accepted[b"%d" % number] = fields.get("j", 0)
    assert len(accepted) > 30
    popper = Popper(rig.client())
    for tries in range(3):
        found = pop_all(popper)
        assert {popped.body: popped.tries for popped in found} == {
            body: min(first + tries, 2**31 - 1) for body, first in accepted.items()
        }
        pass_ms(rig, 60_001)
    assert rig.core.processors.pop.reviver.gone_count == 0


def test_a_consumer_may_send_it_back_however_often_it_came(rig: Rig) -> None:
    sent = rig.client().send("T", "", b"body", d=1, j=2**31 - 1)
    fields = {"offset": int(sent.ext["msgId"][-16:], 16), "group": "G", "delayLevel": 0, "originTopic": "T"}
    assert rig.client().ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS


GROUPS = ("G", "G" * 120)
TOPICS = ("T", "T" * 127)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("how", ["plain", "timed", "level", "batch"])
def test_in_small_segments_what_is_accepted_comes_again(tmp_path: Path, group: str, topic: str, how: str) -> None:
    """A copy is longer than its message: the largest that was accepted had no room, and was tried for ever."""
    plugin = DelayPlugin()
    rig = Rig(tmp_path, plugin, mappedFileSizeCommitLog=16384, maxMessageSize=16384)
    rig.now_ms += 1
    client = rig.client()
    client.heartbeat("c", group)
    accepted = []
    for size in range(16384, 15000, -1):
        body = b"%05d" % size + bytes(size - 5)
        if how == "timed":
            reply = client.send(topic, properties(UNIQ_KEY="U", __STARTDELIVERTIME=rig.now_ms + 1_000), body, d=1)
        elif how == "level":
            reply = client.send(topic, properties(UNIQ_KEY="U", DELAY=1), body, d=1)
        elif how == "batch":
            reply = client.send(topic, "", join_batch([(0, body, properties(UNIQ_KEY="U"))]), d=1, m="true")
        else:
            reply = client.send(topic, properties(UNIQ_KEY="U"), body, d=1)
        if reply.code == ResponseCode.SUCCESS:
            accepted.append(size)
            if len(accepted) == 3:
                break
        else:
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(accepted) == 3
    rig.now_ms += 1_000
    rig.deliver_levels()
    for _ in range(4):
        plugin.sweeper.step(rig.now_ms)
    popper = Popper(client, group, topic)
    for tries in range(3):
        found = [popped for _ in range(3) for popped in popper.pop()]
        assert sorted((int(popped.body[:5]), popped.tries) for popped in found) == [(n, tries) for n in accepted[::-1]]
        pass_ms(rig, 60_001)
    reviver = rig.core.processors.pop.reviver
    assert (reviver.gone_count, reviver.failed_count) == (0, 0)
    rig.close()


def test_a_copy_is_not_longer_than_there_is_room() -> None:
    """By the longest names, and the largest numbers that a mark may have."""
    most = 2**63 - 1
    for topic in ("T", "T" * 127):
        for text in ("", "k\x01v", properties(TW="x")):
            for flags in (0, 12):
                message = Message(topic, 3, body=b"b", properties=text, sys_flag=flags)
                record = encode_record(message, bytes(8))
                copy = revived(record, f"%RETRY%{'G' * 120}_{topic}", most, most, mark_text(most, most)).record
                assert 0 < len(copy) - len(record) <= COPY_BYTES
