"""Topics: the table of all topics of this broker, and how one is made by the first send to it.

The table is one dictionary from name to an immutable `TopicConfig`; a change replaces the entry, writes
``config/topics.json`` and tells the listeners (registration with name servers, plug-ins). Two fields of an entry are
computed in advance (``queue_limit`` and ``plain``), so that the check of a send is two comparisons.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from broker.tables.json_files import DataVersion, JsonFile
from broker.tables.late_tables import LateTable
from broker.tables.table_writer import NotYetError, TableWriter, Waited
from broker.tables.topic_config import READ_WRITE, TopicConfig
from broker.tables.topic_names import (
    AUTO_CREATE_TOPIC,
    HALF_TOPIC,
    NOT_ALLOWED_TO_SEND,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    TIMER_TOPIC,
)
from remoting.codes import Permission
from store.disk.files import Files

__all__ = ["TOPICS_MAX", "Topics"]

_LOG = logging.getLogger(__name__)


TOPICS_MAX = 100_000
"""Most topics that administrators may make: no reply could list more of them."""


class Topics:
    """All topics of this broker. Only the network loop changes it; `get` may be called from any thread.

    Topics may be written late (see `broker.tables.late_tables`): then NotYetError carries the batch to wait for.

    Args:
        files: The door to the disk.
        path: ``config/topics.json``.
        now_ms: The clock, for the table's version.
        cluster_name, broker_name: These are topics too.
        auto_create: Whether a send to an unknown topic makes it (``autoCreateTopicEnable``).
        default_queue_nums: Queues of TBW102, the most that such a topic gets.
        auto_create_max: With this many topics, of all kinds, a send creates no more (``maxAutoCreateTopicNum``).
            The retry and dead-letter topics of groups are made nevertheless: they are bounded by their groups.
        trace_topic: Name of the trace topic, if it is wanted.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        now_ms: Callable[[], int],
        *,
        cluster_name: str = "DefaultCluster",
        broker_name: str = "broker-a",
        auto_create: bool = True,
        default_queue_nums: int = 8,
        auto_create_max: int = 20_000,
        trace_topic: str | None = None,
    ) -> None:
        self._file = JsonFile(files, path)
        self._now_ms = now_ms
        self._auto_create = auto_create
        self.auto_create_max = auto_create_max
        self.table: dict[str, TopicConfig] = {}
        self.data_version = DataVersion(now_ms())
        self.listeners: list[Callable[[list[str]], None]] = []
        """Called with the names of the topics that changed, after each change."""
        self.everywhere: Callable[[tuple[TopicConfig, ...]], Waited] | None = None
        """Makes the topics that a request needs on all shards; None: only here."""
        self.before_save: Callable[[], None] = lambda: None
        """Called before the file is written, in the same thread. If it raises, the change fails."""
        self._late = LateTable(self.table, self._save_planned, self._planned_is_true)
        self._planned = self.data_version
        system = _system_topics(cluster_name, broker_name, default_queue_nums if auto_create else 0, trace_topic)
        for config in system:
            self.table[config.name] = config
        self._system = frozenset(self.table) | NOT_ALLOWED_TO_SEND | {AUTO_CREATE_TOPIC, "RMQ_SYS_TRACE_TOPIC"}

    def set_auto_create(self, enabled: bool, queue_nums: int) -> None:
        """Change whether a send to an unknown topic makes it, and with how many queues at most. Raises StoreError.

        The change counts at once, although the file may be written later: a start reads it from the configuration.
        """
        self._auto_create = enabled
        perm = READ_WRITE | int(Permission.INHERIT)
        config = TopicConfig(AUTO_CREATE_TOPIC, queue_nums, queue_nums, perm) if enabled else None
        if self._late.late:
            if config is None:
                self.table.pop(AUTO_CREATE_TOPIC, None)
            else:
                self.table[AUTO_CREATE_TOPIC] = config
            self._late.change({AUTO_CREATE_TOPIC: config}).waiting.append(_log_failure)
        elif config is None:
            self.delete(AUTO_CREATE_TOPIC)
        else:
            self.put(config)

    def load(self) -> None:
        """Read the file over the system topics. Raises StoreCorruptError."""
        document = self._file.load()
        if document is None:
            return
        self.data_version.assign(document.get("dataVersion"))
        for name, entry in self._file.table(document, "topicConfigTable").items():
            if name == AUTO_CREATE_TOPIC and not self._auto_create:
                continue
            try:
                self.table[name] = TopicConfig.from_json(entry, name)
            except (AttributeError, OverflowError, TypeError, ValueError) as error:
                raise self._file.damage(name, f"topic {name}: {error}") from error

    def adopt(self, on_disk: Iterable[tuple[str, int]]) -> list[str]:
        """Add topics that have messages but no configuration, given as (topic, queues). Returns their names."""
        lost = [(name, queues) for name, queues in on_disk if name not in self.table]
        for name, queues in lost:
            self.table[name] = TopicConfig(name, queues, queues)
        if lost:
            self._changed({name: None for name, _ in lost})
        return [name for name, _ in lost]

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic's configuration; None for an unknown topic. Any thread."""
        return self.table.get(name)

    def queue_for(self, name: str, queue_id: int) -> int:
        """The queue for a message that was accepted for ``queue_id``, see `TopicConfig.queue_for`. Any thread."""
        config = self.table.get(name)
        return queue_id if config is None else config.queue_for(queue_id)

    def newest(self, name: str) -> TopicConfig | None:
        """Return a topic's configuration as it will be when all changes are written."""
        return self._late.newest(name)

    @property
    def coming(self) -> int:
        """New topics that are being written."""
        return self._late.coming

    def written_by(self, writer: TableWriter) -> None:
        """Let this writer's thread write the table."""
        self._late.written_by(writer)

    def put(self, *configs: TopicConfig) -> None:
        """Create or replace topics; durable when it returns. Raises StoreError, and nothing has changed then."""
        with self._late.alone():
            before = {config.name: self.table.get(config.name) for config in configs}
            for config in configs:
                self.table[config.name] = config
            self._changed(before)

    def delete(self, name: str) -> bool:
        """Forget a topic; the caller deletes its messages. Returns whether there was one. Raises StoreError."""
        if name not in self.table:
            return False  # do not take the lock: the thread holds it as long as the disk takes
        with self._late.alone():
            config = self.table.pop(name, None)
            if config is None:
                return False
            self._changed({name: config})
            return True

    def write(self, configs: Mapping[str, TopicConfig], then: Callable[[], Any]) -> None:
        """Create or replace topics. Raises StoreError; NotYetError if it is late, then ``then`` makes the reply."""
        if self._late.late:
            for name in configs:
                self._late.wait_for_end(name)
            raise NotYetError(lambda: self._late.change(configs), then)
        self.put(*configs.values())

    def forget_late(self, name: str, then: Callable[[], Any]) -> None:
        """Raise NotYetError if a topic is forgotten late. ``then`` finds it gone, deletes the rest and replies."""
        if self._late.late:
            self._late.forget(name, then)

    def end(self, name: str, work: Callable[[list[str]], object], then: Callable[[], Any]) -> None:
        """Clean up after a forgotten topic. Raises what ``work`` raises; NotYetError if it is late: ``then`` replies.

        ``work`` gets a list of topics: others that are deleted at the same time may be in it.
        """
        if not self._late.late:
            work([name])
            return
        self._late.wait_for_end(name)
        raise NotYetError(lambda: self._late.end(name, work), then)

    def next_version(self, failed: Callable[[], object]) -> None:
        """Give the table a new version. Raises StoreError; if the write is late, ``failed`` is called instead."""
        if not self._late.late:
            self.put()
            return

        def told(error: Exception | None) -> None:
            _log_failure(error)
            if error is not None:
                failed()

        self._late.change({}).waiting.append(told)

    def have(self, config: TopicConfig) -> bool:
        """Make a topic that the broker itself needs, if it is missing. Returns whether it is there.

        Raises StoreError.
        """
        if config.name in self.table:
            return True
        if not self._late.late:
            self.put(config)
            return True
        if self._late.pending(config.name) is None:
            self._late.change({config.name: config}).waiting.append(_log_failure)
        return False

    def _make(self, *configs: TopicConfig) -> None:
        """Make topics that a request needs. Raises StoreError, NotYetError."""
        if (everywhere := self.everywhere) is not None:
            raise NotYetError(lambda: everywhere(configs))
        if self._late.late:
            raise NotYetError(lambda: self._late.change({config.name: config for config in configs}))
        self.put(*configs)

    def create_for_send(self, name: str, default_topic: str, queue_nums: int, sys_flag: int = 0) -> TopicConfig | None:
        """Make the topic of a first send after the default topic that the sender names; None if that is not allowed.

        Raises StoreError, or NotYetError while it is being written.
        """
        self._late.wait_for(name)
        model = self.table.get(default_topic)
        if model is None or not model.perm & Permission.INHERIT or self.full():
            return None
        queues = max(0, min(queue_nums, model.write_queue_nums))
        perm = model.perm & ~int(Permission.INHERIT)
        self._make(TopicConfig(name, queues, queues, perm, sys_flag=sys_flag, filter_type=model.filter_type))
        return self.table[name]

    def full(self) -> str:
        """Why a send makes no more topics, as a part of a remark; empty if there is room."""
        count = len(self.table) + self._late.coming
        if count < self.auto_create_max:
            return ""
        return (
            f" Sends no longer create topics: there are {count} topics "
            f"(limit maxAutoCreateTopicNum={self.auto_create_max})."
        )

    def create_for_group(self, name: str, queue_nums: int, sys_flag: int = 0, order: bool = False) -> TopicConfig:
        """Make a retry or dead-letter topic unless it is there."""
        self.create_for_groups([(name, queue_nums, sys_flag, order)])
        return self.table[name]

    def create_for_groups(self, wanted: Iterable[tuple[str, int, int, bool]]) -> None:
        """The same for several (name, queues, sys flag, order), with one write of the table.

        Raises NotYetError while one of them is being written.
        """
        new: list[TopicConfig] = []
        under_way = None
        for name, queue_nums, sys_flag, order in wanted:
            config = self.table.get(name)
            if config is not None and config.order == order:
                continue
            under_way = self._late.pending(name)
            if under_way is not None:
                continue
            if config is None:
                new.append(TopicConfig(name, queue_nums, queue_nums, sys_flag=sys_flag, order=order))
            else:
                new.append(config.changed(order=order))
        if new:
            self._make(*new)
        if under_way is not None:
            raise NotYetError(lambda: under_way)

    def is_system(self, name: str) -> bool:
        """True if a topic belongs to the broker, not to users."""
        return name in self._system or name.startswith(SYSTEM_PREFIX)

    def system_names(self) -> list[str]:
        """List the system topics' names, sorted."""
        return sorted(self._system)

    def to_json(self) -> dict[str, Any]:
        """Write table and version as Apache's file and GET_ALL_TOPIC_CONFIG have them."""
        return {
            "dataVersion": self.data_version.to_json(),
            "topicConfigTable": {name: config.to_json() for name, config in self.table.items()},
        }

    def save(self) -> None:
        """Write the file now. Raises StoreError."""
        self._file.save(self.to_json())

    def _save_planned(self, table: dict[str, TopicConfig]) -> None:
        """Write the table as it will be, in the thread."""
        self.before_save()
        self._planned = self.data_version.after(self._now_ms())
        document = {
            "dataVersion": self._planned.to_json(),
            "topicConfigTable": {name: config.to_json() for name, config in table.items()},
        }
        self._file.save_tables(document)

    def _planned_is_true(self, names: list[str]) -> None:
        self.data_version.take(self._planned)
        for listener in self.listeners:
            listener(names)

    def _changed(self, before: Mapping[str, TopicConfig | None]) -> None:
        """Write the file after a change, or undo the change: no message may go to a topic that a restart forgets."""
        self.data_version.next(self._now_ms())
        try:
            self.before_save()
            self.save()
        except Exception:  # also for a value that is no JSON: if it stayed, no later write could succeed
            for name, config in before.items():
                if config is None:
                    self.table.pop(name, None)
                else:
                    self.table[name] = config
            raise
        finally:
            for listener in self.listeners:
                listener(list(before))


def _log_failure(error: Exception | None) -> None:
    if error is not None:
        _LOG.error("topics.json cannot be written: %s", error)


def _system_topics(
    cluster_name: str, broker_name: str, auto_create_queues: int, trace_topic: str | None
) -> list[TopicConfig]:
    """List the topics that Apache's broker makes at start, except the internal topics of POP."""
    inherit = READ_WRITE | int(Permission.INHERIT)
    found = [
        TopicConfig("SELF_TEST_TOPIC", 1, 1),
        TopicConfig("BenchmarkTest", 1024, 1024),
        TopicConfig(cluster_name, 16, 16, inherit),
        TopicConfig(broker_name, 1, 1, inherit),
        TopicConfig("OFFSET_MOVED_EVENT", 1, 1),
        TopicConfig(SCHEDULE_TOPIC, 18, 18),
        TopicConfig(f"{cluster_name}_REPLY_TOPIC", 1, 1),
        TopicConfig(HALF_TOPIC, 1, 1),
        TopicConfig(OP_HALF_TOPIC, 1, 1),
        TopicConfig(TIMER_TOPIC, 1, 1),
    ]
    if auto_create_queues:
        found.append(TopicConfig(AUTO_CREATE_TOPIC, auto_create_queues, auto_create_queues, inherit))
    if trace_topic:
        found.append(TopicConfig(trace_topic, 1, 1))
    return found
