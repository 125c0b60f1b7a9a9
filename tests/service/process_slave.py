"""A master with a slave under the service: what happens while the master is dead, and when its log is back; a program.

One broker name, ``SYNC_MASTER`` and a slave, two instances, messages due over 40 s. After 10 s the master is killed. It
is started again 20 s later, or, with ``--promote``, never: the slave is restarted as the master of its name, on its own
copy of the log. At the end the ledger, and what was read from the slave meanwhile::

    python -m tests.service.process_slave FOLDER --promote
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from service.link.cluster import ClusterLink
from service.running.entries import REJECTED_TOPIC
from tests.service.process_cluster import RealCluster, now_ms, read_all
from tests.support.apache import TIMER_OFTEN, VERSION, ApacheBroker, ApacheNameServer
from tests.support.wait import happens, let_pass, wait_until
from timewheel_client.values.errors import ClientError, NoRouteError

__all__ = ["main"]

TARGET = "orders"
COUNT = 800
SPREAD_MS = 40_000
AWAY_S = 20
MASTER = {"brokerRole": "SYNC_MASTER", "totalReplicas": "2", "inSyncReplicas": "2"}
"""RocketMQ 5 waits for the slave only with the last one: 1, its default, is the master alone."""
SLAVE = {"brokerRole": "SLAVE", "slaveReadEnable": "true"}
NAME = {"brokerName": "broker-0", "brokerIP2": "127.0.0.1"}


class AnyReplica(ClusterLink):
    """Reads from the master, or else from the slave."""

    async def address(self, topic: str, broker: str) -> str:
        """The address of one that has the topic; raises NoRouteError."""
        route = await self.core.route(topic)
        address = route.address(broker)
        if address is None:
            raise NoRouteError(f"nobody has {topic}")
        return address


def readable(namesrv: str) -> str:
    """How many messages of the target one can read now, or why none."""

    async def count() -> int:
        link = AnyReplica(namesrv, "READER", member=False)
        found = 0
        try:
            await link.core.start()
            route = await link.core.route(TARGET)
            for queue in route.read_queues:
                where = (TARGET, queue.broker_name, queue.queue_id)
                end, at = await link.end(where), 0
                while at < end:
                    pull = await link.pull(where, at, wait=False)
                    found, at = found + len(pull.messages), pull.next_offset
        finally:
            await link.core.close()
        return found

    try:
        return str(asyncio.run(count()))
    except ClientError as error:
        return str(error)


class Replicated(RealCluster):
    """A cluster of one broker name: a master that answers once its slave has the message, and that slave."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.wires, self.services, self._count = folder, [], [], 0
        self.names = ApacheNameServer(folder / "names")
        self.namesrv = self.names.address
        self.version = version
        self.master = self.broker("master", MASTER).start()
        self.slave = self.broker("slave", {**SLAVE, "brokerId": "1"}).start()
        self.brokers = [self.master, self.slave]

    def broker(self, folder: str, settings: dict[str, str]) -> ApacheBroker:
        """One of the two, not started; a folder that exists is one with a log."""
        made = {**TIMER_OFTEN, **NAME, **settings}
        return ApacheBroker(self.folder / folder, self.namesrv, made, "512m", version=self.version)

    def promote(self) -> None:
        """Restart the slave as the master of its name, on its own log."""
        self.slave.stop(60)
        self.brokers = [self.broker("slave", {"brokerRole": "ASYNC_MASTER"}).start()]


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if the ledger does not agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--promote", action="store_true", help="the slave becomes the master")
    parser.add_argument("--version", default=VERSION, help="of Apache's brokers; the name server is 5.5.0")
    options = parser.parse_args(arguments)
    cluster = Replicated(options.folder, options.version)
    try:
        slave, cluster.brokers = cluster.brokers[1], cluster.brokers[:1]
        cluster.topics(4, TARGET)
        cluster.brokers.append(slave)
        for _ in range(2):
            cluster.service()
        cluster.wait_owned(4, 120)
        known = slave.folder / "store/config/topics.json"
        topics = f'"{TARGET}"'  # which it copies once a minute
        wait_until(lambda: known.exists() and topics in known.read_text(), 150, "the slave's copy of the topics")
        begin_ms = now_ms()
        cluster.send(range(COUNT), TARGET, [begin_ms + 1000 + at * SPREAD_MS // COUNT for at in range(COUNT)])
        let_pass(max(0.0, 10 - (now_ms() - begin_ms) / 1000))
        print(f"{(now_ms() - begin_ms) / 1000:.1f} s: {readable(cluster.namesrv)} can be read; the master is killed")
        port = cluster.master.port
        cluster.master.kill()
        until = time.monotonic() + AWAY_S
        while time.monotonic() < until:
            let_pass(5)
            print(f"{(now_ms() - begin_ms) / 1000:.1f} s: {readable(cluster.namesrv)} can be read", flush=True)
        if options.promote:
            cluster.promote()
        else:
            cluster.master.start(port)
        print(f"{(now_ms() - begin_ms) / 1000:.1f} s: a master is back", flush=True)
        done = happens(lambda: readable(cluster.namesrv) == str(COUNT), 120)
        print(f"{(now_ms() - begin_ms) / 1000:.1f} s: {readable(cluster.namesrv)} can be read", flush=True)
        copies = asyncio.run(read_all(cluster.namesrv, (TARGET, REJECTED_TOPIC)))
        verdict, late = copies.verdict(range(COUNT)), copies.late()
        print(f"{verdict}; late p50 {late[len(late) // 2]} ms, max {late[-1]} ms")
        return 0 if done and not any(verdict.values()) else 1
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
