"""Permissions: one table that maps each request code to what an account needs for it, with ``aclEnable``.

A code without an entry is refused for everyone. `Rule.words` is the text of docs/security.md for the code. Tests
compare page and table, and try each code in each role on a running broker.

===========  ==========================================================================================
`ANYBODY`    peers that do not sign, too: routes, as from Apache's name server
`ACCOUNT`    every account; what a rule needs beyond that stands in its words
`ADMIN`      accounts with ``admin: true``
`NOBODY`     no account at all: the code is not served
===========  ==========================================================================================

Topics and groups of a request are read from the fields that its processor reads, and from no others: a send by code 310
names its topic in ``b``, and a ``topic`` field beside it is ignored. For a message named by its place in the log only
the store knows the topic; the processor then asks again when it has found the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from broker.access.acl_rules import PENDING, PUB, SUB
from broker.net.channel import Channel
from broker.tables.topic_names import RETRY_PREFIX
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.json_dialect import loads_body

__all__ = ["ACCESS", "ACCOUNT", "ADMIN", "ANYBODY", "NOBODY", "May", "Need", "Rule", "everybody_may"]

ANYBODY, ACCOUNT, ADMIN, NOBODY = "anybody", "account", "admin", "nobody"

Need = tuple[str, int]
"""A topic (a group as its retry topic), and the rights of which one is needed."""
ACKS_BYTES_MAX = 256 << 10
"""The longest body of a BATCH_ACK_MESSAGE: others wait while it is read."""
Needs = Callable[[RemotingCommand], Iterator[Need]]
May = Callable[[Channel, RemotingCommand, Iterable[Need]], RemotingCommand | None]
"""Answers with the reply that refuses, or None."""


def everybody_may(_channel: Channel, _command: RemotingCommand, _needs: Iterable[Need]) -> None:
    """The answer of a broker without access rules."""


class Rule:
    """The needs of one request code: the role, its words in the documents, and how to find topics and groups."""

    __slots__ = ("needs", "role", "words")

    def __init__(self, role: str, words: str, *needs: Needs) -> None:
        self.role = role
        self.words = words
        self.needs = needs

    def of(self, command: RemotingCommand) -> Iterator[Need]:
        """Yield what a request needs.

        Raises KeyError, TypeError, AttributeError or ProtocolError if the request lacks a field for that.
        """
        for needs in self.needs:
            yield from needs(command)


def _topic(field: str, right: int) -> Needs:
    def needs(command: RemotingCommand) -> Iterator[Need]:
        yield command.ext[field], right

    return needs


def _popped(command: RemotingCommand) -> Iterator[Need]:
    """A group, and a topic or the one whose retries it has for that group."""
    yield from _popped_by(command.ext["consumerGroup"], command.ext["topic"])


def _popped_by(group: str, topic: str) -> Iterator[Need]:
    yield RETRY_PREFIX + group, SUB
    for separator in ("_", "+"):
        topic = topic.removeprefix(f"{RETRY_PREFIX}{group}{separator}")
    yield topic, SUB


def _acks(command: RemotingCommand) -> Iterator[Need]:
    document: dict[str, Any] = loads_body(command.body, ACKS_BYTES_MAX)
    pairs = {
        (_text(ack.get("c", ack.get("consumerGroup"))), _text(ack.get("t", ack.get("topic"))))
        for ack in document.get("acks") or ()
    }
    for group, topic in pairs:
        yield from _popped_by(group, topic)


def _sends(field: str) -> Needs:
    def needs(command: RemotingCommand) -> Iterator[Need]:
        topic = command.ext[field]
        yield topic, SUB if topic.startswith(RETRY_PREFIX) else PUB

    return needs


def _group(field: str) -> Needs:
    def needs(command: RemotingCommand) -> Iterator[Need]:
        yield RETRY_PREFIX + command.ext[field], SUB

    return needs


def _group_if_any(field: str) -> Needs:
    def needs(command: RemotingCommand) -> Iterator[Need]:
        if command.ext.get(field):
            yield RETRY_PREFIX + command.ext[field], SUB

    return needs


def _listed_topics(command: RemotingCommand) -> Iterator[Need]:
    for name in (*command.ext.get("topicList", "").split(";"), command.ext.get("topic", "")):
        if name:
            yield name, PUB | SUB


def _heartbeat(command: RemotingCommand) -> Iterator[Need]:
    document: dict[str, Any] = loads_body(command.body)
    for consumer in document.get("consumerDataSet") or ():
        yield RETRY_PREFIX + consumer["groupName"], SUB
        for subscription in consumer.get("subscriptionDataSet") or ():
            yield _text(subscription["topic"]), SUB


def _queues(command: RemotingCommand) -> Iterator[Need]:
    document: dict[str, Any] = loads_body(command.body)
    yield RETRY_PREFIX + document["consumerGroup"], SUB
    for topic in {queue["topic"] for queue in document.get("mqSet") or ()}:
        yield _text(topic), SUB


def _assignment(command: RemotingCommand) -> Iterator[Need]:
    document: dict[str, Any] = loads_body(command.body)
    yield RETRY_PREFIX + _text(document["consumerGroup"]), SUB
    yield _text(document["topic"]), SUB


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a topic is a text, found {value!r:.80}")
    return value


_C = RequestCode
_NOTHING = Rule(ANYBODY, "nothing")
_ANY_ACCOUNT = Rule(ACCOUNT, "any account")
_ADMIN = Rule(ADMIN, "`admin: true`")
_SEND = "PUB of the topic; SUB of the group if it is a retry topic"
_SEND_REPLY = f"{_SEND}; PUB of the cluster's reply topic in any case"
_TOPIC_AND_GROUP = "SUB of the topic and of the group"
_GROUP = "SUB of the group"
_LOOK_AT_TOPIC = Rule(ACCOUNT, "PUB or SUB of the topic", _topic("topic", PUB | SUB))
_LOOK_AT_GROUP = Rule(ACCOUNT, _GROUP, _group("group"))
_LOOK_AT_MEMBERS = Rule(ACCOUNT, _GROUP, _group("consumerGroup"))
_LOOK_AT_BOTH = Rule(ACCOUNT, _TOPIC_AND_GROUP, _topic("topic", SUB), _group("group"))
_READ = Rule(ACCOUNT, _TOPIC_AND_GROUP, _topic("topic", SUB), _group("consumerGroup"))
_POP = Rule(ACCOUNT, _TOPIC_AND_GROUP, _popped)
_LOCK = Rule(ACCOUNT, "SUB of the group and of each topic", _queues)

_SERVED: dict[RequestCode, Rule] = {
    **dict.fromkeys(
        (
            *(_C.GET_ROUTEINFO_BY_TOPIC, _C.GET_BROKER_CLUSTER_INFO, _C.GET_KV_CONFIG, _C.GET_KVLIST_BY_NAMESPACE),
            *(_C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, _C.GET_TOPICS_BY_CLUSTER, _C.GET_SYSTEM_TOPIC_LIST_FROM_NS),
            *(_C.GET_UNIT_TOPIC_LIST, _C.GET_HAS_UNIT_SUB_TOPIC_LIST, _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
            *(_C.GET_BROKER_MEMBER_GROUP,),
        ),
        _NOTHING,
    ),
    _C.SEND_MESSAGE: Rule(ACCOUNT, _SEND, _sends("topic")),
    _C.SEND_MESSAGE_V2: Rule(ACCOUNT, _SEND, _sends("b")),
    _C.SEND_BATCH_MESSAGE: Rule(ACCOUNT, _SEND, _sends("b")),
    _C.SEND_REPLY_MESSAGE: Rule(ACCOUNT, _SEND_REPLY, _sends("topic")),
    _C.SEND_REPLY_MESSAGE_V2: Rule(ACCOUNT, _SEND_REPLY, _sends("b")),
    _C.RECALL_MESSAGE: Rule(ACCOUNT, _SEND, _sends("topic")),
    **dict.fromkeys(
        (
            *(_C.PENDING_GET, _C.PENDING_CHANGE, _C.PENDING_LIST, _C.PENDING_COUNT),
            *(_C.PENDING_CHANGE_MATCHING, _C.PENDING_FORECAST),
        ),
        Rule(ACCOUNT, "PENDING of the topic, which it must name", _topic("topic", PENDING)),
    ),
    _C.END_TRANSACTION: Rule(ACCOUNT, "PUB of the topic that the half message is for"),
    _C.PULL_MESSAGE: _READ,
    _C.LITE_PULL_MESSAGE: _READ,
    _C.QUERY_CONSUMER_OFFSET: _READ,
    _C.UPDATE_CONSUMER_OFFSET: _READ,
    _C.QUERY_CONSUME_TIME_SPAN: _LOOK_AT_BOTH,
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: _LOOK_AT_BOTH,
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _LOOK_AT_BOTH,
    _C.QUERY_CONSUME_QUEUE: Rule(
        ACCOUNT,
        "SUB of the topic, and of the group if it names one",
        _topic("topic", SUB),
        _group_if_any("consumerGroup"),
    ),
    _C.QUERY_MESSAGE: Rule(ACCOUNT, "SUB of the topic", _topic("topic", SUB)),
    _C.VIEW_MESSAGE_BY_ID: Rule(ACCOUNT, "SUB of the message's topic"),
    _C.CONSUMER_SEND_MSG_BACK: Rule(ACCOUNT, "SUB of the group and of the message's topic", _group("group")),
    _C.HEART_BEAT: Rule(ACCOUNT, "SUB of each consumer group and of each topic that it subscribes to", _heartbeat),
    _C.UNREGISTER_CLIENT: Rule(ACCOUNT, "SUB of the consumer group, if it names one", _group_if_any("consumerGroup")),
    **dict.fromkeys(
        (
            *(_C.POP_MESSAGE, _C.ACK_MESSAGE, _C.PEEK_MESSAGE, _C.CHANGE_MESSAGE_INVISIBLETIME),
            *(_C.NOTIFICATION, _C.POLLING_INFO),
        ),
        _POP,
    ),
    _C.BATCH_ACK_MESSAGE: Rule(ACCOUNT, "SUB of each group and topic that it names", _acks),
    _C.QUERY_ASSIGNMENT: Rule(ACCOUNT, _TOPIC_AND_GROUP, _assignment),
    _C.LOCK_BATCH_MQ: _LOCK,
    _C.UNLOCK_BATCH_MQ: _LOCK,
    _C.GET_CONSUMER_LIST_BY_GROUP: _LOOK_AT_MEMBERS,
    _C.GET_CONSUMER_CONNECTION_LIST: _LOOK_AT_MEMBERS,
    _C.GET_CONSUMER_RUNNING_INFO: _LOOK_AT_MEMBERS,
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: _LOOK_AT_GROUP,
    _C.QUERY_TOPICS_BY_CONSUMER: _LOOK_AT_GROUP,
    _C.GET_CONSUME_STATS: Rule(
        ACCOUNT, "SUB of the group, PUB or SUB of each topic that it names", _group("consumerGroup"), _listed_topics
    ),
    **dict.fromkeys(
        (
            *(_C.GET_MAX_OFFSET, _C.GET_MIN_OFFSET, _C.SEARCH_OFFSET_BY_TIMESTAMP, _C.GET_EARLIEST_MSG_STORETIME),
            *(_C.GET_TOPIC_STATS_INFO, _C.GET_TOPIC_CONFIG, _C.QUERY_TOPIC_CONSUME_BY_WHO),
        ),
        _LOOK_AT_TOPIC,
    ),
    **dict.fromkeys(
        (
            *(_C.CHECK_CLIENT_CONFIG, _C.GET_ALL_TOPIC_CONFIG, _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            _C.GET_ALL_MESSAGE_REQUEST_MODE,
            *(_C.GET_BROKER_RUNTIME_INFO, _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, _C.GET_BROKER_HA_STATUS),
            *(_C.GET_PRODUCER_CONNECTION_LIST, _C.VIEW_BROKER_STATS_DATA),
        ),
        _ANY_ACCOUNT,
    ),
    **dict.fromkeys(
        (
            *(_C.UPDATE_AND_CREATE_TOPIC, _C.UPDATE_AND_CREATE_TOPIC_LIST, _C.DELETE_TOPIC_IN_BROKER),
            *(_C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST),
            *(_C.DELETE_SUBSCRIPTIONGROUP, _C.UPDATE_BROKER_CONFIG, _C.GET_BROKER_CONFIG),
            *(_C.INVOKE_BROKER_TO_RESET_OFFSET, _C.CLONE_GROUP_OFFSET, _C.GET_ALL_CONSUMER_OFFSET),
            *(_C.GET_ALL_DELAY_OFFSET, _C.GET_BROKER_CONSUME_STATS, _C.GET_ALL_PRODUCER_INFO),
            *(
                _C.SET_MESSAGE_REQUEST_MODE,
                _C.CONSUME_MESSAGE_DIRECTLY,
                _C.RESUME_CHECK_HALF_MESSAGE,
                _C.CLEAN_EXPIRED_CONSUMEQUEUE,
            ),
            *(_C.CLEAN_UNUSED_TOPIC, _C.DELETE_EXPIRED_COMMITLOG),
            *(_C.PUT_KV_CONFIG, _C.DELETE_KV_CONFIG, _C.REGISTER_BROKER, _C.UNREGISTER_BROKER),
            *(_C.BROKER_HEARTBEAT, _C.QUERY_DATA_VERSION, _C.REGISTER_TOPIC_IN_NAMESRV, _C.DELETE_TOPIC_IN_NAMESRV),
            *(_C.WIPE_WRITE_PERM_OF_BROKER, _C.ADD_WRITE_PERM_OF_BROKER, _C.UPDATE_NAMESRV_CONFIG),
            *(_C.GET_NAMESRV_CONFIG,),
        ),
        _ADMIN,
    ),
}

_NOT_SERVED = Rule(NOBODY, "not served")
ACCESS: Mapping[int, Rule] = {code: _SERVED.get(code, _NOT_SERVED) for code in RequestCode}
"""Request code to its rule."""
