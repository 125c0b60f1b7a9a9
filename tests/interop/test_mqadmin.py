"""Apache's own mqadmin on our broker and name server and on Apache's: each command, and what it prints on either."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.config.broker_config import OWN_KEYS, USED_KEYS
from tests.interop.mqadmin_forms import DIFFERENCES, Difference, normal_lines, table_of, unexplained
from tests.support.admin import MqAdmin, admin_classes
from tests.support.apache import ApacheBroker, ApacheNameServer
from tests.support.clients import Client, command_of
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.parallel import run_all
from tests.support.wait import let_pass_until_ms
from tests.support.wire import Wire, wait_committed

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]

TOPIC, GROUP = "administered", "admin-group"
BEFORE_THE_RESET = "brokerConsumeStats"
"""It prints how far behind all groups are: that of the reset, too, which catches up at any time."""
RESET_TOPIC, RESET_GROUP = "reset", "reset-group"
"""Where offsets are reset while a consumer runs: it learns of that within a pull and a rebalance, half a minute."""
POP_TOPIC, POP_GROUP = "popped", "pop-group"
"""What a consumer pops that leaves it to the broker who gets what; each message comes twice."""
COUNT = 8

# {B} is the broker's address, {ID} and {UNIQUE} the ids of message 1, {MIDDLE} a time between messages 3 and 4.
COMMANDS = """
clusterList
topicList
topicList -c
topicRoute -t administered
topicRoute -t administered -l
topicRoute -t unheard-of
topicStatus -t administered
topicStatus -t unheard-of
topicClusterList -t administered
updateTopic -c DefaultCluster -t second -r 2 -w 2 -p 6
updateTopic -b {B} -t third -r 2 -w 2 -p 6 -a +message.type=DELAY
updateTopic -b {B} -t third -r 3 -w 3 -p 6
updateTopic -b {B} -t bad/name -r 2 -w 2
updateTopicPerm -b {B} -t second -p 4
topicRoute -t second
topicRoute -t third
updateSubGroup -b {B} -g cloned -s true
updateSubGroup -c DefaultCluster -g cloned -r 5 -q 2
getConsumerConfig -g cloned
consumerProgress -g admin-group
consumerProgress -g admin-group -t administered
consumerProgress -g unheard-of
consumerConnection -g admin-group
consumerConnection -g unheard-of
producerConnection -g admin-p -t administered
producerConnection -g unheard-of -t administered
producer -b {B}
brokerConsumeStats -b {B}
queryMsgById -t administered -i {ID}
queryMsgById -t administered -i 7F0000010000000000000000000FFFFF
queryMsgByKey -t administered -k key1
queryMsgByKey -t administered -k unheard-of
queryMsgByUniqueKey -t administered -i {UNIQUE}
queryMsgByOffset -t administered -b broker-a -i 0 -o 1
queryCq -t administered -q 0 -i 0 -c 2 -b {B}
queryCq -t administered -q 0 -i 0 -c 2 -b {B} -g admin-group
haStatus -b {B}
printMsg -t administered
printMsgByQueue -t administered -a broker-a -i 0 -p true
consumeMessage -t administered -b broker-a -i 0
consumeMessage -t administered -b broker-a -i 1 -o 1 -c 1
sendMessage -t administered -p hello -b broker-a -i 1
sendMessage -t single -p hello -k a-key -c a-tag
checkMsgSendRT -t single -a 3 -s 10
updateTopic -b {B} -t %RETRY%cloned -r 1 -w 1 -p 6
cloneGroupOffset -s admin-group -d cloned -t administered
consumerProgress -g cloned
cloneGroupOffset -s unheard-of -d cloned -t administered
resetOffsetByTime -g cloned -t administered -s {MIDDLE}
resetOffsetByTime -g cloned -t administered -s -1
resetOffsetByTime -g cloned -t administered -b {B} -q 1 -s 0 -o 1
resetOffsetByTime -g never-named -t administered -s 0
resetOffsetByTime -g cloned -t unheard-of -s 0
consumerProgress -g cloned
skipAccumulatedMessage -g cloned -t administered
wipeWritePerm -b broker-a
topicRoute -t administered
addWritePerm -b broker-a
topicRoute -t administered
wipeWritePerm -b unheard-of
setConsumeMode -b {B} -t administered -g pop-group -m POP -q 8
setConsumeMode -c DefaultCluster -t administered -g pop-group -m PULL
setConsumeMode -b {B} -t %RETRY%pop-group -g pop-group -m POP -q 8
setConsumeMode -b {B} -t unheard-of -g unheard-of -m POP -q 2
cleanExpiredCQ -b {B}
cleanUnusedTopic -b {B}
deleteExpiredCommitLog -b {B}
allocateMQ -t administered -i 192.0.2.1,192.0.2.2
updateOrderConf -t administered -v broker-a:4 -m put
updateOrderConf -t administered -m get
updateOrderConf -t administered -m delete
updateKvConfig -s space -k key -v value
deleteKvConfig -s space -k key
updateNamesrvConfig -k orderMessageEnable -v true
updateBrokerConfig -b {B} -k fileReservedTime -v 48
updateBrokerConfig -c DefaultCluster -k deleteWhen -v 05
deleteSubGroup -b {B} -g cloned -r true
deleteTopic -c DefaultCluster -t second
topicRoute -t second
deleteTopic -c DefaultCluster -t TBW102
""".strip().splitlines()

SINGLY = ["brokerStatus -b {B}", "getBrokerConfig -b {B}", "getNamesrvConfig"]
"""Commands whose output is compared in a way of its own."""


def _message(n: int, topic: str) -> dict[str, Any]:
    body = base64.b64encode(f"body {n}".encode()).decode()
    return {"n": n, "topic": topic, "body": body, "tag": "A", "keys": [f"key{n}"], "queue": n % 4}


class Side:
    """One broker with everything that the commands find there, and what they have printed."""

    def __init__(self, broker: OurBroker | ApacheBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.printed: dict[str, list[str]] = {}
        self.received_again: list[int] = []
        self.popped: list[dict[str, Any]] = []

    def run(self) -> None:
        """Run all commands."""
        admin = MqAdmin(self.broker.namesrv, self.folder / "admin")
        client = Client("java-5.5.0", self.broker.namesrv, self.folder / "client")
        try:
            names = self._prepare(admin, client)
            commands = SINGLY + COMMANDS
            early = [command for command in commands if command.startswith(BEFORE_THE_RESET)]
            self._print(admin, names, early)
            admin("resetOffsetByTime", "-g", RESET_GROUP, "-t", RESET_TOPIC, "-s", names["{MIDDLE}"])
            self._print(admin, names, [command for command in commands if command not in early])
            again = client.wait_received("reset", COUNT + COUNT // 2, 100)[COUNT:]
            self.received_again = sorted(int(event["keys"].removeprefix("key")) for event in again)
            self.popped = self._pop(admin, client)
        finally:
            client.stop()
            admin.stop()

    def _print(self, admin: MqAdmin, names: dict[str, str], commands: list[str]) -> None:
        for command in commands:
            if command.startswith(f"cloneGroupOffset -s {GROUP}"):
                with Wire(self.broker.address) as wire:  # mqadmin has sent one more, and the consumer saves later
                    wait_committed(wire, GROUP, TOPIC, 4, COUNT + 1)
            words = [names.get(word, word) for word in command.split(" ")]
            self.printed.setdefault(command, []).append(admin.run(*words))

    def _pop(self, admin: MqAdmin, client: Client) -> list[dict[str, Any]]:
        """What a consumer gets in pop mode; last, as Apache's broker writes each pop into its CommitLog."""
        admin("setConsumeMode", "-b", self.broker.address, "-t", POP_TOPIC, "-g", POP_GROUP, "-m", "POP", "-q", "8")
        client.consume("popped", POP_GROUP, {POP_TOPIC: "*"}, client_rebalance="no", retries={POP_TOPIC: "1"})
        client.produce("pops", "admin-p", [_message(n, POP_TOPIC) for n in range(COUNT)], threads=1)
        return client.wait_received("popped", 2 * COUNT, 100)

    def _prepare(self, admin: MqAdmin, client: Client) -> dict[str, str]:
        address = self.broker.address
        for topic, queues in ((TOPIC, "4"), (RESET_TOPIC, "4"), (POP_TOPIC, "4"), ("single", "1")):
            assert "success" in admin("updateTopic", "-b", address, "-t", topic, "-r", queues, "-w", queues)
        assert "success" in admin("updateSubGroup", "-b", address, "-g", GROUP)
        with Wire(self.broker.namesrv) as names:
            for topic in (TOPIC, RESET_TOPIC, POP_TOPIC, "single"):
                names.wait_route(topic, 30)
        client.consume("first", GROUP, {TOPIC: "*"})
        client.consume("reset", RESET_GROUP, {RESET_TOPIC: "*"})
        sent = self._send(client, 0, COUNT // 2)
        middle_ms = int(time.time() * 1000) + 50
        let_pass_until_ms(middle_ms + 50)
        self._send(client, COUNT // 2, COUNT)
        client.wait_received("first", COUNT, 60)
        client.wait_received("reset", COUNT, 60)
        with Wire(address) as wire:
            wait_committed(wire, GROUP, TOPIC, 4, COUNT)
            wait_committed(wire, RESET_GROUP, RESET_TOPIC, 4, COUNT)
        client.close_consumer("first")
        client.consume("second", GROUP, {TOPIC: "*"})
        one = next(event for event in sent if event["n"] == 1)
        return {"{B}": address, "{ID}": one["offset_msg_id"], "{UNIQUE}": one["msg_id"], "{MIDDLE}": str(middle_ms)}

    def _send(self, client: Client, begin: int, end: int) -> list[dict[str, Any]]:
        sent = client.produce(f"p{begin}", "admin-p", [_message(n, TOPIC) for n in range(begin, end)], threads=1)
        client.produce(f"r{begin}", "admin-p", [_message(n, RESET_TOPIC) for n in range(begin, end)], threads=1)
        return sent


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """All commands on our broker and on Apache's, at the same time."""
    need(admin_classes)
    folder = tmp_path_factory.mktemp("mqadmin")
    need(lambda: command_of("java-5.5.0", folder))
    names = ApacheNameServer(folder / "namesrv")
    ours = Side(OurBroker(folder / "our-broker"), folder / "ours")
    apache = Side(ApacheBroker(folder / "apache-broker", names.address), folder / "apache")
    try:
        run_all([ours.broker.start, apache.broker.start])
        run_all([ours.run, apache.run])
        yield ours, apache
    finally:
        ours.broker.kill()
        apache.broker.kill()
        names.stop()


USED: set[Difference] = set()


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_prints_what_it_prints_on_apaches(sides: tuple[Side, Side], command: str) -> None:
    ours, apache = sides
    for our_text, apache_text in zip(ours.printed[command], apache.printed[command], strict=True):
        left = unexplained(command, normal_lines(our_text), normal_lines(apache_text), USED)
        assert not left, "\n".join([command, *left, "---- ours:", our_text, "---- Apache's:", apache_text])


def test_every_difference_is_needed(sides: tuple[Side, Side]) -> None:
    for command in dict.fromkeys(COMMANDS):
        for texts in zip(*(side.printed[command] for side in sides), strict=True):
            unexplained(command, normal_lines(texts[0]), normal_lines(texts[1]), USED)
    assert set(DIFFERENCES) == USED


def test_a_running_consumer_goes_back(sides: tuple[Side, Side]) -> None:
    ours, apache = sides
    assert ours.received_again == apache.received_again == list(range(COUNT // 2, COUNT))


def test_a_remoting_consumer_pops_what_the_broker_deals_out(sides: tuple[Side, Side]) -> None:
    """Each message comes by a pop, and once more: by then it was not acknowledged."""
    for side in sides:
        came = sorted((int(event["keys"].removeprefix("key")), event["reconsume_times"]) for event in side.popped)
        assert came == [(n, tries) for n in range(COUNT) for tries in (0, 1)]
        assert all(event["topic"] == POP_TOPIC and "POP_CK" in event["properties"] for event in side.popped)
        first = {event["keys"]: event["received_ms"] for event in side.popped if event["reconsume_times"] == 0}
        again = {event["keys"]: event["received_ms"] for event in side.popped if event["reconsume_times"] == 1}
        assert all(again[key] - first[key] >= 9_900 for key in first), "its first time is ten seconds"
    with Wire(sides[0].broker.address) as wire:
        assert wire.offset_of(POP_GROUP, POP_TOPIC, 0) == COUNT // 4


def _shape(value: str) -> str:
    """Write a figure without its digits; of Apache's rates, which grow to three numbers in ten minutes, the first."""
    shape = re.sub(r"\d+(\.\d+)?", "0", value)
    return "0" if re.fullmatch("[0 ]*", shape) else re.sub("[KMG]iB", "B", shape)


def test_broker_status_has_every_figure_of_apaches(sides: tuple[Side, Side]) -> None:
    ours, apache = (table_of(side.printed[SINGLY[0]][0], ":") for side in sides)
    for table in (ours, apache):
        (place,) = (name for name in table if name.startswith("commitLogDiskRatio_"))
        table["commitLogDiskRatio_<place>"] = table.pop(place)
    assert apache.keys() - ours.keys() == set()
    shapes = [{name: _shape(table[name]) for name in apache} for table in (ours, apache)]
    for shape in shapes:
        shape["brokerVersionDesc"] = "<version>"  # ours says V4_9_8, as which it is compatible with all clients
    assert shapes[0] == shapes[1]
    for name in ("putMessageTimesTotal", "msgPutTotalTodayNow", "msgGetTotalTodayNow", "commitLogMaxOffset"):
        assert ours[name] == apache[name]


ITS_OWN = {
    "bindAddress",
    "enablePropertyFilter",
    "listenPort",
    "namesrvAddr",
    "storePathRootDir",
    "storePathCommitLog",
    "timerMaxDelaySec",
}
"""Keys whose values are of the run, and one that differs on purpose: no longest delay unless one is set."""


def test_broker_config_has_apaches_keys_and_values(sides: tuple[Side, Side]) -> None:
    ours, apache = (table_of(side.printed[SINGLY[1]][0], "=") for side in sides)
    assert USED_KEYS.keys() - ours.keys() - ITS_OWN == {"tls.server.keyPassword", "httpToken"}, "a secret is shown"
    # Apache reads TLS settings from a file of their own, and does not list them.
    theirs = {name for name in USED_KEYS.keys() - OWN_KEYS.keys() - ITS_OWN if not name.startswith("tls.")}
    assert {name: ours[name] for name in theirs} == {name: apache.get(name) for name in theirs}


def test_name_server_config_has_apaches_values(sides: tuple[Side, Side]) -> None:
    ours, apache = (table_of(side.printed[SINGLY[2]][0].replace("====", ""), "=") for side in sides)
    assert len(ours) >= 5
    assert ours.items() <= apache.items()
