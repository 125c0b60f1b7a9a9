"""Two thousand connections, most of them rude, on the real process: memory stays within a bound, descriptors come back.

All at once: producers that send more than is answered at a time, peers that announce a large frame and send none of
it, that vanish in the middle of one, that send a megabyte and stop, consumers that pull and never read, pulls that
wait. A polite client is served all the while. What is silent is closed by the broker, not by the test.
"""

from __future__ import annotations

import json
import re
import resource
import selectors
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_storm import FaultyBroker
from tests.support.need import in_ci
from tests.support.pull_fields import pull_fields
from tests.support.wait import wait_until
from tests.support.wire import Wire
from tests.support.wire_admin import create_group

pytestmark = [pytest.mark.process, pytest.mark.alone]

CONNECTIONS = 2_000
FILES_NEEDED = CONNECTIONS + 300
HELD_BYTES = 64 << 20
"""``connectionBytesMax`` of the test."""
ABOVE_IDLE_BYTES = HELD_BYTES + (128 << 20)
"""The bound: what may be held, and 64 KiB for each connection."""
IDLE_SECONDS = 10
PATIENCE = 90.0
STORED = 200
TIMED_OUT = (
    r"\[TIMEOUT_CLEAN_QUEUE\]broker busy, start flow control for a while, "
    r"period in queue: [0-9]+ms, size of queue: [0-9]+"
)
_ESTABLISHED = b"\x01"
BODY = b"x" * 16_000
SEND = {
    "a": "p",
    "b": "load",
    "c": "TBW102",
    "d": 4,
    "f": 0,
    "g": 1,
    "h": 0,
    "i": "",
    "j": 0,
    "k": "false",
    "m": "false",
}
PULL = pull_fields("readers", "load")


def _frame(code: int, fields: dict[str, Any], body: bytes = b"", opaque: int = 1) -> bytes:
    ext = {name: str(value) for name, value in fields.items()}
    head = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 399}
    header = json.dumps(head).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


class _Process:
    """What the kernel says about the broker."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")

    def rss(self, field: str = "VmRSS") -> int:
        """Resident bytes now; with VmHWM the most that there ever were."""
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))

    def files(self) -> int:
        return len(list((self._proc / "fd").iterdir()))


class _Crowd:
    """Many sockets to one address."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._address = (host, int(port))
        self._open: list[socket.socket] = []

    def add(self, count: int, data: bytes = b"", room: int | None = None) -> list[socket.socket]:
        """Connect so many more, each of which sends this; as much of it as the kernel takes."""
        added = []
        for _ in range(count):
            sock = socket.socket()
            if room is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            sock.settimeout(PATIENCE)
            sock.connect(self._address)
            sock.setblocking(False)
            try:
                if data:
                    sock.send(data)
            except OSError:
                pass  # the broker has closed it, or takes no more now
            added.append(sock)
        self._open += added
        return added

    def vanish(self, socks: list[socket.socket]) -> None:
        """Close without a word: a reset, whatever is on the way."""
        for sock in socks:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()

    def close(self) -> None:
        for sock in self._open:
            sock.close()


def _drained(socks: list[socket.socket], wanted: list[int]) -> list[dict[str, Any]]:
    """Read what comes until each socket has had so many frames; the headers of all."""
    inbox = {sock: (bytearray(), count) for sock, count in zip(socks, wanted, strict=True)}
    answers: list[dict[str, Any]] = []
    until = time.monotonic() + PATIENCE
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < until:
            for key, _ in selector.select(1):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                data, missing = inbox[sock]
                part = sock.recv(1 << 16)
                data += part
                came = _take_frames(data)
                answers += came
                inbox[sock] = (data, missing - len(came))
                if not part or missing <= len(came):
                    selector.unregister(sock)
    assert not any(missing for _, missing in inbox.values()), "some requests of producers were not answered"
    return answers


def _take_frames(data: bytearray) -> list[dict[str, Any]]:
    """Take the whole frames out of a buffer; their headers."""
    heads, at = [], 0
    while len(data) - at >= 8 and (end := at + 4 + int.from_bytes(data[at : at + 4], "big")) <= len(data):
        heads.append(json.loads(data[at + 8 : at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")]))
        at = end
    del data[:at]
    return heads


def _closed_by_peer(socks: list[socket.socket]) -> int:
    """How many of these the broker has closed; what they were sent stays unread."""
    return sum(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != _ESTABLISHED for sock in socks)


def _send(broker: FaultyBroker) -> None:
    """One polite send, over a connection of its own: one that was silent meanwhile would have been closed."""
    with Wire(broker.address, PATIENCE) as wire:
        wire.ask(310, {**SEND, "e": 2}, BODY)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process have as many files open as the test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_NEEDED:
        reason = f"only {hard} files may be open, {FILES_NEEDED} are needed"
        if in_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES_NEEDED), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_two_thousand_connections_of_all_kinds(tmp_path: Path) -> None:
    settings = {
        "connectionBytesMax": str(HELD_BYTES),
        "serverChannelMaxIdleTimeSeconds": str(IDLE_SECONDS),
        "waitTimeMillsInSendQueue": "60000",
    }
    broker = FaultyBroker(tmp_path, settings)
    crowd = _Crowd(broker.address)
    try:
        broker.up()
        with Wire(broker.address, PATIENCE) as polite:
            polite.create_topic("load")
            create_group(polite, "readers")
            for _ in range(STORED):
                polite.ask(310, {**SEND, "e": 0}, BODY)
            process = _Process(broker.child.process.pid)
            idle, files = process.rss(), process.files()
            share = CONNECTIONS // 8
            crowd.add(share, struct.pack(">ii", 15 << 20, 100))  # announce, and are silent
            vanishing = crowd.add(share, struct.pack(">ii", 4 << 20, 100) + bytes(20_000))
            crowd.add(share, struct.pack(">ii", 4 << 20, 100) + bytes(1 << 20))
            greedy = crowd.add(3 * share, _frame(11, PULL) * 40, room=4096)  # 10 MB each, and none of it read
            waiting = crowd.add(share, _frame(11, {**PULL, "sysFlag": 6, "queueId": 3, "suspendTimeoutMillis": 60_000}))
            producers = crowd.add(share, _frame(310, {**SEND, "e": 1}, b"y" * 500) * 20)
            _send(broker)
            answers = _drained(producers, [20] * share)
            assert [answer["code"] for answer in answers] == [0] * 20 * share
            crowd.vanish(vanishing)
            _send(broker)
            wait_until(lambda: _closed_by_peer(greedy) == len(greedy), PATIENCE, "who never reads is closed")
            wait_until(lambda: _closed_by_peer(waiting) == len(waiting), PATIENCE, "who is silent is closed")
            wait_until(lambda: process.files() <= files + 8, PATIENCE, "file descriptors come back")
            polite.socket.close()
        with Wire(broker.address) as polite:
            assert [polite.max_offset("load", queue) for queue in (0, 1, 2)] == [STORED, len(producers) * 20, 2]
        most = process.rss("VmHWM")
        print(f"RSS: idle {idle >> 20} MiB, at most {most >> 20} MiB; files: {files}")
        assert most < idle + ABOVE_IDLE_BYTES, f"{(most - idle) >> 20} MiB more than idle ({idle >> 20} MiB)"
        assert broker.stop() == 0, broker.child.tail()
    finally:
        crowd.close()
        broker.kill()


def test_more_sends_than_it_can_serve_are_turned_away_with_the_numbers(tmp_path: Path) -> None:
    """Each connection brings a thousand sends at once; whoever waits while others are read is told so."""
    broker = FaultyBroker(tmp_path, {"waitTimeMillsInSendQueue": "1"})
    crowd = _Crowd(broker.address)
    try:
        broker.up()
        with Wire(broker.address, PATIENCE) as polite:
            polite.create_topic("load")
            process = _Process(broker.child.process.pid)
            idle = process.rss()
            frame = _frame(310, {**SEND, "e": 1}, b"y" * 200)
            broker.child.process.send_signal(signal.SIGSTOP)  # so that all of it is there at once
            producers = crowd.add(60)
            sent = [sock.send(frame * 300) // len(frame) for sock in producers]
            broker.child.process.send_signal(signal.SIGCONT)
            assert sum(sent) > 5_000, "the kernel takes too little for this test"
            answers = _drained(producers, sent)
            busy = [answer for answer in answers if answer["code"] == 2]
            assert {answer["code"] for answer in answers} == {0, 2}
            assert all(re.fullmatch(TIMED_OUT, answer["remark"]) for answer in busy), busy[0]
            polite.ask(310, {**SEND, "e": 1}, BODY)
            assert polite.max_offset("load", 1) == len(answers) - len(busy) + 1, "refused is not stored"
        assert process.rss("VmHWM") < idle + ABOVE_IDLE_BYTES
        assert broker.stop() == 0, broker.child.tail()
    finally:
        crowd.close()
        broker.kill()
