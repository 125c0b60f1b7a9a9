"""No pop holds the network loop: filters that match nothing in full queues, and thousands of pops that wait."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from broker.core import BrokerCore
from broker.net.channel import MemoryChannel
from broker.tables.groups import SubscriptionGroup
from broker.tables.topics import TopicConfig
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import join_batch
from tests.broker.big_broker import frame, send_frame
from tests.broker.loop_watch import BOUND_MS, LoopWatch

START_MS = 1_700_000_000_000
QUEUES, EACH, WAITING = 64, 4_000, 3_000
SQL = " OR ".join(f"a{number} = '2'" for number in range(40))


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopWatch]:
    with LoopWatch() as made:
        config = BrokerConfig(tmp_path_factory.mktemp("pops"), {"enablePropertyFilter": "true"}, listen_port=10911)
        core = made.core = BrokerCore(
            config, 10911, [], now_ms=lambda: START_MS, schedule=made.schedule,
            call_soon_threadsafe=made.loop.call_soon_threadsafe, random=Random(1),
        )  # fmt: skip
        core.long_poll.paced(made.loop.time, made.loop.call_later)
        core.topics.table["F"] = TopicConfig("F", QUEUES, QUEUES)
        core.topics.table["H"] = TopicConfig("H", 4, 4)
        batch = join_batch([(0, b"x", "a\x011\x02")] * EACH)
        head = {
            "a": "pg",
            "b": "F",
            "c": "TBW102",
            "d": 1,
            "f": 0,
            "g": START_MS,
            "h": 0,
            "i": "",
            "j": 0,
            "k": "false",
        }
        for queue_id in range(QUEUES):
            request = frame(RequestCode.SEND_BATCH_MESSAGE, {**head, "e": queue_id, "k": "false", "m": "true"}, batch)
            assert [reply.code for reply in made.feed(request)] == [0]
        assert core.store.max_offset("F", QUEUES - 1) == EACH
        made.settle()
        yield made
        core.stop()
        core.close()


def pop(watch: LoopWatch, group: str, topic: str, **fields: Any) -> bytes:
    """A pop of a group, which is made for it."""
    watch.core.groups.table.setdefault(group, SubscriptionGroup(group))
    usual: dict[str, Any] = {
        "consumerGroup": group, "topic": topic, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000,
        "pollTime": 0, "bornTime": START_MS, "initMode": 0, "order": "false",
    }  # fmt: skip
    return frame(RequestCode.POP_MESSAGE, {**usual, **fields})


@pytest.mark.parametrize("order", ["false", "true"])
@pytest.mark.parametrize(("kind", "text"), [("TAG", "none"), ("SQL92", "a = '2'"), ("SQL92", SQL)])
def test_a_filter_that_matches_nothing(watch: LoopWatch, kind: str, text: str, order: str) -> None:
    numbers = iter(range(100))
    name = f"{kind}{len(text)}{order}"

    def look() -> None:
        group = f"{name}{next(numbers)}"  # one that begins at the queues' begin
        (reply,) = watch.feed(pop(watch, group, "F", expType=kind, exp=text, order=order))
        assert reply.code == ResponseCode.POLLING_TIMEOUT

    took = watch.step_ms(look)
    assert took < BOUND_MS, f"held for {took:.1f} ms"


def test_one_message_comes_where_thousands_wait(watch: LoopWatch) -> None:
    channel = MemoryChannel(("192.0.2.4", 1))
    watch.feed(pop(watch, "many", "H", pollTime=60_000, expType="TAG", exp="none") * WAITING, channel=channel)
    assert watch.core.long_poll.count == WAITING

    def arrive() -> None:
        watch.feed(send_frame("H", 0))
        watch.call(lambda: None)
        while watch.core.long_poll._called:  # the others are tried in the rounds to come
            watch.call(lambda: None)

    took = watch.step_ms(arrive)
    assert took < BOUND_MS, f"held for {took:.1f} ms"

    def end() -> None:
        while watch.core.long_poll.expire(START_MS + 60_000):
            pass

    tries = watch.core.long_poll.count
    took = watch.step_ms(lambda: watch.call(lambda: watch.core.long_poll.expire(START_MS + 60_000)))
    assert took < BOUND_MS, f"held for {took:.1f} ms"
    assert 0 < watch.core.long_poll.count < tries, "some ended, the others have another round"
    end()
    assert watch.core.long_poll.count == 0 and not watch.core.long_poll.check()
