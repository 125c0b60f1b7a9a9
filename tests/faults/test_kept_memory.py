"""Requests that wait, on the real process: pulls with large bodies, and replies that their requester never confirms.

Each sends more than a gibibyte over one connection; what the process keeps of it stays near ``connectionBytesMax``.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from remoting.messages.properties import format_properties
from tests.support.fault_storm import FaultyBroker
from tests.support.pull_fields import pull_fields
from tests.support.wire import Wire
from tests.support.wire_admin import create_group

pytestmark = pytest.mark.process

MIB = 1 << 20
HELD_BYTES = 96 * MIB
ABOVE_IDLE_BYTES = HELD_BYTES + 96 * MIB
"""What may be kept, and a few frames on their way through the decoder."""
SEND = {"a": "pg", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 5, "h": 0, "i": "", "j": 0, "k": "false", "m": "false"}
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def _rss(broker: FaultyBroker, field: str = "VmRSS") -> int:
    """Resident bytes of the broker now; with VmHWM the most that there ever were."""
    lines = Path(f"/proc/{broker.child.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


class _Peer:
    """A connection that sends what it likes and reads what comes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self._decoder = FrameDecoder()
        self._opaque = 0

    def send(self, code: int, fields: dict[str, Any], body: bytes = b"") -> None:
        self._opaque += 1
        ext = {name: str(value) for name, value in fields.items()}
        self.socket.sendall(encode_command(RemotingCommand(code, self._opaque, ext=ext, body=body)))

    def receive(self, count: int) -> list[RemotingCommand]:
        found: list[RemotingCommand] = []
        while len(found) < count:
            data = self.socket.recv(1 << 20)
            assert data, "the broker has closed the connection"
            found += self._decoder.feed(data)
        return found

    def swallow(self) -> None:
        """Read until the connection ends, and answer nothing."""
        try:
            while self.socket.recv(1 << 20):
                pass
        except OSError:
            pass


@pytest.fixture
def broker(tmp_path: Path):
    broker = FaultyBroker(tmp_path, {"connectionBytesMax": str(HELD_BYTES), "pullThreadPoolQueueCapacity": "1000"})
    broker.up()
    try:
        yield broker
        assert broker.stop() == 0, broker.child.tail()
    finally:
        broker.kill()


def test_150_pulls_with_8_mib_each_are_held_without_them(broker: FaultyBroker) -> None:
    peer = _Peer(broker.address)
    with Wire(broker.address, 60) as polite:
        polite.create_topic("load")
        create_group(polite, "readers")
        idle = _rss(broker)
        fields = {**pull_fields("readers", "load"), "sysFlag": 6, "suspendTimeoutMillis": 60_000}
        for _ in range(150):
            peer.send(RequestCode.PULL_MESSAGE, fields, bytes(8 * MIB))
        peer.send(RequestCode.GET_MAX_OFFSET, {"topic": "load", "queueId": 0})
        (answer,) = peer.receive(1)
        assert answer.code == 0, "all that was sent before has been read, and nothing of it answered"
        grown = _rss(broker) - idle
        print(f"RSS: idle {idle >> 20} MiB, 150 pulls {grown >> 20} MiB, at most {_rss(broker, 'VmHWM') >> 20} MiB")
        assert grown < ABOVE_IDLE_BYTES, f"{grown >> 20} MiB for pulls that wait"
        polite.ask(310, {**SEND, "b": "load"}, b"at last")
        assert [reply.code for reply in peer.receive(150)] == [0] * 150, "all of them are answered"
    peer.socket.close()


def test_a_gibibyte_of_replies_that_nobody_confirms(broker: FaultyBroker) -> None:
    requester, replier = _Peer(broker.address), _Peer(broker.address)
    heartbeat = {"clientID": "asker", "producerDataSet": [{"groupName": "pg"}], "consumerDataSet": []}
    requester.send(RequestCode.HEART_BEAT, {}, json.dumps(heartbeat).encode())
    requester.receive(1)
    idle = _rss(broker)
    reader = threading.Thread(target=requester.swallow, daemon=True)
    reader.start()
    text = format_properties({"CORRELATION_ID": "c", "REPLY_TO_CLIENT": "asker", "UNIQ_KEY": "K"})
    fields = {**SEND, "b": REPLY_TOPIC, "i": text}
    answers: list[RemotingCommand] = []
    for number in range(256):
        replier.send(RequestCode.SEND_REPLY_MESSAGE_V2, fields, bytes(4 * MIB - 64))
        if number >= 16:
            answers += replier.receive(1)
    grown = _rss(broker, "VmHWM") - idle
    print(f"RSS: idle {idle >> 20} MiB, 256 replies at most {grown >> 20} MiB more")
    assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_BUSY}
    assert "bytes of this connection" in (answers[0].remark or "")
    assert grown < ABOVE_IDLE_BYTES + HELD_BYTES, f"{grown >> 20} MiB for replies that nobody confirms"
    for peer in (requester, replier):
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.socket.shutdown(socket.SHUT_RDWR)
    reader.join()
    for peer in (requester, replier):
        peer.socket.close()
