"""One running takeover of one shard: it reads, renews its lease, saves progress, searches for deliveries in doubt.

`service.core.shard.Shard` makes all decisions. This file turns them into requests. These tasks run side by side:

=========  =====================================================================================================
obeying    gives each command a verdict
reading    pulls the entry queue from `Shard.read_from` on, and fills the cache; beside it, the backfill
lease      asks for the end of the queue
upkeep     takes the steps of the takeover, saves progress about once a second, scans target queues
=========  =====================================================================================================
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing, suppress
from pathlib import Path

from service.core.calm import Calm
from service.core.lines import COMMANDS, LineKind
from service.core.progress import TargetQueue
from service.core.queue_end import QueueEnd
from service.core.shard import Shard
from service.core.states import OwnerState
from service.link.clock import mono_ms, wall_ms
from service.link.cluster import ClusterLink, Fate, Pull
from service.link.log import Teller
from service.link.progress_log import ProgressLog, progress_topic
from service.link.read_ahead import ReadAhead
from service.running import takeover
from service.running.backfilling import Backfiller
from service.running.cache import ShardCache
from service.running.entries import Waiting, own_record
from service.running.instance_counts import InstanceCounts
from service.running.obeying import Clerk
from service.running.reading import reading_of
from service.running.roller import Roller
from service.running.saving import Saver
from service.running.searching import Searcher
from service.running.target import RemoteTarget
from store.disk.errors import StoreError
from timewheel_client.values.errors import ClientError

__all__ = ["Owner"]

_LOG = logging.getLogger(__name__)

LEASE_EVERY_MS = 400
UPKEEP_EVERY_MS = 100
RELEASE_MS = 5000
PAUSE_MS = 500
ROLL_EVERY_MS = 60_000
ROLL_MARGIN_MS = 600_000
"""Entries due within this time are not rolled. Overdue ones are, once the owner could deliver them for that long."""
FOLLOW_EVERY_MS = 5000
FOLLOW_READ_MS = 200
RELEASE_LOOK_MS = 20
HANDOVER_MS = 5000
"""A new owner waits this long for the release by an owner that lives. That owner waits as long for the end of its own
takeover before it gives the shard up. Longer than a takeover takes."""


class Owner:
    """Owns a shard while `run` runs.

    Args:
        cluster: The cluster.
        queue: The shard's queue of the entry topic.
        owner: A name that must be used for this takeover only.
        directory: For the cache; must not exist.
        roll_after_ms: Age at which an entry that still waits is rolled, ms after its store time.
        tally: The counters of the instance.
    """

    def __init__(
        self,
        cluster: ClusterLink,
        queue: TargetQueue,
        owner: str,
        directory: Path,
        roll_after_ms: int,
        tally: InstanceCounts,
    ) -> None:
        self.cluster = cluster
        self.tally = tally
        self.queue = queue
        self.name = f"{queue[1]}/{queue[2]}"
        self.shard = Shard(self.name)
        self._owner = owner
        self._directory = directory
        self.tell = Teller(_LOG, self.name)
        """Logs what happens to the shard."""
        self.calm = Calm()
        self._progress = ProgressLog(cluster, self.name, (progress_topic(queue[0]), *queue[1:]), self.tell.warning)
        self._saver = Saver(self.shard, self._progress, self.tell)
        self.save_now = self._saver.save_now
        self._leaving, self._promoted = asyncio.Event(), asyncio.Event()
        self._backlog: list[Waiting] = []
        self.try_again = lambda: self.cache.try_again() if self.cache is not None else None
        self.target = RemoteTarget(self, asyncio.get_running_loop())
        self.cache: ShardCache | None = None
        self.roller = Roller(self, roll_after_ms, min(ROLL_MARGIN_MS, roll_after_ms // 4))
        self.clerk = Clerk(self)
        self._backfiller = Backfiller(self)
        self.searcher = Searcher(self)
        self.claimed_at = -1
        """Queue offset of the takeover record; -1: not stored yet."""
        self.took_ms = 0
        """Time from the begin of the takeover to the right to deliver, ms."""
        self.has_owned_ms = 0
        """Time for which it owned the shard, ms; 0 until that has ended."""
        self.shard_was_lost = False
        """True if another owner has taken the shard."""
        self.queue_end = QueueEnd()
        self._lives: Callable[[str], bool] = bool
        self._entries_read = self._read_since = 0

    def lost(self, queue: TargetQueue) -> None:
        """Note that a delivery to a queue got no answer."""
        self.calm.disturbed(queue[1], mono_ms())

    def leave(self) -> None:
        """Begin to give the shard up; `run` ends soon."""
        self._leaving.set()

    @property
    def is_leaving(self) -> bool:
        """True if the owner was told to give the shard up."""
        return self._leaving.is_set()

    # ------------------------------------------------------------------------------------------------ life

    async def run(self) -> None:
        """Follow until promoted, take over, own; returns when the shard was released or lost.

        Raises TakeoverError or ClientError if it failed.
        """
        tasks: list[asyncio.Task[object]] = []
        begin_ms = mono_ms()
        unwatch = self.cluster.targets.watch(self.try_again)
        try:
            await self._prepare()
            if not await self._stand_by():
                return
            begin_ms = mono_ms()
            warm, self._entries_read, self._read_since = self._entries_read, 0, self.shard.read_from
            self.tell.info(f"taking over as {self._owner}, {warm} entries followed; reading from {self._read_since}")
            await self._claim()
            tasks = [asyncio.ensure_future(work()) for work in self._works()]
            tasks.append(asyncio.ensure_future(self._begin_owning(begin_ms)))
            count = len(tasks)
            leaving = asyncio.ensure_future(self._leaving.wait())
            tasks.append(leaving)
            done, _ = await asyncio.wait([*tasks[:count], leaving], return_when=asyncio.FIRST_COMPLETED)
            if leaving in done:
                await self._end_takeover()
                await self._release()
            for task in tasks[:count]:
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            self.clerk.close()
            tasks += [*self._saver.tasks(), *self.searcher.tasks(), *self.target.tasks()]
            unwatch()
            self._end(begin_ms)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.cache is not None:
                await asyncio.to_thread(self.cache.close)

    def _end(self, begin_ms: int) -> None:
        shard = self.shard
        self.shard_was_lost = shard.state is OwnerState.FENCED
        if self.took_ms:
            self.has_owned_ms = mono_ms() - begin_ms - self.took_ms
        if self.shard_was_lost:
            self.tell.warning(f"{takeover.why_fenced(shard)}, after {self.has_owned_ms} ms of ownership", always=True)
        elif shard.state is not OwnerState.FOLLOWER:
            self.tell.info(f"given up while {shard.state.value}, after {self.has_owned_ms} ms of ownership")
        shard.ended()

    def _works(self) -> list[Callable[[], Coroutine[None, None, None]]]:
        """The tasks that run side by side while the shard is owned."""
        return [self._read_on, self._renew, self._upkeep, self._roll, self._obey, self._backfiller.run]

    def promote(self, lives: Callable[[str], bool]) -> None:
        """Take the shard over. Until this call, the owner only follows queue and progress, and writes nothing.

        ``lives``: whether the present owner, by its name, may still release the shard. Then this waits for its release,
        for `HANDOVER_MS` at most.
        """
        self._lives = lives
        self._promoted.set()

    async def _may_claim(self) -> None:
        """Read the queue to its end, and wait for a release by the last owner if that one is alive."""
        await self._promoted.wait()
        until_ms, end = mono_ms() + HANDOVER_MS, -1
        while mono_ms() < until_ms:
            try:
                end = end if end >= 0 else await self.cluster.end(self.queue)
            except ClientError as error:
                self.tell.warning(f"asking for the end of the queue failed: {error}")
            shard, seen = self.shard, self.shard.takeovers
            if 0 <= end <= shard.read_from and (seen.is_released or not self._lives(seen.owner)):
                return
            await asyncio.sleep(RELEASE_LOOK_MS / 1000)

    async def _stand_by(self) -> bool:
        """Follow until promoted; False if told to leave."""
        reading = self._read_on(), self._follow(), self._obey(), self._backfiller.run()
        works = (*reading, self._may_claim(), self._leaving.wait())
        tasks: list[asyncio.Task[object]] = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._leaving.is_set():
            return False
        takeover.need_followed(self.shard, await self.cluster.begin(self.queue))
        return True

    async def _follow(self) -> None:
        """Read the owner's progress: entries that it calls done need not be kept."""
        while True:
            try:
                picture = await self._progress.read()
                takeover.need_same_takeovers(self.shard, picture)
                self.clerk.drop(self.shard.follow(picture))
            except ClientError as error:
                self.tell.warning(f"following its owner failed: {error}")
            await asyncio.sleep(FOLLOW_EVERY_MS / 1000)

    async def _prepare(self) -> None:
        picture = await self._progress.read()
        self.shard.load(picture, await self.cluster.begin(self.queue))
        self.cache = await asyncio.to_thread(ShardCache, self._directory, self.target, wall_ms, self.tell.warning)

    async def _claim(self) -> None:
        self.shard.take_over(self._owner)
        sent = await self.cluster.send(self.queue, *own_record(LineKind.TAKEOVER, TW_OWNER=self._owner))
        if sent.fate is not Fate.STORED:
            raise takeover.TakeoverError(f"{self.name}: the takeover record was not stored: {sent}")
        self.claimed_at = sent.at

    async def _begin_owning(self, begin_ms: int) -> None:
        while self.shard.state is not OwnerState.OWNING:
            await asyncio.sleep(UPKEEP_EVERY_MS / 1000)
        self.took_ms = mono_ms() - begin_ms
        self.tally.takeovers += 1
        assert self.cache is not None
        self.cache.start()
        shard, read = self.shard, (self._read_since, self._entries_read)
        self.tell.info(takeover.owning_text(shard, self.took_ms, read, self.cache.pending_count))
        while shard.scans():
            await asyncio.sleep(UPKEEP_EVERY_MS / 1000)
        self.tell.info(f"the outcome of every delivery is known {mono_ms() - begin_ms} ms after the takeover began")
        await asyncio.Event().wait()  # the other tasks go on

    async def _end_takeover(self) -> None:
        """Continue until deliveries are allowed: giving up earlier would make the next owner wait just as long."""
        until_ms = mono_ms() + HANDOVER_MS
        while self.shard.state in (OwnerState.TAKING_OVER, OwnerState.READING_BACK) and mono_ms() < until_ms:
            await asyncio.sleep(RELEASE_LOOK_MS / 1000)

    async def _release(self) -> None:
        """Wait until everything is known, then append a release record, so that the next owner need not wait."""
        shard = self.shard
        shard.release()
        until_ms = mono_ms() + RELEASE_MS
        while shard.state is OwnerState.RELEASING and mono_ms() < until_ms:
            if shard.may_release:
                record = own_record(LineKind.RELEASE, TW_GENERATION=shard.generation)
                try:
                    await self.cluster.send(self.queue, *record)
                except ClientError as error:
                    self.tell.warning(f"the release record was not written, so the next owner waits: {error}")
                return
            await self.save_now()
            await asyncio.sleep(0.02)

    # ------------------------------------------------------------------------------------------------ reading

    async def _read_on(self) -> None:
        shard, cluster = self.shard, self.cluster
        with closing(ReadAhead(cluster, self.queue)) as ahead:
            while shard.state is not OwnerState.FENCED:
                try:
                    pull = await ahead.pull(shard.read_from, wait=self.queue_end.is_there)
                except ClientError as error:
                    self.queue_end.failed()
                    self.tell.warning(f"reading the queue failed: {error}")
                    cluster.core.refresh_soon(self.queue[0])
                    await asyncio.sleep(PAUSE_MS / 1000)
                    continue
                takeover.need_whole_log(shard, pull.next_offset)
                self._take(pull)
                self.queue_end.saw(pull.reached_end, mono_ms())
                while not self.fill(self._backlog):
                    await asyncio.sleep(PAUSE_MS / 1000)
                self._backlog = []
                await self._pause()

    async def _pause(self) -> None:
        """Let others run; a follower at the end waits for more records, as each pull costs the same."""
        if self.queue_end.is_there and self.shard.state is OwnerState.FOLLOWER:
            with suppress(TimeoutError):  # not by wait_for, which may swallow a cancellation
                async with asyncio.timeout(FOLLOW_READ_MS / 1000):
                    await self._promoted.wait()
        await asyncio.sleep(0)

    def _take(self, pull: Pull) -> None:
        found = reading_of(pull, self.shard.read_from, self.queue[0], wall_ms())
        for text in found.faults():
            self.tell.warning(text, many=text != found.missing)
        waiting = self.shard.read(found.lines, pull.next_offset, mono_ms())
        self._entries_read += len(waiting)
        takeover.need_own_record(self.shard, self.claimed_at)
        takeover.need_order(self.shard)
        for line in found.lines:
            if line.kind in COMMANDS or line.kind in (LineKind.VERDICT, LineKind.ROLL):
                self.clerk.saw(found.messages[line.offset], line)
        for line in waiting:
            if line.kind is LineKind.ROLL and self.cache is not None:
                self.shard.commands.gone.append(line.about)
            self.tally.damaged += line.offset in found.why
            self._backlog.append(found.waiting(line.offset, self.name))

    def fill(self, waiting: Sequence[Waiting]) -> bool:
        """Move what was read into the cache; False if the disk refuses it now. Raises StoreError if it is lost."""
        assert self.cache is not None
        return self.cache.fill(waiting, mono_ms())

    @property
    def is_filled(self) -> bool:
        """True if every entry that was read is in the cache."""
        return not self._backlog and self._backfiller.is_filled

    @property
    def may_backfill(self) -> bool:
        """True if the queue was read to its end a moment ago, or up to the own takeover record."""
        return self.queue_end.is_fresh(mono_ms()) or self.shard.generation >= 0

    async def _obey(self) -> None:
        """Carry out commands."""
        while self.shard.state is not OwnerState.FENCED:
            try:
                await self.clerk.step()
            except (ClientError, StoreError) as error:
                self.tell.warning(f"carrying out commands failed: {error}")
                await asyncio.sleep(PAUSE_MS / 1000)

    async def _renew(self) -> None:
        while self.shard.state is not OwnerState.FENCED:
            asked_ms, read_to = mono_ms(), self.shard.read_to
            try:
                self.shard.end_seen(asked_ms, takeover.whole_end(read_to, await self.cluster.end(self.queue)))
            except ClientError as error:
                self.tell.warning(f"asking for the end of the queue failed: {error}")
            await asyncio.sleep(LEASE_EVERY_MS / 1000)

    async def _roll(self) -> None:
        """Roll entries that wait long, before the cluster deletes them."""
        while self.shard.state is not OwnerState.FENCED:
            done = 0
            if self.shard.state is OwnerState.OWNING:
                try:
                    done = await self.roller.step()
                except (ClientError, StoreError) as error:
                    self.tell.warning(f"rolling entries failed: {error}")
            await asyncio.sleep((PAUSE_MS if done else min(ROLL_EVERY_MS, self.roller.after_ms)) / 1000)

    async def _upkeep(self) -> None:
        shard, settled = self.shard, False
        while shard.state is not OwnerState.FENCED:
            try:
                if not settled and shard.state is OwnerState.READING_BACK and shard.fence_is_over(mono_ms()):
                    picture = await self._progress.read()
                    takeover.need_same_takeovers(shard, picture)
                    shard.settle(picture, wall_ms())
                    settled = True
                    if shard.expired:
                        self.tally.expired += shard.expired
                        self.tell.warning(takeover.expired_text(shard.expired), always=True)
                    for queue in shard.scans():
                        self.calm.disturbed(queue[1], mono_ms())
                    await self.save_now()
                await self.searcher.step()
                await self._saver.save_in_time()
            except ClientError as error:
                self.tell.warning(str(error))
                await asyncio.sleep(PAUSE_MS / 1000)
            await asyncio.sleep(UPKEEP_EVERY_MS / 1000)
