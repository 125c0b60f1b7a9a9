"""Spans of delayed messages from a real broker, at an imitation of a collector; and a broker without one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.broker.test_tracing import GOOD, SPAN, TRACE
from tests.support.ours import OurBroker
from tests.support.wait import wait_until
from timewheel_client import BatchMessage, Consumer, Producer

pytestmark = pytest.mark.process

DELAY_S = 1.0


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A collector of OTLP over HTTP; answers its address, and the requests that it takes."""
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    taken: list[Any] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append(service.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def send_and_receive(namesrv: str) -> tuple[float, list[dict[str, str]]]:
    """Send seven messages and receive them; how long (ms) the delayed ones had to wait, and properties."""
    async with Producer(namesrv) as producer, Consumer(namesrv, "g", "Traced") as consumer:
        began = time.monotonic()
        await producer.send("Traced", b"at once", properties={"traceparent": GOOD})
        # A first send, as a measure of the machine: what is sent when it is due has no span.
        delay = timedelta(seconds=max(DELAY_S, 10 * (time.monotonic() - began)))
        for properties in ({"traceparent": GOOD, "tracestate": "v=1"}, {}, {"traceparent": GOOD[:-1] + "0"}):
            await producer.send("Traced", b"body", tags="A", properties=properties, delay=delay)
        batch = [BatchMessage(b"b", delay=delay, properties={"traceparent": GOOD}) for _ in range(3)]
        await producer.send_batch("Traced", batch)
        seen = []
        async for message in consumer:
            seen.append(dict(message.properties))
            await message.ack()
            if len(seen) == 7:
                return delay.total_seconds() * 1000, seen
    raise AssertionError("unreachable")


def test_a_span_goes_from_the_acceptance_to_the_delivery(tmp_path: Path) -> None:
    with collector() as (endpoint, taken):
        broker = OurBroker(tmp_path / "ours", {"timewheelTraceEndpoint": endpoint}).start()
        try:
            begin_ms = int(time.time() * 1000)
            delay_ms, received = asyncio.run(asyncio.wait_for(send_and_receive(broker.namesrv), 60))
            assert sum(one.get("traceparent") == GOOD for one in received) == 5
            assert sum(one.get("tracestate") == "v=1" for one in received) == 1

            def spans() -> list[Any]:
                return [s for r in list(taken) for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]

            wait_until(lambda: len(spans()) >= 4, 60, "that four spans are exported")
        finally:
            broker.stop()
    assert len(spans()) == 4
    assert len({span.span_id for span in spans()}) == 4
    for span in spans():
        assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("delayed", TRACE, SPAN)
        values = {one.key: one.value for one in span.attributes}
        assert values["messaging.system"].string_value == "rocketmq"
        assert values["messaging.destination.name"].string_value == "Traced"
        accepted_ms, delivered_ms = span.start_time_unix_nano // 10**6, span.end_time_unix_nano // 10**6
        due_ms = values["messaging.rocketmq.message.delivery_timestamp"].int_value
        assert begin_ms <= accepted_ms < due_ms <= delivered_ms
        assert due_ms - accepted_ms <= delay_ms
        assert delivered_ms - due_ms == values["timewheel.lateness_ms"].int_value
    assert sorted(span.trace_state for span in spans()) == ["", "", "", "v=1"]
    (service,) = {
        a.value.string_value
        for r in taken
        for rs in r.resource_spans
        for a in rs.resource.attributes
        if a.key == "service.name"
    }
    assert service == "timewheel"


def test_a_broker_without_a_collector_delivers(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    broker = OurBroker(tmp_path / "ours", {"timewheelTraceEndpoint": "http://127.0.0.1:9/v1/traces"}).start()
    try:
        assert len(asyncio.run(asyncio.wait_for(send_and_receive(broker.namesrv), 60))[1]) == 7
        assert broker.stop() == 0
    finally:
        broker.kill()
