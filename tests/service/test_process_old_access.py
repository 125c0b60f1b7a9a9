"""The service beside Apache 4.9 with its own access control and TLS: what accounts may do, what the others are told.

One cluster for the module: Apache's last name server and broker of 4.9, `aclEnable`, accounts in `conf/plain_acl.yml`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest

from service.running.entries import REJECTED_TOPIC
from tests.service.process_access_door import ARRIVE, NEVER, READERS, RETRY, SENT_BACK, use_the_door
from tests.service.process_cluster import ENTRY, NUMBER, Copies, RealCluster, now_ms, read_all
from tests.support.apache import apache_jars
from tests.support.certificates import Certificate, make_certificate
from tests.support.need import need
from tests.support.ports import free_port
from tests.support.processes import Child
from tests.support.wait import happens, wait_until
from timewheel_client import BrokerError, Producer
from timewheel_client.net.credentials import Credentials

pytestmark = [pytest.mark.process, pytest.mark.apache]

OLD = "4.9.7"
"""The last 4.9 whose broker Maven Central has."""
PATIENCE_S = 120
QUEUES = 2
SECRET = "a-long-secret"
ADMIN = Credentials("administrator", SECRET)
GROUP = "TIMEWHEEL_SERVICE_TIMEWHEEL"
TOPICS = {ENTRY: "PUB|SUB", "TIMEWHEEL_PROGRESS": "PUB|SUB", REJECTED_TOPIC: "PUB|SUB", "orders": "PUB|SUB"}
ACCOUNTS: dict[str, tuple[dict[str, str], str]] = {
    "the-service": ({**TOPICS, "closed": "SUB"}, "SUB"),
    "without-group": (TOPICS, "DENY"),
    "without-entries": ({**TOPICS, ENTRY: "DENY"}, "SUB"),
    "reads-entries": ({**TOPICS, ENTRY: "SUB"}, "SUB"),
    "the-sender": ({ENTRY: "PUB"}, "DENY"),
    "orders-sender": ({"orders": "PUB"}, "DENY"),
    "orders-user": ({"orders": "PUB|SUB"}, "DENY"),
}
"""What each may do: with topics, with the service's group."""


def plain_acl(**more: dict[str, str]) -> str:
    """The accounts; ``more`` rights to topics by the account's name, with _ for -."""
    lines = ["accounts:", f"- accessKey: {ADMIN.access_key}", f"  secretKey: {SECRET}", "  admin: true"]
    for name, (topics, group) in ACCOUNTS.items():
        lines += [f"- accessKey: {name}", f"  secretKey: {SECRET}", "  admin: false"]
        lines += ["  defaultTopicPerm: DENY", "  defaultGroupPerm: DENY", "  topicPerms:"]
        rights = {**topics, **more.get(name.replace("-", "_"), {})}
        lines += [f"  - {topic}={may}" for topic, may in rights.items()]
        lines += [
            "  groupPerms:",
            f"  - {GROUP}={group}",
            f"  - {READERS}={'SUB' if name == 'orders-user' else 'DENY'}",
        ]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, made: Certificate) -> Iterator[RealCluster]:
    need(lambda: apache_jars(OLD))
    folder = tmp_path_factory.mktemp("old")
    (folder / "b0" / "conf").mkdir(parents=True)
    (folder / "b0" / "conf" / "plain_acl.yml").write_text(plain_acl())
    served = {"test.mode.enable": "false", "server.keyPath": made.key, "server.certPath": made.certificate}
    options = " ".join(f"-Dtls.{name}={value}" for name, value in served.items())
    with mock.patch.dict(os.environ, {"JAVA_TOOL_OPTIONS": options}):
        running = RealCluster(folder, settings={"aclEnable": "true"}, version=OLD, tls=True)
    try:
        running.topics(QUEUES, "orders", "closed", credentials=ADMIN)
        yield running
    finally:
        running.stop()


def instance(
    cluster: RealCluster, made: Certificate, account: str, secret: str = SECRET, more: Sequence[str] = ()
) -> Child:
    with mock.patch.dict(os.environ, {"TIMEWHEEL_SECRET_KEY": secret}):
        return cluster.service("--access-key", account, "--tls-ca", str(made.certificate), *more)


def send(cluster: RealCluster, numbers: range, topic: str, due_ms: int) -> None:
    async def work() -> None:
        async with Producer(cluster.namesrv, access_key="the-sender", secret_key=SECRET) as producer:
            for number in numbers:
                properties = {"TW_TOPIC": topic, "TW_DELIVER_MS": str(due_ms + number), NUMBER: str(number)}
                await producer.send(ENTRY, b"body", properties=properties)

    asyncio.run(work())


def read(cluster: RealCluster, topic: str) -> Copies:
    return asyncio.run(read_all(cluster.namesrv, [topic], ADMIN))


def test_an_account_that_lacks_something_is_told_what_and_takes_nothing(
    cluster: RealCluster, made: Certificate
) -> None:
    """A wrong secret, no right on the group, none on the entry topic, none to write there; then one that has all."""
    send(cluster, range(20), "orders", now_ms())
    says = {
        instance(cluster, made, "the-service", "a-wrong-secret"): "Check signature failed for accessKey=the-service",
        instance(cluster, made, "nobody-at-all"): "No acl config for nobody-at-all",
        instance(cluster, made, "without-group"): f"No default permission for group:{GROUP}",
        instance(cluster, made, "without-entries"): f"No default permission for topic:{ENTRY}",
        instance(cluster, made, "reads-entries"): f"No default permission for topic:{ENTRY}",
    }
    for child, text in says.items():
        wait_until(lambda child=child, text=text: _says(child, text), PATIENCE_S, f"{text}:\n{child.tail()}")  # type: ignore[misc]
        assert child.running() and cluster.owned(child) == 0, child.tail()
    for child in says:
        assert child.terminate() == 0
    assert not read(cluster, "orders").messages and not read(cluster, REJECTED_TOPIC).messages


def _says(child: Child, text: str) -> bool:
    return text in child.log.read_text(errors="replace")


def test_messages_go_out_once_and_those_for_a_topic_that_is_closed_to_it_wait_until_it_is_not(
    cluster: RealCluster, made: Certificate
) -> None:
    """Before, they were rejected: also those that came due while somebody was changing the account."""
    service = instance(cluster, made, "the-service")
    wait_until(lambda: cluster.owned(service) >= QUEUES, PATIENCE_S, f"takeovers:\n{service.tail()}")
    due_ms = now_ms() + 1500
    send(cluster, range(20, 23), "closed", due_ms)
    send(cluster, range(30, 50), "orders", due_ms)
    sent = [*range(20), *range(30, 50)]

    def are_there(topic: str, count: int) -> bool:
        return len(read(cluster, topic).found) >= count

    assert happens(lambda: are_there("orders", len(sent)), PATIENCE_S), service.tail()
    told = "wait: NO_PERMISSION: org.apache.rocketmq.acl.common.AclException: No default permission for topic:closed"
    wait_until(lambda: _says(service, told), PATIENCE_S, f"{told}:\n{service.tail()}")
    assert not read(cluster, REJECTED_TOPIC).messages and not read(cluster, "closed").messages
    rules = cluster.folder / "b0" / "conf" / "plain_acl.yml"
    try:
        rules.write_text(plain_acl(the_service={"closed": "PUB|SUB"}))  # the broker looks at it twice a second
        assert happens(lambda: are_there("closed", 3), PATIENCE_S), service.tail()
    finally:
        rules.write_text(plain_acl())
    assert service.terminate() == 0
    assert read(cluster, "closed").verdict(range(20, 23)) == {"lost": 0, "early": 0, "twice": 0}
    assert read(cluster, "orders").verdict(sent) == {"lost": 0, "early": 0, "twice": 0}
    assert not read(cluster, REJECTED_TOPIC).messages


def test_a_door_before_it(cluster: RealCluster, made: Certificate) -> None:
    """Signatures pass, and the broker's refusals are the sender's at once; what has a due time goes by the service.

    The same for batches, transactions, and what a consumer sends back.
    """
    front = f"127.0.0.1:{free_port()}"
    service = instance(cluster, made, "the-service", more=("--listen", front))
    wait_until(lambda: cluster.owned(service) >= QUEUES, PATIENCE_S, f"takeovers:\n{service.tail()}")

    async def work() -> None:
        async with Producer(front, access_key="orders-sender", secret_key=SECRET) as producer:
            await producer.send("orders", b"now", properties={NUMBER: "100"})
            await producer.send_oneway("orders", b"one-way", properties={NUMBER: "101"})
            await producer.send("orders", b"later", properties={NUMBER: "102"}, at=now_ms() + 500)
            with pytest.raises(BrokerError, match="No default permission for topic:closed"):
                await producer.send("closed", b"now", properties={NUMBER: "103"})
            with pytest.raises(BrokerError, match="nowhere"):
                await producer.send("nowhere", b"later", at=now_ms() + 500)
        async with Producer(front, access_key="orders-sender", secret_key="a-wrong-secret") as producer:
            with pytest.raises(BrokerError, match="Check signature failed"):
                await producer.send("orders", b"forged", properties={NUMBER: "104"})

    asyncio.run(work())
    asyncio.run(use_the_door(front, "orders-user", SECRET))
    wanted = {100, 101, 102, *ARRIVE}
    assert happens(lambda: read(cluster, "orders").found.keys() >= wanted, PATIENCE_S), service.tail()
    assert happens(lambda: SENT_BACK in read(cluster, RETRY).found, PATIENCE_S), service.tail()
    found = read(cluster, "orders").found
    assert not found.keys() & NEVER
    assert {number: len(found[number]) for number in found if number >= 100} == dict.fromkeys(wanted, 1)
    assert service.terminate() == 0
