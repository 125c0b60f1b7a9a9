"""Keeps processes running: starts each, starts it again when it dies, and ends all. Time is an argument.

A shard that dies is started again at once; if it dies again, after 1 s, 2 s, 4 s and so on, up to 30 s. Once it has
served for a minute the count begins anew. The others never wait for it.

==========  =======================================================  ====================
State       Means                                                    Leaves by
==========  =======================================================  ====================
`DOWN`      no process; one is started at ``restart_ms``             the time: `STARTING`
`STARTING`  a process recovers its store                             `ready`, its death
`SERVING`   it takes requests                                        its death
`ENDING`    it was told to end, and is not started again             its death: `ENDED`
`ENDED`     no process, and none will be                             -
==========  =======================================================  ====================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

__all__ = ["BACK_OFF_MAX_MS", "GOOD_MS", "Process", "ShardKeeper", "ShardState"]

_LOG = logging.getLogger(__name__)

_BACK_OFF_MS = 1_000
BACK_OFF_MAX_MS = 30_000
"""Longest pause before a shard is started again."""
GOOD_MS = 60_000
"""A shard that has served for this long is healthy: the next death is its first one."""


class Process(Protocol):
    """A process of a shard."""

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        ...


class ShardState(Enum):
    """See the head of this file."""

    DOWN = "down"
    STARTING = "starting"
    SERVING = "serving"
    ENDING = "ending"
    ENDED = "ended"


class _Kept:
    """One shard."""

    __slots__ = ("deaths", "process", "restart_ms", "serving_ms", "state")

    def __init__(self) -> None:
        self.state = ShardState.DOWN
        self.process: Process | None = None
        self.restart_ms = 0
        self.serving_ms = 0
        self.deaths = 0


class ShardKeeper:
    """The processes of all shards.

    Args:
        indexes: The shards.
        launch: Starts the process of one; raises OSError if it cannot.
        died: Told of each death: shard and exit status (negative: a signal).
        name: Writes a shard's name, for the log.
    """

    def __init__(
        self,
        indexes: Sequence[int],
        launch: Callable[[int], Process],
        died: Callable[[int, int], None] = lambda _index, _status: None,
        name: Callable[[int], str] = str,
    ) -> None:
        self._launch = launch
        self._died = died
        self._name = name
        self._kept = {index: _Kept() for index in indexes}
        self.restart_count = 0
        """Restarts after a death."""

    def state(self, index: int) -> ShardState:
        """The state of a shard."""
        return self._kept[index].state

    def in_state(self, *states: ShardState) -> list[int]:
        """The shards that are in one of these states."""
        return [index for index, kept in self._kept.items() if kept.state in states]

    @property
    def ended(self) -> bool:
        """True if no process is left, and none will be started."""
        return all(kept.state is ShardState.ENDED for kept in self._kept.values())

    def down_ms(self, index: int, now_ms: int) -> int:
        """Milliseconds since a shard last served; 0 while it serves."""
        kept = self._kept[index]
        return 0 if kept.state is ShardState.SERVING else now_ms - kept.serving_ms

    def step(self, now_ms: int) -> None:
        """Notice the shards that died, and start those whose time has come."""
        for index, kept in self._kept.items():
            status = None if kept.process is None else kept.process.poll()
            if status is not None:
                self._gone(index, kept, status, now_ms)
            if kept.state is ShardState.DOWN and now_ms >= kept.restart_ms:
                self._start(index, kept, now_ms)

    def _gone(self, index: int, kept: _Kept, status: int, now_ms: int) -> None:
        kept.process = None
        if kept.state is ShardState.ENDING:
            kept.state = ShardState.ENDED
        else:
            if kept.state is ShardState.SERVING:
                if now_ms - kept.serving_ms >= GOOD_MS:
                    kept.deaths = 0
                kept.serving_ms = now_ms  # `down_ms` counts from here
            self._back_off(kept, now_ms)
            _LOG.error(
                "%s has ended with status %d; it is started again in %g s",
                self._name(index),
                status,
                (kept.restart_ms - now_ms) / 1000,
            )
        self._died(index, status)

    @staticmethod
    def _back_off(kept: _Kept, now_ms: int) -> None:
        pause_ms = 0 if not kept.deaths else min(_BACK_OFF_MS << min(kept.deaths - 1, 20), BACK_OFF_MAX_MS)
        kept.state = ShardState.DOWN
        kept.restart_ms = now_ms + pause_ms
        kept.deaths += 1

    def _start(self, index: int, kept: _Kept, now_ms: int) -> None:
        self.restart_count += kept.deaths > 0
        try:
            kept.process = self._launch(index)
        except OSError as error:
            self._back_off(kept, now_ms)
            _LOG.error("%s cannot be started: %s", self._name(index), error)
            return
        kept.state = ShardState.STARTING

    def ready(self, index: int, now_ms: int) -> None:
        """Note that a shard serves."""
        kept = self._kept[index]
        if kept.state is ShardState.STARTING:
            kept.state = ShardState.SERVING
            kept.serving_ms = now_ms

    def end(self, *indexes: int) -> None:
        """Ask these to end, all at the same time, and start them no more."""
        for index in indexes:
            kept = self._kept[index]
            if kept.process is None:
                kept.state = ShardState.ENDED
            elif kept.state is not ShardState.ENDING:
                kept.state = ShardState.ENDING
                kept.process.terminate()

    def end_all(self) -> None:
        """Ask all to end."""
        self.end(*self._kept)
