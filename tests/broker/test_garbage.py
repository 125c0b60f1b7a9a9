"""Requests that make no sense: each is answered, none breaks anything."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remoting.codes import FLAG_ONEWAY, RequestCode
from tests.broker.core_rig import Rig, properties

NAMES = [
    *"abcdefghijklm",
    *("topic", "consumerGroup", "group", "queueId", "queueOffset", "offset", "commitOffset", "maxMsgNums", "sysFlag"),
    *("suspendTimeoutMillis", "subscription", "expressionType", "timestamp", "key", "maxNum", "beginTimestamp"),
    *("endTimestamp", "clientID", "producerGroup", "delayLevel", "originTopic", "defaultTopic", "properties"),
    *("defaultTopicQueueNums", "bornTimestamp", "flag", "batch", "readQueueNums", "writeQueueNums", "perm", "order"),
    *("topicFilterType", "attributes", "groupName", "srcGroup", "destGroup", "isForce", "boundaryType"),
]
VALUES = [
    *("", "T", "%RETRY%g", "TBW102", "g", "*", "||", "A || B", "true", "false", "TAG", "SQL92", "SINGLE_TAG"),
    *("0", "1", "-1", "2", "6", "4", "32", "99999999999999999999", "x", "\x00", "ä" * 200, "+a=b,-c", "1e3", " 1"),
    properties(UNIQ_KEY="1", DELAY=2),
    properties(TRAN_MSG="true"),
]
BODIES = [
    *(b"", b"x", b"{}", b"[]", b"null", b'{"clientID":1}', b'{"mqSet":[{}],"consumerGroup":"g","clientId":"c"}'),
    *(b"\xff" * 30, b"\x00\x00\x00\x16" + b"\x00" * 18, b'{"topicConfigList":[{"topicName":"T"}]}', b"a=b\nc"),
]
exts = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=20)


@pytest.fixture(scope="module")
def rig():
    root = Path(tempfile.mkdtemp(prefix="garbage-"))
    made = Rig(root / "store", plugins="")
    yield made
    made.close()
    shutil.rmtree(root)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_request_is_answered_once(rig, data):
    client = rig.client()
    codes = sorted(code for code in rig.core.dispatcher.codes() if code != RequestCode.DELETE_TOPIC_IN_BROKER)
    code = data.draw(st.sampled_from(codes))
    oneway = data.draw(st.booleans())
    opaque = client.submit(code, data.draw(exts), data.draw(st.sampled_from(BODIES)), FLAG_ONEWAY if oneway else 0)
    rig.pass_ms(0)
    rig.pass_ms(300_000)
    replies = [reply.opaque for reply in client.take() if reply.is_response]
    assert replies == ([] if oneway else [opaque])
    rig.core.channel_closed(client.channel)
    assert rig.core.long_poll.check() == []
    assert rig.client().send("Sane").code == 0, "the broker goes on"
