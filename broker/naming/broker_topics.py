"""The topics of one registered broker, as a name server keeps them.

A broker may have 200,000 topics. Changes that concern all of them are made in the network loop, so they may not walk
the table:

* **Write permission** is removed from, or returned to, all topics of a broker at once. The table counts these changes,
  and a topic keeps the count at which it was added. When a topic is read, the last removal and the last return apply to
  it if they came after it.
* **Forgetting** a broker drops its table, and `Leaving` frees the table piece by piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remoting.codes import Permission

__all__ = ["BrokerTopics", "Leaving", "QueueData"]

_READ_WRITE = int(Permission.READ | Permission.WRITE)
_NO_WRITE = ~int(Permission.WRITE)  # plain numbers: arithmetic with an enum costs a microsecond


class QueueData:
    """A topic's queues on one broker."""

    __slots__ = ("perm", "read_queue_nums", "since", "sys_flag", "write_queue_nums")

    def __init__(self, read_queue_nums: int, write_queue_nums: int, perm: int, sys_flag: int) -> None:
        self.read_queue_nums = read_queue_nums
        self.write_queue_nums = write_queue_nums
        self.perm = perm
        self.sys_flag = sys_flag
        self.since = 0

    def to_json(self, broker_name: str) -> dict[str, Any]:
        """Write it with Apache's names."""
        return {
            "brokerName": broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> QueueData:
        """Read a topic configuration or a QueueData; raises TypeError, ValueError or AttributeError."""
        numbers = (
            int(document.get("readQueueNums", 16)),
            int(document.get("writeQueueNums", 16)),
            int(document.get("perm", _READ_WRITE)),
            int(document.get("topicSysFlag") or document.get("topicSynFlag") or 0),
        )
        for number in numbers:
            if not -(1 << 31) <= number < 1 << 31:  # routes are JSON, which cannot hold such a number
                raise ValueError(f"not an int32: {number}")
        return cls(*numbers)


class BrokerTopics:
    """One broker's topics. Every method takes the time of one topic.

    >>> topics = BrokerTopics()
    >>> topics.put("T", QueueData(4, 4, 6, 0))
    >>> topics.set_writable(False); topics.get("T").perm
    4
    >>> topics.put("U", QueueData(4, 4, 6, 0)); topics.get("U").perm
    6
    """

    __slots__ = ("_changes", "_given_back", "_taken", "table")

    def __init__(self) -> None:
        self.table: dict[str, QueueData] = {}
        self._changes = 0
        self._taken = 0
        self._given_back = 0

    def put(self, topic: str, data: QueueData) -> None:
        """Add or replace a topic, with its own permission."""
        data.since = self._changes
        self.table[topic] = data

    def get(self, topic: str) -> QueueData | None:
        """Answer with a topic's queues as they are now."""
        data = self.table.get(topic)
        if data is not None and data.since < self._changes:
            if data.since < self._given_back:
                data.perm = _READ_WRITE
            if self._taken > max(data.since, self._given_back):
                data.perm &= _NO_WRITE
            data.since = self._changes
        return data

    def set_writable(self, writable: bool) -> None:
        """Take the write permission from all topics that are there, or make all of them readable and writable."""
        self._changes += 1
        if writable:
            self._given_back = self._changes
        else:
            self._taken = self._changes


class Leaving:
    """Tables of brokers that are gone. Freeing 200,000 entries at once would hold the loop for tens of milliseconds.

    Each entry added to a table frees two of these, so there are never more of them than there were topics. A timer
    frees the rest.
    """

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: list[dict[str, QueueData]] = []

    def add(self, table: dict[str, QueueData]) -> None:
        """Add a table that nobody reads any more."""
        if table:
            self._tables.append(table)

    def free(self, count: int) -> None:
        """Free some entries."""
        while count > 0 and self._tables:
            table = self._tables[-1]
            for _ in range(min(count, len(table))):
                table.popitem()
                count -= 1
            if not table:
                self._tables.pop()

    def __len__(self) -> int:
        return sum(map(len, self._tables))
