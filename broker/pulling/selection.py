"""The subscription of a pull: the one that it carries, or the one of its group's heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.net.clients import Clients
from broker.net.remarks import FAQ
from remoting.codes import PullSysFlag, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.filters.sql_filter import SQL92, PropertyFilter, compile_sql92
from remoting.filters.subscription import TagFilter, split_expression
from remoting.headers import PullHeader

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroup, SubscriptionGroups

__all__ = ["BROADCAST_FORBIDDEN", "SUBSCRIPTION_FORBIDDEN", "Selection", "forbidden", "no_such_filter"]

# forbiddenType of a NO_PERMISSION reply
BROADCAST_FORBIDDEN, SUBSCRIPTION_FORBIDDEN = 4, 5

_OWN_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)  # plain: & of an enum costs a microsecond
_PARSE_FAILED = "parse the consumer's subscription failed"


class Selection:
    """Finds the subscription of a pull.

    Args:
        groups, clients: The broker's tables.
        by_property: Whether SQL92 subscriptions are served (``enablePropertyFilter``).
    """

    def __init__(self, groups: SubscriptionGroups, clients: Clients, by_property: Callable[[], bool]) -> None:
        self._groups = groups
        self._clients = clients
        self._by_property = by_property

    def of(
        self, command: RemotingCommand, header: PullHeader, group: SubscriptionGroup
    ) -> TagFilter | PropertyFilter | RemotingCommand:
        """Return tags, a property filter, or the reply that refuses the pull."""
        if header.sys_flag & _OWN_SUBSCRIPTION:
            return self._own(command, header)
        return self._of_group(command, header, group)

    def _own(self, command: RemotingCommand, header: PullHeader) -> TagFilter | PropertyFilter | RemotingCommand:
        """The subscription that the request carries."""
        kind = header.expression_type
        try:
            if kind == "TAG":
                tags = split_expression(header.subscription)
                return TagFilter(None) if tags is None else TagFilter.from_tags(tags)
            if kind == SQL92:
                wants = compile_sql92(header.subscription)
                return wants if self._by_property() else no_such_filter(command, kind)
        except ProtocolError as error:
            remark = _PARSE_FAILED if kind == "TAG" else f"{_PARSE_FAILED}: {error}"
            return command.reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        return no_such_filter(command, kind)

    def _of_group(
        self, command: RemotingCommand, header: PullHeader, group: SubscriptionGroup
    ) -> TagFilter | PropertyFilter | RemotingCommand:
        """The subscription that the group's members announced."""
        members = self._clients.consumers.get(header.consumer_group)
        if members is None:
            remark = f"the consumer's group info not exist{FAQ}"
            return command.reply(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if members.is_broadcast and not group.consume_broadcast_enable:
            remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            return forbidden(command, BROADCAST_FORBIDDEN, remark)
        if not self._groups.may_read(header.consumer_group, header.topic):
            remark = f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]"
            return forbidden(command, SUBSCRIPTION_FORBIDDEN, remark)
        subscription = members.subscriptions.get(header.topic)
        if subscription is None:
            return command.reply(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.version < header.sub_version:
            return command.reply(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if subscription.is_tag:
            return subscription.filter
        if subscription.expression_type != SQL92 or not self._by_property():
            return no_such_filter(command, subscription.expression_type)
        if subscription.wants is None:
            remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            return command.reply(ResponseCode.FILTER_DATA_NOT_EXIST, f"{remark} {subscription.problem}")
        return subscription.wants


def forbidden(command: RemotingCommand, kind: int, remark: str) -> RemotingCommand:
    """Refuse a pull with NO_PERMISSION; ``kind`` is its forbiddenType."""
    return command.reply(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(kind)})


def no_such_filter(command: RemotingCommand, kind: str) -> RemotingCommand:
    """Refuse a kind of subscription that is unknown or switched off."""
    remark = f"The broker does not support consumer to filter message by {kind}"
    return command.reply(ResponseCode.SYSTEM_ERROR, remark)
