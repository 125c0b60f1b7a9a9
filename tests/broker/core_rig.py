"""A broker without sockets and threads, for tests: memory channels, a clock that is set by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.core import BrokerCore
from broker.net.channel import MemoryChannel
from remoting.codes import FLAG_ONEWAY, RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from remoting.json_dialect import dumps
from remoting.messages.message import Message, StoredMessage, decode_record, record_size
from remoting.messages.properties import format_properties
from store.disk.files import Files
from store.put.plugin_api import Held, Plugin, PluginContext, PutStatus, Refused

__all__ = ["Client", "FakePlugin", "Rig", "greeted", "properties", "records_of", "sound"]

START_MS = 1_700_000_000_000


def properties(**values: Any) -> str:
    """Write a property text."""
    return format_properties({name: str(value) for name, value in values.items()})


def records_of(body: bytes) -> list[StoredMessage]:
    """Read the records of a pull's body."""
    found, at = [], 0
    while at < len(body):
        found.append(decode_record(body, at))
        at += record_size(body, at)
    return found


class FakePlugin:
    """Holds messages with HOLD, refuses those with REFUSE, and remembers what it was asked."""

    name = "fake"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.seen: list[Message] = []
        self.held: list[int] = []
        self.committed: list[int] = []
        self.viewable: dict[int, bytes] = {}
        self.error: Exception | None = None
        self.ticket: Any = None
        self.context: PluginContext | None = None

    def open(self, context: PluginContext) -> None:
        self.context = context
        self.calls.append("open")

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")

    def before_put(self, message: Message, now_ms: int) -> Held | Refused | None:
        self.seen.append(message)
        if "REFUSE\x01" in message.properties:
            return Refused(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, "REFUSE is not wanted")
        if "HOLD\x01" in message.properties:
            self.held.append((1 << 62) + len(self.seen))
            return Held(self.held[-1], now_ms + 1000)
        return None

    def take_back(self, held: Held) -> None:
        for taken in (self.held, self.committed):
            if held.offset in taken:
                taken.remove(held.offset)

    def commit_turn(self) -> Any:
        held, self.held = self.held, []
        if self.error is not None:
            raise self.error
        self.committed += held
        return self.ticket if held else None

    def view(self, offset: int) -> bytes | None:
        return self.viewable.get(offset)

    def topics_changed(self) -> None:
        self.calls.append("topics_changed")

    def pending_count(self) -> int:
        return len(self.committed)

    def cancel(self, offset: int, now_ms: int) -> Any:
        assert now_ms
        self.committed.remove(offset)

    def move(self, offset: int, due_ms: int, now_ms: int) -> Any: ...
    def send_now(self, offset: int, now_ms: int) -> Any: ...
    def list_pending(self, after: Any, limit: int) -> list[Any]: ...

    def runtime_info(self) -> dict[str, str]:
        return {}

    def check(self) -> list[str]:
        return []


class Rig:
    """A `BrokerCore` over a directory, on a disk of its own if there are ``files``."""

    def __init__(
        self,
        root: Path,
        *plugins: Plugin,
        port: int = 10911,
        start_ms: int = START_MS,
        files: Files | None = None,
        spawn: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
        call_soon: Callable[[Callable[[], None]], object] = lambda call: call(),
        **values: Any,
    ) -> None:
        self.now_ms = start_ms
        self.scheduled = 0
        config = BrokerConfig(root, {name: str(value) for name, value in values.items()}, listen_port=port)
        self.core = BrokerCore(
            config,
            port,
            list(plugins),
            now_ms=lambda: self.now_ms,
            schedule=self._schedule,
            call_soon_threadsafe=call_soon,
            files=files,
            spawn=spawn,
            random=Random(1),
        )
        self.store = self.core.store

    def _schedule(self) -> None:
        self.scheduled += 1

    def client(self, port: int = 50001) -> Client:
        """A client of this broker."""
        return Client(self, port)

    def pass_ms(self, ms: int) -> None:
        """Let time pass, with everything that is done by the clock in the network loop."""
        self.now_ms += ms
        self.core.long_poll.expire(self.now_ms)
        self.core.end_turn()

    def deliver_levels(self) -> None:
        """Run the level scheduler until it has nothing to do now."""
        while (wake_ms := self.core.level_scheduler.step(self.now_ms)) is not None and wake_ms <= self.now_ms:
            pass

    def close(self) -> None:
        """Close as a broker closes."""
        self.core.stop()
        self.core.close()


class Client:
    """A client over a memory channel; frames both ways."""

    def __init__(self, rig: Rig, port: int) -> None:
        self.rig = rig
        self.channel = MemoryChannel(("192.0.2.9", port))
        self.decoder = FrameDecoder()
        self.opaque = 0
        self.serialize_type = 0

    def submit(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", flag: int = 0, **more: Any
    ) -> int:
        """Send a request, without ending the turn."""
        self.opaque += 1
        texts = {name: str(value) for name, value in (ext or {}).items()}
        command = RemotingCommand(
            code, self.opaque, flag, ext=texts, body=body, serialize_type=self.serialize_type, **more
        )
        self.rig.core.dispatcher.received(self.channel, FrameDecoder().feed(encode_command(command)))
        return self.opaque

    def take(self) -> list[RemotingCommand]:
        """What has come since the last call."""
        return self.decoder.feed(self.channel.take())

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **more: Any) -> RemotingCommand:
        """Send a request, end the turn, and answer with its reply (pushed requests before it are dropped)."""
        opaque = self.submit(code, ext, body, **more)
        self.rig.core.end_turn()
        (reply,) = [command for command in self.take() if command.is_response]
        assert reply.opaque == opaque
        return reply

    def tell(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> None:
        """Send a one-way request and end the turn; nothing may come back."""
        self.submit(code, ext, body, FLAG_ONEWAY)
        self.rig.core.end_turn()
        assert self.take() == []

    def send_fields(self, topic: str, text: str = "", **fields: Any) -> dict[str, Any]:
        """Header fields of SEND_MESSAGE_V2."""
        usual = {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 5, "h": 0, "i": text}
        return {**usual, "j": 0, "k": "false", "m": "false", **fields}

    def send(self, topic: str, text: str = "", body: bytes = b"body", **fields: Any) -> RemotingCommand:
        """SEND_MESSAGE_V2."""
        return self.ask(RequestCode.SEND_MESSAGE_V2, self.send_fields(topic, text, **fields), body)

    def pull_fields(self, topic: str, offset: int = 0, queue_id: int = 0, **fields: Any) -> dict[str, Any]:
        """Header fields of PULL_MESSAGE, with its own subscription."""
        usual = {
            "consumerGroup": "cg",
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        return {**usual, **fields}

    def pull(self, topic: str, offset: int = 0, queue_id: int = 0, **fields: Any) -> RemotingCommand:
        """PULL_MESSAGE."""
        return self.ask(RequestCode.PULL_MESSAGE, self.pull_fields(topic, offset, queue_id, **fields))

    def messages(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """All messages of a queue."""
        found: list[StoredMessage] = []
        while True:
            reply = self.pull(topic, len(found), queue_id)
            if reply.code != 0:
                return found
            found += records_of(reply.body)

    def heartbeat(
        self, client_id: str, *groups: str, topic: str = "T", expression: str = "*", version: int = 1, **more
    ):
        """HEART_BEAT as a push consumer of some groups, and as a producer of ``pg``."""
        subscriptions = [
            {"topic": topic, "subString": expression, "tagsSet": [], "subVersion": version, "expressionType": "TAG"}
        ]
        consumers = [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": subscriptions,
                **more,
            }
            for group in groups
        ]
        document = {"clientID": client_id, "producerDataSet": [{"groupName": "pg"}], "consumerDataSet": consumers}
        return self.ask(RequestCode.HEART_BEAT, {}, dumps(document))


def sound(rig: Rig) -> Iterator[Rig]:
    """For a fixture: a rig whose store is well when the test is over, and is then closed."""
    yield rig
    assert rig.store.check() == []
    rig.close()


def greeted(rig: Rig, client_id: str) -> Client:
    """Make a client that the broker knows as producer and consumer."""
    client = rig.client()
    client.heartbeat(client_id, "cg")
    return client
