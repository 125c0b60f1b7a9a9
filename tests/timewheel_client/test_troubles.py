"""At least once, through drawn troubles: requests that are refused, not answered, or break the connection."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.support.group_broker import GroupBroker
from timewheel_client import Consumer

pytestmark = pytest.mark.alone  # its timeouts are some tens of milliseconds

TROUBLED = (RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET)
SHORT = {
    "net.connection.CLOSE_TIMEOUT_MS": 50,
    "net.connection.MUTE_MS": 10,
    "net.connection_table.REQUEST_TIMEOUT_MS": 20,
    "net.client_core.UNREGISTER_TIMEOUT_MS": 20,
    "net.client_core.REQUEST_TIMEOUT_MS": 30,
    "consuming.consumer.LEAVE_MS": 100,
    "consuming.consumer.SETTLE_MS": 20,
    "consuming.queue_reader.ERROR_PAUSE_MS": 2,
    "consuming.queue_reader.SAVE_TIMEOUT_MS": 20,
    "consuming.queue_reader.PULL_TIMEOUT_MS": 30,
}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(["drop", "silent", "refuse", "ok"]), max_size=12),
    st.integers(1, 12),
    st.integers(1, 5),
)
def test_all_arrives_in_order_and_nothing_twice_that_was_saved(troubles: list[str], count: int, each: int) -> None:
    """A consumer takes ``each`` messages, acknowledges them and goes; the next one begins at the saved offset."""

    async def run() -> None:
        async with GroupBroker({"t": 1, "%RETRY%g": 1}) as broker:
            plan = iter(troubles)
            real = dict(broker.handlers)

            def trouble(command: RemotingCommand) -> RemotingCommand | None:
                kind = next(plan, "ok")
                if kind == "drop":
                    broker.held.clear()
                    broker.drop_connections()
                    return None
                if kind == "silent":
                    return None
                return command.reply(1, "no") if kind == "refuse" else real[command.code](command)

            for code in TROUBLED:
                broker.handlers[code] = trouble
            for number in range(count):
                broker.put("t", 0, b"%d" % number)
            seen: set[int] = set()
            while len(seen) < count:
                saved = broker.offsets.get(("t", 0), 0)
                expected = saved
                broker.members.clear()
                async with Consumer(broker.address, "g", "t", start_from="first") as consumer:
                    for _ in range(min(each, count - saved)):
                        message = await consumer.__anext__()
                        assert int(message.body) == expected  # in order, none left out, none that was saved
                        expected += 1
                        seen.add(int(message.body))
                        await message.ack()
                assert saved <= broker.offsets.get(("t", 0), 0) <= expected

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await run()

    with pytest.MonkeyPatch.context() as patch:
        for name, ms in SHORT.items():
            patch.setattr(f"timewheel_client.{name}", ms)
        asyncio.run(bounded())
