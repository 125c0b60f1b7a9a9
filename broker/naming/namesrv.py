"""The embedded name server: the requests of clients, brokers and tools about routes.

It is a processor like the others, behind a port of its own (`broker.net.channel.NAME_SERVER_PORT`). Some clients parse
answers by hand, so these equal Apache's byte for byte: compact JSON with sorted names. As in the name server of 5.5.0,
the ids in ``brokerAddrs`` are quoted only in routes for peers since V4_9_4.

A route lookup creates nothing. The retry topic of a possible group has a route before it exists, because one client
treats a missing route as an error; the group's first heartbeat creates the topic. Only with ``autoCreateTopicOnRoute``
does a lookup create an unknown topic, and with access rules only for an account that may write it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.access.access_table import May, everybody_may
from broker.access.acl_rules import PUB
from broker.config.properties_file import PropertiesError, parse_properties_file
from broker.naming.broker_topics import QueueData
from broker.naming.kv_config import KvConfig
from broker.naming.registration import read_registration
from broker.naming.route_entries import BrokerEntry, OwnBroker, broker_json, route_json
from broker.naming.routes import BROKER_EXPIRED_MS, RouteTable
from broker.net.asides import Asides
from broker.net.channel import Channel
from broker.tables.table_writer import TableWriter
from broker.tables.topic_config import TopicConfig
from broker.tables.topic_names import AUTO_CREATE_TOPIC, RETRY_PREFIX, topic_problem
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.headers import need_long, need_str, opt_bool, opt_int, opt_long, opt_str
from remoting.json_dialect import DIALECT_BYTES_MAX, dumps, loads_body

if TYPE_CHECKING:
    from broker.net.processor import Handler
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.json_files import JsonFile

__all__ = ["NameServer"]

_QUOTED_IDS_SINCE = 401  # V4_9_4
_ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_SETTING_CHARS_MAX = 255
_CHANGES_MAX_BYTES = 32 << 10
_TOPICS_AT_ONCE = 5_000
"""Topics of a registration that are added to the table before other requests are served."""
_NAMES_AT_ONCE = 2_000
"""Names that are written by one call of orjson, which holds the interpreter lock during the call."""
_FIXED_SETTINGS = frozenset(("kvConfigPath", "configStorePath", "configBlackList"))
_SETTINGS = {
    "deleteTopicWithBrokerRegistration": "false",
    "needWaitForService": "false",
    "orderMessageEnable": "false",
    "returnOrderTopicConfigToBroker": "true",
    "supportActingMaster": "false",
}


class NameServer:
    """Answers the name server's request codes.

    Args:
        own: The broker in this process; None for a name server that stands alone.
        groups: The broker's groups; they decide whether a retry topic may have a route.
        auto_create_topic: Whether a route lookup creates an unknown topic (``autoCreateTopicOnRoute``).
        may: Tells whether the client may write the topic that is to be created.
        kv_file: Where key-value configuration lasts (``config/kvConfig.json``); None keeps it in memory.
        tables: Writes it in a thread; None writes it at once.
    """

    def __init__(
        self,
        own: OwnBroker | None = None,
        groups: SubscriptionGroups | None = None,
        *,
        auto_create_topic: bool = False,
        may: May = everybody_may,
        kv_file: JsonFile | None = None,
        tables: TableWriter | None = None,
    ) -> None:
        self.routes = RouteTable(own)
        self._own = own
        self._groups = groups
        self._auto_create_topic = auto_create_topic
        self._may = may
        self._asides = Asides()
        self._registrations = Asides(in_order=True)
        self._registering = 0  # registrations that are being read: later requests must not overtake them
        self._settings = dict(_SETTINGS)
        self.kv = KvConfig(kv_file, tables)

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers: request code to method."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.get_member_group,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.get_topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.get_unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.get_unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.get_unit_topics,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
            **self.kv.handlers(),
        }

    def channel_closed(self, channel: Channel) -> None:
        """Forget what was registered over a connection."""
        self.routes.channel_closed(channel)

    def expire(self, now_ms: int) -> list[str]:
        """Forget brokers that have been silent for too long; to be called every few seconds."""
        return self.routes.expire(now_ms)

    # ------------------------------------------------------------------------------------------ routes

    def get_route(self, channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_ROUTEINFO_BY_TOPIC."""
        topic = opt_str(command.ext, "topic")
        brokers, queues, filters = self.routes.route(topic)
        if not brokers:
            if topic.startswith(RETRY_PREFIX):
                brokers, queues = self._retry_route(topic)
            elif self._create(channel, command, topic):
                brokers, queues, filters = self.routes.route(topic)
        if not brokers:
            remark = (
                f"No topic route info in name server for the topic: {topic or 'null'}\n"
                "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
            )
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark)
        order = None
        if self._settings["orderMessageEnable"] == "true":
            order = self.kv.table.get(_ORDER_NAMESPACE, {}).get(topic)
        return command.reply(body=route_json(brokers, queues, filters, _quoted(command), order))

    def _retry_route(self, topic: str) -> tuple[list[BrokerEntry], dict[str, QueueData]]:
        """The future route of a retry topic; an empty one if its group cannot exist."""
        own = self._own
        if own is None or not own.address or topic_problem(topic) is not None:
            return [], {}
        group = None if self._groups is None else self._groups.would_find(topic.removeprefix(RETRY_PREFIX))
        if group is None or group.retry_queue_nums <= 0:
            return [], {}
        data = own.data_of(TopicConfig(topic, group.retry_queue_nums, group.retry_queue_nums))
        return [entry for entry in self.routes.brokers() if entry.name == own.name], {own.name: data}

    def _create(self, channel: Channel, command: RemotingCommand, topic: str) -> bool:
        """Create the topic that a route lookup asks for, if that is allowed."""
        own = self._own
        if own is None or not own.address or own.topics.get(topic) is not None or topic_problem(topic) is not None:
            return False
        if not self._auto_create_topic or own.topics.is_system(topic) or topic.startswith("%"):
            return False
        if self._may(channel, command, [(topic, PUB)]) is not None:
            return False
        return own.topics.create_for_send(topic, AUTO_CREATE_TOPIC, 4) is not None

    def get_cluster_info(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_BROKER_CLUSTER_INFO."""
        brokers = b",".join(dumps(entry.name) + b":" + broker_json(entry, False) for entry in self.routes.brokers())
        clusters = dumps(self.routes.clusters())
        return command.reply(body=b'{"brokerAddrTable":{' + brokers + b'},"clusterAddrTable":' + clusters + b"}")

    def get_member_group(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_BROKER_MEMBER_GROUP."""
        name = need_str(command.ext, "brokerName")
        entry = self.routes.member_group(name)
        if entry is None:
            entry = BrokerEntry(name, opt_str(command.ext, "clusterName"), {})
        body = broker_json(entry, False, acting=False)
        return command.reply(body=b'{"brokerMemberGroup":' + body + b"}")

    async def get_topics(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        return command.reply(body=await self._asides.run(self._topic_list))

    async def get_topics_by_cluster(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_TOPICS_BY_CLUSTER."""
        return command.reply(body=await self._asides.run(self._topic_list, need_str(command.ext, "cluster")))

    def _topic_list(self, cluster: str | None = None) -> bytes:
        topics = self.routes.topics(cluster)
        pieces = [dumps(topics[at : at + _NAMES_AT_ONCE])[1:-1] for at in range(0, len(topics), _NAMES_AT_ONCE)]
        return b'{"topicList":[' + b",".join(pieces) + b"]}"

    def get_system_topics(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS: the names of clusters and brokers, which are topics too."""
        brokers = self.routes.brokers()
        names = [*self.routes.clusters(), *(entry.name for entry in brokers)]
        document: dict[str, Any] = {"topicList": sorted(set(names))}
        if brokers:
            document = {"brokerAddr": brokers[0].any_address(), **document}
        return command.reply(body=dumps(document))

    def get_unit_topics(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """The three lists of unit topics, which this broker does not have: empty."""
        return command.reply(body=b'{"topicList":[]}')

    def register_topic(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """REGISTER_TOPIC_IN_NAMESRV. Raises ProtocolError if the route cannot be read."""
        topic = need_str(command.ext, "topic")
        queues = {}
        try:
            for document in loads_body(command.body).get("queueDatas") or ():
                queues[str(document["brokerName"])] = QueueData.from_json(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"unreadable route of topic {topic}: {error!r}") from error
        self.routes.put_topic(topic, queues)
        return command.reply()

    def delete_topic(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """DELETE_TOPIC_IN_NAMESRV."""
        cluster = opt_str(command.ext, "clusterName") or None
        self.routes.delete_topic(need_str(command.ext, "topic"), cluster)
        return command.reply()

    def wipe_write_perm(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """WIPE_WRITE_PERM_OF_BROKER."""
        count = self.routes.set_writable(need_str(command.ext, "brokerName"), False)
        return command.reply(ext={"wipeTopicCount": str(count)})

    def add_write_perm(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """ADD_WRITE_PERM_OF_BROKER."""
        count = self.routes.set_writable(need_str(command.ext, "brokerName"), True)
        return command.reply(ext={"addTopicCount": str(count)})

    # ------------------------------------------------------------------------------------------ other brokers

    def register_broker(
        self, channel: Channel, command: RemotingCommand, now_ms: int
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """REGISTER_BROKER."""
        ext = command.ext
        name, address = need_str(ext, "brokerName"), need_str(ext, "brokerAddr")
        own = self._own
        if own is not None and own.name == name:
            if own.address == address:
                return command.reply()
            remark = f"broker name {name} belongs to the broker of this name server, {own.address}: choose another one"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        compressed, crc = opt_bool(ext, "compressed"), opt_int(ext, "bodyCrc32")
        if len(command.body) > DIALECT_BYTES_MAX or compressed or self._registering:
            return self._register_long(channel, command, now_ms, compressed, crc)
        read = read_registration(command.body, compressed, crc)
        if read is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        return self._register(channel, command, now_ms, *read)

    async def _register_long(
        self, channel: Channel, command: RemotingCommand, now_ms: int, compressed: bool, crc: int
    ) -> RemotingCommand:
        """Handle a registration that takes long to read, or that comes behind another one that does."""
        self._registering += 1
        try:
            read = await self._registrations.run(read_registration, command.body, compressed, crc)
            if read is None:
                return command.reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
            if channel.closed:
                return command.reply(ResponseCode.SYSTEM_ERROR, "the connection was closed")
            topics, data_version, filters = read
            name, broker_id = need_str(command.ext, "brokerName"), need_long(command.ext, "brokerId")
            if len(topics) <= _TOPICS_AT_ONCE or broker_id:
                return self._register(channel, command, now_ms, topics, data_version, filters)
            cluster, address = need_str(command.ext, "clusterName"), need_str(command.ext, "brokerAddr")
            await self._registrations.run(self.routes.check_room, name, topics)
            changed = self.routes.would_change(cluster, name, broker_id, address, data_version)
            rest = iter(topics.items())
            first = dict(islice(rest, _TOPICS_AT_ONCE))
            reply = self._register(channel, command, now_ms, first, data_version, filters)
            while changed and (more := dict(islice(rest, _TOPICS_AT_ONCE))):
                await asyncio.sleep(0)
                self.routes.add_topics(name, more)
            return reply
        finally:
            self._registering -= 1

    def _register(
        self,
        channel: Channel,
        command: RemotingCommand,
        now_ms: int,
        topics: Mapping[str, QueueData],
        data_version: Mapping[str, Any],
        filters: list[str],
    ) -> RemotingCommand:
        ext = command.ext
        master = self.routes.register(
            cluster=need_str(ext, "clusterName"),
            name=need_str(ext, "brokerName"),
            broker_id=need_long(ext, "brokerId"),
            address=need_str(ext, "brokerAddr"),
            ha_address=opt_str(ext, "haServerAddr"),
            topics=topics,
            data_version=data_version,
            now_ms=now_ms,
            channel=channel,
            timeout_ms=opt_long(ext, "heartbeatTimeoutMillis", BROKER_EXPIRED_MS),
            enable_acting_master=opt_bool(ext, "enableActingMaster"),
            filter_servers=filters,
        )
        reply = command.reply()
        if master is not None:
            reply.ext = {"masterAddr": master[0], "haServerAddr": master[1]}
        if self._settings["returnOrderTopicConfigToBroker"] == "true" and _ORDER_NAMESPACE in self.kv.table:
            reply.body = dumps({"table": self.kv.table[_ORDER_NAMESPACE]})
        return reply

    def unregister_broker(
        self, _channel: Channel, command: RemotingCommand, _now_ms: int
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """UNREGISTER_BROKER."""
        return self._unregister_later(command) if self._registering else self._unregister(command)

    async def _unregister_later(self, command: RemotingCommand) -> RemotingCommand:
        """Unregister a broker after the registrations that came before."""
        self._registering += 1
        try:
            await self._registrations.run(bool)
            return self._unregister(command)
        finally:
            self._registering -= 1

    def _unregister(self, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext
        self.routes.unregister(
            need_str(ext, "clusterName"),
            need_str(ext, "brokerName"),
            need_long(ext, "brokerId"),
            need_str(ext, "brokerAddr"),
        )
        return command.reply()

    def query_data_version(self, _channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """QUERY_DATA_VERSION: whether a broker's topics are other than those it registered; a heartbeat too.

        Raises ProtocolError if the body is no data version.
        """
        cluster, address = need_str(command.ext, "clusterName"), need_str(command.ext, "brokerAddr")
        known = self.routes.data_version(cluster, address)
        asked = loads_body(command.body, DIALECT_BYTES_MAX)
        if asked is not None and not isinstance(asked, dict):
            raise ProtocolError(f"a data version is an object: {command.body[:200]!r}")
        changed = known is None or known != asked
        if not changed:
            self.routes.heard(cluster, address, now_ms)
        ext = {"changed": "true" if changed else "false"}
        return command.reply(ext=ext, body=b"" if known is None else dumps(known))

    def broker_heartbeat(self, _channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """BROKER_HEARTBEAT."""
        self.routes.heard(need_str(command.ext, "clusterName"), need_str(command.ext, "brokerAddr"), now_ms)
        return command.reply()

    # ------------------------------------------------------------------------------------------ settings

    def get_config(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_NAMESRV_CONFIG."""
        text = "".join(f"{key}={value}\n" for key, value in sorted(self._settings.items()))
        return command.reply(body=text.encode())

    def update_config(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UPDATE_NAMESRV_CONFIG: settings that are known here change until the next start, others are ignored."""
        if len(command.body) > _CHANGES_MAX_BYTES:
            remark = f"the settings have {len(command.body)} bytes, at most {_CHANGES_MAX_BYTES} are accepted"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        try:
            values = parse_properties_file(command.body)
        except PropertiesError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        if _FIXED_SETTINGS & values.keys():
            return command.reply(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        known = {key: value for key, value in values.items() if key in self._settings}
        if any(len(value) > _SETTING_CHARS_MAX for value in known.values()):
            remark = f"a value has at most {_SETTING_CHARS_MAX} characters"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        self._settings.update(known)
        return command.reply()


def _quoted(command: RemotingCommand) -> bool:
    """True if the asker wants broker ids quoted, as JSON has it."""
    return command.version >= _QUOTED_IDS_SINCE or opt_bool(command.ext, "acceptStandardJsonOnly")
