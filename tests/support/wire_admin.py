"""What tests ask of a broker beyond what `bench.peers.wire.Wire` needs: groups, and where they stand."""

from __future__ import annotations

import json

from bench.peers.wire import Wire


def create_group(wire: Wire, group: str) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, with Apache's defaults."""
    wire.ask(200, {}, json.dumps({"groupName": group}).encode())


def set_offset(wire: Wire, group: str, topic: str, queue_id: int, offset: int) -> None:
    """UPDATE_CONSUMER_OFFSET of one queue."""
    wire.ask(15, {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset})
