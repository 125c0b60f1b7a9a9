"""From a request's code to its answer, and requests that are pushed to clients."""

import asyncio

import pytest

from broker.net.channel import MemoryChannel
from broker.net.dispatcher import Dispatcher
from remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from remoting.command import RemotingCommand, request
from remoting.connection import FrameDecoder
from remoting.errors import HeaderError


class Echo:
    """Answers code 1 at once, 2 later, 3 not at all; 4 and 5 fail."""

    def handlers(self):
        return {1: self.now, 2: self.later, 3: lambda *_: None, 4: self.unreadable, 5: self.broken, 6: self.late_bug}

    def now(self, _channel, command, now_ms):
        return command.reply(remark=str(now_ms))

    async def _later(self, command):
        return command.reply(remark="later")

    def later(self, _channel, command, _now_ms):
        return self._later(command)

    def unreadable(self, _channel, _command, _now_ms):
        raise HeaderError("queueId", "x", "an int32")

    def broken(self, _channel, _command, _now_ms):
        raise RuntimeError("a bug")

    def late_bug(self, _channel, command, _now_ms):
        async def fail():
            raise RuntimeError(f"a bug in {command.code}")

        return fail()


@pytest.fixture
def channel():
    return MemoryChannel()


def replies(channel: MemoryChannel) -> list[RemotingCommand]:
    return FrameDecoder().feed(channel.take())


def dispatcher() -> Dispatcher:
    made = Dispatcher(lambda: 42)
    made.add(Echo())
    return made


def test_a_reply_has_the_requests_opaque_and_serialize_type(channel):
    dispatcher().received(channel, [RemotingCommand(1, 7), RemotingCommand(1, -8, serialize_type=1)])
    first, second = replies(channel)
    assert (first.opaque, first.serialize_type, first.flag, first.remark) == (7, 0, FLAG_RESPONSE, "42")
    assert (second.opaque, second.serialize_type) == (-8, 1)


def test_an_unknown_code_is_answered_as_apache_answers_it(channel):
    dispatcher().received(channel, [RemotingCommand(200050, 1)])
    (reply,) = replies(channel)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert reply.remark == " request type 200050 not supported"


@pytest.mark.parametrize("code", [1, 4, 5, 999])
def test_a_oneway_request_is_never_answered(channel, code):
    dispatcher().received(channel, [RemotingCommand(code, 1, FLAG_ONEWAY)])
    assert replies(channel) == []


@pytest.mark.parametrize(("code", "text"), [(4, "queueId"), (5, "a bug")])
def test_an_error_is_answered_and_the_next_request_is_served(channel, code, text):
    dispatcher().received(channel, [RemotingCommand(code, 1), RemotingCommand(1, 2)])
    failed, fine = replies(channel)
    assert failed.code == ResponseCode.SYSTEM_ERROR and text in failed.remark
    assert fine.code == 0


def test_later_answers_and_later_bugs(channel):
    async def run():
        made = dispatcher()
        made.received(channel, [RemotingCommand(2, 1), RemotingCommand(3, 2), RemotingCommand(6, 3)])
        assert replies(channel) == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later, bug = replies(channel)
        assert (later.opaque, later.remark) == (1, "later")
        assert bug.code == ResponseCode.SYSTEM_ERROR and "a bug in 6" in bug.remark
        await made.stop()

    asyncio.run(run())


def test_a_notification_is_oneway_and_in_the_clients_own_serialize_type(channel):
    channel.state.serialize_type = 1
    made = dispatcher()
    made.tell(channel, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
    made.tell(channel, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
    first, second = replies(channel)
    assert first.is_oneway and not first.is_response and first.serialize_type == 1
    assert first.ext == {"consumerGroup": "g"}
    assert first.opaque != second.opaque


def test_a_question_gets_its_own_answer(channel):
    async def run():
        made = dispatcher()
        asked = asyncio.create_task(made.ask(channel, 307, {"a": "b"}, b"body"))
        other = asyncio.create_task(made.ask_command(channel, request(309)))
        await asyncio.sleep(0)
        first, second = replies(channel)
        assert (first.code, first.ext, first.body, second.code) == (307, {"a": "b"}, b"body", 309)
        made.received(channel, [second.reply(remark="two"), first.reply(remark="one"), first.reply(remark="again")])
        assert (await asked).remark == "one"
        assert (await other).remark == "two"
        assert channel.state.waiting == {}

    asyncio.run(run())


def test_a_question_without_an_answer(channel):
    async def run():
        made = dispatcher()
        with pytest.raises(TimeoutError):
            await made.ask(channel, 307, timeout_ms=1)
        asked = asyncio.create_task(made.ask(channel, 307))
        await asyncio.sleep(0)
        made.channel_closed(channel)
        with pytest.raises(ConnectionError):
            await asked
        channel.close()
        with pytest.raises(ConnectionError):
            await made.ask(channel, 307)

    asyncio.run(run())


def test_one_who_asks_can_be_cancelled_in_the_moment_of_the_answer(channel):
    async def run():
        made = dispatcher()
        asked = asyncio.create_task(made.ask(channel, 307))
        await asyncio.sleep(0)
        made.received(channel, [replies(channel)[0].reply(remark="one")])
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert channel.state.waiting == {}

    asyncio.run(run())
