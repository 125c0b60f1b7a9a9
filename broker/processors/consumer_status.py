"""INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): the offsets of each member of a group, as the members report them.

The broker asks all members at the same time (GET_CONSUMER_STATUS_FROM_CLIENT, 221) and combines their answers. Like
Apache's broker it leaves out members that do not answer in time, or answer with an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from broker.net.asides import Asides
from broker.net.channel import Channel
from broker.net.clients import ClientInfo, Clients
from broker.net.dispatcher import Dispatcher
from broker.net.processor import Handler
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.headers import need_str, opt_str
from remoting.json_dialect import dumps, loads_apart, queue_key, queue_map

__all__ = ["ConsumerStatusProcessor"]

_LOG = logging.getLogger(__name__)
_ASK_MS = 5_000
_TABLES_MAX_BYTES = 15 << 20
"""Most bytes of all members' answers together, so that they fit into one reply."""


class ConsumerStatusProcessor:
    """Asks the members of a group.

    Args:
        clients: The table of connected clients.
        dispatcher: Pushes requests to them.
        asides: Reads their answers, which may be long.
    """

    def __init__(self, clients: Clients, dispatcher: Dispatcher, asides: Asides) -> None:
        self._clients = clients
        self._asides = asides
        self._dispatcher = dispatcher

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status}

    async def status(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS; ``clientAddr`` names one member; empty for all."""
        topic, name = need_str(command.ext, "topic"), need_str(command.ext, "group")
        wanted = opt_str(command.ext, "clientAddr").strip()
        group = self._clients.consumers.get(name)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{name}]"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        members = [client for client in group.clients.values() if wanted in ("", client.client_id)]
        room = [_TABLES_MAX_BYTES]
        answers = await asyncio.gather(*(self._ask(client, topic, name, room) for client in members))
        tables = b",".join(
            dumps(client.client_id) + b":" + table
            for client, table in zip(members, answers, strict=True)
            if table is not None
        )
        return command.reply(body=b'{"consumerTable":{' + tables + b'},"messageQueueTable":{}}')

    async def _ask(self, client: ClientInfo, topic: str, group: str, room: list[int]) -> bytes | None:
        """One member's table of offsets by queue, in the form of Apache's body; None if the member sent none.

        ``room`` contains the number of bytes left for all members' answers.
        """
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            ext = {"topic": topic, "group": group}
            answer = await self._dispatcher.ask(client.channel, code, ext, timeout_ms=_ASK_MS)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            room[0] -= len(answer.body)
            if room[0] < 0:
                text = "the answers of consumer group %s have more than %d bytes, %s is left out"
                _LOG.warning(text, group, _TABLES_MAX_BYTES, client.client_id)
                return None
            return await self._asides.run(_table, answer.body)
        except (TimeoutError, OSError, ProtocolError, AttributeError) as error:
            _LOG.warning("consumer %s of group %s gave no status: %s", client.client_id, group, error)
            return None


def _table(body: bytes) -> bytes:
    """Read a member's table and write it in the form of Apache's body; any thread. May raise AttributeError, too."""
    pairs = queue_map(loads_apart(body).get("messageQueueTable") or {})
    return b"{" + b",".join(queue_key(*queue).encode() + b":" + dumps(value) for queue, value in pairs) + b"}"
