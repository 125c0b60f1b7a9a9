"""Messages of one queue with one due time are delivered in the order in which they were accepted, turn by turn.

The turns differ in what they need: one has a new delay key, which must be found at once; one is refused in part. The
sweeper or recovery looks between them, and nothing was synced yet.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from remoting.messages.message import Message
from remoting.messages.properties import format_properties
from store.disk.errors import StoreFullError
from store.put.plugin_api import Held
from tests.broker_plugin.test_delay_keys import message
from tests.broker_plugin.test_pending_desk import NOW, Desk

DUE_MS = NOW + 5


def hold(desk: Desk, body: bytes, key: str = "", mode: str = "", due_ms: int = DUE_MS) -> Held:
    text = format_properties({"__STARTDELIVERTIME": str(due_ms)})
    one = message(due_ms, key, body, mode, "T") if key else Message("T", 1, body=body, properties=text)
    held = desk.world.plugin.before_put(one, desk.now)
    assert isinstance(held, Held)
    return held


def delivered(desk: Desk) -> list[bytes]:
    """The bodies in the order of the CommitLog."""
    return [body for *_, body in desk.delivered().values()]


def swept(desk: Desk) -> None:
    desk.world.clock.now_ms = DUE_MS
    desk.world.plugin.sweeper.step(DUE_MS)


def recovered(desk: Desk) -> None:
    """Recovery owns that time, as after the tail of a hot second was handed over."""
    plugin = desk.world.plugin
    desk.world.clock.now_ms = DUE_MS
    plugin.ranges.add((DUE_MS - 1, 0), DUE_MS + 1)
    plugin.recovery.step(DUE_MS)
    plugin.sweeper.step(DUE_MS)
    plugin.recovery.step(DUE_MS)


@pytest.fixture(params=["SYNC_FLUSH", "ASYNC_FLUSH"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(flush_sync=request.param == "SYNC_FLUSH")


@pytest.mark.parametrize("find", [swept, recovered])
def test_a_new_delay_key_does_not_come_before_the_turn_before_it(desk: Desk, find: Callable[[Desk], None]) -> None:
    hold(desk, b"first")
    desk.world.plugin.commit_turn()
    hold(desk, b"second", "k")
    desk.world.plugin.commit_turn()
    find(desk)
    desk.world.run(100)
    assert delivered(desk) == [b"first", b"second"]


@pytest.mark.parametrize("find", [swept, recovered])
def test_the_rest_of_a_turn_that_was_refused_in_part_does_not_come_before_the_turn_before_it(
    desk: Desk, find: Callable[[Desk], None]
) -> None:
    plugin = desk.world.plugin
    hold(desk, b"first")
    plugin.commit_turn()
    hold(desk, b"second")
    refused = hold(desk, b"refused")
    with plugin.lock:
        plugin.commit_turn()
        plugin.take_back(refused)
    find(desk)
    desk.world.run(100)
    assert delivered(desk) == [b"first", b"second"]


class _Watched:
    """A lock behind which somebody waits: ``then`` runs whenever it is let go."""

    def __init__(self, lock: Any, then: Callable[[], object]) -> None:
        self._lock = lock
        self._then = then
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._depth -= 1
        self._lock.release()
        if not self._depth:
            self._then()


@pytest.mark.pure
def test_a_turn_whose_replacement_fails_is_never_delivered(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the failure and the refusal the sweeper must find nothing of it, however it is scheduled."""
    world, plugin = desk.world, desk.world.plugin
    hold(desk, b"kept", "k", due_ms=DUE_MS + 50)
    plugin.commit_turn()
    for key, mode in (("new", ""), ("k", "replace")):
        hold(desk, b"refused", key, mode)
    world.clock.now_ms = DUE_MS

    def full(*_: object) -> None:
        raise StoreFullError("no room for the replacement")

    monkeypatch.setattr(plugin.spill, "move", full)
    monkeypatch.setattr(plugin.spill, "lock", _Watched(plugin.lock, lambda: plugin.sweeper.step(DUE_MS)))
    with pytest.raises(StoreFullError, match="no room for the replacement"):
        plugin.commit_turn()
    world.run(100)
    assert delivered(desk) == [b"kept"]
