"""`Exporter`: what a broker exposes, gathered from its parts when somebody asks.

Made when metrics are asked for, before the broker's threads start: from then on sends and deliveries are counted by
topic. `text` may be called by any thread but the network loop's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.config.values import label_pairs
from broker.metrics.consumers import consumer_families
from broker.metrics.exposition import exposition
from broker.metrics.host import host_families
from broker.metrics.pending import pending_families
from broker.metrics.sends import SendCounts
from broker.net.clock import Pauses
from store.put.measures import LATENESS_BOUNDS_MS, Family, MeasuredPlugin
from store.put.pending_api import PendingPlugin

if TYPE_CHECKING:
    from broker.core import BrokerCore

__all__ = ["TOPICS_MAX", "Exporter"]

TOPICS_MAX = 200
"""Most topics by name in one metric."""
_FRESH_MS = 500
"""A text this young is given out again: many who ask cost as much as one."""


class Exporter:
    """The metrics of one broker.

    Args:
        core: The broker, opened and not started.
        topics_max: Most topics by name in one metric.
    """

    def __init__(self, core: BrokerCore, topics_max: int = TOPICS_MAX) -> None:
        self._core = core
        self._topics_max = topics_max
        self._booted_ms = int(core.store.runtime_info()["bootTimestamp"])
        config = core.config
        self.labels = {
            "cluster": config.cluster_name,
            "node_type": "broker",
            "node_id": config.broker_name,
            "otel_scope_name": "broker-meter",
            **dict(label_pairs(config.get_text("metricsLabel"))),
        }
        """The labels of every series."""
        self._sends = SendCounts(topics_max, core.topics.is_system)
        core.turn.tally = self._sends.add
        for plugin in core.plugins:
            if isinstance(plugin, MeasuredPlugin):
                plugin.measure(topics_max)
        self._lock = threading.Lock()
        self._text, self._text_ms = b"", 0

    def text(self) -> bytes:
        """Write everything, or give the last text again if it is younger than half a second. Raises StoreError."""
        with self._lock:
            now_ms = self._core.now_ms()
            if not self._text or not 0 <= now_ms - self._text_ms < _FRESH_MS:
                self._text = exposition(self.families(now_ms), self.labels, Pauses().rest)
                self._text_ms = self._core.now_ms()
            return self._text

    def families(self, now_ms: int) -> Iterator[Family]:
        """Gather the families of all parts; some come twice, with other rows."""
        core = self._core
        yield from self._sends.families()
        yield from host_families(core, core.processors, self._booted_ms, now_ms)
        yield from consumer_families(core, core.processors.traffic, now_ms)
        levels = core.level_scheduler.pending_count()
        for plugin in core.plugins:
            if isinstance(plugin, MeasuredPlugin):
                yield from plugin.families()
            if isinstance(plugin, PendingPlugin):
                yield from pending_families(plugin.pending, levels, now_ms, self._topics_max)

    def lateness(self) -> list[int]:
        """Count all deliveries since the start, of levels too, by the classes of ``timewheel_lateness_seconds``."""
        found = [self._core.level_scheduler.lateness.within(LATENESS_BOUNDS_MS)]
        for plugin in self._core.plugins:
            if isinstance(plugin, MeasuredPlugin):
                found += [lateness.within(LATENESS_BOUNDS_MS) for lateness in plugin.lateness.values()]
        return [sum(counts) for counts in zip(*found, strict=True)]
