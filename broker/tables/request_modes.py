"""`RequestModes`: whether a group pulls a topic or pops it, in ``config/messageRequestMode.json``.

Consumers of Apache's remoting client that leave balancing to the broker (``clientRebalance=false``) ask for their
queues. The reply has the mode with each; ``mqadmin setConsumeMode`` sets it. A pair without a mode has the broker's
default (``defaultMessageRequestMode``). As with Apache, a mode outlives the topic and the group it was set for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.tables.json_files import JsonFile
from broker.tables.late_tables import LateTable
from broker.tables.table_writer import NotYetError, TableWriter
from store.disk.files import Files

__all__ = ["MODES_MAX", "POP", "PULL", "Mode", "RequestModes"]

PULL, POP = "PULL", "POP"
MODES_MAX = 100_000
"""Most pairs of topic and group with a mode."""

Mode = tuple[str, int]
"""`PULL` or `POP`, and popShareQueueNum: how many other members' queues a member pops besides its own."""
_Pair = tuple[str, str]


class RequestModes:
    """The modes of all pairs of topic and group. Only the network loop changes it.

    Args:
        files: The door to the disk.
        path: ``config/messageRequestMode.json``.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._file = JsonFile(files, path)
        self.table: dict[_Pair, Mode] = {}
        self._late = LateTable(self.table, self._save)

    def written_by(self, writer: TableWriter) -> None:
        """Let this writer's thread write the table."""
        self._late.written_by(writer)

    @property
    def count(self) -> int:
        """Pairs with a mode, those that are being written included."""
        return len(self.table) + self._late.coming

    def load(self) -> None:
        """Read the file. Raises StoreCorruptError."""
        topics = self._file.table(self._file.load() or {}, "messageRequestModeMap")
        for topic, groups in topics.items():
            try:
                for group, fields in groups.items():
                    mode = str(fields.get("mode") or PULL)
                    if mode not in (PULL, POP):
                        raise ValueError(f"mode is {mode:.80}, {PULL} or {POP} are possible")
                    self.table[topic, group] = mode, int(fields.get("popShareQueueNum") or 0)
            except (AttributeError, OverflowError, TypeError, ValueError) as error:
                raise self._file.damage(topic, f"topic {topic}: {error}") from error

    def get(self, topic: str, group: str) -> Mode | None:
        """The mode of a pair; None if none was set."""
        return self.table.get((topic, group))

    def is_full(self, topic: str, group: str) -> bool:
        """True if there is no room for a mode of this pair."""
        return self.count >= MODES_MAX and self._late.newest((topic, group)) is None

    def put(self, topic: str, group: str, mode: Mode, then: Callable[[], Any]) -> None:
        """Set a mode; durable when it returns.

        Raises StoreError; NotYetError if it is late, then ``then`` makes the reply.
        """
        if self._late.late:
            raise NotYetError(lambda: self._late.change({(topic, group): mode}), then)
        batch = self._late.change({(topic, group): mode})
        self._late.settle()
        if batch.error is not None:
            raise batch.error

    @staticmethod
    def to_json(table: dict[_Pair, Mode]) -> dict[str, Any]:
        """Write a table as Apache's file and GET_ALL_MESSAGE_REQUEST_MODE have it.

        >>> RequestModes.to_json({("T", "G"): ("POP", 8)})["messageRequestModeMap"]["T"]["G"]["mode"]
        'POP'
        """
        topics: dict[str, dict[str, Any]] = {}
        for (topic, group), (mode, share) in table.items():
            fields = {"consumerGroup": group, "mode": mode, "popShareQueueNum": share, "topic": topic}
            topics.setdefault(topic, {})[group] = fields
        return {"messageRequestModeMap": topics}

    def _save(self, table: dict[_Pair, Mode]) -> None:
        self._file.save_tables(self.to_json(table))
