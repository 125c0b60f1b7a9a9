"""The load for a generator, and its result: plain values that are passed between processes as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

__all__ = ["PORTS_APART", "Kind", "Load", "LoadResult", "Protocol"]

PORTS_APART = 10
"""Between the ports of two shards of one broker."""

Kind = Literal["normal", "timed", "level"]
Protocol = Literal["rocketmq", "nats", "redis", "beanstalkd", "naive"]


@dataclasses.dataclass(slots=True)
class Load:
    """The shape of the messages, and how many at a time.

    Sizes are bytes, times milliseconds unless the name says otherwise. ``rate`` 0 means as fast as the replies allow,
    with ``in_flight`` requests on each connection; else so many messages a second, whatever comes back. A timed message
    is due ``due_from_ms`` to ``due_to_ms`` after it is sent, at random, or, with ``due_at_ms``, that long after this
    epoch millisecond. ``first_number`` numbers the messages; each carries its number and its due time in its body.
    ``tolerant`` takes the end of the connections as an end, not as an error; ``accepted_path`` then gets the numbers of
    all messages that were acknowledged, as a .npy file. ``inbox`` is where NATS answers a connection; senders set it.
    With several ``brokers``, `PORTS_APART` ports apart, the connections go to them in turn.
    """

    port: int
    protocol: Protocol = "rocketmq"
    kind: Kind = "timed"
    topic: str = "Bench"
    connections: int = 16
    in_flight: int = 1
    batch: int = 1
    body_bytes: int = 1024
    seconds: float = 5.0
    warm_up_seconds: float = 0.0
    rate: float = 0.0
    count: int = 0
    due_from_ms: int = 3_600_000
    due_to_ms: int = 10_800_000
    due_at_ms: int = 0
    level: int = 18
    queues: int = 8
    first_number: int = 0
    seed: int = 1
    tolerant: bool = False
    accepted_path: str = ""
    brokers: int = 1
    inbox: str = "_INBOX.probe"

    def port_of(self, connection: int) -> int:
        """The port of the broker that a connection goes to."""
        return self.port + PORTS_APART * (connection % self.brokers)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Load:
        """Read what `dataclasses.asdict` wrote."""
        return cls(**values)


@dataclasses.dataclass(slots=True)
class LoadResult:
    """The result of a load.

    ``generator_cpu`` is the share of one core that the generator itself used, ``waited`` the share of the time in which
    it had nothing to do: near 0 the generator was the limit. ``behind_ms`` is how far it fell behind its
    rate at most. ``broken`` says that the connections broke off; ``refusal`` is the first answer that was no success.
    """

    sent: int
    accepted: int
    refused: int
    seconds: float
    per_second: float
    generator_cpu: float
    waited: float
    reply_p50_us: float
    reply_p99_us: float
    behind_ms: float = 0.0
    broken: bool = False
    first_accepted_ms: float = 0.0
    refusal: str = ""

    @classmethod
    def of(cls, values: dict[str, Any]) -> LoadResult:
        """Read what `dataclasses.asdict` wrote."""
        return cls(**values)
