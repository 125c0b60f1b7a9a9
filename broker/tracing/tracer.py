"""Exports a span ``delayed`` of each delivered message whose sender traces it, from its acceptance to its delivery.

Nobody that accepts or delivers does anything for it. One thread reads the CommitLog behind the deliveries, a few
hundred records at a time; another one hands spans to OpenTelemetry's exporter (OTLP over HTTP). Between them is a queue
with a bound: what does not fit is dropped and counted. So a collector that hangs costs spans, and nothing else.

Spans begin with the broker: what was delivered before its start, or in the moment before a crash, has none.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from broker.tracing.delays import Delay, delay_of
from store.disk.errors import StoreError
from store.put.pending_api import PendingPlugin

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig
    from broker.core import BrokerCore

__all__ = ["SpanExporter", "Tracer", "make_tracer", "span_of"]

_LOG = logging.getLogger(__name__)

QUEUE_MAX = 8_192
"""Spans that wait for the exporter, at most."""
BATCH = 512
RECORDS_A_STEP = 256
PAUSE_S = 0.001
"""Between two steps, so that others get the interpreter."""
IDLE_S = 0.2
EXPORT_S = 5.0
STOP_S = 3.0
_NS = 1_000_000
_SCOPE = InstrumentationScope("timewheel")


class SpanExporter(Protocol):
    """The methods of OpenTelemetry's exporter that are used here."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; may take as long as its timeout."""
        ...

    def shutdown(self) -> None:
        """End what is under way."""
        ...


class Tracer:
    """Follows the log of one broker. ``exported``, ``failed`` and ``dropped`` count spans."""

    def __init__(self, exporter: SpanExporter, broker_name: str, queue_max: int = QUEUE_MAX) -> None:
        self._exporter = exporter
        self._resource = Resource.create({"service.name": "timewheel", "service.instance.id": broker_name})
        self._spans: queue.Queue[ReadableSpan] = queue.Queue(queue_max)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._core: BrokerCore | None = None
        self._position = 0
        self._ids = RandomIdGenerator()
        self.exported = self.failed = self.dropped = 0
        self._told = 0

    def attach(self, core: BrokerCore) -> None:
        """Begin at the end of the log of a broker that has recovered."""
        self._core, self._position = core, core.store.commit_log.end

    def start(self) -> None:
        """Start the threads."""
        for name, run in (("trace-log", self._follow), ("trace-export", self._export)):
            self._threads.append(threading.Thread(target=run, name=name, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Export the gathered spans, for some seconds at most, and end the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(STOP_S)
        self._threads.clear()
        self._exporter.shutdown()
        if self.dropped or self.failed:
            self._tell()

    def step(self) -> bool:
        """Look at the next records; False if there is none yet."""
        core = self._core
        assert core is not None
        looked_at = 0
        for offset, record in islice(core.store.scan(self._position), RECORDS_A_STEP):
            self._position = offset + len(record)
            looked_at += 1
            delay = delay_of(record)
            if delay is not None and delay.parent.is_sampled:
                self._offer(span_of(delay, self._accepted_ms(delay), self._ids.generate_span_id(), self._resource))
        return looked_at == RECORDS_A_STEP

    def _accepted_ms(self, delay: Delay) -> int:
        """When the broker took it; if that is not known any more, when it was sent, by the sender's clock."""
        assert self._core is not None
        for plugin in self._core.plugins:
            if isinstance(plugin, PendingPlugin):
                return plugin.pending.accepted_ms(delay.delay_id) or delay.born_ms
        return delay.born_ms

    def _offer(self, span: ReadableSpan) -> None:
        try:
            self._spans.put_nowait(span)
        except queue.Full:
            self.dropped += 1

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                more = self.step()
            except (
                StoreError
            ) as error:  # retention was faster, or the log is damaged: what is behind it has spans again
                _LOG.warning("spans: %s; they continue at the end of the log", error)
                assert self._core is not None
                self._position = self._core.store.commit_log.end
                more = False
            self._stopping.wait(PAUSE_S if more else IDLE_S)

    def _export(self) -> None:
        while not (self._stopping.is_set() and self._spans.empty()):
            batch: list[ReadableSpan] = []
            try:
                batch.append(self._spans.get(timeout=IDLE_S))
                while len(batch) < BATCH:
                    batch.append(self._spans.get_nowait())
            except queue.Empty:
                pass
            if batch:
                self.export(batch)

    def export(self, batch: Sequence[ReadableSpan]) -> None:
        """Hand spans to the exporter, and count what became of them."""
        try:
            done = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:
            _LOG.debug("spans: %s", error)
            done = False
        if done:
            self.exported += len(batch)
            return
        self.failed += len(batch)
        if self.failed + self.dropped >= 2 * self._told:
            self._tell()

    def _tell(self) -> None:
        self._told = self.failed + self.dropped
        _LOG.warning(
            "spans: %d exported, %d not taken by the collector, %d dropped because too many waited",
            self.exported,
            self.failed,
            self.dropped,
        )


def span_of(delay: Delay, accepted_ms: int, span_id: int, resource: Resource) -> ReadableSpan:
    """Make the span of a message: a child of the sender's, with the attributes of OpenTelemetry's conventions."""
    parent = delay.parent
    state = TraceState.from_header([parent.state]) if parent.state else None
    flags = TraceFlags(parent.flags)
    attributes: dict[str, str | int] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "delay",
        "messaging.destination.name": delay.topic,
        "messaging.destination.partition.id": str(delay.queue_id),
        "messaging.message.body.size": delay.body_bytes,
        "messaging.rocketmq.message.type": "delay",
        "messaging.rocketmq.message.delivery_timestamp": delay.due_ms,
        "timewheel.queue_offset": delay.queue_offset,
        "timewheel.lateness_ms": delay.delivered_ms - delay.due_ms,
        "timewheel.delay_id": f"{delay.delay_id:#x}",
    }
    known = {
        "messaging.message.id": delay.unique_key,
        "messaging.rocketmq.message.tag": delay.tag,
        "messaging.rocketmq.message.keys": delay.keys,
    }
    attributes |= {name: text for name, text in known.items() if text}
    return ReadableSpan(
        name="delayed",
        context=SpanContext(parent.trace_id, span_id, False, flags, state),
        parent=SpanContext(parent.trace_id, parent.span_id, True, flags, state),
        resource=resource,
        attributes=attributes,
        kind=SpanKind.INTERNAL,
        start_time=min(accepted_ms, delay.delivered_ms) * _NS,
        end_time=delay.delivered_ms * _NS,
        instrumentation_scope=_SCOPE,
    )


def make_tracer(config: BrokerConfig) -> Tracer:
    """Make the tracer that the configuration asks for."""
    exporter = OTLPSpanExporter(endpoint=config.get_text("timewheelTraceEndpoint"), timeout=EXPORT_S)
    return Tracer(exporter, config.broker_name)
