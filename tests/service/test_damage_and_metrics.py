"""A damaged record in the entry topic is rejected, with the reason, and holds up nothing; the metrics count it."""

from __future__ import annotations

import asyncio
import shutil
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from remoting.layout import PREPARED_OFFSET_AT, QUEUE_ID_AT
from remoting.messages.message import Message, encode_record
from remoting.messages.properties import get_property
from service.link.cluster import ClusterLink, pull_of
from service.running.cache import ShardCache
from service.running.entries import REJECTED_TOPIC, damaged, rejected_of
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from service.running.reading import reading_of
from store.disk.errors import StoreError
from store.put.plugin_api import DeliveryTarget
from tests.service.process_cluster import NUMBER, RealCluster, now_ms
from tests.support.apache import apache_jars
from tests.support.need import need
from tests.support.ports import free_port
from timewheel_client.consuming.pulled import read_pulled

PATIENCE_S = 240
MARK = b"the record that is damaged"


def record(offset: int, body: bytes) -> bytes:
    message = Message("TIMEWHEEL", 0, 0, 0, 1, bytes(8), 0, 0, body, "TW_TOPIC\x01orders\x02")
    made = bytearray(encode_record(message, bytes(8), 1))
    made[20:28] = offset.to_bytes(8, "big")
    return bytes(made)


def test_what_cannot_be_read_is_named_by_its_offset() -> None:
    good = [record(at, b"body") for at in (5, 6, 7)]
    torn = good[1][:88] + b"\x00" * 4 + good[1][92:]
    pull = pull_of(read_pulled(good[0] + torn + good[2]), 5, 8)
    assert [message.queue_offset for message in pull.messages] == [5, 7]
    assert [bad.queue_offset for bad in pull.bad] == [6] and pull.next_offset == 8
    waiting = rejected_of(damaged(pull.bad[0], "TIMEWHEEL", 99), "broker-a/0", "damaged: \x01\x02why")
    assert (waiting.offset, waiting.due_ms) == (6, 99)


def test_behind_a_record_of_unknown_length_is_read_again() -> None:
    good = [record(at, b"body") for at in (5, 6, 7)]
    pull = pull_of(read_pulled(good[0] + b"\x7f\xff\xff\xff" + good[1][4:] + good[2]), 5, 8)
    assert [message.queue_offset for message in pull.messages] == [5]
    assert [bad.queue_offset for bad in pull.bad] == [6] and pull.next_offset == 7


QUEUE = ("TIMEWHEEL", "broker-a", 0)


@pytest.mark.parametrize("bit", range(64))
def test_a_record_that_names_another_place_moves_nobody(bit: int) -> None:
    """No checksum covers its queue offset. What is behind it was passed over, or the takeover failed, for ever."""
    rows = [record(at, b"body") for at in (5, 6, 7)]
    for which in range(3):
        wrong = (
            record((5 + which) ^ (1 << bit), b"body") if bit < 63 else record(5 + which, b"body")[:20] + bytes([255])
        )
        wrong += record(5 + which, b"body")[len(wrong) :]  # a bit of the sign
        pull = pull_of(read_pulled(b"".join([*rows[:which], wrong, *rows[which + 1 :]])), 5, 8, QUEUE)
        assert [bad.queue_offset for bad in pull.bad] == [5 + which]
        assert {message.queue_offset for message in pull.messages} == {5, 6, 7} - {5 + which}


def test_a_record_of_another_queue_is_damage() -> None:
    """A broker's index may name it in the place of a record of this queue."""
    plain = bytearray(record(6, b"body"))
    plain[PREPARED_OFFSET_AT : PREPARED_OFFSET_AT + 8] = bytes(8)  # as Apache's broker stores it
    other = plain[:QUEUE_ID_AT] + (3).to_bytes(4, "big") + plain[QUEUE_ID_AT + 4 :]
    for strange in (bytes(other), bytes(plain).replace(b"TIMEWHEEL", b"TIMEWHEEK")):
        pull = pull_of(read_pulled(record(5, b"body") + strange + record(7, b"body")), 5, 8, QUEUE)
        assert [bad.queue_offset for bad in pull.bad] == [6] and "in its place" in pull.bad[0].reason
        assert [message.queue_offset for message in pull.messages] == [5, 7]


def test_records_that_are_gone_leave_the_others_in_their_places() -> None:
    """The cluster may have deleted the first ones; a record in the middle may be missing. The shard notices both."""
    pull = pull_of(read_pulled(record(9, b"body") + record(12, b"body")), 5, 14, QUEUE)
    assert [message.queue_offset for message in pull.messages] == [9, 12] and not pull.bad
    reading = reading_of(pull, 5, "TIMEWHEEL", 99)
    assert [line.offset for line in reading.lines] == [9, 12]
    assert reading.faults() == ["7 of the records from offset 5 to 13 are missing in the answer"]


@pytest.mark.process
@pytest.mark.apache
def test_a_damaged_entry_is_rejected_and_counted(tmp_path: Path) -> None:
    """Beside Apache's broker, which serves what is in its file without looking at it."""
    need(apache_jars)
    cluster = RealCluster(tmp_path)
    try:
        cluster.topics(1, "orders")
        due_ms = now_ms() + 1000
        cluster.send([1], "orders", [due_ms])
        cluster.send([2], "orders", [due_ms], MARK)
        cluster.send([3], "orders", [due_ms])
        assert _damage(tmp_path) == 1
        port = free_port()
        service = cluster.service("--metrics-listen", f"127.0.0.1:{port}")
        copies = cluster.wait_delivered(2, PATIENCE_S, "orders")
        assert sorted(copies.found) == [1, 3]
        rejected = cluster.wait_delivered(1, PATIENCE_S, REJECTED_TOPIC).messages
        assert len(rejected) == 1 and get_property(rejected[0].properties, NUMBER) is None
        reason = get_property(rejected[0].properties, "TW_REASON") or ""
        assert "damaged" in reason and "CRC" in reason, reason
        assert b"THE" + MARK[3:] in rejected[0].body, "the bytes of the record, as they are"
        figures = _scrape(port)
        assert figures["timewheel_service_delivered_total"] == 3
        assert figures["timewheel_service_rejected_total"] == figures["timewheel_service_damaged_total"] == 1
        assert figures["timewheel_service_takeovers_total"] == 1
        assert figures["timewheel_service_early_total"] == 0
        assert figures["timewheel_service_lateness_seconds_count"] == 3
        assert service.terminate() == 0
    finally:
        cluster.stop()


def _damage(folder: Path) -> int:
    """Flip bytes of the marked body in the broker's log, below everything that checks; how many places."""
    count = 0
    for path in folder.rglob("*"):
        if path.is_file() and "commitlog" in str(path).lower():
            at = path.read_bytes().find(MARK)
            if at >= 0:
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(b"THE")
                count += 1
    return count


def _scrape(port: int) -> dict[str, float]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def test_an_owner_whose_cache_is_gone_ends(tmp_path: Path) -> None:
    """It waited for the disk for ever, and delivered nothing. The next takeover reads the queue into a new cache."""

    async def work() -> None:
        folder = tmp_path / "cache"
        owner = Owner(ClusterLink("127.0.0.1:1", QUEUE[0]), QUEUE, "me", folder, 1000, InstanceCounts())
        owner.cache = ShardCache(folder, owner.target, lambda: 1, owner.tell.warning)
        try:
            assert owner.fill([])
            shutil.rmtree(folder)
            with pytest.raises(StoreError, match=r"the cache is gone: .*cache"):
                owner.fill([])
        finally:
            with suppress(StoreError):
                owner.cache.close()

    asyncio.run(work())


def test_a_cache_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    """With a full disk, each try to take a shard over left up to 256 KiB behind."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "delay").write_text("no folder can be made here")
    with pytest.raises(StoreError):
        ShardCache(folder, cast(DeliveryTarget, None), lambda: 1, print)
    assert not folder.exists()
