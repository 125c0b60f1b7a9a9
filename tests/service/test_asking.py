"""Questions about entries are read as the broker reads them: no condition is passed over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cli.pending_tables import topic_rows
from remoting.messages.message import StoredMessage
from service.core.commands import CommandVerdict
from service.core.lines import Line, LineKind
from service.running.asking import QUESTION_BYTES_MAX, answer_to
from service.running.obeying import Clerk, Employer, _outcome
from store.put.pending_api import Forecast, PendingCount, PendingQuery
from store.put.pending_topics import TopicControl, TopicSums
from tests.support.plain_pending import PlainPending, row
from timewheel_client import (
    ChangeResult,
    ClientError,
    MatchingResult,
    NoRouteError,
    RequestTimeoutError,
    ServiceClient,
    WaitingMessage,
    Which,
)
from timewheel_client.net.client_core import now_ms
from timewheel_client.pending.pending_values import waiting_of

START_MS = 1_700_000_000_000
EVERY = {
    "topic": "T",
    "tag": "t",
    "keyPrefix": "order-",
    "dueFromMs": "1",
    "dueToMs": "2",
    "acceptedFromMs": "3",
    "acceptedToMs": "4",
    "properties": "A\x01b\x02",
}


class _Asked:
    """Keeps what is asked."""

    def __init__(self) -> None:
        self.queries: list[PendingQuery] = []

    def count(self, query: PendingQuery, _after: str) -> PendingCount:
        self.queries.append(query)
        return PendingCount(count=7, bytes=0, first_due_ms=None, last_due_ms=None, next="")


def _ask(asked: _Asked, **fields: str) -> dict[str, Any]:
    body = json.dumps({"what": "count", **fields}).encode()
    return answer_to(body, cast(TopicControl, asked), "shard", 5)


@pytest.mark.parametrize("name", EVERY)
def test_each_condition_counts(name: str) -> None:
    asked = _Asked()
    assert _ask(asked, **{name: EVERY[name]})["count"] == 7
    assert not asked.queries[0].is_empty


def test_topics_of_all_shards_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard's answer comes in two parts; what one shard is asked for is read by `answer_to` of its owner."""
    parts = {
        "b/0": PlainPending([row(1, START_MS + 5, "A"), row(2, START_MS + 9, "B"), row(3, START_MS + 7, "B")]),
        "b/1": PlainPending([row(1, START_MS + 1, "B")]),
    }

    async def question(_: ServiceClient, address: str, what: str, fields: dict[str, Any]) -> dict[str, Any]:
        if not fields["after"]:
            return {"topics": [], "next": "on"}
        body = json.dumps({"what": what, **{name: text for name, text in fields.items() if name != "after"}}).encode()
        return answer_to(body, parts[address], address, 5)

    async def brokers(_: ServiceClient) -> dict[str, str]:
        return {name: name for name in parts}

    monkeypatch.setattr(ServiceClient, "_question", question)
    monkeypatch.setattr(ServiceClient, "brokers", brokers)

    async def ask(which: Which | None) -> list[tuple[str, int, int, int]]:
        found = await ServiceClient("127.0.0.1:1").topics(which)
        assert [row.bytes for row in found] == [100 * row.count for row in found]
        return [(row.topic, row.count, row.first_due_ms - START_MS, row.last_due_ms - START_MS) for row in found]

    assert asyncio.run(ask(None)) == [("B", 3, 1, 9), ("A", 1, 5, 5)]
    assert asyncio.run(ask(Which(topic="A"))) == [("A", 1, 5, 5)]
    assert topic_rows([])[0][-1] == "topic"


@pytest.mark.parametrize(
    ("error", "verdict"), [(RequestTimeoutError("no verdict"), "undecided"), (NoRouteError("no master"), "refused")]
)
def test_a_bulk_change_tells_of_each_what_is_known(
    monkeypatch: pytest.MonkeyPatch, error: ClientError, verdict: str
) -> None:
    """One shard gives no verdict: what was done in the others was told to nobody."""
    waits = [f"b/{n % 2}/{n}" for n in range(150)]

    async def listed(*_: Any) -> AsyncIterator[tuple[WaitingMessage, str]]:
        for name in waits:
            shard = name.rpartition("/")[0]
            yield waiting_of({"id": name, "topic": "T", "due_ms": START_MS}, shard), "5-5"

    async def change(_: ServiceClient, _verb: str, name: str, *__: Any, **___: Any) -> ChangeResult:
        if name.startswith("b/1/") or silent:
            raise error
        return ChangeResult(verdict="done", id=name)

    async def brokers(_: ServiceClient) -> dict[str, str]:
        return {"b/0": "b/0", "b/1": "b/1"}

    monkeypatch.setattr(ServiceClient, "_list", listed)
    monkeypatch.setattr(ServiceClient, "_change", change)
    monkeypatch.setattr(ServiceClient, "brokers", brokers)

    async def cancel() -> MatchingResult:
        return await ServiceClient("127.0.0.1:1").change_matching(Which(topic="T"), "cancel", dry_run=False)

    silent = False
    found = asyncio.run(cancel())
    assert found.verdicts == {"done": 75, verdict: 75}
    assert [answer.id for answer in found.answers] == waits
    silent = True
    if verdict == "refused":
        with pytest.raises(NoRouteError):  # nothing was changed at all
            asyncio.run(cancel())


def test_an_interval_is_a_time_when_a_message_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is old, or a call that is made again, leads to the same time: nothing is moved twice."""
    base = now_ms()
    dues = {"b/0/1": base + 60_000, "b/0/2": base + 61_000, "b/0/3": base - 50_000}
    orders: list[tuple[str, str, dict[str, int | None]]] = []

    async def listed(_: ServiceClient, *__: object) -> AsyncIterator[tuple[WaitingMessage, str]]:
        for name, due_ms in dues.items():
            yield waiting_of({"id": name, "topic": "T", "due_ms": due_ms}, "b/0"), ""

    async def change(_: ServiceClient, verb: str, name: str, *__: Any, **times: int | None) -> ChangeResult:
        orders.append((verb, name, times))
        return ChangeResult(verdict="done", id=name)

    async def brokers(_: ServiceClient) -> dict[str, str]:
        return {"b/0": "b/0"}

    monkeypatch.setattr(ServiceClient, "_list", listed)
    monkeypatch.setattr(ServiceClient, "_change", change)
    monkeypatch.setattr(ServiceClient, "brokers", brokers)

    async def change_all(verb: str, **times: int) -> MatchingResult:
        client = ServiceClient("127.0.0.1:1")
        return await client.change_matching(Which(topic="T"), verb, dry_run=False, **times)

    assert asyncio.run(change_all("move", by_ms=-30_000)).verdicts == {"done": 2, "refused": 1}
    moved = [("move", name, {"dueMs": dues[name] - 30_000}) for name in ("b/0/1", "b/0/2")]
    assert orders == moved
    assert asyncio.run(change_all("move", by_ms=-30_000)).verdicts == {"done": 2, "refused": 1}
    assert orders == moved * 2
    assert asyncio.run(change_all("cancel")).verdicts == {"done": 3}
    for wrong in ({}, {"by_ms": 5, "due_ms": base + 90_000}):
        with pytest.raises(ValueError, match="one of the two"):
            asyncio.run(change_all("move", **wrong))


@pytest.mark.parametrize("text", ["x", "1" * 5000, "1.5", "--1", "-", "٣"])
def test_what_is_no_number_is_refused_with_its_name(text: str) -> None:
    asked = _Asked()
    assert "dueFromMs" in _ask(asked, dueFromMs=text)["error"]
    assert asked.queries == []


@pytest.mark.parametrize(
    ("due_ms", "word"), [(1_600_000_000_000, "the verb is now"), (1_600_000_000, "looks like seconds"), (0, "past")]
)
def test_a_client_moves_nothing_into_the_past(due_ms: int, word: str) -> None:
    """Refused before anything is sent: nobody listens at this address."""

    async def move() -> None:
        with pytest.raises(ClientError, match=word):
            await ServiceClient("127.0.0.1:1").move("broker-a/0/7", due_ms=due_ms)

    asyncio.run(move())


def test_an_interval_into_the_past_is_refused_by_the_owner() -> None:
    verdict, due_ms, why = _outcome(Line(9, LineKind.MOVE, by_ms=-60_000), START_MS + 50_000, START_MS)
    assert (verdict, due_ms) == (CommandVerdict.REFUSED, START_MS + 50_000)
    assert "the verb is now" in why
    assert _outcome(Line(9, LineKind.MOVE, by_ms=-50_500), START_MS + 50_000, START_MS)[1] == START_MS


def test_a_question_is_short() -> None:
    """Bodies of commands without a verdict are kept in memory, by each standby, too: a thousand of 4 MiB each."""
    asked = _Asked()
    longest = "x" * (QUESTION_BYTES_MAX - len(json.dumps({"what": "count", "tag": ""})))
    assert _ask(asked, tag=longest)["count"] == 7
    assert "at most 65536 bytes" in _ask(asked, tag=longest + "x")["error"]
    shard = SimpleNamespace(commands=SimpleNamespace(asked={3: Line(3, LineKind.ASK)}))
    clerk = Clerk(cast(Employer, SimpleNamespace(shard=shard)))
    message = SimpleNamespace(body=bytes(4 << 20))
    clerk.saw(cast(StoredMessage, message), Line(3, LineKind.ASK))
    assert [len(body) for body in clerk._bodies.values()] == [QUESTION_BYTES_MAX + 1]


def test_answers_say_how_many_could_not_be_read() -> None:
    class Torn(PlainPending):
        def count(self, query: PendingQuery, after: str = "") -> PendingCount:
            return replace(super().count(query, after), unread=1, remark="torn")

        def by_topic(self, query: PendingQuery, after: str = "") -> TopicSums:
            return replace(super().by_topic(query, after), unread=2)

        def forecast(self, from_ms: int, to_ms: int, bars: int, topic: str = "") -> Forecast:
            return replace(super().forecast(from_ms, to_ms, bars, topic), unread=3)

    torn = Torn([row(1, START_MS + 5, "A")])
    questions = [json.dumps({"what": what}).encode() for what in ("count", "topics", "forecast")]
    answers = [answer_to(question, torn, "b/0", START_MS) for question in questions]
    assert [answer["unread"] for answer in answers] == [1, 2, 3]
    assert answers[0]["remark"] == "torn"
