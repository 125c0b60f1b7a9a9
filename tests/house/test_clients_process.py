"""What stock clients say: of a send that failed (out of time, or refused), and right before they are killed."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bench.peers.processes import Child
from tests.support import clients
from tests.support.clients import Client, was_out_of_time

pytestmark = pytest.mark.pure

CLIENT = "org.apache.rocketmq.client.exception."
REMOTING = "org.apache.rocketmq.remoting.exception."
WAIT = REMOTING + "RemotingTimeoutException: wait response on the channel <127.0.0.1:10911> timeout, "


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (REMOTING + "RemotingTooMuchRequestException: sendDefaultImpl call timeout", True),
        (REMOTING + "RemotingTimeoutException: invokeSync call the addr[127.0.0.1:10911] timeout", True),
        (WAIT + "1493(ms)", True),
        (WAIT + "8999(ms)", True),
        (WAIT + "9997(ms)", False),
        (WAIT + "10000(ms)", False),
        (CLIENT + "MQBrokerException: CODE: 14  DESC: service not available now", False),
        (CLIENT + "MQBrokerException: CODE: 2  DESC: [TIMEOUT_CLEAN_QUEUE] sendDefaultImpl call timeout", False),
        (CLIENT + "MQClientException: Send [3] times, still failed, cost [44]ms, Topic: T", False),
        (REMOTING + "RemotingConnectException: connect to 127.0.0.1:10911 failed", False),
    ],
)
def test_time_that_is_used_up_is_told_from_a_refusal(error: str, is_so: bool) -> None:
    assert was_out_of_time(error) == is_so


TALKATIVE = """
import os, signal, sys
for number in range(200):
    print('{"id": "c", "event": "received", "number": %d}' % number)
sys.stdout.write('{"id": "c", "eve')
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_all_that_a_killed_client_had_said_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener is slow here: it reads on only when the client is dead. A line that was cut is no event."""
    dead = threading.Event()

    class Slow:
        dumps = json.dumps

        @staticmethod
        def loads(line: bytes) -> Any:
            dead.wait(60)
            return json.loads(line)

    def kill(child: Child, of_child: Any = Child.kill) -> None:
        of_child(child)
        dead.set()

    monkeypatch.setattr(clients, "json", Slow)
    monkeypatch.setattr(Child, "kill", kill)
    monkeypatch.setattr(clients, "command_of", lambda *_: [sys.executable, "-c", TALKATIVE])
    client = Client("talkative", "", tmp_path)
    client._child.process.wait(60)
    client.kill()
    assert [event["number"] for event in client.received("c")] == list(range(200))
