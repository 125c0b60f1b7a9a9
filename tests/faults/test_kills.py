"""SIGKILL at any moment, under load, again and again: nothing lost, nothing twice, nothing early.

Kills come after a random time, inside a disk call of the store (a write is torn then), and during the recovery from
the kill before. Segments are tiny, so that CommitLog, journal, runs and merges turn over all the time. A long run of
the same: ``python -m tests.support.fault_storm FOLDER --kills 200``.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.fault_consumer import read_received
from tests.support.fault_ledger import read_ledger, stored_messages
from tests.support.fault_storm import FaultyBroker, Storm, check_store
from tests.support.wait import happens
from tests.support.wire import Wire

pytestmark = pytest.mark.process

SEND = {"a": "g", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "j": 0, "k": "false"}
LOAD = {"rate": 1_500, "due_to_ms": 3_000}
ENOUGH = 1_000


def test_every_acknowledged_message_once(tmp_path: Path) -> None:
    with Storm(tmp_path, seed=1, load_options={**LOAD, "levels": 0, "hot": 0.3}) as storm:
        storm.vary = True
        storm.start()
        storm.begin_load()
        storm.storm(5, (0.2, 1.5))
        _ends_well(storm)


def test_every_acknowledged_message_once_and_consumed(tmp_path: Path) -> None:
    with Storm(tmp_path, seed=2, flush="SYNC_FLUSH", load_options=LOAD) as storm:
        storm.start()
        storm.begin_load()
        storm.begin_consumer()
        storm.storm(2, (0.2, 1.5))
        storm.kill_consumer()
        storm.begin_consumer()
        storm.storm(2, (0.2, 1.5))
        places = _ends_well(storm)
        received = read_received(storm.received)
    # A place of a queue may be read again when a death took its offset, but a message has one place.
    assert {(row.key, row.queue, row.queue_offset, row.store_ms) for row in received} == places
    due_ms = {key: entry.due_ms for key, entry in read_ledger(storm.ledger).items()}
    assert all(row.received_ms >= due_ms[row.key] for row in received)


def test_killed_right_after_the_first_send_to_a_topic(tmp_path: Path) -> None:
    broker = FaultyBroker(tmp_path, {"flushDiskType": "SYNC_FLUSH"})
    due_ms = int(time.time() * 1000) + 4_000
    topics = [f"new{number}" for number in range(3)]
    try:
        for topic in topics:
            broker.up()
            with Wire(broker.address) as wire:
                fields = {"b": topic, "i": f"UNIQ_KEY\x01{topic}\x02__STARTDELIVERTIME\x01{due_ms}\x02"}
                wire.ask(310, {**SEND, **fields}, b"x")
            broker.kill()
        broker.up()
        happens(lambda: broker.info()["timewheelPending"] == "0", 20)
    finally:
        broker.kill()
    stored = [message for message in stored_messages(broker.store) if message.topic in topics]
    assert sorted(message.key for message in stored) == topics
    assert all(message.store_ms >= due_ms for message in stored)


def _ends_well(storm: Storm) -> set[tuple[str, int, int, int]]:
    """Let everything become due, and judge; the places of all messages, as a consumer sees them."""
    status, text = _check_killed(storm)
    assert status == 0, text
    storm.wait_acknowledged(ENOUGH)
    storm.end_load()
    storm.settle()
    verdict = storm.judge()
    storm.wait_received(verdict.stored_count, 20)
    storm.end_consumer()
    assert storm.broker.stop() == 0, storm.broker.child.tail()
    assert not verdict.wrong, f"{storm.kills} kills: {verdict}"
    assert verdict.counts["A"] >= ENOUGH
    status, text = check_store(storm.broker)
    assert status == 0, text
    return verdict.places


def _check_killed(storm: Storm) -> tuple[int, str]:
    """Kill once more, and have `timewheel check` look at what is left, before the broker mends it."""
    storm.down()
    found = check_store(storm.broker)
    storm.start()
    return found
