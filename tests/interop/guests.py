"""Clients that several tests use, one after the other: a JVM of a client costs seconds of processor time at its start.

`Hosts` keeps the processes, as long as the broker that they belong to. A test borrows one as a `Guest`, with topics and
groups of its own. What a test kills, it starts for itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.clients import Client, Event, command_of
from tests.support.need import need

__all__ = ["Guest", "Hosts"]

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


class Hosts:
    """The clients of one broker that tests share, by name and number."""

    def __init__(self, namesrv: str, folders: pytest.TempPathFactory) -> None:
        self._namesrv = namesrv
        self._folders = folders
        self._found: dict[tuple[str, int], Client] = {}

    def guest(self, name: str, number: int = 1) -> Guest:
        """Answer a guest of the process with this name and number, which is started if need be."""
        if (name, number) not in self._found:
            folder = self._folders.mktemp(f"{name}-{number}")
            need(lambda: command_of(name, folder))
            self._found[name, number] = Client(name, self._namesrv, folder)
        return Guest(self._found[name, number])

    @contextmanager
    def lent(self) -> Iterator[Callable[..., Client]]:
        """Lend guests to one test, by `guest`; at its end they leave."""
        guests: list[Guest] = []

        def borrow(name: str, number: int = 1) -> Client:
            guests.append(self.guest(name, number))
            return guests[-1]

        yield borrow
        for one in guests:
            one.leave()

    def stop(self) -> None:
        """End all processes."""
        for client in self._found.values():
            client.stop()
