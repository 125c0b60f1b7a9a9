"""Header fields with their types: the strings of extFields read as numbers, booleans and texts.

Numbers are read as Java reads them (an optional sign and decimal digits, within int32 or int64), booleans too (``true``
in any case, all else is false). Sends and pulls are read by `int` alone, for speed, which takes blanks around a number
and underscores within it, too. A missing or invalid field raises `HeaderError` with the field and the value; a server
answers it with SYSTEM_ERROR and its text, and the connection stays usable.
"""

from __future__ import annotations

from collections.abc import Mapping

from remoting.errors import HeaderError

__all__ = [
    "EndTransactionHeader",
    "HeaderError",
    "PullHeader",
    "QueryMessageHeader",
    "SendBackHeader",
    "SendHeader",
    "TopicHeader",
    "need_int",
    "need_long",
    "need_str",
    "opt_bool",
    "opt_int",
    "opt_long",
    "opt_str",
]

Ext = Mapping[str, str]

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_TRUE = frozenset(("true", "True", "TRUE"))


def _number(name: str, text: str, most: int, wanted: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise HeaderError(name, text, wanted) from None
    # `int` also takes blanks and underscores; Java does not.
    if not -most - 1 <= number <= most or not (text.isdecimal() or (text[0] in "+-" and text[1:].isdecimal())):
        raise HeaderError(name, text, wanted)
    return number


def _check_long(*numbers: int) -> None:
    """Raise ValueError unless all numbers fit into 64 bits."""
    if max(numbers) > _LONG_MAX or min(numbers) < -_LONG_MAX - 1:
        raise ValueError(max(numbers, key=abs))


def need_int(ext: Ext, name: str) -> int:
    """Read an int32 that must be there. Raises HeaderError if it is missing or no int32."""
    text = ext.get(name)
    if text is None:
        raise HeaderError(name, None, "an int32")
    return _number(name, text, _INT_MAX, "an int32")


def need_long(ext: Ext, name: str) -> int:
    """Read an int64 that must be there. Raises HeaderError if it is missing or no int64."""
    text = ext.get(name)
    if text is None:
        raise HeaderError(name, None, "an int64")
    return _number(name, text, _LONG_MAX, "an int64")


def need_str(ext: Ext, name: str) -> str:
    """Read a text that must be there; it may be empty. Raises HeaderError if it is missing."""
    text = ext.get(name)
    if text is None:
        raise HeaderError(name, None, "a text")
    return text


def opt_int(ext: Ext, name: str, default: int = 0) -> int:
    """Read an int32; the default if it is absent or empty."""
    text = ext.get(name)
    return _number(name, text, _INT_MAX, "an int32") if text else default


def opt_long(ext: Ext, name: str, default: int = 0) -> int:
    """Read an int64; the default if it is absent or empty."""
    text = ext.get(name)
    return _number(name, text, _LONG_MAX, "an int64") if text else default


def opt_str(ext: Ext, name: str, default: str = "") -> str:
    """Read a text; the default if it is absent."""
    return ext.get(name, default)


def opt_bool(ext: Ext, name: str, default: bool = False) -> bool:
    """Read a boolean; the default if it is absent or empty."""
    text = ext.get(name)
    if not text:
        return default
    return text == "true" or text.lower() == "true"


class SendHeader:
    """The header of a send: codes 10 and 324 (long names), 310, 320 and 325 (one letter each).

    ``max_reconsume_times`` is None if the client did not send it. Numbers are read within 64 bits; whether they fit
    their fields is checked when the record is made.
    """

    __slots__ = (
        "batch",
        "born_ms",
        "default_topic",
        "default_topic_queues",
        "flag",
        "max_reconsume_times",
        "producer_group",
        "properties",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "topic",
        "unit_mode",
    )

    def __init__(
        self,
        producer_group: str,
        topic: str,
        default_topic: str = "TBW102",
        default_topic_queues: int = 4,
        queue_id: int = 0,
        sys_flag: int = 0,
        born_ms: int = 0,
        flag: int = 0,
        properties: str = "",
        reconsume_times: int = 0,
        unit_mode: bool = False,
        max_reconsume_times: int | None = None,
        batch: bool = False,
    ) -> None:
        self.producer_group = producer_group
        self.topic = topic
        self.default_topic = default_topic
        self.default_topic_queues = default_topic_queues
        self.queue_id = queue_id
        self.sys_flag = sys_flag
        self.born_ms = born_ms
        self.flag = flag
        self.properties = properties
        self.reconsume_times = reconsume_times
        self.unit_mode = unit_mode
        self.max_reconsume_times = max_reconsume_times
        self.batch = batch

    @classmethod
    def from_v2(cls, ext: Ext) -> SendHeader:
        """Read the one-letter form (310, 320, 325); raises HeaderError."""
        get = ext.get
        try:
            most = get("l")
            header = cls(
                ext["a"],
                ext["b"],
                ext["c"],
                int(ext["d"]),
                int(ext["e"]),
                int(ext["f"]),
                int(ext["g"]),
                int(ext["h"]),
                get("i", ""),
                int(get("j") or 0),
                get("k") in _TRUE,
                int(most) if most else None,
                get("m") in _TRUE,
            )
            header._check_range()
        except (KeyError, ValueError):
            raise _send_error(ext, _V2_NAMES) from None
        return header

    @classmethod
    def from_v1(cls, ext: Ext) -> SendHeader:
        """Read the form with long names (10, 324); raises HeaderError."""
        get = ext.get
        try:
            most = get("maxReconsumeTimes")
            header = cls(
                ext["producerGroup"],
                ext["topic"],
                ext["defaultTopic"],
                int(ext["defaultTopicQueueNums"]),
                int(ext["queueId"]),
                int(ext["sysFlag"]),
                int(ext["bornTimestamp"]),
                int(ext["flag"]),
                get("properties", ""),
                int(get("reconsumeTimes") or 0),
                get("unitMode") in _TRUE,
                int(most) if most else None,
                get("batch") in _TRUE,
            )
            header._check_range()
        except (KeyError, ValueError):
            raise _send_error(ext, _V1_NAMES) from None
        return header

    def _check_range(self) -> None:
        """Raise ValueError for a number beyond 64 bits; the ranges of the fields are left to the record."""
        numbers = (self.default_topic_queues, self.queue_id, self.sys_flag, self.born_ms, self.flag)
        _check_long(*numbers, self.reconsume_times, self.max_reconsume_times or 0)

    def to_v2(self) -> dict[str, str]:
        """Write the one-letter form, for a client."""
        ext = {
            "a": self.producer_group,
            "b": self.topic,
            "c": self.default_topic,
            "d": str(self.default_topic_queues),
            "e": str(self.queue_id),
            "f": str(self.sys_flag),
            "g": str(self.born_ms),
            "h": str(self.flag),
            "i": self.properties,
            "j": str(self.reconsume_times),
            "k": "true" if self.unit_mode else "false",
            "m": "true" if self.batch else "false",
        }
        if self.max_reconsume_times is not None:
            ext["l"] = str(self.max_reconsume_times)
        return ext


_V1_NAMES = (
    ("producerGroup", "topic", "defaultTopic"),
    ("defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag"),
    ("reconsumeTimes", "maxReconsumeTimes"),
)
_V2_NAMES = (("a", "b", "c"), ("d", "e", "f", "g", "h"), ("j", "l"))


def _send_error(ext: Ext, names: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]) -> HeaderError:
    """Find the invalid field, once it is known that there is one."""
    texts, numbers, optional_numbers = names
    try:
        for name in texts:
            need_str(ext, name)
        for name in numbers:
            need_long(ext, name)
        for name in optional_numbers:
            opt_long(ext, name)
    except HeaderError as error:
        return error
    return HeaderError(numbers[0], ext.get(numbers[0]), "a number")


class PullHeader:
    """The header of a pull (11, 361). ``subscription`` counts only with the subscription bit of ``sys_flag``.

    Raises HeaderError.
    """

    __slots__ = (
        "commit_offset",
        "consumer_group",
        "expression_type",
        "max_bytes",
        "max_count",
        "offset",
        "queue_id",
        "sub_version",
        "subscription",
        "suspend_ms",
        "sys_flag",
        "topic",
    )

    def __init__(self, ext: Ext) -> None:
        get = ext.get
        try:
            self.consumer_group = ext["consumerGroup"]
            self.topic = ext["topic"]
            self.queue_id = int(ext["queueId"])
            self.offset = int(ext["queueOffset"])
            self.max_count = int(ext["maxMsgNums"])
            self.sys_flag = int(ext["sysFlag"])
            self.commit_offset = int(get("commitOffset") or 0)
            self.suspend_ms = int(get("suspendTimeoutMillis") or 0)
            self.subscription = get("subscription", "")
            self.sub_version = int(get("subVersion") or 0)
            self.expression_type = get("expressionType") or "TAG"
            self.max_bytes = int(get("maxMsgBytes") or 0)
            _check_long(self.queue_id, self.offset, self.max_count, self.sys_flag, self.commit_offset, self.max_bytes)
            _check_long(self.suspend_ms, self.sub_version)
        except (KeyError, ValueError):
            for name in ("consumerGroup", "topic"):
                need_str(ext, name)
            for name in ("queueId", "queueOffset", "maxMsgNums", "sysFlag"):
                need_long(ext, name)
            for name in ("commitOffset", "suspendTimeoutMillis", "subVersion", "maxMsgBytes"):
                opt_long(ext, name)
            raise HeaderError("queueId", ext.get("queueId"), "a number") from None


class SendBackHeader:
    """The header of CONSUMER_SEND_MSG_BACK (36). ``offset`` is the CommitLog position of the message."""

    __slots__ = (
        "delay_level",
        "group",
        "max_reconsume_times",
        "offset",
        "origin_message_id",
        "origin_topic",
    )

    def __init__(self, ext: Ext) -> None:
        self.offset = need_long(ext, "offset")
        self.group = need_str(ext, "group")
        self.delay_level = need_int(ext, "delayLevel")
        self.origin_message_id = opt_str(ext, "originMsgId")
        self.origin_topic = opt_str(ext, "originTopic")
        self.max_reconsume_times = opt_int(ext, "maxReconsumeTimes") if ext.get("maxReconsumeTimes") else None


class EndTransactionHeader:
    """The header of END_TRANSACTION (37). ``end`` is 8 commit, 12 rollback, 0 unknown."""

    __slots__ = (
        "end",
        "from_check",
        "message_id",
        "offset",
        "producer_group",
        "queue_offset",
        "transaction_id",
    )

    def __init__(self, ext: Ext) -> None:
        self.producer_group = need_str(ext, "producerGroup")
        self.queue_offset = need_long(ext, "tranStateTableOffset")
        self.offset = need_long(ext, "commitLogOffset")
        self.end = need_int(ext, "commitOrRollback")
        self.from_check = opt_bool(ext, "fromTransactionCheck")
        self.message_id = opt_str(ext, "msgId")
        self.transaction_id = opt_str(ext, "transactionId")


class QueryMessageHeader:
    """The header of QUERY_MESSAGE (12); ``unique`` when the key is a UNIQ_KEY."""

    __slots__ = ("begin_ms", "end_ms", "key", "max_count", "topic", "unique")

    def __init__(self, ext: Ext) -> None:
        self.topic = need_str(ext, "topic")
        self.key = need_str(ext, "key")
        self.max_count = need_int(ext, "maxNum")
        self.begin_ms = need_long(ext, "beginTimestamp")
        self.end_ms = need_long(ext, "endTimestamp")
        self.unique = opt_bool(ext, "_UNIQUE_KEY_QUERY")


class TopicHeader:
    """The header of UPDATE_AND_CREATE_TOPIC (17); ``attributes`` is the text ``+name=value,-name``."""

    __slots__ = (
        "attributes",
        "default_topic",
        "order",
        "perm",
        "read_queues",
        "topic",
        "topic_filter_type",
        "topic_sys_flag",
        "write_queues",
    )

    def __init__(self, ext: Ext) -> None:
        self.topic = need_str(ext, "topic")
        self.default_topic = opt_str(ext, "defaultTopic")
        self.read_queues = need_int(ext, "readQueueNums")
        self.write_queues = need_int(ext, "writeQueueNums")
        self.perm = need_int(ext, "perm")
        self.topic_filter_type = opt_str(ext, "topicFilterType", "SINGLE_TAG")
        self.topic_sys_flag = opt_int(ext, "topicSysFlag")
        self.order = opt_bool(ext, "order")
        self.attributes = opt_str(ext, "attributes")
