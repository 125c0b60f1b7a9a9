"""What the stock clients are asked to send: kinds of messages, made from a seed, the same for every broker.

A message is found again by its topic and its user property ``it_n``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
from dataclasses import dataclass
from typing import Any

__all__ = [
    "COUNT",
    "KINDS",
    "LEVEL_MS",
    "NUMBER",
    "SENDS",
    "Kind",
    "Outgoing",
    "expected_tags",
    "make_messages",
    "small_message",
    "topic_of",
]

NUMBER = "it_n"
COUNT = int(os.environ.get("TIMEWHEEL_STOCK_MESSAGES", "150"))
"""Messages of a kind: clients, brokers and the comparison work on each. `./run soak` has more."""
LEVEL_MS = {1: 1_000, 2: 5_000, 3: 10_000}
TAGS = [None, "A", "B", "C", "Größe"]
WORDS = ["order", "заказ", "注文", "a b", "=", "x" * 40, "ü", "0", "null", "{json: 1}"]


@dataclass(frozen=True)
class Kind:
    """A way to send: how the message is delayed, and how it goes out.

    ``due`` is none, ``level``, ``start`` (__STARTDELIVERTIME), ``deliver`` (TIMER_DELIVER_MS) or ``delay``
    (TIMER_DELAY_MS); ``tags`` the consumer's tag expression.
    """

    name: str
    due: str = "none"
    mode: str = "sync"
    batch: int = 0
    tags: str = "*"
    count: int = COUNT


KINDS = {
    kind.name: kind
    for kind in (
        Kind("normal"),
        Kind("level", due="level"),
        Kind("timed", due="start"),
        Kind("deliver", due="deliver"),
        Kind("delay", due="delay"),
        Kind("batch", batch=25),
        Kind("batch-timed", due="start", batch=25),
        Kind("oneway-timed", due="start", mode="oneway"),
        Kind("filtered", due="start", tags="A || C", count=300),
    )
}

SENDS = {
    "java-5.5.0": list(KINDS),
    "java-4.9.8": ["normal", "level", "timed", "deliver", "batch", "batch-timed", "oneway-timed", "filtered"],
    "ons-1.8.8.8": ["normal", "timed", "oneway-timed", "filtered"],
    "node-ali-ons": ["normal", "level", "timed", "filtered"],
    "go-v2": ["normal", "level", "timed", "batch", "batch-timed", "oneway-timed", "filtered"],
}
"""Which kinds each client can send."""


@dataclass(slots=True)
class Outgoing:
    """A message as the test wants it; ``due_in_ms`` counts from a base that the run sets."""

    n: int
    body: bytes
    tag: str | None
    keys: list[str]
    properties: dict[str, str]
    flag: int
    level: int = 0
    due_in_ms: int = 0

    @property
    def body_sha256(self) -> str:
        """Hex digest of the body."""
        return hashlib.sha256(self.body).hexdigest()

    def line(self, topic: str, due_field: str | None, due_ms: int) -> dict[str, Any]:
        """Write it as a driver reads it."""
        line: dict[str, Any] = {
            "n": self.n,
            "topic": topic,
            "body": base64.b64encode(self.body).decode(),
            "tag": self.tag,
            "keys": self.keys,
            "properties": self.properties,
            "flag": self.flag,
        }
        if self.level:
            line["level"] = self.level
        if due_field:
            line[due_field] = due_ms
        return line


def small_message(n: int, topic: str, **more: Any) -> dict[str, Any]:
    """A message as clients are told to send it, with a tag, a key and its number; ``more`` fields add to these."""
    return {
        "n": n,
        "topic": topic,
        "body": base64.b64encode(f"body {n}".encode()).decode(),
        "tag": "A",
        "keys": [f"key{n}"],
        "properties": {NUMBER: str(n)},
        **more,
    }


def topic_of(client: str, kind: str) -> str:
    """Name the topic of one client and kind."""
    return f"it-{client.replace('.', '')}-{kind}"


def expected_tags(kind: Kind) -> set[str] | None:
    """Return the tags that the kind's consumer wants; None for all."""
    return None if kind.tags == "*" else {tag.strip() for tag in kind.tags.split("||")}


def _body(rng: random.Random) -> bytes:
    pick = rng.random()
    if pick < 0.04:  # large and compressible: clients send it compressed
        return (rng.choice(WORDS).encode() * rng.randrange(4_000, 6_000))[: rng.randrange(4_200, 9_000)]
    if pick < 0.06:  # large and not compressible
        return rng.randbytes(rng.randrange(4_200, 6_000))
    return rng.randbytes(rng.randrange(1, 3_000 if pick < 0.2 else 400))


def make_messages(client: str, kind: Kind, spread_ms: int, count: int | None = None) -> list[Outgoing]:
    """Make the messages of one client and kind; due times are random milliseconds within ``spread_ms``."""
    rng = random.Random(f"{client}/{kind.name}")
    made = []
    for n in range(count or kind.count):
        properties = {f"p{i} {rng.randrange(10)}": rng.choice(WORDS) for i in range(rng.randrange(4))}
        message = Outgoing(
            n=n,
            body=_body(rng),
            tag=rng.choice(TAGS),
            keys=[f"k{n}-{i}-{rng.choice('aüж')}" for i in range(rng.randrange(4))],
            properties={NUMBER: str(n), **properties},
            flag=0 if client.startswith("ons") else rng.choice([0, 0, 7, -1, 2**31 - 1]),
            due_in_ms=rng.randrange(spread_ms),
        )
        if kind.due == "level":
            message.level = rng.choice([1, 1, 2, 2, 3])
        made.append(message)
    return made
