"""Looking messages up: VIEW_MESSAGE_BY_ID (33), QUERY_MESSAGE (12).

An id names a position: in the CommitLog, or (at or above 2**62) a virtual one that a plug-in gave to a message that it
holds. While the message is pending the plug-in finds it, afterwards the store's index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.access.access_table import May, everybody_may
from broker.access.acl_rules import SUB
from broker.access.stored_access import meant_topic
from broker.net.channel import Channel
from broker.net.processor import Handler
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import QueryMessageHeader, need_long
from remoting.messages.message import decode_record
from store.disk.delay_id import DELAY_ID_BASE

if TYPE_CHECKING:
    from store.message_store import MessageStore
    from store.put.plugin_api import Plugin

__all__ = ["QueryProcessor"]

_BODY_MAX_BYTES = 15 << 20


class QueryProcessor:
    """Answers look-ups in a thread, not in the network loop, because they may read from the disk.

    Args:
        store: Where messages are.
        plugins: Know the pending messages.
        max_unique: Most messages returned for a unique key (``defaultQueryMaxNum``).
        may: Tells whether the client may read the message that was found.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        plugins: Sequence[Plugin],
        max_unique: int = 32,
        may: May = everybody_may,
    ) -> None:
        self._store = store
        self._may = may
        self._plugins = tuple(plugins)
        self._max_unique = max_unique

    def set_max_unique(self, count: int) -> None:
        """Change the most messages returned for a unique key."""
        self._max_unique = count

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.VIEW_MESSAGE_BY_ID: self.view, RequestCode.QUERY_MESSAGE: self.query}

    def view(
        self,
        channel: Channel,
        command: RemotingCommand,
        _now_ms: int,
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """VIEW_MESSAGE_BY_ID: one message by its position."""
        return self._view(channel, command, need_long(command.ext, "offset"))

    def query(
        self,
        _: Channel,
        command: RemotingCommand,
        _now_ms: int,
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """QUERY_MESSAGE: messages of a topic by a key."""
        return self._query(command, QueryMessageHeader(command.ext))

    def find(self, offset: int) -> bytes | None:
        """Find a record by its position, real or virtual; may read from the disk. Any thread."""
        if offset < 0:
            return None
        if offset < DELAY_ID_BASE:
            return self._store.find_record(offset)
        # The plug-ins come first: a message that is delivered in between is then found in the store.
        for plugin in self._plugins:
            record = plugin.view(offset)
            if record is not None:
                return record
        return self._store.find_delivered(offset)

    async def _view(self, channel: Channel, command: RemotingCommand, offset: int) -> RemotingCommand:
        record = await asyncio.to_thread(self.find, offset)
        if record is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        if self._may is not everybody_may:
            refusal = self._may(channel, command, [(meant_topic(decode_record(record)), SUB)])
            if refusal is not None:
                return refusal
        return command.reply(body=record)

    async def _query(self, command: RemotingCommand, header: QueryMessageHeader) -> RemotingCommand:
        if header.max_count < 0:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"maxNum is {header.max_count}: 0 or more is possible")
        most = self._max_unique if header.unique else min(header.max_count, 1_000)
        records = []
        if most:
            records = await asyncio.to_thread(
                self._store.query, header.topic, header.key, most, header.begin_ms, header.end_ms, _BODY_MAX_BYTES
            )
        ext = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": str(self._store.commit_log.end)}
        if not records:
            remark = "can not find message, maybe time range not correct"
            return command.reply(ResponseCode.QUERY_NOT_FOUND, remark, ext)
        return command.reply(ext=ext, body=b"".join(records))
