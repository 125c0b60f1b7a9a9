"""Cancels at the very moment at which messages come due, over sockets: each message has one winner.

``TIMEWHEEL_RACES`` says how many races there are; a long run has 100,000.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from heapq import heappop, heappush
from pathlib import Path
from random import Random

import pytest

from remoting.messages.properties import format_properties
from tests.support.commitlog import read_commit_log
from tests.support.ours import OurBroker
from tests.support.wait import let_pass
from tests.support.wire import Wire

pytestmark = pytest.mark.process

RACES = int(os.environ.get("TIMEWHEEL_RACES", "600"))
CLIENTS = 4
IN_FLIGHT = 40
AROUND_MS = 5


def _wall_ms() -> float:
    return time.time_ns() / 1e6


class Racer(threading.Thread):
    """A client: sends what is due soon, and cancels it within some milliseconds of that."""

    def __init__(self, address: str, number: int, count: int) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._number = number
        self._count = count
        self.verdicts: dict[bytes, tuple[str, int]] = {}
        """By body: the verdict, and how many ms after it was due it was asked for."""
        self.error: BaseException | None = None

    def run(self) -> None:
        """Race."""
        try:
            self._race(Random(self._number))
        except BaseException as error:
            self.error = error

    def _race(self, rng: Random) -> None:
        waiting: list[tuple[float, int, bytes, str]] = []
        sent = 0
        with Wire(self._address) as wire:
            while sent < self._count or waiting:
                if sent < self._count and len(waiting) < IN_FLIGHT:
                    due_ms = int(_wall_ms()) + rng.randint(150, 400)
                    body = b"%d.%d" % (self._number, sent)
                    text = format_properties({"__STARTDELIVERTIME": str(due_ms)})
                    ext, _ = wire.ask(10, {**FIELDS, "properties": text}, body)
                    heappush(waiting, (due_ms + rng.uniform(-AROUND_MS, AROUND_MS), due_ms, body, ext["msgId"]))
                    sent += 1
                while waiting and (waiting[0][0] <= _wall_ms() or len(waiting) >= IN_FLIGHT or sent == self._count):
                    at_ms, due_ms, body, name = heappop(waiting)
                    let_pass(max(0.0, at_ms - _wall_ms()) / 1000)
                    asked_ms = int(_wall_ms()) - due_ms
                    ext, _ = wire.ask(370002, {"verb": "cancel", "name": name})
                    self.verdicts[body] = ext["verdict"], asked_ms


FIELDS = {
    "producerGroup": "pg",
    "topic": "Races",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "5",
    "flag": "0",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
}


def test_a_cancel_and_the_delivery_have_one_winner(tmp_path: Path) -> None:
    broker = OurBroker(tmp_path)
    try:
        broker.start()
        racers = [Racer(broker.address, number, RACES // CLIENTS) for number in range(CLIENTS)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join(timeout=60 + RACES / 50)
            assert not racer.is_alive()
            assert racer.error is None, racer.error
        let_pass(2)
    finally:
        broker.stop()
    verdicts = {body: found for racer in racers for body, found in racer.verdicts.items()}
    delivered = Counter(record.body for record in read_commit_log(broker.store))
    assert set(delivered.values()) <= {1}, "a message was delivered twice"
    for body, (verdict, asked_ms) in verdicts.items():
        assert verdict in ("done", "too_late"), (body, verdict)
        assert (delivered[body] == 1) == (verdict == "too_late"), (body, verdict, asked_ms, delivered[body])
    near = Counter(verdict for verdict, asked_ms in verdicts.values() if -AROUND_MS <= asked_ms <= AROUND_MS)
    print(f"{len(verdicts)} races, {sum(near.values())} asked for within {AROUND_MS} ms of the due time: {dict(near)}")
    assert len(verdicts) == RACES // CLIENTS * CLIENTS
