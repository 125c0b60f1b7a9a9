"""Spans of delayed messages: what a property says, what is exported, and a collector that does not answer."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from broker.config.values import a_url
from broker.tracing.delays import Parent, delay_of, parent_of
from remoting.messages.message import Message, encode_record
from remoting.messages.properties import format_properties
from tests.support import hostile

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (GOOD, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"01-{TRACE}-{SPAN}-01-what will be", True),
    ],
)
def test_a_trace_parent_is_read(text: str, sampled: bool) -> None:
    parent = parent_of(text, "vendor=1")
    assert parent is not None
    assert (parent.trace_id, parent.span_id, parent.is_sampled, parent.state) == (
        int(TRACE, 16),
        int(SPAN, 16),
        sampled,
        "vendor=1",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        GOOD.upper(),
        GOOD + "-",
        GOOD + "-more",
        GOOD + "\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        GOOD.replace("0", "٠"),
        "0" * 5_000,
    ],
)
def test_what_is_no_trace_parent_is_none(text: str) -> None:
    assert parent_of(text) is None


def test_a_long_trace_state_is_left_out() -> None:
    parent = parent_of(GOOD, "a=" + "b" * 5_000)
    assert isinstance(parent, Parent)
    assert parent.state == ""


def record(properties: dict[str, str], body: bytes = b"b", topic: str = "T") -> bytes:
    message = Message(topic, 3, born_ms=5, body=body, properties=format_properties(properties))
    return encode_record(message, bytes(8), 2_000)


def test_only_a_delayed_message_of_a_sender_that_traces_has_a_delay() -> None:
    own = {"__TW_ID": "10000000005.2", "__TW_DUE": "1500"}
    found = delay_of(record({"traceparent": GOOD, "UNIQ_KEY": "AC11", "TAGS": "t", **own}, b"x" * 70))
    assert found is not None
    assert found[1:] == (0x4000010000000005, "T", 3, 0, 5, 1500, 2_000, "AC11", "t", "", 70)
    for properties in (
        {"traceparent": GOOD},
        own,
        {"traceparent": "no", **own},
        {"traceparent": GOOD, "__TW_ID": "x", "__TW_DUE": "1500"},
        {"traceparent": GOOD, "__TW_ID": "10000000005", "__TW_DUE": "9" * 5_000},
        {"xtraceparent": GOOD, **own},
    ):
        assert delay_of(record(properties)) is None
    assert delay_of(record({"a": "b"}, f"traceparent\1{GOOD}\2__TW_ID\0015\2__TW_DUE\0015\2".encode())) is None
    assert delay_of(b"traceparent" * 30) is None
    rng = random.Random(4)
    for _ in range(300):
        delay_of(record(hostile.plain_properties(rng) | {"traceparent": hostile.value(rng)}, hostile.body(rng, 300)))


@pytest.mark.parametrize(
    "text", ["http://", "ftp://h/", "127.0.0.1:4318", "http://h:1/a b", "http://h\n/", "x" * 5_000]
)
def test_an_endpoint_that_is_none_is_refused(text: str) -> None:
    a_url("http://127.0.0.1:4318/v1/traces")
    with pytest.raises(ValueError, match="expected http"):
        a_url(text)


# ---------------------------------------------------------------------------------------- with OpenTelemetry's library


class Hangs:
    """An exporter that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.ended = False

    def export(self, spans: Sequence[Any]) -> Any:
        self.free.wait(30)
        raise OSError(f"{len(spans)} spans, and no collector")

    def shutdown(self) -> None:
        self.ended = True
        self.free.set()


def test_what_a_collector_does_not_take_is_counted() -> None:
    tracing = pytest.importorskip("broker.tracing.tracer")
    exporter = Hangs()
    tracer = tracing.Tracer(exporter, "b", queue_max=8)
    delay = delay_of(record({"traceparent": GOOD, "__TW_ID": "10000000005", "__TW_DUE": "1500"}))
    assert delay is not None
    for _ in range(20):
        tracer._offer(tracing.span_of(delay, 1_000, 7, tracer._resource))
    assert tracer.dropped == 12
    exporter.free.set()
    tracer.export([tracer._spans.get_nowait() for _ in range(8)])
    assert (tracer.exported, tracer.failed, tracer.dropped) == (0, 8, 12)
    tracer.stop()
    assert exporter.ended
