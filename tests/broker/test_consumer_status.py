"""Where the members of a group stand: they are asked, and their answers put together."""

import asyncio

import pytest

from broker.net.asides import Asides
from broker.net.channel import MemoryChannel
from broker.net.clients import ClientInfo, Clients
from broker.net.dispatcher import Dispatcher
from broker.processors.consumer_status import ConsumerStatusProcessor
from broker.tables.subscriptions import GroupSubscription
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import FrameDecoder

TABLE = b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"b","queueId":1,"topic":"T"}:7}}'
ROW = b'{{"brokerName":"b","queueId":1,"topic":"T"}:7}'


def ask(answers, **ext):
    """The reply, and what each member was asked; ``answers`` by client id: (code, body), or None for a closed one."""

    async def run():
        clients, dispatcher = Clients(), Dispatcher(lambda: 0)
        channels = {}
        for number, client_id in enumerate(answers):
            channel = channels[client_id] = MemoryChannel(("192.0.2.1", number))
            clients.register_consumer(
                "g",
                ClientInfo(channel, client_id, "JAVA", 400, 0),
                consume_type="CONSUME_PASSIVELY",
                message_model="CLUSTERING",
                consume_from_where="CONSUME_FROM_LAST_OFFSET",
                subscriptions=[GroupSubscription("T", "*", "TAG", 0, ())],
            )
            if answers[client_id] is None:
                channel.close()
        processor = ConsumerStatusProcessor(clients, dispatcher, Asides())
        command = RemotingCommand(223, 9, ext={"topic": "T", "group": "g", **ext})
        task = asyncio.create_task(processor.status(MemoryChannel(), command, 0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked = {}
        for client_id, channel in channels.items():
            for request in FrameDecoder().feed(channel.take()):
                asked[client_id] = (request.code, request.ext)
                code, body = answers[client_id]
                dispatcher.received(channel, [request.reply(code, body=body)])
        return await task, asked

    return asyncio.run(run())


def test_all_members_are_asked():
    reply, asked = ask({"c1": (0, TABLE), "c2": (0, b'{"messageQueueTable":{}}')})
    assert reply.code == ResponseCode.SUCCESS
    assert reply.body == b'{"consumerTable":{"c1":' + ROW + b',"c2":{}},"messageQueueTable":{}}'
    expected = (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "g"})
    assert asked == {"c1": expected, "c2": expected}


def test_one_member_is_asked():
    reply, asked = ask({"c1": (0, TABLE), "c2": (0, TABLE)}, clientAddr="c2")
    assert list(asked) == ["c2"]
    assert reply.body == b'{"consumerTable":{"c2":' + ROW + b'},"messageQueueTable":{}}'


BAD = [None, (1, b""), (0, b""), (0, b"no json"), (0, b"[1]"), (0, b'{"messageQueueTable":{"x":1}}')]


@pytest.mark.parametrize("answer", BAD)
def test_who_gives_no_status_is_left_out(answer):
    reply, _ = ask({"c1": answer, "c2": (0, TABLE)})
    assert reply.body == b'{"consumerTable":{"c2":' + ROW + b'},"messageQueueTable":{}}'


def test_nobody_is_there():
    reply, _ = ask({})
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark == "No Any Consumer online in the consumer group: [g]"


def test_answers_that_no_reply_can_hold_together_are_left_out(caplog):
    large = b'{"messageQueueTable":{},"padding":"' + b"x" * (8 << 20) + b'"}'
    reply, _ = ask({"a": (0, large), "b": (0, large), "c": (0, TABLE)})
    assert reply.code == ResponseCode.SUCCESS
    assert b'"a":' in reply.body and b'"b":' not in reply.body
    assert "b is left out" in caplog.text
