"""Locks on queues, for ordered consumption: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ.

A member of a group that consumes in order takes the lock of each queue before it reads it, and renews it every
20 s. A lock that is not renewed for 60 s (``lockMaxLiveTime``) is free for the next client; only its owner may release
it. As on Apache's broker, a lock outlives its owner's connection. A member whose connection broke may still be
processing messages, and another member that took the queue at once might overtake it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.net.channel import Channel
from broker.net.clients import checked_client_id
from broker.net.processor import Handler
from broker.tables.queue_locks import Queue, QueueLocks
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads_body

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.topics import Topics

__all__ = ["LockProcessor"]


class LockProcessor:
    """Answers requests for locks.

    A queue that this broker does not have, or a queue for a group that does not exist, cannot be locked. It is left out
    of the answer, like a queue locked by another client. Apache's broker locks any name, which then stays in a table
    for ever.
    """

    def __init__(self, locks: QueueLocks, topics: Topics, groups: SubscriptionGroups, broker_name: str) -> None:
        self._locks = locks
        self._topics = topics
        self._groups = groups
        self._broker_name = broker_name

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, _: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """LOCK_BATCH_MQ: lock the free queues, and answer with those that the client has locked."""
        group, client_id, queues = _read(command)
        if self._groups.get(group) is None:
            queues = []
        locked = [
            document
            for queue, document in queues
            if self._has(queue) and self._locks.lock(group, client_id, queue, now_ms)
        ]
        return command.reply(body=dumps({"lockOKMQSet": locked}))

    def _has(self, queue: Queue) -> bool:
        """True if there is such a queue here."""
        topic, broker_name, queue_id = queue
        config = self._topics.get(topic)
        if config is None or broker_name != self._broker_name:
            return False
        return 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def unlock(self, _: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UNLOCK_BATCH_MQ: release the client's locks."""
        group, client_id, queues = _read(command)
        for queue, _document in queues:
            self._locks.unlock(group, client_id, queue)
        return command.reply()


def _read(command: RemotingCommand) -> tuple[str, str, list[tuple[Queue, dict[str, Any]]]]:
    """Read group, client id and queues from the body; raises ProtocolError."""
    document = loads_body(command.body)
    try:
        queues = [
            (
                (str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"])),
                {"brokerName": queue["brokerName"], "queueId": queue["queueId"], "topic": queue["topic"]},
            )
            for queue in document.get("mqSet") or ()
        ]
        return str(document["consumerGroup"]), checked_client_id(str(document["clientId"])), queues
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ProtocolError(f"unreadable lock request: {error!r}: {command.body[:200]!r}") from error
