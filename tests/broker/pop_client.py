"""A consumer that pops, for tests on a `Rig`: requests as a client makes them, and handles as it works them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.pop.handle import retry_flag
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.messages.message import StoredMessage
from remoting.messages.properties import POP_CK, get_property
from tests.broker.core_rig import Client, records_of

__all__ = ["Popped", "Popper", "popped_of"]


@dataclass(frozen=True)
class Popped:
    """One popped message, with what acknowledges it."""

    body: bytes
    topic: str
    queue_id: int
    offset: int
    handle: str
    tries: int
    message: StoredMessage


def popped_of(reply: RemotingCommand, group: str, broker: str = "broker-a") -> list[Popped]:
    """Read a pop's reply as Java's client does (MQClientAPIImpl.processPopResponse)."""
    ext = reply.ext
    starts = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in ext["startOffsetInfo"].split(";") if part}
    listed = {
        tuple(part.split(" ")[:2]): [int(number) for number in part.split(" ")[2].split(",")]
        for part in ext["msgOffsetInfo"].split(";")
        if part
    }
    found = []
    for message in records_of(reply.body):
        handle = get_property(message.properties, POP_CK)
        if handle is None:
            key = (retry_flag(message.topic), str(message.queue_id))
            assert message.queue_offset in listed[key]
            parts = (starts[key], ext["popTime"], ext["invisibleTime"], ext["reviveQid"], key[0], broker, key[1])
            handle = " ".join((*parts, str(message.queue_offset)))
        retry = handle.split(" ")[4]
        topic = message.topic if retry == "0" else f"%RETRY%{group}{'_' if retry == '1' else '+'}{message.topic}"
        found.append(
            Popped(
                message.body, topic, message.queue_id, message.queue_offset, handle, message.reconsume_times, message
            )
        )
    return found


class Popper:
    """A member of a group, on a connection of its own."""

    def __init__(self, client: Client, group: str = "G", topic: str = "T") -> None:
        self.client = client
        self.group = group
        self.topic = topic

    def fields(self, **fields: Any) -> dict[str, Any]:
        """Header fields of POP_MESSAGE."""
        usual = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": self.client.rig.now_ms,
            "initMode": 1,
            "order": "false",
        }
        return {**usual, **fields}

    def ask(self, **fields: Any) -> RemotingCommand:
        """Pop, and answer with the reply."""
        return self.client.ask(RequestCode.POP_MESSAGE, self.fields(**fields))

    def pop(self, **fields: Any) -> list[Popped]:
        """Pop, and answer with the messages."""
        reply = self.ask(**fields)
        return popped_of(reply, self.group) if reply.code == 0 else []

    def ack(self, popped: Popped, **fields: Any) -> RemotingCommand:
        """Acknowledge a message."""
        return self.client.ask(RequestCode.ACK_MESSAGE, {**self._named(popped), **fields})

    def change(self, popped: Popped, invisible_ms: int, **fields: Any) -> RemotingCommand:
        """Give a message another time."""
        ext = {**self._named(popped), "invisibleTime": invisible_ms, **fields}
        return self.client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)

    def changed(self, popped: Popped, invisible_ms: int) -> Popped:
        """The same message under the handle that the change gives."""
        ext = self.change(popped, invisible_ms).ext
        parts = popped.handle.split(" ")
        parts[:4] = [str(popped.offset), ext["popTime"], ext["invisibleTime"], ext["reviveQid"]]
        return Popped(**{**popped.__dict__, "handle": " ".join(parts)})

    def _named(self, popped: Popped) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "topic": popped.topic,
            "queueId": popped.queue_id,
            "offset": popped.offset,
            "extraInfo": popped.handle,
        }
