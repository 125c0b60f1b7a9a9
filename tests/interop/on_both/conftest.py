"""One broker of ours and one of Apache's for all tests of this folder, and the processes beside it that tests share.

A process of Apache's, and each JVM of a client, costs seconds of processor time at its start. So the tests of this
folder run one after the other on the same broker, each with topics and groups of its own, and borrow clients that
live as long as the broker (`Guest`). What a test kills, it starts for itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.peers import Peer, start_peer
from tests.support.admin import MqAdmin, admin_classes
from tests.support.clients import Client, Event, command_of
from tests.support.need import need

SETTINGS = {"traceTopicEnable": "true", "recallMessageEnable": "true", "enablePropertyFilter": "true"}
_numbers = itertools.count(1)


class Guest(Client):
    """A client that other tests use, too: the names of this test's commands are its own, and its consumers end with it.

    The process is that of ``host``, and cannot be ended from here.
    """

    def __init__(self, host: Client) -> None:
        self.name = host.name
        self.folder = host.folder
        self._host = host
        self._prefix = f"{next(_numbers)}-"
        self._consumers: list[str] = []

    def command(self, op: str, **arguments: Any) -> None:
        """Write one command line."""
        job = arguments["id"]
        if op == "consume":
            self._consumers.append(job)
        elif op == "close":
            self._consumers.remove(job)
        self._host.command(op, **{**arguments, "id": self._prefix + job})

    def events(self, job: str, *names: str) -> list[Event]:
        """Return what has come so far for a command of this test."""
        return self._host.events(self._prefix + job, *names)

    def wait(self, job: str, event: str, seconds: float, count: int = 1) -> list[Event]:
        """Wait for a number of events of one kind for a command of this test; AssertionError as `Client.wait`."""
        return self._host.wait(self._prefix + job, event, seconds, count)

    def leave(self) -> None:
        """Shut down the consumers that this test has started."""
        if self.name == "go-v2":  # its driver cannot
            return
        jobs = [job for job in self._consumers if self.events(job, "consuming")]
        for job in jobs:
            self.command("close", id=job)
        for job in jobs:
            self.wait(job, "closed", 60)


@pytest.fixture(
    scope="package",
    params=[pytest.param("ours", marks=pytest.mark.process), pytest.param("apache", marks=pytest.mark.apache)],
)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A broker of ours, then one of Apache's."""
    with start_peer(request.param, tmp_path_factory.mktemp(request.param), SETTINGS) as made:
        yield made


@pytest.fixture(scope="package")
def admin(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    """Apache's mqadmin for this broker."""
    need(admin_classes)
    made = MqAdmin(peer.namesrv, tmp_path_factory.mktemp("admin"))
    yield made
    made.stop()


@pytest.fixture(scope="package")
def hosts(peer: Peer) -> Iterator[dict[tuple[str, int], Client]]:  # noqa: ARG001 (they end before it)
    """The clients of this broker that tests share, by name and number."""
    found: dict[tuple[str, int], Client] = {}
    yield found
    for client in found.values():
        client.stop()


@pytest.fixture
def borrow(
    peer: Peer, hosts: dict[tuple[str, int], Client], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Client]]:
    """Borrow stock clients that run already. Each ``number`` is a process of its own."""
    guests: list[Guest] = []

    def guest(name: str, number: int = 1) -> Client:
        if (name, number) not in hosts:
            folder = tmp_path_factory.mktemp(f"{name}-{number}")
            need(lambda: command_of(name, folder))
            hosts[name, number] = Client(name, peer.namesrv, folder)
        guests.append(Guest(hosts[name, number]))
        return guests[-1]

    yield guest
    for one in guests:
        one.leave()
