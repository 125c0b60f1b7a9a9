"""What topics take in and groups read, as mqadmin and exporters ask for it: ours and Apache's side by side."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from remoting.codes import RequestCode
from tests.interop.mqadmin_forms import normal_lines
from tests.interop.on_pair.conftest import Pair
from tests.support.admin import MqAdmin, admin_classes
from tests.support.apache import ApacheBroker
from tests.support.clients import Client, command_of
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.parallel import run_all
from tests.support.wait import let_pass
from tests.support.wire import Wire, WireError, wait_committed
from tests.support.wire_admin import create_group

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]

TOPIC, GROUP, COUNT, SENT_BACK = "counted", "counting-group", 8, 2
KEYS = {
    "TOPIC_PUT_NUMS": TOPIC,
    "TOPIC_PUT_SIZE": TOPIC,
    "GROUP_GET_NUMS": f"{TOPIC}@{GROUP}",
    "GROUP_GET_SIZE": f"{TOPIC}@{GROUP}",
    "SNDBCK_PUT_NUMS": f"{TOPIC}@{GROUP}",
    "BROKER_PUT_NUMS": "DefaultCluster",
    "BROKER_GET_NUMS": "DefaultCluster",
}
COMMANDS = (f"statsAll -t {TOPIC}", f"statsAll -a -t {TOPIC}", f"topicStatus -t {TOPIC}", "clusterList -m")


class Side:
    """One broker, what it answered and what mqadmin printed."""

    def __init__(self, broker: OurBroker | ApacheBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.figures: dict[str, Any] = {}
        self.refusal = ""
        self.printed: dict[str, str] = {}

    def run(self) -> None:
        """Send, read, and ask until the next sample has counted it."""
        admin = MqAdmin(self.broker.namesrv, self.folder / "admin")
        client = Client("java-5.5.0", self.broker.namesrv, self.folder / "client")
        try:
            with Wire(self.broker.address) as wire:
                wire.create_topic(TOPIC, 1)
                create_group(wire, GROUP)
                with Wire(self.broker.namesrv) as names:
                    names.wait_route(TOPIC, 30)
                messages = [{"n": n, "topic": TOPIC, "body": "Ym9keQ==", "keys": [f"k{n}"]} for n in range(COUNT)]
                client.consume("c", GROUP, {TOPIC: "*"})  # first: what is counted may not be older than a minute
                sent = client.produce("p", "counting-p", messages, threads=1)
                client.wait_received("c", COUNT, 60)
                wait_committed(wire, GROUP, TOPIC, 1, COUNT)
                client.close_consumer("c")
                for event in sent[:SENT_BACK]:
                    self._send_back(wire, int(event["offset_msg_id"][16:], 16))
                self._wait(wire)
                for command in COMMANDS:
                    self.printed[command] = admin.run(*command.split(" "))
        finally:
            client.stop()
            admin.stop()

    @staticmethod
    def _send_back(wire: Wire, offset: int) -> None:
        fields = {"group": GROUP, "offset": offset, "delayLevel": 5, "originTopic": TOPIC}
        wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    def _wait(self, wire: Wire) -> None:
        end = time.monotonic() + 45
        while time.monotonic() < end:
            try:
                for name, key in KEYS.items():
                    fields = {"statsName": name, "statsKey": key}
                    self.figures[name] = json.loads(wire.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields)[1])
            except WireError as error:
                self.refusal = str(error)
            else:
                sums = [
                    self.figures[name]["statsMinute"]["sum"]
                    for name in ("TOPIC_PUT_NUMS", "GROUP_GET_NUMS", "SNDBCK_PUT_NUMS")
                ]
                if sums == [COUNT, COUNT, SENT_BACK]:
                    return
            let_pass(0.5)
        raise AssertionError(f"not counted: {self.figures} {self.refusal}")


@pytest.fixture(scope="module")
def sides(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Side, Side]:
    """Both brokers, after both have counted the same."""
    need(admin_classes)
    folder = tmp_path_factory.mktemp("stats")
    need(lambda: command_of("java-5.5.0", folder))
    ours, apache = Side(pair.ours, folder / "ours"), Side(pair.apache, folder / "apache")
    run_all([ours.run, apache.run])
    return ours, apache


@pytest.mark.parametrize("name", list(KEYS))
def test_the_same_is_counted(sides: tuple[Side, Side], name: str) -> None:
    ours, apache = (side.figures[name] for side in sides)
    assert {span: sorted(figures) for span, figures in ours.items()} == {
        span: sorted(figures) for span, figures in apache.items()
    }
    if not name.startswith("BROKER"):  # Apache's counts messages of its own there
        assert ours["statsMinute"]["sum"] == apache["statsMinute"]["sum"] > 0
        assert ours["statsMinute"]["tps"] > 0
    else:
        assert ours["statsMinute"]["sum"] >= COUNT


@pytest.mark.parametrize("name", ["TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "SNDBCK_PUT_NUMS"])
def test_what_one_call_brings(sides: tuple[Side, Side], name: str) -> None:
    ours, apache = (side.figures[name]["statsMinute"]["avgpt"] for side in sides)
    assert ours == apache > 0


@pytest.mark.parametrize("command", COMMANDS)
def test_mqadmin_prints_the_same(sides: tuple[Side, Side], command: str) -> None:
    ours, apache = (normal_lines(side.printed[command]) for side in sides)
    if command == "clusterList -m":  # what came in and went out today: Apache's counts messages of its own
        for lines in (ours, apache):
            row = next(place for place, line in enumerate(lines) if line.startswith("DefaultCluster"))
            lines[row], came_in, went_out = lines[row].rsplit(" ", 2)
            assert int(came_in) >= COUNT
            assert int(went_out) >= COUNT
    assert ours == apache
