"""An instance of the service: a member of a RocketMQ consumer group whose members share the shards."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from remoting.codes import RequestCode
from remoting.command import ProtocolError
from remoting.json_dialect import loads
from service.core.progress import TargetQueue
from service.core.sharing import KnownShards, Membership, heirs, shares, standbys
from service.link.clock import mono_ms, wall_ms
from service.link.cluster import ClusterLink
from service.link.log import Teller
from service.link.startup import check_retention, check_topics, shards_of
from service.running.cache import throw_away
from service.running.entries import REJECTED_TOPIC
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from service.running.takeover import TakeoverError
from store.disk.errors import StoreError
from timewheel_client.values.errors import ClientError, NoRouteError

__all__ = ["DelayService", "SenderDoor"]

_LOG = logging.getLogger(__name__)

REBALANCE_MS = 10_000
RETRY_MS = 3000
"""Pause after a takeover that ended without an order; twice as long each time, up to `RETRY_MAX_MS`."""
RETRY_MAX_MS = 24_000
STEADY_MS = 30_000
"""After a shard was owned for this long, its next failure counts as the first one."""
ASKED_MAX = 4
"""Number of brokers that are asked for the members. Each broker knows all of them."""
LIST_TIMEOUT_MS = 1000
REPORT_MS = 30_000


@dataclass(frozen=True, eq=False, slots=True)
class _Plan:
    """Owner and follower of each shard, and the inputs that this was computed from."""

    made_of: object = None
    members: frozenset[str] = frozenset()
    owners: Mapping[TargetQueue, str] = field(default_factory=dict)
    mine: set[TargetQueue] = field(default_factory=set)
    standbys: set[TargetQueue] = field(default_factory=set)


class SenderDoor(Protocol):
    """The ports of an instance for senders that do not use the entry topic (``--listen``)."""

    @property
    def ended(self) -> Mapping[str, int]:
        """Number of sends with a due time, by their outcome."""
        ...

    @property
    def senders(self) -> int:
        """Number of connections of senders."""
        ...

    def name(self) -> str:
        """The end of the instance's name as a member, by which instances find each other."""
        ...

    async def open(self) -> None:
        """Open the ports. Raises OSError, ClientError."""
        ...

    def members(self, names: Sequence[str]) -> None:
        """Take over the names of all members."""
        ...

    async def close(self) -> None:
        """Close the ports and end the requests under way."""
        ...


class DelayService:
    """Shares the shards of an entry topic with the other instances, and owns its share.

    Args:
        cluster: The cluster, not started.
        namesrv: The cluster's name servers, for texts.
        directory: Directory for the caches. Only this process may use it.
        roll_after_ms: Age at which an entry that still waits is rolled, ms after its store time.
        warm: Whether to follow the shards that it would take over if another instance vanished.
        door: Ports for senders; None: there are none.
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
        self._plan = _Plan()
        self._view = Membership("")
        self._known = KnownShards()
        self._fails: dict[TargetQueue, int] = {}
        self._to_be_read: set[TargetQueue] = set()  # shards whose next owner here reads everything in its order
        self._tellers: dict[TargetQueue, Teller] = {}
        self.seen_ms: int | None = None
        """Time at which a broker last listed the members, monotonic ms."""
        self._standbys: dict[TargetQueue, Owner] = {}
        self._not_before: dict[TargetQueue, int] = {}
        self._count = 0
        self._warm = warm
        self.door = door

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set. Raises SetupError or ClientError if it cannot start."""
        cluster = self._cluster
        cluster.version = wall_ms()
        await cluster.core.start()
        try:
            if self.door is not None:
                cluster.core.client_id += self.door.name()
            shards = await check_topics(cluster, self._namesrv, REJECTED_TOPIC)
            await check_retention(cluster, self.roll_after_ms)
            throw_away(self._directory / "shards")
            if self.door is not None:
                await self.door.open()
            self._view = Membership(cluster.core.client_id)
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
        """The running owners of shards. Any thread."""
        return list(self._owners.values())

    def followers(self) -> list[Owner]:
        """The followers of shards that other instances own. Any thread."""
        return list(self._standbys.values())

    @property
    def name(self) -> str:
        """The name of this instance as a member. Any thread."""
        return self._cluster.core.client_id

    @property
    def topic(self) -> str:
        """The entry topic."""
        return self._cluster.topic

    def seats(self) -> Mapping[TargetQueue, str]:
        """The member that should own each shard; empty before that is known. Any thread."""
        return self._plan.owners

    def heirs(self) -> dict[TargetQueue, str]:
        """The member that follows each shard, and would get it if its owner vanished. Any thread."""
        plan = self._plan
        return heirs(plan.members, plan.owners) if self._warm else {}

    def wanted(self) -> set[TargetQueue]:
        """The shards that this instance should own. Any thread."""
        return set(self._plan.mine)

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
                _LOG.warning("sharing the shards failed, each keeps its owner: %s", error)
            except Exception:  # a bug: without this, the instance would go on with its old plan for ever, silently
                _LOG.exception("sharing the shards failed")
            now_ms = mono_ms()
            times = [*self._not_before.values(), self._view.next_ms(now_ms) or now_ms + REBALANCE_MS]
            timeout_ms = min(REBALANCE_MS, max(50, min(times) - now_ms))
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _rebalance(self) -> None:
        route = await self._cluster.core.route(self._cluster.topic)
        lists = await self._lists(route.addresses())
        view = self._view
        now_ms = mono_ms()
        view.saw(lists, now_ms)
        self.seen_ms = now_ms
        members = view.counted(now_ms)
        if self.door is not None:
            self.door.members(sorted(view.known()))
        shards = self._known.saw(shards_of(route), now_ms)
        before = self._plan
        plan = self._plan = await self._planned(frozenset(members), frozenset(view.known()), tuple(shards))
        if plan is not before:
            self._say_plan(len(members), len(view.known()), len(shards))
        for queue in self._owners.keys() - plan.mine:
            self._owners[queue].leave()
        now_ms = mono_ms()
        for queue in sorted(plan.mine - self._owners.keys()):
            if self._not_before.get(queue, 0) <= now_ms:
                self._not_before.pop(queue, None)
                self._take_over(queue)
        for queue in self._not_before.keys() - plan.mine - plan.standbys:
            del self._not_before[queue]
        self._stand_by(plan.standbys)

    def _lives(self, owner: str) -> bool:
        """True if an owner belongs to another instance that is a member."""
        member = owner.rpartition("#")[0]
        return member != self._cluster.core.client_id and member in self._view.known()

    async def _planned(self, members: frozenset[str], known: frozenset[str], shards: tuple[TargetQueue, ...]) -> _Plan:
        """The plan of owners and followers; the previous one if its inputs have not changed."""
        made_of = members, known, shards
        if self._plan.made_of == made_of:
            return self._plan
        owners = shares(members, shards)
        me = self._cluster.core.client_id
        mine = {queue for queue, owner in owners.items() if owner == me}
        follow = await asyncio.to_thread(standbys, me, members, known - members, shards) if self._warm else set()
        return _Plan(made_of, members, owners, mine, follow - mine)

    def _say_plan(self, members: int, known: int, shards: int) -> None:
        _LOG.info(
            "%d members%s, %d shards, of them for this one: %s",
            members,
            f" and {known - members} new" if known > members else "",
            shards,
            ", ".join(f"{broker}/{number}" for _, broker, number in sorted(self._plan.mine)) or "none",
        )

    def _stand_by(self, chosen: set[TargetQueue]) -> None:
        """Follow these shards, which other instances own."""
        for queue in self._standbys.keys() - chosen - self._plan.mine:
            self._standbys[queue].leave()
        now_ms = mono_ms()
        for queue in chosen - self._runs.keys():
            if self._not_before.get(queue, 0) > now_ms:
                continue
            self._not_before.pop(queue, None)
            self._standbys[queue] = self._owner_of(queue)
            self._runs[queue] = asyncio.ensure_future(self._run(queue, self._standbys[queue]))

    async def _lists(self, addresses: set[str]) -> list[set[str]]:
        """The lists of the group's members of some brokers. Raises ClientError if no broker answers."""
        asked = sorted(addresses)[:ASKED_MAX]
        answers = await asyncio.gather(*map(self._list, asked), return_exceptions=True)
        lists = [answer for answer in answers if isinstance(answer, set)]
        if not lists:
            raise next(
                (error for error in answers if isinstance(error, ClientError)),
                NoRouteError(f"no broker of topic {self._cluster.topic} is known"),
            )
        if any(self._cluster.core.client_id not in one for one in lists):
            await self._cluster.core.send_heartbeats()
        return lists

    async def _list(self, address: str) -> set[str]:
        ext = {"consumerGroup": self._cluster.group}
        reply = await self._cluster.core.ask(
            address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext, timeout_ms=LIST_TIMEOUT_MS
        )
        try:
            return set(map(str, loads(reply.body)["consumerIdList"]))
        except (ProtocolError, ValueError, KeyError, TypeError) as error:
            raise ClientError(f"the list of members that {address} gives cannot be read: {error}") from None

    def _take_over(self, queue: TargetQueue) -> None:
        standby = self._standbys.pop(queue, None)
        owner = self._owners[queue] = standby or self._owner_of(queue)
        owner.promote(self._lives)
        if standby is None:
            self._runs[queue] = asyncio.ensure_future(self._run(queue, owner))

    def _owner_of(self, queue: TargetQueue) -> Owner:
        self._count += 1
        name = f"{self._cluster.core.client_id}#{os.urandom(4).hex()}"
        directory = self._directory / "shards" / f"{queue[1]}-{queue[2]}-{self._count}"
        owner = Owner(self._cluster, queue, name, directory, self.roll_after_ms, self.tally)
        owner.shard.reads_all = queue in self._to_be_read
        return owner

    async def _run(self, queue: TargetQueue, owner: Owner) -> None:
        try:
            await owner.run()
            self._to_be_read.discard(queue)
            if owner.shard_was_lost:
                self.tally.fenced += 1
                self._view.vouch(owner.shard.takeovers.owner.rpartition("#")[0])
        except (ClientError, StoreError) as error:
            self.tally.failed += 1
            self._tellers.setdefault(queue, Teller(_LOG, owner.name)).warning(str(error))
        except TakeoverError as error:
            self.tally.failed += 1
            _LOG.warning("%s", error)
        except Exception as error:  # a bug; the shard needs an owner all the same
            self.tally.failed += 1
            _LOG.error("%s: %s", owner.name, error, exc_info=True)
        finally:
            for table in (self._owners, self._standbys):
                if table.get(queue) is owner:
                    del table[queue]
            del self._runs[queue]
            if owner.shard.needs_all or owner.shard.blind_at >= 0:
                self._to_be_read.add(queue)
            self._not_before[queue] = mono_ms() + self._pause_ms(queue, owner)
            self._wake.set()

    def _pause_ms(self, queue: TargetQueue, owner: Owner) -> int:
        """Pause before a shard is taken over again, so that instances that disagree do not fight for it."""
        if owner.is_leaving or owner.has_owned_ms > STEADY_MS:
            self._fails.pop(queue, None)
            return RETRY_MS if not owner.is_leaving else 0
        if owner.shard.needs_all and not owner.shard_was_lost:
            return 0  # the next one does not end so
        count = self._fails[queue] = self._fails.get(queue, 0) + 1
        return min(RETRY_MAX_MS, RETRY_MS << min(count - 1, 10))
