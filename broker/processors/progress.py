"""Administrators' requests about the progress of groups, about topics and clients, and resets of offsets.

====================================  =================================================================
202 GET_TOPIC_STATS_INFO              303 QUERY_CONSUME_TIME_SPAN, 300 QUERY_TOPIC_CONSUME_BY_WHO
203, 204 consumers, producers online  328 GET_ALL_PRODUCER_INFO
208 GET_CONSUME_STATS                 317 GET_BROKER_CONSUME_STATS
343 QUERY_TOPICS_BY_CONSUMER          345 QUERY_SUBSCRIPTION_BY_CONSUMER
222 INVOKE_BROKER_TO_RESET_OFFSET     314 CLONE_GROUP_OFFSET
307 GET_CONSUMER_RUNNING_INFO, 309 CONSUME_MESSAGE_DIRECTLY: passed on to the client, and its answer back
315 VIEW_BROKER_STATS_DATA            what `Traffic` knows of a topic or of a group
====================================  =================================================================

Maps keyed by a message queue are written in fastjson's form, which Java's tools expect. As in 5.x, the broker keeps a
reset: the answer to the next pull of each queue tells the client to continue at the new offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from broker.net.asides import Asides, dump_table
from broker.net.channel import Channel
from broker.processors.connections import consumer_connection, producer_connection
from broker.tables.topic_names import group_problem
from remoting.codes import MAX_FRAME_BYTES, RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.headers import need_long, need_str, opt_int, opt_long, opt_str
from remoting.json_dialect import dump_queue_map, dumps
from remoting.messages.message import MessageError, parse_message_id

if TYPE_CHECKING:
    from broker.figures.traffic import Traffic
    from broker.net.clients import Clients
    from broker.net.dispatcher import Dispatcher
    from broker.net.processor import Handler
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.offsets import ConsumerOffsets
    from broker.tables.topic_config import TopicConfig
    from broker.tables.topics import Topics
    from store.message_store import MessageStore

__all__ = ["ProgressProcessor"]

Queue = tuple[str, str, int]
_FORWARD_MS = 10_000


class ProgressProcessor:
    """Answers requests about progress.

    Args:
        store: Knows the queues.
        topics, groups, offsets, clients: The broker's tables.
        dispatcher: Passes requests on to clients.
        broker_name: Part of every message queue.
        address: Reads the advertised ``ip:port``.
        traffic: Knows the rates of topics and groups.
        asides: Runs work on all queues of a topic, or on all groups.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        clients: Clients,
        dispatcher: Dispatcher,
        broker_name: str,
        address: Callable[[], str],
        traffic: Traffic,
        asides: Asides,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._dispatcher = dispatcher
        self._broker_name = broker_name
        self._address = address
        self._traffic = traffic
        self._asides = asides

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_offset,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
        }

    # ------------------------------------------------------------------------------------------ topics

    async def topic_stats(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_TOPIC_STATS_INFO: both ends of each queue."""
        topic = need_str(command.ext, "topic")
        config = self._topics.get(topic)
        if config is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        more = {"topicPutTps": self._traffic.rate("TOPIC_PUT_NUMS", topic)}
        return command.reply(body=await self._asides.run(dump_queue_map, "offsetTable", self._ends(config), more))

    def _ends(self, config: TopicConfig) -> Iterator[tuple[Queue, Any]]:
        """Both ends of each queue of a topic; any thread."""
        store, topic = self._store, config.name
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            end = max(0, store.max_offset(topic, queue_id))
            entry = {
                "lastUpdateTimestamp": store.store_time_at(topic, queue_id, end - 1) if end else 0,
                "maxOffset": end,
                "minOffset": max(0, store.min_offset(topic, queue_id)),
            }
            yield (topic, self._broker_name, queue_id), entry

    async def groups_of_topic(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """QUERY_TOPIC_CONSUME_BY_WHO: groups that are connected, and those that have offsets."""
        topic = need_str(command.ext, "topic")

        def found() -> bytes:
            groups = {*self._clients.groups_of_topic(topic), *self._offsets.groups_of_topic(topic)}
            return dumps({"groupList": sorted(groups)})

        return command.reply(body=await self._asides.run(found))

    async def time_span(self, _channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """QUERY_CONSUME_TIME_SPAN: first, last and current store time of each queue."""
        topic, group = need_str(command.ext, "topic"), need_str(command.ext, "group")
        config = self._topics.get(topic)
        if config is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return command.reply(body=await self._asides.run(self._spans, config, group, now_ms))

    def _spans(self, config: TopicConfig, group: str, now_ms: int) -> bytes:
        """The body of QUERY_CONSUME_TIME_SPAN; any thread."""
        store, topic = self._store, config.name
        spans = []
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            begin, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            offset = self._offsets.get(group, topic, queue_id)
            first_ms = store.store_time_at(topic, queue_id, begin)
            consumed_ms = store.store_time_at(topic, queue_id, offset - 1) if offset > 0 else first_ms
            span = dumps(
                {
                    "consumeTimeStamp": consumed_ms,
                    "delayTime": 0 if 0 <= end <= offset else now_ms - consumed_ms,
                    "maxTimeStamp": store.store_time_at(topic, queue_id, end - 1) if end > 0 else -1,
                    "messageQueue": {"brokerName": self._broker_name, "queueId": queue_id, "topic": topic},
                    "minTimeStamp": first_ms,
                }
            )
            spans.append(span)
        return b'{"consumeTimeSpanSet":[' + b",".join(spans) + b"]}"

    # ------------------------------------------------------------------------------------------ groups

    async def consume_stats(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_CONSUME_STATS: a group's offsets in one topic, in several, or in all where it has some."""
        ext = command.ext
        group = need_str(ext, "consumerGroup")
        topics = [name for name in (*opt_str(ext, "topicList").split(";"), opt_str(ext, "topic")) if name]
        return command.reply(body=await self._asides.run(self._consume_stats, group, topics))

    def _consume_stats(self, group: str, topics: list[str]) -> bytes:
        """The body of GET_CONSUME_STATS; any thread. No topics means all where the group has offsets."""
        topics = topics or self._offsets.topics_of_group(group)
        return dump_queue_map("offsetTable", self._lags(group, topics), {"consumeTps": self._tps(group, topics)})

    def _tps(self, group: str, topics: Iterable[str]) -> float:
        return sum((self._traffic.rate("GROUP_GET_NUMS", f"{topic}@{group}") for topic in topics), 0.0)

    def _lags(self, group: str, topics: Iterable[str]) -> Iterator[tuple[Queue, dict[str, int]]]:
        """Compare each queue's end with the group's offset; skip topics that the group no longer subscribes to."""
        store, offsets = self._store, self._offsets
        online = self._clients.consumers.get(group)
        for topic in topics:
            config = self._topics.get(topic)
            if config is None or (online is not None and topic not in online.subscriptions):
                continue
            for queue_id in range(config.read_queue_nums):
                offset = max(0, offsets.get(group, topic, queue_id))
                yield (
                    (topic, self._broker_name, queue_id),
                    {
                        "brokerOffset": max(0, store.max_offset(topic, queue_id)),
                        "consumerOffset": offset,
                        "lastTimestamp": max(0, store.store_time_at(topic, queue_id, offset - 1)) if offset else 0,
                        "pullOffset": max(0, offsets.get_pulled(group, topic, queue_id)),
                    },
                )

    async def all_consume_stats(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_BROKER_CONSUME_STATS: the same for every group, and the number of messages not read yet."""
        return command.reply(body=await self._asides.run(self._all_consume_stats))

    def _all_consume_stats(self) -> bytes:
        """The body of GET_BROKER_CONSUME_STATS; any thread. Raises ProtocolError if it would exceed a frame."""
        behind = size = 0
        parts = []
        topics_of = self._offsets.topics_of_groups()
        for group in list(self._groups.table):
            stats = []
            for topic in topics_of.get(group, ()):
                lags = list(self._lags(group, [topic]))
                if lags:
                    behind += sum(max(0, lag["brokerOffset"] - lag["consumerOffset"]) for _, lag in lags)
                    stats.append(dump_queue_map("offsetTable", lags, {"consumeTps": self._tps(group, [topic])}))
            parts.append(b"{" + dumps(group) + b":[" + b",".join(stats) + b"]}")
            size += len(parts[-1])
            if size > MAX_FRAME_BYTES:
                raise ProtocolError(
                    f"the figures of all groups have more than {MAX_FRAME_BYTES} bytes: ask for single ones"
                )
        head = b'{"brokerAddr":' + dumps(self._address()) + b',"consumeStatsList":['
        return head + b",".join(parts) + b'],"totalDiff":%d,"totalInflightDiff":0}' % behind

    async def topics_of_group(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """QUERY_TOPICS_BY_CONSUMER."""
        topics = await self._asides.run(self._offsets.topics_of_group, need_str(command.ext, "group"))
        return command.reply(body=dumps({"brokerAddr": self._address(), "topicList": topics}))

    def subscription(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """QUERY_SUBSCRIPTION_BY_CONSUMER."""
        group, topic = need_str(command.ext, "group"), need_str(command.ext, "topic")
        document: dict[str, Any] = {"group": group, "topic": topic}
        found = self._clients.subscription(group, topic)
        if found is not None:
            document["subscriptionData"] = found.to_json()
        return command.reply(body=dumps(document))

    # ------------------------------------------------------------------------------------------ clients

    def consumer_connections(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_CONSUMER_CONNECTION_LIST."""
        name = need_str(command.ext, "consumerGroup")
        group = self._clients.consumers.get(name)
        if group is None:
            remark = f"the consumer group[{name}] not online"
            return command.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        document = {
            "connectionSet": [consumer_connection(client) for client in group.clients.values()],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: entry.to_json() for topic, entry in group.subscriptions.items()},
        }
        return command.reply(body=dumps(document))

    def producer_connections(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_PRODUCER_CONNECTION_LIST."""
        name = need_str(command.ext, "producerGroup")
        members = self._clients.producers.get(name)
        if not members:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return command.reply(
            body=dumps({"connectionSet": [consumer_connection(client) for client in members.values()]})
        )

    async def all_producers(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_ALL_PRODUCER_INFO."""
        groups = list(self._clients.producers.items())
        entries = (
            (name, [producer_connection(client) for client in list(members.values())]) for name, members in groups
        )
        return command.reply(body=await self._asides.run(dump_table, "data", entries))

    async def _forward(self, command: RemotingCommand, body: bytes) -> RemotingCommand:
        """Pass a request on to the client that it names, and return the client's answer."""
        group, client_id = need_str(command.ext, "consumerGroup"), opt_str(command.ext, "clientId")
        client = self._clients.find_consumer(group, client_id)
        if client is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        try:
            answer = await self._dispatcher.ask(client.channel, command.code, command.ext, body, _FORWARD_MS)
        except TimeoutError:
            remark = f"consumer <{group}> <{client_id}> Timeout: no answer within {_FORWARD_MS} ms"
            return command.reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        except OSError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"consumer <{group}> <{client_id}>: {error}")
        return command.reply(answer.code, answer.remark, answer.ext, answer.body)

    async def running_info(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_CONSUMER_RUNNING_INFO."""
        return await self._forward(command, b"")

    async def consume_directly(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """CONSUME_MESSAGE_DIRECTLY: the client is given one stored message."""
        text = need_str(command.ext, "msgId")
        try:
            _, offset = parse_message_id(text)
        except MessageError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        record = await asyncio.to_thread(self._store.find_record, offset)
        if record is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"no message {text}")
        command.ext["brokerName"] = self._broker_name
        return await self._forward(command, record)

    def stats_data(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """VIEW_BROKER_STATS_DATA."""
        name, key = need_str(command.ext, "statsName"), need_str(command.ext, "statsKey")
        figures = self._traffic.view(name, key)
        if figures is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        return command.reply(body=dumps(figures))

    # ------------------------------------------------------------------------------------------ setting offsets

    def reset_offset(
        self, _channel: Channel, command: RemotingCommand, _now_ms: int
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """INVOKE_BROKER_TO_RESET_OFFSET: to an offset, or to a time; -1 is the end of each queue."""
        ext = command.ext
        topic, group = need_str(ext, "topic"), need_str(ext, "group")
        timestamp, offset = need_long(ext, "timestamp"), opt_long(ext, "offset", -1)
        one_queue = opt_int(ext, "queueId", -1)
        config = self._topics.get(topic)
        if config is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if self._groups.get(group) is None:
            remark = f"Group {group} does not exist"
            return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if one_queue >= config.write_queue_nums:
            remark = f"queue {one_queue} of topic {topic} does not exist, it has {config.write_queue_nums}"
            return command.reply(ResponseCode.INVALID_PARAMETER, remark)
        if one_queue >= 0 and offset != -1:
            begin, end = self._range(topic, one_queue)
            if not begin <= offset <= end:
                remark = f"Target offset {offset} not in consume queue range [{begin}-{end}]"
                return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        if self._offsets.full():
            return command.reply(ResponseCode.SYSTEM_ERROR, f"not reset: {self._offsets.full()}")
        queues = [one_queue] if one_queue >= 0 else range(config.write_queue_nums)
        return self._reset(command, group, topic, queues, timestamp, offset)

    async def _reset(
        self, command: RemotingCommand, group: str, topic: str, queues: Iterable[int], timestamp: int, offset: int
    ) -> RemotingCommand:
        """Find the new offset of each queue, which may read from the disk, and set all of them."""

        def find() -> tuple[dict[int, int], bytes]:
            targets = {queue_id: self._target(topic, queue_id, timestamp, offset) for queue_id in queues}
            pairs = (((topic, self._broker_name, queue_id), target) for queue_id, target in targets.items())
            return targets, dump_queue_map("offsetTable", pairs)

        config = self._topics.get(topic)
        targets, body = await self._asides.run(find)
        if self._topics.get(topic) is not config:
            remark = f"topic {topic} was changed meanwhile, nothing is reset: ask again"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        self._offsets.reset(group, topic, targets)
        return command.reply(body=body)

    def _target(self, topic: str, queue_id: int, timestamp: int, offset: int) -> int:
        """Find the offset of a reset, within the queue."""
        begin, end = self._range(topic, queue_id)
        if offset < 0:
            offset = end if timestamp < 0 else self._store.offset_by_time(topic, queue_id, timestamp)
        return min(max(offset, begin), end)

    def _range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return max(0, self._store.min_offset(topic, queue_id)), max(0, self._store.max_offset(topic, queue_id))

    async def clone_offset(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """CLONE_GROUP_OFFSET: give a group the offsets of another one, in one topic or in all."""
        ext = command.ext
        source, target = need_str(ext, "srcGroup"), need_str(ext, "destGroup")
        topic = opt_str(ext, "topic")
        problem = group_problem(target)
        if problem is not None:
            return command.reply(ResponseCode.INVALID_PARAMETER, problem)
        if self._offsets.full():
            return command.reply(ResponseCode.SYSTEM_ERROR, f"not cloned: {self._offsets.full()}")
        copies = await self._asides.run(self._offsets.copies, source, target, topic)
        self._offsets.take_over(copies)
        return command.reply()
