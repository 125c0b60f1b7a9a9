"""An instance of the service: a member of the group that shares the shards by RocketMQ's own rebalancing."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from remoting.codes import RequestCode
from remoting.command import ProtocolError
from remoting.json_dialect import loads
from service.core.progress import TargetQueue
from service.link.clock import wall_ms
from service.link.cluster import ClusterLink
from service.link.startup import check_topics, shards_of
from service.running.cache import throw_away
from service.running.entries import REJECTED_TOPIC
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from service.running.takeover import TakeoverError
from store.disk.errors import StoreError
from timewheel_client.consuming.allocation import allocate_evenly
from timewheel_client.values.errors import ClientError, NoRouteError

__all__ = ["DelayService", "SenderDoor"]

_LOG = logging.getLogger(__name__)

REBALANCE_MS = 10_000
RELEASE_PAUSE_MS = 700
"""How long a new owner gives the old one to release the shard before it takes it over."""
RETRY_MS = 3000
"""Pause after a takeover that ended otherwise than by order."""
REPORT_MS = 30_000


def standbys_of(me: str, members: Sequence[str], shards: Sequence[TargetQueue]) -> set[TargetQueue]:
    """The shards that come to a member if one of the others vanishes: each shard comes to one.

    >>> shards = [("T", "b", number) for number in range(4)]
    >>> sorted(standbys_of("m1", ["m1", "m2"], shards)) == shards[2:]
    True
    """
    mine = set(allocate_evenly(me, list(members), list(shards)))
    found: set[TargetQueue] = set()
    for other in members:
        if other != me:
            left = [member for member in members if member != other]
            lost = set(allocate_evenly(other, list(members), list(shards)))
            found |= lost & set(allocate_evenly(me, left, list(shards)))
    return found - mine


class SenderDoor(Protocol):
    """What an instance offers to senders beside the entry topic."""

    @property
    def ended(self) -> Mapping[str, int]:
        """Sends with a due time by what became of them."""
        ...

    @property
    def senders(self) -> int:
        """Connections of senders."""
        ...

    def name(self) -> str:
        """What the instance's name as a member ends in: so instances find each other."""
        ...

    async def open(self) -> None:
        """Begin. Raises OSError, ClientError."""
        ...

    def members(self, names: Sequence[str]) -> None:
        """Learn who else is a member."""
        ...

    async def close(self) -> None:
        """End what is under way."""
        ...


class DelayService:
    """Shares the shards of an entry topic with the other instances, and owns its part.

    Args:
        cluster: The cluster, not started.
        namesrv: Its name servers, for texts.
        directory: For the caches; belongs to this process alone.
        roll_after_ms: When what still waits is written again, ms after it was stored.
        warm: Whether to follow the shards that would come to it if one other instance vanished.
        door: What it offers to senders, if it does.
    """

    def __init__(
        self,
        cluster: ClusterLink,
        namesrv: str,
        directory: Path,
        roll_after_ms: int,
        warm: bool = True,
        door: SenderDoor | None = None,
    ) -> None:
        self._cluster = cluster
        self._namesrv = namesrv
        self._directory = directory
        self.roll_after_ms = roll_after_ms
        self.tally = InstanceCounts()
        self._owners: dict[TargetQueue, Owner] = {}
        self._runs: dict[TargetQueue, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._wanted: set[TargetQueue] = set()
        self._standbys: dict[TargetQueue, Owner] = {}
        self._not_before: dict[TargetQueue, float] = {}
        self._count = 0
        self._warm = warm
        self.door = door

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until told to stop; raises SetupError or ClientError if it cannot begin."""
        cluster = self._cluster
        cluster.version = wall_ms()
        await cluster.core.start()
        try:
            if self.door is not None:
                cluster.core.client_id += self.door.name()
            shards = await check_topics(cluster, self._namesrv, REJECTED_TOPIC)
            throw_away(self._directory / "shards")
            if self.door is not None:
                await self.door.open()
            cluster.on_change = self._wake.set
            await cluster.core.send_heartbeats()
            _LOG.info(
                "member %s of %s, %d shards in %s", cluster.core.client_id, cluster.group, len(shards), cluster.topic
            )
            chores = [asyncio.ensure_future(self._balance()), asyncio.ensure_future(self._report())]
            try:
                await stop.wait()
            finally:
                for chore in chores:
                    chore.cancel()
                await asyncio.gather(*chores, return_exceptions=True)
                if self.door is not None:
                    await self.door.close()
                await self._leave()
        finally:
            await cluster.core.close()

    def owners(self) -> list[Owner]:
        """The present owners of shards; any thread."""
        return list(self._owners.values())

    async def _leave(self) -> None:
        for owner in (*self._owners.values(), *self._standbys.values()):
            owner.leave()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)
        await self._cluster.core.unregister("consumerGroup", self._cluster.group)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_MS / 1000)
            owners = list(self._owners.values())
            pending = sum(owner.cache.pending_count for owner in owners if owner.cache is not None)
            tally = self.tally
            doubtful = sum(len(owner.shard.lost) + len(owner.shard.doubts) for owner in owners)
            text = (
                f"shards {len(owners)}, pending {pending}, delivered {tally.delivered}, rejected {tally.rejected}, "
                f"rolled {tally.rolled}, in doubt {doubtful}"
            )
            if self.door is not None:
                ended = ", ".join(f"{name} {count}" for name, count in self.door.ended.items())
                text += f"; connections of senders {self.door.senders}, their sends: {ended}"
            _LOG.info("%s", text)

    # ------------------------------------------------------------------------------------------------ sharing

    async def _balance(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._rebalance()
            except (ClientError, ProtocolError) as error:
                _LOG.warning("sharing the shards: %s", error)
            timeout_s = REBALANCE_MS / 1000
            for at in self._not_before.values():
                timeout_s = min(timeout_s, max(0.05, at - time.monotonic()))
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _rebalance(self) -> None:
        route = await self._cluster.core.route(self._cluster.topic)
        members = await self._members(route.addresses())
        if self.door is not None:
            self.door.members(members)
        shards = shards_of(route)
        wanted = set(allocate_evenly(self._cluster.core.client_id, members, shards))
        now = time.monotonic()
        for queue in wanted - self._wanted:
            if len(members) > 1:
                self._not_before[queue] = now + RELEASE_PAUSE_MS / 1000
        if wanted != self._wanted:
            _LOG.info(
                "%d members, %d shards, of them for this one: %s",
                len(members),
                len(shards),
                ", ".join(f"{broker}/{number}" for _, broker, number in sorted(wanted)) or "none",
            )
        self._wanted = wanted
        for queue in self._owners.keys() - wanted:
            self._owners[queue].leave()
        for queue in sorted(wanted - self._owners.keys()):
            if self._not_before.get(queue, 0.0) <= now:
                self._not_before.pop(queue, None)
                self._take_over(queue)
        for queue in self._not_before.keys() - wanted:
            del self._not_before[queue]
        self._stand_by(standbys_of(self._cluster.core.client_id, members, shards) if self._warm else set())

    def _stand_by(self, chosen: set[TargetQueue]) -> None:
        """Follow these shards, which another instance owns."""
        for queue in self._standbys.keys() - chosen - self._wanted:
            self._standbys[queue].leave()
        for queue in chosen - self._wanted - self._runs.keys():
            self._standbys[queue] = self._owner_of(queue)
            self._runs[queue] = asyncio.ensure_future(self._run(queue, self._standbys[queue]))

    async def _members(self, addresses: set[str]) -> list[str]:
        """The group's members, this one always among them; raises ClientError if no broker tells."""
        failure: Exception = NoRouteError("no broker")
        me = self._cluster.core.client_id
        for address in sorted(addresses):
            try:
                ext = {"consumerGroup": self._cluster.group}
                reply = await self._cluster.core.ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
                members = set(map(str, loads(reply.body)["consumerIdList"]))
            except (ClientError, ProtocolError, ValueError, KeyError, TypeError) as error:
                failure = error if isinstance(error, ClientError) else ProtocolError(f"consumer list: {error}")
                continue
            if me not in members:
                await self._cluster.core.send_heartbeats()
            return sorted(members | {me})
        raise failure

    def _take_over(self, queue: TargetQueue) -> None:
        standby = self._standbys.pop(queue, None)
        owner = self._owners[queue] = standby or self._owner_of(queue)
        owner.promote()
        if standby is None:
            self._runs[queue] = asyncio.ensure_future(self._run(queue, owner))

    def _owner_of(self, queue: TargetQueue) -> Owner:
        self._count += 1
        name = f"{self._cluster.core.client_id}#{os.urandom(4).hex()}"
        directory = self._directory / "shards" / f"{queue[1]}-{queue[2]}-{self._count}"
        return Owner(self._cluster, queue, name, directory, self.roll_after_ms, self.tally)

    async def _run(self, queue: TargetQueue, owner: Owner) -> None:
        try:
            await owner.run()
            self.tally.fenced += not owner.is_leaving
            owner.tell.info("given up" if owner.is_leaving else "another owner took over")
        except (ClientError, StoreError) as error:
            self.tally.failed += 1
            owner.tell.warning(str(error))
        except TakeoverError as error:
            self.tally.failed += 1
            _LOG.warning("%s", error)
        except Exception as error:  # a bug: the shard must have an owner all the same
            self.tally.failed += 1
            _LOG.error("%s: %s", owner.name, error, exc_info=True)
        finally:
            for table in (self._owners, self._standbys):
                if table.get(queue) is owner:
                    del table[queue]
            del self._runs[queue]
            self._not_before[queue] = time.monotonic() + RETRY_MS / 1000
            self._wake.set()
