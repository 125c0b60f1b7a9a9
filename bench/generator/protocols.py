"""The protocols that a generator can speak, by name: how frames are written and how replies are counted."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from typing import Protocol

from bench.generator import lines, nats, rocketmq
from bench.generator.intake import Intake, Reception, RocketmqIntake
from bench.generator.load import Load
from bench.generator.ring import Template

__all__ = ["INTAKES", "PROTOCOLS", "ReplyCounter", "Speech"]


class ReplyCounter(Protocol):
    """Counts the replies of one connection; ``refusal`` is the beginning of the first one that was no success.

    ``opaques``, if it is set to a list, gets the opaque of each request that succeeded, where replies may come out
    of order and carry such a thing.
    """

    refusal: str
    opaques: list[int] | None

    def feed(self, data: bytes) -> tuple[int, int]:
        """Take what was received; return (requests answered, of them refused)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Speech:
    """One protocol: templates of its send requests, a counter of replies, and what is said first on a connection.

    ``in_order``: replies come in the order of the requests. ``own_frames``: a request names the connection (its inbox),
    so each connection has frames of its own.
    """

    templates: Callable[[Load], list[Template]]
    replies: Callable[[], ReplyCounter]
    hello: Callable[[socket.socket, Load], None] = lambda _sock, _load: None
    in_order: bool = True
    own_frames: bool = False


INTAKES: dict[str, Callable[[Reception], Intake]] = {
    "rocketmq": RocketmqIntake,
    "nats": nats.NatsIntake,
    "redis": lines.RedisIntake,
    "beanstalkd": lines.BeanstalkdIntake,
    "naive": lines.NaiveIntake,
}
PROTOCOLS: dict[str, Speech] = {
    "rocketmq": Speech(rocketmq.templates, rocketmq.ReplyFrames, in_order=False),
    "nats": Speech(nats.templates, nats.StreamReplies, nats.hello, own_frames=True),
    "redis": Speech(lines.redis_templates, lines.LineReplies),
    "beanstalkd": Speech(lines.beanstalkd_templates, lines.LineReplies, lines.beanstalkd_hello),
    "naive": Speech(lines.naive_templates, lines.LineReplies),
}
