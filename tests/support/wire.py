"""Plain requests, as the benchmarks have them (`bench.peers.wire`)."""

from __future__ import annotations

import time

from bench.peers.wire import Wire, WireError
from tests.support.wait import let_pass

__all__ = ["Wire", "WireError", "wait_committed"]


def wait_committed(wire: Wire, group: str, topic: str, queues: int, count: int) -> None:
    """Wait until a group has committed so many messages of a topic's queues.

    What a client has shown it may not have counted yet: closed at once, it leaves the last one out.
    """
    end = time.monotonic() + 60
    while (found := sum(wire.offset_of(group, topic, queue_id) or 0 for queue_id in range(queues))) < count:
        assert time.monotonic() < end, f"{group} has committed {found} of {count} messages of {topic}"
        let_pass(0.2)
