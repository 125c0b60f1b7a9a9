"""RECALL_MESSAGE (370): a sender recalls a timed message before it is delivered.

Apache's broker stores an order to delete the message and answers SUCCESS before it knows the result. Here the answer is
definite: SUCCESS means that the message will not be delivered, and was not delivered before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.net.channel import Channel
from broker.net.processor import Handler
from broker.turns.recall_handle import RecallHandle
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.headers import need_str
from remoting.messages.message import record_fields
from remoting.messages.properties import MSG_REGION, UNIQ_KEY, get_property
from store.disk.errors import StoreError
from store.put.pending_api import PendingName, PendingOrder, PendingPlugin, PendingVerb, PendingVerdict
from store.put.plugin_api import CommandOutcome, CommandResult, Plugin

if TYPE_CHECKING:
    from broker.tables.topics import Topics

__all__ = ["RecallProcessor"]

_NOBODY = 1
"""An offset that no message has."""
_OUTCOMES = {
    PendingVerdict.DONE: CommandOutcome.DONE,
    PendingVerdict.ALREADY: CommandOutcome.ALREADY_CANCELLED,
    PendingVerdict.TOO_LATE: CommandOutcome.ALREADY_DELIVERED,
    PendingVerdict.UNKNOWN: CommandOutcome.UNKNOWN,
}
"""A cancel without a version has no other verdict."""


class RecallProcessor:
    """Cancels timed messages by their handles.

    Args:
        topics: The broker's table.
        plugins: They keep timed messages.
        broker_name: As handles name it.
        region: ``regionId``, for replies.
        enabled: ``recallMessageEnable``.
    """

    def __init__(
        self, *, topics: Topics, plugins: Sequence[Plugin], broker_name: str, region: str, enabled: Callable[[], bool]
    ) -> None:
        self._topics = topics
        self._plugins = plugins
        self._broker_name = broker_name
        self._region = region
        self._enabled = enabled

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.RECALL_MESSAGE: self.recall}

    async def recall(self, _channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """RECALL_MESSAGE; the reply's ``msgId`` is the message's unique key."""
        topic, text = need_str(command.ext, "topic"), need_str(command.ext, "recallHandle")
        if not self._enabled():
            return self._reply(command, ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if self._topics.get(topic) is None:
            return self._reply(command, ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
        try:
            handle = RecallHandle.decode(text)
        except ProtocolError as error:
            return self._reply(command, ResponseCode.ILLEGAL_OPERATION, str(error))
        if handle.topic != topic:
            remark = f"recall failed, topic not match: the handle is of {handle.topic}, the request of {topic}"
            return self._reply(command, ResponseCode.ILLEGAL_OPERATION, remark)
        if handle.broker_name != self._broker_name:
            remark = f"recall failed, broker service not available: the handle is of broker {handle.broker_name}"
            return self._reply(command, ResponseCode.ILLEGAL_OPERATION, remark)
        try:
            result = await asyncio.to_thread(self._cancel, handle, now_ms)
        except StoreError as error:
            return self._reply(command, ResponseCode.SYSTEM_ERROR, f"recall failed, execute error: {error}")
        if result.outcome is CommandOutcome.DONE:
            return self._reply(command, ResponseCode.SUCCESS, None, handle.unique_key)
        if result.outcome is CommandOutcome.ALREADY_CANCELLED:
            return self._reply(command, ResponseCode.SUCCESS, "it was recalled before", handle.unique_key)
        return self._reply(command, ResponseCode.ILLEGAL_OPERATION, f"recall failed, {result.detail}")

    def _cancel(self, handle: RecallHandle, now_ms: int) -> CommandResult:
        """Ask the plug-ins, in a thread of its own: a cancel waits for the disk."""
        for plugin in self._plugins:
            record = plugin.view(handle.offset)
            if record is not None:
                topic, _, properties = record_fields(record)
                if topic != handle.topic or get_property(properties, UNIQ_KEY) != handle.unique_key:
                    break  # as if there were none: whose message it is, is nobody's business
            if isinstance(plugin, PendingPlugin):  # looks the message up and cancels it under one hold of the lock
                # 0 would say that topic and key name the message.
                offset = handle.offset or _NOBODY
                name = PendingName(offset=offset, topic=handle.topic, unique_key=handle.unique_key)
                answer = plugin.pending.change(PendingOrder(verb=PendingVerb.CANCEL, name=name), now_ms)
                result = CommandResult(_OUTCOMES[answer.verdict], answer.detail)
            else:
                result = plugin.cancel(handle.offset, now_ms)
            if result.outcome is not CommandOutcome.UNKNOWN:
                return result
        return CommandResult(CommandOutcome.UNKNOWN, "no message is pending under this handle")

    def _reply(
        self, command: RemotingCommand, code: ResponseCode, remark: str | None, message_id: str | None = None
    ) -> RemotingCommand:
        ext = {MSG_REGION: self._region}
        if message_id is not None:
            ext["msgId"] = message_id
        return command.reply(code, remark, ext)
