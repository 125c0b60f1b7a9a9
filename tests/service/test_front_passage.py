"""What passes between a sender and the cluster, what is taken out of it, and what is answered when something breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from remoting.command import ProtocolError, RemotingCommand, encode_command
from remoting.headers import SendHeader
from service.front.frames import FrameCutter
from service.front.front import SenderFront
from service.front.passage import UNDER_WAY_BYTES, Passage
from service.front.places import BrokerPlace
from service.front.wire import PassageWire
from service.link.cluster import ClusterLink
from tests.service.front_world import ENTRY, FrontWorld, MemoryWire
from timewheel_client.net.client_core import ClientCore
from timewheel_client.values.errors import ClientError, ConnectionFailedError, RequestTimeoutError

DUE = "__STARTDELIVERTIME\x0190000\x02"
Story = Callable[[FrontWorld], Coroutine[Any, Any, None]]


def story(tell: Story, **world: int) -> None:
    async def run() -> None:
        await tell(FrontWorld(**world))

    asyncio.run(run())


def send(opaque: int, properties: str = DUE, topic: str = "orders", queue: int = 3, flag: int = 0) -> RemotingCommand:
    ext = SendHeader("producers", topic, queue_id=queue, properties=properties).to_v2()
    ext |= {"n": "broker-a-via-x", "AccessKey": "me", "Signature": "s="}
    return RemotingCommand(310, opaque, flag, ext=ext, body=b"body %d" % opaque)


def stored(at: int) -> RemotingCommand:
    return RemotingCommand(0, 99, FLAG_RESPONSE, ext={"msgId": "AB", "queueId": "3", "queueOffset": str(at)})


def test_bytes_pass_as_they_are() -> None:
    async def tell(world: FrontWorld) -> None:
        requests = [send(7, ""), RemotingCommand(37, 8, FLAG_ONEWAY), RemotingCommand(38, 9, language="GO")]
        data = await world.sends(*requests)
        assert world.far.take() == data and world.dials == 1
        data = await world.answers(RemotingCommand(0, 9, FLAG_RESPONSE, body=b"x"), stored(5))
        assert world.near.take() == data
        assert not world.core.connections.sent

    story(tell)


def test_heartbeats_and_queries_are_answered_here() -> None:
    async def tell(world: FrontWorld) -> None:
        codes = [RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.QUERY_MESSAGE]
        await world.sends(*(RemotingCommand(code, at) for at, code in enumerate(codes)))
        assert [(reply.opaque, reply.code) for reply in world.near.answers()] == [(0, 0), (1, 0), (2, 22)]
        assert not world.dials

    story(tell)


def test_a_due_time_takes_the_way_of_the_service() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7))
        ((address, code, ext, body, answer),) = world.core.connections.sent
        assert (address, code, body) == ("broker-a:10911", 310, b"body 7")
        assert ext["b"] == ENTRY and ext["e"] == "3" and "TW_TOPIC\x01orders" in ext["i"]
        assert not {"n", "AccessKey", "Signature"} & ext.keys()
        assert not world.near.take(), "nothing is stored yet"
        answer.set_result(stored(17))
        await world.settle()
        (reply,) = world.near.answers()
        assert (reply.opaque, reply.code, reply.is_response) == (7, 0, True)
        assert reply.ext == {"msgId": "AB", "queueId": "3", "queueOffset": "17"}
        assert world.room.held_bytes == 0 and not world.dials

    story(tell)


@pytest.mark.parametrize("signs", [False, True])
def test_a_signed_transaction_with_a_due_time_is_refused_where_signatures_count(signs: bool) -> None:
    """Its half message would be the entry topic's, and the broker would refuse its commit, to which nobody listens."""

    async def tell(world: FrontWorld) -> None:
        half = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02"
        await world.sends(send(7, DUE + half), send(8, half), send(9, DUE))
        assert len(world.core.connections.sent) == (1 if signs else 2)
        assert b"body 8" in world.far.take(), "without a due time it is the broker's business"
        if signs:
            (reply,) = world.near.answers()
            assert (reply.opaque, reply.code) == (7, ResponseCode.MESSAGE_ILLEGAL)
            assert "TW_DELIVER_MS" in (reply.remark or "") and world.room.ended["refused"] == 1

    story(tell, signs=signs)


@pytest.mark.parametrize("code", [10, 11, 12, 2, 13, 14, 16, 17, 1])
def test_the_answer_of_the_broker_is_the_senders(code: int) -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7))
        world.core.connections.sent[0][4].set_result(RemotingCommand(code, 1, FLAG_RESPONSE, remark="why"))
        await world.settle()
        (reply,) = world.near.answers()
        assert reply.code == code and "why" in (reply.remark or "")

    story(tell)


@pytest.mark.parametrize("failure", [ConnectionFailedError("broken"), RequestTimeoutError("late")])
def test_no_answer_is_no_success(failure: Exception) -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7))
        world.core.connections.sent[0][4].set_exception(failure)
        await world.settle()
        (reply,) = world.near.answers()
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE and str(failure) in (reply.remark or "")
        world.core.connections.broken = True
        await world.sends(send(8))
        (reply,) = world.near.answers()
        assert (reply.opaque, reply.code) == (8, ResponseCode.SERVICE_NOT_AVAILABLE)
        assert len(world.core.connections.sent) == 1 and world.room.held_bytes == 0

    story(tell)


@pytest.mark.parametrize(
    ("properties", "topic", "code"),
    [
        (DUE, "missing", ResponseCode.TOPIC_NOT_EXIST),
        (DUE, "closed", ResponseCode.NO_PERMISSION),
        ("TIMER_DELAY_MS\x01soon\x02", "orders", ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_refused(properties: str, topic: str, code: int) -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7, properties, topic), send(8, properties, topic, flag=FLAG_ONEWAY))
        assert [(reply.opaque, reply.code) for reply in world.near.answers()] == [(7, code)]
        assert not world.core.connections.sent and world.room.held_bytes == 0
        assert world.core.forgotten == ["missing"] * 2 * (topic == "missing")

    story(tell)


def test_oneway_sends_get_no_answer() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7, flag=FLAG_ONEWAY))
        world.core.connections.sent[0][4].set_result(stored(1))
        await world.settle()
        assert not world.near.take()

    story(tell)


def test_sends_are_written_in_order() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(*(send(opaque) for opaque in range(50)))
        assert [body for _, _, _, body, _ in world.core.connections.sent] == [b"body %d" % n for n in range(50)]
        for _, _, _, _, answer in reversed(world.core.connections.sent):
            answer.set_result(stored(1))
        await world.settle()
        assert sorted(reply.opaque for reply in world.near.answers()) == list(range(50))

    story(tell)


def test_what_has_waited_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has given up and sent it elsewhere: it would be a copy."""
    times = iter([0, 0, 0, 3001, 3001])
    monkeypatch.setattr("service.front.sending.mono_ms", lambda: next(times))

    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7), send(8))
        assert [body for _, _, _, body, _ in world.core.connections.sent] == [b"body 7"]
        (reply,) = world.near.answers()
        assert (reply.opaque, reply.code) == (8, ResponseCode.SERVICE_NOT_AVAILABLE)

    story(tell)


def test_the_entry_goes_to_another_broker_if_this_one_has_no_queue() -> None:
    async def tell(world: FrontWorld) -> None:
        entry = world.core.routes[ENTRY]
        others = tuple(queue for queue in entry.write_queues if queue.broker_name == "broker-b")
        world.core.routes[ENTRY] = type(entry)(ENTRY, others, others, entry.brokers)
        await world.sends(send(7), send(8, DUE + "TRAN_MSG\x01true\x02"))
        ((address, _, ext, _, _),) = world.core.connections.sent
        assert (address, ext["e"]) == ("broker-b:10911", "1")
        (reply,) = world.near.answers()
        assert (reply.opaque, reply.code) == (8, ResponseCode.MESSAGE_ILLEGAL)

    story(tell)


def test_requests_under_way_are_answered_when_the_cluster_breaks() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7, ""), send(8, ""), send(9, "", flag=FLAG_ONEWAY))
        await world.answers(RemotingCommand(0, 8, FLAG_RESPONSE))
        world.near.take()
        world.passage.lost(cast(PassageWire, world.far), "reset")
        (reply,) = world.near.answers()
        assert (reply.opaque, reply.code) == (7, ResponseCode.SERVICE_NOT_AVAILABLE)
        assert world.near.is_open
        data = await world.sends(send(10, ""))
        assert world.far.take() == data and world.dials == 2

    story(tell)


def test_no_broker_is_answered_and_not_read_for_meanwhile() -> None:
    async def tell(world: FrontWorld) -> None:
        world.gate.clear()
        world.refuses = True
        await world.sends(send(7, ""), RemotingCommand(37, 8, FLAG_ONEWAY))
        assert not world.near.reading
        world.gate.set()
        await world.settle()
        assert world.near.reading
        assert [(reply.opaque, reply.code) for reply in world.near.answers()] == [(7, 14)]
        world.refuses = False
        data = await world.sends(send(9, ""))
        assert world.far.take() == data

    story(tell)


def test_who_does_not_read_is_not_read_for() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7, ""))
        near, far = cast(PassageWire, world.near), cast(PassageWire, world.far)
        world.passage.pressed(near, True)
        assert not world.far.reading and not world.near.reading
        world.passage.pressed(far, True)
        world.passage.pressed(near, False)
        assert world.far.reading and not world.near.reading
        world.passage.pressed(far, False)
        assert world.near.reading

    story(tell)


def test_room_for_sends_is_bounded() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(*(send(opaque) for opaque in range(9)))
        replies = world.near.answers()
        assert replies and {reply.code for reply in replies} == {ResponseCode.SYSTEM_BUSY}
        assert len(world.core.connections.sent) + len(replies) == 9
        for _, _, _, _, answer in world.core.connections.sent:
            answer.set_result(stored(1))
        await world.settle()
        assert world.room.held_bytes == 0

    story(tell, room_bytes=10_000)


def test_too_many_sends_of_one_stop_its_reading() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(*(send(opaque) for opaque in range(2001)))
        for _ in range(2100):
            await asyncio.sleep(0)
        assert not world.near.reading
        for _, _, _, _, answer in world.core.connections.sent[:100]:
            answer.set_result(stored(1))
        await world.settle()
        assert world.near.reading

    story(tell, room_bytes=1 << 30)


def test_a_sender_that_is_gone_leaves_nothing() -> None:
    async def tell(world: FrontWorld) -> None:
        await world.sends(send(7, ""), send(8))
        world.near.is_open = False
        world.passage.lost(cast(PassageWire, world.near), "closed")
        assert not world.entered and not world.far.is_open
        world.core.connections.sent[0][4].set_result(stored(1))
        await world.settle()
        assert world.room.held_bytes == 0

    story(tell)


def test_what_is_kept_is_counted() -> None:
    async def tell(world: FrontWorld) -> None:
        world.gate.clear()
        data = await world.sends(send(7, ""))
        size = len(data) + UNDER_WAY_BYTES
        assert world.held_bytes == size
        world.near.pending_bytes = 5_000_000
        world.passage.received(cast(PassageWire, world.near), [])
        assert world.held_bytes == size + 5_000_000
        world.passage.lost(cast(PassageWire, world.near), "closed")
        await world.settle()
        assert world.held_bytes == 0

    story(tell)


def front_with(count: int) -> tuple[SenderFront, list[MemoryWire], list[Passage]]:
    """A front without ports, and senders in it."""
    cluster = FrontWorld().cluster
    front = SenderFront(cast(ClusterLink, SimpleNamespace(beside=lambda: cluster)), "127.0.0.1", 9, False)
    place = BrokerPlace(front, "broker-a")
    wires, passages = [MemoryWire() for _ in range(count)], [Passage(place) for _ in range(count)]
    for wire, passage in zip(wires, passages, strict=True):
        passage.opened(cast(PassageWire, wire))
    return front, wires, passages


def test_silent_senders_are_closed() -> None:
    front, wires, _ = front_with(2)
    for _ in range(13):
        wires[0].silent = 0
        front.sweep()
    assert [wire.is_open for wire in wires] == [True, False] and front.senders == 2


def test_the_greediest_sender_is_closed_when_too_much_is_kept() -> None:
    front, wires, passages = front_with(3)
    for wire, passage, megabytes in zip(wires, passages, (100, 120, 40), strict=True):
        wire.pending_bytes = megabytes << 20
        passage.received(cast(PassageWire, wire), [])
    assert [wire.is_open for wire in wires] == [True, False, True]
    passages[1].lost(cast(PassageWire, wires[1]), "aborted")
    wires[2].pending_bytes = 100 << 20
    passages[2].received(cast(PassageWire, wires[2]), [])
    assert wires[0].is_open and wires[2].is_open and front.senders == 2


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (1, b""),
        (0, b""),
        (0, b"no JSON"),
        (0, b"[]"),
        (0, b'{"brokerAddrTable":5}'),
        (0, b'{"brokerAddrTable":{"broker-a":7}}'),
        (0, b'{"brokerAddrTable":{"broker-a":{"brokerName":"broker-a","brokerAddrs":[]}}}'),
        (0, b'{"brokerAddrTable":{"broker-a":{"brokerName":"broker-a","brokerAddrs":{"1":"a slave"}}}}'),
    ],
)
def test_a_list_of_brokers_that_cannot_be_read_is_an_error_that_senders_are_told(
    monkeypatch: pytest.MonkeyPatch, code: int, body: bytes
) -> None:
    async def told(*_: object) -> RemotingCommand:
        return RemotingCommand(code, 1, 1, body=body)

    core = ClientCore("127.0.0.1:1", dict)
    monkeypatch.setattr(core, "ask_namesrv", told)
    senders = SimpleNamespace(core=core, topic="TIMEWHEEL")
    cluster = cast(ClusterLink, SimpleNamespace(beside=lambda: senders))
    front = SenderFront(cluster, "127.0.0.1", 9, False)
    with pytest.raises(ClientError):
        asyncio.run(front.master("broker-a"))


commands = st.builds(
    RemotingCommand,
    st.integers(0, 400),
    st.integers(0, 2**31 - 1),
    st.sampled_from([0, 1, 2]),
    ext=st.dictionaries(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5), max_size=3),
    body=st.binary(max_size=40),
    serialize_type=st.sampled_from([0, 1]),
)


@given(st.lists(commands, max_size=6), st.lists(st.integers(1, 60), max_size=60))
def test_frames_are_cut_as_they_came(made: list[RemotingCommand], sizes: list[int]) -> None:
    data = b"".join(map(encode_command, made))
    cutter = FrameCutter()
    frames = []
    at = 0
    for size in [*sizes, len(data)]:
        frames += cutter.feed(data[at : at + size])
        at += size
    assert b"".join(frame.raw for frame in frames) == data and cutter.pending_bytes == 0
    assert [frame.command.opaque for frame in frames] == [command.opaque for command in made]


@given(st.binary(min_size=8, max_size=60))
def test_garbage_is_an_error_of_the_protocol_or_waits(data: bytes) -> None:
    cutter = FrameCutter()
    try:
        frames = cutter.feed(data)
    except ProtocolError:
        return
    assert sum(len(frame.raw) for frame in frames) + cutter.pending_bytes == len(data)


HTTP, TLS = b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01"
LONG_HEADER = b"\x00\x00\x00\x10\x00\xff\xff\xff"


@pytest.mark.parametrize("data", [HTTP, TLS, LONG_HEADER, bytes(8)])
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameCutter().feed(data)
