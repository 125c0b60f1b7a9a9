"""Delivers due messages to topics of the cluster. The shard admits each delivery and keeps account of it.

The threads of the cache call `RemoteTarget.put_batch`. The work is done in the event loop, which owns the shard::

    admitted? ─► queue chosen ─► named in the progress? ─► connection open, writable? ─► admitted still? ─► written
                                  │ no: its end is asked for, a progress record is saved

The last check and the write happen in one turn of the loop, with nothing between them. One request may carry several
messages (`service.link.parcels`). Its answer counts for each of them. If a broker refuses the request because of one
message, each message is sent alone.

==================  ==================================================================================================
stored              the entry is done
refused             the entry waits, and the cache tries again. If the refusal is permanent (topic missing or not
                    writable, message illegal) it is sent to `TIMEWHEEL_REJECTED`. A refusal of the service's own
                    account is not permanent: the entry waits until the account is accepted, and is counted
no answer           the delivery is in doubt: nobody repeats it before the target queue was read (`service.core.calm`)
==================  ==================================================================================================
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.messages.message import RecordError, decode_record
from remoting.messages.properties import SHARDING_KEY, get_property
from service.core.progress import TargetQueue
from service.core.shard import MaySend, Shard
from service.link.clock import mono_ms, wall_ms
from service.link.cluster import ClusterLink, Fate, Sent, fate_of
from service.link.log import Teller
from service.link.parcels import Parcel, Spread, groups_of
from service.link.targets import MISSING_MS
from service.running.entries import REJECTED_TOPIC, delay_id_of, rejected_again
from service.running.instance_counts import InstanceCounts
from service.running.suspects import ClosedTopics, Suspects
from store.disk.errors import StoreClosedError, StoreError
from store.put.plugin_api import Put, PutRecord, PutResult, PutStatus
from timewheel_client.net.connection import ClientConnection
from timewheel_client.net.refusals import is_of_the_message
from timewheel_client.values.errors import BrokerError, ClientError, NoRouteError
from timewheel_client.values.routes import TopicRoute, queue_for_key

__all__ = ["Principal", "RemoteTarget"]

PUT_SECONDS_MAX = 30
NAMING_MS = 1000
ANSWER_MS = 1000
"""Longest wait of a batch for answers. A message without an answer stays in doubt; the next try finds out whether it
was stored. Nothing else is sent to that broker until then, so messages to other brokers wait only once."""
UNASKED_MAX = 10_000
"""Most topics that are remembered because brokers refuse to tell the ends of their queues."""
REFUSALS_MAX = 3
"""Refusals for good of one message after which it is rejected: another broker may have taken it."""
_OF_THE_ACCOUNT = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR})
_STATUS = {
    MaySend.ALREADY: PutStatus.PUT_OK,
    MaySend.NOT_DUE: PutStatus.NOT_DUE,
    MaySend.NOT_OWNER: PutStatus.SERVICE_NOT_AVAILABLE,
    MaySend.DOUBT: PutStatus.UNKNOWN_ERROR,
}


class Principal(Protocol):
    """The owner of a shard, for which a `RemoteTarget` delivers."""

    name: str
    shard: Shard
    cluster: ClusterLink
    tally: InstanceCounts
    tell: Teller

    def lost(self, queue: TargetQueue) -> None:
        """Note that a delivery to a queue got no answer."""
        ...

    async def save_now(self) -> None:
        """Write a progress record now, or wait for the one that is under way."""
        ...

    def try_again(self) -> None:
        """Note that deliveries that failed may work now."""
        ...


class _ClosedError(NoRouteError):
    """The topic exists and has a master, but accepts no writes."""


class RemoteTarget:
    """A `store.put.plugin_api.DeliveryTarget` that sends to the cluster, for the owner of one shard."""

    def __init__(self, owner: Principal, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._spread = Spread()
        self._closed = ClosedTopics()
        self._suspects = Suspects(owner.cluster.end, owner.try_again)
        self._aiming: dict[TargetQueue, asyncio.Task[None]] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._unasked: set[str] = set()  # topics of whose queues brokers do not tell this account the end
        self._refusals: dict[int, tuple[int, str]] = {}  # entries that a broker refused permanently: how often, and why
        self.outcomes: Counter[str] = Counter()

    # ------------------------------------------------------------------------------------------------ any thread

    def put_batch(self, puts: Sequence[Put]) -> list[PutResult]:
        """Deliver the messages that the shard admits; see `store.put.plugin_api.DeliveryTarget`.

        Raises StoreClosedError when the service ends, StoreError when it takes too long.
        """
        if not all(isinstance(put, PutRecord) for put in puts):
            return [PutResult(PutStatus.NOT_AS_ONE)] * len(puts)
        try:
            future = asyncio.run_coroutine_threadsafe(self._put(puts), self._loop)
        except RuntimeError:
            raise StoreClosedError("the service is being stopped") from None
        try:
            return future.result(PUT_SECONDS_MAX)
        except TimeoutError:
            # Requests under way still count, and their messages are not admitted again until they end.
            # No others are sent.
            future.cancel()
            raise StoreError(f"{len(puts)} deliveries took more than {PUT_SECONDS_MAX} s") from None

    def scan(self, from_offset: int) -> Iterable[tuple[int, bytes]]:
        """Return nothing: a cache begins empty, so there are no earlier deliveries to find."""
        del from_offset
        return ()

    # ------------------------------------------------------------------------------------------------ event loop

    async def _put(self, puts: Sequence[Put]) -> list[PutResult]:
        parcels = [self._parcel(put) for put in puts if isinstance(put, PutRecord)]
        try:
            await self._send(parcels)
        finally:
            for parcel in parcels:
                # A message that was not written now is not written later: its entry may be moved or rolled meanwhile.
                parcel.result = parcel.result or PutResult(PutStatus.UNKNOWN_ERROR, remark="no answer yet")
        now_ms = wall_ms()
        results = [parcel.result for parcel in parcels if parcel.result is not None]
        for result in results:
            if result.status is PutStatus.PUT_OK:
                result.store_ms = now_ms
        return results

    async def _send(self, parcels: Sequence[Parcel]) -> None:
        self._spread.begin()
        now_ms = wall_ms(), mono_ms()
        going = [parcel for parcel in parcels if self._admitted(parcel, *now_ms)]
        asking = [self._address(parcel) for parcel in going if not self._address_at_once(parcel)]
        if asking:
            await asyncio.gather(*asking)
        going = [parcel for parcel in going if parcel.queue is not None and parcel.result is None]
        await self._name({parcel.queue for parcel in going if parcel.queue is not None})
        by_broker: dict[tuple[str, str], list[Parcel]] = {}
        for parcel in going:
            if parcel.queue is not None:
                by_broker.setdefault(parcel.queue[:2], []).append(parcel)
        sends = [asyncio.ensure_future(self._to_broker(where, groups_of(some))) for where, some in by_broker.items()]
        if not sends:
            return
        self._under_way.update(sends)
        for send in sends:
            send.add_done_callback(self._under_way.discard)
        done, late = await asyncio.wait(sends, timeout=ANSWER_MS / 1000)
        for send in done:
            send.result()
        for send, some in zip(sends, by_broker.values(), strict=True):
            if send in late and some[0].queue is not None:
                self._suspects.suspect(some[0].queue)

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks under way."""
        return [*self._under_way, *self._aiming.values(), *self._suspects.tasks()]

    def _parcel(self, put: PutRecord) -> Parcel:
        try:
            message = decode_record(bytes(put.record))
        except RecordError as error:
            raise StoreError(f"a record of the cache: {error}") from None
        parcel = Parcel(delay_id_of(message.properties, self._owner.name), put.due_ms, message, REJECTED_TOPIC)
        times, why = self._refusals.get(parcel.offset, (0, ""))
        if times >= REFUSALS_MAX:
            self._reject(parcel, why)
        return parcel

    def _admitted(self, parcel: Parcel, wall: int, mono: int) -> bool:
        """True if a message may be written at this time. If not, its result says why."""
        admission = self._owner.shard.may_send(parcel.offset, parcel.due_ms, wall, mono, parcel.topics)
        if admission is MaySend.GO:
            return True
        self.outcomes[admission.name] += 1
        parcel.result = PutResult(_STATUS[admission], remark=admission.value)
        return False

    def _address_at_once(self, parcel: Parcel) -> bool:
        """Choose the queue if the route is known and writable. This is the usual case, and needs no task."""
        message = parcel.message
        route = self._owner.cluster.targets.known(message.topic)
        if route is None or not route.write_queues:
            return False
        self._choose(parcel, route, get_property(message.properties, SHARDING_KEY))
        return True

    async def _address(self, parcel: Parcel) -> None:
        """Choose the queue. A message is rejected if its topic certainly does not exist."""
        topic = parcel.message.topic
        key = get_property(parcel.message.properties, SHARDING_KEY)
        targets = self._owner.cluster.targets
        try:
            route = await targets.route(topic, keyed=bool(key))
            if not route.write_queues:
                # A broker whose master is away may accept writes again later. One whose master is there does not.
                closed = any(0 in addresses for addresses in route.brokers.values())
                raise (
                    _ClosedError(f"topic {topic} is not writable") if closed else NoRouteError(f"{topic} has no master")
                )
        except NoRouteError as error:
            closed_too_long = isinstance(error, _ClosedError) and self._is_closed_for_good(topic)
            if topic == REJECTED_TOPIC or not (closed_too_long or targets.is_gone(topic)):
                parcel.result = PutResult(PutStatus.TOPIC_AWAY, remark=str(error))
                self._owner.tell.warning(f"deliveries wait: {error}", many=True)
                return
            self._reject(parcel, str(error))
            await self._address(parcel)
            return
        self._choose(parcel, route, key)

    def _choose(self, parcel: Parcel, route: TopicRoute, key: str | None) -> None:
        """Choose among the writable queues: by the sharding key, or else in turns."""
        self._closed.is_open(route.topic)
        among = [queue_for_key(route.write_queues, key)] if key else route.write_queues
        well = [queue for queue in among if queue.broker_name not in self._suspects] if self._suspects else among
        if well:
            self._spread.aim(parcel, well, route.topic == REJECTED_TOPIC or parcel.offset in self._refusals, mono_ms())
        else:
            parcel.result = PutResult(PutStatus.TOPIC_AWAY, remark=f"no broker of {route.topic} answers")

    def _is_closed_for_good(self, topic: str) -> bool:
        """True if all brokers of a topic are known and none has accepted writes for `MISSING_MS`."""
        return self._closed.closed_ms(topic, mono_ms()) >= MISSING_MS and self._owner.cluster.targets.is_settled

    def _reject(self, parcel: Parcel, why: str) -> None:
        """Turn a message into a rejected one."""
        if parcel.message.topic != REJECTED_TOPIC:
            parcel.message = rejected_again(parcel.message, why)

    async def _name(self, queues: set[TargetQueue]) -> None:
        """Make sure that a durable progress record names these queues."""
        shard = self._owner.shard
        aiming = []
        for queue in queues:
            if queue not in shard.tails:
                if queue not in self._aiming:
                    self._aiming[queue] = asyncio.ensure_future(self._aim(queue))
                aiming.append(self._aiming[queue])
        try:
            async with asyncio.timeout(NAMING_MS / 1000):
                if aiming:
                    await asyncio.wait(aiming)
                while not all(shard.is_named(queue) for queue in queues if queue in shard.tails):
                    await self._owner.save_now()
        except TimeoutError:
            for queue in queues:  # the rest is tried again
                if queue not in shard.tails:
                    self._suspects.suspect(queue)

    async def _aim(self, queue: TargetQueue) -> None:
        """Ask for the end of a target queue that was not used so far."""
        try:
            self._owner.shard.aim(queue, await self._owner.cluster.end(queue))
        except ClientError as error:
            text = f"asking for the end of queue {queue[2]} of {queue[0]} at {queue[1]}: {error}"
            self._owner.tell.warning(text, many=True)
            if not isinstance(error, BrokerError):
                self._suspects.suspect(queue)
            elif error.code == ResponseCode.NO_PERMISSION and len(self._unasked) < UNASKED_MAX:
                self._unasked.add(queue[0])
        else:
            self._unasked.discard(queue[0])
        finally:
            self._aiming.pop(queue, None)

    async def _to_broker(self, where: tuple[str, str], groups: Sequence[list[Parcel]]) -> None:
        cluster = self._owner.cluster
        replies: list[tuple[list[Parcel], asyncio.Future[RemotingCommand]]] = []
        try:
            connection = await cluster.connection(*where)
            for group in groups:
                while not connection.is_writable and not connection.closed:
                    await asyncio.sleep(0.002)
                replies += self._write(connection, group)
        except ClientError as error:
            self._owner.tell.warning(f"deliveries to {where[0]} at {where[1]}: {error}", many=True)
            cluster.core.refresh_soon(where[0])
            queue = groups[0][0].queue
            assert queue is not None
            self._suspects.suspect(queue)
            written = {parcel for group, _ in replies for parcel in group}
            for parcel in itertools.chain.from_iterable(groups):
                if parcel.result is None and parcel not in written:
                    parcel.result = PutResult(PutStatus.TOPIC_AWAY, remark=str(error))
        alone: list[list[Parcel]] = []
        for group, reply in replies:
            sent = await fate_of(reply)
            by_one = len(group) > 1 and sent.fate is Fate.REFUSED and is_of_the_message(sent.code, sent.remark)
            if by_one or sent.fate in (Fate.STORED, Fate.UNKNOWN):
                self._spread.answered(group, sent.fate is Fate.STORED, mono_ms())
            if sent.fate is Fate.STORED:
                self._stored(group, sent.at)
                continue
            for parcel in group:
                if by_one:  # each of them may be the reason
                    self._owner.shard.refused(parcel.offset)
                    alone.append([parcel])
                else:
                    self._account(parcel, sent)
        if alone:
            await self._to_broker(where, alone)

    def _write(
        self, connection: ClientConnection, group: list[Parcel]
    ) -> list[tuple[list[Parcel], asyncio.Future[RemotingCommand]]]:
        """Check the entries a last time and write one request, in one turn of the loop: nothing runs in between."""
        shard, queue = self._owner.shard, group[0].queue
        assert queue is not None
        now_ms = wall_ms(), mono_ms()
        going: dict[int, Parcel] = {}
        for parcel in group:
            if parcel.result is not None or parcel.offset in going:
                continue  # it took too long, and the caller was told so; or it is here twice
            if not shard.is_named(queue):
                status = PutStatus.NO_PERMISSION if parcel.message.topic in self._unasked else PutStatus.UNKNOWN_ERROR
                parcel.result = PutResult(status, remark="its queue is not named in the progress yet")
            elif self._admitted(parcel, *now_ms):
                going[parcel.offset] = parcel
        if not going:
            return []
        messages = [parcel.message for parcel in going.values()]
        reply = self._owner.cluster.deliver_now(connection, queue, messages, self._may_write)
        shard.sending(going, queue)
        return [([*going.values()], reply)]

    def _may_write(self) -> bool:
        return self._owner.shard.may_write(mono_ms())

    def _stored(self, group: Sequence[Parcel], at: int) -> None:
        """Account for a request that was stored, its first message at this offset."""
        queue, tally, count = group[0].queue, self._owner.tally, len(group)
        assert queue is not None
        self.outcomes[Fate.STORED.name] += count
        self._suspects.answered(queue[1])
        self._owner.shard.acknowledged([parcel.offset for parcel in group], queue, at)
        tally.delivered += count
        tally.rejected += count * (queue[0] == REJECTED_TOPIC)
        tally.lateness.add(wall_ms(), sorted([parcel.due_ms for parcel in group]))
        result = PutResult(PutStatus.PUT_OK)
        for parcel in group:
            parcel.result = result
            self._refusals.pop(parcel.offset, None)

    def _account(self, parcel: Parcel, sent: Sent) -> None:
        """Account for a message that was not stored, or of which that is not known."""
        shard, queue = self._owner.shard, parcel.queue
        assert queue is not None
        self.outcomes[sent.fate.name] += 1
        if sent.fate is Fate.UNWRITTEN:
            shard.refused(parcel.offset)
            parcel.result = PutResult(_STATUS[MaySend.NOT_OWNER], remark=sent.remark)
        elif sent.fate is Fate.UNKNOWN:
            shard.lose(parcel.offset)
            self._suspects.suspect(queue)
            self._owner.lost(queue)
            parcel.result = PutResult(PutStatus.UNKNOWN_ERROR, remark=sent.remark)
        else:
            self._suspects.answered(queue[1])
            shard.refused(parcel.offset)
            parcel.result = self._refused(parcel, queue, sent)

    def _refused(self, parcel: Parcel, queue: TargetQueue, sent: Sent) -> PutResult:
        """Result for a refused message: it is tried again, waits with others of its topic, or is rejected some day."""
        why = f"{ResponseCode(sent.code).name}: {sent.remark}"
        of_the_message, rejected = is_of_the_message(sent.code, sent.remark), queue[0] == REJECTED_TOPIC
        waits = sent.code in _OF_THE_ACCOUNT and not of_the_message
        text = f"deliveries to {queue[0]} at {queue[1]} {'wait' if waits else 'are refused'}: {why}"
        self._owner.tell.warning(text, many=True)
        if of_the_message and not rejected:
            times, _ = self._refusals.get(parcel.offset, (0, ""))
            self._refusals[parcel.offset] = times + 1, why
        # Those of a topic wait together, and a few are tried for all; what is to be rejected is of many topics.
        status = PutStatus.NO_PERMISSION if waits and not rejected else PutStatus.UNKNOWN_ERROR
        return PutResult(status, remark=sent.remark)
