"""Recall handles: the sender of a timed message gets one, by which it can recall the message before delivery.

A handle is Apache's (``RecallMessageHandle``, version 1): URL-safe base64 of ``v1 topic broker due-ms unique-key``,
with one more word that other readers ignore: the message's virtual offset in hex.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.turns.put_request import PutRequest
from remoting.errors import ProtocolError
from store.put.plugin_api import Held, PutResult, PutStatus

if TYPE_CHECKING:
    from broker.turns.replies import Replies
    from remoting.command import RemotingCommand
    from remoting.messages.message import Message

__all__ = ["RecallHandle", "recallable"]

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The content of a handle: topic, broker, due time in epoch ms, unique key and virtual offset.

    >>> handle = RecallHandle("T", "broker-a", 1700000000000, "AC11", 1 << 62)
    >>> RecallHandle.decode(handle.encode()) == handle
    True
    """

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str
    offset: int

    def encode(self) -> str:
        """Write the handle as text."""
        words = (_VERSION, self.topic, self.broker_name, str(self.due_ms), self.unique_key, f"{self.offset:x}")
        return urlsafe_b64encode(" ".join(words).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Read a handle. Raises ProtocolError, also for the handle of a broker without virtual offsets."""
        try:
            words = b64decode(text.encode(), b"-_", validate=True).decode().split(" ")
            if words[0] != _VERSION or len(words) < 6:
                raise ValueError(words)
            version_topic_broker_due, offset = words[:4], int(words[-1], 16)
            _, topic, broker_name, due = version_topic_broker_due
            return cls(topic, broker_name, int(due), " ".join(words[4:-1]), offset)
        except (ValueError, Base64Error) as error:
            raise ProtocolError(f"recall handle is invalid: {text!r:.200}") from error


def recallable(
    replies: Replies, command: RemotingCommand, message: Message, unique_key: str, held: Held, broker_name: str
) -> PutRequest:
    """Make the request of one held message, whose reply carries its recall handle."""
    topic, queue_id = message.topic, message.queue_id

    def answer(results: list[PutResult]) -> RemotingCommand:
        (result,) = results
        if result.status not in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT):
            return replies.refusal(command, result.status, result.remark)
        ids, flushed = replies.message_id(held.offset), result.status is PutStatus.PUT_OK
        reply = replies.stored(command.serialize_type, command.opaque, ids, queue_id, 0, unique_key, flushed)
        # Only now: at the end of its turn a message with a delay key may have got another id.
        reply.ext["recallHandle"] = RecallHandle(topic, broker_name, held.due_ms, unique_key, held.offset).encode()
        return reply

    request = PutRequest(answer)
    request.parts.append(held)
    return request
