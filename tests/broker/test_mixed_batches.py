"""A batch of which one part is to wait and the other goes to the CommitLog: all of it is stored, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode
from remoting.messages.message import join_batch
from store.put.plugin_api import Put, PutResult, PutStatus
from tests.broker.core_rig import Rig, properties

MIXED = join_batch([(0, b"later", properties(TIMER_DELAY_MS=5)), (0, b"now", "")])


@pytest.mark.pure
@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_waits_is_taken_back_before_it_can_be_delivered(tmp_path: Path, mode: str) -> None:
    plugin = DelayPlugin()
    rig = Rig(tmp_path / "store", plugin, flushDiskType=mode, timewheelSegmentBytes=100_000)
    client = rig.client()
    lock, put_batch = rig.store.checkpoint.lock, rig.store.put_batch
    held: list[bool] = []

    def refuse(puts: list[Put]) -> list[PutResult]:
        held.append(lock._is_owned())  # type: ignore[attr-defined]  # so no other thread delivers meanwhile
        rig.store.retention.disk_status = PutStatus.SERVICE_NOT_AVAILABLE
        return put_batch(puts)

    rig.store.put_batch = refuse  # type: ignore[assignment, method-assign]
    client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), MIXED)
    client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", properties(TIMER_DELAY_MS=5)), b"other")
    rig.core.end_turn()
    rig.store.flusher.step(rig.now_ms)
    rig.core.end_turn()
    assert [reply.code for reply in client.take()] == [14, 0]
    assert held == [True]
    rig.store.put_batch = put_batch  # type: ignore[method-assign]
    rig.store.retention.disk_status = PutStatus.PUT_OK
    rig.now_ms += 100
    for _ in range(3):
        plugin.sweeper.step(rig.now_ms)
        plugin.recovery.step(rig.now_ms)
    assert [message.body for message in client.messages("T")] == [b"other"]
    assert plugin.pending_count() == 0
    assert plugin.check() == []
    rig.close()
    again = Rig(tmp_path / "store", DelayPlugin(), flushDiskType=mode, timewheelSegmentBytes=100_000)
    assert again.core.pending_count() == 0
    again.close()


def test_an_ordinary_turn_does_not_wait_for_deliveries(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", DelayPlugin(), timewheelSegmentBytes=100_000)
    client = rig.client()
    owned: list[bool] = []
    rig.store.on_arrival = lambda _: owned.append(rig.store.checkpoint.lock._is_owned())  # type: ignore[attr-defined]
    client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"now")
    client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", properties(TIMER_DELAY_MS=5)), b"later")
    client.submit(
        RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), join_batch([(0, b"1", ""), (0, b"2", "")])
    )
    rig.core.end_turn()
    assert owned == [False]
    client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), MIXED)
    rig.core.end_turn()
    assert owned == [False, True]
    assert [reply.code for reply in client.take()] == [0, 0, 0, 0]
    rig.close()
