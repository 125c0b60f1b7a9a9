"""Queries leave the bodies of large messages alone, and those for due times alone leave the messages alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from broker_plugin.pending import bulk
from remoting.messages.message import Message, encode_record, record_fields
from remoting.messages.properties import format_properties
from store.disk.files import Files
from store.put.pending_api import PendingError, PendingName, PendingOrder, PendingQuery, PendingVerb, PendingVerdict
from store.put.plugin_api import Held
from store.spill.rows.model import RecordCorruptError, SpillOptions
from store.spill.spill_store import SpillStore
from store.spill.state.reading import WHOLE_BYTES
from tests.broker_plugin.test_pending_desk import DAY_MS, NOW, Desk
from tests.broker_plugin.test_plugin import Host
from tests.support import hostile

STORE_ID = bytes(range(16))
BODY = 64 << 10


def read_bytes(call: Callable[[], object]) -> int:
    """Bytes that system calls of this process read meanwhile."""

    def so_far() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    begin = so_far()
    call()
    return so_far() - begin


def large(rng: random.Random, size: int = BODY) -> bytes:
    """A body that is full of what looks like the ends of records."""
    tail = encode_record(Message("Forged", 3, body=b"", properties=format_properties({"TAGS": "forged"})), bytes(8))
    return (hostile.body(rng, 2000) + tail * (size // len(tail) + 1))[:size]


def filled(directory: Path, bodies: Sequence[bytes], hosts: int = 0) -> tuple[SpillStore, list[int], list[bytes]]:
    rng = random.Random(5)
    store = SpillStore.open(Files(), directory, STORE_ID, SpillOptions(reserve_bytes=0), None)
    records = []
    for number, body in enumerate(bodies):
        text = format_properties({"TAGS": f"t{number % 3}", **hostile.plain_properties(rng)})
        message = Message("T" * (1 + number % 140), number, body=body, properties=text, sys_flag=hosts & 0x10)
        message.born_host = bytes(20 if hosts & 0x10 else 8)
        records.append(encode_record(message, bytes(8)))
    refs = []
    for number, record in enumerate(records):
        block = store.append([(NOW + number, store.next_id(), record)])
        with store.lock:
            refs += store.publish(block).refs
    return store, refs, records


@pytest.mark.parametrize("hosts", [0, 0x10])
def test_outlines_have_all_but_the_body(tmp_path: Path, hosts: int) -> None:
    rng = random.Random(hosts)
    bodies = [large(rng, rng.choice((0, 10, WHOLE_BYTES - 200, WHOLE_BYTES + 1, 20_000, BODY))) for _ in range(60)]
    store, refs, records = filled(tmp_path, bodies, hosts)
    order = rng.sample(range(len(refs)), len(refs))
    with store.lock:
        found, sizes = store.read_outlines([refs[n] for n in order], 1 << 20)
    assert sizes == [len(records[n]) for n in order]
    for n, record in zip(order, found, strict=True):
        assert record_fields(record) == record_fields(records[n])
        assert record == records[n] if len(records[n]) <= WHOLE_BYTES else len(record) < 2 * WHOLE_BYTES
    store.close()


def test_outlines_end_where_the_bytes_do(tmp_path: Path) -> None:
    store, refs, _ = filled(tmp_path, [bytes(BODY)] * 40)
    with store.lock:
        assert len(store.read_outlines(refs, 10 * WHOLE_BYTES)[0]) == 10
        assert len(store.read_outlines(refs, 1)[0]) == 1
        assert read_bytes(lambda: store.read_outlines(refs, 1 << 20)) < 40 * WHOLE_BYTES
    store.close()


def test_an_outline_of_damaged_bytes_is_none(tmp_path: Path) -> None:
    store, refs, records = filled(tmp_path, [large(random.Random(1))])
    (path,) = [p for p in tmp_path.rglob("*") if p.is_file() and records[0][-60:] in p.read_bytes()]
    data = bytearray(path.read_bytes())
    end = data.index(records[0]) + len(records[0])
    for back, is_read in ((BODY // 2, True), (30, False)):  # in the body, which is not looked at; in the properties
        data[end - back] ^= 1
        path.write_bytes(data)
        with store.lock:
            if is_read:
                assert record_fields(store.read_outlines(refs, 1 << 20)[0][0]) == record_fields(records[0])
            else:
                with pytest.raises(RecordCorruptError, match="topic and properties"):
                    store.read_outlines(refs, 1 << 20)
    store.close()


def test_a_head_that_leads_nowhere_is_read_whole_and_refused(tmp_path: Path) -> None:
    store, refs, records = filled(tmp_path, [large(random.Random(1))])
    (path,) = [p for p in tmp_path.rglob("*") if p.is_file() and records[0][-60:] in p.read_bytes()]
    data = bytearray(path.read_bytes())
    at = data.index(records[0])
    for length in (-1, 1 << 30, BODY + 10_000, 0x7FFFFFFF):
        data[at + 84 : at + 88] = length.to_bytes(4, "big", signed=True)
        path.write_bytes(data)
        with store.lock, pytest.raises(RecordCorruptError, match="checksum"):
            store.read_outlines(refs, 1 << 20)
    store.close()


def test_a_record_without_a_proof_is_read_whole(tmp_path: Path) -> None:
    store = SpillStore.open(Files(), tmp_path, STORE_ID, SpillOptions(reserve_bytes=0), None)
    record = bytearray(encode_record(Message("T", 0, body=bytes(BODY), properties="a\1b\2"), bytes(8)))
    record[76:84] = bytes(8)  # as Apache's and older versions of ours have it
    block = store.append([(NOW, store.next_id(), bytes(record))])
    with store.lock:
        store.publish(block)
        assert store.read_outlines(block.refs, 1 << 20) == ([bytes(record)], [len(record)])
    store.close()


def test_topic_and_tag_count_list_and_cancel_without_bodies(tmp_path: Path) -> None:
    rng = random.Random(3)
    host = Host(tmp_path)
    plugin = host.plugin
    plugin.open(host.context)
    desk, far_ms = plugin.pending, 4_000_000_000_000
    sent: dict[str, list[int]] = {"Mine": [], "Other": []}
    for n in range(80):
        topic = "Other" if n % 4 == 3 else "Mine"
        text = format_properties({"__STARTDELIVERTIME": str(far_ms + n), "TAGS": f"t{n % 2}"})
        held = plugin.before_put(Message(topic, 1, body=large(rng), properties=text), 1)
        assert isinstance(held, Held)
        plugin.commit_turn()
        sent[topic].append(held.offset)
    page = desk.page(PendingQuery(topic="Mine"), 100)
    assert [row.offset for row in page.rows] == sent["Mine"]
    assert min(row.size for row in page.rows) > BODY
    counted = desk.count(PendingQuery(topic="Mine"))
    assert (counted.count, counted.bytes) == (60, sum(row.size for row in page.rows))
    for call in (
        lambda: desk.count(PendingQuery(tag="t1")),
        lambda: desk.page(PendingQuery(topic="Other"), 100),
        lambda: desk.change_matching(PendingQuery(topic="Mine", tag="t0"), PendingVerb.CANCEL, 1, dry_run=False),
    ):
        assert read_bytes(call) < 80 * 2 * WHOLE_BYTES  # the bodies are 5.2 MB
    assert [row.offset for row in desk.page(PendingQuery(topic="Mine"), 100).rows] == sent["Mine"][1::3]
    host.close()


def test_a_dry_run_by_due_time_reads_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    sent = [desk.send(NOW + DAY_MS + n) for n in range(300)]
    spill = desk.world.plugin.spill
    monkeypatch.setattr(spill, "read_outlines", None)
    query = PendingQuery(due_from_ms=NOW + DAY_MS + 5, due_to_ms=NOW + DAY_MS + 295)
    dry = desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, limit=280)
    rest = desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, after=dry.next)
    assert [answer.offset for answer in (*dry.answers, *rest.answers)] == sent[5:295]
    assert (len(dry.answers), rest.next) == (280, "")


def test_few_matches_among_many_are_found_by_whole_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    mine = [desk.send(NOW + DAY_MS + n, "Other" if n % 10 else "Mine") for n in range(500)][::10]
    looks: list[int] = []
    spill = desk.world.plugin.spill
    scan = spill.scan
    monkeypatch.setattr(spill, "scan", lambda *given: looks.append(1) or scan(*given))
    query = PendingQuery(topic="Mine")
    page = desk.desk.page(query, 30)
    rest = desk.desk.page(query, 30, page.next)
    assert [row.offset for row in (*page.rows, *rest.rows)] == mine
    found = desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, limit=7, dry_run=False)
    assert ([answer.offset for answer in found.answers], len(looks) < 9) == (mine[:7], True)
    assert [row.offset for row in desk.desk.page(query, 100, found.next).rows] == mine[7:]
    assert desk.desk.count(query).count == 43


def test_the_last_due_time_is_known_whatever_was_cancelled() -> None:
    desk = Desk()
    assert desk.desk.last_due() is None
    rng = random.Random(7)
    sent = {desk.send(NOW + DAY_MS + 40_000 + rng.randrange(50_000)): 0 for _ in range(300)}
    for offset in sent:
        answer = desk.desk.get(PendingName(offset=offset))
        sent[offset] = answer.due_ms
    desk.world.run(3_000)
    assert desk.world.plugin.spill.run_count
    for offset in sorted(sent, key=sent.__getitem__, reverse=True):
        assert desk.desk.last_due() == max(sent.values())
        assert desk.change(offset).verdict is PendingVerdict.DONE
        del sent[offset]
    assert desk.desk.last_due() is None


def test_a_bulk_move_looks_at_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "LOOKED_AT_MAX", 300)
    desk = Desk()
    for n in range(1_000):
        desk.send(NOW + DAY_MS + n, "Other")
    mine = desk.send(NOW + DAY_MS + 1_000, "Mine")
    query, far = PendingQuery(topic="Mine"), NOW + 10 * DAY_MS
    found = desk.desk.change_matching(query, PendingVerb.MOVE, NOW, dry_run=False, due_ms=far)
    assert (found.answers, found.looked_at < 600, bool(found.next)) == ((), True, True)
    calls = 1
    while found.next:
        found = desk.desk.change_matching(query, PendingVerb.MOVE, NOW, dry_run=False, due_ms=far, after=found.next)
        calls += 1
        assert calls < 9
    assert [(answer.offset, answer.verdict) for answer in found.answers] == [(mine, PendingVerdict.DONE)]
    with pytest.raises(PendingError, match="could be looked at"):
        desk.desk.change_matching(query, PendingVerb.MOVE, NOW, dry_run=False, by_ms=5)


def test_a_name_is_compared_with_the_message_when_its_row_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may not see the topic must not learn that there was such a message."""
    desk = Desk()
    offset = desk.send(NOW + DAY_MS, "Mine", UNIQ_KEY="AC11")
    assert desk.change(offset).verdict is PendingVerdict.DONE
    monkeypatch.setattr(desk.desk._changes._past, "find", lambda _: None)  # as when the row's file is old
    for name, word in (
        (PendingName(offset=offset), "delivered or cancelled"),
        (PendingName(offset=offset, topic="Mine", unique_key="AC11"), "delivered or cancelled"),
        (PendingName(offset=offset, topic="Other"), "under this name"),
        (PendingName(offset=offset, topic="Mine", unique_key="AC12"), "under this name"),
    ):
        answer = desk.desk.change(PendingOrder(verb=PendingVerb.CANCEL, name=name), NOW)
        assert (answer.verdict, answer.due_ms) == (PendingVerdict.UNKNOWN, 0)
        assert word in answer.detail


def test_a_bulk_cancel_notes_the_version() -> None:
    desk = Desk()
    moved, still = desk.send(NOW + DAY_MS, "Mine"), desk.send(NOW + DAY_MS, "Mine")
    for by_ms in (5, 6):
        desk.change(moved, PendingVerb.MOVE, by_ms=by_ms)
    done = desk.desk.change_matching(PendingQuery(topic="Mine"), PendingVerb.CANCEL, NOW, dry_run=False)
    assert {answer.offset: answer.version for answer in done.answers} == {moved: 2, still: 0}
    for offset, version in ((moved, 2), (still, 0)):
        again = desk.change(offset)
        assert (again.verdict, again.version) == (PendingVerdict.ALREADY, version)
