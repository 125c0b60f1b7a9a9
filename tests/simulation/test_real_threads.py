"""The same broker with real threads, real locks and a switch interval of a microsecond, on the real disk.

The seed's baton explores what may happen between two locks; this lets the interpreter decide, at places that no
lock marks. The end is held against the same ledger.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from broker.core import BrokerCore
from broker.net.channel import MemoryChannel
from broker_plugin.plugin import DelayPlugin
from broker_plugin.rules.properties import own_properties_of
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from remoting.messages.message import record_fields
from remoting.messages.properties import format_properties
from store.put.plugin_api import CommandOutcome
from tests.simulation.ledger import body_of

MESSAGES = 1500
WAIT_S = 60
FAR_MS = 3_600_000


@pytest.fixture
def hurried() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


VALUES = {
    "mappedFileSizeCommitLog": "40000",
    "mappedFileSizeConsumeQueue": "2000",
    "timewheelSegmentBytes": "20000",
    "timewheelNearMs": "100",
    "timewheelRunsMax": "3",
    "timewheelMergeWidth": "3",
    "timewheelPageBytes": "120",
    "timewheelHotRecords": "20",
    "timewheelReserveBytes": "0",
}


class Hurry:
    """A broker with its own threads, one more for its network loop and one that cancels and moves."""

    def __init__(self, store: Path, mode: str) -> None:
        self.dues: dict[int, int] = {}  # number of a message: due_ms
        self.ids: dict[int, int] = {}  # the same: its delay id, once it is acknowledged
        self.cancelled: set[int] = set()
        self.moved: set[int] = set()
        self.failures: list[BaseException] = []
        self._turns: list[Callable[[], None]] = []
        self._durable, self._answered, self._arrived = threading.Event(), threading.Event(), threading.Event()
        self._channel, self._decoder = MemoryChannel(), FrameDecoder()
        self.plugin = DelayPlugin()
        config = BrokerConfig(store, {**VALUES, "flushDiskType": mode}, listen_port=10911, plugins=[])
        self.core = BrokerCore(config, 10911, [self.plugin], call_soon_threadsafe=self._soon)
        tell = self.core.store.on_arrival
        assert tell is not None

        def on_arrival(queues: list[tuple[str, int]]) -> None:
            tell(queues)
            self._arrived.set()

        self.core.store.on_arrival = on_arrival

    def _soon(self, call: Callable[[], None]) -> None:
        self._turns.append(call)
        self._durable.set()

    def _send(self, number: int) -> None:
        now = self.core.now_ms()
        due_ms = now + (number * 7) % 400
        if number % 10 < 2:  # these wait for their cancel, or for their move
            due_ms += FAR_MS
        self.dues[number] = due_ms
        text = format_properties({"TIMER_DELIVER_MS": str(due_ms), "KEYS": f"k{number}"})
        fields = {"a": "pg", "b": "T", "c": "TBW102", "d": 2, "e": number % 2, "f": 0, "g": 5, "h": 0, "i": text}
        ext = {name: str(value) for name, value in {**fields, "j": 0, "k": "false", "m": "false"}.items()}
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, number, 0, ext=ext, body=b"%d.x" % number)
        self.core.dispatcher.received(self._channel, FrameDecoder().feed(encode_command(command)))

    def _run_turns(self) -> None:
        self.core.end_turn()
        while self._turns:
            self._turns.pop(0)()

    def _hear(self) -> None:
        for reply in self._decoder.feed(self._channel.take()):
            assert reply.code == 0, reply.remark
            self.ids[reply.opaque] = int(reply.ext["msgId"][-16:], 16)
            self._answered.set()

    def loop(self) -> None:
        """Send all messages, then wait until all are acknowledged."""
        self.core.long_poll.bind()
        for number in range(1, MESSAGES + 1):
            self._send(number)
            if number % 3 == 0:
                self._run_turns()
                self._hear()
        end = time.monotonic() + WAIT_S
        while len(self.ids) < MESSAGES and time.monotonic() < end:
            self._run_turns()
            self._hear()
            self._durable.wait(0.01)
            self._durable.clear()

    def command(self) -> None:
        """Cancel one message of five and move another, each as soon as it is acknowledged."""
        for number in range(1, MESSAGES + 1):
            while number not in self.ids and not self.failures:
                self._answered.wait(0.01)
                self._answered.clear()
            if self.failures:
                return
            now = self.core.now_ms()
            if number % 5 == 0 and self.plugin.cancel(self.ids[number], now).outcome is CommandOutcome.DONE:
                self.cancelled.add(number)
            elif number % 5 == 1 and self._move(number, now):
                self.moved.add(number)

    def _move(self, number: int, now_ms: int) -> bool:
        return self.plugin.move(self.ids[number], now_ms + 30, now_ms).outcome is CommandOutcome.DONE

    def run(self) -> None:
        """Run both threads to their end, deliver what is left, and stop; raises the first error of a thread."""
        self.core.start()
        threads = [
            threading.Thread(target=self._guarded, args=(call,), daemon=True) for call in (self.loop, self.command)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WAIT_S)
        if self.failures:
            raise self.failures[0]
        assert not any(thread.is_alive() for thread in threads)
        end = time.monotonic() + WAIT_S
        while self.plugin.pending_count() and time.monotonic() < end:
            self._arrived.wait(0.1)
            self._arrived.clear()
        self.core.stop()

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self.failures.append(error)

    def delivered(self) -> list[int]:
        """The numbers of the delivered messages in the log's order; AssertionError if one came early."""
        found: list[int] = []
        for _, record in self.core.store.scan(0):
            number = int(body_of(record).partition(b".")[0])
            found.append(number)
            own = own_properties_of(record_fields(record)[2])
            due_ms = self.dues[number] if own is None else own[2]
            assert int.from_bytes(record[56:64], "big") >= due_ms
            assert number in self.moved or due_ms == self.dues[number]
        return found


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.usefixtures("hurried")
def test_threads_that_change_at_every_instruction(tmp_path: Path, mode: str) -> None:
    hurry = Hurry(tmp_path / "store", mode)
    hurry.run()
    core, plugin = hurry.core, hurry.plugin
    try:
        assert plugin.pending_count() == 0
        assert plugin.check() == []
        assert core.store.check() == []
        assert sum(worker.error_count for worker in plugin._workers) == 0
        delivered = hurry.delivered()
        assert len(delivered) == len(set(delivered))
        assert set(delivered) == set(hurry.dues) - hurry.cancelled
        assert hurry.cancelled
        assert hurry.moved
    finally:
        core.close()
