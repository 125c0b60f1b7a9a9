"""Assigns queues to the members of a group: QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401) and
GET_ALL_MESSAGE_REQUEST_MODE (402).

A member of a group asks for its share of a topic's queues, on all brokers that have it. The reply says for each queue
whether to pull it or to pop it. A reply without a list means that the broker does not know: the member keeps its
queues. An empty list takes all queues away.

=====================================  ===============================================================================
pulled                                 its share, by the strategy that it names (AVG, AVG_BY_CIRCLE)
popped, popShareQueueNum is 0 or less, each broker's queues all together, as queue -1
or at least the other members
popped, a smaller number               its share, and the shares of that many members behind it in the list
popped, more members than queues       one queue, so that every member has one
broadcasting                           all queues
=====================================  ===============================================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.net.asides import Asides
from broker.net.channel import Channel
from broker.net.clients import BROADCASTING, Clients
from broker.net.processor import Handler
from broker.tables.request_modes import MODES_MAX, POP, PULL, Mode, RequestModes
from broker.tables.topic_names import RETRY_PREFIX
from remoting.allocation import allocate_evenly
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads_body

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.topics import Topics

__all__ = ["AssignmentProcessor", "Queue", "Routes", "assigned"]

Queue = tuple[str, int]
"""Broker name and queue id; -1 stands for all queues of that broker."""
Routes = Callable[[str], Awaitable[Sequence[Queue] | None]]
"""Lists the queues that a topic can be read from, on all brokers; None if it is not known."""
_CLUSTERING = "CLUSTERING"
_INT_END = 1 << 31
_AT_ONCE_MAX = 1_024
"""Up to so many queues are distributed in the network loop; more of them in a thread."""


class AssignmentProcessor:
    """Answers who consumes what.

    Args:
        topics, groups, clients, modes: The broker's tables.
        asides: Writes the table of modes.
        broker_name: Whose queues they are, if there is no name server to ask.
        default_mode: The mode of a pair that has none (``defaultMessageRequestMode``, ``defaultPopShareQueueNum``).
        balances: Whether members get shares (``serverLoadBalancerEnable``); else each gets all queues.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        groups: SubscriptionGroups,
        clients: Clients,
        modes: RequestModes,
        asides: Asides,
        broker_name: str,
        default_mode: Callable[[], Mode],
        balances: Callable[[], bool],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._modes = modes
        self._asides = asides
        self._broker_name = broker_name
        self._default_mode = default_mode
        self._balances = balances
        self.routes: Routes = self._own_queues
        """Looks queues up: in the broker's own table, or at its name servers if it has some."""

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all_modes,
        }

    async def _own_queues(self, topic: str) -> Sequence[Queue] | None:
        config = self._topics.get(topic)
        if config is None:
            return None
        return [(self._broker_name, queue_id) for queue_id in range(config.read_queue_nums if config.readable else 0)]

    # ------------------------------------------------------------------------------------------------ assignments

    async def query(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """QUERY_ASSIGNMENT. Raises ProtocolError."""
        document = _object(command)
        topic, group = _text(document, "topic"), _text(document, "consumerGroup")
        model = document.get("messageModel")
        if model not in (_CLUSTERING, BROADCASTING):
            raise ProtocolError(f"messageModel is {model!r:.80}: {_CLUSTERING} or {BROADCASTING} are possible")
        mode = self._modes.get(topic, group)
        if mode is None:
            mode = (PULL, 0) if topic.startswith(RETRY_PREFIX) else self._default_mode()
        queues = await self.routes(topic)
        members = self._clients.consumers.get(group)
        shared = model != BROADCASTING and self._balances()
        if queues is None or (shared and members is None):
            return command.reply(body=b"{}")
        ids = members.client_ids() if shared and members is not None else None
        me, strategy = (str(document.get(name) or "") for name in ("clientId", "strategyName"))

        def body() -> bytes:
            return _body(topic, mode[0], queues if ids is None else assigned(me, ids, queues, strategy, mode))

        return command.reply(body=body() if len(queues) <= _AT_ONCE_MAX else await self._asides.run(body))

    # ------------------------------------------------------------------------------------------------ modes

    def set_mode(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """SET_MESSAGE_REQUEST_MODE: how a group is to consume a topic. Raises ProtocolError."""
        document = _object(command)
        topic, group = _text(document, "topic"), _text(document, "consumerGroup")
        mode, share = document.get("mode", PULL), document.get("popShareQueueNum", 0)
        if topic.startswith(RETRY_PREFIX):
            return command.reply(ResponseCode.NO_PERMISSION, f"retry topic is not allowed to set mode: {topic}")
        if self._topics.get(topic) is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if mode not in (PULL, POP):
            return command.reply(ResponseCode.INVALID_PARAMETER, f"mode is {mode!r:.80}: {PULL} or {POP} are possible")
        if isinstance(share, bool) or not isinstance(share, int) or not -_INT_END <= share < _INT_END:
            raise ProtocolError(f"popShareQueueNum is no int32: {share!r:.80}")
        if self._groups.find(group) is None:
            remark = f"subscription group does not exist: {group}"
            return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if self._modes.is_full(topic, group):
            remark = f"{MODES_MAX} pairs of topic and group have a mode, which is the limit: {topic}, {group} gets none"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        self._modes.put(topic, group, (mode, share), command.reply)
        return command.reply()

    async def all_modes(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_ALL_MESSAGE_REQUEST_MODE: the whole table."""
        table = dict(self._modes.table)
        return command.reply(body=await self._asides.run(lambda: dumps(self._modes.to_json(table))))


def assigned(me: str, members: Sequence[str], queues: Sequence[Queue], strategy: str, mode: Mode) -> list[Queue] | None:
    """The queues of a member; None if the broker cannot say. ``members`` are sorted.

    >>> assigned("b", ["a", "b"], [("x", 0), ("x", 1), ("x", 2)], "AVG", ("PULL", 0))
    [('x', 2)]
    >>> assigned("b", ["a", "b"], [("x", 0), ("x", 1), ("x", 2)], "AVG", ("POP", 0))
    [('x', -1)]
    """
    strategies: dict[str, Callable[[str, Sequence[str], Sequence[Queue]], list[Queue]]]
    strategies = {"AVG": allocate_evenly, "AVG_BY_CIRCLE": _by_circle}
    allocate = strategies.get(strategy)
    queues, share = sorted(queues), mode[1]
    if allocate is None:
        return None
    if mode[0] == POP and (share <= 0 or share >= len(members) - 1):
        return [(name, -1) for name in sorted({name for name, _ in queues})]
    if not me or not queues:
        return None
    if mode[0] != POP:
        return allocate(me, members, queues)
    if me not in members:
        return []
    index = members.index(me)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    found: set[Queue] = set()
    for step in range(share + 1):
        found.update(allocate(members[(index + step) % len(members)], members, queues))
    return sorted(found)


def _body(topic: str, mode: str, queues: Sequence[Queue] | None) -> bytes:
    """Write the reply."""
    if queues is None:
        return b"{}"
    entries = [
        {"messageQueue": {"brokerName": name, "queueId": queue_id, "topic": topic}, "mode": mode}
        for name, queue_id in queues
    ]
    return dumps({"messageQueueAssignments": entries})


def _by_circle(me: str, members: Sequence[str], queues: Sequence[Queue]) -> list[Queue]:
    """The queues of a member that are dealt out one by one."""
    return list(queues[members.index(me) :: len(members)]) if me in members else []


def _object(command: RemotingCommand) -> dict[str, Any]:
    document = loads_body(command.body) if command.body else None
    if not isinstance(document, dict):
        raise ProtocolError(f"body is not a JSON object: {command.body[:200]!r}")
    return document


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise ProtocolError(f"{name} is {value!r:.200}, a name is needed")
    return value
