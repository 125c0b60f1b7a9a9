"""The interface of the systems that a workload measures: start, stop, kill, and the processes to measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

__all__ = ["Running", "Setup", "System"]


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """How a system is to be started: ``flush`` in RocketMQ's terms, ``quick`` for a small heap and a short life."""

    flush: str = "ASYNC_FLUSH"
    quick: bool = False


class Running(Protocol):
    """One system with a store of its own on ports of its own; not started yet when it is made."""

    port: int
    store: Path
    configuration: dict[str, str]

    def start(self) -> None:
        """Start it, or start it again on the same port and store; return when it accepts connections."""

    def spawn(self) -> None:
        """Start it again on its port and store, and do not wait."""

    def prepare(self, topic: str, queues: int) -> None:
        """Make what a topic needs before the first message."""

    def stop(self) -> None:
        """End it as its users end it, and wait."""

    def kill(self) -> None:
        """SIGKILL to all of it."""

    def pids(self) -> list[int]:
        """The processes that do the work (not a name server)."""

    def close(self) -> None:
        """End what `kill` has left, such as a name server, whatever the state of the rest."""


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """One system, or one configuration of one.

    ``need`` raises MissingToolError or FetchError if it cannot be had, and fetches it if it can. ``kinds`` are the
    kinds of messages it takes; ``timed_batches`` says whether messages of a batch keep their delay,
    ``keeps_delivered`` whether what was delivered can be read again from the start. ``warm_up_seconds``: so long it is
    warmed at least before a figure counts (`bench.running.warmth`). ``shards``: so many brokers make it up, ten ports
    apart.
    """

    name: str
    title: str
    version: Callable[[], str]
    protocol: str
    make: Callable[[Path, Setup], Running]
    need: Callable[[], object] = lambda: None
    kinds: tuple[str, ...] = ("normal", "timed", "level")
    timed_batches: bool = False
    keeps_delivered: bool = True
    flushes: tuple[str, ...] = ("ASYNC_FLUSH", "SYNC_FLUSH")
    warm_up_seconds: float = 15.0
    shards: int = 1
