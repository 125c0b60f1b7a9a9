from __future__ import annotations

import asyncio
import json

import pytest

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.messages.message import split_batch
from remoting.messages.properties import parse_properties
from tests.support.fake_broker import FakeBroker
from tests.support.wait import until
from timewheel_client import (
    BatchMessage,
    ClosedError,
    ConnectionFailedError,
    MessageQueue,
    NoRouteError,
    Producer,
    RequestTimeoutError,
    SendError,
)

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def stored(command: RemotingCommand) -> RemotingCommand:
    return command.reply(ext={"msgId": "A" * 32, "queueId": command.ext["e"], "queueOffset": "7"})


def storing(topics: dict[str, int]) -> FakeBroker:
    broker = FakeBroker(topics)
    broker.handlers[SEND] = broker.handlers[BATCH] = stored
    return broker


@pytest.mark.asyncio
async def test_a_send_says_everything_and_gets_everything() -> None:
    async with storing({"t": 2}) as broker, Producer(broker.address, group="g") as producer:
        result = await producer.send(
            "t", "hällo", at=1_893_456_000_000, tags="tag", keys=["k", "l"], properties={"x": "y"}, queue=1, flag=5
        )
        (command,) = broker.of(SEND)
        assert command.body == "hällo".encode()
        fields = {name: command.ext[name] for name in "abcdefhjk"}
        assert fields == {
            "a": "g",
            "b": "t",
            "c": "TBW102",
            "d": "4",
            "e": "1",
            "f": "0",
            "h": "5",
            "j": "0",
            "k": "false",
        }
        properties = parse_properties(command.ext["i"])
        assert properties.pop("UNIQ_KEY") == result.message_id
        assert properties == {"x": "y", "TIMER_DELIVER_MS": "1893456000000", "TAGS": "tag", "KEYS": "k l"}
        assert result.queue == MessageQueue("t", "broker-a", 1)
        assert (result.offset_message_id, result.queue_offset, result.status) == ("A" * 32, 7, "SEND_OK")


@pytest.mark.asyncio
async def test_queues_take_turns() -> None:
    async with storing({"t": 4}) as broker, Producer(broker.address) as producer:
        await asyncio.gather(*(producer.send("t", b"") for _ in range(8)))
        queues = [command.ext["e"] for command in broker.of(SEND)]
        assert sorted(queues) == sorted("0123" * 2)
        assert len(broker.of(ROUTE)) == 1
        assert await producer.queues("t") == [MessageQueue("t", "broker-a", number) for number in range(4)]


@pytest.mark.asyncio
async def test_a_key_keeps_its_queue() -> None:
    async with storing({"t": 4}) as broker, Producer(broker.address) as producer:
        for _ in range(3):
            await producer.send("t", b"", sharding_key="order 7")
        assert len({command.ext["e"] for command in broker.of(SEND)}) == 1
        assert parse_properties(broker.of(SEND)[0].ext["i"])["__SHARDINGKEY"] == "order 7"


@pytest.mark.asyncio
async def test_an_unknown_topic_is_sent_by_the_template_and_looked_up_again() -> None:
    async with storing({"TBW102": 8}) as broker, Producer(broker.address) as producer:

        def create(command: RemotingCommand) -> RemotingCommand:
            broker.topics["new"] = 4
            return stored(command)

        broker.handlers[SEND] = create
        await producer.send("new", b"")
        await until(lambda: len(broker.of(ROUTE)) >= 3)
        assert [command.ext["topic"] for command in broker.of(ROUTE)] == ["new", "TBW102", "new"]


@pytest.mark.asyncio
async def test_no_topic_and_no_template() -> None:
    async with storing({}) as broker, Producer(broker.address) as producer:
        with pytest.raises(NoRouteError, match="topic nowhere does not exist"):
            await producer.send("nowhere", b"")


@pytest.mark.asyncio
@pytest.mark.parametrize(("code", "tries"), [(1, 3), (16, 3), (17, 3), (204, 3), (205, 3), (13, 1), (29, 1), (215, 1)])
async def test_which_codes_are_tried_again(code: int, tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel_client.net.tries.RETRY_PAUSE_MS", 0)
    async with storing({"t": 1}) as broker, Producer(broker.address) as producer:
        broker.handlers[SEND] = lambda command: command.reply(code, "no")
        with pytest.raises(SendError, match="no") as caught:
            await producer.send("t", b"")
        assert (caught.value.code, caught.value.remark) == (code, "no")
        assert len(broker.of(SEND)) == tries
        assert len({command.ext["i"] for command in broker.of(SEND)}) == 1  # the same id each time


@pytest.mark.asyncio
async def test_stored_but_not_as_safe_as_wished() -> None:
    async with storing({"t": 1}) as broker, Producer(broker.address) as producer:
        broker.handlers[SEND] = lambda command: command.reply(
            10, ext={"msgId": "M", "queueId": "0", "queueOffset": "1"}
        )
        assert (await producer.send("t", b"")).status == "FLUSH_DISK_TIMEOUT"


@pytest.mark.asyncio
async def test_another_broker_is_tried() -> None:
    async with storing({"t": 1}) as good, FakeBroker() as bad:
        bad.handlers[SEND] = lambda command: command.reply(14, "full")

        def both(command: RemotingCommand) -> RemotingCommand:
            data = (
                '{"brokerDatas":[{"brokerName":"good","brokerAddrs":{"0":"GOOD"}},'
                '{"brokerName":"bad","brokerAddrs":{0:"BAD"}}],"queueDatas":['  # as old name servers write it
                '{"brokerName":"good","perm":6,"readQueueNums":1,"writeQueueNums":1},'
                '{"brokerName":"bad","perm":6,"readQueueNums":9,"writeQueueNums":9}]}'
            )
            data = data.replace("GOOD", good.address).replace("BAD", bad.address)
            return command.reply(body=data.encode())

        good.handlers[ROUTE] = both
        async with Producer(good.address) as producer:
            results = await asyncio.gather(*(producer.send("t", b"") for _ in range(20)))
        assert {result.queue.broker_name for result in results} == {"good"}
        assert bad.of(SEND)


@pytest.mark.asyncio
async def test_a_broken_connection_is_made_anew() -> None:
    async with storing({"t": 1}) as broker, Producer(broker.address) as producer:
        await producer.send("t", b"1")
        broker.drop_connections()
        await producer.send("t", b"2")
        assert broker.connects >= 2


@pytest.mark.asyncio
async def test_a_broker_that_does_not_answer() -> None:
    async with storing({"t": 1}) as broker:
        broker.handlers[SEND] = lambda _: None
        async with Producer(broker.address, timeout_ms=60, attempt_timeout_ms=20) as producer:
            with pytest.raises(RequestTimeoutError):
                await producer.send("t", b"")


@pytest.mark.asyncio
async def test_one_way_and_batch() -> None:
    async with storing({"t": 1}) as broker, Producer(broker.address) as producer:
        message_id = await producer.send_oneway("t", b"fast", delay=1)
        ids = [
            result.message_id
            for result in await producer.send_batch("t", [b"a", BatchMessage("b", tags="x", at=1_893_456_000_009)])
        ]
        assert await producer.send_batch("t", []) == []
        (oneway,) = broker.of(SEND)
        assert oneway.is_oneway
        assert parse_properties(oneway.ext["i"]) == {"UNIQ_KEY": message_id, "TIMER_DELAY_MS": "1000"}
        (batch,) = broker.of(BATCH)
        assert batch.ext["m"] == "true"
        elements = split_batch(batch.body)
        assert [body for _, body, _ in elements] == [b"a", b"b"]
        assert [parse_properties(text)["UNIQ_KEY"] for _, _, text in elements] == ids
        assert parse_properties(elements[1][2])["TIMER_DELIVER_MS"] == "1893456000009"


@pytest.mark.asyncio
async def test_batch_results_have_an_id_each() -> None:
    async with storing({"t": 1}) as broker, Producer(broker.address) as producer:
        broker.handlers[BATCH] = lambda command: command.reply(ext={"msgId": "A,B", "queueId": "0", "queueOffset": "5"})
        results = await producer.send_batch("t", [b"1", b"2"])
        assert [(result.offset_message_id, result.queue_offset) for result in results] == [("A", 5), ("B", 6)]


@pytest.mark.asyncio
async def test_life() -> None:
    async with storing({"t": 1}) as broker:
        producer = Producer([broker.address])
        with pytest.raises(ClosedError):
            await producer.send("t", b"")
        async with producer:
            await producer.send("t", b"")
            await until(lambda: broker.of(RequestCode.HEART_BEAT))
        with pytest.raises(ClosedError):
            await producer.send("t", b"")
        assert [command.ext["producerGroup"] for command in broker.of(RequestCode.UNREGISTER_CLIENT)] == [
            "PYTHON_PRODUCER"
        ]
        heartbeat = broker.of(RequestCode.HEART_BEAT)[0]
        assert b'"producerDataSet":[{"groupName":"PYTHON_PRODUCER"}]' in heartbeat.body
        address = broker.address
    with pytest.raises(ConnectionFailedError, match="no name server can be reached"):
        await Producer(address).start()
    for wrong in ("", "nonsense", " ; "):
        with pytest.raises(ValueError, match=r"HOST:PORT|name server"):
            Producer(wrong)


@pytest.mark.asyncio
async def test_the_second_name_server_answers_when_the_first_is_gone() -> None:
    async with FakeBroker() as gone:
        address = gone.address
    async with storing({"t": 1}) as broker, Producer(f"{address}; {broker.address}") as producer:
        await producer.send("t", b"")


@pytest.mark.asyncio
async def test_a_delay_key_has_its_queue_so_that_it_is_unique_over_all_brokers() -> None:
    async with storing({"t": 4}) as broker:

        def two(command: RemotingCommand) -> RemotingCommand:
            names = ("a", "b")
            data = {
                "brokerDatas": [{"brokerName": name, "brokerAddrs": {"0": broker.address}} for name in names],
                "queueDatas": [
                    {"brokerName": name, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4} for name in names
                ],
            }
            return command.reply(body=json.dumps(data).encode())

        broker.handlers[ROUTE] = two
        async with Producer(broker.address) as producer:
            keys = [f"order-{number}" for number in range(12)]
            sent = [
                [(await producer.send("t", b"", delay=9, properties={"__DELAYKEY": key})).queue for _ in range(3)]
                for key in keys
            ]
            assert all(len(set(queues)) == 1 for queues in sent)
            assert {queues[0].broker_name for queues in sent} == {"a", "b"}
            assert [await producer.key_queue("t", key) for key in keys] == [queues[0] for queues in sent]
            batch = [BatchMessage(b"", properties={"__DELAYKEY": key}) for key in keys]
            with pytest.raises(ValueError, match="belong to a, b: make a batch for each"):
                await producer.send_batch("t", batch)
            of_a = [one for one, queues in zip(batch, sent, strict=True) if queues[0].broker_name == "a"]
            assert {one.queue.broker_name for one in await producer.send_batch("t", of_a)} == {"a"}
            assert len(await producer.send_batch("t", batch, queue=MessageQueue("t", "b", 0))) == len(batch)
