"""Topics: their configuration, which names are allowed, how one is made by the first send to it.

The table is one dictionary from name to an immutable `TopicConfig`; a change replaces the entry, writes
``config/topics.json`` and tells the listeners (registration with name servers, plug-ins). Messages carry what
permits them in two numbers that are worked out beforehand, so that the check of a send is two comparisons.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from broker.tables.json_files import DataVersion, JsonFile
from broker.tables.late_tables import LateTable, NotYetError, TableWriter
from remoting.codes import Permission, SysFlag
from store.disk.files import Files

__all__ = [
    "AUTO_CREATE_TOPIC",
    "DLQ_PREFIX",
    "HALF_TOPIC",
    "NOT_ALLOWED_TO_SEND",
    "OP_HALF_TOPIC",
    "RETRY_PREFIX",
    "SCHEDULE_TOPIC",
    "SYSTEM_PREFIX",
    "TIMER_TOPIC",
    "TOPICS_MAX",
    "TopicConfig",
    "Topics",
    "group_problem",
    "topic_problem",
]

_LOG = logging.getLogger(__name__)

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
SYSTEM_PREFIX = "rmq_sys_"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"

READ_WRITE = int(Permission.READ | Permission.WRITE)
_READ, _WRITE = int(Permission.READ), int(Permission.WRITE)  # plain: an enum's & costs a microsecond
NOT_ALLOWED_TO_SEND = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        TIMER_TOPIC,  # Apache lets clients write here, and stalls on what they write
    )
)
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED_TEXT = "^[%|a-zA-Z0-9_-]+$"
TOPICS_MAX = 100_000
"""Most topics that administrators may make: no reply could list more of them."""
_TOPIC_MAX = 127
_RETRY_TOPIC_MAX = 255
_GROUP_MAX = 120


def topic_problem(topic: str) -> str | None:
    """Say what is wrong with a topic's name, in Apache's words; None if nothing is."""
    if not topic.strip():
        return "The specified topic is blank."
    if _ALLOWED.fullmatch(topic) is None:
        return f"The specified topic: {topic}, contains illegal characters, allowing only {_ALLOWED_TEXT}"
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > _RETRY_TOPIC_MAX:
            return (
                f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than topic max length: "
                f"{_RETRY_TOPIC_MAX}"
            )
    elif len(topic) > _TOPIC_MAX:
        return f"The specified topic: {topic}, is longer than topic max length: {_TOPIC_MAX}"
    return None


def group_problem(group: str) -> str | None:
    """Say what is wrong with a group's name, in Apache's words; None if nothing is."""
    if not group.strip():
        return "The specified group is blank."
    if _ALLOWED.fullmatch(group) is None:
        return f"The specified group: {group}, contains illegal characters, allowing only {_ALLOWED_TEXT}"
    if len(group) > _GROUP_MAX:
        return f"The specified group: {group}, is longer than group max length: {_GROUP_MAX}"
    return None


class TopicConfig:
    """The configuration of one topic; never changed, only replaced.

    ``queue_limit`` is the first queue id that a send may not name: 0 for a topic that clients may not write.
    ``message_sys_flag`` is what its messages' sysflag has in addition. ``plain`` says that a send to it needs no more
    checks than its queue id: it is no retry topic, and not an ordered one.
    """

    __slots__ = (
        "attributes",
        "filter_type",
        "message_sys_flag",
        "name",
        "order",
        "perm",
        "plain",
        "queue_limit",
        "read_queue_nums",
        "sys_flag",
        "write_queue_nums",
    )

    def __init__(
        self,
        name: str,
        read_queue_nums: int = 16,
        write_queue_nums: int = 16,
        perm: int = READ_WRITE,
        *,
        sys_flag: int = 0,
        filter_type: str = "SINGLE_TAG",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.read_queue_nums = read_queue_nums
        self.write_queue_nums = write_queue_nums
        self.perm = perm
        self.sys_flag = sys_flag
        self.filter_type = filter_type
        self.order = order
        self.attributes = dict(attributes or {})
        open_to_clients = self.writable and name not in NOT_ALLOWED_TO_SEND
        self.queue_limit = max(read_queue_nums, write_queue_nums) if open_to_clients else 0
        self.plain = open_to_clients and not order and not name.startswith(RETRY_PREFIX)
        self.message_sys_flag = int(SysFlag.MULTI_TAGS) if filter_type == "MULTI_TAG" else 0

    @property
    def readable(self) -> bool:
        """Whether consumers may read it."""
        return self.perm & _READ != 0

    @property
    def writable(self) -> bool:
        """Whether it may be written."""
        return self.perm & _WRITE != 0

    def queue_for(self, queue_id: int) -> int:
        """The queue for what was accepted for ``queue_id``, maybe when the topic had more of them.

        The same one while a send may name it. Else one that is both written and read today, always the same one for
        the same ``queue_id``, so that what was in order stays so.

        >>> TopicConfig("T", read_queue_nums=4, write_queue_nums=4).queue_for(6)
        2
        >>> TopicConfig("T", read_queue_nums=8, write_queue_nums=4).queue_for(6)
        6
        """
        queues = max(self.read_queue_nums, self.write_queue_nums)
        if queue_id < queues or queues <= 0:
            return queue_id
        return queue_id % (min(self.read_queue_nums, self.write_queue_nums) or queues)

    def changed(self, **fields: Any) -> TopicConfig:
        """Make a copy with some fields changed."""
        same = {
            "name": self.name,
            "read_queue_nums": self.read_queue_nums,
            "write_queue_nums": self.write_queue_nums,
            "perm": self.perm,
            "sys_flag": self.sys_flag,
            "filter_type": self.filter_type,
            "order": self.order,
            "attributes": self.attributes,
        }
        return TopicConfig(**{**same, **fields})

    def to_json(self) -> dict[str, Any]:
        """Write it with Apache's names."""
        return {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], name: str = "") -> TopicConfig:
        """Read it; what is missing has Apache's defaults. Raises ValueError or TypeError."""
        return cls(
            str(document.get("topicName") or name),
            int(document.get("readQueueNums", 16)),
            int(document.get("writeQueueNums", 16)),
            int(document.get("perm", READ_WRITE)),
            sys_flag=int(document.get("topicSysFlag") or 0),
            filter_type=str(document.get("topicFilterType") or "SINGLE_TAG"),
            order=bool(document.get("order")),
            attributes={str(key): str(value) for key, value in (document.get("attributes") or {}).items()},
        )

    def __repr__(self) -> str:
        return (
            f"TopicConfig [topicName={self.name}, readQueueNums={self.read_queue_nums}, "
            f"writeQueueNums={self.write_queue_nums}, perm={perm_text(self.perm)}, "
            f"topicFilterType={self.filter_type}, topicSysFlag={self.sys_flag}, order={str(self.order).lower()}, "
            f"attributes={self.attributes}]"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicConfig) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.name)


def perm_text(perm: int) -> str:
    """Write permission bits as Apache prints them: ``RW-``."""
    return "".join(letter if perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))


class Topics:
    """All topics of this broker. Only the network loop changes it; `get` may be called from any thread.

    What is made for a request may be late (see `broker.tables.late_tables`): then NotYetError says for what to wait.

    Args:
        files: The door to the disk.
        path: ``config/topics.json``.
        now_ms: The clock, for the table's version.
        cluster_name, broker_name: These are topics too.
        auto_create: Whether a send to an unknown topic makes it (``autoCreateTopicEnable``).
        default_queue_nums: Queues of TBW102, the most that such a topic gets.
        auto_create_max: So many topics, of all kinds, beyond which a send makes no more (``maxAutoCreateTopicNum``).
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
        self.before_save: Callable[[], None] = lambda: None
        """Called before the file is written, by whoever writes it. What it raises fails the change."""
        self._late = LateTable(self.table, self._save_planned, self._planned_is_true)
        self._planned = self.data_version
        system = _system_topics(cluster_name, broker_name, default_queue_nums if auto_create else 0, trace_topic)
        for config in system:
            self.table[config.name] = config
        self._system = frozenset(self.table) | NOT_ALLOWED_TO_SEND | {AUTO_CREATE_TOPIC, "RMQ_SYS_TRACE_TOPIC"}

    def set_auto_create(self, enabled: bool, queue_nums: int) -> None:
        """Change whether a send to an unknown topic makes it, and with how many queues at most. Raises StoreError.

        That counts at once, though the file may be written later: a start takes it from the configuration.
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
        """Take in topics that have messages but no configuration, given as (topic, queues); return their names."""
        lost = [(name, queues) for name, queues in on_disk if name not in self.table]
        for name, queues in lost:
            self.table[name] = TopicConfig(name, queues, queues)
        if lost:
            self._changed({name: None for name, _ in lost})
        return [name for name, _ in lost]

    def get(self, name: str) -> TopicConfig | None:
        """Answer with a topic's configuration, None for an unknown topic."""
        return self.table.get(name)

    def queue_for(self, name: str, queue_id: int) -> int:
        """Say to which queue of a topic goes what was accepted for this one. Any thread."""
        config = self.table.get(name)
        return queue_id if config is None else config.queue_for(queue_id)

    def newest(self, name: str) -> TopicConfig | None:
        """Answer with a topic's configuration as it will be when all changes are written."""
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
        """Forget a topic; whether there was one. Its messages are the store's business. Raises StoreError."""
        if name not in self.table:
            return False  # without a look at the lock: the thread holds it as long as the disk takes
        with self._late.alone():
            config = self.table.pop(name, None)
            if config is None:
                return False
            self._changed({name: config})
            return True

    def write(self, configs: Mapping[str, TopicConfig], then: Callable[[], Any]) -> None:
        """Create or replace topics. Raises StoreError, or NotYetError: then ``then`` makes the reply."""
        if self._late.late:
            for name in configs:
                self._late.wait_for_end(name)
            raise NotYetError(lambda: self._late.change(configs), then)
        self.put(*configs.values())

    def forget_late(self, name: str, then: Callable[[], Any]) -> None:
        """Raise NotYetError if forgetting a topic is late: ``then``, which deletes it, finds it gone and replies."""
        if self._late.late:
            self._late.forget(name, then)

    def end(self, name: str, work: Callable[[list[str]], object], then: Callable[[], Any]) -> None:
        """Do what goes with a topic that is forgotten. Raises what it raises, or NotYetError: then ``then`` replies.

        ``work`` may get other topics that go at the same time along with this one.
        """
        if not self._late.late:
            work([name])
            return
        self._late.wait_for_end(name)
        raise NotYetError(lambda: self._late.end(name, work), then)

    def next_version(self, failed: Callable[[], object]) -> None:
        """Let the table have a new version. Raises StoreError; if it is late, ``failed`` is called instead."""
        if not self._late.late:
            self.put()
            return

        def told(error: Exception | None) -> None:
            _log_failure(error)
            if error is not None:
                failed()

        self._late.change({}).waiting.append(told)

    def have(self, config: TopicConfig) -> bool:
        """Whether a topic that the broker itself needs is there; if not, it is made. Raises StoreError."""
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
        if self._late.late:
            raise NotYetError(lambda: self._late.change({config.name: config for config in configs}))
        self.put(*configs)

    def create_for_send(self, name: str, default_topic: str, queue_nums: int, sys_flag: int = 0) -> TopicConfig | None:
        """Make the topic of a first send from the default topic that the sender names; None if that is not allowed."""
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
            f" None is made for a send any more: there are {count} topics, {self.auto_create_max} are the "
            "most for that (maxAutoCreateTopicNum)."
        )

    def create_for_group(self, name: str, queue_nums: int, sys_flag: int = 0, order: bool = False) -> TopicConfig:
        """Make a retry or dead-letter topic unless it is there."""
        self.create_for_groups([(name, queue_nums, sys_flag, order)])
        return self.table[name]

    def create_for_groups(self, wanted: Iterable[tuple[str, int, int, bool]]) -> None:
        """The same for several (name, queues, sys flag, order), with one write of the table."""
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
        """Whether a topic belongs to the broker, not to users."""
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
        """Write the file after a change, or undo the change: what a restart forgets must not take a message."""
        self.data_version.next(self._now_ms())
        try:
            self.before_save()
            self.save()
        except Exception:  # also for what cannot be written: no change after it could be
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
    """List what Apache's broker makes at start; topics of POP consumption, which is not served, are left out."""
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
