"""Locks on queues, for ordered consumption: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ.

A member of a group that consumes in order takes the lock of each queue before it reads it, and renews it every
20 s. A lock that is not renewed for 60 s (``lockMaxLiveTime``) belongs to whoever asks next; only its owner may give it
back. A lock outlives its owner's connection, as on Apache's broker: a member whose connection broke may still be at
work on what it has read, and whoever took its queue at once might overtake it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.channel import Channel
from broker.clients import checked_client_id
from broker.dispatcher import Handler
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads_body

if TYPE_CHECKING:
    from broker.groups import SubscriptionGroups
    from broker.topics import Topics

__all__ = ["LOCKS_MAX", "LOCK_LIFE_MS", "LockProcessor", "QueueLocks"]

LOCK_LIFE_MS = 60_000
LOCKS_MAX = 200_000
"""Most locks of all groups."""

Queue = tuple[str, str, int]
"""Topic, broker name, queue id."""


class QueueLocks:
    """Who holds which queue for which group. Only the network loop uses it."""

    __slots__ = ("_groups", "_life_ms", "count", "count_max")

    def __init__(self, life_ms: int = LOCK_LIFE_MS, count_max: int = LOCKS_MAX) -> None:
        """``life_ms``: how long a lock holds that is not renewed. ``count_max``: most locks of all groups."""
        self._life_ms = life_ms
        self.count = 0
        self.count_max = count_max
        self._groups: dict[str, dict[Queue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queue: Queue, now_ms: int) -> bool:
        """Take or renew a lock; whether the client has it now."""
        held = self._groups.get(group)
        owner = None if held is None else held.get(queue)
        if owner is None:
            if self.count >= self.count_max:
                return False
            self.count += 1
            if held is None:
                held = self._groups[group] = {}
        elif owner[0] != client_id and now_ms - owner[1] <= self._life_ms:
            return False
        assert held is not None
        held[queue] = (client_id, now_ms)
        return True

    def unlock(self, group: str, client_id: str, queue: Queue) -> bool:
        """Give a lock back; False if the client does not own it."""
        held = self._groups.get(group)
        if held is None or held.get(queue, ("",))[0] != client_id:
            return False
        del held[queue]
        self.count -= 1
        if not held:
            del self._groups[group]
        return True

    def any_live(self, group: str, now_ms: int) -> bool:
        """Whether a group holds any lock: then it consumes in order."""
        held = self._groups.get(group)
        return held is not None and any(now_ms - renewed_ms <= self._life_ms for _, renewed_ms in held.values())

    def expire(self, now_ms: int) -> None:
        """Drop what no one renewed."""
        for group in list(self._groups):
            held = self._groups[group]
            for queue in [queue for queue, (_, renewed_ms) in held.items() if now_ms - renewed_ms > self._life_ms]:
                del held[queue]
                self.count -= 1
            if not held:
                del self._groups[group]


class LockProcessor:
    """Answers requests for locks.

    A queue that this broker does not have, or a group that does not exist, cannot be locked; it is left out of the
    answer like a queue that somebody else has. On Apache's broker any name is locked, and stays in a table for ever.
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
        """LOCK_BATCH_MQ: lock what is free, and say what the client has."""
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
        """Whether there is such a queue here."""
        topic, broker_name, queue_id = queue
        config = self._topics.get(topic)
        if config is None or broker_name != self._broker_name:
            return False
        return 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def unlock(self, _: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UNLOCK_BATCH_MQ: give back what the client owns."""
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
