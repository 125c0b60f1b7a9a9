"""What senders send through a door has connections of its own: what keeps shards owned does not wait behind it."""

from __future__ import annotations

import asyncio
import json

from remoting.codes import RequestCode
from remoting.command import encode_command, request
from remoting.headers import SendHeader
from service.front.front import SenderFront
from service.link.cluster import ClusterLink
from tests.support.fake_broker import FakeBroker
from tests.support.ports import free_port

ENTRY = "TIMEWHEEL"
SENDS = 200
PATIENCE_S = 60


def timed_send(opaque: int) -> bytes:
    header = SendHeader("raw", "orders", queue_id=opaque % 4, properties="TIMER_DELAY_MS\x0160000\x02")
    return encode_command(request(RequestCode.SEND_MESSAGE_V2, header.to_v2(), b"x" * 1000, opaque=opaque))


def test_a_lease_is_renewed_while_a_flood_goes_through_a_door() -> None:
    """The broker answers what comes in on a connection in order, and has a flood of entries to work off."""

    async def work() -> None:
        async with FakeBroker({ENTRY: 4, "orders": 4}) as broker:
            data = {"brokerName": "broker-a", "brokerAddrs": {"0": broker.address}}
            table = json.dumps({"brokerAddrTable": {"broker-a": data}}).encode()
            broker.handlers[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda command: command.reply(body=table)
            broker.handlers[RequestCode.GET_MAX_OFFSET] = lambda command: command.reply(ext={"offset": "7"})
            broker.blocking.add(RequestCode.SEND_MESSAGE_V2)
            cluster = ClusterLink(broker.address, ENTRY)
            await cluster.core.start()
            names = free_port()
            front = SenderFront(cluster, "127.0.0.1", names, False)
            await front.open()
            host, port = front.own_doors("127.0.0.1")["broker-a"].split(":")
            _, raw = await asyncio.open_connection(host, int(port))
            try:
                assert await cluster.end((ENTRY, "broker-a", 0)) == 7
                raw.write(b"".join(map(timed_send, range(SENDS))))
                async with asyncio.timeout(PATIENCE_S):
                    while len(broker.of(RequestCode.SEND_MESSAGE_V2)) < SENDS:
                        await asyncio.sleep(0)
                assert await cluster.end((ENTRY, "broker-a", 0)) == 7, "an answer, although no send has one"
            finally:
                raw.close()
                broker.drop_connections()
                await front.close()
                await cluster.core.close()

    asyncio.run(work())


def test_the_link_of_a_door_is_no_member() -> None:
    """Else the queues that it is given would be nobody's."""
    cluster = ClusterLink("127.0.0.1:1", ENTRY)

    def consumers(link: ClusterLink) -> object:
        return link._heartbeat()["consumerDataSet"]

    assert consumers(cluster) and consumers(cluster.beside()) == []
