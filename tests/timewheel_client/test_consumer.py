from __future__ import annotations

import asyncio
import json

import pytest

from remoting.codes import PullSysFlag, RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.messages.properties import parse_properties
from tests.support.group_broker import GroupBroker, take
from tests.support.wait import until
from timewheel_client import BrokerError, Consumer

PULL = RequestCode.PULL_MESSAGE


@pytest.mark.asyncio
async def test_messages_come_once_they_are_there_and_offsets_follow_the_acks() -> None:
    async with GroupBroker({"t": 2, "%RETRY%g": 1}) as broker:
        for number in range(3):
            broker.put("t", 0, b"%d" % number, TAGS="a", UNIQ_KEY=f"U{number}")
        async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
            messages = await take(consumer, 3)
            assert [message.body for message in messages] == [b"0", b"1", b"2"]
            assert messages[1].message_id == "U1"
            assert consumer.open_count == 3
            await messages[0].ack()
            await messages[2].ack()
            await messages[2].ack()
            assert consumer.open_count == 1
            later = asyncio.ensure_future(take(consumer, 1))
            await until(lambda: len(broker.held) == 3)
            broker.put("t", 1, b"later")
            assert [message.body for message in await later] == [b"later"]
        assert broker.offsets[("t", 0)] == 1  # 1 was not acknowledged: it comes again, and 2 with it
        assert broker.offsets[("t", 1)] == 0
        assert [command.ext["consumerGroup"] for command in broker.of(RequestCode.UNREGISTER_CLIENT)] == ["g"]
        async with Consumer(broker.address, "g", "t") as consumer:
            assert [message.body for message in await take(consumer, 3)] == [b"1", b"2", b"later"]


@pytest.mark.asyncio
async def test_start_from_last_begins_at_the_end_but_not_of_the_retry_topic() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.put("t", 0, b"old")
        broker.put("%RETRY%g", 0, b"again", RETRY_TOPIC="t")
        async with Consumer(broker.address, "g", "t") as consumer:
            (message,) = await take(consumer, 1)
            assert (message.body, message.topic) == (b"again", "t")
            await until(lambda: len(broker.held) == 2)
            broker.put("t", 0, b"new")
            (message,) = await take(consumer, 1)
            assert message.body == b"new"


@pytest.mark.asyncio
async def test_offsets_are_saved_one_after_the_other_each_with_its_reply_and_never_by_a_pull() -> None:
    """A broker serves one connection with several threads: of two saves under way, the older could be written last."""
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        slow: list[RemotingCommand] = []

        def answer_later(command: RemotingCommand) -> RemotingCommand | None:
            if command.ext["topic"] != "t":
                return broker.update_offset(command)
            slow.append(command)
            return None

        broker.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = answer_later
        broker.put("t", 0, b"0")
        broker.put("t", 0, b"1")
        consumer = await Consumer(broker.address, "g", "t", start_from="first").start()
        first, second = await take(consumer, 2)
        await first.ack()
        reader = next(reader for queue, reader in consumer._readers.items() if queue.topic == "t")
        saving = asyncio.ensure_future(reader.save())
        await until(lambda: len(slow) == 1)
        await second.ack()
        closing = asyncio.ensure_future(consumer.close())
        await until(lambda: reader.dropped)
        assert [command.ext["commitOffset"] for command in slow] == ["1"]
        assert not slow[0].is_oneway
        broker.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = broker.update_offset
        broker.transports[0].write(encode_command(slow[0].reply()))
        await asyncio.gather(saving, closing)
        assert broker.offsets == {("t", 0): 2, ("%RETRY%g", 0): 0}
        assert all(int(command.ext["sysFlag"]) & PullSysFlag.COMMIT_OFFSET == 0 for command in broker.of(PULL))


@pytest.mark.asyncio
async def test_offsets_of_several_queues_are_saved_one_after_the_other() -> None:
    """Apache's broker forgets some of a group's first offsets of a topic when they come at the same time."""
    async with GroupBroker({"t": 3, "%RETRY%g": 1}) as broker:
        unanswered: list[RemotingCommand] = []

        def answer_later(command: RemotingCommand) -> RemotingCommand | None:
            unanswered.append(command)
            return None

        broker.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = answer_later
        for queue_id in range(3):
            broker.put("t", queue_id, b"x")
        consumer = await Consumer(broker.address, "g", "t", start_from="first").start()
        for message in await take(consumer, 3):
            await message.ack()
        closing = asyncio.ensure_future(consumer.close())
        for count in range(1, 5):
            await until(lambda count=count: len(unanswered) == count)  # type: ignore[misc]
            await asyncio.sleep(0)
            assert len(unanswered) == count
            broker.update_offset(unanswered[-1])
            broker.transports[0].write(encode_command(unanswered[-1].reply()))
        await closing
        assert broker.offsets == {("t", 0): 1, ("t", 1): 1, ("t", 2): 1, ("%RETRY%g", 0): 0}


@pytest.mark.asyncio
async def test_leaving_does_not_wait_for_a_broker_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("timewheel_client.consuming.consumer.LEAVE_MS", 1)
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda _: None
        broker.put("t", 0, b"x")
        consumer = await Consumer(broker.address, "g", "t", start_from="first").start()
        (message,) = await take(consumer, 1)
        await message.ack()
        await consumer.close()
        assert "not all offsets of g were saved within 1 ms" in caplog.text


@pytest.mark.asyncio
async def test_what_is_asked_of_the_broker() -> None:
    async with GroupBroker({"t": 1, "u": 1, "%RETRY%g": 1}) as broker:
        async with Consumer(broker.address, "g", {"t": "a || b", "u": "*"}, start_from="first"):
            await until(lambda: len(broker.held) == 3)
        heartbeat = json.loads(broker.of(RequestCode.HEART_BEAT)[0].body)
        (data,) = heartbeat["consumerDataSet"]
        assert (data["groupName"], data["messageModel"]) == ("g", "CLUSTERING")
        assert data["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
        subscriptions = {entry["topic"]: entry for entry in data["subscriptionDataSet"]}
        assert set(subscriptions) == {"t", "u", "%RETRY%g"}
        assert subscriptions["t"]["tagsSet"] == ["a", "b"]
        assert subscriptions["t"]["codeSet"] == [97, 98]
        pulls = {command.ext["topic"]: command.ext for command in broker.of(PULL)}
        assert pulls["t"]["subscription"] == "a || b"
        assert pulls["t"]["sysFlag"] == "6"


@pytest.mark.asyncio
async def test_tags_are_compared_as_text_too() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.put("t", 0, b"collision", TAGS="BB")  # the same hash as Aa
        broker.put("t", 0, b"wanted", TAGS="Aa")
        broker.put("t", 0, b"collision", TAGS="BB")
        async with Consumer(broker.address, "g", "t", tags="Aa", start_from="first") as consumer:
            (message,) = await take(consumer, 1)
            assert message.body == b"wanted"
            await message.ack()
        assert broker.offsets[("t", 0)] == 3


@pytest.mark.asyncio
async def test_queues_are_shared_when_a_member_comes_and_taken_back_when_it_goes() -> None:
    async with GroupBroker({"t": 4, "%RETRY%g": 1}) as broker, Consumer(broker.address, "g", "t") as consumer:
        assert len([queue for queue in consumer.assigned if queue.topic == "t"]) == 4
        await until(lambda: len(broker.held) == 5)
        broker.members.add("zzz")
        broker.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        await until(lambda: len([queue for queue in consumer.assigned if queue.topic == "t"]) == 2)
        assert ("t", 2) in broker.offsets  # saved when they were given up
        broker.members.remove("zzz")
        broker.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        await until(lambda: len([queue for queue in consumer.assigned if queue.topic == "t"]) == 4)
        assert consumer.client_id in broker.members


@pytest.mark.asyncio
async def test_pulling_pauses_while_too_much_is_open() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(30):
            broker.put("t", 0, b"%d" % number)
        settings = {"start_from": "first", "pull_count": 4, "max_open": 8}
        async with Consumer(broker.address, "g", "t", **settings) as consumer:  # type: ignore[arg-type]
            messages = await take(consumer, 8)
            pulls = len([command for command in broker.of(PULL) if command.ext["topic"] == "t"])
            assert pulls == 2
            for message in messages[1:]:
                await message.ack()
            messages += await take(consumer, 8)  # up to a span of 16 behind the one that is open
            for message in messages[8:]:
                await message.ack()
            await until(lambda: consumer.open_count == 1)
            assert len([command for command in broker.of(PULL) if command.ext["topic"] == "t"]) == 4
            await messages[0].ack()
            assert len(await take(consumer, 4)) == 4


@pytest.mark.asyncio
async def test_an_offset_that_does_not_exist_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel_client.consuming.queue_reader.ERROR_PAUSE_MS", 1)
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.offsets[("t", 0)] = 99
        broker.put("t", 0, b"first")
        pull = broker.pull

        def moved(command: RemotingCommand) -> RemotingCommand | None:
            if command.ext["queueOffset"] == "99":
                return command.reply(21, "OFFSET_OVERFLOW_BADLY", {"nextBeginOffset": "0"})
            return pull(command)

        broker.handlers[PULL] = moved
        async with Consumer(broker.address, "g", "t") as consumer:
            assert (await take(consumer, 1))[0].body == b"first"
        assert broker.offsets[("t", 0)] == 0


@pytest.mark.asyncio
async def test_reset_by_the_broker() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(3):
            broker.put("t", 0, b"%d" % number)
        async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
            for message in await take(consumer, 3):
                await message.ack()
            body = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:1}}'
            broker.push(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"topic": "t", "group": "g", "timestamp": "0"}, body)
            assert [message.body for message in await take(consumer, 2)] == [b"1", b"2"]
        assert broker.offsets[("t", 0)] == 1


@pytest.mark.asyncio
async def test_retry_sends_back() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.put("t", 0, b"0", UNIQ_KEY="U")
        broker.put("t", 0, b"1", UNIQ_KEY="V")
        async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
            _, message = await take(consumer, 2)
            await message.retry(delay_level=5)
            assert consumer.open_count == 1
        (command,) = broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert command.ext == {
            "offset": "1000",
            "group": "g",
            "delayLevel": "5",
            "originMsgId": "V",
            "originTopic": "t",
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        }


@pytest.mark.asyncio
async def test_retry_sends_a_copy_when_the_broker_cannot() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.put("t", 0, b"body", UNIQ_KEY="U", TAGS="a")
        broker.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.reply(1, "not found")
        async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
            (message,) = await take(consumer, 1)
            await message.retry()
            assert consumer.open_count == 0
        (copy,) = broker.of(RequestCode.SEND_MESSAGE_V2)
        assert (copy.ext["b"], copy.ext["j"], copy.ext["l"], copy.body) == ("%RETRY%g", "1", "16", b"body")
        properties = parse_properties(copy.ext["i"])
        assert {name: properties[name] for name in ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "TAGS")} == {
            "RETRY_TOPIC": "t",
            "ORIGIN_MESSAGE_ID": "U",
            "DELAY": "3",
            "TAGS": "a",
        }


@pytest.mark.asyncio
async def test_a_refused_expression_ends_the_iteration() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.handlers[PULL] = lambda command: command.reply(23, "parse the consumer's subscription failed")
        async with Consumer(broker.address, "g", "t", tags="a") as consumer:
            with pytest.raises(BrokerError, match="SUBSCRIPTION_PARSE_FAILED"):
                await consumer.__anext__()


@pytest.mark.asyncio
async def test_a_topic_may_come_into_being_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel_client.net.client_core.MISSING_ROUTE_MS", (1, 5))
    async with (
        GroupBroker({"%RETRY%g": 1}) as broker,
        Consumer(broker.address, "g", "t", start_from="first") as consumer,
    ):
        assert [queue.topic for queue in consumer.assigned] == ["%RETRY%g"]
        broker.topics["t"] = 1
        broker.put("t", 0, b"now")
        assert (await take(consumer, 1))[0].body == b"now"


@pytest.mark.asyncio
async def test_reading_goes_on_after_a_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel_client.consuming.queue_reader.ERROR_PAUSE_MS", 1)
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker, Consumer(broker.address, "g", "t") as consumer:
        await until(lambda: len(broker.held) == 2)
        heartbeats = len(broker.of(RequestCode.HEART_BEAT))
        broker.held.clear()
        broker.drop_connections()
        await until(lambda: len(broker.held) == 2)
        broker.put("t", 0, b"after")
        assert (await take(consumer, 1))[0].body == b"after"
        await until(lambda: len(broker.of(RequestCode.HEART_BEAT)) > heartbeats)


@pytest.mark.asyncio
async def test_closing_ends_the_iteration() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        consumer = await Consumer(broker.address, "g", "t").start()
        waiting = asyncio.ensure_future(consumer.__anext__())
        await asyncio.sleep(0)
        await asyncio.gather(consumer.close(), consumer.close())
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert [message async for message in consumer] == []


def test_arguments_that_make_no_sense() -> None:
    for arguments in (
        {"start_from": "middle"},
        {"group": ""},
        {"pull_count": 0},
        {"max_open": 0},
        {"topics": []},
        {"tags": "||"},
        {"group": "two words"},
        {"topics": ["t", "a/b"]},
        {"topics": ""},
        {"namesrv": "nowhere"},
    ):
        with pytest.raises(ValueError):
            Consumer(**{"namesrv": "h:1", "group": "g", "topics": "t", **arguments})  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_offsets_are_saved_soon_when_all_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel_client.consuming.queue_reader.SAVE_SOON_MS", 1)
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        for number in range(2):
            broker.put("t", 0, b"%d" % number)
        async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
            first, second = await take(consumer, 2)
            await first.ack()
            assert broker.offsets.get(("t", 0), 0) == 0
            await second.ack()
            await until(lambda: broker.offsets.get(("t", 0)) == 2)
