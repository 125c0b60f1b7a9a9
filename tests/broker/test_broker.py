"""The whole broker in one loop, with real sockets on 127.0.0.1."""

import asyncio
import contextlib
import json
import logging
import socket
import struct
import time

import pytest

from broker.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.plugins import PluginError, load_plugin, load_plugins
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from remoting.messages.message import parse_message_id
from store.disk.errors import StoreLockedError
from tests.broker.core_rig import FakePlugin, properties, records_of
from tests.support.ports import free_ports_around
from tests.support.wait import until

DELAY_PLUGIN = "broker_plugin.plugin:DelayPlugin"


def config_in(tmp_path, **values) -> BrokerConfig:
    usual = {"listen_port": 0, "namesrv_listen": ("127.0.0.1", 0), "plugins": []}
    named = {name: values.pop(name) for name in list(values) if name in (*usual, "namesrv_addr", "broker_name")}
    if "namesrv_addr" in named:
        usual.pop("namesrv_listen")
    texts = {name: str(value) for name, value in values.items()}
    return BrokerConfig(tmp_path / "store", texts, **{**usual, **named})


class Caller:
    """A connection that asks one thing at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decoder = FrameDecoder()
        self.came: list[RemotingCommand] = []
        self.opaque = 0

    @classmethod
    async def to(cls, port: int) -> "Caller":
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(sock)

    async def submit(self, code: int, ext: dict | None = None, body: bytes = b"", flag: int = 0) -> int:
        self.opaque += 1
        texts = {name: str(value) for name, value in (ext or {}).items()}
        frame = encode_command(RemotingCommand(code, self.opaque, flag, ext=texts, body=body))
        await asyncio.get_running_loop().sock_sendall(self.sock, frame)
        return self.opaque

    async def reply(self, opaque: int) -> RemotingCommand:
        loop = asyncio.get_running_loop()
        while True:
            for number, command in enumerate(self.came):
                if command.is_response and command.opaque == opaque:
                    return self.came.pop(number)
            data = await asyncio.wait_for(loop.sock_recv(self.sock, 1 << 16), 10)
            if not data:
                raise ConnectionError("closed")
            self.came += self.decoder.feed(data)

    async def ask(self, code: int, ext: dict | None = None, body: bytes = b"") -> RemotingCommand:
        return await self.reply(await self.submit(code, ext, body))

    async def send(self, topic: str, text: str = "", body: bytes = b"x") -> RemotingCommand:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, text), body)

    async def pull(self, topic: str, offset: int = 0, wait_ms: int = 0) -> RemotingCommand:
        return await self.ask(RequestCode.PULL_MESSAGE, pull_fields(topic, offset, wait_ms))

    def close(self) -> None:
        self.sock.close()


def send_fields(topic: str, text: str = "") -> dict:
    usual = {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 5, "h": 0, "i": text, "j": 0}
    return {**usual, "k": "false", "m": "false"}


def pull_fields(topic: str, offset: int, wait_ms: int = 0) -> dict:
    return {
        "consumerGroup": "cg",
        "topic": topic,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4 | (2 if wait_ms else 0),
        "suspendTimeoutMillis": wait_ms,
        "subscription": "*",
    }


@contextlib.asynccontextmanager
async def caller_of(port: int):
    caller = await Caller.to(port)
    try:
        yield caller
    finally:
        caller.close()


# ------------------------------------------------------------------------------------------------ life


def test_send_pull_and_route_over_the_wire(tmp_path):
    async def run():
        async with (
            Broker(config_in(tmp_path)) as broker,
            caller_of(broker.listen_port) as caller,
            caller_of(broker.namesrv_port) as namesrv,
        ):
            assert (await caller.send("T", body=b"hello")).code == 0
            (message,) = records_of((await caller.pull("T")).body)
            assert message.body == b"hello"
            host, port = parse_host(message.store_host)
            assert (host, port) == ("127.0.0.1", broker.listen_port)
            route = json.loads((await namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body)
            assert route["brokerDatas"][0]["brokerAddrs"] == {"0": f"127.0.0.1:{broker.listen_port}"}
            assert route["queueDatas"][0]["writeQueueNums"] == 4

    asyncio.run(run())


def parse_host(host: bytes) -> tuple[str, int]:
    return ".".join(map(str, host[:4])), struct.unpack(">i", host[4:])[0]


def test_a_pull_that_waits_is_answered_when_a_message_comes(tmp_path):
    async def run():
        async with (
            Broker(config_in(tmp_path)) as broker,
            caller_of(broker.listen_port) as sender,
            caller_of(broker.listen_port) as reader,
        ):
            await sender.send("T")
            waiting = await reader.submit(RequestCode.PULL_MESSAGE, pull_fields("T", 1, 15_000))
            await until(lambda: broker.core.long_poll.held(("T", 0)))
            await sender.send("T", body=b"second")
            (message,) = records_of((await reader.reply(waiting)).body)
            assert message.body == b"second"
            waiting = await reader.submit(RequestCode.PULL_MESSAGE, pull_fields("T", 2, 50))
            assert (await reader.reply(waiting)).code == ResponseCode.PULL_NOT_FOUND

    asyncio.run(run())


def test_stop_answers_and_keeps_what_was_read(tmp_path):
    async def run():
        broker = Broker(config_in(tmp_path, flushDiskType="SYNC_FLUSH"))
        await broker.start()
        caller = await Caller.to(broker.listen_port)
        await caller.send("T")
        sent = [await caller.submit(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"%d" % n) for n in range(20)]
        await until(lambda: len(broker.store.queue_entries("T", 0, 0, 100)) == 21)
        await asyncio.wait_for(broker.stop(), 30)  # whoever is connected stays so, and it does not wait for them
        for opaque in sent:
            assert (await caller.reply(opaque)).code == 0
        with pytest.raises(ConnectionError):
            await caller.reply(0)
        caller.close()
        await broker.stop()
        with pytest.raises(RuntimeError, match="not started"):
            broker.store  # noqa: B018
        assert not (tmp_path / "store" / "abort").exists(), "an Apache broker would not have to recover either"
        async with Broker(config_in(tmp_path)) as again, caller_of(again.listen_port) as reader:
            assert (await reader.pull("T")).ext["maxOffset"] == "21"

    asyncio.run(run())


def test_a_port_in_use_is_named_and_nothing_is_touched(tmp_path):
    async def run():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
                await Broker(config_in(tmp_path, listen_port=port)).start()
            assert not (tmp_path / "store").exists()

    asyncio.run(run())


def test_one_store_one_broker(tmp_path):
    async def run():
        async with Broker(config_in(tmp_path)):
            with pytest.raises(StoreLockedError):
                await Broker(config_in(tmp_path)).start()
        async with Broker(config_in(tmp_path)):
            pass

    asyncio.run(run())


def test_the_vip_port_is_two_below(tmp_path):
    async def run():
        port = free_ports_around(-2)
        async with Broker(config_in(tmp_path, listen_port=port)), caller_of(port - 2) as caller:
            assert (await caller.send("T")).code == 0

    asyncio.run(run())


def test_consumer_offsets_are_written_while_it_runs(tmp_path):
    async def run():
        config = config_in(tmp_path, flushConsumerOffsetInterval=20)
        async with Broker(config) as broker, caller_of(broker.listen_port) as caller:
            await caller.send("T")
            fields = pull_fields("T", 0) | {"sysFlag": 5, "commitOffset": 1}
            await caller.ask(RequestCode.PULL_MESSAGE, fields)
            file = tmp_path / "store" / "config" / "consumerOffset.json"
            await until(file.exists)
            assert json.loads(file.read_bytes())["offsetTable"] == {"T@cg": {"0": 1}}

    asyncio.run(run())


def test_when_a_thread_fails_nothing_is_taken_any_more(tmp_path, caplog):
    async def run():
        async with Broker(config_in(tmp_path)) as broker, caller_of(broker.listen_port) as caller:
            await caller.send("T")
            broker.store.flusher.on_failure(RuntimeError("planted"))
            with pytest.raises(ConnectionError):
                await caller.send("T")
            assert isinstance(broker.failure, RuntimeError)

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(run())
    assert "planted" in caplog.text


# ------------------------------------------------------------------------------------------------ name servers


def test_an_external_name_server_learns_of_topics_at_once(tmp_path):
    async def run():
        async with Broker(config_in(tmp_path / "ns")) as other:
            config = config_in(tmp_path, namesrv_addr=[f"127.0.0.1:{other.namesrv_port}"], broker_name="broker-b")
            async with Broker(config) as broker, caller_of(other.namesrv_port) as namesrv:
                assert broker.namesrv_port == 0
                async with caller_of(broker.listen_port) as caller:
                    await caller.send("Fresh")
                while True:
                    reply = await namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Fresh"})
                    if reply.code == 0:
                        break
                assert b"broker-b" in reply.body
            async with caller_of(other.namesrv_port) as namesrv:
                reply = await namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Fresh"})
                assert reply.code == ResponseCode.TOPIC_NOT_EXIST, "a broker that ends takes itself out"

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ plug-ins


def test_a_plugin_lives_with_the_broker(tmp_path, monkeypatch):
    made = []

    def make():
        made.append(FakePlugin())
        return made[-1]

    monkeypatch.setattr("tests.broker.core_rig.make_plugin", make, raising=False)

    async def run():
        config = config_in(tmp_path, plugins=["tests.broker.core_rig:make_plugin"])
        async with Broker(config) as broker, caller_of(broker.listen_port) as caller:
            (plugin,) = broker.plugins
            assert plugin.context.directory == tmp_path / "store" / "timewheel" / "fake"
            assert plugin.context.store_host == broker.store.store_host
            reply = await caller.send("T", properties(HOLD=1))
            assert parse_message_id(reply.ext["msgId"])[1] >= 1 << 62

    asyncio.run(run())
    assert made[0].calls == ["open", "start", "topics_changed", "stop", "close"]


@pytest.mark.parametrize("plugins", [[], [DELAY_PLUGIN]])
def test_a_broker_that_delays_nothing_says_so(tmp_path, plugins, caplog):
    async def run():
        async with Broker(config_in(tmp_path, plugins=plugins)):
            pass

    asyncio.run(run())
    assert ("no plug-in is loaded" in caplog.text) == (not plugins)


def test_delayed_messages_come_at_their_time_and_survive_a_restart(tmp_path):
    async def run():
        config = config_in(tmp_path, plugins=[DELAY_PLUGIN])
        async with Broker(config) as broker, caller_of(broker.listen_port) as caller:
            due_ms = int(time.time() * 1000) + 150
            assert (await caller.send("T", properties(__STARTDELIVERTIME=due_ms), b"soon")).code == 0
            later_ms = due_ms + 2_500
            reply = await caller.send("T", properties(__STARTDELIVERTIME=later_ms), b"later")
            (message,) = records_of((await caller.pull("T", 0, 15_000)).body)
            assert message.body == b"soon" and message.store_ms >= due_ms
            offset = parse_message_id(reply.ext["msgId"])[1]
            (pending,) = records_of((await caller.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})).body)
            assert pending.body == b"later"
            assert broker.core.pending_count() == 1
            refused = await caller.send("T", properties(__STARTDELIVERTIME="soon"))
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL and "soon" in refused.remark
        async with (
            Broker(config_in(tmp_path, plugins=[DELAY_PLUGIN])) as broker,
            caller_of(broker.listen_port) as caller,
        ):
            reply = await caller.pull("T", 1, 15_000)
            (message,) = records_of(reply.body)
            assert message.body == b"later" and message.store_ms >= later_ms
            (found,) = records_of((await caller.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})).body)
            assert found.offset == message.offset, "the id of the pending message still finds it"
            assert broker.core.pending_count() == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nobody", "there is no plug-in 'nobody' among the installed ones"),
        ("no.such.module:Plugin", "ModuleNotFoundError"),
        ("broker.plugins:Nothing", "there is no Nothing in broker.plugins"),
        ("broker.net.channel:MemoryChannel", "is no store.put.plugin_api.Plugin: it lacks before_put, cancel"),
        ("builtins:print", "is no store.put.plugin_api.Plugin"),
    ],
)
def test_plugins_that_cannot_be_loaded(name, text):
    with pytest.raises(PluginError, match=text):
        load_plugin(name)


def test_two_plugins_of_one_name():
    with pytest.raises(PluginError, match="two plug-ins are named 'fake'"):
        load_plugins(["tests.broker.core_rig:FakePlugin"] * 2)


def test_a_plugin_that_cannot_open_gives_everything_back(tmp_path, monkeypatch):
    def refuse(_self, _context):
        raise RuntimeError("planted")

    async def run():
        with monkeypatch.context() as patch:
            patch.setattr(FakePlugin, "open", refuse)
            with pytest.raises(RuntimeError, match="planted"):
                await Broker(config_in(tmp_path, plugins=["tests.broker.core_rig:FakePlugin"])).start()
        async with Broker(config_in(tmp_path)) as broker, caller_of(broker.listen_port) as caller:
            assert (await caller.send("T")).code == 0

    asyncio.run(run())
