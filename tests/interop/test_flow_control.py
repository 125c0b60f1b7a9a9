"""More sends than a broker takes at once: both answer SYSTEM_BUSY with Apache's words, and lose nothing of the rest."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.interop.peers import start_peer
from tests.support.wait import wait_until
from tests.support.wire import Wire

pytestmark = [pytest.mark.interop]

SENDS = 5_000
OK, BUSY = 0, 2
WORDS = "[OVERLOAD]system busy, start flow control for a while"
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "sendThreadPoolQueueCapacity": "10",
    "sendMessageThreadPoolNums": "1",
    "autoCreateTopicEnable": "true",
}


@pytest.mark.parametrize("kind", ["ours", pytest.param("apache", marks=pytest.mark.apache)])
def test_flow_control_is_answered_in_the_same_words(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with start_peer(kind, tmp_path_factory.mktemp(kind), SETTINGS) as peer, Wire(peer.address, 30) as wire:
        peer.prepare("flood")
        usual: dict[str, Any] = {"a": "p", "b": "flood", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        usual |= {"i": "", "j": 0, "k": "false", "m": "false"}
        sent = [wire.send(310, usual, b"x" * 200) for _ in range(SENDS)]
        answers = [wire.receive()[0] for _ in sent]
        assert sorted(answer["opaque"] for answer in answers) == sent
        codes = Counter(answer["code"] for answer in answers)
        assert set(codes) == {OK, BUSY}, codes
        assert all(answer["remark"].startswith(WORDS) for answer in answers if answer["code"] == BUSY)
        wire.ask(310, usual, b"afterwards")
        stored = codes[OK] + 1
        # Apache's queues follow its log.
        wait_until(lambda: wire.max_offset("flood", 0) == stored, 30, f"{stored} messages are in the queue")
