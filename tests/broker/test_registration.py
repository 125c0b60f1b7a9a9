"""Registration with external name servers, whose sockets are a function here."""

import asyncio
import zlib
from collections import Counter

import pytest

from broker.naming.namesrv import NameServer
from broker.naming.registration import Registration, parse_registration, register_command
from broker.tables.topic_config import TopicConfig
from broker.tables.topics import Topics
from remoting.codes import RequestCode
from remoting.errors import ProtocolError
from remoting.json_dialect import loads
from store.disk.files import Files

IDENTITY = {"brokerAddr": "192.0.2.1:10911", "brokerId": "0", "brokerName": "broker-a", "clusterName": "C"}


@pytest.fixture
def topics(tmp_path):
    return Topics(Files(), tmp_path / "topics.json", lambda: 5, cluster_name="C")


class Servers:
    """Name servers that answer by rule; every request is kept, and can be waited for."""

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.asked = []
        self.changed = asyncio.Condition()

    async def ask(self, address, command):
        async with self.changed:
            self.asked.append((address, command))
            self.changed.notify_all()
        answer = self.answers.get(address)
        if answer is not None:
            answer = answer()
            if asyncio.iscoroutine(answer):
                await answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                return command.reply(answer, "no")
        return command.reply()

    def count(self, address, code=RequestCode.REGISTER_BROKER):
        return Counter((name, command.code) for name, command in self.asked)[address, code]

    async def until(self, condition):
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(condition)


def registration(servers, topics, addresses, **more):
    return Registration(servers.ask, addresses, topics, cluster="C", name="broker-a", address="192.0.2.1:10911", **more)


def run(scenario):
    async def limited():
        async with asyncio.timeout(20):
            await scenario

    asyncio.run(limited())


def test_what_is_sent_has_every_topic_and_its_checksum(topics):
    topics.put(TopicConfig("T", 2, 3))
    command = register_command(IDENTITY, topics)
    assert command.code == 103
    assert command.ext["bodyCrc32"] == str(zlib.crc32(command.body) & 0x7FFFFFFF)
    assert command.ext["haServerAddr"] == "192.0.2.1:10912"
    assert {name: command.ext[name] for name in IDENTITY} == IDENTITY
    parsed, version, filters = parse_registration(command.body, False)
    assert parsed.keys() == topics.table.keys()
    assert (parsed["T"].read_queue_nums, parsed["T"].write_queue_nums, parsed["T"].perm) == (2, 3, 6)
    assert version == topics.data_version.to_json()
    assert filters == []


def test_a_read_only_broker_registers_read_only_topics(topics):
    parsed, _, _ = parse_registration(register_command(IDENTITY, topics, 4).body, False)
    assert {data.perm for data in parsed.values()} == {4}
    assert topics.get("TBW102").perm == 7


def test_garbage_is_a_protocol_error():
    for body in (b"x", b"[1]", b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":1}}}'):
        for compressed in (True, False):
            with pytest.raises(ProtocolError):
                parse_registration(body, compressed)


def test_registered_at_start_and_out_at_stop(topics):
    async def scenario():
        servers = Servers()
        keeper = registration(servers, topics, ["a:1", "b:2"])
        await keeper.start()
        assert keeper.status == {"a:1": "registered", "b:2": "registered"}
        await keeper.stop()
        assert servers.count("a:1", RequestCode.UNREGISTER_BROKER) == 1
        assert servers.count("b:2", RequestCode.UNREGISTER_BROKER) == 1
        assert not topics.listeners

    run(scenario())


def test_again_after_each_period(topics):
    async def scenario():
        servers = Servers()
        keeper = registration(servers, topics, ["a:1"], period_ms=1)
        await keeper.start()
        await servers.until(lambda: servers.count("a:1") >= 4)
        await keeper.stop()

    run(scenario())


def test_a_changed_topic_is_registered_at_once(topics):
    async def scenario():
        servers = Servers()
        keeper = registration(servers, topics, ["a:1"])
        await keeper.start()
        topics.put(TopicConfig("New", 1, 1))
        topics.put(TopicConfig("Newer", 1, 1))
        await servers.until(lambda: servers.count("a:1") >= 2)
        sent = loads(servers.asked[1][1].body)["topicConfigSerializeWrapper"]
        assert {"New", "Newer"} <= sent["topicConfigTable"].keys()
        assert sent["dataVersion"]["counter"] == 2
        await keeper.stop()
        assert servers.count("a:1") == 2

    run(scenario())


def test_a_changed_permission_of_the_broker_is_a_change_of_all_topics(topics):
    async def scenario():
        perm = 6
        servers = Servers()
        keeper = registration(servers, topics, ["a:1"], perm=lambda: perm)
        await keeper.start()
        version = topics.data_version.counter
        perm = 4
        keeper.topics_changed()
        await servers.until(lambda: servers.count("a:1") >= 2)
        parsed, sent_version, _ = parse_registration(servers.asked[1][1].body, False)
        assert {data.perm for data in parsed.values()} == {4}
        assert sent_version["counter"] == version + 1
        await keeper.stop()

    run(scenario())


def test_a_change_during_a_registration_is_not_forgotten(topics):
    async def scenario():
        gate = asyncio.Event()
        servers = Servers({"a:1": gate.wait})
        keeper = registration(servers, topics, ["a:1"])
        start = asyncio.create_task(keeper.start())
        await servers.until(lambda: servers.count("a:1") == 1)
        topics.put(TopicConfig("New", 1, 1))
        gate.set()
        await start
        await servers.until(lambda: servers.count("a:1") == 2)
        assert b'"New"' in servers.asked[1][1].body
        await keeper.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (lambda: OSError(111, "Connection refused"), "Connection refused"),
        (lambda: ProtocolError("what is this"), "what is this"),
        (lambda: EOFError(), "EOFError"),
        (lambda: RuntimeError("a bug"), "RuntimeError('a bug')"),
        (lambda: 1, "refused with code 1: no"),
        (lambda: asyncio.Event().wait(), "no answer within 5 ms"),
    ],
)
def test_a_name_server_that_fails_does_not_hold_up_another(topics, answer, status):
    async def scenario():
        servers = Servers({"bad:1": answer})
        keeper = registration(servers, topics, ["bad:1", "good:2"], timeout_ms=5, period_ms=1)
        await keeper.start()
        assert status in keeper.status["bad:1"]
        assert keeper.status["good:2"] == "registered"
        await servers.until(lambda: servers.count("bad:1") >= 3)
        del servers.answers["bad:1"]
        seen = servers.count("bad:1")
        await servers.until(lambda: servers.count("bad:1") >= seen + 2)
        assert keeper.status["bad:1"] == "registered"
        await keeper.stop()

    run(scenario())


def test_stop_does_not_wait_for_a_name_server_that_hangs(topics):
    async def scenario():
        servers = Servers()
        keeper = registration(servers, topics, ["a:1"])
        await keeper.start()
        servers.answers["a:1"] = lambda: asyncio.Event().wait()
        await keeper.stop()
        assert keeper.status == {"a:1": "unregistered"}

    run(scenario())


def test_our_own_name_server_understands_it(topics):
    server = NameServer()
    register = register_command(IDENTITY, topics)
    reply = server.register_broker(None, register, 1)
    assert reply.code == 0
    assert server.routes.topics("C") == sorted(topics.table)
