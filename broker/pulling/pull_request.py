"""One pull, and the limits of all that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.net.channel import Channel
from remoting.command import RemotingCommand
from remoting.filters.sql_filter import PropertyFilter
from remoting.filters.subscription import TagFilter
from remoting.headers import PullHeader

if TYPE_CHECKING:
    pass

__all__ = ["PullLimits", "PullRequest"]

_WAITING_BYTES = 2_000  # about the bytes of a waiting pull: header, hold or task, closures
_TAG_BYTES, _SQL_CHAR_BYTES = 100, 150  # bytes of a filter for each tag, and for each character of SQL92


class PullLimits:
    """Most messages and bytes of one pull: from memory, and from the disk."""

    __slots__ = ("cold_bytes", "cold_count", "hot_bytes", "hot_count")

    def __init__(
        self, hot_count: int = 32, hot_bytes: int = 262_144, cold_count: int = 8, cold_bytes: int = 65_536
    ) -> None:
        self.hot_count = hot_count
        self.hot_bytes = hot_bytes
        self.cold_count = cold_count
        self.cold_bytes = cold_bytes


class PullRequest:
    """One pull under way: the request and its state."""

    __slots__ = ("at", "channel", "command", "filter", "group_sys_flag", "header", "size", "topic_sys_flag", "wants")

    def __init__(
        self,
        channel: Channel,
        command: RemotingCommand,
        header: PullHeader,
        wanted: TagFilter | PropertyFilter,
        topic_sys_flag: int,
        group_sys_flag: int,
    ) -> None:
        self.channel = channel
        self.command = command
        self.header = header
        self.filter: TagFilter | None = None
        self.wants: PropertyFilter | None = None
        if not isinstance(wanted, TagFilter):
            self.wants = wanted
        elif wanted.codes is not None:
            self.filter = wanted
        self.topic_sys_flag = topic_sys_flag
        self.group_sys_flag = group_sys_flag
        self.at = header.offset  # the entries before it have been looked at
        self.size = 0  # about the bytes it keeps while it waits

    def keep_little(self) -> int:
        """Release the data that the answer does not need; return about how many bytes are left."""
        if self.size:
            return self.size
        command, header = self.command, self.header
        self.command = RemotingCommand(
            command.code,
            command.opaque,
            command.flag,
            command.language,
            command.version,
            serialize_type=command.serialize_type,
        )
        self.size = _WAITING_BYTES
        if header.subscription:  # the request's own subscription, not the group's
            tags = 0 if self.filter is None or self.filter.codes is None else len(self.filter.codes)
            self.size += tags * _TAG_BYTES
            self.size += 0 if self.wants is None else len(header.subscription) * _SQL_CHAR_BYTES
        header.subscription = header.expression_type = ""
        return self.size
