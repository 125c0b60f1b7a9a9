"""Access control: each request is looked at before its processor is, if ``aclEnable`` is set.

In this order, as Apache's ``PlainPermissionManager``: an address that needs no account; the account; an address that
needs no signature; the signature; the account's rights to the topics and groups of the request. What is refused is
answered with NO_PERMISSION and the reason; the connection lives on. Requests that change the broker, and all that are
not known to belong to clients, need ``admin: true``. Routes may be asked for by anybody, as from Apache's name server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from broker.acl_file import AclFileError
from broker.acl_rules import PUB, SUB, Account, AclRules
from broker.channel import Channel, peer_text
from broker.topics import RETRY_PREFIX
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.json_dialect import loads
from remoting.signing import ACCESS_KEY, SIGNATURE, fits
from store.errors import StoreError

if TYPE_CHECKING:
    from store.files import Files

__all__ = ["Acl"]

_LOG = logging.getLogger(__name__)
_TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

_C = RequestCode
_FOR_ANYBODY = frozenset(
    (
        *(_C.GET_ROUTEINFO_BY_TOPIC, _C.GET_BROKER_CLUSTER_INFO, _C.GET_KV_CONFIG, _C.GET_KVLIST_BY_NAMESPACE),
        *(_C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, _C.GET_TOPICS_BY_CLUSTER, _C.GET_SYSTEM_TOPIC_LIST_FROM_NS),
        *(_C.GET_UNIT_TOPIC_LIST, _C.GET_HAS_UNIT_SUB_TOPIC_LIST, _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
        *(_C.QUERY_DATA_VERSION, _C.GET_BROKER_MEMBER_GROUP),
    )
)
"""What the embedded name server is asked by clients that do not sign for it."""

_FOR_ACCOUNTS = frozenset(
    (
        *(_C.SEND_MESSAGE, _C.SEND_MESSAGE_V2, _C.SEND_BATCH_MESSAGE, _C.CONSUMER_SEND_MSG_BACK, _C.RECALL_MESSAGE),
        *(_C.END_TRANSACTION, _C.SEND_REPLY_MESSAGE, _C.SEND_REPLY_MESSAGE_V2),
        *(_C.PULL_MESSAGE, _C.LITE_PULL_MESSAGE, _C.QUERY_MESSAGE, _C.VIEW_MESSAGE_BY_ID),
        *(_C.QUERY_CONSUMER_OFFSET, _C.UPDATE_CONSUMER_OFFSET, _C.SEARCH_OFFSET_BY_TIMESTAMP, _C.GET_MAX_OFFSET),
        *(_C.GET_MIN_OFFSET, _C.GET_EARLIEST_MSG_STORETIME, _C.HEART_BEAT, _C.UNREGISTER_CLIENT),
        *(_C.GET_CONSUMER_LIST_BY_GROUP, _C.LOCK_BATCH_MQ, _C.UNLOCK_BATCH_MQ, _C.CHECK_CLIENT_CONFIG),
        *(_C.GET_ALL_TOPIC_CONFIG, _C.GET_BROKER_RUNTIME_INFO, _C.GET_ALL_CONSUMER_OFFSET, _C.GET_ALL_DELAY_OFFSET),
        *(_C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _C.GET_TOPIC_STATS_INFO, _C.GET_CONSUMER_CONNECTION_LIST),
        *(_C.GET_PRODUCER_CONNECTION_LIST, _C.GET_CONSUME_STATS, _C.QUERY_TOPIC_CONSUME_BY_WHO),
        *(_C.QUERY_CONSUME_TIME_SPAN, _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, _C.GET_CONSUMER_RUNNING_INFO),
        *(_C.VIEW_BROKER_STATS_DATA, _C.GET_BROKER_CONSUME_STATS, _C.QUERY_CONSUME_QUEUE, _C.GET_ALL_PRODUCER_INFO),
        *(_C.QUERY_TOPICS_BY_CONSUMER, _C.QUERY_SUBSCRIPTION_BY_CONSUMER, _C.GET_TOPIC_CONFIG),
        *(_C.GET_SUBSCRIPTIONGROUP_CONFIG, _C.GET_BROKER_HA_STATUS, _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS),
    )
)
"""What every account may ask, as far as it has the topics' and groups' rights."""


class Acl:
    """The rules of a file, and the check of each request against them.

    Raises AclFileError for a file that is missing or cannot be used: a broker without its rules must not start.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._data = self._read()
        self._rules = self._parse(self._data)

    def _read(self) -> bytes:
        try:
            return self._files.read_file(self._path)
        except StoreError as error:
            raise AclFileError(f"aclEnable=true needs the file {self._path}: {error}") from error

    def _parse(self, data: bytes) -> AclRules:
        try:
            return AclRules.read(data)
        except AclFileError as error:
            raise AclFileError(f"{self._path}: {error}") from None

    def reload(self) -> bool:
        """Read the file again if it has changed; whether there are new rules. A bad file changes nothing."""
        try:
            data = self._read()
            if data == self._data:
                return False
            self._data = data
            self._rules = self._parse(data)
        except AclFileError as error:
            _LOG.error("the access rules stay as they were: %s", error)
            return False
        _LOG.info("new access rules from %s: %d accounts", self._path, len(self._rules.accounts))
        return True

    def guard(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """The reply that refuses a request, or None if it may go on."""
        if command.code in _FOR_ANYBODY:
            return None
        reason = self._reason(channel, command)
        if reason is None:
            return None
        _LOG.warning("%s: request %d refused: %s", peer_text(channel), command.code, reason)
        return command.reply(ResponseCode.NO_PERMISSION, reason)

    def _reason(self, channel: Channel, command: RemotingCommand) -> str | None:
        rules, address = self._rules, channel.peer[0]
        if any(matches(address) for matches in rules.white):
            return None
        ext = command.ext
        access_key = ext.get(ACCESS_KEY)
        if access_key is None:
            return "No accessKey is configured"
        account = rules.accounts.get(access_key)
        if account is None:
            return f"No acl config for {access_key:.100}"
        if account.is_white(address):
            return None
        if not fits(ext.get(SIGNATURE), ext, command.body, account.secret_key, command.version):
            return f"Check signature failed for accessKey={access_key}"
        if account.admin:
            return None
        if command.code not in _FOR_ACCOUNTS:
            return f"Need admin permission for request code={command.code}, but accessKey={access_key} is not"
        return _denied(account, command)


def _denied(account: Account, command: RemotingCommand) -> str | None:
    try:
        needs = list(_needs(command))
    except (ProtocolError, KeyError, TypeError, AttributeError) as error:
        return f"Request code={command.code} does not say what it is about: {error!r:.200}"
    if (_TRACE_TOPIC, PUB) in needs:
        return None  # message traces come with whatever account the messages themselves have
    return next(filter(None, (account.refusal(resource, needed) for resource, needed in needs)), None)


def _needs(command: RemotingCommand) -> Iterator[tuple[str, int]]:
    """The topics, and groups as their retry topics, that a request is about, and what it does with them."""
    make = _NEEDS.get(command.code)
    if make is not None:
        yield from ((resource, needed) for resource, needed in make(command) if resource)


def _sends(name: str) -> Callable[[RemotingCommand], Iterator[tuple[str, int]]]:
    def needs(command: RemotingCommand) -> Iterator[tuple[str, int]]:
        topic = command.ext[name]
        yield topic, SUB if topic.startswith(RETRY_PREFIX) else PUB

    return needs


def _reads(topic: str | None, group: str | None) -> Callable[[RemotingCommand], Iterator[tuple[str, int]]]:
    def needs(command: RemotingCommand) -> Iterator[tuple[str, int]]:
        if topic is not None:
            yield command.ext[topic], SUB
        if group is not None and command.ext.get(group):
            yield RETRY_PREFIX + command.ext[group], SUB

    return needs


def _heartbeat(command: RemotingCommand) -> Iterator[tuple[str, int]]:
    document = loads(command.body)
    for consumer in document.get("consumerDataSet") or ():
        yield RETRY_PREFIX + consumer["groupName"], SUB
        for subscription in consumer.get("subscriptionDataSet") or ():
            yield subscription["topic"], SUB


_NEEDS: dict[int, Callable[[RemotingCommand], Iterator[tuple[str, int]]]] = {
    _C.SEND_MESSAGE: _sends("topic"),
    _C.SEND_MESSAGE_V2: _sends("b"),
    _C.SEND_BATCH_MESSAGE: _sends("b"),
    _C.RECALL_MESSAGE: _sends("topic"),
    _C.CONSUMER_SEND_MSG_BACK: _reads(None, "group"),
    _C.PULL_MESSAGE: _reads("topic", "consumerGroup"),
    _C.LITE_PULL_MESSAGE: _reads("topic", "consumerGroup"),
    _C.QUERY_MESSAGE: _reads("topic", None),
    _C.HEART_BEAT: _heartbeat,
    _C.UNREGISTER_CLIENT: _reads(None, "consumerGroup"),
    _C.GET_CONSUMER_LIST_BY_GROUP: _reads(None, "consumerGroup"),
    _C.UPDATE_CONSUMER_OFFSET: _reads("topic", "consumerGroup"),
}
