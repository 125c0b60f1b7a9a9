"""`timewheel broker --shards` as real processes: one broker to its clients, whatever happens to one of the shards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from remoting.signing import sign
from tests.support.hostile import body as hostile_body
from tests.support.ours import ROOT
from tests.support.shards import ShardedBroker
from tests.support.wait import happens, pause, wait_until
from tests.support.wire import Wire, WireError
from timewheel_client import Consumer, Producer

pytestmark = pytest.mark.process

SECONDS = 90
KILLS_MAX = 5
"""After the fifth one it stays away for 8 s."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedBroker]:
    running = ShardedBroker(tmp_path_factory.mktemp("shards"))
    try:
        yield running.start()
    finally:
        running.kill()


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "broker.cli", *map(str, words)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def alike(broker: ShardedBroker, topic: str) -> bool:
    """Whether both shards have a topic, with the same configuration."""
    first, second = broker.topic(0, topic), broker.topic(1, topic)
    return first is not None and first == second


# ------------------------------------------------------------------------------------------ what all have in common


def test_a_topic_made_on_one_is_on_all_and_in_the_routes_before_the_answer(broker: ShardedBroker) -> None:
    for index in (0, 1):
        topic = f"made{index}"
        with Wire(broker.addresses[index]) as wire:
            wire.create_topic(topic, 3)
        assert alike(broker, topic)
        assert broker.brokers_of(topic) == {"broker-a-0": 6, "broker-a-1": 6}


def test_permissions_and_deletion_reach_all(broker: ShardedBroker) -> None:
    with Wire(broker.addresses[0]) as first, Wire(broker.addresses[1]) as second:
        first.create_topic("changing")
        fields = {"topic": "changing", "readQueueNums": 7, "writeQueueNums": 2, "perm": 4, "order": "false"}
        second.ask(17, {**fields, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "defaultTopic": "TBW102"})
        for index in (0, 1):
            config = broker.topic(index, "changing")
            assert config is not None
            assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (7, 2, 4)
        second.ask(215, {"topic": "changing"})
    assert broker.topic(0, "changing") is broker.topic(1, "changing") is None


def test_groups_reach_all(broker: ShardedBroker) -> None:
    with Wire(broker.addresses[1]) as wire:
        wire.ask(200, {}, json.dumps({"groupName": "readers", "retryMaxTimes": 3}).encode())
        found = [broker.group(index, "readers") for index in (0, 1)]
        assert [group and group["retryMaxTimes"] for group in found] == [3, 3]
        wire.ask(207, {"groupName": "readers"})
    assert broker.group(0, "readers") is broker.group(1, "readers") is None


def test_settings_reach_all_but_the_permission_of_one(broker: ShardedBroker) -> None:
    with Wire(broker.addresses[1]) as wire:
        wire.ask(25, {}, b"transactionCheckMax=7")
        assert [broker.setting(index, "transactionCheckMax") for index in (0, 1)] == ["7", "7"]
        wire.ask(25, {}, b"brokerPermission=4")
        assert [broker.setting(index, "brokerPermission") for index in (0, 1)] == ["6", "4"]
        wire.ask(25, {}, b"brokerPermission=6")
        with pytest.raises(WireError, match="brokerPermission is a setting of one shard"):
            wire.ask(25, {}, b"brokerPermission=4\nlogLevel=INFO")


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (17, {"topic": "bad name!", "topicFilterType": "SINGLE_TAG", "perm": 6}, b""),
        (17, {"topic": "no-numbers", "topicFilterType": "SINGLE_TAG", "perm": "x"}, b""),
        (25, {}, b"listenPort=1"),
        (25, {}, b"brokerPermission=9"),
        (200, {}, b"\xff{"),
        (215, {"topic": "TBW102"}, b""),
    ],
)
def test_what_is_refused_is_refused_as_by_one_broker(
    broker: ShardedBroker, code: int, fields: dict[str, object], body: bytes
) -> None:
    before = [broker.log_text.count("is process"), broker.topic(0, "TBW102"), broker.topic(1, "TBW102")]
    with Wire(broker.addresses[1]) as wire, pytest.raises(WireError):
        fields = {"readQueueNums": 1, "writeQueueNums": 1, "order": "false", "topicSysFlag": 0, **fields}
        wire.ask(code, fields, body)
    assert [broker.log_text.count("is process"), broker.topic(0, "TBW102"), broker.topic(1, "TBW102")] == before
    assert not (broker.store / "shards" / "changes.json").read_bytes().count(b"waiting")


def test_a_first_send_and_a_first_reader_make_topic_and_group_on_all(broker: ShardedBroker) -> None:
    async def run() -> None:
        async with Producer(broker.namesrv) as producer:
            await producer.send("first-sent", b"x")
        async with Consumer(broker.namesrv, "first-read", "first-sent") as consumer:
            async with asyncio.timeout(SECONDS):
                async for message in consumer:
                    await message.ack()
                    break

    asyncio.run(run())
    assert alike(broker, "first-sent")
    groups = [broker.group(index, "first-read") for index in (0, 1)]
    assert groups[0] == groups[1]
    assert groups[0] is not None


# ------------------------------------------------------------------------------------------ when one of them dies


def test_a_change_while_one_is_down_reaches_it_before_its_clients_are_let_in(broker: ShardedBroker) -> None:
    """It may be back before the changes are made, and then it is killed again: each time it stays away for longer."""
    for number in range(KILLS_MAX):
        with Wire(broker.addresses[0]) as wire:
            wire.create_topic(f"to-be-deleted-{number}")
            starts = broker.serving_count(1)
            broker.kill_shard(1)
            wire.create_topic(f"made-meanwhile-{number}", 5)
            wire.ask(215, {"topic": f"to-be-deleted-{number}"})
            wire.ask(25, {}, b"transactionCheckMax=%d" % (20 + number))
        was_down = broker.serving_count(1) == starts
        broker.wait_served(1, starts + 1)
        if was_down:
            break
    assert was_down, "it was back too soon each time: the test has shown nothing"
    wait_until(lambda: reachable(broker, 1), SECONDS, "shard 1 is back")
    assert alike(broker, f"made-meanwhile-{number}")
    assert broker.topic(1, f"to-be-deleted-{number}") is None
    assert broker.setting(1, "transactionCheckMax") == str(20 + number)
    assert set(broker.brokers_of("TBW102")) == {"broker-a-0", "broker-a-1"}


def test_one_that_does_not_answer_is_named_and_makes_the_change_when_it_does(broker: ShardedBroker) -> None:
    pid = broker.pid(1)
    os.kill(pid, signal.SIGSTOP)
    try:
        with Wire(broker.addresses[0], timeout_seconds=SECONDS) as wire, pytest.raises(WireError) as error:
            wire.create_topic("while-stopped", 3)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "made on broker-a-0; broker-a-1 has not confirmed it" in str(error.value)
    wait_until(lambda: alike(broker, "while-stopped"), SECONDS, "shard 1 has it, too")
    changes = broker.store / "shards" / "changes.json"
    wait_until(
        lambda: not changes.exists() or b"waiting" not in changes.read_bytes(), SECONDS, "nothing waits for shard 1"
    )


def reachable(broker: ShardedBroker, index: int) -> bool:
    try:
        Wire(broker.addresses[index]).close()
    except OSError:
        return False
    return True


class Load:
    """The Python client: senders and a reader, while something happens."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.namesrv = namesrv
        self.topic = topic
        self.acked: dict[bytes, tuple[str, int, int]] = {}
        self.timed: set[bytes] = set()
        self.failed: list[str] = []
        self.received: list[tuple[bytes, tuple[str, int, int]]] = []
        self._over = False

    async def run(self, what: Callable[[], None]) -> None:
        senders = [asyncio.create_task(self._send(number)) for number in range(3)]
        reader = asyncio.create_task(self._read())
        await asyncio.to_thread(what)
        self._over = True
        await asyncio.gather(*senders)
        await asyncio.to_thread(happens, self._all_received, SECONDS)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    def _all_received(self) -> bool:
        return not self.acked.keys() - {body for body, _ in self.received}

    async def _send(self, sender: int) -> None:
        async with Producer(self.namesrv) as producer:
            number = 0
            while not self._over:
                body = b"%d %d " % (sender, number) + hostile_body(Random(number), 300)
                delay = timedelta(milliseconds=200 + number % 700) if number % 2 else None
                try:
                    result = await producer.send(self.topic, body, delay=delay)
                except Exception as error:
                    self.failed.append(repr(error))
                else:
                    queue = result.queue
                    self.acked[body] = queue.broker_name, queue.queue_id, number
                    if delay is not None:
                        self.timed.add(body)
                number += 1
                await pause(0.004)

    async def _read(self) -> None:
        async with Consumer(self.namesrv, f"g-{self.topic}", self.topic) as consumer:
            async for message in consumer:
                queue = message.queue
                self.received.append((message.body, (queue.broker_name, queue.queue_id, message.queue_offset)))
                await message.ack()


def judge(load: Load) -> None:
    """Nothing lost, nothing stored twice, and no queue's order broken."""
    assert len(load.acked) > 200
    places: dict[bytes, set[tuple[str, int, int]]] = {}
    for body, place in load.received:
        places.setdefault(body, set()).add(place)
    assert not load.acked.keys() - places.keys(), "lost"
    # A producer that saw the connection break sends again, to another broker. No broker has two copies.
    twice = [body for body in load.acked if len({name for name, _, _ in places[body]}) < len(places[body])]
    assert not twice, "more than one copy"
    assert sum(len(places[body]) > 1 for body in load.acked) <= 2 * 3, "more copies than sends under way at the kills"
    last: dict[tuple[str, int, int], int] = {}
    seen: set[bytes] = set()
    for body, (name, queue, _) in load.received:
        if body in seen or body in load.timed or body not in load.acked:
            continue
        seen.add(body)
        sender, number = (int(word) for word in body.split(b" ", 2)[:2])
        assert last.get((name, queue, sender), -1) < number, "order within a queue"
        last[name, queue, sender] = number


def test_one_that_is_killed_comes_back_and_clients_notice_no_more_than_a_retry(broker: ShardedBroker) -> None:
    load = Load(broker.namesrv, "killed-under")
    with Wire(broker.addresses[0]) as wire:
        wire.create_topic("killed-under")

    def kill() -> None:
        for index in (1, 0):
            starts = broker.serving_count(index)
            assert happens(lambda: len(load.received) > 100, SECONDS)
            broker.kill_shard(index)
            broker.wait_served(index, starts + 1)

    asyncio.run(load.run(kill))
    judge(load)
    assert not load.failed


# ------------------------------------------------------------------------------------------ beginning and end


def test_it_begins_and_ends_as_a_single_broker_does(tmp_path: Path) -> None:
    single = ShardedBroker(tmp_path, shards=0)
    try:
        single.start()
        asyncio.run(send(single.namesrv, "before", 5))
        single.stop()
        many = ShardedBroker(tmp_path, shards=2)
        single = many
        begin = time.monotonic()
        many.start()
        start_s = time.monotonic() - begin
        asyncio.run(send(many.namesrv, "before", 20))
        assert asyncio.run(receive(many.namesrv, "before", 25)) == 25

        begin = time.monotonic()
        assert many.stop() == 0
        assert time.monotonic() - begin < start_s, "as a rule it takes a fifth of the start"
        many_lines = many.log.read_text().splitlines()
        assert sum(line.startswith("ready: 2 shards") for line in many_lines) == 1

        done = command("check", many.store)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("nothing is wrong") == 2

        for words, helps in (
            (["--shards", "1"], "timewheel drain broker-a-1 --store"),
            ([], "start it with --shards 2"),
            (["--shards", "0"], "a number from 1 to 64, or auto"),
            (["--shards", "two"], "a number from 1 to 64, or auto"),
        ):
            done = command("broker", "--store", many.store, "--listen", "0", "--namesrv-listen", "0", *words)
            assert done.returncode in (1, 2)
            assert helps in done.stderr
            assert done.stderr.count("\n") == 1
    finally:
        single.kill()


async def send(namesrv: str, topic: str, count: int) -> None:
    async with Producer(namesrv) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number)


async def receive(namesrv: str, topic: str, count: int) -> int:
    found: set[bytes] = set()
    async with Consumer(namesrv, f"g-{topic}", topic, start_from="first") as consumer:
        async with asyncio.timeout(SECONDS):
            while len(found) < count:
                async for message in consumer:
                    found.add(message.message_id.encode())
                    await message.ack()
                    if len(found) >= count:
                        break
    return len(found)


def test_shards_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    broker = ShardedBroker(tmp_path)
    try:
        broker.start()
        pids = [broker.pid(index) for index in (0, 1)]
        broker.child.process.kill()
        wait_until(lambda: not any(map(alive, pids)), SECONDS, "both shards have ended")
        broker.child.process.wait()
        done = command("check", broker.store)
        assert done.stdout.count("nothing is wrong") == 2, "they ended in order"
        broker.start()
    finally:
        broker.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_none_runs_if_one_cannot_start(tmp_path: Path) -> None:
    broker = ShardedBroker(tmp_path)
    (broker.store / "shards" / "1" / "config").mkdir(parents=True)
    (broker.store / "shards" / "1" / "config" / "topics.json").write_text("{broken")
    child = broker.spawn()
    try:
        assert child.process.wait(SECONDS) == 1
        lines = [line for line in broker.log.read_text().splitlines() if line.startswith("timewheel:")]
        assert len(lines) == 1
        assert "broker-a-1 could not be started" in lines[0]
        assert "topics.json" in lines[0]
        assert not any(alive(broker.pid(index)) for index in (0, 1))
    finally:
        broker.kill()


def test_a_shard_is_drained(tmp_path: Path) -> None:
    broker = ShardedBroker(tmp_path)
    try:
        broker.start()
        with Wire(broker.addresses[0]) as wire:
            wire.create_topic("drained", 2)
        asyncio.run(send_timed(broker.namesrv, "drained", 20))
        done = command("drain", "broker-a-1", "--store", broker.store, "--no-wait")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: broker.brokers_of("drained").get("broker-a-1") == 4, SECONDS, "written no more")
        assert broker.brokers_of("drained")["broker-a-0"] == 6
        left = broker.store / "shards" / "1" / "left.json"
        wait_until(left.exists, SECONDS, "the drain says what is left")
        assert json.loads(left.read_bytes())["left"]
        assert asyncio.run(receive(broker.namesrv, "drained", 20)) == 20
        done = command("drain", "1", "--store", broker.store)
        assert done.returncode == 0, done.stderr
        assert "shard 1 is out" in done.stdout
        assert set(broker.brokers_of("drained")) == {"broker-a-0"}
        assert not reachable(broker, 1)
        done = command("drain", "0", "--store", broker.store)
        assert (done.returncode, "the only one" in done.stderr) == (1, True)
        assert broker.stop() == 0
        broker.shards = 1
        broker.start()
        assert set(broker.brokers_of("drained")) == {"broker-a-0"}
    finally:
        broker.kill()


async def send_timed(namesrv: str, topic: str, count: int) -> None:
    async with Producer(namesrv) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, delay=timedelta(seconds=3))


RULES = """accounts:
  - accessKey: administrator
    secretKey: twelve-characters
    admin: true
  - accessKey: somebody
    secretKey: other-characters
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
"""


def test_one_file_of_rules_holds_for_all_and_a_change_is_checked_where_it_comes_in(tmp_path: Path) -> None:
    broker = ShardedBroker(tmp_path, settings={"aclEnable": "true"})
    (broker.store / "config").mkdir(parents=True)
    rules = broker.store / "config" / "plain_acl.yml"
    rules.write_text(RULES)
    rules.chmod(0o600)
    fields = {"topic": "guarded", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "false"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "defaultTopic": "TBW102"}

    def signed(account: str, secret: str) -> dict[str, str]:
        own = {**fields, "AccessKey": account}
        return {**own, "Signature": sign(own, b"", secret)}

    try:
        broker.start()
        for index in (0, 1):
            with Wire(broker.addresses[index]) as wire:
                for refused in (fields, signed("somebody", "other-characters"), signed("administrator", "wrong")):
                    with pytest.raises(WireError) as error:
                        wire.ask(17, refused)
                    assert error.value.code == 16
        assert broker.brokers_of("guarded") == {}
        with Wire(broker.addresses[1]) as wire:
            wire.ask(17, signed("administrator", "twelve-characters"))
        assert set(broker.brokers_of("guarded")) == {"broker-a-0", "broker-a-1"}
        assert b"Signature" not in b"".join(path.read_bytes() for path in (broker.store / "shards").glob("*.json*"))
    finally:
        broker.kill()
