"""Deliveries to topics that no name server knows now, and to brokers that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from remoting.command import RemotingCommand
from service.core.progress import TargetQueue
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink
from service.link.targets import MISSING_MS, SETTLED_MS, TOPICS_MAX
from service.running import suspects, target
from service.running.entries import REJECTED_TOPIC
from tests.service.target_world import TargetWorld, names
from timewheel_client.net.connection import ClientConnection
from timewheel_client.values.errors import BrokerError
from timewheel_client.values.routes import MessageQueue, TopicRoute


def in_world(story: Callable[[TargetWorld], Awaitable[None]]) -> None:
    async def run() -> None:
        world = TargetWorld()
        world.routes[REJECTED_TOPIC] = world.topic(REJECTED_TOPIC, "broker-0")
        try:
            await story(world)
        finally:
            await world.end_all()

    asyncio.run(run())


async def missing_for(world: TargetWorld, milliseconds: int, entry: bytes) -> list[str]:
    """Try an entry every second for so long; the last result."""
    results: list[str] = []
    for _ in range(0, milliseconds + 1, 1000):
        results = names(await world.put(entry))
        world.now_ms += 1000
    return results


def test_a_name_server_that_has_just_started_is_not_believed_about_a_topic() -> None:
    """A broker tells it its topics within a minute. Before, a fresh owner rejected after 10 s what was to go there."""

    async def story(world: TargetWorld) -> None:
        world.age_ms = 0
        entry = world.entry(1, "orders")
        assert await missing_for(world, 4 * MISSING_MS, entry) == ["TOPIC_AWAY"]
        assert world.stored == []
        world.routes["orders"] = world.topic("orders", "broker-0")
        assert names(await world.put(entry)) == ["PUT_OK"]
        assert world.where() == [("orders", "broker-0")]

    in_world(story)


def test_a_topic_that_does_not_exist_is_rejected() -> None:
    async def story(world: TargetWorld) -> None:
        world.age_ms = SETTLED_MS
        entry = world.entry(1, "nowhere")
        assert await missing_for(world, MISSING_MS, entry) == ["PUT_OK"]
        assert world.where() == [(REJECTED_TOPIC, "broker-0")]
        assert world.asked.count("nowhere") < 10, "asked with a back-off of its own"
        world.now_ms += 10 * MISSING_MS
        world.gate = asyncio.Event()  # the name server is slow: what it has said long ago does not count
        assert names(await world.put(world.entry(2, "nowhere"))) == ["TOPIC_AWAY"]
        world.gate.set()

    in_world(story)


def test_a_topic_whose_master_is_away_is_waited_for_by_a_fresh_owner_too() -> None:
    async def story(world: TargetWorld) -> None:
        whole = world.topic("orders", "broker-0")
        world.routes["orders"] = type(whole)("orders", (), whole.read_queues, {"broker-0": {1: "slave:1"}})
        assert await missing_for(world, 3 * MISSING_MS, world.entry(1, "orders")) == ["TOPIC_AWAY"]
        assert world.stored == []
        assert len(world.soon) >= 30, "a master that is back is not noticed by the next regular look only"

    in_world(story)


def test_a_closed_topic_is_rejected_only_if_it_was_seen_closed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was due for it for an hour, or the machine was suspended; it may have been open meanwhile."""

    async def story(world: TargetWorld) -> None:
        now_ms = mono_ms()
        monkeypatch.setattr(target, "mono_ms", lambda: now_ms)
        whole = world.topic("orders", "broker-0")
        world.cached["orders"] = TopicRoute("orders", (), whole.read_queues, whole.brokers)
        assert names(await world.put(world.entry(1, "orders"))) == ["TOPIC_AWAY"]
        now_ms += 3_600_000
        for _ in range(0, MISSING_MS, 5_000):
            assert names(await world.put(world.entry(1, "orders"))) == ["TOPIC_AWAY"]
            now_ms += 5_000
        assert names(await world.put(world.entry(1, "orders"))) == ["PUT_OK"]
        assert world.where() == [(REJECTED_TOPIC, "broker-0")]

    in_world(story)


def test_topics_that_are_away_are_not_remembered_for_ever() -> None:
    async def work() -> None:
        world = TargetWorld()
        for number in range(TOPICS_MAX + 5):
            topic = f"t{number}"
            world.cached[topic] = TopicRoute(topic, (), (), {})
            await world.targets.route(topic)
        assert len(world.targets._refreshed_ms) == TOPICS_MAX and len(world.soon) == TOPICS_MAX + 5
        last = f"t{TOPICS_MAX + 4}"
        await world.targets.route(last)
        assert len(world.soon) == TOPICS_MAX + 5, "it was asked for just now"
        queues = (MessageQueue(last, "a", 0),)
        world.cached[last] = TopicRoute(last, queues, queues, {"a": {0: "h:1"}})
        await world.targets.route(last)
        assert last not in world.targets._refreshed_ms

    asyncio.run(work())


def test_other_name_servers_are_asked() -> None:
    async def story(world: TargetWorld) -> None:
        world.elsewhere["orders"] = world.topic("orders", "broker-0")
        assert names(await world.put(world.entry(1, "orders"))) == ["PUT_OK"]

    in_world(story)


def test_queues_that_the_progress_names_are_used_while_no_name_server_knows_their_topic() -> None:
    """Not for a message with a key, whose queue depends on how many there are; nor of a broker that is nowhere."""

    async def story(world: TargetWorld) -> None:
        world.age_ms = 0
        world.targets.learn([("orders", "broker-0", 1), ("orders", "broker-9", 0)])
        assert names(await world.put(world.entry(1, "orders"))) == ["TOPIC_AWAY"]
        world.addresses["broker-0"] = "broker-0:1"
        assert names(await world.put(world.entry(1, "orders"), world.entry(2, "orders", key="k"))) == [
            "PUT_OK",
            "TOPIC_AWAY",
        ]
        assert world.stored == [(("orders", "broker-0", 1), b"1")]
        world.age_ms = SETTLED_MS  # now its broker has the last word
        assert names(await world.put(world.entry(2, "orders", key="k"))) == ["PUT_OK"]

    in_world(story)


def test_a_name_server_that_does_not_answer_holds_nothing_up_for_long() -> None:
    async def story(world: TargetWorld) -> None:
        world.cached["orders"] = world.topic("orders", "broker-0")
        world.gate = asyncio.Event()
        entries = [world.entry(at, f"missing-{at}") for at in range(1, 40)]
        begin = asyncio.get_running_loop().time()
        assert names(await world.put(*entries, world.entry(99, "orders"))) == ["TOPIC_AWAY"] * 39 + ["PUT_OK"]
        assert asyncio.get_running_loop().time() - begin < 5, "they are asked for side by side"
        world.gate.set()

    in_world(story)


@pytest.mark.parametrize("how", ["hanging", "refusing"])
def test_a_broker_that_does_not_answer_holds_up_the_others_once(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(target, "ANSWER_MS", 100)
    monkeypatch.setattr(target, "NAMING_MS", 100)
    monkeypatch.setattr(suspects, "PAUSE_MIN_MS", 600_000)

    async def story(world: TargetWorld) -> None:
        world.cached |= {"orders": world.topic("orders", "broker-0"), "bills": world.topic("bills", "broker-1")}
        both = [world.entry(1, "bills"), world.entry(2, "bills"), world.entry(3, "orders"), world.entry(4, "orders")]
        assert names(await world.put(*both)) == ["PUT_OK"] * 4  # both are named
        getattr(world, how).add("broker-1")
        results = await world.put(*[world.entry(at, "bills") for at in (5, 6)], world.entry(7, "orders"))
        assert names(results)[2] == "PUT_OK" and "PUT_OK" not in names(results)[:2]
        monkeypatch.setattr(target, "ANSWER_MS", 600_000)
        results = await world.put(*[world.entry(at, "bills") for at in (8, 9)], world.entry(10, "orders"))
        assert names(results) == ["TOPIC_AWAY", "TOPIC_AWAY", "PUT_OK"], "at once"
        for reply in world.waiting:
            reply.cancel()

    in_world(story)


def test_what_was_not_written_in_time_is_not_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry may be moved meanwhile: written later, with the due time of before, it would come early."""
    monkeypatch.setattr(target, "ANSWER_MS", 50)

    async def story(world: TargetWorld) -> None:
        world.cached["orders"] = world.topic("orders", "broker-0")
        assert names(await world.put(world.entry(1, "orders"), world.entry(2, "orders"))) == ["PUT_OK"] * 2
        world.is_writable = False  # its connection takes nothing now
        assert names(await world.put(world.entry(3, "orders"))) == ["UNKNOWN_ERROR"]
        world.is_writable = True
        await asyncio.gather(*world.target._under_way)
        assert [body for _, body in world.stored] == [b"1", b"2"]
        assert world.shard.lost == {} and not world.shard._in_flight

    in_world(story)


def test_what_is_answered_late_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "ANSWER_MS", 50)

    async def story(world: TargetWorld) -> None:
        world.cached["orders"] = world.topic("orders", "broker-0")
        assert names(await world.put(world.entry(1, "orders"), world.entry(2, "orders"))) == ["PUT_OK"] * 2
        world.hanging.add("broker-0")
        entry = world.entry(3, "orders")
        assert names(await world.put(entry)) == ["UNKNOWN_ERROR"]
        assert names(await world.put(entry)) == ["UNKNOWN_ERROR"], "it is under way"
        (reply,) = world.waiting
        tries = world.tries
        reply.set_result(RemotingCommand(0, 0, ext={"queueOffset": "9"}))
        await asyncio.gather(*world.target._under_way)
        assert world.tries == tries + 1, "its broker counts again"
        assert names(await world.put(entry)) == ["PUT_OK"], "it is done"

    in_world(story)


_ACL = "org.apache.rocketmq.acl.common.AclException: "
_AT = ", org.apache.rocketmq.acl.plain.PlainPermissionManager.checkPerm(PlainPermissionManager.java:730)"


def refusing(world: TargetWorld, monkeypatch: pytest.MonkeyPatch, code: int, remark: str) -> None:
    """A broker refuses sends to the topic "closed"."""
    monkeypatch.setattr(world, "refuses", lambda messages: (code, remark) if messages[0].topic == "closed" else None)


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (1, f"{_ACL}No default permission for topic:closed{_AT}"),
        (1, f"{_ACL}Check signature failed for accessKey=me{_AT}"),
        (1, f"{_ACL}No acl config for me{_AT}"),
        (16, "User:me has no permission to access Topic:closed from 10.0.0.1, no matched policies."),
        (16, "check signature failed."),
        (16, "No permission of accessKey=me to write topic closed"),
        (16, "the broker[10.0.0.1:10911] sending message is forbidden"),
    ],
)
def test_what_the_account_of_the_service_may_not_write_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, remark: str
) -> None:
    """Somebody is changing the account's key or its rights: that says nothing of a message, which goes afterwards.

    5.x answers with NO_PERMISSION for a wrong key as for a right that is missing: what came due while a key was being
    changed was rejected after the third try, half a second later.
    """

    async def story(world: TargetWorld) -> None:
        world.routes |= {topic: world.topic(topic, "broker-0") for topic in ("closed", "orders")}
        times = 3 * target.REFUSALS_MAX
        with monkeypatch.context() as patch:
            refusing(world, patch, code, remark)
            for number in range(times):
                put = await world.put(world.entry(1, "closed"), world.entry(10 + number, "orders"))
                assert names(put) == ["NO_PERMISSION", "PUT_OK"]
        assert world.where() == [("orders", "broker-0")] * times
        assert world.lost_queues == [], "an answer that says that nothing was stored leaves nothing in doubt"
        assert "deliveries to closed at broker-0 wait: " in caplog.text and remark in caplog.text
        assert names(await world.put(world.entry(1, "closed"))) == ["PUT_OK"]
        assert world.where()[times:] == [("closed", "broker-0")]

    in_world(story)


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (13, "the message is illegal, maybe msg body or properties length not matched"),
        (16, "Sending message to topic[closed] is forbidden."),
        (16, "the topic[closed] sending message is forbidden"),
        (17, "topic[closed] not exist, apply first please!"),
    ],
)
def test_what_no_account_may_write_is_rejected(monkeypatch: pytest.MonkeyPatch, code: int, remark: str) -> None:
    async def story(world: TargetWorld) -> None:
        world.routes["closed"] = world.topic("closed", "broker-0")
        refusing(world, monkeypatch, code, remark)
        entry = world.entry(1, "closed")
        for _ in range(target.REFUSALS_MAX):
            assert names(await world.put(entry)) == ["UNKNOWN_ERROR"]
        assert names(await world.put(entry)) == ["PUT_OK"]
        assert world.where() == [(REJECTED_TOPIC, "broker-0")] and world.lost_queues == []

    in_world(story)


def test_a_topic_whose_end_is_refused_does_not_hold_up_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ 5 asks for the right `Get`. Its refusal counted as silence, and nothing went to that broker any more.

    One message for a topic without that right was enough, and anybody who may send can name one.
    """
    monkeypatch.setattr(suspects, "PAUSE_MIN_MS", 20)

    async def story(world: TargetWorld) -> None:
        world.routes |= {topic: world.topic(topic, "broker-0") for topic in ("closed", "orders")}
        end = world.end

        async def refused(queue: TargetQueue) -> int:
            if queue[0] == "closed":
                raise BrokerError(16, "User:me has no permission to access Topic:closed", "broker-0:1")
            return await end(queue)

        world.target._suspects._probe = refused
        with monkeypatch.context() as patch:
            patch.setattr(world, "end", refused)
            for at in range(1, 9):
                put = await world.put(world.entry(at, "closed"), world.entry(10 + at, "orders"))
                assert names(put)[1] == "PUT_OK", "the broker is there"
                assert names(put)[0] == "NO_PERMISSION"
            world.target._suspects.suspect(("closed", "broker-0", 0))  # for another reason
            await asyncio.wait(world.target._suspects.tasks(), timeout=10)
            assert not world.target._suspects.tasks(), "a refusal is an answer"
        assert names(await world.put(world.entry(1, "closed"))) == ["PUT_OK"]

    in_world(story)


def test_a_delivery_makes_no_topic() -> None:
    """Apache's brokers make what a send names, after the model that it names: the topic itself is there, or is none."""
    asked: list[dict[str, str]] = []

    def request_now(
        _code: int, ext: dict[str, str], _body: bytes, *, timeout_ms: int, may: Callable[[], bool] | None
    ) -> asyncio.Future[None]:
        assert timeout_ms > 0 and may is None
        asked.append(ext)
        return asyncio.get_running_loop().create_future()

    async def send() -> None:
        link = ClusterLink("127.0.0.1:1", "TIMEWHEEL")
        connection = cast(ClientConnection, SimpleNamespace(request_now=request_now))
        link.send_now(connection, ("orders", "broker-0", 3), "", b"body")

    asyncio.run(send())
    assert (asked[0]["b"], asked[0]["c"]) == ("orders", "orders")


def test_what_stood_still_between_the_look_and_the_write_is_not_written() -> None:
    """Its successor has delivered it meanwhile. It was written, and so came twice."""

    async def story(world: TargetWorld) -> None:
        world.routes["orders"] = world.topic("orders", "broker-0", "broker-1")
        entries = [world.entry(offset, "orders") for offset in range(1, 5)]
        world.stands_still = True
        lease = world.shard.lease
        assert names(await world.put(*entries)) == ["SERVICE_NOT_AVAILABLE"] * 4
        assert world.stored == [] and world.lost_queues == [], "nothing was written, so nothing is in doubt"
        world.stands_still, world.shard.lease = False, lease
        assert names(await world.put(*entries)) == ["PUT_OK"] * 4
        assert len(world.stored) == 4

    in_world(story)
