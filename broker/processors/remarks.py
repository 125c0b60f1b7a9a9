"""Sentences that several processors answer with, as Apache's broker writes them."""

from __future__ import annotations

__all__ = ["FAQ", "group_not_exist", "topic_not_exist"]

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def group_not_exist(group: str) -> str:
    """For SUBSCRIPTION_GROUP_NOT_EXIST."""
    return f"subscription group not exist, {group} {FAQ}"


def topic_not_exist(topic: str, between: str = "") -> str:
    """For TOPIC_NOT_EXIST."""
    return f"topic[{topic}] not exist, apply first please!{between}{FAQ}"
