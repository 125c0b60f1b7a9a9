"""`DelayPlugin` as a host sees it: real files, real threads, the calls of `store.put.plugin_api.Plugin`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from broker.turns.plugin_chain import someone_behind
from broker_plugin.options import config_number, spill_options
from broker_plugin.plugin import DelayPlugin
from remoting.messages.message import Message, decode_record
from remoting.messages.properties import TW_DUE, format_properties, parse_properties
from store.disk.errors import StoreFormatError
from store.disk.files import Files
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_abilities import (
    AsidePlugin,
    BatchPlugin,
    DirectPlugin,
    DurablyRefusingPlugin,
    PromisingPlugin,
    PunctualPlugin,
)
from store.put.plugin_api import (
    BoundedTarget,
    CommandOutcome,
    DurableTarget,
    Held,
    LookupTarget,
    Plugin,
    PluginContext,
    Refused,
    SettlingTarget,
)
from tests.support.delay_rig import HOST


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Host:
    """The least that a broker is to the plug-in."""

    def __init__(self, root: Path, *, flush_sync: bool = False, config: dict[str, str] | None = None) -> None:
        self.warnings: list[str] = []
        self.store = MessageStore.open(
            Files(), root, StoreOptions(flush_sync=flush_sync), wall_ms, self.warnings.append
        )
        self.store.store_host = HOST
        self.store.on_arrival = self._arrived
        self.flush_sync = flush_sync
        self.arrived = threading.Condition()
        self.plugin = DelayPlugin()
        self.context = PluginContext(
            target=self.store,
            files=self.store.files,
            directory=root / "timewheel" / "delay",
            store_id=self.store.store_id,
            store_host=HOST,
            config=config or {},
            flusher=self.store.flusher,
            checkpoint=self.store.checkpoint,
            warn=self.warnings.append,
        )

    def _arrived(self, _: object) -> None:
        with self.arrived:
            self.arrived.notify_all()

    def send(self, body: bytes, due_ms: int) -> int:
        message = Message("T", 0, body=body, properties=format_properties({"__STARTDELIVERTIME": str(due_ms)}))
        held = self.plugin.before_put(message, wall_ms())
        assert isinstance(held, Held)
        ticket = self.plugin.commit_turn()
        assert ticket is not None
        return held.offset

    def wait_for(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.store.max_offset("T", 0) >= count, timeout=60)
        with self.store.checkpoint.lock:
            pass  # whoever delivers holds it until what has arrived is counted as done

    def lateness(self) -> list[int]:
        lates = []
        for _, record in self.store.scan(0):
            stored = decode_record(record)
            lates.append(stored.store_ms - int(parse_properties(stored.properties)[TW_DUE]))
        return lates

    def close(self, clean: bool = True) -> None:
        self.plugin.stop()
        self.store.flusher.stop()
        self.store.housekeeper.stop()
        if clean:
            self.store.flusher.sync_all()
            self.store.take_checkpoint()
        self.plugin.close()
        self.store.close()


@contextmanager
def running(root: Path, *, flush_sync: bool = False) -> Iterator[Host]:
    host = Host(root, flush_sync=flush_sync)
    try:
        host.plugin.open(host.context)
        host.store.start()
        host.plugin.start()
        yield host
    finally:
        host.close()
    assert host.warnings == []


def test_it_is_a_plugin_and_is_found_by_name() -> None:
    assert isinstance(DelayPlugin(), Plugin)
    assert isinstance(DelayPlugin(), PunctualPlugin)
    assert DelayPlugin.name == "delay"
    (found,) = entry_points(group="timewheel.plugins", name="delay")
    assert found.load() is DelayPlugin


def test_it_is_behind_while_something_is_overdue_that_could_go_out(tmp_path: Path) -> None:
    host = Host(tmp_path)
    try:
        host.plugin.open(host.context)  # threads are not started: what was overdue at start is a range
        assert host.plugin.is_behind()
        assert host.plugin.spiller._is_behind == host.plugin.is_behind  # then its copies rest
        while host.plugin.recovery.step(wall_ms()) <= wall_ms():
            pass
        assert not host.plugin.is_behind()
        host.plugin.ranges.add((0, 0), wall_ms())
        assert someone_behind([host.plugin]) == host.plugin.is_behind
        both = someone_behind([host.plugin, host.plugin])
        assert both is not None
        assert both()
        host.plugin.deliverer._stalls = 1  # the store refuses everything: nobody is served by waiting
        assert not both()
        assert someone_behind([]) is None
    finally:
        host.close()


@pytest.mark.parametrize("flush_sync", [False, True])
def test_on_real_threads_nothing_is_early_twice_or_lost(tmp_path: Path, flush_sync: bool) -> None:
    with running(tmp_path, flush_sync=flush_sync) as host:
        now = wall_ms()
        for number in range(200):
            host.send(b"%d" % number, max(now + 50 + number, wall_ms() + 50))
        host.wait_for(200)
        lates = host.lateness()
        assert len(lates) == 200
        assert min(lates) >= 0
        assert host.plugin.pending_count() == 0
        info = host.plugin.runtime_info()
        assert info["timewheelDelivered"] == "200"
        assert info["timewheelLatenessMs"].startswith("n=200 ")
        assert all(value for value in info.values())
        assert host.plugin.check() == []


def test_it_stops_at_once_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as host:
        offset = host.send(b"far", wall_ms() + 3_600_000)
        host.send(b"soon", wall_ms() + 400)
        begin = time.monotonic()
        host.plugin.stop()
        assert time.monotonic() - begin < 60, "it waits for what is due in an hour"
    with running(tmp_path) as host:
        host.wait_for(1)
        assert host.plugin.pending_count() == 1
        (row,) = host.plugin.list_pending(None, 10)
        assert row.offset == offset
        assert host.plugin.view(offset) is not None
        assert host.plugin.send_now(offset, wall_ms()).outcome is CommandOutcome.DONE
        host.wait_for(2)
        assert host.plugin.cancel(offset, wall_ms()).outcome is CommandOutcome.ALREADY_DELIVERED
        assert host.plugin.move(offset, wall_ms() + 5, wall_ms()).outcome is CommandOutcome.ALREADY_DELIVERED
    with running(tmp_path) as host:
        assert host.plugin.pending_count() == 0
        assert host.store.max_offset("T", 0) == 2


def test_a_process_that_was_killed_delivers_each_message_once(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.plugin.open(host.context)
    for number in range(50):
        host.send(b"%d" % number, wall_ms() + 100 + number)
    while not host.store.max_offset("T", 0):  # some of them are in the log; no checkpoint knows
        host.plugin.sweeper.step(wall_ms())
    # Killed: nothing is closed, only the lock on the directory goes.
    host.store._release()
    with running(tmp_path) as host:
        host.wait_for(50)
        assert len(host.lateness()) == 50
        assert host.plugin.pending_count() == 0


def test_a_wrong_configuration_is_refused_with_key_and_value(tmp_path: Path) -> None:
    host = Host(tmp_path, config={"timerMaxDelaySec": "three days"})
    with pytest.raises(StoreFormatError, match="timerMaxDelaySec = 'three days'"):
        host.plugin.open(host.context)
    host.plugin.close()
    host.plugin.close()
    host.store.close()
    assert config_number({"k": " 5 "}, "k", 7) == 5
    assert config_number({"k": " "}, "k", 7) == 7
    assert spill_options({"timewheelSegmentBytes": "1000"}).segment_bytes == 1000


def test_limits_come_from_the_configuration(tmp_path: Path) -> None:
    host = Host(tmp_path, config={"timerMaxDelaySec": "10", "maxMessageSize": "100"})
    host.plugin.open(host.context)
    far = Message("T", properties=format_properties({"TIMER_DELAY_SEC": "11"}))
    large = Message("T", body=bytes(101), properties=format_properties({"TIMER_DELAY_SEC": "5"}))
    for message in (far, large):
        assert isinstance(host.plugin.before_put(message, wall_ms()), Refused)
    fine = Message("T", body=bytes(100), properties=format_properties({"TIMER_DELAY_SEC": "10"}))
    held = host.plugin.before_put(fine, wall_ms())
    assert isinstance(held, Held)
    host.plugin.take_back(held)
    assert host.plugin.commit_turn() is None
    host.plugin.topics_changed()
    host.close()


def test_what_is_asked_of_plugin_and_store_is_typed(tmp_path):
    """What a broker asks of the plug-in, and the plug-in of the store, beyond what each of them must have."""
    plugin = DelayPlugin()
    for protocol in (AsidePlugin, BatchPlugin, DirectPlugin, DurablyRefusingPlugin, PromisingPlugin, PunctualPlugin):
        assert isinstance(plugin, protocol), protocol
    store = MessageStore.open(Files(), tmp_path / "store")
    try:
        for target in (BoundedTarget, DurableTarget, LookupTarget, SettlingTarget):
            assert isinstance(store, target), target
    finally:
        store.close()
