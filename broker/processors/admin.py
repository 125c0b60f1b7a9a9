"""Administrators' requests about topics, groups and the tables of offsets.

=====================================  ==========================================================================
17, 18 UPDATE_AND_CREATE_TOPIC(_LIST)  21 GET_ALL_TOPIC_CONFIG, 351 GET_TOPIC_CONFIG, 215 DELETE_TOPIC_IN_BROKER
200, 225 …_SUBSCRIPTIONGROUP(_LIST)    201 all groups, 352 one group, 207 DELETE_SUBSCRIPTIONGROUP
43 GET_ALL_CONSUMER_OFFSET             45 GET_ALL_DELAY_OFFSET
305 system topics                      306, 316, 329 clean-ups, which have nothing to do here: SUCCESS
=====================================  ==========================================================================

Codes and remarks are those of Apache's broker 5.5.0. One difference is on purpose: settings that cannot work, such as a
negative number of queues, are refused; Apache's broker accepts them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from broker.net.asides import Asides, dump_table
from broker.net.channel import Channel
from broker.pop.retry_topics import RetryTopics
from broker.processors.admin_lists import JAVA_INT_END, RefusedError, checked, full_of, groups_of, listed
from broker.tables import attributes
from broker.tables.groups import GROUPS_MAX, SubscriptionGroup
from broker.tables.topic_config import TopicConfig
from broker.tables.topic_names import topic_problem
from broker.tables.topics import TOPICS_MAX
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.headers import TopicHeader, need_str, opt_bool, opt_str
from remoting.json_dialect import dumps, loads_body

if TYPE_CHECKING:
    from broker.net.processor import Handler
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.offsets import ConsumerOffsets
    from broker.tables.topics import Topics

__all__ = ["AdminProcessor"]

MAX_QUEUES = 65_536
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


class AdminProcessor:
    """Answers the requests about topics and groups.

    Args:
        topics, groups, offsets: The broker's tables.
        delete_topic: Deletes a topic with its messages and offsets; returns whether it existed. If the deletion ends
            later, its other argument makes the reply.
        asides: Runs long work: reading and writing lists of topics and groups.
        delay_offsets: Reads how far each delay level has been delivered.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        delete_topic: Callable[[str, Callable[[], Any]], bool],
        asides: Asides,
        delay_offsets: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delete_topic = delete_topic
        self._asides = asides
        self._delay_offsets = delay_offsets
        self._retries = RetryTopics(topics, groups, offsets)

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.put_topics,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.get_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.remove_topic,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_groups,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.get_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.remove_group,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_consumer_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.all_delay_offsets,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.nothing_to_clean,
            RequestCode.CLEAN_UNUSED_TOPIC: self.nothing_to_clean,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.nothing_to_clean,
        }

    # ------------------------------------------------------------------------------------------ topics

    def put_topic(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UPDATE_AND_CREATE_TOPIC. Raises RefusedError if a value is not allowed."""
        header = TopicHeader(command.ext)
        try:
            if command.ext.get("topicFilterType") not in _FILTER_TYPES:
                given = command.ext.get("topicFilterType", "null")
                raise RefusedError(ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{given}] value invalid")
            config = self._topic_config(
                header.topic,
                read=header.read_queues,
                write=header.write_queues,
                perm=header.perm,
                sys_flag=header.topic_sys_flag,
                filter_type=header.topic_filter_type,
                order=header.order,
                changes=checked(attributes.parse, header.attributes),
            )
        except RefusedError as error:
            return command.reply(error.code, str(error))
        return self._put_changed(command, [config] if self._differs(config) else [])

    async def put_topics(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UPDATE_AND_CREATE_TOPIC_LIST: creates or changes all of them, or none."""
        try:
            changed = await self._asides.run(self._listed_topics, command.body)
        except RefusedError as error:
            return command.reply(error.code, str(error))
        return self._put_changed(command, changed)

    def _listed_topics(self, body: bytes) -> list[TopicConfig]:
        """Read and check a list of topics; return those that differ from the table. Any thread."""
        changed = []
        try:
            for document in listed(body, "topicConfigList"):
                asked = TopicConfig.from_json(document)
                config = self._topic_config(
                    asked.name,
                    read=asked.read_queue_nums,
                    write=asked.write_queue_nums,
                    perm=asked.perm,
                    sys_flag=asked.sys_flag,
                    filter_type=asked.filter_type,
                    order=asked.order,
                    changes=asked.attributes,
                )
                if self._differs(config):
                    changed.append(config)
        except (AttributeError, TypeError, ValueError) as error:
            raise ProtocolError(f"unreadable topic configuration: {error}") from error
        return changed

    def _topic_config(
        self,
        name: str,
        *,
        read: int,
        write: int,
        perm: int,
        sys_flag: int,
        filter_type: str,
        order: bool,
        changes: Mapping[str, str],
    ) -> TopicConfig:
        """Check a topic that is to be created or changed."""
        self._check_topic_name(name)
        for what, number in (("readQueueNums", read), ("writeQueueNums", write)):
            if not 0 <= number <= MAX_QUEUES:
                raise RefusedError(
                    ResponseCode.INVALID_PARAMETER,
                    f"{what} of topic {name} is {number}: 0 to {MAX_QUEUES} are possible",
                )
        if filter_type not in _FILTER_TYPES:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{filter_type:.100}] value invalid")
        if not -JAVA_INT_END <= sys_flag < JAVA_INT_END:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER, f"topicSysFlag of topic {name} is not an int32: {sys_flag}"
            )
        if not 0 <= perm <= 15:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, f"perm of topic {name} is {perm}: 0 to 15 are possible")
        known = self._topics.newest(name)
        before = {} if known is None else known.attributes
        altered = checked(attributes.alter_topic, before, changes, known is None)
        return TopicConfig(
            name, read, write, perm, sys_flag=sys_flag, filter_type=filter_type, order=order, attributes=altered
        )

    def _check_topic_name(self, name: str) -> None:
        problem = topic_problem(name)
        if problem is None and self._topics.is_system(name):
            problem = f"The topic[{name}] is conflict with system topic."
        if problem is not None:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, problem)

    def _differs(self, config: TopicConfig) -> bool:
        """True if a topic differs from its entry in the table, or from a change on its way. Any thread."""
        return self._topics.get(config.name) != config or self._topics.newest(config.name) != config

    def _put_changed(self, command: RemotingCommand, changed: list[TopicConfig]) -> RemotingCommand:
        table = self._topics.table
        count = len(table) + self._topics.coming
        full = full_of("topics", count, {config.name for config in changed} - table.keys(), TOPICS_MAX)
        if full:
            return command.reply(ResponseCode.SYSTEM_ERROR, full)
        if changed:
            self._topics.write({config.name: config for config in changed}, command.reply)
        return command.reply()

    def all_topics(
        self, _channel: Channel, command: RemotingCommand, _now_ms: int
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """GET_ALL_TOPIC_CONFIG."""
        topics = list(self._topics.table.values())
        entries = ((config.name, config.to_json()) for config in topics)
        return self._table(command, "topicConfigTable", entries, {"dataVersion": self._topics.data_version.to_json()})

    async def _table(
        self, command: RemotingCommand, name: str, entries: Iterable[tuple[str, Any]], before: Mapping[str, Any]
    ) -> RemotingCommand:
        return command.reply(body=await self._asides.run(dump_table, name, entries, before))

    def get_topic(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_TOPIC_CONFIG; a topic of no type is answered as MIXED (see `broker.tables.attributes.typed`)."""
        name = need_str(command.ext, "topic")
        config = self._topics.get(name)
        if config is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return command.reply(body=dumps({**config.to_json(), "attributes": attributes.typed(config.attributes)}))

    def remove_topic(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """DELETE_TOPIC_IN_BROKER; answers SUCCESS also if the topic does not exist.

        Raises RefusedError for a blank name or a topic of the broker's own.
        """
        name = opt_str(command.ext, "topic")
        try:
            if not name.strip():
                raise RefusedError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
            if self._topics.is_system(name):
                raise RefusedError(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        except RefusedError as error:
            return command.reply(error.code, str(error))

        left = [name, *self._retries.of(name)]  # the topic first: once it is gone, no retry topic of it comes again

        def delete() -> RemotingCommand:
            one = left[0]
            if self._topics.get(one) is not None or self._topics.newest(one) is not None:
                self._topics.forget_late(one, delete)  # once more, if the topic was created again meanwhile
            self._delete_topic(one, deleted)
            return deleted()

        def deleted() -> RemotingCommand:
            del left[0]
            return delete() if left else command.reply()

        return delete()

    def system_topics(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        return command.reply(body=dumps({"topicList": self._topics.system_names()}))

    # ------------------------------------------------------------------------------------------ groups

    def put_group(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        if not command.body:  # as Apache's broker answers it
            return command.reply()
        try:
            return self._put_groups(command, groups_of([loads_body(command.body)], self._group_attributes))
        except RefusedError as error:
            return command.reply(error.code, str(error))

    async def put_groups(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: creates or changes all of them, or none."""
        try:
            groups = await self._asides.run(
                lambda: groups_of(listed(command.body, "groupConfigList"), self._group_attributes)
            )
        except RefusedError as error:
            return command.reply(error.code, str(error))
        return self._put_groups(command, groups)

    def _group_attributes(self, name: str) -> Mapping[str, str] | None:
        """A group's attributes once all changes are written; None if the group does not exist. Any thread."""
        known = self._groups.newest(name)
        return None if known is None else known.fields["attributes"]

    def _put_groups(self, command: RemotingCommand, groups: list[SubscriptionGroup]) -> RemotingCommand:
        table = self._groups.table
        count = len(table) + self._groups.coming
        full = full_of("groups", count, {group.name for group in groups} - table.keys(), GROUPS_MAX)
        if full:
            return command.reply(ResponseCode.SYSTEM_ERROR, full)
        if groups:
            self._groups.write({group.name: group for group in groups}, command.reply)
        return command.reply()

    def all_groups(
        self, _channel: Channel, command: RemotingCommand, _now_ms: int
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        entries = ((group.name, group.fields) for group in list(self._groups.table.values()))
        forbidden = {name: dict(topics) for name, topics in self._groups.forbidden.items()}
        before = {"dataVersion": self._groups.data_version.to_json(), "forbiddenTable": forbidden}
        return self._table(command, "subscriptionGroupTable", entries, before)

    def get_group(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_SUBSCRIPTIONGROUP_CONFIG; creates the group if that is allowed, as Apache's broker does."""
        name = need_str(command.ext, "group")
        group = self._groups.find(name)
        if group is None:
            remark = f"No group in this broker. group: {name}{self._groups.full()}"
            return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return command.reply(body=dumps(group.fields))

    def remove_group(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """DELETE_SUBSCRIPTIONGROUP; answers SUCCESS also if the group does not exist."""
        name = need_str(command.ext, "groupName")

        def delete() -> RemotingCommand:
            if self._groups.get(name) is not None or self._groups.newest(name) is not None:
                self._groups.forget_late(name, delete)
            self._groups.delete(name)
            if opt_bool(command.ext, "cleanOffset"):
                self._offsets.forget_group(name)
            return command.reply()

        return delete()

    # ------------------------------------------------------------------------------------------ offsets, clean-ups

    def all_consumer_offsets(
        self, _channel: Channel, command: RemotingCommand, _now_ms: int
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """GET_ALL_CONSUMER_OFFSET."""
        entries = ((name, dict(queues)) for name, queues in list(self._offsets.table.items()))
        return self._table(command, "offsetTable", entries, {"dataVersion": self._offsets.data_version.to_json()})

    def all_delay_offsets(self, _channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """GET_ALL_DELAY_OFFSET."""
        version = {"counter": 0, "stateVersion": 0, "timestamp": now_ms}
        return command.reply(body=dumps({"dataVersion": version, "offsetTable": dict(self._delay_offsets())}))

    def nothing_to_clean(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """Answers clean-up requests with SUCCESS: the broker cleans up by itself."""
        return command.reply()
