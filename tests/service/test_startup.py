"""What an instance does at its start while the name server comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remoting.command import RemotingCommand
from service.link import startup
from service.link.cluster import ClusterLink
from service.link.startup import SetupError, check_retention, check_topics
from timewheel_client.values.errors import BrokerError, ClientError, NoRouteError
from timewheel_client.values.routes import TopicRoute

TOPICS = ("TIMEWHEEL", "TIMEWHEEL_PROGRESS", "REJECTED")


class Names:
    """A name server that is away, knows no broker, or knows all, as it is told for each second."""

    topic = "TIMEWHEEL"

    def __init__(self, states: str) -> None:
        self.states = states
        self.second = 0

    @property
    def core(self) -> Names:
        return self

    def _is(self, state: str) -> bool:
        return self.states[min(self.second, len(self.states) - 1)] == state

    def _answers(self) -> None:
        if self._is("-"):
            raise ClientError("no name server answers: Connection refused")

    async def route(self, topic: str) -> TopicRoute:
        self._answers()
        if self._is("0") or self._is("t"):
            raise NoRouteError(topic)
        return cast(TopicRoute, Route() if self._is("1") else Closed())

    refresh_elsewhere = route

    async def masters(self) -> dict[str, str]:
        self._answers()
        return {} if self._is("0") else {"broker-0": "127.0.0.1:1"}

    async def ask_namesrv(self, *_: Any) -> Any:
        self._answers()
        raise ClientError("no table of clusters")

    async def sleep(self, seconds: float) -> None:
        self.second += int(seconds)


class Queue:
    """One queue."""

    topic, broker_name, queue_id = "TIMEWHEEL", "broker-0", 0


class Route:
    """The route of any topic."""

    read_queues = write_queues = (Queue,)


class Closed(Route):
    """The route of a topic that takes no writes."""

    write_queues = ()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def start(states: str) -> Any:
        names = Names(states)
        monkeypatch.setattr(startup.asyncio, "sleep", names.sleep)
        monkeypatch.setattr(startup, "mono_ms", lambda: names.second * 1000)
        return asyncio.run(check_topics(cast(ClusterLink, names), "127.0.0.1:9876", "REJECTED"))

    yield start


@pytest.mark.parametrize("states", ["1", "01", "0001", "0-1", "0--0-01", "0----1"])
def test_a_name_server_that_has_answered_may_be_away(started: Any, states: str) -> None:
    assert started(states) == [("TIMEWHEEL", "broker-0", 0)]


def test_nobody_at_the_address_ends_the_start_at_once(started: Any) -> None:
    with pytest.raises(ClientError, match="Connection refused"):
        started("-1")


@pytest.mark.parametrize("states", ["t", "0t", "0-t"])
def test_topics_that_brokers_do_not_have_are_missing(started: Any, states: str) -> None:
    with pytest.raises(SetupError, match="topics are missing: TIMEWHEEL, "):
        started(states)


def test_a_topic_without_permission_is_named_with_the_command_that_gives_it(started: Any) -> None:
    with pytest.raises(SetupError, match=r"TIMEWHEEL cannot be written.*\n  sh mqadmin updateTopicPerm .* -p 6"):
        started("c")


def test_one_that_stays_away_is_told_in_the_end(started: Any) -> None:
    with pytest.raises(ClientError, match="Connection refused"):
        started("0-")


def test_one_that_never_knows_a_broker_is_told_in_the_end(started: Any) -> None:
    with pytest.raises(SetupError, match="topics are missing"):
        started("0")


def retention(answer: bytes | None, roll_after_ms: int) -> None:
    """Check a broker that gives this configuration, or none."""

    async def route(_: str) -> Any:
        return SimpleNamespace(brokers={"broker-0": {0: "192.0.2.1:10911"}, "broker-1": {1: "192.0.2.2:10911"}})

    async def ask(address: str, code: int, **_: Any) -> RemotingCommand:
        assert (address, code) == ("192.0.2.1:10911", 26)
        if answer is None:
            raise BrokerError(16, "no right", address)
        return RemotingCommand(0, 0, body=answer)

    cluster = SimpleNamespace(topic="TIMEWHEEL", core=SimpleNamespace(route=route, ask=ask))
    asyncio.run(check_retention(cast(ClusterLink, cluster), roll_after_ms))


HOUR_MS = 3_600_000


def test_a_broker_that_deletes_entries_before_they_are_rolled_ends_the_start() -> None:
    """A service that waits a day with that lost what a broker with 24 hours had deleted by then."""
    with pytest.raises(SetupError, match=r"broker-0 deletes messages after 24 h .* --roll-after 43200,"):
        retention(b"brokerId=0\nfileReservedTime=24\n", 24 * HOUR_MS)


@pytest.mark.parametrize("answer", [None, b"", b"brokerId=0\nfileReservedTime=72", b"fileReservedTime=soon", b"\xff"])
def test_a_broker_that_keeps_them_or_does_not_tell_is_well(answer: bytes | None) -> None:
    retention(answer, 24 * HOUR_MS)
