"""A broker with queues, offsets and group members, for tests of consumers, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json

from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.messages.message import QUEUE_OFFSET_AT, Message, encode_host, encode_record
from remoting.messages.properties import format_properties
from tests.support.fake_broker import FakeBroker
from timewheel_client import Consumer
from timewheel_client import ReceivedMessage as Received

__all__ = ["GroupBroker", "take"]

HOST = encode_host("127.0.0.1", 10911)
PULL = RequestCode.PULL_MESSAGE


class GroupBroker(FakeBroker):
    """A broker with queues of messages, offsets and group members; pulls that find nothing are held for ever."""

    def __init__(self, topics: dict[str, int]) -> None:
        super().__init__(topics)
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.members: set[str] = set()
        self.held: list[RemotingCommand] = []
        self.handlers |= {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_members,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.GET_MAX_OFFSET: lambda command: command.reply(ext={"offset": str(len(self.queue(command)))}),
            RequestCode.GET_MIN_OFFSET: lambda command: command.reply(ext={"offset": "0"}),
            PULL: self.pull,
        }

    @staticmethod
    def where(command: RemotingCommand) -> tuple[str, int]:
        return command.ext["topic"], int(command.ext["queueId"])

    def queue(self, command: RemotingCommand) -> list[bytes]:
        return self.queues.setdefault(self.where(command), [])

    def put(self, topic: str, queue_id: int, body: bytes, **properties: str) -> None:
        queue = self.queues.setdefault((topic, queue_id), [])
        record = bytearray(
            encode_record(
                Message(topic, queue_id, body=body, born_host=HOST, properties=format_properties(properties)), HOST
            )
        )
        record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 16] = len(queue).to_bytes(8, "big") + (1000 * len(queue)).to_bytes(
            8, "big"
        )
        queue.append(bytes(record))
        held, self.held = self.held, []
        for command in held:
            reply = self.pull(command)
            if reply is not None:
                self.transports[0].write(encode_command(reply))

    def heartbeat(self, command: RemotingCommand) -> RemotingCommand:
        self.members.add(json.loads(command.body)["clientID"])
        return command.reply()

    def unregister(self, command: RemotingCommand) -> RemotingCommand:
        self.members.discard(command.ext["clientID"])
        return command.reply()

    def list_members(self, command: RemotingCommand) -> RemotingCommand:
        return command.reply(body=json.dumps({"consumerIdList": sorted(self.members)}).encode())

    def query_offset(self, command: RemotingCommand) -> RemotingCommand:
        offset = self.offsets.get(self.where(command))
        return command.reply(22, "none") if offset is None else command.reply(ext={"offset": str(offset)})

    def update_offset(self, command: RemotingCommand) -> RemotingCommand:
        self.offsets[self.where(command)] = int(command.ext["commitOffset"])
        return command.reply()

    def pull(self, command: RemotingCommand) -> RemotingCommand | None:
        queue, offset = self.queue(command), int(command.ext["queueOffset"])
        found = queue[offset : offset + int(command.ext["maxMsgNums"])]
        ext = {
            "nextBeginOffset": str(offset + len(found)),
            "minOffset": "0",
            "maxOffset": str(len(queue)),
            "suggestWhichBrokerId": "0",
        }
        if found:
            return command.reply(ext=ext, body=b"".join(found))
        self.held.append(command)
        return None


async def take(consumer: Consumer, count: int) -> list[Received]:
    """The next so many messages; they are not acknowledged. TimeoutError after ten seconds."""
    async with asyncio.timeout(10):
        return [await consumer.__anext__() for _ in range(count)]
