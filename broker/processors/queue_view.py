"""Administrators' look at the store: QUERY_CONSUME_QUEUE (321), GET_BROKER_HA_STATUS (907)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.net.channel import Channel
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import need_int, need_long, need_str, opt_str
from remoting.json_dialect import dumps

if TYPE_CHECKING:
    from broker.net.clients import Clients
    from broker.net.processor import Handler
    from store.message_store import MessageStore

__all__ = ["QueueViewProcessor"]

_COUNT_MAX = 1_000


class QueueViewProcessor:
    """Answers with the entries of a ConsumeQueue, and with a status that has no slaves."""

    def __init__(self, *, store: MessageStore, clients: Clients) -> None:
        self._store = store
        self._clients = clients

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            RequestCode.QUERY_CONSUME_QUEUE: self.entries,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
        }

    def entries(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """QUERY_CONSUME_QUEUE: some entries of a queue from an index on, and a group's subscription to its topic."""
        ext = command.ext
        topic, queue_id, index = need_str(ext, "topic"), need_int(ext, "queueId"), need_long(ext, "index")
        count, group = need_int(ext, "count"), opt_str(ext, "consumerGroup")
        store = self._store
        if queue_id not in store.queue_ids(topic):
            return command.reply(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        begin, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        document: dict[str, Any] = {"maxQueueIndex": end, "minQueueIndex": begin}
        if group:
            found = self._clients.subscription(group, topic)
            if found is not None:
                document["subscriptionData"] = found.to_json()
            document["filterData"] = "null"
        if not begin <= index < end:
            return command.reply(remark=f"Index {index} of {queue_id}@{topic} is not exist!", body=dumps(document))
        document["queueData"] = [
            {"bitMap": None, "eval": False, "physicOffset": offset, "physicSize": size, "tagsCode": tags}
            for offset, size, tags in store.queue_entries(topic, queue_id, index, max(0, min(count, _COUNT_MAX)))
        ]
        return command.reply(body=dumps(document))

    def ha_status(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_BROKER_HA_STATUS: a master without slaves."""
        document = {
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": self._store.commit_log.end,
        }
        return command.reply(body=dumps(document))
