"""The metrics of an instance as text, in the format that the client prefers. Any thread."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from service.metrics.collector import ServiceCollector
from service.running.service import DelayService

__all__ = ["MetricsText"]


class MetricsText:
    """Writes the metrics of an instance.

    Args:
        service: The instance.
    """

    def __init__(self, service: DelayService) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(ServiceCollector(service))

    def write(self, accept: str = "") -> tuple[bytes, str]:
        """Return text and content type; ``accept`` is the header ``Accept``."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
