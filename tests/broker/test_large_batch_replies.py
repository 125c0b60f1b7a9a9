"""Batches of very many small messages: how many there may be, and a reply that no frame can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.sending.send_batch import BATCH_MESSAGES_MAX
from remoting import command as commands
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import join_batch
from tests.broker.core_rig import Client, Rig

SMALL_FRAME = 60_000


def fields(client: Client) -> dict[str, Any]:
    return client.send_fields("T", m="true", e=0)


@pytest.mark.parametrize("text", ["", "UNIQ_KEY\x01k\x02", "DELAY\x010\x02"])
def test_a_batch_of_more_messages_than_apache_can_count_is_refused(tmp_path: Path, text: str) -> None:
    """Apache's broker numbers them with 16 bits: it answers SUCCESS, and what comes to the queue next is never read."""
    rig = Rig(tmp_path / "store")
    client = rig.client()
    for count, code in (
        (BATCH_MESSAGES_MAX, ResponseCode.SUCCESS),
        (BATCH_MESSAGES_MAX + 1, ResponseCode.MESSAGE_ILLEGAL),
    ):
        before = rig.store.max_offset("T", 0)
        reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, fields(client), join_batch([(0, b"b", text)] * count))
        assert reply.code == code, reply
        assert rig.store.max_offset("T", 0) - before == (count if code == ResponseCode.SUCCESS else 0)
    assert "at most 32767 are possible" in (reply.remark or "")
    rig.close()


def test_the_others_of_a_turn_are_answered_when_one_reply_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MAX_FRAME_BYTES", SMALL_FRAME)
    rig = Rig(tmp_path / "store")
    client, other = rig.client(), rig.client()
    client.send("T", "", b"makes the topic")
    body = join_batch([(0, b"b", "A\x01b\x02")] * 2_000)
    large = client.submit(RequestCode.SEND_BATCH_MESSAGE, fields(client), body)
    sent = other.submit(RequestCode.SEND_MESSAGE_V2, other.send_fields("T", "", e=0), b"x")
    rig.core.end_turn()
    (reply,) = other.take()
    assert (reply.opaque, reply.code) == (sent, ResponseCode.SUCCESS)
    (reply,) = client.take()
    assert (reply.opaque, reply.code) == (large, ResponseCode.SYSTEM_ERROR)
    assert "frame of" in (reply.remark or "")
    rig.close()
