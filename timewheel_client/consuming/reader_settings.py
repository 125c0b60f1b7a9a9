"""Settings that all readers of a consumer share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from timewheel_client.consuming.pulled import UndecodableMessage
from timewheel_client.consuming.received import MAX_BODY_BYTES
from timewheel_client.consuming.subscriptions import Subscription
from timewheel_client.net.client_core import now_ms

__all__ = ["OnUndecodable", "ReaderSettings"]

OnUndecodable = Callable[[UndecodableMessage], Awaitable[None]]


@dataclass(slots=True)
class ReaderSettings:
    """The arguments of a `Consumer`, explained there; ``saving`` has one lock for each broker."""

    group: str
    subscriptions: dict[str, Subscription]
    start_from: str
    pull_count: int
    max_open: int
    max_body_bytes: int = MAX_BODY_BYTES
    on_undecodable: OnUndecodable | None = None
    version: int = field(default_factory=now_ms)
    saving: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    @property
    def max_open_span(self) -> int:
        """Most queue offsets between the oldest open message and the next pull."""
        return 2 * self.max_open
