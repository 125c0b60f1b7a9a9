"""The client on real brokers, ours and Apache's: the same calls, the same outcome (but for punctuality)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remoting.codes import ResponseCode
from tests.support.apache import ApacheBroker, ApacheNameServer, apache_jars
from tests.support.certificates import make_certificate
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.wait import pause, until
from tests.support.wire import Wire, wait_committed
from timewheel_client import (
    BatchMessage,
    BrokerError,
    ConnectionFailedError,
    Consumer,
    Producer,
    ReceivedMessage,
    SendError,
    Sql,
    tls_context,
)

_numbers = itertools.count(1)


@dataclass
class Peer:
    """A broker to talk to."""

    namesrv: str
    broker: str
    ours: bool
    trust: Path | None = None


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("ours", marks=pytest.mark.process),
        pytest.param("apache", marks=pytest.mark.apache),
    ],
)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "ours":
        made = make_certificate(folder / "tls")
        tls = {"tls.server.certPath": str(made.certificate), "tls.server.keyPath": str(made.key)}
        more = {"recallMessageEnable": "true", "enablePropertyFilter": "true"}
        ours = OurBroker(folder, {**tls, **more}).start()
        yield Peer(ours.namesrv, ours.address, True, made.certificate)
        ours.kill()
        return
    need(apache_jars)
    names = ApacheNameServer(folder / "namesrv", tls=True)
    broker = ApacheBroker(folder / "broker", names.address, {"recallMessageEnable": "true"}, tls=True)
    try:
        broker.start()
        yield Peer(names.address, broker.address, False)
    finally:
        broker.kill()
        names.stop()


@pytest.fixture
def topic() -> str:
    return f"client_{next(_numbers)}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def take(consumer: Consumer, count: int, seconds: float = 30) -> list[ReceivedMessage]:
    """Receive and acknowledge so many messages."""
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(seconds):
        async for message in consumer:
            messages.append(message)
            await message.ack()
            if len(messages) == count:
                break
    return messages


def saved(peer: Peer, topic: str) -> int:
    """How many messages of a topic its group has acknowledged, as the broker knows it."""
    with Wire(peer.broker) as wire:
        return sum(wire.offset_of(f"g_{topic}", topic, queue_id) or 0 for queue_id in range(4))


def wait_saved(peer: Peer, topic: str, count: int) -> None:
    """What is acknowledged is saved a little later."""
    with Wire(peer.broker) as wire:
        wait_committed(wire, f"g_{topic}", topic, 4, count)


@pytest.mark.asyncio
async def test_every_kind_of_send_arrives_as_it_was_sent(peer: Peer, topic: str) -> None:
    async with Producer(peer.namesrv) as producer:
        sent = await producer.send(topic, "héllo", tags="a", keys=["k1", "k2"], properties={"x": "ÿ"}, flag=7)
        batch = await producer.send_batch(topic, [b"b0", BatchMessage("b1", tags="b")])
        oneway = await producer.send_oneway(topic, b"oneway")
        results = await asyncio.gather(*(producer.send(topic, f"m{number}") for number in range(50)))
    async with Consumer(peer.namesrv, f"g_{topic}", topic, start_from="first") as consumer:
        messages = {message.body.decode(): message for message in await take(consumer, 54)}
    first = messages["héllo"]
    assert (first.message_id, first.offset_message_id) == (sent.message_id, sent.offset_message_id)
    assert (first.queue, first.queue_offset) == (sent.queue, sent.queue_offset)
    assert (first.tags, first.keys, first.flag, first.properties["x"]) == ("a", ["k1", "k2"], 7, "ÿ")
    assert first.born_host[0] == "127.0.0.1"
    assert abs(first.store_ms - first.born_ms) < 60_000, "not the same clock, or not milliseconds"
    for body, result in zip(("b0", "b1"), batch, strict=True):
        message = messages[body]
        assert (message.message_id, message.offset_message_id) == (result.message_id, result.offset_message_id)
        assert (message.queue, message.queue_offset) == (result.queue, result.queue_offset)
    assert messages["oneway"].message_id == oneway
    assert {messages[f"m{number}"].message_id for number in range(50)} == {result.message_id for result in results}


@pytest.mark.asyncio
async def test_delays_of_all_kinds_are_never_early(peer: Peer, topic: str) -> None:
    async with Producer(peer.namesrv) as producer:
        begin = now_ms()
        due = {b"at": begin + 2_345, b"delay": begin + 1_500, b"level": begin + 1_000, b"past": begin}
        await producer.send(topic, b"at", at=due[b"at"])
        await producer.send(topic, b"delay", delay=1.5)
        await producer.send(topic, b"level", level=1)
        await producer.send(topic, b"past", at=begin - 60_000)
        async with Consumer(peer.namesrv, f"g_{topic}", topic, start_from="first") as consumer:
            messages = await take(consumer, 4)
    assert sorted(message.body for message in messages) == sorted(due)
    assert all(message.store_ms >= due[message.body] for message in messages)


@pytest.mark.asyncio
async def test_each_message_of_a_batch_keeps_its_own_time_on_ours(peer: Peer, topic: str) -> None:
    if not peer.ours:
        return  # Apache's broker answers OK and delivers at once
    async with Producer(peer.namesrv) as producer:
        began = time.monotonic()
        await producer.send(f"{topic}_before", b"before")
        # A first send, as a measure of the machine: what is due when it comes goes out at once.
        lead_ms = max(500, int(10_000 * (time.monotonic() - began)))
        begin = now_ms()
        await producer.send_batch(topic, [BatchMessage(b"%d" % n, at=begin + n * lead_ms) for n in (3, 1, 2)])
        async with Consumer(peer.namesrv, f"g_{topic}", topic, start_from="first") as consumer:
            messages = await take(consumer, 3)
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    for message in messages:
        assert message.store_ms >= message.due_ms == begin + int(message.body) * lead_ms


@pytest.mark.asyncio
async def test_what_is_refused(peer: Peer) -> None:
    async with Producer(peer.namesrv) as producer:
        with pytest.raises(SendError) as caught:
            await producer.send("bad topic!", b"x")
        assert caught.value.code == 29
        with pytest.raises(SendError) as caught:
            await producer.send("large", bytes((4 << 20) + 1))
        assert caught.value.code == 13


@pytest.mark.asyncio
async def test_tags_are_chosen(peer: Peer, topic: str) -> None:
    async with Producer(peer.namesrv) as producer:
        for tag in ("a", "b", "c", None):
            await producer.send(topic, str(tag), tags=tag)
    async with Consumer(peer.namesrv, f"g_{topic}", topic, tags="a || c", start_from="first") as consumer:
        assert sorted(message.body for message in await take(consumer, 2)) == [b"a", b"c"]
        with pytest.raises(TimeoutError):
            await take(consumer, 1, 0.5)


@pytest.mark.asyncio
async def test_what_is_not_acknowledged_comes_again_and_what_is_does_not(peer: Peer, topic: str) -> None:
    async with Producer(peer.namesrv) as producer:
        for number in range(6):
            await producer.send(topic, str(number), queue=0)
    group = f"g_{topic}"
    async with Consumer(peer.namesrv, group, topic, start_from="first") as consumer:
        for number in range(6):
            message = await consumer.__anext__()
            if number != 3:
                await message.ack()
    async with Consumer(peer.namesrv, group, topic) as consumer:
        assert [message.body for message in await take(consumer, 3)] == [b"3", b"4", b"5"]
    async with Consumer(peer.namesrv, group, topic) as consumer:
        with pytest.raises(TimeoutError):
            await take(consumer, 1, 0.5)


@pytest.mark.asyncio
async def test_retry_brings_it_again_under_its_own_topic(peer: Peer, topic: str) -> None:
    async with Producer(peer.namesrv) as producer:
        sent = await producer.send(topic, b"again", tags="a", properties={"x": "y"}, delay=0.2)
    async with Consumer(peer.namesrv, f"g_{topic}", topic, tags="a", start_from="first") as consumer:
        async with asyncio.timeout(30):
            times = []
            async for message in consumer:
                assert (message.topic, message.body, message.tags) == (topic, b"again", "a")
                assert (message.message_id, message.properties["x"]) == (sent.message_id, "y")
                assert message.reconsume_times == len(times)
                times.append(message.store_ms)
                if len(times) == 3:
                    await message.ack()
                    break
                await message.retry(delay_level=1)
    assert times[1] - times[0] >= 1_000
    assert times[2] - times[1] >= 1_000


@pytest.mark.asyncio
async def test_dead_letters(peer: Peer, topic: str) -> None:
    group = f"g_{topic}"
    async with Producer(peer.namesrv) as producer:
        await producer.send(topic, b"hopeless")
    async with Consumer(peer.namesrv, group, topic, start_from="first") as consumer:
        message = await asyncio.wait_for(consumer.__anext__(), 20)
        await message.retry(delay_level=-1)
    async with Consumer(peer.namesrv, f"dlq_{topic}", f"%DLQ%{group}", start_from="first") as consumer:
        assert [message.body for message in await take(consumer, 1)] == [b"hopeless"]


@pytest.mark.asyncio
async def test_members_of_a_group_share_and_nothing_is_lost(peer: Peer, topic: str) -> None:
    group, got = f"g_{topic}", Counter[bytes]()
    readers: Counter[str] = Counter()

    async def read(consumer: Consumer) -> None:
        async for message in consumer:
            got[message.body] += 1
            readers[consumer.client_id] += 1
            await message.ack()

    async with Producer(peer.namesrv) as producer:
        await asyncio.gather(*(producer.send(topic, f"{number}") for number in range(40)))
        async with Consumer(peer.namesrv, group, topic, start_from="first") as first:
            reading = asyncio.ensure_future(read(first))
            await until(lambda: len(got) >= 40, 30)
            await asyncio.to_thread(wait_saved, peer, topic, 40)
            async with Consumer(peer.namesrv, group, topic) as second:
                reading_too = asyncio.ensure_future(read(second))
                both = first, second
                await until(lambda: all(len([q for q in c.assigned if q.topic == topic]) == 2 for c in both), 25)
                await asyncio.gather(*(producer.send(topic, f"{number}") for number in range(40, 80)))
                await until(lambda: len(got) >= 80, 30)
                assert readers[second.client_id] >= 10
                await asyncio.to_thread(wait_saved, peer, topic, 80)
            await reading_too
            await asyncio.gather(*(producer.send(topic, f"{number}") for number in range(80, 120)))
            await until(lambda: len(got) >= 120, 30)
        await reading
    assert set(got) == {b"%d" % number for number in range(120)}
    assert sum(got.values()) == 120  # at least once in general; here all was acknowledged when queues moved


@pytest.mark.asyncio
async def test_tls(peer: Peer, topic: str) -> None:
    """Ours shows a certificate that can be checked; Apache's makes itself one that nobody knows."""
    tls = peer.trust if peer.trust is not None else tls_context(verify=False)
    async with Producer(peer.namesrv, tls=tls) as producer:
        await producer.send(topic, b"secret")
        await asyncio.gather(*(producer.send(topic, bytes(100_000)) for _ in range(20)))
    async with Consumer(peer.namesrv, f"g_{topic}", topic, start_from="first", tls=tls) as consumer:
        messages = await take(consumer, 21)
    assert b"secret" in {message.body for message in messages}
    with pytest.raises(ConnectionFailedError, match="the certificate is not trusted"):
        await Producer(peer.namesrv, tls=True).start()


@pytest.mark.asyncio
async def test_sql_chooses_by_properties(peer: Peer, topic: str) -> None:
    async with Producer(peer.namesrv) as producer:
        for price in range(10):
            await producer.send(topic, str(price), properties={"price": str(price), "colour": "red"}, tags="a")
    sql = "price BETWEEN 3 AND 5 AND colour = 'red' AND TAGS = 'a'"
    async with Consumer(peer.namesrv, f"g_{topic}", topic, sql=sql, start_from="first") as consumer:
        messages = await take(consumer, 3)
        assert sorted(message.body for message in messages) == [b"3", b"4", b"5"]
        assert messages[0].user_properties.keys() == {"price", "colour"}
        with pytest.raises(TimeoutError):
            await take(consumer, 1, 0.5)
    async with Consumer(peer.namesrv, f"h_{topic}", {topic: Sql("price >")}, start_from="first") as consumer:
        with pytest.raises(BrokerError) as caught:
            await take(consumer, 1)
        assert caught.value.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert "Your expression may be wrong" in caught.value.remark


@pytest.mark.asyncio
async def test_a_timed_message_is_taken_back(peer: Peer, topic: str) -> None:
    async with Producer(peer.namesrv) as producer:
        began = time.monotonic()
        plain = await producer.send(topic, b"plain")
        delay = max(4, 20 * (time.monotonic() - began))  # a first send, as a measure of the machine
        kept = await producer.send(topic, b"kept", delay=delay)
        recalled = await producer.send(topic, b"recalled", delay=delay)
        outcome = await producer.recall(recalled)
        assert outcome
        assert (outcome.recalled, outcome.message_id) == (True, recalled.message_id)
        assert plain.recall_handle == ""
        with pytest.raises(ValueError, match="has no recall handle"):
            await producer.recall(plain)
        if peer.ours:
            again = await producer.recall(recalled)
            assert (again.recalled, again.remark) == (True, "it was recalled before")
        async with Consumer(peer.namesrv, f"g_{topic}", topic, start_from="first") as consumer:
            assert sorted(message.body for message in await take(consumer, 2)) == [b"kept", b"plain"]
            with pytest.raises(TimeoutError):
                await take(consumer, 1, 1)
        if peer.ours:  # Apache's says yes to that, too, or that its time has passed
            late = await producer.recall(kept)
            assert not late
            assert "it was delivered" in late.remark


@pytest.mark.asyncio
async def test_forwarded_messages_are_new_ones(peer: Peer, topic: str) -> None:
    async with Producer(peer.namesrv) as producer:
        sent = await producer.send(topic, b"first", tags="a", keys="k", properties={"x": "y"}, delay=0.2)
        async with Consumer(peer.namesrv, f"g_{topic}", topic, start_from="first") as consumer:
            (message,) = await take(consumer, 1)
            again = await producer.send(topic, message.body, properties=message.properties)
            (copy,) = await take(consumer, 1)
    assert message.message_id == sent.message_id
    assert copy.message_id == again.message_id != sent.message_id
    assert (copy.tags, copy.keys, copy.user_properties, copy.due_ms) == ("a", ["k"], {"x": "y"}, None)


@pytest.mark.asyncio
async def test_what_comes_before_the_first_acknowledgement_is_not_missed(peer: Peer, topic: str) -> None:
    """A group that begins at the end has its place from its first start on."""
    group = f"g_{topic}"
    async with Producer(peer.namesrv) as producer:
        for number in range(8):
            await producer.send(topic, f"old {number}")
        async with Consumer(peer.namesrv, group, topic) as consumer:
            # A young topic is read from its beginning. Otherwise the group starts with a place at the end.
            old = asyncio.ensure_future(take(consumer, 8))
            while not old.done() and await asyncio.to_thread(saved, peer, topic) < 8:
                await pause(0.1)
            old.cancel()
            await asyncio.gather(old, return_exceptions=True)
            await asyncio.to_thread(wait_saved, peer, topic, 8)
        await producer.send(topic, b"meanwhile")
        async with Consumer(peer.namesrv, group, topic) as consumer:
            assert [message.body for message in await take(consumer, 1)] == [b"meanwhile"]


@pytest.mark.asyncio
async def test_a_consumer_may_wait_for_its_topic(peer: Peer, topic: str) -> None:
    async with Consumer(peer.namesrv, f"g_{topic}", topic, start_from="first") as consumer:
        waiting = asyncio.ensure_future(take(consumer, 1))
        async with Producer(peer.namesrv) as producer:
            await producer.send(topic, b"here")
        assert [message.body for message in await waiting] == [b"here"]
