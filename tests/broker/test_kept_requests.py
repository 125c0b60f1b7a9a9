"""Requests that wait to be answered: what is kept of them, whom that is counted for, and where it ends."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.net.channel import KEPT_OF_ONE_MAX_BYTES, MemoryChannel, kept_size
from broker.net.dispatcher import Dispatcher
from broker.tables.topic_config import TopicConfig
from remoting.codes import MAX_FRAME_BYTES, RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import FrameDecoder
from remoting.errors import ProtocolError
from tests.broker.core_rig import Client, Rig, properties, records_of
from tests.broker.test_server import Rig as SocketRig
from tests.support.wait import until

MIB = 1 << 20
HOLD = {"sysFlag": 6, "suspendTimeoutMillis": 15_000}
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "store", enablePropertyFilter="true")
    yield rig
    rig.close()


def hold(client: Client, queue_id: int = 0, body: bytes = b"", **fields: Any) -> None:
    client.submit(RequestCode.PULL_MESSAGE, client.pull_fields("T", queue_id=queue_id, **{**HOLD, **fields}), body)


# ------------------------------------------------------------------------------------------------ pulls


def test_a_pull_that_waits_keeps_neither_body_nor_fields(rig: Rig) -> None:
    client = rig.client()
    client.send("T")
    hold(client, 1)
    tracemalloc.start()
    try:
        for _ in range(10):
            hold(client, 1, bytes(4 * MIB), padding="x" * MIB)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert rig.core.long_poll.count == 11
    assert grown < MIB, f"{grown} bytes are kept for 10 pulls"


def test_what_a_pull_keeps_is_counted_until_it_is_answered(rig: Rig) -> None:
    client = rig.client()
    client.send("T")
    hold(client, 1)
    plain = client.channel.kept_bytes
    assert 500 < plain < 5_000
    hold(client, 1, subscription=" || ".join(f"Tag{number}" for number in range(1_000)))
    tags = client.channel.kept_bytes - 2 * plain
    assert 50_000 < tags < 500_000, "its own tags are counted"
    hold(client, 1, subscription="a = 1 OR " * 100 + "a = 2", expressionType="SQL92")
    assert client.channel.kept_bytes - 3 * plain - tags > 100_000, "its own expression is counted"
    assert rig.core.long_poll.check() == []
    rig.client(50002).send("T", e=1)
    assert len(client.take()) == 1
    rig.pass_ms(60_000)
    assert rig.core.long_poll.count == 0 and client.channel.kept_bytes == 0


def test_a_closed_connection_keeps_nothing_and_gets_no_new_pull(rig: Rig) -> None:
    client = rig.client()
    client.send("T")
    hold(client, 1)
    client.channel.close()
    rig.core.channel_closed(client.channel)
    hold(client, 1)
    assert rig.core.long_poll.count == 0 and client.channel.kept_bytes == 0


def test_beyond_the_bytes_of_one_connection_pulls_are_refused_with_the_figure(rig: Rig) -> None:
    client, other = rig.client(), rig.client(50002)
    client.send("T")
    client.channel.keep(KEPT_OF_ONE_MAX_BYTES)
    answer = client.pull("T", queue_id=1, **HOLD)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert str(KEPT_OF_ONE_MAX_BYTES) in (answer.remark or "")
    hold(other, 1)
    assert rig.core.long_poll.count == 1, "another connection's pulls are held"


# ------------------------------------------------------------------------------------------------ tasks


class Slow:
    """Answers code 1 when it is told to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    def handlers(self) -> dict[int, Any]:
        return {1: self.later}

    async def later(self, _channel: Any, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        await self.gate.wait()
        return command.reply(remark="at last")


def replies(channel: MemoryChannel) -> list[RemotingCommand]:
    return FrameDecoder().feed(channel.take())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_that_wait_are_bounded_by_bytes_of_a_connection_and_by_number() -> None:
    async def run() -> None:
        slow = Slow()
        dispatcher = Dispatcher(lambda: 0, running_max=20)
        dispatcher.add(slow)
        greedy, modest = MemoryChannel(), MemoryChannel(("127.0.0.1", 50002))
        large = RemotingCommand(1, 1, body=bytes(4 * MIB))
        allowed = KEPT_OF_ONE_MAX_BYTES // kept_size(large)
        dispatcher.received(greedy, [large] * 18)
        await settle()
        refused = replies(greedy)
        assert len(refused) == 18 - allowed == dispatcher.refused_count
        assert {reply.code for reply in refused} == {ResponseCode.SYSTEM_BUSY}
        assert f"(limit {KEPT_OF_ONE_MAX_BYTES})" in (refused[0].remark or "")
        assert greedy.kept_bytes == allowed * kept_size(large) <= KEPT_OF_ONE_MAX_BYTES
        dispatcher.received(modest, [RemotingCommand(1, number) for number in range(20)])
        await settle()
        refused = replies(modest)
        assert len(refused) == allowed and dispatcher.running == 20
        assert "(limit replyThreadPoolQueueCapacity=20)" in (refused[0].remark or "")
        slow.gate.set()
        await settle()
        assert len(replies(greedy)) == allowed and len(replies(modest)) == 20 - allowed
        assert (dispatcher.running, greedy.kept_bytes, modest.kept_bytes) == (0, 0, 0)

    asyncio.run(run())


def test_replies_that_a_requester_never_confirms_end_at_the_bound(rig: Rig) -> None:
    """A gibibyte in three seconds: each reply waits ten seconds for the requester, body and all."""

    async def run() -> None:
        tasks: list[asyncio.Future[None]] = []
        rig.core.dispatcher.spawn = lambda work: tasks.append(asyncio.ensure_future(work))
        asker, replier = rig.client(), rig.client(50002)
        asker.heartbeat("asker")
        text = properties(CORRELATION_ID="c", REPLY_TO_CLIENT="asker", UNIQ_KEY="K")
        fields = replier.send_fields(REPLY_TOPIC, text)
        for _ in range(40):
            replier.submit(RequestCode.SEND_REPLY_MESSAGE_V2, fields, bytes(4 * MIB - 1))
            await settle()
            asker.channel.sent.clear()
            assert replier.channel.kept_bytes <= KEPT_OF_ONE_MAX_BYTES
        answers = replier.take()
        assert len(answers) >= 24 and {answer.code for answer in answers} == {ResponseCode.SYSTEM_BUSY}
        rig.core.dispatcher.channel_closed(asker.channel)
        await asyncio.gather(*tasks)
        assert replier.channel.kept_bytes == 0

    asyncio.run(run())


def test_requests_that_wait_count_for_all_connections_together(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with SocketRig(held_max_bytes=8 * MIB) as rig:
            slow = Slow()
            rig.dispatcher.add(slow)
            modest = await rig.client()
            await modest.send(RemotingCommand(1, 7, body=bytes(100_000)))
            await until(lambda: rig.server.held_bytes > 100_000)
            greedy = [await rig.client() for _ in range(4)]
            for client in greedy:
                await client.send(RemotingCommand(1, 1, body=bytes(3 * MIB)))
            await until(lambda: len(rig.closed) >= 2)
            assert rig.server.held_bytes <= 8 * MIB
            assert modest.sock.getsockname() not in [connection.peer for connection in rig.closed]
            slow.gate.set()
            assert (await modest.reply()).opaque == 7
            for client in (modest, *greedy):
                client.close()
            await until(lambda: not rig.server.connection_count)
            await settle()
            assert rig.server.held_bytes == 0

    asyncio.run(run())
    assert "connectionBytesMax" in caplog.text


def test_a_query_reads_no_more_than_fits_into_its_reply(rig: Rig) -> None:
    client = rig.client()
    for number in range(96):
        assert client.send("T", properties(KEYS="k"), bytes(MIB), e=number % 4).code == 0
    fields = {"topic": "T", "key": "k", "maxNum": 1_000, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    tracemalloc.start()
    try:
        answer = client.ask(RequestCode.QUERY_MESSAGE, fields)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.code == 0 and 10 * MIB < len(answer.body) < MAX_FRAME_BYTES
    assert peak < 6 * len(answer.body), f"{peak >> 20} MiB for a reply of {len(answer.body) >> 20} MiB"
    assert len(records_of(answer.body)) == len(answer.body) // MIB


# ------------------------------------------------------------------------------------------------ replies


class Long:
    """Answers code 1 with so many bytes as the request says, 2 with a fine reply, 3 later with too many."""

    def handlers(self) -> dict[int, Any]:
        return {1: self.sized, 2: lambda _channel, command, _now_ms: command.reply(remark="fine"), 3: self.later}

    def sized(self, _channel: Any, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        return command.reply(body=bytes(int(command.ext["size"])))

    async def later(self, channel: Any, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        return self.sized(channel, command, now_ms)


def test_a_reply_that_no_frame_can_hold_is_an_error_and_the_next_request_is_served() -> None:
    dispatcher = Dispatcher(lambda: 0)
    dispatcher.add(Long())
    channel = MemoryChannel()
    too_long = {"size": str(MAX_FRAME_BYTES)}
    dispatcher.received(channel, [RemotingCommand(1, 1, ext=too_long), RemotingCommand(2, 2)])
    first, second = replies(channel)
    assert (first.opaque, first.code) == (1, ResponseCode.SYSTEM_ERROR)
    assert str(MAX_FRAME_BYTES) in (first.remark or "")
    assert (second.opaque, second.remark) == (2, "fine")


@pytest.mark.parametrize(("size", "fits"), [(MAX_FRAME_BYTES - 300, True), (MAX_FRAME_BYTES - 8, False)])
def test_the_longest_reply_that_fits_is_sent(size: int, fits: bool) -> None:
    async def run() -> None:
        dispatcher = Dispatcher(lambda: 0)
        dispatcher.add(Long())
        channel = MemoryChannel()
        for code in (1, 3):
            dispatcher.received(channel, [RemotingCommand(code, 1, ext={"size": str(size)})])
            await settle()
            (reply,) = replies(channel)
            assert reply.code == (0 if fits else ResponseCode.SYSTEM_ERROR)

    asyncio.run(run())


@pytest.mark.pure
def test_who_is_closed_for_its_replies_gets_no_more_of_them() -> None:
    """One read may bring thousands of requests of 100 bytes, each with a reply of megabytes."""
    made = []

    class Closing(MemoryChannel):
        def send_at_once(self, data: bytes) -> None:
            self.send(data)
            if sum(map(len, self.sent)) > 64 * MIB:
                self.close()

    class Counting(Long):
        def sized(self, channel: Any, command: RemotingCommand, now_ms: int) -> RemotingCommand:
            made.append(command.opaque)
            return super().sized(channel, command, now_ms)

    dispatcher = Dispatcher(lambda: 0)
    dispatcher.add(Counting())
    dispatcher.received(Closing(), [RemotingCommand(1, n, ext={"size": str(10 * MIB)}) for n in range(2_000)])
    assert len(made) == 7


def test_80_000_topics_do_not_fit_into_a_reply(rig: Rig) -> None:
    client = rig.client()
    client.send("T")
    topics = rig.core.topics
    topics.table.update({name: TopicConfig(name) for name in (f"{n:060}" for n in range(80_000))})
    client.submit(RequestCode.GET_ALL_TOPIC_CONFIG)
    client.submit(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
    rig.core.end_turn()
    first, second = client.take()
    assert first.code == ResponseCode.SYSTEM_ERROR
    assert "request 21" in (first.remark or "") and str(MAX_FRAME_BYTES) in (first.remark or "")
    assert second.code == 0, "the next request of the same read is answered"


def test_a_question_that_no_frame_can_hold_is_not_waited_for() -> None:
    async def run() -> None:
        channel = MemoryChannel()
        with pytest.raises(ProtocolError):
            await Dispatcher(lambda: 0).ask(channel, 1, body=bytes(MAX_FRAME_BYTES))
        assert channel.state.waiting == {}

    asyncio.run(run())
