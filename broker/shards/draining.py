"""Takes shards out: a marked shard is no longer written, and ends when it is empty.

``timewheel drain`` makes the mark, a file in the shard's directory. So a drain survives every restart, and needs no
port and only the permission to write the directory. The supervisor checks the marks every second:

=======================================  =========================================================================
a mark, and the shard may be written     the shard gets ``brokerPermission`` 4, which its routes show: producers
                                         leave it, consumers go on
something is left                        ``left.json`` beside the mark says what
nothing is left                          the shard leaves the routes and ends; the layout says that it is out
the mark is gone                         the shard may be written again
=======================================  =========================================================================

The mark lists the topics, one a line, whose messages may stay although nobody has read them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.shards.keeper import ShardState
from broker.shards.link import PERMIT, STATE
from remoting.codes import ResponseCode
from remoting.json_dialect import dumps, loads

if TYPE_CHECKING:
    from broker.shards.changes import SharedChanges
    from broker.shards.front import Front
    from broker.shards.keeper import ShardKeeper
    from broker.shards.layout import Layout
    from store.disk.files import Files

__all__ = ["READ_ONLY", "READ_WRITE", "Draining", "finish_taking_out", "left_of"]

_LOG = logging.getLogger(__name__)

READ_ONLY, READ_WRITE = "4", "6"


def left_of(state: dict[str, Any], may_stay: frozenset[str]) -> dict[str, Any]:
    """The part of a shard's state that keeps it from ending; empty: nothing does.

    >>> left_of({"pending": 0, "levels": 2, "undecided": 0, "unread": []}, frozenset())
    {'levels': 2}
    >>> left_of({"pending": 0, "unread": [{"topic": "a", "group": "g", "messages": 1}]}, frozenset({"a"}))
    {}
    """
    found: dict[str, Any] = {name: state[name] for name in ("pending", "levels", "undecided") if state.get(name)}
    unread = [entry for entry in state.get("unread") or () if entry["topic"] not in may_stay]
    if unread:
        found["unread"] = unread
    return found


def finish_taking_out(layout: Layout, files: Files, changes: SharedChanges) -> None:
    """Forget the changes of shards that are out, and remove their marks. Raises StoreError.

    A start does it, too, as a crash may have left it undone: a shard that comes back would make old changes over the
    tables that it inherits, and would be drained at once.
    """
    for index in layout.out:
        if changes.of(index):
            changes.forget(index)
        mark = layout.drain_mark(index)
        if files.exists(mark):
            files.remove(mark)


class Draining:
    """The shards that are marked. Only the network loop uses it."""

    def __init__(
        self,
        layout: Layout,
        files: Files,
        changes: SharedChanges,
        front: Front,
        keeper: ShardKeeper,
        name: Callable[[int], str],
    ) -> None:
        self._layout = layout
        self._files = files
        self._changes = changes
        self._front = front
        self._keeper = keeper
        self._name = name
        self._read_only: set[int] = set()
        self._empty: set[int] = set()

    async def look(self) -> None:
        """Take the next step for each marked shard. Raises OSError, TimeoutError or StoreError; call it again then."""
        for index in self._keeper.in_state(ShardState.SERVING):
            mark = self._layout.drain_mark(index)
            if self._files.exists(mark):
                await self._drain(index)
            elif index in self._read_only:
                await self._permit(index, READ_WRITE)
                self._read_only.discard(index)
                _LOG.warning("%s accepts messages again", self._name(index))
        for index in self._keeper.in_state(ShardState.ENDED):
            if index in self._layout.members:
                self._take_out(index)
        # Each time: it may have failed before, and another ``timewheel drain`` may have made a mark since.
        finish_taking_out(self._layout, self._files, self._changes)

    async def _permit(self, index: int, permission: str) -> None:
        reply = await self._front.ask(index, PERMIT, {"brokerPermission": permission})
        if reply.code != ResponseCode.SUCCESS:
            raise OSError(f"the permission of {self._name(index)} was not changed: {reply.remark}")

    async def _drain(self, index: int) -> None:
        if index not in self._read_only:
            await self._permit(index, READ_ONLY)
            self._read_only.add(index)
            _LOG.warning("%s is being drained: it accepts no new messages", self._name(index))
        reply = await self._front.ask(index, STATE, {"whole": "true"})
        mark = self._layout.drain_mark(index)
        may_stay = frozenset(self._files.read_file(mark).decode(errors="replace").split())
        left = left_of(loads(reply.body), may_stay)
        self._files.replace_file(mark.with_name("left.json"), dumps({"left": left}))
        if left:
            self._empty.discard(index)
        elif index not in self._empty:
            self._empty.add(index)  # look twice: a send that was under way may have arrived after this state was read
        elif len(self._layout.members) > 1:
            _LOG.warning("%s is empty: it is taken out of the routes and stopped", self._name(index))
            self._front.forget_routes(index)
            self._keeper.end(index)

    def _take_out(self, index: int) -> None:
        self._layout.take_out(index)
        self._front.forget_routes(index)
        self._read_only.discard(index)
        self._empty.discard(index)
        _LOG.warning("%s is out; its directory %s stays", self._name(index), self._layout.directory(index))
