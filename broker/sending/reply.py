"""Request-reply: SEND_REPLY_MESSAGE (324, V2: 325) is forwarded as PUSH_REPLY_MESSAGE_TO_CLIENT (326).

A request is an ordinary message with CORRELATION_ID and REPLY_TO_CLIENT. Its consumer sends the reply to
``<cluster>_REPLY_TOPIC`` with the same two properties. The broker pushes it over the connection of the last heartbeat
of a producer with that client id; only that client knows which CORRELATION_ID it waits for. The sender of the reply
gets the result:

==================================================  ===============================================================
the requester took it                               SUCCESS
REPLY_TO_CLIENT is missing, or names nobody         SYSTEM_ERROR, at once
the requester refuses it, goes, or says nothing     SYSTEM_ERROR, after at most `PUSH_TIMEOUT_MS`
==================================================  ===============================================================

With ``storeReplyMessageEnable`` the reply is stored in its topic as well, whether or not it was taken, and the answer
carries its id. Topic and queue are checked first, as for any send.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from broker.access.access_table import May, everybody_may
from broker.access.acl_rules import PUB
from broker.net.channel import Channel, peer_text
from broker.net.dispatcher import Dispatcher
from broker.net.processor import Handler
from broker.net.remarks import NUL, nul_in_properties
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import SendHeader
from remoting.messages.message import Message, MessageError
from remoting.messages.properties import (
    OWN_PROPERTIES,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    get_property,
    remove_properties,
    with_property,
)
from store.put.plugin_api import PutResult, PutStatus

if TYPE_CHECKING:
    from broker.net.clients import Clients
    from broker.tables.topic_config import TopicConfig
    from broker.turns.turn import Turn

__all__ = ["PUSH_TIMEOUT_MS", "ReplyProcessor"]

_LOG = logging.getLogger(__name__)
PUSH_TIMEOUT_MS = 10_000
_BROKERS_OWN = 0xCC
"""Bits of sysFlag that a stored reply must not have: a transaction's, which would keep it from its queue, and those of
an inner batch."""
_STORED = (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)
Admit = Callable[[Channel, RemotingCommand, SendHeader], "tuple[TopicConfig, int] | RemotingCommand"]


class ReplyProcessor:
    """Forwards replies to the requesters.

    Args:
        admit: Checks topic and queue as of any send: both, or the refusal.
        clients: Who is connected.
        dispatcher: Pushes the reply and hears the answer.
        turn: Where replies are gathered that are stored.
        now_ms: The clock; a push takes time.
        may_store: ``storeReplyMessageEnable``.
        address: The broker's own, which requesters are shown as the place where the reply was stored.
        max_message_bytes: Longest body.
        reply_topic: The cluster's own. Who may not write it answers nobody, whatever topic a reply names.
        may: Says whether the asker may write it.
    """

    def __init__(
        self,
        *,
        admit: Admit,
        clients: Clients,
        dispatcher: Dispatcher,
        turn: Turn,
        now_ms: Callable[[], int],
        may_store: Callable[[], bool],
        address: str,
        max_message_bytes: int,
        reply_topic: str,
        may: May = everybody_may,
    ) -> None:
        self._admit = admit
        self._clients = clients
        self._dispatcher = dispatcher
        self._turn = turn
        self._now_ms = now_ms
        self._may_store = may_store
        self._address = address
        self._max_message_bytes = max_message_bytes
        self._reply_topic = reply_topic
        self._may = may
        self.pushed_count = 0
        self.failed_count = 0

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.SEND_REPLY_MESSAGE: self.send_v1, RequestCode.SEND_REPLY_MESSAGE_V2: self.send_v2}

    def send_v1(
        self, channel: Channel, command: RemotingCommand, _now_ms: int
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand | None]:
        """SEND_REPLY_MESSAGE, with header fields by their long names."""
        return self._send(channel, command, SendHeader.from_v1(command.ext))

    def send_v2(
        self, channel: Channel, command: RemotingCommand, _now_ms: int
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand | None]:
        """SEND_REPLY_MESSAGE_V2, with header fields of one letter."""
        return self._send(channel, command, SendHeader.from_v2(command.ext))

    def _send(
        self, channel: Channel, command: RemotingCommand, header: SendHeader
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand | None]:
        admitted = self._admit(channel, command, header)
        if isinstance(admitted, RemotingCommand):
            return admitted
        if header.topic != self._reply_topic:
            refusal = self._may(channel, command, [(self._reply_topic, PUB)])
            if refusal is not None:
                return refusal
        if len(command.body) > self._max_message_bytes:
            remark = f"the body has {len(command.body)} bytes"
            return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, remark)
        if NUL in header.properties:
            return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, nul_in_properties(header.properties))
        return self._push_and_store(channel, command, header, admitted[1])

    async def _push_and_store(
        self, channel: Channel, command: RemotingCommand, header: SendHeader, queue_id: int
    ) -> RemotingCommand | None:
        problem = await self._push(channel, command, header)
        if problem:
            self.failed_count += 1
            _LOG.warning("a reply of %s, group %s: %s", peer_text(channel), header.producer_group, problem)
        else:
            self.pushed_count += 1
        if not self._may_store():
            return self._answer(command, problem, "0", queue_id, 0)

        def answer(results: list[PutResult]) -> RemotingCommand:
            result = results[0]
            if result.status not in _STORED:
                _LOG.warning("a reply could not be stored: %s %s", result.status.name, result.remark)
                return self._answer(command, problem, "0", queue_id, 0)
            message_id = self._turn.message_id(result.offset)
            return self._answer(command, problem, message_id, queue_id, result.queue_offset)

        message = self._message(channel, command, header, queue_id)
        refusal = self._turn.put_request(channel, command, [message], answer, self._now_ms())
        if refusal is None:
            return None
        _LOG.warning("a reply could not be stored: %s", refusal.remark)
        return self._answer(command, problem, "0", queue_id, 0)

    async def _push(self, channel: Channel, command: RemotingCommand, header: SendHeader) -> str:
        """Push a reply to its requester; returns why that failed, or an empty text."""
        client_id = get_property(header.properties, REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        client = self._clients.find_producer(client_id)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._now_ms()
        ext = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_topic_queues),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_ms),
            "flag": str(header.flag),
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": str(header.unit_mode).lower(),
            "bornHost": peer_text(channel),
            "storeHost": self._address,
            "storeTimestamp": str(now_ms),
        }
        try:
            ext["properties"] = with_property(header.properties, PUSH_REPLY_TIME, str(now_ms))
            code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
            told = await self._dispatcher.ask(client.channel, code, ext, command.body, PUSH_TIMEOUT_MS)
        except (ConnectionError, TimeoutError, MessageError) as error:
            return f"push reply message to {client_id} fail. {str(error) or 'it did not answer in time'}"
        if told.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail. {told.remark or told.code}"
        return ""

    @staticmethod
    def _message(channel: Channel, command: RemotingCommand, header: SendHeader, queue_id: int) -> Message:
        properties = remove_properties(header.properties, OWN_PROPERTIES)
        if properties and properties[-1] != "\x02":
            properties += "\x02"
        return Message(
            header.topic,
            queue_id,
            header.flag,
            header.sys_flag & ~_BROKERS_OWN,
            header.born_ms,
            channel.state.born_host,
            header.reconsume_times,
            0,
            command.body,
            properties,
        )

    def _answer(
        self, command: RemotingCommand, problem: str, message_id: str, queue_id: int, queue_offset: int
    ) -> RemotingCommand:
        ext = {
            "msgId": message_id,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            **self._turn.reply_ext,
        }
        if problem:
            return command.reply(ResponseCode.SYSTEM_ERROR, problem, ext)
        return command.reply(ext=ext)

    def runtime_info(self) -> dict[str, str]:
        """Figures for GET_BROKER_RUNTIME_INFO."""
        return {"repliesPushed": str(self.pushed_count), "repliesNotPushed": str(self.failed_count)}
