"""Starting, stopping, and being broken off half-way: nothing is left behind, and what cannot be done says so."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.support.fake_broker import FakeBroker
from tests.support.group_broker import GroupBroker, take
from tests.support.wait import until
from timewheel_client import ClientError, ClosedError, ConnectionFailedError, Consumer, Producer

BEAT = RequestCode.HEART_BEAT


async def nothing_is_left(broker: FakeBroker, before: set[asyncio.Task[object]]) -> None:
    """Wait until no task and no connection is there that was not there before."""
    await until(lambda: not broker.transports)
    await until(lambda: asyncio.all_tasks() <= before)


@pytest.mark.asyncio
async def test_a_start_that_is_cancelled_leaves_no_ghost_in_the_group() -> None:
    """The other members waited for queues that nobody read, until the ghost's process ended."""
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        before = asyncio.all_tasks()
        broker.handlers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda _: None
        consumer = Consumer(broker.address, "g", "t")
        starting = asyncio.ensure_future(consumer.start())
        await until(lambda: len(broker.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) > 0)
        assert broker.members
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not broker.members
        await nothing_is_left(broker, before)
        broker.handlers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = broker.list_members
        broker.put("t", 0, b"x")
        async with consumer:  # it may be started again
            broker.put("t", 0, b"y")
            assert (await take(consumer, 1))[0].body == b"y"


@settings(max_examples=60)
@given(turns=st.integers(0, 120), later=st.none() | st.integers(0, 20))
def test_a_start_or_close_that_is_cancelled_anywhere_leaves_nothing(turns: int, later: int | None) -> None:
    async def run() -> None:
        async with GroupBroker({"t": 2, "%RETRY%g": 1}) as broker:
            before = asyncio.all_tasks()
            consumer = Consumer(broker.address, "g", "t")
            task = asyncio.ensure_future(_life(consumer))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            if later is not None:
                for _ in range(later):
                    await asyncio.sleep(0)
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await until(lambda: not broker.members)
            await nothing_is_left(broker, before)

    asyncio.run(run())


async def _life(consumer: Consumer) -> None:
    async with consumer:
        pass


@settings(max_examples=40)
@given(turns=st.integers(0, 25))
def test_a_producer_that_is_cancelled_anywhere_leaves_nothing(turns: int) -> None:
    async def run() -> None:
        async with FakeBroker({"t": 1}) as broker:
            before = asyncio.all_tasks()

            async def life() -> None:
                async with Producer(broker.address, timeout_ms=1_000) as producer:
                    await producer.send("t", b"x")

            task = asyncio.ensure_future(life())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await nothing_is_left(broker, before)

    asyncio.run(run())


@pytest.mark.asyncio
async def test_a_second_start_works_after_a_failed_one_and_says_why_it_cannot() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        address, port = broker.address, broker.port
    for client in (Producer(address), Consumer(address, "g", "t")):
        for _ in range(2):
            with pytest.raises(ConnectionFailedError, match="no name server can be reached"):
                await client.start()
        again = GroupBroker({"t": 1, "%RETRY%g": 1})
        again.port = port
        async with again:
            await client.start()
            with pytest.raises(ClientError, match="it is open already"):
                await client.start()
            await client.close()
            with pytest.raises(ClosedError, match="was closed: make a new one"):
                await client.start()


@pytest.mark.asyncio
async def test_two_starts_at_once() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for client in (Producer(broker.address), Consumer(broker.address, "g", "t")):
            results = await asyncio.gather(client.start(), client.start(), return_exceptions=True)
            assert results[0] is client
            assert isinstance(results[1], ClientError)
            assert "being started already" in str(results[1])
            await client.close()


@pytest.mark.asyncio
async def test_closed_while_it_is_started() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        before = asyncio.all_tasks()
        for client in (Producer(broker.address), Consumer(broker.address, "g", "t")):
            starting = asyncio.ensure_future(client.start())
            await asyncio.sleep(0)
            await client.close()
            error = (await asyncio.gather(starting, return_exceptions=True))[0]
            assert isinstance(error, ClientError), error
        await nothing_is_left(broker, before)
        assert not broker.members


@pytest.mark.asyncio
async def test_iterating_lets_other_tasks_work() -> None:
    """``async for`` over what was read ahead never gave the loop back: timers, heartbeats and pulls stood still."""
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(320):
            broker.put("t", 0, b"%d" % number)
        async with Consumer(broker.address, "g", "t", start_from="first", pull_count=320) as consumer:
            await until(lambda: consumer.open_count == 320)
            turns = 0

            async def count_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.ensure_future(count_turns())
            taken = 0
            async for message in consumer:
                await message.ack()
                taken += 1
                if taken == 320:
                    break
            counting.cancel()
            assert turns >= 320 / 17 - 1


@settings(max_examples=40)
@given(turns=st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_a_cancelled_wait_for_the_next_message_loses_none(turns: list[int]) -> None:
    async def run() -> None:
        async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
            for number in range(60):
                broker.put("t", 0, b"%d" % number)
            async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
                got = []
                for wait in turns:
                    task = asyncio.ensure_future(consumer.__anext__())
                    for _ in range(wait):
                        await asyncio.sleep(0)
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        got.append(await task)
                got += await take(consumer, 60 - len(got))
                assert [message.body for message in got] == [b"%d" % number for number in range(60)]
                for message in got:
                    await message.ack()
            assert broker.offsets[("t", 0)] == 60

    asyncio.run(run())


@settings(max_examples=30)
@given(turns=st.integers(0, 12), answer=st.booleans())
def test_a_cancelled_retry_is_given_back_or_still_open(turns: int, answer: bool) -> None:
    """Either the broker's word came and it is done with here, or it did not and the message comes again."""

    async def run() -> None:
        async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
            broker.put("t", 0, b"x", UNIQ_KEY="U")
            if not answer:
                broker.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda _: None
            async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
                (message,) = await take(consumer, 1)
                task = asyncio.ensure_future(message.retry())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                assert consumer.open_count == (1 if task.cancelled() else 0)
                assert len(broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)) <= 1
            assert broker.offsets.get(("t", 0), 0) == (0 if task.cancelled() else 1)

    asyncio.run(run())


@pytest.mark.asyncio
async def test_a_name_server_that_accepts_and_says_nothing_holds_no_close() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        consumer = Consumer(address, "g", "t")
        starting = asyncio.ensure_future(consumer.start())
        await until(lambda: consumer._core.is_open)
        async with asyncio.timeout(5):
            await consumer.close()
            with pytest.raises(ClientError):
                await starting


@pytest.mark.asyncio
async def test_a_broker_that_answers_no_question_holds_the_start_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("timewheel_client.consuming.consumer.SETTLE_MS", 20)
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        held: list[RemotingCommand] = []
        broker.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = held.append  # type: ignore[assignment]
        async with asyncio.timeout(5), Consumer(broker.address, "g", "t"):
            assert "not all queues can be read yet" in caplog.text
