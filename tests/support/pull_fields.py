"""The header of a pull that any broker answers: what tests send as it is, or with one field changed."""

from __future__ import annotations

from typing import Any

__all__ = ["pull_fields"]


def pull_fields(group: str, topic: str) -> dict[str, Any]:
    """List the fields of PULL_MESSAGE for queue 0 from its begin, all tags, answered at once."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
