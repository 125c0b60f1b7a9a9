"""What became of a message whose delivery the CommitLog has lost: not known, and not "cancelled"."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.messages.message import parse_message_id
from store.put.plugin_api import CommandOutcome
from tests.broker.core_rig import START_MS, properties
from tests.broker.test_settings_between_starts import HOUR_MS, Life

SETTINGS = {"mappedFileSizeCommitLog": 1 << 16, "maxMessageSize": 8000, "fileReservedTime": 0}


def sent(life: Life, due_ms: int) -> int:
    """Send a delayed message; its virtual offset."""
    reply = life.client.send("T", properties(__STARTDELIVERTIME=due_ms), bytes(3000))
    assert reply.code == 0
    return parse_message_id(reply.ext["msgId"])[1]


@pytest.mark.parametrize("set_back", [False, True])
def test_a_delivery_that_the_log_has_lost_is_not_told_as_a_cancel(tmp_path: Path, set_back: bool) -> None:
    """Of a hot second, a border between two segments lies within one millisecond; or the clock was a day ahead."""
    settings = {**SETTINGS, "deleteWhen": ";".join(map(str, range(24)))}
    life = Life(tmp_path / "store", **settings)
    due_ms = START_MS + (24 * HOUR_MS if set_back else 1_000)
    first, *_ = [sent(life, due_ms) for _ in range(60)]
    cancelled, _far = sent(life, due_ms + HOUR_MS), sent(life, due_ms + 900 * HOUR_MS)  # so the journal stays
    life.pass_to(due_ms)
    assert life.plugin.cancel(cancelled, life.now_ms).outcome is CommandOutcome.DONE
    assert life.plugin.cancel(first, life.now_ms).outcome is CommandOutcome.ALREADY_DELIVERED
    if set_back:
        life.now_ms = life.rig.now_ms = START_MS + 5_000
        for _ in range(60):
            life.send("", bytes(3000))
    life.again(**settings)
    store = life.rig.store
    store._keeper.finish()
    assert store.retention.delete_expired(life.now_ms + 10_000 * 24 * HOUR_MS)
    assert store.earliest_store_time() <= due_ms
    assert life.plugin.cancel(first, life.now_ms).outcome is CommandOutcome.UNKNOWN
    assert life.plugin.cancel(cancelled, life.now_ms).outcome is CommandOutcome.ALREADY_CANCELLED
    life.well()
    life.rig.close()
