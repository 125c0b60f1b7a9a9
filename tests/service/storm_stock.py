"""Stock clients in a storm: Java and Go send to the entry topic and read the target topic, each with its own retries.

====================  ==========================================================================================
java-5.5.0, go-v2     send to the entry topic with ``TW_TOPIC``, and read the target topic, each in a group of its own
java-4.9.8            knows nothing of the service: its name servers are the instances (``--listen``), and it sends to
                      the target topic with ``__STARTDELIVERTIME``
====================  ==========================================================================================
"""

from __future__ import annotations

import base64
import random
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.service.process_cluster import ENTRY, NUMBER, now_ms
from tests.service.storm_ledger import NUMBERS_EACH, Ledger
from tests.support.clients import Client, Event

__all__ = ["SENDERS", "Stock"]

SENDERS = ("ours", "java-5.5.0", "go-v2", "java-4.9.8")
"""By their number; the first is our own client, which sends nothing twice."""
CONSUMERS = SENDERS[1:3]
THREADS = 8
LEAST_MS = 500
_BODY = base64.b64encode(b"x" * 100).decode()


class Stock:
    """The stock clients of one storm. They are fetched and built if need be (MissingToolError, FetchError).

    Args:
        namesrv: The cluster's name servers.
        fronts: Addresses of instances, for java-4.9.8; without any it is not started.
        target: The topic that all messages are for.
        rate: Messages a second, of each sender.
        longest_ms: The longest delay.
        ledger: Gets it all.
        command_s: A command to a driver has the messages of so many seconds. Go's makes a producer for each.
    """

    def __init__(
        self,
        folder: Path,
        namesrv: str,
        fronts: Sequence[str],
        target: str,
        rate: int,
        longest_ms: int,
        ledger: Ledger,
        command_s: int = 20,
    ) -> None:
        self.target, self.rate, self.longest_ms, self.ledger = target, rate, longest_ms, ledger
        self._command_s = command_s
        self.failed: Counter[str] = Counter()
        self.errors: dict[str, str] = {}
        """The last error of each sender."""
        self.broken: list[str] = []
        """Clients that have ended, or have not carried out a command."""
        self._next = {sender: number * NUMBERS_EACH for number, sender in enumerate(SENDERS)}
        self._draw = random.Random(1)
        self._stop = threading.Event()
        self._sending: list[threading.Thread] = []
        self.clients: dict[str, Client] = {}
        for name in SENDERS[1 : 4 if fronts else 3]:
            names = ";".join(fronts) if name == SENDERS[3] else namesrv
            self.clients[name] = Client(
                name, names, folder / name, take=lambda event, name=name: self._take(name, event)
            )

    def start(self) -> None:
        """Begin to read, then to send."""
        for name in CONSUMERS:
            self.ledger.received[name] = Counter()
            self.clients[name].consume("c", f"storm-{name.partition('-')[0]}", {self.target: "*"}, brief="yes")
        for name in self.clients:
            thread = threading.Thread(target=self._send, args=(name,), daemon=True)
            thread.start()
            self._sending.append(thread)

    def stop_sending(self, within_s: float) -> None:
        """Wait for the end of what was begun."""
        self._stop.set()
        for thread in self._sending:
            thread.join(within_s)

    def close(self) -> None:
        """End the clients."""
        self._stop.set()
        for client in self.clients.values():
            client.kill()

    def _take(self, name: str, event: Event) -> bool:
        if event["event"] == "received":
            self.ledger.given(name, event["properties"], event["received_ms"])
        elif event["event"] == "sent":
            self.ledger.acknowledged(event["n"])
        elif event["event"] == "send_failed":
            self.failed[name] += 1
            self.errors[name] = str(event["error"])
        else:
            return False
        return True

    def _send(self, name: str) -> None:
        """Send until told to stop: a command after the other, each as soon as the one before it is carried out."""
        client, turn = self.clients[name], 0
        while not self._stop.is_set():
            turn += 1
            messages = [self._message(name, at) for at in range(self._command_s * self.rate)]
            job = {"id": f"p{turn}", "group": f"storm-producers-{name.partition('-')[0]}", "threads": THREADS}
            try:
                client.command("produce", **job, messages=messages, rate=self.rate)
                client.wait(f"p{turn}", "produced", 600)
            except (AssertionError, OSError) as error:
                if not self._stop.is_set():
                    self.broken.append(str(error))
                return

    def _message(self, name: str, at: int) -> dict[str, Any]:
        number = self._next[name]
        self._next[name] += 1
        due_ms = now_ms() + at * 1000 // self.rate + self._draw.randrange(LEAST_MS, self.longest_ms)
        self.ledger.planned(number, due_ms)
        message = {
            "n": number,
            "topic": ENTRY,
            "tag": "a",
            "keys": [],
            "body": _BODY,
            "properties": {NUMBER: str(number)},
        }
        if name == SENDERS[3]:
            return {**message, "topic": self.target, "start_deliver_ms": due_ms}
        message["properties"] |= {"TW_TOPIC": self.target, "TW_DELIVER_MS": str(due_ms)}
        return message
