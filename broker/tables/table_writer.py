"""The thread that writes tables, and the batches that requests wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["NotYetError", "Outcome", "TableBatch", "TableWriter", "Waited", "Writing", "WrittenTable"]


K = TypeVar("K")
V = TypeVar("V")

Outcome = Exception | None
"""The result of a write: None if it is durable, else the error."""


class TableBatch(Generic[K, V]):
    """Changes that are written together (None: the name is deleted), and the requests that wait for them, in order."""

    __slots__ = ("applied", "changes", "error", "over", "waiting")

    def __init__(self) -> None:
        self.changes: dict[K, V | None] = {}
        self.waiting: list[Callable[[Outcome], None]] = []
        self.error: Outcome = None
        self.over = False
        self.applied = False


class Waited(Protocol):
    """An operation for which requests wait: a batch, or other long work."""

    waiting: list[Callable[[Outcome], None]]


class NotYetError(Exception):
    """A request has to wait for a batch. Then ``then`` makes its reply; without ``then`` it is handled again.

    ``begin`` gathers the request's changes and returns the batch, or None: the request goes on in one of the next
    turns. The dispatcher calls it as soon as it has kept the request; if the request is refused, nothing has happened.
    ``then`` is called even if the client has left meanwhile.

    With ``alone``, later requests of the connection wait until the batch is over, too. ``alone`` is called when the
    request waits, and makes sure that the batch ends.
    """

    def __init__(
        self,
        begin: Callable[[], Waited | None],
        then: Callable[[], Any] | None = None,
        alone: Callable[[], None] | None = None,
    ) -> None:
        super().__init__("what the request needs is not durable yet")
        self.begin = begin
        self.then = then
        self.alone = alone


class Writing(Protocol):
    """A piece of work for the thread."""

    def write(self) -> None:
        """Do it. Any thread; raises nothing."""
        ...

    def finish(self) -> None:
        """Tell the requests that wait. Called in the network loop."""
        ...


class WrittenTable(Writing, Protocol):
    """A table whose changes the thread writes."""

    def hand_over(self) -> bool:
        """Make a batch of the gathered changes, unless one is being written. Returns whether there is one to write."""
        ...

    def settle(self) -> bool:
        """Write the changes that are left, in the caller's thread. Returns whether there were any."""
        ...


class TableWriter:
    """The thread that writes the tables of one broker. Only the network loop calls it, except for `step` and `stop`.

    Args:
        call_soon_threadsafe: Runs something in the network loop.
        schedule: Has `commit` called at the end of the turn.
    """

    def __init__(
        self,
        call_soon_threadsafe: Callable[[Callable[[], None]], object] = lambda call: call(),
        schedule: Callable[[], None] = lambda: None,
    ) -> None:
        self.late = False
        """True if changes are gathered and written in the thread."""
        self.write_count = 0
        """Batches written, or tried to, since the start."""
        self._call_soon_threadsafe = call_soon_threadsafe
        self.schedule = schedule
        self._has_changes = False  # a table has gathered some since the last `commit`
        self._tables: tuple[WrittenTable, ...] = ()
        self._queue: SimpleQueue[Writing | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, table: WrittenTable) -> None:
        """Write this table, too."""
        self._tables = (*self._tables, table)

    def start(self) -> None:
        """Start the thread."""
        self.late = True
        self._thread = threading.Thread(target=self._run, name="tables", daemon=True)
        self._thread.start()

    def changed(self) -> None:
        """Have what a table has gathered handed over at the end of the turn."""
        self._has_changes = True
        self.schedule()

    def commit(self) -> None:
        """Hand over what the turn has gathered."""
        if not self._has_changes:
            return
        self._has_changes = False
        for table in self._tables:
            if table.hand_over():
                self._queue.put(table)

    def put(self, work: Writing) -> None:
        """Have this done by the thread, in turn."""
        self._queue.put(work)

    def step(self) -> bool:
        """Write one batch. Returns False if there is none. The thread does nothing but this and waiting."""
        try:
            table = self._queue.get_nowait()
        except Empty:
            return False
        if table is not None:
            self._write(table)
        return True

    def stop(self) -> None:
        """End the thread once it has written what was handed over. From now on nothing is late. May take a while.

        `settle` writes what was gathered since.
        """
        self.late = False
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def settle(self) -> None:
        """Write the changes that are left, and tell the requests that wait for them; after `stop`."""
        for table in self._tables:
            while table.settle():
                pass

    def _run(self) -> None:
        while (table := self._queue.get()) is not None:
            self._write(table)

    def _write(self, table: Writing) -> None:
        self.write_count += 1
        table.write()
        self._call_soon_threadsafe(table.finish)
