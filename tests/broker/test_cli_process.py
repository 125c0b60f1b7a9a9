"""The command line with real processes: a broker, and everything that a user does with it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ours import OurBroker
from tests.support.ports import free_port
from tests.support.processes import Child
from tests.support.wait import happens
from timewheel_client import Producer

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120
"""For a machine that does much else; none of these commands takes more than some seconds."""


def timewheel(*arguments: str, seconds: float = PATIENCE_S, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "broker.cli", *arguments],
        cwd=ROOT,
        input=stdin.decode(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def put(broker: OurBroker, topic: str, *bodies: str, delay: float | None = None) -> None:
    """Send without a process for each message."""

    async def send() -> None:
        async with Producer(broker.namesrv) as producer:
            for body in bodies:
                await producer.send(topic, body, delay=delay)

    asyncio.run(send())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurBroker]:
    running = OurBroker(tmp_path_factory.mktemp("cli")).start()
    yield running
    running.kill()


def test_one_line_when_it_is_ready(broker: OurBroker) -> None:
    (line,) = broker.log.read_text().splitlines()
    assert line == (
        f"ready: listening on 127.0.0.1:{broker.port}, advertised as broker-a at 127.0.0.1:{broker.port}, "
        f"name server on {broker.namesrv}, store {broker.store}, 0 pending"
    )


def test_the_line_tells_which_name_servers_know_it(broker: OurBroker, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    other = OurBroker(tmp_path, {"brokerName": "broker-b"}, f"{nobody};{broker.namesrv}")
    child = other.spawn()
    try:
        happens(lambda: "ready: " in child.tail(), 20)
        assert f", registered with {broker.namesrv}, NOT yet registered with {nobody}, store " in child.tail()
    finally:
        other.kill()


def test_what_is_sent_is_consumed_and_recorded(broker: OurBroker, tmp_path: Path) -> None:
    names = ("--namesrv", broker.namesrv)
    sent = timewheel("send", "cli", "héllo", "--tags", "a", "--key", "k1", "--key", "k2", "--property", "x=y=z", *names)
    assert (sent.returncode, sent.stderr) == (0, "")
    found = re.fullmatch(r"sent ([0-9A-F]{32}) to cli, queue \d of broker-a \(SEND_OK\)\n", sent.stdout)
    assert found
    before_ms = time.time_ns() // 1_000_000
    began = time.monotonic()
    later = timewheel("send", "cli", "-", "--in", "300ms", *names, stdin=b"from a pipe")
    took_ms = int((time.monotonic() - began) * 1000)
    assert re.match(
        r"deliver in 300ms \(300 ms\), at about \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d\n", later.stdout
    )
    at_ms = time.time_ns() // 1_000_000 + max(2_000, 4 * took_ms)  # later than the next command has started
    at = timewheel("send", "cli", "at", "--at", str(at_ms), *names)
    assert f"({at_ms}), in " in at.stdout
    assert re.search(r"\nit waits as 7F000001[0-9A-F]{8}4[0-9A-F]{15}, the id for `timewheel pending`\n", at.stdout)
    past = timewheel("send", "cli", "past", "--at", "2020-01-01T00:00:00Z", *names)
    assert "2020-01-01" in past.stdout
    assert "which has passed: at once" in past.stdout
    assert "it waits" not in past.stdout

    record = tmp_path / "record"
    consumed = timewheel("consume", "cli", "--count", "4", "--record", str(record), "--group", "g", *names)
    assert (consumed.returncode, consumed.stderr) == (0, "")
    assert f"{found[1]} [a] [k1 k2] héllo" in consumed.stdout
    rows = {row["body"]: row for row in map(json.loads, record.read_text().splitlines())}
    assert set(rows) == {"héllo", "from a pipe", "at", "past"}
    first = rows["héllo"]
    assert (first["message_id"], first["tags"], first["keys"]) == (found[1], "a", ["k1", "k2"])
    assert first["properties"]["x"] == "y=z"
    assert rows["at"]["due_ms"] == at_ms
    for body in ("at", "from a pipe"):
        assert rows[body]["store_ms"] >= rows[body]["due_ms"] >= before_ms

    again = subprocess.Popen(
        [sys.executable, "-m", "broker.cli", "consume", "cli", "--group", "g", *names],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    put(broker, "cli", "the next")
    assert again.stdout is not None
    assert again.stdout.readline().endswith(" the next\n")
    again.send_signal(signal.SIGINT)
    out, err = again.communicate(timeout=PATIENCE_S)
    assert (again.returncode, out, err) == (0, "", "")


def test_a_broker_that_says_no(broker: OurBroker) -> None:
    refused = timewheel("send", "bad topic", "x", "--namesrv", broker.namesrv)
    assert refused.returncode == 1
    assert refused.stderr.startswith("timewheel: INVALID_PARAMETER (29) from 127.0.0.1:")
    assert refused.stderr.count("\n") == 1


def test_what_is_taken_is_said_in_one_line(broker: OurBroker, tmp_path: Path) -> None:
    port = timewheel("broker", "--store", str(tmp_path / "other"), "--listen", broker.address)
    assert port.returncode == 1
    assert port.stderr.count("\n") == 1
    assert f"cannot listen on {broker.address}: Address already in use" in port.stderr
    store = timewheel("broker", "--store", str(broker.store), "--listen", "0", "--namesrv-listen", "0")
    assert store.returncode == 1
    assert store.stderr.count("\n") == 1
    assert "is locked: another process has this store open" in store.stderr
    check = timewheel("check", str(broker.store))
    assert (check.returncode, check.stdout) == (1, "")
    assert "is locked" in check.stderr
    plugin = timewheel(
        "broker", "--store", str(tmp_path / "other"), "--listen", "0", "--set", "plugins=absent.module:X"
    )
    assert plugin.returncode == 1
    assert plugin.stderr.count("\n") == 1
    assert "absent.module:X" in plugin.stderr


def test_consuming_ends_with_the_broker_gone_and_a_signal(tmp_path: Path) -> None:
    ours = OurBroker(tmp_path).start()
    try:
        put(ours, "t", "x")
        consumer = Child(
            [sys.executable, "-u", "-m", "broker.cli", "consume", "t", "--namesrv", ours.namesrv],
            ROOT,
            tmp_path / "consume",
        )
        happens(lambda: "x" in consumer.tail(), 20)
        ours.kill()
        assert consumer.running()
        assert consumer.terminate(PATIENCE_S) == 0
    finally:
        ours.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_and_nothing_is_wrong_then(tmp_path: Path, number: signal.Signals) -> None:
    """It does not wait: for a message that is due in an hour, or for the client that stays connected."""
    began = time.monotonic()
    ours = OurBroker(tmp_path).start()
    start_s = time.monotonic() - began
    try:
        put(ours, "t", "now")
        put(ours, "t", "later", delay=3600)
        with socket.create_connection(("127.0.0.1", ours.port)):
            began = time.monotonic()
            ours.child.process.send_signal(number)
            assert ours.child.process.wait(60) == 0
            # A twelfth, as a rule: what makes a machine slow makes the start slow, too.
            assert time.monotonic() - began < start_s
    finally:
        ours.kill()
    assert not (ours.store / "abort").exists()
    log = (ours.store / "logs" / "broker.log").read_text()
    assert log.splitlines()[-1].endswith("INFO broker: ended")
    check = timewheel("check", str(ours.store))
    assert check.stdout.endswith("1 pending: nothing is wrong\n")
    assert check.returncode == 0


def test_check_changes_nothing_and_finds_what_is_wrong(tmp_path: Path) -> None:
    ours = OurBroker(tmp_path).start()
    try:
        put(ours, "t", *(f"body {number}" for number in range(3)))
    finally:
        ours.kill()
    segment = ours.store / "commitlog" / f"{0:020d}"

    def contents() -> dict[str, bytes]:
        files = [path for path in ours.store.rglob("*") if path.is_file()]
        return {str(path): _head(path) for path in files}

    before = contents()
    killed = timewheel("check", str(ours.store))
    assert killed.returncode == 0
    assert "note: the store was not closed cleanly: the next start recovers it\n" in killed.stdout
    assert killed.stdout.endswith("nothing is wrong\n")
    assert contents() == before

    data = _head(segment)
    at = data.index(b"body 1")
    with open(segment, "r+b") as file:
        os.pwrite(file.fileno(), b"B", at)
    damaged = timewheel("check", str(ours.store))
    assert damaged.stdout + damaged.stderr  # what it says depends on how far recovery gets
    assert damaged.returncode == 1 or "a start cuts the log off there" in damaged.stdout


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(1 << 20)


def test_demo() -> None:
    demo = timewheel("demo", "--messages", "100", "--seconds", "2", "--seed", "1")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    *lines, verdict = demo.stdout.splitlines()
    assert re.match(r"PASSED: 100 sent, 100 delivered, 0 lost, 0 repeated, 0 early; at the broker p50 ", verdict)
    assert lines
    assert all("at the consumer" in line for line in lines)


def test_demo_broken_off() -> None:
    demo = subprocess.Popen(
        [sys.executable, "-u", "-m", "broker.cli", "demo", "--seconds", "60"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    assert "pending" in demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130
    assert out.endswith("interrupted\n")
    assert err == ""


def test_an_account_needs_its_secret_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIMEWHEEL_SECRET_KEY", raising=False)
    for command in (("send", "T", "body"), ("consume", "T")):
        done = timewheel(*command, "--access-key", "order-service")
        assert done.returncode == 2
        assert "--access-key order-service needs its secret key in the environment" in " ".join(done.stderr.split())


def test_send_and_consume_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(
        "accounts:\n- accessKey: order-service\n  secretKey: 12345678\n  defaultTopicPerm: PUB|SUB\n"
        "  defaultGroupPerm: SUB\n"
    )
    broker = OurBroker(tmp_path / "store", {"aclEnable": "true", "aclFile": str(rules)}).start()
    try:
        monkeypatch.setenv("TIMEWHEEL_SECRET_KEY", "12345678")
        account = ("--namesrv", broker.namesrv, "--access-key", "order-service")
        sent = timewheel("send", "signed", "hello", *account)
        assert sent.returncode == 0, sent.stderr
        read = timewheel("consume", "signed", "--count", "1", *account)
        assert (read.returncode, "hello" in read.stdout) == (0, True), read.stderr
        monkeypatch.setenv("TIMEWHEEL_SECRET_KEY", "87654321")
        refused = timewheel("send", "signed", "hello", *account)
        assert refused.returncode == 1
        assert "Check signature failed for accessKey=order-service" in refused.stderr
    finally:
        broker.kill()


def test_sighup_reads_the_files_again_and_never_ends_the_broker(tmp_path: Path) -> None:
    conf, rules = tmp_path / "broker.conf", tmp_path / "rules.yml"
    conf.write_text("fileReservedTime=48\n")
    rules.write_text("accounts:\n- accessKey: order-service\n  secretKey: 12345678\n  admin: true\n")

    class WithFile(OurBroker):
        def command(self) -> list[str]:
            return [*super().command(), "-c", str(conf)]

    ours = WithFile(tmp_path, {"aclEnable": "true", "aclFile": str(rules)}).start()
    pid = ours.child.process.pid
    try:
        log = ours.store / "logs" / "broker.log"
        for text, told in (
            ("fileReservedTime=72\n", "fileReservedTime=72 from now on"),
            ("fileReservedTime=abc\n", f"the settings stay as they were: {conf}: line 1: fileReservedTime=abc"),
        ):
            conf.write_text(text)
            os.kill(pid, signal.SIGHUP)
            happens(lambda told=told: told in log.read_text(), 20)
            assert told in log.read_text()
        for _ in range(5):
            os.kill(pid, signal.SIGHUP)
        assert timewheel("send", "T", "x", "--namesrv", ours.namesrv).returncode == 1  # alive: it refuses the unsigned
        assert ours.child.running()
        ours.child.process.send_signal(signal.SIGTERM)
        os.kill(pid, signal.SIGHUP)
        assert ours.child.process.wait(30) == 0
    finally:
        ours.kill()
