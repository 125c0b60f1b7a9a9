"""Tables whose file is written in a thread: one write for all changes that come during another write.

A write of ``topics.json`` writes the whole table and takes two renames and three syncs: milliseconds to seconds. The
network loop must not stand still for it. So

1. changes are gathered during the turn. At its end the thread gets all of them as one batch. While a batch of the same
table is being written, changes form the next batch;
2. a change becomes visible in the table only when its file is durable. So no message is accepted for a topic that a
power cut takes away;
3. a processor that needs a name that does not exist yet raises `NotYetError`. The dispatcher keeps the request. When
the batch is written, it handles the kept requests again from the start, in order of arrival. So a processor must not
change anything before it raises. A request's changes are gathered only once it is kept: a request that is refused
because too many wait changes nothing. If a write fails, all requests that wait for it fail, and the table stays as it
was;
4. deleting a name deletes more than its entry (a topic's messages, for example). The request that deletes it does that
after the batch, and lets the thread do the long part (`LateTable.end`). A request that sets a name under deletion waits
until all of that is over.

Before `TableWriter.start` and after `TableWriter.stop` every change is written at once, in the loop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from broker.tables.table_writer import NotYetError, Outcome, TableBatch, TableWriter

__all__ = ["LateTable"]

K = TypeVar("K")
V = TypeVar("V")

_ENDS_MAX = 256
"""Most deleted names that are cleaned up in one piece of work: other tables wait for the thread meanwhile."""


class _Ending(Generic[K]):
    """The clean-up after a deleted name. The thread does it between two batches.

    A thousand topics may be deleted in a row, and each clean-up would sync all queues. So the first one whose turn it
    is also does the work of those that wait behind it.
    """

    __slots__ = ("_table", "batch", "key", "work")

    def __init__(self, table: LateTable[K, Any], key: K, work: Callable[[list[K]], object]) -> None:
        self.batch: TableBatch[K, Any] = TableBatch()
        self.batch.changes[key] = None
        self._table = table
        self.key = key
        self.work = work

    def write(self) -> None:
        """Do it, unless an earlier one has done it. Any thread. Raises nothing: `finish` tells the requests."""
        if self.batch.over:
            return
        group = self._table.ends_with(self)
        error = self._work_for(group)
        for ending in group:  # after an error each is tried alone: one name may be the only cause
            ending.batch.error = self._work_for([ending]) if error is not None and len(group) > 1 else error
            ending.batch.over = True

    def _work_for(self, group: list[_Ending[K]]) -> Outcome:
        try:
            self.work([ending.key for ending in group])
        except Exception as error:
            return error
        return None

    def finish(self) -> None:
        """Let the name be used again, and tell the requests that wait."""
        if self._table.ended(self.key, self):
            for waiting in self.batch.waiting:
                waiting(self.batch.error)


class LateTable(Generic[K, V]):
    """Changes of one table on their way to its file. Only the network loop uses it, except for `write`.

    Args:
        table: Name to value.
        save: Writes the table as it will be, given whole; called in the thread.
        changed: Told the names after a batch was applied.
        failed: Told that a batch could not be written.
    """

    def __init__(
        self,
        table: dict[K, V],
        save: Callable[[dict[K, V]], None],
        changed: Callable[[list[K]], None] = lambda _: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._table = table
        self._save = save
        self._changed = changed
        self._failed = failed
        self._writer: TableWriter | None = None
        self._lock = threading.RLock()  # held while the file is written; a listener may write at once, too
        self._gathering: TableBatch[K, V] | None = None
        self._writing: TableBatch[K, V] | None = None
        self._coming: set[K] = set()
        self._endings: dict[K, _Ending[K]] = {}
        self._ending_line: deque[_Ending[K]] = deque()  # the ones not begun, in order

    def written_by(self, writer: TableWriter) -> None:
        """Let changes be late once this writer is started."""
        self._writer = writer
        writer.add(self)

    @property
    def late(self) -> bool:
        """True if changes are gathered now; else they are written at once."""
        return self._writer is not None and self._writer.late

    @property
    def coming(self) -> int:
        """Names that are not in the table yet, but on their way."""
        return len(self._coming)

    def newest(self, key: K) -> V | None:
        """The value that a name will have when all that is on its way is written."""
        for batch in (self._gathering, self._writing):
            if batch is not None and key in batch.changes:
                return batch.changes[key]
        return self._table.get(key)

    def pending(self, key: K) -> TableBatch[K, V] | None:
        """The batch with the newest change of a name; None if none is on its way."""
        for batch in (self._gathering, self._writing):
            if batch is not None and key in batch.changes:
                return batch
        ending = self._endings.get(key)
        return None if ending is None else ending.batch

    def wait_for(self, key: K) -> None:
        """Raise NotYetError if a missing name is being made. The request waits for that batch, not for later changes.

        Once the name is in the table, others find it there. They must not overtake the request that waits.
        """
        writing = self._writing
        made = writing is not None and writing.changes.get(key) is not None
        batch = writing if made else self.pending(key)
        if batch is not None:
            raise NotYetError(lambda: batch)

    def wait_for_end(self, key: K) -> None:
        """Raise NotYetError if this name is being deleted, until its clean-up is over as well."""
        batch = self.pending(key)
        if batch is not None and batch.changes[key] is None:
            raise NotYetError(lambda: batch)

    def change(self, changes: Mapping[K, V | None]) -> TableBatch[K, V]:
        """Gather changes (None: the name is deleted). Returns their batch."""
        batch = self._gathering
        if batch is None:
            batch = self._gathering = TableBatch()
            if self._writer is not None:
                self._writer.changed()
        batch.changes.update(changes)
        self._coming.update(key for key, value in changes.items() if value is not None and key not in self._table)
        return batch

    def forget(self, key: K, then: Callable[[], Any]) -> None:
        """Have an entry deleted, or wait for it if it is being made. Always raises NotYetError.

        An entry that is being made stays in its batch. If it were taken out, the request that makes it would make it
        again, this one would delete it again, and so on.
        """
        batch = None if key in self._table else self.pending(key)
        raise NotYetError(lambda: batch or self.change({key: None}), then)

    def end(self, key: K, work: Callable[[list[K]], object]) -> TableBatch[K, V]:
        """Have the thread clean up after a deleted name. Nobody can make the name again until that is over.

        Several names with the same ``work`` are passed to it together. If that fails, it is called again for each.
        """
        ending = self._endings[key] = _Ending(self, key, work)
        self._ending_line.append(ending)
        if self._writer is not None:
            self._writer.put(ending)
        return ending.batch

    def ends_with(self, first: _Ending[K]) -> list[_Ending[K]]:
        """Take ``first`` and those behind it with the same work out of the line. The thread calls this."""
        group: list[_Ending[K]] = []
        line = self._ending_line
        while line and len(group) < _ENDS_MAX and (line[0] is first or line[0].work == first.work):
            group.append(line.popleft())
        return group

    def ended(self, key: K, ending: _Ending[K]) -> bool:
        """Let a name be used again. Returns whether it waited for this clean-up."""
        if self._endings.get(key) is not ending:
            return False
        del self._endings[key]
        return True

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Change and write the table at once, while the thread is kept out. It continues from the table left behind.

        A batch that the thread has written becomes visible here. So the requests that wait for it are told first:
        later ones find its names in the table and must not overtake them.
        """
        with self._lock:
            self.finish()
            yield

    def hand_over(self) -> bool:
        """Make the gathered changes the batch to write. Returns False if there are none or a batch is being written."""
        if self._writing is not None or self._gathering is None:
            return False
        self._writing, self._gathering = self._gathering, None
        return True

    def write(self) -> None:
        """Write the batch that was handed over. Any thread; raises nothing: `finish` tells the requests that wait."""
        with self._lock:
            batch = self._writing
            if batch is None or batch.over:
                return
            planned = dict(self._table)
            _change(planned, batch.changes)
            try:
                self._save(planned)
            except Exception as error:  # also for what cannot be written as JSON
                batch.error = error
            batch.over = True

    def finish(self) -> None:
        """Make the batch visible if it is written, and tell the requests that wait for it."""
        batch = self._writing
        if batch is None or not batch.over:
            return
        with self._lock:
            self._apply()
        self._writing = None
        rest = self._gathering
        self._coming = (
            set() if rest is None else {k for k, v in rest.changes.items() if v is not None and k not in self._table}
        )
        if rest is not None and self._writer is not None:
            self._writer.changed()
        if batch.error is not None:
            self._failed()
        told, batch.waiting = batch.waiting, []  # nobody is told twice: a listener may call `alone`, so `finish`
        for waiting in told:
            waiting(batch.error)

    def newest_items(self) -> dict[K, V]:
        """The table as it will be when all that is on its way is written."""
        items = dict(self._table)
        for batch in (self._writing, self._gathering):
            if batch is not None:
                _change(items, batch.changes)
        return items

    def settle(self) -> bool:
        """Write all pending changes in this thread. Returns whether there were any."""
        for ending in list(self._endings.values()):
            ending.write()
            ending.finish()
        if self._writing is None and not self.hand_over():
            return False
        self.write()
        self.finish()
        return True

    def _apply(self) -> None:
        """Change the table by a batch that is durable."""
        batch = self._writing
        if batch is None or not batch.over or batch.applied:
            return
        batch.applied = True
        if batch.error is None:
            _change(self._table, batch.changes)
            self._changed(list(batch.changes))


def _change(table: dict[Any, Any], changes: Mapping[Any, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
