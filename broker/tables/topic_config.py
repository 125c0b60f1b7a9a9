"""The configuration of one topic, as Apache's ``topics.json`` has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.tables.topic_names import NOT_ALLOWED_TO_SEND, RETRY_PREFIX
from remoting.codes import Permission, SysFlag

__all__ = ["READ_WRITE", "TopicConfig", "perm_text"]

READ_WRITE = int(Permission.READ | Permission.WRITE)
_READ, _WRITE = int(Permission.READ), int(Permission.WRITE)  # plain ints: an enum's & takes a microsecond


class TopicConfig:
    """The configuration of one topic; never changed, only replaced.

    ``queue_limit`` is the first queue id that a send may not name: 0 for a topic that clients may not write.
    ``message_sys_flag`` is added to its messages' sysFlag. ``plain`` says that a send needs no check but that of its
    queue id: the topic is neither a retry topic nor ordered.
    """

    __slots__ = (
        "attributes",
        "filter_type",
        "message_sys_flag",
        "name",
        "order",
        "perm",
        "plain",
        "queue_limit",
        "read_queue_nums",
        "sys_flag",
        "write_queue_nums",
    )

    def __init__(
        self,
        name: str,
        read_queue_nums: int = 16,
        write_queue_nums: int = 16,
        perm: int = READ_WRITE,
        *,
        sys_flag: int = 0,
        filter_type: str = "SINGLE_TAG",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.read_queue_nums = read_queue_nums
        self.write_queue_nums = write_queue_nums
        self.perm = perm
        self.sys_flag = sys_flag
        self.filter_type = filter_type
        self.order = order
        self.attributes = dict(attributes or {})
        open_to_clients = self.writable and name not in NOT_ALLOWED_TO_SEND
        self.queue_limit = max(read_queue_nums, write_queue_nums) if open_to_clients else 0
        self.plain = open_to_clients and not order and not name.startswith(RETRY_PREFIX)
        self.message_sys_flag = int(SysFlag.MULTI_TAGS) if filter_type == "MULTI_TAG" else 0

    @property
    def readable(self) -> bool:
        """True if consumers may read it."""
        return self.perm & _READ != 0

    @property
    def writable(self) -> bool:
        """True if it may be written."""
        return self.perm & _WRITE != 0

    def queue_for(self, queue_id: int) -> int:
        """The queue for a message accepted for ``queue_id``, perhaps when the topic had more queues.

        It is ``queue_id`` while a send may name it. Else it is a queue that is written and read today, always the same
        one for the same ``queue_id``, so that ordered messages stay in order.

        >>> TopicConfig("T", read_queue_nums=4, write_queue_nums=4).queue_for(6)
        2
        >>> TopicConfig("T", read_queue_nums=8, write_queue_nums=4).queue_for(6)
        6
        """
        queues = max(self.read_queue_nums, self.write_queue_nums)
        if queue_id < queues or queues <= 0:
            return queue_id
        return queue_id % (min(self.read_queue_nums, self.write_queue_nums) or queues)

    def changed(self, **fields: Any) -> TopicConfig:
        """Make a copy with some fields changed."""
        same = {
            "name": self.name,
            "read_queue_nums": self.read_queue_nums,
            "write_queue_nums": self.write_queue_nums,
            "perm": self.perm,
            "sys_flag": self.sys_flag,
            "filter_type": self.filter_type,
            "order": self.order,
            "attributes": self.attributes,
        }
        return TopicConfig(**{**same, **fields})

    def to_json(self) -> dict[str, Any]:
        """Write it with Apache's names."""
        return {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], name: str = "") -> TopicConfig:
        """Read it; what is missing has Apache's defaults. Raises ValueError or TypeError."""
        return cls(
            str(document.get("topicName") or name),
            int(document.get("readQueueNums", 16)),
            int(document.get("writeQueueNums", 16)),
            int(document.get("perm", READ_WRITE)),
            sys_flag=int(document.get("topicSysFlag") or 0),
            filter_type=str(document.get("topicFilterType") or "SINGLE_TAG"),
            order=bool(document.get("order")),
            attributes={str(key): str(value) for key, value in (document.get("attributes") or {}).items()},
        )

    def __repr__(self) -> str:
        return (
            f"TopicConfig [topicName={self.name}, readQueueNums={self.read_queue_nums}, "
            f"writeQueueNums={self.write_queue_nums}, perm={perm_text(self.perm)}, "
            f"topicFilterType={self.filter_type}, topicSysFlag={self.sys_flag}, order={str(self.order).lower()}, "
            f"attributes={self.attributes}]"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicConfig) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.name)


def perm_text(perm: int) -> str:
    """Write permission bits as Apache prints them: ``RW-``."""
    return "".join(letter if perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
