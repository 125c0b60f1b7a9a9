"""What an instance does at its start while the name server comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from service.link import startup
from service.link.cluster import ClusterLink
from service.link.startup import SetupError, check_topics
from timewheel_client.values.errors import ClientError, NoRouteError
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
        return cast(TopicRoute, Route())

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


def test_one_that_stays_away_is_told_in_the_end(started: Any) -> None:
    with pytest.raises(ClientError, match="Connection refused"):
        started("0-")


def test_one_that_never_knows_a_broker_is_told_in_the_end(started: Any) -> None:
    with pytest.raises(SetupError, match="topics are missing"):
        started("0")
