"""Metrics of consumers: messages pulled by groups, their lag, and connected clients.

All figures are read at a scrape, from tables that exist anyway, in the thread that asks. The age of the first unread
message may have to be read from the disk. So it is read for at most `ROWS_MAX` topics of groups, those with the most
lag; the others are one row under `store.put.measures.OTHER`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from remoting.codes import VERSION
from store.put.measures import OTHER, Family, MetricKind

if TYPE_CHECKING:
    from broker.figures.traffic import Traffic
    from broker.net.clients import ClientInfo
    from broker.parts import BrokerParts

__all__ = ["ROWS_MAX", "consumer_families", "version_name"]

ROWS_MAX = 500
"""Most topics of groups that have rows of their own."""
_LAG_LABELS = ("consumer_group", "topic", "is_retry", "is_system")
_VERSION_DIGITS = 498
"""`remoting.codes.VERSION` as a release: 4.9.8. Apache gives each release two numbers, the first to its snapshot."""


class _Lag(NamedTuple):
    counts: tuple[int, int, int]
    """Not consumed, of these pulled, not pulled."""
    group: str
    topic: str
    unread: tuple[tuple[int, int], ...]
    """Queue id and number of the first message of each queue that is not consumed."""
    waiting: tuple[tuple[int, int], ...]
    """The same for messages that were not pulled."""


def consumer_families(parts: BrokerParts, traffic: Traffic, now_ms: int) -> Iterator[Family]:
    """Make the metrics of consumers and of connections."""
    yield from _pulled(parts, traffic)
    yield from _lags(parts, now_ms)
    yield from _connections(parts)


def _is_system(parts: BrokerParts, topic: str, group: str = "") -> str:
    return "true" if parts.topics.is_system(topic) or group.startswith("CID_RMQ_SYS_") else "false"


def _pulled(parts: BrokerParts, traffic: Traffic) -> Iterator[Family]:
    labels = ("topic", "consumer_group", "is_system")
    rows: dict[tuple[str, str, str], list[int]] = {}
    for key, messages, size in traffic.pulled():
        topic, _, group = key.partition("@")
        name = (topic, group, _is_system(parts, topic, group))
        if len(rows) >= ROWS_MAX and name not in rows:
            name = (OTHER, OTHER, "false")
        row = rows.setdefault(name, [0, 0])
        row[0] += messages
        row[1] += size
    for place, metric, text in (
        (0, "messages_out", "Messages pulled, each time."),
        (1, "throughput_out", "Bytes of messages pulled."),
    ):
        yield Family(
            name=f"rocketmq_{metric}_total",
            kind=MetricKind.COUNTER,
            text=text,
            labels=labels,
            rows=[(key, row[place]) for key, row in rows.items()],
        )


def _lag_of(parts: BrokerParts, name: str, offsets: dict[int, int]) -> _Lag | None:
    topic, _, group = name.partition("@")
    if parts.topics.get(topic) is None:
        return None
    store, pulled_of = parts.store, parts.offsets.pulled.get(name, {})
    lag = inflight = ready = 0
    unread, waiting = [], []
    for queue_id, committed in list(offsets.items()):
        end = max(0, store.max_offset(topic, queue_id))
        pulled = min(end, max(committed, pulled_of.get(queue_id, committed)))
        lag += max(0, end - committed)
        inflight += max(0, pulled - committed)
        ready += max(0, end - pulled)
        if committed < end:
            unread.append((queue_id, committed))
        if pulled < end:
            waiting.append((queue_id, pulled))
    return _Lag((lag, inflight, ready), group, topic, tuple(unread), tuple(waiting))


def _lags(parts: BrokerParts, now_ms: int) -> Iterator[Family]:
    found = [_lag_of(parts, name, offsets) for name, offsets in list(parts.offsets.table.items())]
    lags = [lag for lag in found if lag is not None]
    lags.sort(reverse=True)
    shown, rest = lags[:ROWS_MAX], lags[ROWS_MAX:]
    names = [
        (lag.group, lag.topic, "true" if lag.topic.startswith("%RETRY%") else "false", _is_system(parts, lag.topic))
        for lag in shown
    ]
    for place, name, text in (
        (0, "lag", "Messages that a group has not consumed."),
        (1, "inflight", "Messages that a group has pulled and not consumed."),
        (2, "ready", "Messages that a group has not pulled."),
    ):
        rows: list[tuple[tuple[str, ...], int]] = [
            (labels, lag.counts[place]) for labels, lag in zip(names, shown, strict=True)
        ]
        if rest:
            rows.append(((OTHER, OTHER, "false", "false"), sum(lag.counts[place] for lag in rest)))
        yield Family(
            name=f"rocketmq_consumer_{name}_messages", kind=MetricKind.GAUGE, text=text, labels=_LAG_LABELS, rows=rows
        )
    for name, text, ages in (
        ("lag", "Age of the oldest message that a group has not consumed.", [lag.unread for lag in shown]),
        ("queueing", "Age of the oldest message that a group has not pulled.", [lag.waiting for lag in shown]),
    ):
        yield Family(
            name=f"rocketmq_consumer_{name}_latency_milliseconds",
            kind=MetricKind.GAUGE,
            text=text,
            labels=_LAG_LABELS,
            rows=[
                (labels, _age_ms(parts, lag.topic, places, now_ms))
                for labels, lag, places in zip(names, shown, ages, strict=True)
            ],
        )


def _age_ms(parts: BrokerParts, topic: str, places: tuple[tuple[int, int], ...], now_ms: int) -> int:
    oldest = now_ms
    for queue_id, number in places:
        at_ms = parts.store.store_time_at(topic, queue_id, number)
        if 0 < at_ms < oldest:
            oldest = at_ms
    return now_ms - oldest


def _connections(parts: BrokerParts) -> Iterator[Family]:
    consumers = Counter[tuple[str, ...]]()
    for name, group in list(parts.clients.consumers.items()):
        mode = "push" if group.consume_type == "CONSUME_PASSIVELY" else "pull"
        is_system = _is_system(parts, "", name)
        consumers.update((name, mode, *_client(client), is_system) for client in list(group.clients.values()))
    producers = Counter[tuple[str, ...]]()
    for members in list(parts.clients.producers.values()):
        producers.update(map(_client, list(members.values())))
    yield Family(
        name="rocketmq_consumer_connections",
        kind=MetricKind.GAUGE,
        text="Connected consumers.",
        labels=("consumer_group", "consume_mode", "language", "version", "protocol_type", "is_system"),
        rows=consumers.most_common(ROWS_MAX),
    )
    yield Family(
        name="rocketmq_producer_connections",
        kind=MetricKind.GAUGE,
        text="Connected producers, once for each of their groups.",
        labels=("language", "version", "protocol_type"),
        rows=producers.most_common(ROWS_MAX),
    )


def _client(client: ClientInfo) -> tuple[str, ...]:
    return client.language.lower(), version_name(client.version), "remoting"


def version_name(number: int) -> str:
    """Name a client's version as Apache's exporter does.

    >>> version_name(409), version_name(VERSION + 4), version_name(408)
    ('v4_9_8', 'v5_0_0', 'v4_9_8_snapshot')
    """
    step, is_release = divmod(number - (VERSION - 1), 2)
    digits = _VERSION_DIGITS + step
    if not 310 <= digits <= 599:
        return str(number)
    return f"v{digits // 100}_{digits // 10 % 10}_{digits % 10}{'' if is_release else '_snapshot'}"
