"""A steady load of delayed messages as a process of its own, with a ledger of what a broker acknowledged.

It sends at a rate, open loop, over a few connections with raw requests written apart from the project's codec: timed
messages of a random due millisecond (`__STARTDELIVERTIME`, some by the 5.x names), batches of them, delay levels 1
and 2, ordinary ones. The broker may be killed under it at any moment: what was in flight then counts as unknown, and
it connects again and goes on. It ends at the end of its standard input.

The ledger has one line a message, written when its fate is known::

    A|R|S|U  unique key  kind  due_ms  queue  sent_ms  body bytes

A: acknowledged, R: refused, S: stored, but not known to be on the disk (FLUSH_DISK_TIMEOUT), U: unknown (no answer).
The first refusals of each kind go to standard error. ``kind`` is n, t (timed), b (timed,
in a batch), 1 or 2 (a level); ``due_ms`` is 0 for n and for levels, whose due time the broker's store time decides.

Run as a program::

    python -m tests.support.fault_load 127.0.0.1:10911 ledger --rate 2000 --seed 7 --topic storm
"""

from __future__ import annotations

import argparse
import json
import random
import select
import socket
import struct
import sys
import time
from collections import Counter
from typing import Any, TextIO

from tests.support.fault_ledger import NEVER_MS
from tests.support.wait import let_pass

__all__ = ["main"]

QUEUES = 4
TICK_SECONDS = 0.005
DRAIN_SECONDS = 5.0
HOT_EVERY_MS = 5_000
IN_FLIGHT_MAX = 1_000
_BATCH_HEAD = struct.Struct(">iiiii")
_FATES = {0: "A", 10: "S"}


class Peer:
    """One connection, and what is in flight on it: opaque to ledger lines without their first letter."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.sock: socket.socket | None = None
        self.inbox = b""
        self.outbox = b""
        self.flying: dict[int, list[str]] = {}
        self.again = 0.0

    def connect(self, now: float) -> bool:
        """Try, at most every 20 ms."""
        if self.sock is None and now >= self.again:
            self.again = now + 0.02
            try:
                self.sock = socket.create_connection(self.address, 1)
            except OSError:
                return False
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock.setblocking(False)
        return self.sock is not None

    def write(self) -> None:
        """Write what can be written; OSError when the broker is gone."""
        if self.outbox and self.sock is not None:
            try:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
            except BlockingIOError:
                pass

    def read(self) -> list[dict[str, Any]]:
        """Read answers: their headers. OSError when the broker is gone."""
        assert self.sock is not None
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("closed")
        data = self.inbox + data
        at = 0
        answers: list[dict[str, Any]] = []
        while len(data) - at >= 4:
            total = int.from_bytes(data[at : at + 4], "big")
            if len(data) - at < 4 + total:
                break
            length = int.from_bytes(data[at + 5 : at + 8], "big")
            answers.append(json.loads(data[at + 8 : at + 8 + length]))
            at += 4 + total
        self.inbox = data[at:]
        return answers

    def drop(self) -> list[str]:
        """Close; what was in flight."""
        if self.sock is not None:
            self.sock.close()
        self.sock = None
        self.inbox = self.outbox = b""
        lost = [line for lines in self.flying.values() for line in lines]
        self.flying.clear()
        return lost


class FaultLoad:
    """The sender; `step` sends what is due by the rate, and reads answers."""

    def __init__(self, options: argparse.Namespace, ledger: TextIO) -> None:
        self.options = options
        self.ledger = ledger
        self.rng = random.Random(options.seed)
        host, port = options.address.rsplit(":", 1)
        self.peers = [Peer((host, int(port))) for _ in range(options.connections)]
        self.number = 0
        self.opaque = 0
        self.owed = 0.0
        self.turn = 0
        self.counts = {"A": 0, "R": 0, "S": 0, "U": 0}
        self.refusals: Counter[int] = Counter()

    def step(self, seconds: float, sending: bool) -> None:
        """One tick: connect, send, wait for ``seconds``, read."""
        now = time.monotonic()
        up = [peer for peer in self.peers if peer.connect(now)]
        if sending and up:
            self.owed = min(self.owed + seconds * self.options.rate, 200.0)
            while self.owed >= 1:
                self.turn += 1
                peer = up[self.turn % len(up)]
                if len(peer.flying) > IN_FLIGHT_MAX:
                    break
                self.owed -= self._send_one(peer)
        for peer in up:
            self._careful(peer, peer.write)
        socks = {peer.sock: peer for peer in self.peers if peer.sock is not None}
        until = now + seconds
        while (left := until - time.monotonic()) > 0:
            if not socks:
                let_pass(left)
                return
            ready, _, _ = select.select(list(socks), [], [], left)
            for sock in ready:
                peer = socks[sock]
                self._careful(peer, lambda peer=peer: self._answers(peer))
                if peer.sock is None:
                    del socks[sock]

    def _careful(self, peer: Peer, what: object) -> None:
        try:
            what()  # type: ignore[operator]
        except OSError:
            self._note("U", peer.drop())

    def _answers(self, peer: Peer) -> None:
        for header in peer.read():
            code = header["code"]
            self._note(_FATES.get(code, "R"), peer.flying.pop(header["opaque"]))
            if code:
                self.refusals[code] += 1
                if self.refusals[code] <= 3:
                    print(f"{time.time():.3f} code {code}: {header.get('remark')}", file=sys.stderr, flush=True)

    def _note(self, fate: str, lines: list[str]) -> None:
        self.counts[fate] += len(lines)
        self.ledger.writelines(f"{fate} {line}\n" for line in lines)
        self.ledger.flush()  # who waits for a fate reads along

    # ------------------------------------------------------------------------------------------ requests

    def _send_one(self, peer: Peer) -> int:
        """Write one request to a connection's outbox; how many messages it has."""
        rng = self.rng
        draw = rng.random()
        queue = rng.randrange(QUEUES)
        if draw < self.options.batches:
            count = rng.randint(2, 20)
            parts = [self._element("b", queue) for _ in range(count)]
            body = b"".join(
                _BATCH_HEAD.pack(22 + len(b) + len(p), 0, 0, 0, len(b)) + b + struct.pack(">h", len(p)) + p
                for b, p, _ in parts
            )
            self._request(peer, 320, queue, body, b"", [line for _, _, line in parts])
            return count
        kind = "t"
        if draw > 1 - self.options.levels:
            kind = rng.choice("12")
        elif draw > 1 - self.options.levels - self.options.normal:
            kind = "n"
        body, properties, line = self._element(kind, queue)
        self._request(peer, 310, queue, body, properties, [line])
        return 1

    def _element(self, kind: str, queue: int) -> tuple[bytes, bytes, str]:
        rng = self.rng
        self.number += 1
        key = f"{self.options.seed & 0xFFFFFFFF:08X}{self.number:024X}"
        size = min(int(rng.expovariate(1 / 400)) + 32, 30_000)
        body = (key * (size // 32 + 1))[:size].encode()
        now_ms, due_ms = int(time.time() * 1000), 0
        properties = f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02"
        if kind in "12":
            properties += f"DELAY\x01{kind}\x02"
        elif kind != "n":
            due_ms = now_ms + rng.randint(self.options.due_from_ms, self.options.due_to_ms)
            if rng.random() < self.options.hot:
                due_ms += HOT_EVERY_MS - due_ms % HOT_EVERY_MS
            if rng.random() < self.options.never:
                due_ms = NEVER_MS + rng.randrange(1 << 40)
            name = "TIMER_DELIVER_MS" if rng.random() < 0.1 else "__STARTDELIVERTIME"
            properties += f"{name}\x01{due_ms}\x02"
        return body, properties.encode(), f"{key} {kind} {due_ms} {queue} {now_ms} {size}"

    def _request(self, peer: Peer, code: int, queue: int, body: bytes, properties: bytes, lines: list[str]) -> None:
        self.opaque += 1
        ext = {
            "a": "storm",
            "b": self.options.topic,
            "c": "TBW102",
            "d": str(QUEUES),
            "e": str(queue),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": properties.decode(),
            "j": "0",
            "k": "false",
            "m": "true" if code == 320 else "false",
        }
        header = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": self.opaque, "version": 399}
        head = json.dumps(header).encode()
        peer.outbox += struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body
        peer.flying[self.opaque] = lines

    def finish(self) -> None:
        """Wait for the answers that are still out; what has none is unknown."""
        until = time.monotonic() + DRAIN_SECONDS
        while any(peer.flying for peer in self.peers) and time.monotonic() < until:
            self.step(0.05, False)
        for peer in self.peers:
            self._note("U", peer.drop())


def main(arguments: list[str] | None = None) -> int:
    """Send until the standard input ends; print the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fault_load")
    parser.add_argument("address")
    parser.add_argument("ledger")
    parser.add_argument("--rate", type=float, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topic", default="storm")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--due-from-ms", type=int, default=200)
    parser.add_argument("--due-to-ms", type=int, default=20_000)
    parser.add_argument("--batches", type=float, default=0.03, help="share of requests that are batches")
    parser.add_argument("--levels", type=float, default=0.05)
    parser.add_argument("--normal", type=float, default=0.05)
    parser.add_argument("--never", type=float, default=0.0, help="share of timed messages due in some centuries")
    parser.add_argument("--hot", type=float, default=0.0, help="share of timed messages due at a whole 5 s")
    options = parser.parse_args(arguments)
    with open(options.ledger, "a", encoding="ascii", buffering=1 << 16) as ledger:
        load = FaultLoad(options, ledger)
        while not select.select([sys.stdin], [], [], 0)[0]:
            load.step(TICK_SECONDS, True)
        load.finish()
        print(json.dumps(load.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
