"""What counts as a whole record: every torn write of ours is found out, and nothing that was whole is called torn.

A torn write is any choice of the sectors of one write, the others still zeros, as they were. Property texts hold
whatever bytes there are: zeros in them mean nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transactions.transaction_messages import committed_message, discarded_message, make_half, op_message
from remoting.errors import RecordError
from remoting.messages.message import Message, decode_record, encode_host, encode_record
from remoting.messages.proof import is_proof, proof_field, sum_before, text_sum, vouching_flag
from remoting.messages.properties import TAGS, with_property
from remoting.messages.record_rows import RecordRows
from store.disk.errors import StoreCorruptError
from store.half_messages import DECIDED
from store.log.commit_log import CommitLog
from store.log.log_scan import Stop, valid_size, walk
from tests.support.commitlog import parse_record, without_sum
from tests.support.raw_puts import append
from tests.support.simdisk import SimDisk

HOST, HOST_V6 = encode_host("127.0.0.1", 10911), encode_host("::1", 10911)
ROOT = Path("/store/commitlog")
SECTOR = 512
SEGMENT = 1 << 16

hosts = st.sampled_from([HOST, HOST_V6])
hostile_texts = st.one_of(
    st.text(max_size=40),
    st.integers(1, 2_000).map(lambda n: "k\x01" + "\0" * n + "\x02"),
    st.integers(1, 1_500).map(lambda n: "\0" * n),
    st.integers(1, 1_500).map(lambda n: "k\x01" + "v" * n + "\x02"),
)
messages = st.builds(
    Message,
    st.sampled_from(["T", "t" * 127, "t" * 128, "t" * 255]),
    st.integers(0, 9),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.sampled_from([0, 1, 4, 12, 1 << 30]),
    st.just(7),
    hosts,
    body=st.one_of(st.binary(max_size=40), st.integers(0, 1_500).map(bytes), st.just(b"")),
    properties=hostile_texts,
)


def opened(disk: SimDisk, *, start: int = 0, clean: bool = False, ours: bool = True) -> CommitLog:
    log = CommitLog(disk, ROOT, SEGMENT, ROOT.parent / "aside")
    for _ in log.recover(start, clean=clean, ours=ours):
        pass
    return log


def found(log: CommitLog) -> list[bytes]:
    return [record for _, record in log.scan(0, check_crc=True)]


def torn(data: bytes, at: int, kept: Iterator[bool]) -> bytes:
    """What is left of a write at a position of the file if some of its sectors are missing."""
    parts = []
    done = 0
    while done < len(data):
        n = min(SECTOR - (at + done) % SECTOR, len(data) - done)
        parts.append(data[done : done + n] if next(kept) else bytes(n))
        done += n
    return b"".join(parts)


def sectors(data: bytes, at: int) -> int:
    return (at % SECTOR + len(data) + SECTOR - 1) // SECTOR


# ------------------------------------------------------------------------------------------------ one record


@given(messages, hosts)
def test_a_record_has_the_sum_of_what_stands_behind_its_body(message: Message, store_host: bytes) -> None:
    record = encode_record(message, store_host)
    assert is_proof(proof_field(record))
    assert proof_field(record) & 0xFFFFFFFF == text_sum(record)
    assert decode_record(record).prepared_offset == 0
    assert parse_record(record).prepared_offset == 0, "the independent reader agrees"
    rows = RecordRows(message, store_host, [message.flag], [message.body], [message.properties.encode()])
    assert rows.records() == [record]
    assert [bytes(rows.joined(0, 0, 0))] == [record]


@given(messages, st.integers(0, 1 << 62))
def test_a_half_messages_offset_stays_what_it_is(message: Message, offset: int) -> None:
    message.prepared_offset = offset
    record = encode_record(message, HOST)
    assert decode_record(record).prepared_offset == offset
    assert is_proof(proof_field(record)) == (offset == 0)


@given(messages, st.data())
def test_a_changed_byte_of_topic_or_properties_is_found_out(message: Message, data: st.DataObject) -> None:
    record = bytearray(encode_record(message, HOST))
    behind_body = len(record) - (len(message.properties.encode()) + 2 + len(message.topic))
    at = data.draw(st.integers(behind_body, len(record) - 1))
    record[at] ^= data.draw(st.integers(1, 255))
    assert valid_size(bytes(record), 0, 0) == 0
    with pytest.raises(RecordError):
        decode_record(bytes(record))


@given(messages, st.integers(0, SECTOR - 1), st.randoms(use_true_random=False))
def test_no_torn_record_counts(message: Message, before: int, rng: random.Random) -> None:
    """Wherever the record stands, and whichever sectors are missing; without a look at what is zero."""
    record = bytearray(encode_record(message, HOST))
    record[28:36] = before.to_bytes(8, "big")
    for _ in range(8):
        left = torn(bytes(record), before, iter([rng.random() < 0.6 for _ in range(sectors(record, before))]))
        whole = left == record
        assert valid_size(bytes(before) + left, before, before) == (len(record) if whole else 0)


@given(messages, st.integers(0, SECTOR - 1))
def test_records_without_a_sum_are_judged_as_apache_judges_them(message: Message, before: int) -> None:
    record = bytearray(without_sum(encode_record(message, HOST)))
    record[28:36] = before.to_bytes(8, "big")
    assert valid_size(bytes(before) + record, before, before) == len(record)
    assert decode_record(bytes(record)).properties == message.properties


# ------------------------------------------------------------------------------------------------ logs


@given(st.lists(messages, min_size=1, max_size=6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_log_ends_with_the_last_whole_record(sent: list[Message], count: int, rng: random.Random) -> None:
    disk = SimDisk()
    log = opened(disk)
    records = [encode_record(message, HOST) for message in sent]
    offsets, _ = append(log, records[:count], range(len(records[:count])), 1)
    log.sync()
    more, _ = append(log, records[count:], range(len(records[count:])), 1)
    data = log.read(0, log.end)
    disk.rng = rng
    disk.power_cut(rng.choice([0.0, 0.3, 0.7, 0.95, 1.0]))
    left = disk.read_file(ROOT / f"{0:020d}")[: len(data)]
    again = opened(disk)
    starts = [*offsets, *more, len(data)]
    same = [left[a:b] == data[a:b] for a, b in pairwise(starts)]
    assert all(same[: len(offsets)])
    assert len(found(again)) == (same.index(False) if False in same else len(same))
    assert again.check() == []


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_zeros_in_properties_of_a_store_of_before(clean: bool, ours: bool) -> None:
    """What an older version has accepted stays, last in the log or not, also across what we append behind it."""
    disk = SimDisk()
    log = opened(disk)
    old = [
        without_sum(encode_record(Message("T", body=b"x", properties=f"k\x01{n * chr(0)}\x02"), HOST))
        for n in (0, 1023, 5000)
    ]
    append(log, old, [0, 1, 2], 1)
    log.sync()
    again = opened(disk, clean=clean, ours=ours)
    assert len(found(again)) == 3
    append(again, [encode_record(Message("T", body=b"new"), HOST)], [3], 1)
    assert len(found(opened(disk, clean=clean, ours=ours))) == 4


def test_damage_to_durable_properties_is_said() -> None:
    disk = SimDisk()
    log = opened(disk)
    append(log, [encode_record(Message("T", body=b"x", properties="k\x01value\x02"), HOST)] * 2, [0, 1], 1)
    log.sync()
    path = ROOT / f"{0:020d}"
    file = disk.open(path)
    at = disk.read_file(path).index(b"value")
    file.pwrite(b"V", at)
    assert "no valid record at 0" in log.check()[0]
    with pytest.raises(StoreCorruptError, match="ends at 0"):
        for _ in CommitLog(disk, ROOT, SEGMENT).recover(0, log.end):
            pass


# ------------------------------------------------------------------------------------------------ committed messages


def half_message(text: str, body: bytes) -> Message:
    message = Message("Orders", 1, body=body, properties=with_property(text, "UNIQ_KEY", "u"))
    make_half(message, "u", "pg")
    return message


def decision(half: bytes, checks: int, give_up: bool = False, vouches: bool = True) -> list[bytes]:
    """The records of one decision, as the broker writes them."""
    make = discarded_message if give_up else committed_message
    first = encode_record(make(decode_record(half), checks), HOST)
    op = op_message(DECIDED, [0], HOST, 1, vouches=vouches)
    if vouches:
        op.flag = vouching_flag(first)
    return [first, encode_record(op, HOST)]


texts = st.one_of(
    st.just(""),
    st.integers(1, 1_200).map(lambda n: f"k\x01{'v' * n}\x02"),
    st.integers(1, 1_200).map(lambda n: f"k\x01{chr(0) * n}\x02"),
    st.integers(1, 1_200).map(lambda n: f"{TAGS}\x01a\x02{chr(0) * n}\x01v\x02"),
)


@given(texts, st.binary(max_size=600), st.integers(0, 3), st.booleans(), st.just(0) | st.integers(0, 600), st.randoms())
def test_a_torn_decision_never_counts(
    text: str, body: bytes, checks: int, give_up: bool, before: int, rng: random.Random
) -> None:
    """The committed message counts if it is whole, whatever became of the op message; else neither does."""
    disk = SimDisk()
    log = opened(disk)
    pads = [encode_record(Message("P", body=bytes(before)), HOST)] if before else []
    append(log, [*pads, encode_record(half_message(text, body), HOST)], [0] * (len(pads) + 1), 1)
    log.sync()
    half_at = sum(map(len, pads))
    half = log.read_record(half_at) or b""
    begin = log.end
    (first, op), error = append(log, decision(half, checks, give_up), [0, 0], 1, whole=True)
    assert error is None
    data = log.read(begin, log.end - begin)
    disk.rng = rng
    disk.power_cut(rng.choice([0.0, 0.3, 0.7, 0.95, 1.0]))
    left = disk.read_file(ROOT / f"{0:020d}")[begin : begin + len(data)]
    expected = 0
    if left[: op - first] == data[: op - first]:
        expected = 2 if left == data else 1
    records = found(opened(disk))
    assert len(records) == len(pads) + 1 + expected
    if expected:
        stored = decode_record(records[len(pads) + 1])
        assert stored.prepared_offset == half_at
        assert stored.body == body


@given(texts, st.integers(0, 3))
def test_what_apache_or_an_older_version_committed_counts_wherever_it_stands(text: str, checks: int) -> None:
    disk = SimDisk()
    log = opened(disk)
    append(log, [without_sum(encode_record(half_message(text, b"x"), HOST))], [0], 1)
    half = log.read_record(0) or b""
    committed, op = decision(half, checks, vouches=False)
    other = encode_record(Message("Orders", 1, sys_flag=8, prepared_offset=77, body=b"y", properties=text), HOST)
    append(log, [committed, without_sum(op), other], [0, 0, 1], 1)
    log.sync()
    for clean in (True, False):
        assert len(found(opened(disk, clean=clean, ours=False))) == 4, "Apache's broker was the last"
    assert len(found(opened(disk, clean=True))) == 4
    log = opened(disk, clean=True)
    append(log, [encode_record(Message("T", body=b"new"), HOST)], [0], 1)
    assert len(found(opened(disk))) == 5, "and behind what stands in the middle of the log nobody doubts it"


def test_the_first_half_message_of_a_log_is_named_as_any_other() -> None:
    """Its offset is 0, and a consumer that looks finds 0 there, as on Apache's broker."""
    log = opened(SimDisk())
    append(log, [encode_record(half_message("", b"x"), HOST)], [0], 1)
    committed, op = decision(log.read_record(0) or b"", 0)
    assert (proof_field(committed), sum_before(op)) == (0, text_sum(committed))


@pytest.mark.parametrize("zeros", [0, 600])
@pytest.mark.parametrize("behind_half", [True, False])
def test_an_old_committed_record_that_names_none_counts_last(behind_half: bool, zeros: int) -> None:
    """An older version took any sysFlag from a client. Only both oddities at once look like a torn decision."""
    disk = SimDisk()
    log = opened(disk)
    first = half_message("", b"h") if behind_half else Message("P")
    old = Message("T", sys_flag=8, body=b"x", properties=f"k\x01v{zeros * chr(0)}\x02")
    append(log, [encode_record(first, HOST), without_sum(encode_record(old, HOST))], [0, 0], 1)
    assert len(found(opened(disk))) == (1 if behind_half and zeros else 2)


def test_what_names_a_half_message_that_is_not_there_does_not_count_last_in_our_log() -> None:
    disk = SimDisk()
    log = opened(disk)
    append(log, [encode_record(Message("T", body=b"x", prepared_offset=4_711), HOST)], [0], 1)
    assert found(opened(disk)) == []


def test_what_the_delay_plugin_delivered_counts_also_last() -> None:
    """An older version may hold a committed message that waits; no op message stands behind its delivery."""
    disk = SimDisk()
    log = opened(disk)
    append(log, [encode_record(Message("P"), HOST), encode_record(half_message("", b"x"), HOST)], [0, 0], 1)
    half = decode_record([record for _, record in log.scan(0)][1])
    late = committed_message(half, 0)
    assert late.prepared_offset > 0
    late.properties = with_property(late.properties, "__TW_ID", "abc")
    append(log, [encode_record(late, HOST)], [0], 1)
    assert len(found(opened(disk))) == 3


@pytest.mark.parametrize("read_bytes", [100, 150, 400, 4096])
def test_the_walk_looks_behind_whatever_it_has_in_memory(read_bytes: int) -> None:
    half = encode_record(half_message("k\x01" + "v" * 300 + "\x02", b"x"), HOST)
    first, op = decision(half, 0)
    stored = bytearray(first)
    data = bytearray()
    for record in (half, bytes(stored), op):
        placed = bytearray(record)
        placed[28:36] = len(data).to_bytes(8, "big")
        data += placed
    size = len(data) + 600
    data = data.ljust(size, b"\0")

    def read(n: int, at: int) -> bytes:
        return bytes(data[at : at + n])

    message_at = len(half)
    data[message_at + 76 : message_at + 84] = (5).to_bytes(8, "big")
    stop = Stop()
    walked = list(walk(read, 0, 0, size, stop, segment_bytes=size, read_bytes=read_bytes))
    assert [len(record) for _, record in walked] == [len(half), len(first), len(op)]
    assert sum_before(walked[2][1]) == text_sum(walked[1][1])
    data[message_at + len(first) - 20] ^= 1
    stop = Stop()
    walked = list(walk(read, 0, 0, size, stop, segment_bytes=size, read_bytes=read_bytes))
    assert (len(walked), stop.position, stop.blank) == (1, message_at, False)
