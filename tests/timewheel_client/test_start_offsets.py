"""Where a group begins, and that it does not begin there twice; what is given back when the broker cannot."""

from __future__ import annotations

import asyncio

import pytest

from remoting.codes import RequestCode
from remoting.messages.properties import parse_properties
from tests.support.group_broker import GroupBroker, take
from tests.support.wait import until
from timewheel_client import BrokerError, Consumer, Sql

SAVE = RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.mark.asyncio
async def test_what_comes_while_the_first_member_is_down_is_not_passed_over() -> None:
    """It had saved no offset, so the next start began at the end again."""
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.put("t", 0, b"old")
        first = await Consumer(broker.address, "g", "t").start()
        assert broker.offsets["t", 0] == 1
        await first._core.close()  # as if its process were killed: nothing is saved, nobody is told
        broker.members.clear()
        broker.held.clear()
        broker.put("t", 0, b"meanwhile")
        async with Consumer(broker.address, "g", "t") as consumer:
            assert [message.body for message in await take(consumer, 1)] == [b"meanwhile"]


@pytest.mark.asyncio
async def test_a_young_queue_s_place_is_saved_too() -> None:
    """A broker answers 0 for a queue that is in memory as a whole, and something else when it is not any more."""
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(ext={"offset": "0"})
        async with Consumer(broker.address, "g", "t"):
            assert broker.offsets["t", 0] == 0


@pytest.mark.asyncio
async def test_nothing_is_pulled_before_the_place_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel_client.consuming.queue_reader.ERROR_PAUSE_MS", 1)
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.put("t", 0, b"old")
        refusals = iter([1, 1])

        def refuse(command):  # type: ignore[no-untyped-def]
            if command.ext["topic"] == "t" and next(refusals, 0):
                broker.put("t", 0, b"more")
                return command.reply(1, "not now")
            return broker.update_offset(command)

        broker.handlers[SAVE] = refuse
        async with Consumer(broker.address, "g", "t") as consumer:
            assert broker.offsets["t", 0] == 3
            broker.put("t", 0, b"new")
            assert (await take(consumer, 1))[0].body == b"new"


@pytest.mark.asyncio
async def test_a_group_that_has_an_offset_saves_none_at_its_start() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        broker.offsets = {("t", 0): 3, ("%RETRY%g", 0): 5}
        async with Consumer(broker.address, "g", "t") as consumer:
            await until(lambda: len(consumer.assigned) == 2)
            assert not broker.of(SAVE)


@pytest.mark.asyncio
@pytest.mark.parametrize(("level", "times", "delay"), [(-1, "17", None), (0, "1", "3"), (7, "1", "7")])
async def test_a_copy_goes_where_it_was_to_go(level: int, times: str, delay: str | None) -> None:
    """``retry(-1)`` of an expired record was an ordinary retry; a copy with TRAN_MSG would be a half message."""
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        timed = {"TIMER_DELIVER_MS": "5", "__STARTDELIVERTIME": "5"}
        broker.put("t", 0, b"body", UNIQ_KEY="U", TRAN_MSG="true", DELAY="4", x="y", **timed)
        broker.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.reply(1, "expired")
        async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
            (message,) = await take(consumer, 1)
            await message.retry(level)
            assert consumer.open_count == 0
            for wrong in (-2, 19):
                with pytest.raises(ValueError, match=f"delay_level must lie between -1 and 18, found {wrong}"):
                    await message.retry(wrong)
        (copy,) = broker.of(RequestCode.SEND_MESSAGE_V2)
        assert (copy.ext["b"], copy.ext["j"], copy.ext["l"]) == ("%RETRY%g", times, "16")
        properties = parse_properties(copy.ext["i"])
        assert properties.pop("DELAY", None) == delay
        assert properties == {
            "UNIQ_KEY": "U",
            "x": "y",
            "RETRY_TOPIC": "t",
            "ORIGIN_MESSAGE_ID": "U",
            "RECONSUME_TIME": times,
            "MAX_RECONSUME_TIMES": "16",
        }


@pytest.mark.asyncio
async def test_sql_is_announced_and_asked_for() -> None:
    async with GroupBroker({"t": 1, "u": 1, "%RETRY%g": 1}) as broker:
        topics = {"t": Sql("price > 5"), "u": "a"}
        async with Consumer(broker.address, "g", topics):
            await until(lambda: len(broker.held) == 3)
        pulls = {command.ext["topic"]: command.ext for command in broker.of(RequestCode.PULL_MESSAGE)}
        kinds = {topic: (ext["expressionType"], ext["subscription"]) for topic, ext in pulls.items()}
        assert kinds == {"t": ("SQL92", "price > 5"), "u": ("TAG", "a"), "%RETRY%g": ("TAG", "*")}
        assert b'"subString":"price > 5"' in broker.of(RequestCode.HEART_BEAT)[0].body


@pytest.mark.asyncio
async def test_a_broker_without_sql_ends_the_iteration() -> None:
    async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
        text = "The broker does not support consumer to filter message by SQL92"
        pull = broker.pull
        broker.handlers[RequestCode.PULL_MESSAGE] = lambda command: (
            command.reply(1, text) if command.ext["expressionType"] == "SQL92" else pull(command)
        )
        async with asyncio.timeout(5), Consumer(broker.address, "g", "t", sql="a = 1") as consumer:
            with pytest.raises(BrokerError, match="does not support"):
                await consumer.__anext__()
