"""Death inside each disk call of a first start, of an end, and of a start after a kill.

The suite takes every so many-th call; ``TIMEWHEEL_EVERY_CALL=1`` takes all of them (some minutes).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.fault_ledger import stored_messages
from tests.support.fault_storm import TINY, FaultyBroker, check_store
from tests.support.wait import happens, let_pass_until_ms
from tests.support.wire import Wire

pytestmark = pytest.mark.process

EVERY = int(os.environ.get("TIMEWHEEL_EVERY_CALL", "0"))
CALLS_MAX = 400
PATIENCE_S = 60
TOPIC = "calls"
SEND = {"a": "g", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "j": 0, "k": "false"}


class Calls:
    """A broker that dies in its so many-th disk call, and the messages that it has acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.broker = FaultyBroker(folder, TINY)
        self.due_ms: dict[str, int] = {}

    def send(self, count: int) -> None:
        """Send so many timed messages and an ordinary one, due between 0.1 and 0.6 s from now."""
        with Wire(self.broker.address) as wire:
            for number in range(count + 1):
                key = f"K{len(self.due_ms)}"
                due_ms = int(time.time() * 1000) + 100 + number * 500 // count if number else 0
                timer = f"__STARTDELIVERTIME\x01{due_ms}\x02" if number else ""
                wire.ask(310, {**SEND, "i": f"UNIQ_KEY\x01{key}\x02{timer}"}, b"x" * 500)
                self.due_ms[key] = due_ms

    def start_and_die(self, call: int) -> bool:
        """Start with death in a call; whether it came so far."""
        self.broker.control["die_in"] = call
        self.broker.spawn()
        ready = self.broker.wait_ready()
        died = not ready and self.broker.child.process.wait(PATIENCE_S) == -signal.SIGKILL
        assert ready or died, self.broker.child.tail()
        self.broker.control["die_in"] = 0
        self.broker.kill()
        return died

    def judge(self) -> None:
        """Let it run (again) until nothing is pending: every message stands there once, and never early."""
        broker = self.broker
        if not broker.child.running():
            broker.up()
        let_pass_until_ms(max(self.due_ms.values()))
        happens(lambda: broker.info()["timewheelPending"] == "0", PATIENCE_S)
        assert broker.stop() == 0
        stored = [message for message in stored_messages(broker.store) if message.topic == TOPIC]
        assert sorted(message.key for message in stored) == sorted(self.due_ms)
        assert all(message.store_ms >= self.due_ms[message.key] for message in stored)


def _numbers(step: int) -> range:
    return range(1, CALLS_MAX, EVERY or step)


def test_first_start(tmp_path: Path) -> None:
    for call in _numbers(31):
        calls = Calls(tmp_path / str(call))
        try:
            died = calls.start_and_die(call)
            calls.broker.up()
            calls.send(3)
            calls.judge()
        finally:
            calls.broker.kill()
        if not died:
            return
    raise AssertionError(f"more than {CALLS_MAX} calls")


def test_end(tmp_path: Path) -> None:
    calls = Calls(tmp_path)
    try:
        for call in _numbers(17):
            calls.broker.up()
            calls.send(20)
            calls.broker.control["die_in"] = call
            calls.broker.child.process.send_signal(signal.SIGTERM)
            status = calls.broker.child.process.wait(PATIENCE_S)
            assert status in (0, -signal.SIGKILL), calls.broker.child.tail()
            calls.broker.control["die_in"] = 0
            calls.judge()
            if status == 0:
                break
        status, text = check_store(calls.broker)
        assert status == 0, text
    finally:
        calls.broker.kill()


def test_start_after_a_kill(tmp_path: Path) -> None:
    calls = Calls(tmp_path)
    try:
        for call in _numbers(31):
            calls.broker.up()
            calls.send(20)
            calls.broker.kill()
            died = calls.start_and_die(call)
            calls.judge()
            if not died:
                break
        status, text = check_store(calls.broker)
        assert status == 0, text
    finally:
        calls.broker.kill()
