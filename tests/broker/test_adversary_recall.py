"""A forged recall handle while the message that it means is on its way into the delay store."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.turns.recall_handle import RecallHandle
from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import parse_message_id
from tests.broker.core_rig import START_MS, Rig, properties


@pytest.mark.parametrize(("topic", "unique_key"), [("Mine", "K1"), ("Theirs", "guessed")])
def test_a_handle_that_does_not_fit_cancels_nothing_that_nobody_has_seen_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, unique_key: str
) -> None:
    plugin = DelayPlugin()
    rig = Rig(tmp_path / "store", plugin, recallMessageEnable="true")
    client = rig.client()
    client.send("Mine")
    sent = client.send("Theirs", properties(TIMER_DELIVER_MS=START_MS + 60_000, UNIQ_KEY="K1"))
    offset = parse_message_id(str(sent.ext["msgId"]))[1]
    monkeypatch.setattr(plugin, "view", lambda _offset: None)  # with SYNC_FLUSH it is not seen before it is synced
    for wanted in (offset, 0):
        handle = RecallHandle(topic, "broker-a", START_MS + 60_000, unique_key, wanted).encode()
        reply = client.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle, "producerGroup": "pg"})
        assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert plugin.pending_count() == 1
    rig.close()
