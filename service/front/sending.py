"""Sends with a due time: passes them from a sender to the entry topic, and the cluster's answer back.

The request is the service's own, signed with its own account, because a rewritten request cannot carry the sender's
signature. It goes to a queue of the entry topic on the broker that the sender chose, or on another broker if that one
has no such queue. The sends of one connection are written in their order.

A sender gets the answer "stored" only if a broker has stored the entry. The answer is that broker's, so message id,
queue id and queue offset are those of the entry.

==============================  ======================================================================================
no connection to the broker     SERVICE_NOT_AVAILABLE: nothing was written, the client tries again. The same for a
                                send that waited 3 s behind others
no answer in 15 s               SERVICE_NOT_AVAILABLE: the entry may be stored, so a client that tries again may store
                                it twice, as with every broker that does not answer
the target topic is missing     TOPIC_NOT_EXIST: the service creates none, and would reject the message later
the target is not writable      NO_PERMISSION
too many bytes under way        SYSTEM_BUSY
==============================  ======================================================================================
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from remoting.codes import ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from service.front.passage import Answer, Passage, bare
from service.front.rewriting import EntrySend, SendRefusedError
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink
from timewheel_client.net.tries import STORED
from timewheel_client.values.errors import ClientError, NoRouteError, RequestTimeoutError
from timewheel_client.values.routes import MessageQueue

__all__ = ["EntrySender", "SendsRoom"]

ANSWER_MS = 15_000
"""Longest wait for a broker's answer. Clients have shorter timeouts of their own. An earlier "unknown" would make a
client that still waits send a copy."""
WAIT_MS = 3000
"""Longest wait of a send behind others before it is written: a client's timeout is 3 s by default."""
OF_ONE_MAX_BYTES = 8 << 20
"""Bytes of one connection's sends under way from which on nothing more is read from it."""
OF_ONE_MAX = 2000
OF_ALL_MAX_BYTES = 256 << 20
"""Bytes of all sends under way from which on further ones are refused."""
ENTRY_BYTES = 2000
"""Memory of one send besides its body and its properties."""


class SendsRoom:
    """Counts the bytes of sends under way on all connections, and the outcomes of earlier sends."""

    def __init__(self, most_bytes: int = OF_ALL_MAX_BYTES) -> None:
        self._most_bytes = most_bytes
        self.held_bytes = 0
        self.ended: Counter[str] = Counter(dict.fromkeys(("stored", "refused", "unanswered"), 0))
        """Sends with a due time by what the sender was told; unanswered: nobody knows whether they are stored."""

    def take(self, size: int) -> bool:
        """Count a send; False if there is no room for it."""
        if self.held_bytes + size > self._most_bytes:
            return False
        self.held_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Count a send that has ended."""
        self.held_bytes -= size


class EntrySender:
    """Sends the entries of one connection in order.

    Args:
        passage: The sender's connection. It is not read from while too many of its bytes are under way.
        cluster: Gets the entries.
        room: Shared by all connections.
        broker: The broker that the sender chose.
    """

    def __init__(self, passage: Passage, cluster: ClusterLink, room: SendsRoom, broker: str) -> None:
        self._passage = passage
        self._cluster = cluster
        self._room = room
        self._broker = broker
        self._waiting: deque[tuple[RemotingCommand, EntrySend, Answer, int, int]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._replies: set[asyncio.Task[None]] = set()
        self._held_bytes = 0
        self._count = 0

    def send(self, command: RemotingCommand, entry: EntrySend, answer: Answer) -> None:
        """Send an entry, and answer the sender's request when the cluster has."""
        size = len(entry.body) + len(entry.header.properties) + ENTRY_BYTES
        if not self._room.take(size):
            self._room.ended["refused"] += 1
            text = f"more than {OF_ALL_MAX_BYTES >> 20} MiB of sends with a due time wait for the cluster: send later"
            answer(command.reply(ResponseCode.SYSTEM_BUSY, text))
            return
        self._count += 1
        self._held_bytes += size
        self._mind_the_room()
        self._waiting.append((bare(command), entry, answer, size, mono_ms()))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())

    def tasks(self) -> list[asyncio.Task[None]]:
        """The sends under way."""
        return [*self._replies, *([self._worker] if self._worker is not None else [])]

    async def _work(self) -> None:
        while self._waiting:
            command, entry, answer, size, since_ms = self._waiting.popleft()
            try:
                # A sender that waited longer has sent it to another instance meanwhile, so this would be a second copy.
                if mono_ms() - since_ms > WAIT_MS:
                    raise RequestTimeoutError(
                        f"the send waited {WAIT_MS} ms for others and was not written: send again"
                    )
                address, queue = await self._place_for(entry)
            except SendRefusedError as error:
                self._done(command.reply(error.code, str(error)), answer, size, "refused")
            except (ClientError, ProtocolError) as error:
                reply = command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)[:300])
                self._done(reply, answer, size, "refused")
            except BaseException:
                self._done(None, answer, size, "refused")
                raise
            else:
                # Tasks begin in the order in which they are made, and each writes in its first step: so order is kept.
                task = asyncio.ensure_future(self._exchange(command, entry, answer, size, address, queue))
                self._replies.add(task)
                task.add_done_callback(self._replies.discard)

    async def _place_for(self, entry: EntrySend) -> tuple[str, MessageQueue]:
        """Choose the queue for an entry. Raises SendRefusedError, ClientError."""
        cluster, core = self._cluster, self._cluster.core
        try:
            target = await core.route(entry.topic)
        except NoRouteError as error:
            core.forget(entry.topic)
            text = f"{error}; a message with a due time creates no topic: create it first"
            raise SendRefusedError(ResponseCode.TOPIC_NOT_EXIST, text) from None
        except ClientError:
            if core.cached_route(entry.topic) is None:
                core.forget(entry.topic)  # or the service would go on looking for any name that a sender invents
            raise
        if not target.write_queues:
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION, f"topic {entry.topic} is not writable: give it the permission 6 or 2"
            )
        route = await core.route(cluster.topic)
        here = [queue for queue in route.write_queues if queue.broker_name == self._broker]
        if entry.half and not here:
            text = f"broker {self._broker} has no queue of {cluster.topic} for the half message of a transaction"
            raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, text)
        queues = here or list(route.write_queues)
        if not queues:
            raise NoRouteError(f"topic {cluster.topic} takes no writes now")
        queue = queues[entry.header.queue_id % len(queues)]
        address = await cluster.address(cluster.topic, queue.broker_name)
        await core.connections.get(address)
        return address, queue

    async def _exchange(
        self,
        command: RemotingCommand,
        entry: EntrySend,
        answer: Answer,
        size: int,
        address: str,
        queue: MessageQueue,
    ) -> None:
        reply: RemotingCommand | None = None
        end = "unanswered"
        entry.header.queue_id = queue.queue_id
        try:
            ext = entry.header.to_v2()
            connections = self._cluster.core.connections
            told = await connections.request(address, entry.code, ext, entry.body, timeout_ms=ANSWER_MS)
            remark = told.remark
            end = "stored"
            if told.code not in STORED:
                end = "refused"
                remark = f"entry topic {self._cluster.topic}: {told.remark or 'refused'}"
                self._cluster.core.refresh_soon(self._cluster.topic)
            reply = command.reply(told.code, remark, told.ext, told.body)
        except ProtocolError as error:
            end = "refused"
            reply = command.reply(ResponseCode.MESSAGE_ILLEGAL, str(error)[:300])
        except ClientError as error:
            self._cluster.core.refresh_soon(self._cluster.topic)
            text = f"the delay service got no answer from the cluster: {error}"
            reply = command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, text[:300])
        finally:
            self._done(reply, answer, size, end)

    def _done(self, reply: RemotingCommand | None, answer: Answer, size: int, end: str) -> None:
        self._room.give_back(size)
        self._room.ended[end] += 1
        self._count -= 1
        self._held_bytes -= size
        self._mind_the_room()
        answer(reply)

    def _mind_the_room(self) -> None:
        too_much = self._held_bytes > OF_ONE_MAX_BYTES or self._count > OF_ONE_MAX
        self._passage.stop_reading("too many sends under way", too_much)
