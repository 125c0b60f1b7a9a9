"""Subscription groups: what a consumer group may do, in ``config/subscriptionGroup.json``.

The connected members of a group are kept elsewhere: `broker.net.clients`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from broker.tables.json_files import DataVersion, JsonFile
from broker.tables.late_tables import LateTable
from broker.tables.table_writer import NotYetError, TableWriter, Waited
from broker.tables.topic_names import group_problem
from store.disk.files import Files

__all__ = ["GROUPS_MAX", "SYSTEM_GROUPS", "SubscriptionGroup", "SubscriptionGroups"]

SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""Groups that are there from the start, as in Apache's broker."""

GROUPS_MAX = 100_000
"""Most groups that administrators may make."""

_DEFAULTS: dict[str, Any] = {
    "groupName": "",
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True,
    "consumeMessageOrderly": False,
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "attributes": {},
}


class SubscriptionGroup:
    """The configuration of one group; never changed, only replaced. ``fields`` has everything, by Apache's names."""

    __slots__ = (
        "consume_broadcast_enable",
        "consume_enable",
        "fields",
        "group_sys_flag",
        "name",
        "notify_changes",
        "retry_max_times",
        "retry_queue_nums",
    )

    def __init__(self, name: str, fields: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.fields: dict[str, Any] = {**_DEFAULTS, **(fields or {}), "groupName": name}
        self.consume_enable = bool(self.fields["consumeEnable"])
        self.consume_broadcast_enable = bool(self.fields["consumeBroadcastEnable"])
        self.retry_queue_nums = int(self.fields["retryQueueNums"])
        self.retry_max_times = int(self.fields["retryMaxTimes"])
        self.notify_changes = bool(self.fields["notifyConsumerIdsChangedEnable"])
        self.group_sys_flag = int(self.fields["groupSysFlag"])

    def changed(self, **fields: Any) -> SubscriptionGroup:
        """Make a copy with some fields changed, by Apache's names."""
        return SubscriptionGroup(self.name, {**self.fields, **fields})

    def __repr__(self) -> str:
        return f"SubscriptionGroup({self.name!r}, {self.fields!r})"


class SubscriptionGroups:
    """All groups of this broker. Only the network loop changes it.

    Groups may be written late (see `broker.tables.late_tables`): then NotYetError carries the batch to wait for.

    Args:
        files: The door to the disk.
        path: ``config/subscriptionGroup.json``.
        now_ms: The clock, for the table's version.
        auto_create: Whether a group is made when it is first seen (``autoCreateSubscriptionGroup``).
        auto_create_max: With this many groups none is created automatically (``maxAutoCreateSubscriptionGroupNum``).
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        now_ms: Callable[[], int],
        *,
        auto_create: bool = True,
        auto_create_max: int = 10_000,
    ) -> None:
        self._file = JsonFile(files, path)
        self._now_ms = now_ms
        self._auto_create = auto_create
        self.auto_create_max = auto_create_max
        self.table: dict[str, SubscriptionGroup] = {name: SubscriptionGroup(name) for name in SYSTEM_GROUPS}
        self.forbidden: dict[str, dict[str, int]] = {}
        """Group to topic to bits: bit 2 forbids reading (``forbiddenTable``)."""
        self.data_version = DataVersion(now_ms())
        self.everywhere: Callable[[tuple[SubscriptionGroup, ...]], Waited] | None = None
        """Makes the groups that a request needs on all shards; None: only here."""
        self.on_delete: Callable[[str], object] = lambda _: None
        """Told of each group that is deleted."""
        self._late = LateTable(self.table, self._save_planned, self._planned_is_true)
        self._planned = self.data_version

    def written_by(self, writer: TableWriter) -> None:
        """Let this writer's thread write the table."""
        self._late.written_by(writer)

    @property
    def coming(self) -> int:
        """New groups that are being written."""
        return self._late.coming

    def set_auto_create(self, enabled: bool) -> None:
        """Change whether a group is made when it is first seen."""
        self._auto_create = enabled

    def load(self) -> None:
        """Read the file over the built-in groups. Raises StoreCorruptError."""
        document = self._file.load()
        if document is None:
            return
        self.data_version.assign(document.get("dataVersion"))
        for name, fields in self._file.table(document, "subscriptionGroupTable").items():
            try:
                self.table[name] = SubscriptionGroup(name, fields)
            except (OverflowError, TypeError, ValueError) as error:
                raise self._file.damage(name, f"group {name}: {error}") from error
        try:
            self.forbidden = {
                group: {topic: int(bits) for topic, bits in topics.items()}
                for group, topics in self._file.table(document, "forbiddenTable").items()
                if isinstance(topics, dict)
            }
        except (OverflowError, TypeError, ValueError) as error:
            raise self._file.damage("forbiddenTable", f"forbiddenTable: {error}") from error

    def get(self, name: str) -> SubscriptionGroup | None:
        """Return a known group; None if it is unknown."""
        return self.table.get(name)

    def find(self, name: str) -> SubscriptionGroup | None:
        """Return a group, made now if that is allowed; None if it is unknown and may not be made.

        Raises StoreError, or NotYetError while it is being written.
        """
        group = self.table.get(name)
        if group is None:
            self._late.wait_for(name)
            group = self.would_find(name)
            if group is not None:
                self._make(group)
        return group

    def create(self, names: Iterable[str]) -> None:
        """Make those of a heartbeat's groups that are unknown and may be made, with one write of the table.

        Raises NotYetError while it is being written.
        """
        room = self.auto_create_max - len(self.table) - self._late.coming
        new: dict[str, SubscriptionGroup] = {}
        under_way = None
        for name in names:
            if name in self.table or name in new:
                continue
            before = self._late.pending(name)
            if before is not None:
                under_way = before
            elif (group := self.would_find(name)) is not None:
                new[name] = group
        if new:
            self._make(*list(new.values())[:room])
        if under_way is not None:
            raise NotYetError(lambda: under_way)

    def would_find(self, name: str) -> SubscriptionGroup | None:
        """Return what `find` would, without making anything."""
        group = self.table.get(name)
        if group is None and self._auto_create and group_problem(name) is None and not self.full():
            group = SubscriptionGroup(name)
        return group

    def full(self) -> str:
        """Why no group is made when it is first seen, as a part of a remark; empty if there is room."""
        count = len(self.table) + self._late.coming
        if count < self.auto_create_max:
            return ""
        return (
            f" Unknown groups are no longer created: there are {count} groups "
            f"(limit maxAutoCreateSubscriptionGroupNum={self.auto_create_max})."
        )

    def put(self, *groups: SubscriptionGroup) -> None:
        """Create or replace groups; durable when it returns. Raises StoreError, and nothing has changed then."""
        with self._late.alone():
            before = {group.name: self.table.get(group.name) for group in groups}
            for group in groups:
                self.table[group.name] = group
            try:
                self._changed()
            except Exception:
                for name, known in before.items():
                    if known is None:
                        self.table.pop(name, None)
                    else:
                        self.table[name] = known
                raise

    def delete(self, name: str) -> bool:
        """Forget a group. Returns whether there was one. Raises StoreError."""
        self.on_delete(name)
        if name not in self.table:  # do not take the lock: the thread holds it as long as the disk takes
            self.forbidden.pop(name, None)
            return False
        with self._late.alone():
            group, forbidden = self.table.pop(name), self.forbidden.pop(name, None)
            try:
                self._changed()
            except Exception:
                self.table[name] = group
                if forbidden is not None:
                    self.forbidden[name] = forbidden
                raise
            return True

    def newest(self, name: str) -> SubscriptionGroup | None:
        """Return a group as it will be when all changes are written."""
        return self._late.newest(name)

    def write(self, groups: Mapping[str, SubscriptionGroup], then: Callable[[], Any]) -> None:
        """Create or replace groups. Raises StoreError; NotYetError if it is late, then ``then`` makes the reply."""
        if self._late.late:
            for name in groups:
                self._late.wait_for_end(name)
            raise NotYetError(lambda: self._late.change(groups), then)
        self.put(*groups.values())

    def forget_late(self, name: str, then: Callable[[], Any]) -> None:
        """Raise NotYetError if a group is forgotten late. ``then`` finds it gone, deletes the rest and replies."""
        if self._late.late:
            self._late.forget(name, then)

    def _make(self, *groups: SubscriptionGroup) -> None:
        """Make groups that a request needs. Raises StoreError, NotYetError."""
        if (everywhere := self.everywhere) is not None:
            raise NotYetError(lambda: everywhere(groups))
        if self._late.late:
            raise NotYetError(lambda: self._late.change({group.name: group for group in groups}))
        self.put(*groups)

    def may_read(self, group: str, topic: str) -> bool:
        """True if reading a topic is not forbidden to a group."""
        topics = self.forbidden.get(group)
        return topics is None or topics.get(topic, 0) & 4 == 0

    def to_json(self) -> dict[str, Any]:
        """Write tables and version as Apache's file and GET_ALL_SUBSCRIPTIONGROUP_CONFIG have them."""
        return {
            "dataVersion": self.data_version.to_json(),
            "forbiddenTable": self.forbidden,
            "subscriptionGroupTable": {name: group.fields for name, group in self.table.items()},
        }

    def save(self) -> None:
        """Write the file now. Raises StoreError."""
        self._file.save(self.to_json())

    def _save_planned(self, table: dict[str, SubscriptionGroup]) -> None:
        """Write the table as it will be, in the thread."""
        self._planned = self.data_version.after(self._now_ms())
        document = {
            "dataVersion": self._planned.to_json(),
            "forbiddenTable": {
                name: topics for name, topics in list(self.forbidden.items()) if name in table or name not in self.table
            },
            "subscriptionGroupTable": {name: group.fields for name, group in table.items()},
        }
        self._file.save_tables(document)

    def _planned_is_true(self, _names: list[str]) -> None:
        self.data_version.take(self._planned)

    def _changed(self) -> None:
        self.data_version.next(self._now_ms())
        self.save()
