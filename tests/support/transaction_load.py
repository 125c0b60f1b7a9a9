"""A producer of transactions over a plain socket, to be killed: what each transaction comes to stands in its number.

    python -m tests.support.transaction_load HOST:PORT LEDGER FIRST

It sends half messages without end, decides them, answers the broker's checks (also those about an earlier run's
messages), and writes down what was acknowledged. The body of a message is its number n; see `fate`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tests.support.wait import let_pass
from tests.support.wire import Wire

__all__ = ["GROUP", "TOPIC", "fate"]

TOPIC, GROUP = "T", "transacting"
COMMIT, ROLLBACK = 8, 12
_SEND, _HEARTBEAT, _END, _CHECK = 310, 34, 37, 39
_ONEWAY = 2
_BURST = 20


def fate(n: int) -> int:
    """What becomes of a message: three of four are committed; see `at_once` for when."""
    return ROLLBACK if n % 4 == 1 else COMMIT


def at_once(n: int) -> bool:
    """Whether the producer decides by itself, or only when it is asked."""
    return n % 8 < 6


class Load:
    """One connection after the other, until it is killed."""

    def __init__(self, address: str, ledger: str, first: int) -> None:
        self._address = address
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._n = first
        self._waiting: dict[int, tuple[str, int]] = {}

    def run(self) -> None:
        """Go on for ever, with a new connection when one breaks."""
        while True:
            try:
                with Wire(self._address, 2) as wire:
                    self._waiting.clear()
                    while True:
                        self._burst(wire)
            except OSError:
                let_pass(0.05)

    def _note(self, what: str, n: int) -> None:
        os.write(self._ledger, f"{what} {n}\n".encode())

    def _burst(self, wire: Wire) -> None:
        """Send some half messages, and go on when everything is answered."""
        body = json.dumps({"clientID": f"load-{os.getpid()}", "producerDataSet": [{"groupName": GROUP}]}).encode()
        self._waiting[wire.send(_HEARTBEAT, {}, body)] = ("heartbeat", 0)
        for _ in range(_BURST):
            n, self._n = self._n, self._n + 1
            text = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01K{n}\x02"
            fields = {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": 4, "e": n % 4, "f": 4, "h": 0, "i": text}
            fields |= {"g": int(time.time() * 1000), "j": 0, "k": "false", "m": "false"}
            self._waiting[wire.send(_SEND, fields, str(n).encode())] = ("half", n)
        while self._waiting:
            header, data = wire.receive()
            if header["flag"] & 1:
                self._answered(wire, header)
            elif header["code"] == _CHECK:
                self._checked(wire, header["extFields"], data)

    def _answered(self, wire: Wire, header: dict[str, Any]) -> None:
        what, n = self._waiting.pop(header["opaque"])
        if header["code"] != 0 or what == "heartbeat":
            return
        self._note(what, n)
        if what != "half" or not at_once(n):
            return
        ext = header["extFields"]
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": ext["queueOffset"],
            "commitLogOffset": int(ext["msgId"][16:], 16),
            "commitOrRollback": fate(n),
            "msgId": ext["transactionId"],
            "transactionId": ext["transactionId"],
        }
        if n % 3 == 0:
            wire.send(_END, fields, flag=_ONEWAY)
        else:
            for _ in range(1 + n % 2):  # some of them twice
                self._waiting[wire.send(_END, fields)] = ("end", n)

    @staticmethod
    def _checked(wire: Wire, ext: dict[str, str], data: bytes) -> None:
        n = int(data[88 : 88 + int.from_bytes(data[84:88], "big")])
        fields = {name: ext[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")}
        fields |= {"producerGroup": GROUP, "fromTransactionCheck": "true", "commitOrRollback": str(fate(n))}
        wire.send(_END, fields, flag=_ONEWAY)


if __name__ == "__main__":
    Load(sys.argv[1], sys.argv[2], int(sys.argv[3])).run()
