"""Locks on queues, for ordered consumption: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ.

A member of a group that consumes in order takes the lock of each queue before it reads it, and renews it every
20 s. A lock that is not renewed for 60 s (``lockMaxLiveTime``) belongs to whoever asks next; only its owner may give it
back. A lock outlives its owner's connection, as on Apache's broker: a member whose connection broke may still be at
work on what it has read, and whoever took its queue at once might overtake it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.channel import Channel
from broker.dispatcher import Handler
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads

__all__ = ["LOCK_LIFE_MS", "LockProcessor", "QueueLocks"]

LOCK_LIFE_MS = 60_000

Queue = tuple[str, str, int]
"""Topic, broker name, queue id."""


class QueueLocks:
    """Who holds which queue for which group. Only the network loop uses it."""

    __slots__ = ("_groups", "_life_ms")

    def __init__(self, life_ms: int = LOCK_LIFE_MS) -> None:
        """``life_ms``: how long a lock holds that is not renewed."""
        self._life_ms = life_ms
        self._groups: dict[str, dict[Queue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queue: Queue, now_ms: int) -> bool:
        """Take or renew a lock; whether the client has it now."""
        held = self._groups.setdefault(group, {})
        owner = held.get(queue)
        if owner is not None and owner[0] != client_id and now_ms - owner[1] <= self._life_ms:
            return False
        held[queue] = (client_id, now_ms)
        return True

    def unlock(self, group: str, client_id: str, queue: Queue) -> bool:
        """Give a lock back; False if the client does not own it."""
        held = self._groups.get(group)
        if held is None or held.get(queue, ("",))[0] != client_id:
            return False
        del held[queue]
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
            if not held:
                del self._groups[group]


class LockProcessor:
    """Answers requests for locks."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, _: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """LOCK_BATCH_MQ: lock what is free, and say what the client has."""
        group, client_id, queues = _read(command)
        locked = [document for queue, document in queues if self._locks.lock(group, client_id, queue, now_ms)]
        return command.reply(body=dumps({"lockOKMQSet": locked}))

    def unlock(self, _: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UNLOCK_BATCH_MQ: give back what the client owns."""
        group, client_id, queues = _read(command)
        for queue, _document in queues:
            self._locks.unlock(group, client_id, queue)
        return command.reply()


def _read(command: RemotingCommand) -> tuple[str, str, list[tuple[Queue, dict[str, Any]]]]:
    """Read group, client id and queues from the body; raises ProtocolError."""
    document = loads(command.body)
    try:
        queues = [
            (
                (str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"])),
                {"brokerName": queue["brokerName"], "queueId": queue["queueId"], "topic": queue["topic"]},
            )
            for queue in document.get("mqSet") or ()
        ]
        return str(document["consumerGroup"]), str(document["clientId"]), queues
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ProtocolError(f"unreadable lock request: {error!r}: {command.body[:200]!r}") from error
