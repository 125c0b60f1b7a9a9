"""Batches of messages with delay keys hold the loop no longer than others."""

from __future__ import annotations

from pathlib import Path

from broker_plugin.pending.keyed_turn import REPLACED_MAX
from remoting.codes import ResponseCode
from tests.broker.core_rig import START_MS, properties
from tests.broker.loop_watch import bound_ms
from tests.broker.test_large_batches import Elements, Hand


def keyed(count: int, by_ms: int = 0) -> Elements:
    due_ms = START_MS + 3_600_000 + by_ms
    texts = (properties(TIMER_DELIVER_MS=due_ms, __DELAYKEY=f"k{i}", __DELAYKEY_MODE="replace") for i in range(count))
    return [(0, b"b", text) for text in texts]


def test_a_large_batch_that_replaces_holds_nobody_for_long(tmp_path: Path) -> None:
    count = 3 * REPLACED_MAX
    hand = Hand(tmp_path)
    assert hand.ask(keyed(count)).code == ResponseCode.SUCCESS
    least = []
    for by_ms in (1, 2, 3):
        hand.rounds.longest_ms = 0.0
        refused = hand.ask(keyed(count, by_ms))
        least.append(hand.rounds.longest_ms)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "in parts" in str(refused.remark)
    assert min(least) < bound_ms()
    assert hand.ask(keyed(REPLACED_MAX, 4)).code == ResponseCode.SUCCESS
    assert hand.ask([*keyed(REPLACED_MAX, 5), (0, b"c", "")]).code == ResponseCode.SUCCESS
    rows = hand.plugin.list_pending(None, 1000)
    assert sum(row.version == 2 for row in rows) == REPLACED_MAX
    hand.rig.close()
