"""A store that the version before pending commands has written (``stores/before_pending.tar.gz``) opens as it is.

It has 121 messages of the topic T, all but the last due a minute apart from the year 2100 on: the fourth was moved, the
sixth cancelled, the last delivered. Records have no time of acceptance, and the moved one no first delay.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import tests.broker_plugin.test_plugin as host
from store.options import StoreOptions
from store.put.pending_api import PendingName, PendingOrder, PendingQuery, PendingVerb, PendingVerdict

V = PendingVerdict
FIRST = 0x4000010000000000
DUE_MS = 4_102_444_800_000
NOW = 1_900_000_000_000
FIXTURE = Path(__file__).parent / "stores" / "before_pending.tar.gz"
CONFIG = {"timewheelSegmentBytes": "16384", "timewheelPageBytes": "4096"}


def opened(root: Path) -> host.Host:
    made = host.Host(root, config=CONFIG)
    made.plugin.open(made.context)
    made.store.start()
    return made


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def options(flush_sync: bool) -> StoreOptions:
        return StoreOptions(
            commit_log_segment_bytes=65_536,
            consume_queue_segment_bytes=4000,
            max_message_bytes=16_384,
            flush_sync=flush_sync,
        )

    monkeypatch.setattr(host, "StoreOptions", options)
    with tarfile.open(FIXTURE) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def change(running: host.Host, place: int, verb: PendingVerb = PendingVerb.CANCEL) -> PendingVerdict:
    order = PendingOrder(verb=verb, name=PendingName(offset=FIRST + place))
    return running.plugin.pending.change(order, NOW).verdict


def test_what_waits_in_it_is_seen_and_changed(root: Path) -> None:
    running = opened(root)
    desk = running.plugin.pending
    query = PendingQuery(topic="T")
    assert running.warnings == []
    assert running.plugin.pending_count() == desk.count(query).count == 119
    rows = desk.page(query, 1000).rows
    assert [row.offset - FIRST for row in rows] == [n for n in range(120) if n not in (3, 5)] + [3]
    assert (rows[-1].version, rows[-1].due_ms) == (1, DUE_MS + 500_000_000)
    body = desk.get(PendingName(offset=FIRST + 7)).body
    assert body == b"body 7" + bytes(300)
    assert change(running, 5) is V.UNKNOWN  # it noted nothing of what it cancelled, and the file is gone
    assert change(running, 120) is V.TOO_LATE
    assert change(running, 3, PendingVerb.RESTART) is V.REFUSED
    assert change(running, 8, PendingVerb.RESTART) is V.DONE
    assert change(running, 10) is V.DONE
    assert sum(bar.count for bar in desk.forecast(DUE_MS, DUE_MS + 200 * 60_000, 10).bars) == 116
    running.close()

    running = opened(root)
    desk = running.plugin.pending
    assert (change(running, 10), running.plugin.pending_count()) == (V.ALREADY, 118)
    done = desk.change_matching(query, PendingVerb.CANCEL, NOW, dry_run=False)
    assert done.verdicts == {V.DONE: 118}
    assert running.plugin.pending_count() == desk.count(query).count == 0
    assert running.plugin.check() == []
    running.close()
