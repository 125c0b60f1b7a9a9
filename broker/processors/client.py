"""Clients announce themselves: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38),
CHECK_CLIENT_CONFIG (46); and NOTIFY_CONSUMER_IDS_CHANGED (40), which tells a group's members of a change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker.net.channel import Channel, peer_text
from broker.net.clients import ClientInfo, Clients, ConsumerGroup, checked_client_id
from broker.net.dispatcher import Dispatcher
from broker.net.processor import Handler
from broker.pulling.selection import no_such_filter
from broker.tables.subscriptions import GroupSubscription
from broker.tables.topic_names import RETRY_PREFIX
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.filters.sql_filter import SQL92, Sql92Error, compile_sql92
from remoting.headers import need_str
from remoting.json_dialect import dumps, loads_body

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.topics import Topics

__all__ = ["ClientProcessor"]

_LOG = logging.getLogger(__name__)
_UNIT_SUB_TOPIC = 2
GROUPS_MAX = 256
"""Groups in one heartbeat; a client of Apache's has one for each producer or consumer in its process."""
SUBSCRIPTIONS_MAX = 1_024
SUBSCRIPTION_CHARS_MAX = 65_536
"""Expressions and tags of all subscriptions in one heartbeat."""


class ClientProcessor:
    """Keeps the tables of clients up to date.

    Args:
        topics, groups, clients: The broker's tables.
        dispatcher: Pushes notifications.
        may_notify: Whether members are told of changes at all (``notifyConsumerIdsChangedEnable``).
        by_property: Whether SQL92 subscriptions are served (``enablePropertyFilter``).
        account_of: Whose account has signed a request.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        groups: SubscriptionGroups,
        clients: Clients,
        dispatcher: Dispatcher,
        may_notify: Callable[[], bool] = lambda: True,
        by_property: Callable[[], bool] = lambda: False,
        account_of: Callable[[RemotingCommand], str] = lambda _: "",
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._dispatcher = dispatcher
        self._may_notify = may_notify
        self._by_property = by_property
        self._account_of = account_of
        clients.on_change = self.notify

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_consumers,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    def heart_beat(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """HEART_BEAT: note the client's groups and subscriptions, and create missing groups and retry topics.

        Raises ProtocolError if it cannot be read.
        """
        document = _object(command)
        try:
            _check_heartbeat(document)
            client_id = checked_client_id(str(document["clientID"]))
            producers = [str(entry["groupName"]) for entry in document.get("producerDataSet") or ()]
            consumers = [
                (
                    str(entry["groupName"]),
                    entry,
                    list(map(GroupSubscription.from_json, entry.get("subscriptionDataSet") or ())),
                )
                for entry in document.get("consumerDataSet") or ()
            ]
        except (AttributeError, KeyError, TypeError) as error:
            raise ProtocolError(f"unreadable heartbeat: {error!r}: {command.body[:200]!r}") from error
        state = channel.state
        state.serialize_type = command.serialize_type
        state.language = command.language[:64]
        state.version = command.version
        keep_subscriptions = document.get("withoutSub") is True
        self._make_what_is_new(consumers)
        for name, entry, subscriptions in consumers:
            client = ClientInfo(
                channel, client_id, command.language, command.version, now_ms, self._account_of(command)
            )
            self._consumer(name, client, entry, subscriptions, keep_subscriptions)
        for name in producers:
            client = ClientInfo(
                channel, client_id, command.language, command.version, now_ms, self._account_of(command)
            )
            self._clients.register_producer(name, client)
        return command.reply()

    def _make_what_is_new(self, consumers: list[tuple[str, Any, list[GroupSubscription]]]) -> None:
        """Create the groups of a heartbeat and their retry topics; each table is written once, however many are new."""
        self._groups.create(name for name, _, _ in consumers)
        wanted = []
        for name, entry, subscriptions in consumers:
            group = self._groups.get(name)
            if group is not None:
                order = any((topic := self._topics.get(each.topic)) and topic.order for each in subscriptions)
                sys_flag = _UNIT_SUB_TOPIC if entry.get("unitMode") is True else 0
                wanted.append((RETRY_PREFIX + name, group.retry_queue_nums, sys_flag, bool(order)))
        self._topics.create_for_groups(wanted)

    def _consumer(
        self,
        name: str,
        client: ClientInfo,
        entry: Mapping[str, Any],
        subscriptions: list[GroupSubscription],
        keep_subscriptions: bool,
    ) -> None:
        """Note one consumer of a heartbeat; as on Apache's broker, a group that may not be created is ignored."""
        group = self._groups.get(name)
        if group is None:
            return
        changed = self._clients.register_consumer(
            name,
            client,
            consume_type=str(entry.get("consumeType") or "CONSUME_PASSIVELY"),
            message_model=str(entry.get("messageModel") or "CLUSTERING"),
            consume_from_where=str(entry.get("consumeFromWhere") or "CONSUME_FROM_LAST_OFFSET"),
            subscriptions=None if keep_subscriptions else subscriptions,
            notify=group.notify_changes,
        )
        if changed:
            topics = ", ".join(f"{each.topic} ({each.expression})" for each in subscriptions)
            _LOG.info("consumer %s at %s, group %s: %s", client.client_id, peer_text(client.channel), name, topics)

    def unregister(self, channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UNREGISTER_CLIENT: forget a client's producer or consumer."""
        client_id = need_str(command.ext, "clientID")
        producer, consumer = command.ext.get("producerGroup"), command.ext.get("consumerGroup")
        if producer:
            self._clients.unregister_producer(producer, channel)
        if consumer:
            group = self._groups.get(consumer)
            self._clients.unregister_consumer(consumer, channel, group is None or group.notify_changes)
            _LOG.info("consumer %s at %s left group %s", client_id, peer_text(channel), consumer)
        return command.reply()

    def list_consumers(
        self,
        _channel: Channel,
        command: RemotingCommand,
        _now_ms: int,
    ) -> RemotingCommand:
        """GET_CONSUMER_LIST_BY_GROUP: the ids of a group's members."""
        name = need_str(command.ext, "consumerGroup")
        group = self._clients.consumers.get(name)
        if group is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return command.reply(body=dumps({"consumerIdList": group.client_ids()}))

    def check_config(
        self,
        _channel: Channel,
        command: RemotingCommand,
        _now_ms: int,
    ) -> RemotingCommand:
        """CHECK_CLIENT_CONFIG: a client asks, before a subscription that is not by tags, whether it can be served."""
        document = _object(command) if command.body else {}
        data = document.get("subscriptionData")
        if not isinstance(data, dict) or (kind := data.get("expressionType") or "TAG") == "TAG":
            return command.reply()
        if kind != SQL92 or not self._by_property():
            return no_such_filter(command, kind)
        try:
            compile_sql92(str(data.get("subString") or ""))
        except Sql92Error as error:
            _LOG.warning("%s of group %s: %s", document.get("clientId"), document.get("group"), error)
            return command.reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
        return command.reply()

    def notify(self, group: ConsumerGroup) -> None:
        """Tell all members of a group that it has changed."""
        if self._may_notify():
            for channel in list(group.clients):
                self._dispatcher.tell(channel, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name})


def _check_heartbeat(document: Mapping[str, Any]) -> None:
    """Raise ProtocolError for a heartbeat that would take long; no real client sends that many groups or tags."""
    consumers = document.get("consumerDataSet") or ()
    groups = len(document.get("producerDataSet") or ()) + len(consumers)
    if groups > GROUPS_MAX:
        raise ProtocolError(f"heartbeat with {groups} groups, at most {GROUPS_MAX} are taken")
    count = chars = 0
    for entry in consumers:
        subscriptions = entry.get("subscriptionDataSet") or ()
        count += len(subscriptions)
        for each in subscriptions:
            chars += len(str(each.get("subString") or "")) + sum(len(str(tag)) for tag in each.get("tagsSet") or ())
    if count > SUBSCRIPTIONS_MAX or chars > SUBSCRIPTION_CHARS_MAX:
        raise ProtocolError(
            f"heartbeat with {count} subscriptions of {chars} characters, "
            f"at most {SUBSCRIPTIONS_MAX} of {SUBSCRIPTION_CHARS_MAX} are taken"
        )


def _object(command: RemotingCommand) -> dict[str, Any]:
    """Read a body that must be a JSON object; raises ProtocolError."""
    document = loads_body(command.body)
    if not isinstance(document, dict):
        raise ProtocolError(f"body is not a JSON object: {command.body[:200]!r}")
    return document
