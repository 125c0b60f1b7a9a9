"""No request holds the network loop: each code that is served, at its largest, against a broker with large tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.net.channel import BROKER_PORT, NAME_SERVER_PORT, MemoryChannel
from broker.net.clients import ClientInfo
from broker.net.clock import monotonic_ms
from broker.tables.topic_config import TopicConfig
from remoting.codes import RequestCode
from tests.broker.big_broker import (
    BODIES,
    LONGEST,
    ROWS,
    BigBroker,
    Row,
    fields_of,
    frame,
    headers_of,
    open_big,
    send_frame,
)
from tests.broker.loop_watch import BOUND_MS, LoopWatch
from tests.support.codes_table import read_table

CASES = [(port, code, row) for port, rows in ROWS.items() for code, row in rows.items()]


@pytest.fixture(scope="module")
def watch() -> Iterator[LoopWatch]:
    with LoopWatch() as made:
        yield made


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory, watch: LoopWatch) -> Iterator[BigBroker]:
    made = open_big(tmp_path_factory.mktemp("big"), watch)
    yield made
    made.core.stop()
    made.core.close()


def test_every_code_that_is_served_has_a_row() -> None:
    served = {row.code for row in read_table() if row.here == "yes" and row.by in ("broker", "name server")}
    assert served == {int(code) for _, code, _ in CASES}


@pytest.mark.parametrize(("port", "code", "row"), CASES, ids=[f"{code}-{code.name}" for _, code, _ in CASES])
def test_no_request_holds_the_loop(port: str, code: int, row: Row, watch: LoopWatch, big: BigBroker) -> None:
    known = {"MESSAGE": big.message_id}
    ext: dict[str, Any] = {name: known.get(str(value), value) for name, value in row.ext.items()}
    found: list[tuple[float, str]] = []

    def look(what: str, data: bytes) -> None:
        took = watch.step_ms(lambda: watch.feed(data, port), lambda: row.prepare(big))
        found.append((took, what))

    for number, body in enumerate(row.bodies):
        look(f"row's body {number}", frame(code, ext, body))
    for name, header in fields_of(code, ext):
        look(f"field {name}", header)
    for number, body in enumerate(BODIES if any(row.bodies) else ()):
        look(f"body {number} of {len(body)} bytes", frame(code, ext, body))
    _judge(f"{code} {code.name}", found)


@pytest.mark.parametrize(
    ("port", "code"),
    [(BROKER_PORT, RequestCode.GET_MAX_OFFSET), (NAME_SERVER_PORT, RequestCode.GET_ROUTEINFO_BY_TOPIC)],
    ids=["broker", "name server"],
)
def test_no_frame_holds_the_loop(port: str, code: RequestCode, watch: LoopWatch, big: BigBroker) -> None:
    """What is done with any request: its frame is put together, its header read."""
    ext = ROWS[port][code].ext
    frames = [(f"header {number}", header) for number, header in enumerate(headers_of(code, ext))]
    frames += [(f"{len(body)} bytes of {body[:4]!r}", frame(code, ext, body)) for body in LONGEST]
    found = [(watch.held_ms(data, port), what) for what, data in frames]
    _judge(port, found)
    assert big.core.dispatcher.running == 0


def test_a_topic_with_thousands_of_used_queues_is_deleted(watch: LoopWatch, big: BigBroker) -> None:
    used, core = 3_000, big.core

    def use() -> None:
        core.topics.table["Used"] = TopicConfig("Used", used, used)
        replies = watch.feed(b"".join(send_frame("Used", number) for number in range(used)))
        assert [reply.code for reply in replies] == [0] * used
        core.store._keeper.finish()  # so that their files are there

    deletion = frame(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Used"})
    took = watch.step_ms(lambda: watch.feed(deletion), use)
    _judge("215 with used queues", [(took, "deletion")])
    assert core.topics.get("Used") is None
    assert not core.store.queue_ids("Used")
    assert not (core.config.store_dir / "consumequeue" / "Used").exists()


@pytest.mark.parametrize(
    ("code", "field", "name"),
    [
        (RequestCode.DELETE_TOPIC_IN_BROKER, "topic", f"T%d-{'t' * 40}"),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, "groupName", f"G%d-{'g' * 40}"),
    ],
    ids=["topics", "groups"],
)
def test_many_deletions_at_once(code: RequestCode, field: str, name: str, watch: LoopWatch, big: BigBroker) -> None:
    """64 of them were done in one step when their table was written, each with a look at all groups' offsets."""
    clock = big.core.dispatcher._now_ms
    numbers = iter(range(1_000, 2_000))
    big.core.dispatcher._now_ms = monotonic_ms

    def delete() -> None:
        frames = [frame(code, {field: name % next(numbers), "cleanOffset": "true"}) for _ in range(64)]
        assert [reply.code for reply in watch.feed(b"".join(frames))] == [0] * 64

    try:
        took = watch.step_ms(delete)
    finally:
        big.core.dispatcher._now_ms = clock
    _judge(f"{code} 64 times", [(took, "64 deletions")])


def test_what_the_broker_itself_changes_does_not_hold_the_loop(watch: LoopWatch, big: BigBroker) -> None:
    """The topic of transactions given up, autoCreateTopicEnable, a version for brokerPermission."""
    topics = big.core.topics
    works: dict[str, Callable[[], object]] = {
        "a topic of the broker's own": lambda: topics.have(TopicConfig("OWN", 1, 1)),
        "autoCreateTopicEnable on": lambda: topics.set_auto_create(True, 8),
        "autoCreateTopicEnable off": lambda: topics.set_auto_create(False, 8),
        "a new version": lambda: topics.next_version(bool),
    }
    _judge("tables", [(watch.step_ms(lambda work=work: watch.call(work)), what) for what, work in works.items()])
    assert "OWN" in topics.table


def _judge(what: str, found: list[tuple[float, str]]) -> None:
    longest = sorted(found, reverse=True)[:3]
    print(f"{what}: " + ", ".join(f"{ms:.1f} ms {step}" for ms, step in longest), file=sys.stderr)
    assert longest[0][0] < BOUND_MS, f"held for {longest[0][0]:.1f} ms by {longest[0][1]}"


def test_a_connection_in_thousands_of_groups_ends(watch: LoopWatch, big: BigBroker) -> None:
    """18,000 groups of producers and 2,000 of consumers: taken out of some at a time."""
    channel = MemoryChannel(("192.0.2.3", 1))

    def join() -> None:
        for number in range(18_000):
            client = ClientInfo(channel, "leaves", "JAVA", 1, 0)
            big.core.clients.register_producer(f"pg{number}", client)
            if number < 2_000:
                big.subscribe(f"lg{number}", client)

    took = watch.step_ms(lambda: watch.call(lambda: big.core.channel_closed(channel)), join)
    assert took < BOUND_MS, f"held for {took:.1f} ms"
    assert channel.state.memberships == 0
    assert "lg0" not in big.core.clients.consumers
    assert channel not in big.core.clients.producers["pg0"]
