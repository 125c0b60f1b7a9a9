"""A disk that fills up: a warning, a clear refusal, deliveries all the while; all is well when there is room again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from store.disk.files import Files
from tests.broker.core_rig import Client, properties
from tests.support.damage_world import START_MS, Machine, consume

TOTAL = 1 << 40


class Disk(Files):
    """As much room as a test says."""

    used = 0.10

    def free_bytes(self, path: Path) -> tuple[int, int]:
        """Answer with the share that is free."""
        del path
        return int(TOTAL * (1 - self.used)), TOTAL


class Broker:
    """A broker on such a disk, with a client."""

    def __init__(self, root: Path, **values: str) -> None:
        self.disk = Disk()
        usual = {"diskSpaceWarningLevelRatio": "90", "diskSpaceCleanForciblyRatio": "85"}
        self.machine = Machine(root, START_MS, self.disk, **(usual | values))
        self.client = Client(self.machine, 50001)  # type: ignore[arg-type]
        self.sent = 0

    def fill(self, used: float) -> None:
        """Have so much of the disk used, and let the broker look at it."""
        self.disk.used = used
        self.machine.run(1100)

    def send(self, **values: int) -> RemotingCommand:
        """Send one message."""
        self.sent += 1
        return self.client.send("T", properties(**values), b"%d." % self.sent, e=0)

    def figures(self) -> dict[str, str]:
        """What the broker says of its disk."""
        return self.machine.store.runtime_info()


@pytest.fixture
def broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Broker:
    caplog.set_level(logging.WARNING)
    return Broker(tmp_path / "store")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings about the disk, and forget them."""
    texts = [record.getMessage() for record in caplog.records if record.filename == "retention.py"]
    caplog.clear()
    return texts


def test_through_both_thresholds_and_back(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    now_ms = broker.machine.now_ms
    for seconds in range(1, 8):
        assert broker.send(TIMER_DELIVER_MS=now_ms + 1000 * seconds).code == 0
    assert broker.send(DELAY=1).code == 0
    assert broker.figures()["timewheelDiskState"] == "ok"

    broker.fill(0.86)
    broker.fill(0.87)
    (text,) = said(caplog)
    assert "86.0% full, above 85% (diskSpaceCleanForciblyRatio)" in text, "once a crossing"
    assert broker.figures()["timewheelDiskState"] == "warning"
    assert broker.send().code == 0

    broker.fill(0.93)
    broker.fill(0.94)
    (text,) = said(caplog)
    assert "sends are refused, pending messages are still delivered" in text
    assert broker.figures()["timewheelDiskState"] == "refusing"
    for values in ({}, {"DELAY": 2}, {"TIMER_DELIVER_MS": broker.machine.now_ms + 1000}):
        reply = broker.send(**values)
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "94.0% full, the limit is 90%" in (reply.remark or "")
        assert "the broker's disk is full" in (reply.remark or ""), "Apache's words"
    broker.machine.run(4000)
    delivered = sorted(number for number, *_ in consume(broker.machine))
    assert delivered == [1, 2, 3, 4, 5, 6, 7, 8, 9], "what is pending is delivered, and nothing that was refused"

    broker.fill(0.88)
    (text,) = said(caplog)
    assert "messages are accepted again" in text
    assert broker.send().code == 0
    assert broker.send(TIMER_DELIVER_MS=broker.machine.now_ms + 500).code == 0
    broker.fill(0.5)
    (text,) = said(caplog)
    assert "there is room again" in text
    assert broker.figures()["timewheelDiskState"] == "ok"
    assert len(consume(broker.machine)) == 11
    broker.machine.close()


def test_room_for_what_is_pending_is_held_back(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """The share that is free is large enough, but it is less than what has been promised."""
    assert broker.send(TIMER_DELIVER_MS=broker.machine.now_ms + 3000).code == 0
    broker.machine.store.retention.promises.append(lambda: TOTAL // 4)
    broker.fill(0.70)
    assert broker.send().code == 0
    assert said(caplog) == []
    broker.fill(0.80)
    reply = broker.send()
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "204.8 GiB free, and what is pending needs 256.0 GiB of it" in (reply.remark or "")
    broker.machine.run(4000)
    assert sorted(number for number, *_ in consume(broker.machine)) == [1, 2]
    broker.machine.close()


def test_the_thresholds_are_apaches_keys(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", diskSpaceWarningLevelRatio="40")
    broker.fill(0.41)
    assert broker.send().code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.fill(0.39)
    assert broker.send().code == 0
    broker.machine.close()
