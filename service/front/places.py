"""The server behind each port: one broker, or the name servers. See `service.front.passage`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

from remoting.codes import RequestCode, ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from remoting.json_dialect import dumps, loads
from remoting.signing import ACCESS_KEY
from service.front.passage import Answer, Passage, bare
from service.front.rewriting import SENDS, EntrySend, SendRefusedError, entry_of
from service.front.routes import Doors, StaticTopicError, route_for_senders
from service.front.sending import EntrySender, SendsRoom
from service.front.wire import PassageWire, dial
from service.link.clock import wall_ms
from service.link.cluster import ClusterLink
from timewheel_client.net.tls import Tls
from timewheel_client.values.errors import ClientError, ConnectionFailedError

__all__ = ["DOORS", "BrokerPlace", "House", "NamesPlace"]

DOORS = "timewheelDoors"
"""A field of a request for a route, from another instance: what is asked for is our doors."""
ROUTES_MAX = 10_000
"""Most routes that are kept for when no name server answers."""
LOOKUPS_MAX = 1000
TOPIC_CHARS_MAX = 255
"""No topic has a longer name."""
TAKEN: Mapping[int, int] = {
    RequestCode.HEART_BEAT: ResponseCode.SUCCESS,
    RequestCode.UNREGISTER_CLIENT: ResponseCode.SUCCESS,
    RequestCode.QUERY_MESSAGE: ResponseCode.QUERY_NOT_FOUND,
}
"""Requests that the door to a broker answers itself, with the response code."""
_NOT_TO_END = (
    "a transaction with a due time, signed by the sender: its end and the answers to checks would need the sender's "
    "own right to {topic}. Send it to {topic}, with TW_TOPIC and TW_DELIVER_MS"
)


class House(Protocol):
    """The parts that all ports share."""

    cluster: ClusterLink
    room: SendsRoom
    tls: Tls

    def enter(self, passage: Passage) -> bool:
        """Count a sender; False if there is no room for it."""
        ...

    def leave(self, passage: Passage) -> None:
        """Count a sender no more."""
        ...

    def hold(self, more_bytes: int) -> None:
        """Count buffered bytes. If there are too many, the passage that has most of them is closed."""
        ...

    def say(self, text: str) -> None:
        """Log an event."""
        ...

    def doors(self, local_host: str) -> Doors:
        """The doors of all instances, for a sender that reached this one at this address."""
        ...

    def own_doors(self, local_host: str) -> Mapping[str, str]:
        """The doors of this instance: broker to address."""
        ...

    async def learn(self, route: Mapping[str, Any]) -> None:
        """Open a door to each broker of a route. Raises ValueError if it is no route."""
        ...

    async def master(self, broker: str, *, fresh: bool = False) -> str:
        """The address of a broker; ``fresh``: the known one does not answer. Raises ClientError."""
        ...


class _AtHome:
    """The methods of a place that it passes to its house."""

    def __init__(self, house: House) -> None:
        self._house = house

    def open(self, passage: Passage) -> bool:
        """See `service.front.passage.FarEnd`."""
        return self._house.enter(passage)

    def closed(self, passage: Passage) -> None:
        """See `service.front.passage.FarEnd`."""
        self._house.leave(passage)

    def hold(self, more_bytes: int) -> None:
        """See `service.front.passage.FarEnd`."""
        self._house.hold(more_bytes)

    def say(self, text: str) -> None:
        """See `service.front.passage.FarEnd`."""
        self._house.say(text)


class BrokerPlace(_AtHome):
    """The port of a broker, its door."""

    def __init__(self, house: House, broker: str) -> None:
        super().__init__(house)
        self._broker = broker
        self._senders: dict[Passage, EntrySender] = {}

    def closed(self, passage: Passage) -> None:
        """Forget a sender. Its sends under way continue."""
        self._senders.pop(passage, None)
        super().closed(passage)

    def take(self, passage: Passage, command: RemotingCommand, answer: Answer) -> bool:
        """Handle sends with a due time, and the requests in `TAKEN`."""
        house = self._house
        if command.code in TAKEN:
            answer(command.reply(TAKEN[command.code]))
            return True
        if command.code not in SENDS:
            return False
        try:
            entry = self._entry(command)
        except SendRefusedError as error:
            house.room.ended["refused"] += 1
            answer(command.reply(error.code, str(error)))
            return True
        if entry is None:
            return False
        sender = self._senders.get(passage)
        if sender is None:
            sender = self._senders[passage] = EntrySender(passage, house.cluster, house.room, self._broker)
        sender.send(command, entry, answer)
        return True

    def _entry(self, command: RemotingCommand) -> EntrySend | None:
        """As `entry_of`. The half message of a transaction is refused if its sender signs.

        It would be one of the entry topic. So brokers would refuse the sender's commit, and tell nobody: clients want
        no answer to it.
        """
        cluster = self._house.cluster
        entry = entry_of(command, cluster.topic, wall_ms())
        if entry is not None and entry.half and ACCESS_KEY in command.ext and cluster.signs:
            raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, _NOT_TO_END.format(topic=cluster.topic))
        return entry

    async def dial(self, passage: Passage) -> PassageWire:
        """Connect to the broker's master at its present address."""
        address = await self._house.master(self._broker)
        try:
            return await dial(address, passage, self._house.tls)
        except ConnectionFailedError:
            moved = await self._house.master(self._broker, fresh=True)
            if moved == address:
                raise
            return await dial(moved, passage, self._house.tls)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Sends under way."""
        return [task for sender in self._senders.values() for task in sender.tasks()]


class NamesPlace(_AtHome):
    """The port that senders know as their name server.

    Args:
        house: The parts that all ports share.
        namesrv: The addresses of the real name servers.
    """

    def __init__(self, house: House, namesrv: list[str]) -> None:
        super().__init__(house)
        self._namesrv = namesrv
        self._routes: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lookups: set[asyncio.Task[None]] = set()

    def take(self, passage: Passage, command: RemotingCommand, answer: Answer) -> bool:
        """Handle requests for routes."""
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return False
        local_host = passage.near.local_host if passage.near is not None else ""
        if DOORS in command.ext:
            answer(command.reply(body=dumps(self._house.own_doors(local_host))))
        elif len(topic := command.ext.get("topic", "")) > TOPIC_CHARS_MAX:
            answer(
                command.reply(
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"topic name of {len(topic)} characters; at most {TOPIC_CHARS_MAX} are possible",
                )
            )
        elif len(self._lookups) >= LOOKUPS_MAX:
            answer(
                command.reply(
                    ResponseCode.SYSTEM_BUSY, f"{LOOKUPS_MAX} requests for routes are under way, the limit: ask again"
                )
            )
        else:
            task = asyncio.ensure_future(self._look_up(bare(command), topic, local_host, answer))
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)
        return True

    async def dial(self, passage: Passage) -> PassageWire:
        """Connect to the first name server that answers."""
        for _ in range(len(self._namesrv) - 1):
            try:
                return await dial(self._namesrv[0], passage, self._house.tls)
            except ConnectionFailedError:
                self._namesrv.append(self._namesrv.pop(0))
        return await dial(self._namesrv[0], passage, self._house.tls)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Look-ups under way."""
        return list(self._lookups)

    async def _look_up(self, command: RemotingCommand, topic: str, local_host: str, answer: Answer) -> None:
        try:
            route = await self._route(topic, command)
            if isinstance(route, RemotingCommand):
                answer(route)
                return
            await self._house.learn(route)
            made = route_for_senders(route, self._house.doors(local_host))
            answer(command.reply(body=dumps(made)))
        except StaticTopicError as error:
            answer(command.reply(ResponseCode.SYSTEM_ERROR, f"topic {topic[:130]}: {error}"))
        except (ClientError, ProtocolError, ValueError) as error:
            answer(command.reply(ResponseCode.SYSTEM_ERROR, f"route of {topic[:130]}: {error}"[:300]))

    async def _route(self, topic: str, command: RemotingCommand) -> dict[str, Any] | RemotingCommand:
        """The real route, or the name server's answer if that is something else."""
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            told = await self._house.cluster.core.ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        except ClientError:
            if topic not in self._routes:
                raise
            return self._routes[topic]
        if told.code != ResponseCode.SUCCESS:
            self._routes.pop(topic, None)
            return command.reply(told.code, told.remark, told.ext, told.body)
        route = loads(told.body)
        if not isinstance(route, dict):
            raise ValueError("not a route")
        self._routes[topic] = route
        self._routes.move_to_end(topic)
        if len(self._routes) > ROUTES_MAX:
            self._routes.popitem(last=False)
        return route
