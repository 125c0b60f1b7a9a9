"""Connected clients: producers and consumers by group, and what each consumer group subscribes to.

Clients announce themselves by heartbeats. An entry is removed when the client unregisters, when its channel closes
(some clients never unregister) or when it has been silent for ``expire_ms``. Members of a group share the queues among
themselves, by the list of client ids. So the list is sorted, contains each id once, and the members are told of every
change (``on_change``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from broker.net.channel import Channel
from broker.tables.subscriptions import WORD_CHARS_MAX, GroupSubscription
from remoting.errors import ProtocolError

__all__ = [
    "BROADCASTING",
    "CLIENT_ID_CHARS_MAX",
    "GROUP_CHARS_MAX",
    "MEMBERSHIPS_MAX",
    "MEMBERSHIPS_OF_ONE_MAX",
    "SUBSCRIPTION_BYTES_MAX",
    "ClientInfo",
    "Clients",
    "ClientsFullError",
    "ConsumerGroup",
    "checked_client_id",
]

BROADCASTING = "BROADCASTING"
CLIENT_ID_CHARS_MAX = 1_024
GROUP_CHARS_MAX = 255
MEMBERSHIPS_MAX = 200_000
"""Most memberships of clients in groups, about half a KiB each."""
MEMBERSHIPS_OF_ONE_MAX = 20_000
"""Most memberships of one connection."""
SUBSCRIPTION_BYTES_MAX = 64 << 20
"""Most bytes of all groups' subscriptions, as `GroupSubscription.size` counts them."""


class ClientsFullError(ProtocolError):
    """There are too many memberships, or the subscriptions are too long; the text gives the figures."""


def checked_client_id(client_id: str) -> str:
    """Return a client's id; raises ProtocolError if it is too long."""
    if len(client_id) > CLIENT_ID_CHARS_MAX:
        text = f"a client id has at most {CLIENT_ID_CHARS_MAX} characters, this one {len(client_id)}"
        raise ProtocolError(f"{text}: {client_id:.100}…")
    return client_id


class ClientInfo:
    """One client on one channel; ``updated_ms`` is its last heartbeat.

    ``account`` is the access key that signed the heartbeat; empty without access control.
    """

    __slots__ = ("account", "channel", "client_id", "language", "updated_ms", "version")

    def __init__(
        self, channel: Channel, client_id: str, language: str, version: int, now_ms: int, account: str = ""
    ) -> None:
        self.account = account
        self.channel = channel
        self.client_id = client_id
        self.language = language[:WORD_CHARS_MAX]
        self.version = version
        self.updated_ms = now_ms


class ConsumerGroup:
    """The connected members of one consumer group and what they subscribe to."""

    __slots__ = (
        "clients",
        "consume_from_where",
        "consume_type",
        "message_model",
        "name",
        "subscription_bytes",
        "subscriptions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.clients: dict[Channel, ClientInfo] = {}
        self.subscriptions: dict[str, GroupSubscription] = {}
        self.subscription_bytes = 0
        self.consume_type = "CONSUME_PASSIVELY"
        self.message_model = "CLUSTERING"
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"

    @property
    def is_broadcast(self) -> bool:
        """True if each member reads everything and keeps its own offsets."""
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """List the members' ids, sorted, each once."""
        return sorted({client.client_id for client in self.clients.values()})

    def subscribe(self, subscriptions: Iterable[GroupSubscription]) -> bool:
        """Take over the subscriptions of a heartbeat; whether topics came or went."""
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        changed = wanted.keys() != self.subscriptions.keys()
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            # A member with older subscriptions must not undo what a newer one said.
            if known is None or subscription.version > known.version:
                self.subscriptions[topic] = subscription
        for topic in self.subscriptions.keys() - wanted.keys():
            del self.subscriptions[topic]
        self.subscription_bytes = sum(subscription.size for subscription in self.subscriptions.values())
        return changed


class Clients:
    """The tables of producers and consumers. Only the network loop uses them.

    Args:
        expire_ms: Silence after which a client counts as gone (``channelExpiredTimeout``).
        on_change: Called with a `ConsumerGroup` whose members or topics changed.
        memberships_max, subscription_bytes_max: Bounds; a heartbeat beyond them is refused.
    """

    def __init__(
        self,
        expire_ms: int = 120_000,
        on_change: Callable[[ConsumerGroup], None] = lambda _: None,
        memberships_max: int = MEMBERSHIPS_MAX,
        subscription_bytes_max: int = SUBSCRIPTION_BYTES_MAX,
    ) -> None:
        self._expire_ms = expire_ms
        self.on_change = on_change
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Channel, ClientInfo]] = {}
        self._producers_by_id: dict[str, ClientInfo] = {}
        self.memberships_max = memberships_max
        self.memberships = 0
        """Memberships of clients in groups: each producer and each consumer, once for each of its groups."""
        self.subscription_bytes_max = subscription_bytes_max
        self.subscription_bytes = 0
        self._consumers_of: dict[Channel, dict[str, None]] = {}  # by channel, so that closing it is cheap
        self._producers_of: dict[Channel, dict[str, None]] = {}

    def register_consumer(
        self,
        group: str,
        client: ClientInfo,
        *,
        consume_type: str,
        message_model: str,
        consume_from_where: str,
        subscriptions: Iterable[GroupSubscription] | None,
        notify: bool = True,
    ) -> bool:
        """Note a consumer's heartbeat; answer whether members or topics changed.

        ``subscriptions`` None keeps the known ones. With ``notify`` False the members are not told of a change. Raises
        ClientsFullError, and changes nothing then.
        """
        entry = self.consumers.get(group)
        known = None if entry is None else entry.clients.get(client.channel)
        before = 0 if entry is None else entry.subscription_bytes
        if subscriptions is not None:
            subscriptions = list(subscriptions)
            self._check_subscriptions(group, sum(each.size for each in subscriptions) - before)
        if known is None:
            self._join(group, client)
        if entry is None:
            entry = self.consumers[group] = ConsumerGroup(group)
        entry.consume_type = consume_type[:WORD_CHARS_MAX]
        entry.message_model = message_model[:WORD_CHARS_MAX]
        entry.consume_from_where = consume_from_where[:WORD_CHARS_MAX]
        changed = known is None or known.client_id != client.client_id
        entry.clients[client.channel] = client
        self._consumers_of.setdefault(client.channel, {})[group] = None
        if subscriptions is not None:
            changed = entry.subscribe(subscriptions) or changed
            self.subscription_bytes += entry.subscription_bytes - before
        if changed and notify and not entry.is_broadcast:
            self.on_change(entry)
        return changed

    def register_producer(self, group: str, client: ClientInfo) -> None:
        """Note a producer's heartbeat.

        A client id belongs to one account as long as that account is connected. Raises ClientsFullError, and changes
        nothing then.
        """
        known = self.producers.get(group, {}).get(client.channel)
        if known is None:
            self._join(group, client)
        elif known.client_id != client.client_id:  # otherwise its old ids would stay
            self._forget_id(known)
        self.producers.setdefault(group, {})[client.channel] = client
        self._producers_of.setdefault(client.channel, {})[group] = None
        holder = self._producers_by_id.get(client.client_id)
        if holder is None or holder.channel.closed or holder.account == client.account:
            self._producers_by_id[client.client_id] = client

    def _join(self, group: str, client: ClientInfo) -> None:
        """Count a membership; raises ClientsFullError."""
        if len(group) > GROUP_CHARS_MAX:
            text = f"a group's name has at most {GROUP_CHARS_MAX} characters, this one {len(group)}"
            raise ClientsFullError(f"{text}: {group:.100}…")
        state = client.channel.state
        if self.memberships >= self.memberships_max or state.memberships >= MEMBERSHIPS_OF_ONE_MAX:
            raise ClientsFullError(
                f"client {client.client_id:.100} cannot join group {group}: all clients have {self.memberships} "
                f"groups (limit {self.memberships_max}), counted for each client; those of this connection have "
                f"{state.memberships} (limit {MEMBERSHIPS_OF_ONE_MAX})"
            )
        self.memberships += 1
        state.memberships += 1

    def _left(self, groups_of: dict[Channel, dict[str, None]], channel: Channel, group: str) -> None:
        """Note that a channel has left a group."""
        self.memberships -= 1
        channel.state.memberships -= 1
        groups = groups_of.get(channel)
        if groups is not None:
            groups.pop(group, None)
            if not groups:
                del groups_of[channel]

    def _check_subscriptions(self, group: str, more: int) -> None:
        if more > 0 and self.subscription_bytes + more > self.subscription_bytes_max:
            raise ClientsFullError(
                f"the subscriptions of group {group} need {more} bytes more: those of all groups have "
                f"{self.subscription_bytes}, and the limit is {self.subscription_bytes_max}"
            )

    def _forget_id(self, client: ClientInfo) -> None:
        """Remove a producer from the table by id, unless another connection has that id by now."""
        known = self._producers_by_id.get(client.client_id)
        if known is not None and known.channel is client.channel:
            del self._producers_by_id[client.client_id]

    def unregister_consumer(self, group: str, channel: Channel, notify: bool = True) -> bool:
        """Remove a consumer from its group; answer whether it was a member."""
        entry = self.consumers.get(group)
        if entry is None or entry.clients.pop(channel, None) is None:
            return False
        self._left(self._consumers_of, channel, group)
        if not entry.clients:
            self.subscription_bytes -= entry.subscription_bytes
            del self.consumers[group]
        elif notify and not entry.is_broadcast:
            self.on_change(entry)
        return True

    def unregister_producer(self, group: str, channel: Channel) -> None:
        """Remove a producer from its group."""
        members = self.producers.get(group)
        if members is None:
            return
        gone = members.pop(channel, None)
        if not members:
            del self.producers[group]
        if gone is None:
            return
        self._left(self._producers_of, channel, group)
        if channel not in self._producers_of:
            self._forget_id(gone)

    def channel_closed(self, channel: Channel) -> None:
        """Remove all clients of a channel."""
        while not self.leave(channel, MEMBERSHIPS_OF_ONE_MAX):
            pass

    def leave(self, channel: Channel, most: int) -> bool:
        """Remove a channel from some groups; answer whether it is in no group any more."""
        # A copy, because each call takes its group out of this table.
        consumers = list(islice(self._consumers_of.get(channel, ()), most))
        for group in consumers:
            self.unregister_consumer(group, channel)
        for group in list(islice(self._producers_of.get(channel, ()), most - len(consumers))):
            self.unregister_producer(group, channel)
        return channel not in self._consumers_of and channel not in self._producers_of

    def expire(self, now_ms: int) -> list[Channel]:
        """Remove clients that were silent for too long, and return their channels, to be closed."""
        before = now_ms - self._expire_ms
        gone = {
            client.channel
            for members in (*(group.clients for group in self.consumers.values()), *self.producers.values())
            for client in members.values()
            if client.updated_ms < before
        }
        for channel in gone:
            self.channel_closed(channel)
        return list(gone)

    def find_consumer(self, group: str, client_id: str) -> ClientInfo | None:
        """Find a group's member by its id."""
        entry = self.consumers.get(group)
        members = entry.clients.values() if entry else ()
        return next((client for client in members if client.client_id == client_id), None)

    def find_producer(self, client_id: str) -> ClientInfo | None:
        """Find a producer of any group by its id, on the connection of its last heartbeat."""
        return self._producers_by_id.get(client_id)

    def subscription(self, group: str, topic: str) -> GroupSubscription | None:
        """Return a connected group's subscription to a topic."""
        entry = self.consumers.get(group)
        return entry.subscriptions.get(topic) if entry else None

    def groups_of_topic(self, topic: str) -> list[str]:
        """List the connected groups that subscribe to a topic, sorted. Any thread."""
        return sorted(name for name, entry in list(self.consumers.items()) if topic in entry.subscriptions)
