"""Offsets of consumer groups, one for each queue that a group reads: ``config/consumerOffset.json``.

Offsets are kept in memory and written every few seconds and at stop. A crash sets groups back by that much:
consumption is at least once. An offset may survive a power cut that the queue's last messages did not. Such an offset
is set to the queue's end; otherwise its group would skip the messages written there next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from broker.tables.json_files import DataVersion, JsonFile
from remoting.json_dialect import dumps
from store.disk.files import Files

__all__ = ["ConsumerOffsets"]

SEPARATOR = "@"


class ConsumerOffsets:
    """All groups' offsets. Only the network loop changes them.

    Args:
        files: The door to the disk.
        path: ``config/consumerOffset.json``.
        now_ms: The clock, for the table's version.
        count_max: Most offsets, of all groups in all queues (``maxConsumerOffsetNum``).
    """

    def __init__(self, files: Files, path: Path, now_ms: Callable[[], int], count_max: int = 500_000) -> None:
        self._file = JsonFile(files, path)
        self._now_ms = now_ms
        self.table: dict[str, dict[int, int]] = {}
        """``topic@group`` to queue id to the offset that is read next."""
        self.resets: dict[str, dict[int, int]] = {}
        """Offsets set by an administrator; the next pull of each queue is told its one."""
        self.pulled: dict[str, dict[int, int]] = {}
        """Offsets up to which the groups have pulled. They may be ahead of the committed ones."""
        self.data_version = DataVersion(now_ms())
        self.count_max = count_max
        self.count = 0
        """Offsets in ``table``."""
        self.pulled_count = 0
        """Offsets in ``pulled``."""
        self._dirty = False
        self._changes = 0  # of the names in ``table``
        self._by_topic: tuple[tuple[int, int], dict[str, list[str]]] = (
            (0, 0),
            {},
        )  # as of those changes and so many names
        self.on_reset: Callable[[str, str, Mapping[int, int]], object] = lambda *_: None
        """Told group, topic and targets of each `reset`."""
        self.forgotten = False
        """True if the file has offsets that were dropped since."""

    def load(self) -> None:
        """Read the file. Raises StoreCorruptError."""
        document = self._file.load()
        if document is None:
            return
        self.data_version.assign(document.get("dataVersion"))
        try:
            self.table = {
                name: {int(queue): int(offset) for queue, offset in queues.items()}
                for name, queues in self._file.table(document, "offsetTable").items()
                if name.count(SEPARATOR) == 1
            }
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            raise self._file.damage("offsetTable", f"offsetTable: {error}") from error
        self._changes += 1
        self._recount()

    def clamp(self, max_offset: Callable[[str, int], int]) -> list[str]:
        """Set offsets beyond their queue's end to the end; return a sentence for each."""
        found = []
        for name, queues in self.table.items():
            topic, _, group = name.partition(SEPARATOR)
            for queue_id, offset in queues.items():
                end = max_offset(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    found.append(f"group {group} had read {topic}-{queue_id} up to {offset}, set to its end {end}")
        self._dirty = self._dirty or bool(found)
        return found

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """Return the committed offset, or the one set by an administrator; -1 if there is none."""
        name = f"{topic}{SEPARATOR}{group}"
        reset = self.resets.get(name)
        if reset is not None and queue_id in reset:
            return reset[queue_id]
        queues = self.table.get(name)
        return -1 if queues is None else queues.get(queue_id, -1)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return a group's offsets in one topic as they are: queue id to offset."""
        return self.table.get(f"{topic}{SEPARATOR}{group}", {})

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Note how far a group has read a queue; False if there are too many offsets for one more.

        Negative offsets, which some clients send, are ignored.
        """
        if offset < 0:
            return True
        name = f"{topic}{SEPARATOR}{group}"
        queues = self.table.get(name)
        known = None if queues is None else queues.get(queue_id)
        if known == offset:
            return True
        if known is None:
            if self.count >= self.count_max:
                return False
            self.count += 1
            if queues is None:
                queues = self.table[name] = {}
                self._changes += 1
        assert queues is not None
        queues[queue_id] = offset
        self._dirty = True
        return True

    def full(self) -> str:
        """Why no offset of a queue that a group has not read before is taken; empty if there is room."""
        if self.count < self.count_max:
            return ""
        return f"there are {self.count} consumer offsets, at most {self.count_max} may be (maxConsumerOffsetNum)"

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note how far a group has pulled a queue."""
        name = f"{topic}{SEPARATOR}{group}"
        queues = self.pulled.get(name)
        if queues is None or queue_id not in queues:
            if self.pulled_count >= self.count_max:
                return  # what it has committed is shown then
            self.pulled_count += 1
            if queues is None:
                queues = self.pulled[name] = {}
        queues[queue_id] = offset

    def get_pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return how far a group has pulled, else what it has committed; -1 if neither is known."""
        queues = self.pulled.get(f"{topic}{SEPARATOR}{group}")
        offset = None if queues is None else queues.get(queue_id)
        return self.get(group, topic, queue_id) if offset is None else offset

    def reset(self, group: str, topic: str, targets: Mapping[int, int]) -> None:
        """Set offsets of queues from outside: stored, and told to the client that pulls each queue next."""
        name = f"{topic}{SEPARATOR}{group}"
        self.resets.setdefault(name, {}).update(targets)
        queues = self.table.setdefault(name, {})
        self._changes += 1
        self.count -= len(queues)
        queues.update(targets)
        self.count += len(queues)
        self._dirty = True
        self.on_reset(group, topic, targets)

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """True if a reset waits to be told."""
        return bool(self.resets) and queue_id in self.resets.get(f"{topic}{SEPARATOR}{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Take the reset that waits to be told to this queue's reader, if there is one."""
        if not self.resets:
            return None
        name = f"{topic}{SEPARATOR}{group}"
        queues = self.resets.get(name)
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self.resets[name]
        return offset

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's offsets in one topic: queue id to offset."""
        return dict(self.table.get(f"{topic}{SEPARATOR}{group}", {}))

    def topics_of_group(self, group: str) -> list[str]:
        """List the topics that a group has offsets in, sorted. Any thread."""
        end = f"{SEPARATOR}{group}"
        return sorted(name.removesuffix(end) for name in list(self.table) if name.endswith(end))

    def topics_of_groups(self) -> dict[str, list[str]]:
        """List the topics that each group has offsets in, sorted. Any thread."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.table):
            topic, _, group = name.partition(SEPARATOR)
            found.setdefault(group, []).append(topic)
        return found

    def groups_of_topic(self, topic: str) -> list[str]:
        """List the groups that have offsets in a topic, sorted. Any thread."""
        as_of = self._changes, len(self.table)
        if self._by_topic[0] != as_of:  # sorted anew for the first question after a change: hundreds come at once
            groups: dict[str, list[str]] = {}
            for name in list(self.table):
                of, _, group = name.partition(SEPARATOR)
                groups.setdefault(of, []).append(group)
            self._by_topic = as_of, groups
        return sorted(self._by_topic[1].get(topic, ()))

    def copies(self, source: str, target: str, topic: str = "") -> dict[str, dict[int, int]]:
        """Copy the offsets that a group has in a topic, or in all, under another group's names. Any thread."""
        table, found = self.table, {}
        for name in [topic] if topic else self.topics_of_group(source):
            queues = table.get(f"{name}{SEPARATOR}{source}")
            if queues is not None:
                found[f"{name}{SEPARATOR}{target}"] = dict(queues)
        return found

    def take_over(self, copies: Mapping[str, dict[int, int]]) -> None:
        """Put the result of `copies` into the table."""
        if copies:
            self.table.update(copies)
            self._changes += 1
            self._recount()
            self._dirty = True

    def forget_group(self, group: str) -> None:
        """Drop everything about a group."""
        end = f"{SEPARATOR}{group}"
        self._forget(lambda table: [name for name in table if name.endswith(end)])

    def forget_topic(self, topic: str) -> None:
        """Drop everything about a topic."""
        begin = f"{topic}{SEPARATOR}"
        self._forget(lambda table: [name for name in table if name.startswith(begin)])

    def _forget(self, unwanted: Callable[[Iterable[str]], list[str]]) -> None:
        gone = []
        for table in (self.table, self.resets, self.pulled):
            queues = [table.pop(name) for name in unwanted(table)]
            gone.append(sum(map(len, queues)))
            if queues:
                self._dirty = self.forgotten = True
                self._changes += 1
        self.count -= gone[0]
        self.pulled_count -= gone[2]

    def _recount(self) -> None:
        self.count = sum(map(len, self.table.values()))
        self.pulled_count = sum(map(len, self.pulled.values()))

    def to_json(self) -> dict[str, Any]:
        """Write table and version as Apache's file and GET_ALL_CONSUMER_OFFSET have them."""
        return {"dataVersion": self.data_version.to_json(), "offsetTable": self.table}

    def take_changes(self) -> bytes | None:
        """Serialize the table for `save_bytes` if anything changed since the last call; None otherwise. Any thread."""
        if not self._dirty:
            return None
        self._dirty = self.forgotten = False
        self.data_version.next(self._now_ms())
        return dumps(self.to_json())

    def save_bytes(self, data: bytes) -> None:
        """Replace the file; may be called from another thread. Raises StoreError."""
        self._file.replace(data)

    def save_failed(self) -> None:
        """Have the table written again by the next `take_changes`."""
        self._dirty = self.forgotten = True
