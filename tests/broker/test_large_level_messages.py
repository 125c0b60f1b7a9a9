"""Level messages at the limit of what a segment holds: what was accepted has room when it is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.codes import ResponseCode
from tests.broker.core_rig import Rig

SEGMENT_BYTES = 200_000


@pytest.mark.parametrize("topic", ["t", "T" * 127])
@pytest.mark.parametrize("fill", ["", "x" * 30_000, "\u8a9e" * 10_000])
def test_the_largest_level_message_that_is_accepted_is_delivered(tmp_path: Path, topic: str, fill: str) -> None:
    rig = Rig(tmp_path / "store", mappedFileSizeCommitLog=str(SEGMENT_BYTES))
    client = rig.client()
    text = "DELAY\x011\x02" + (f"FILL\x01{fill}\x02" if fill else "")
    low, high = 100_000, SEGMENT_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        reply = client.send(topic, text, bytes(middle))
        if reply.code == ResponseCode.SUCCESS:
            low = middle
        else:
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL
            high = middle - 1
    assert low > SEGMENT_BYTES - len(fill.encode()) - 1_200, "not much less than fits is accepted"
    rig.pass_ms(2_000)
    rig.deliver_levels()
    assert rig.core.level_scheduler.pending_count() == 0
    assert low in [len(message.body) for queue_id in range(8) for message in client.messages(topic, queue_id)]
    rig.close()
