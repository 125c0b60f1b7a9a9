"""A batch of which one part is to wait and the other goes to the CommitLog: all of it is stored, or nothing."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode
from remoting.messages.message import join_batch
from store.disk.errors import StoreError
from store.put.pending_api import PendingName, PendingOrder, PendingVerb
from store.put.plugin_api import Put, PutResult, PutStatus
from store.spill.rows.format import CANCEL
from tests.broker.core_rig import Rig, properties

MIXED = join_batch([(0, b"later", properties(TIMER_DELAY_MS=5)), (0, b"now", "")])
CANCEL_K = PendingOrder(verb=PendingVerb.CANCEL, name=PendingName(topic="T", key="k"))


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
    assert sorted(reply.code for reply in client.take()) == [0, 14]
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


@pytest.mark.pure
@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("fails", ["cancel", "sync"])
def test_a_refusal_waits_until_no_kill_can_bring_the_journalled_part_back(
    tmp_path: Path, mode: str, fails: str
) -> None:
    """The CommitLog refuses the batch, and what takes back its other part cannot be written, or not be synced."""
    plugin = DelayPlugin()
    rig = Rig(tmp_path / "store", plugin, flushDiskType=mode, timewheelSegmentBytes=100_000)
    client, journal = rig.client(), plugin.spill._journal
    append, sync = journal.append, journal.sync

    def no_cancels(kind: int, *rest: Any) -> Any:
        if kind == CANCEL:
            raise StoreError("nothing can be written")
        return append(kind, *rest)

    def no_syncs() -> None:
        raise StoreError("nothing can be synced")

    if fails == "cancel":
        journal.append = no_cancels
    else:
        journal.sync = no_syncs
    rig.store.retention.disk_status = PutStatus.SERVICE_NOT_AVAILABLE
    plugin.gate._disk_refusal = str
    client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), MIXED)
    rig.core.end_turn()
    for _ in range(3):
        rig.store.flusher.step(rig.now_ms)
        rig.core.turn.look_at_disk()
        assert client.take() == []
    journal.append, journal.sync = append, sync
    rig.core.turn.look_at_disk()
    rig.store.flusher.step(rig.now_ms)
    assert [reply.code for reply in client.take()] == [14]
    killed = shutil.copytree(tmp_path / "store", tmp_path / "killed")
    again = Rig(Path(killed), DelayPlugin(), flushDiskType=mode, timewheelSegmentBytes=100_000)
    assert again.core.pending_count() == 0
    again.close()
    rig.close()


@pytest.mark.pure
@pytest.mark.parametrize(("mode", "code"), [("ASYNC_FLUSH", 0), ("SYNC_FLUSH", 10)])
def test_others_of_the_turn_do_not_wait_for_a_refusal(tmp_path: Path, mode: str, code: int) -> None:
    """The clock goes back, so a batch is refused; what takes back its other part cannot be synced for a while."""
    plugin = DelayPlugin()
    rig = Rig(tmp_path / "store", plugin, flushDiskType=mode, timewheelSegmentBytes=100_000)
    client, journal = rig.client(), plugin.spill._journal
    sync = journal.sync

    def no_syncs() -> None:
        raise StoreError("nothing can be synced")

    journal.sync = no_syncs
    past, later = properties(TIMER_DELIVER_MS=rig.now_ms), properties(TIMER_DELAY_MS=5)
    client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"plain")
    client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", later), b"timed")
    body = join_batch([(0, b"in the past", past), (0, b"later", later)])
    refused = client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), MIXED)
    rig.now_ms -= 2_500
    rig.core.end_turn()
    if mode == "SYNC_FLUSH":
        assert client.take() == []
        rig.store.flusher.step(rig.now_ms)
    assert [reply.code for reply in client.take()] == [code] * 3, "all but the refused batch"
    journal.sync = sync
    rig.core.turn.look_at_disk()
    rig.store.flusher.step(rig.now_ms)
    assert [(reply.opaque, reply.code) for reply in client.take()] == [(refused, 14)]
    assert rig.core.turn.waiting == 0
    assert plugin.pending_count() == 2
    rig.close()


class _Refusing:
    """A broker whose CommitLog refuses the next turn; from then on its journal takes nothing while it is ``full``."""

    def __init__(self, root: Path, mode: str, full: bool) -> None:
        self.root, self.mode, self.full = root, mode, full
        self.plugin = DelayPlugin()
        self.rig = Rig(root / "store", self.plugin, flushDiskType=mode, timewheelSegmentBytes=100_000)
        self.client = self.rig.client()

    def send(self, text: str, body: bytes) -> list[int]:
        self.client.submit(RequestCode.SEND_MESSAGE_V2, self.client.send_fields("T", text), body)
        return self.codes()

    def codes(self) -> list[int]:
        self.rig.core.end_turn()
        self.rig.core.turn.look_at_disk()
        self.rig.store.flusher.step(self.rig.now_ms)
        self.rig.core.end_turn()
        return [reply.code for reply in self.client.take()]

    def refused(self, elements: list[tuple[int, bytes, str]]) -> None:
        """Send a batch that is refused; it is answered when the journal takes something again."""
        journal, put_batch = self.plugin.spill.journal, self.rig.store.put_batch
        append, is_full = journal.append, self.full

        def refuse(puts: list[Put]) -> list[PutResult]:
            self.rig.store.retention.disk_status = PutStatus.SERVICE_NOT_AVAILABLE
            journal.append = no_room  # type: ignore[method-assign]
            return put_batch(puts)

        def no_room(*given: Any) -> Any:
            if is_full:
                raise StoreError("no room")
            return append(*given)

        self.rig.store.put_batch = refuse  # type: ignore[assignment, method-assign]
        self.client.submit(RequestCode.SEND_BATCH_MESSAGE, self.client.send_fields("T", m="true"), join_batch(elements))
        if self.full:
            for _ in range(3):
                assert self.codes() == []
                self.deliver(100)
            with pytest.raises(StoreError) if self.plugin.gate.keyed.put_backs else nullcontext():  # type: ignore[union-attr]
                self.plugin.pending.get(PendingName(topic="T", key="k"))
                self.plugin.pending.change(CANCEL_K, self.rig.now_ms)
        is_full = False
        assert self.codes() == [14]
        self.rig.store.put_batch = put_batch  # type: ignore[method-assign]
        self.rig.store.retention.disk_status = PutStatus.PUT_OK
        shutil.copytree(self.root / "store", self.root / "killed")

    def deliver(self, ms: int) -> list[bytes]:
        self.rig.now_ms += ms
        for _ in range(3):
            self.plugin.sweeper.step(self.rig.now_ms)
            self.plugin.recovery.step(self.rig.now_ms)
        return [message.body for message in self.client.messages("T")]

    def close(self) -> DelayPlugin:
        """Check it, and start what a kill at the moment of the answer has left."""
        assert self.plugin.check() == []
        self.rig.close()
        self.plugin = DelayPlugin()
        self.rig = Rig(self.root / "killed", self.plugin, flushDiskType=self.mode, timewheelSegmentBytes=100_000)
        return self.plugin


def keyed(delay_ms: int) -> str:
    return properties(TIMER_DELAY_MS=delay_ms, __DELAYKEY="k", __DELAYKEY_MODE="replace")


@pytest.mark.pure
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_message_that_its_own_batch_had_replaced_is_not_delivered_when_the_batch_is_refused(
    tmp_path: Path, mode: str, again: int, full: bool
) -> None:
    """Also if the journal takes nothing any more at that moment, and the process is killed as soon as it answers."""
    world = _Refusing(tmp_path, mode, full)
    world.refused([(0, b"now", ""), (0, b"first", keyed(5)), *[(0, b"second", keyed(6))] * again])
    assert world.plugin.pending_count() == 0
    assert world.deliver(100) == []
    assert world.close().pending_count() == 0
    world.rig.close()


@pytest.mark.pure
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_a_refused_batch_had_replaced_is_put_back_however_long_the_disk_refuses_that(
    tmp_path: Path, mode: str, again: int, full: bool
) -> None:
    """It was lost, and the refused message delivered. Nobody delivers either of them meanwhile."""
    world = _Refusing(tmp_path, mode, full)
    assert world.send(keyed(1_000), b"kept") == [0]
    world.refused([(0, b"now", ""), *[(0, b"refused", keyed(50))] * again])
    name = PendingName(topic="T", key="k")
    assert world.plugin.pending.get(name).body == b"kept"
    assert world.deliver(10) == []
    assert world.deliver(1_000) == [b"kept"]
    assert world.plugin.recovery.failed_count == 0
    assert world.close().pending.get(name).body == b"kept"
    world.rig.close()
