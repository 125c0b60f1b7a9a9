"""Names of topics and groups: which are the broker's own, and which are allowed."""

from __future__ import annotations

import re

__all__ = [
    "AUTO_CREATE_TOPIC",
    "DLQ_PREFIX",
    "HALF_TOPIC",
    "NOT_ALLOWED_TO_SEND",
    "OP_HALF_TOPIC",
    "RETRY_PREFIX",
    "SCHEDULE_TOPIC",
    "SYSTEM_PREFIX",
    "TIMER_TOPIC",
    "group_problem",
    "topic_problem",
]

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
SYSTEM_PREFIX = "rmq_sys_"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
NOT_ALLOWED_TO_SEND = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        TIMER_TOPIC,  # Apache lets clients write here, and stalls on what they write
    )
)
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED_TEXT = "^[%|a-zA-Z0-9_-]+$"
_TOPIC_MAX = 127
_RETRY_TOPIC_MAX = 255
_GROUP_MAX = 120


def topic_problem(topic: str) -> str | None:
    """Say what is wrong with a topic's name, in Apache's words; None if nothing is."""
    if not topic.strip():
        return "The specified topic is blank."
    if _ALLOWED.fullmatch(topic) is None:
        return f"The specified topic: {topic}, contains illegal characters, allowing only {_ALLOWED_TEXT}"
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > _RETRY_TOPIC_MAX:
            return (
                f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than topic max length: "
                f"{_RETRY_TOPIC_MAX}"
            )
    elif len(topic) > _TOPIC_MAX:
        return f"The specified topic: {topic}, is longer than topic max length: {_TOPIC_MAX}"
    return None


def group_problem(group: str) -> str | None:
    """Say what is wrong with a group's name, in Apache's words; None if nothing is."""
    if not group.strip():
        return "The specified group is blank."
    if _ALLOWED.fullmatch(group) is None:
        return f"The specified group: {group}, contains illegal characters, allowing only {_ALLOWED_TEXT}"
    if len(group) > _GROUP_MAX:
        return f"The specified group: {group}, is longer than group max length: {_GROUP_MAX}"
    return None
