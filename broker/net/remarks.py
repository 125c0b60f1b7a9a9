"""Remarks that several processors use, as Apache's broker writes them."""

from __future__ import annotations

from typing import Final

__all__ = ["FAQ", "NUL", "group_not_exist", "nul_in_properties", "topic_not_exist"]

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
NUL: Final = "\x00"
"""Not allowed in properties: it separates a topic from its key in the index, and no sender can mean it."""


def group_not_exist(group: str, why: str = "") -> str:
    """For SUBSCRIPTION_GROUP_NOT_EXIST; ``why`` is a sentence that says why the group was not created."""
    return f"subscription group not exist, {group}{why} {FAQ}"


def topic_not_exist(topic: str, between: str = "") -> str:
    """For TOPIC_NOT_EXIST."""
    return f"topic[{topic}] not exist, apply first please!{between}{FAQ}"


def nul_in_properties(properties: str) -> str:
    """For MESSAGE_ILLEGAL: which property has the NUL, and where."""
    at = properties.index(NUL)
    begin = properties.rfind("\x02", 0, at) + 1
    name, separator, _ = properties[begin:at].partition("\x01")
    where = f"the value of property {name!r:.100}" if separator else f"a property's name that begins with {name!r:.100}"
    return f"character {at} of the properties, in {where}, is NUL (U+0000), which properties must not have: remove it"
