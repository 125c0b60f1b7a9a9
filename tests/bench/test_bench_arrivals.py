"""What a consumer saw: read out of pull answers, then judged."""

from __future__ import annotations

import json
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.generator.arrivals import NO_STAMP, Arrivals, join
from bench.generator.intake import Reception, RocketmqIntake
from bench.generator.receiver import ReceptionEnd


def record(number: int, due_us: int, stored_ms: int, extra: int) -> bytes:
    """A stored message as Apache's MessageDecoder reads it, with hosts of IPv4."""
    body = struct.pack(">qq", due_us, number) + b"x" * extra
    head = struct.pack(">iiiiqqiq8sq8siqi", -626843481, 0, 1, 0, 7, 9, 0, 1, b"", stored_ms, b"", 0, 0, len(body))
    tail = body + b"\x05Topic" + struct.pack(">h", 0)
    return struct.pack(">i", 4 + len(head) + len(tail)) + head + tail


def answer(queue: int, records: list[bytes], next_offset: int) -> bytes:
    body = b"".join(records)
    code = 0 if records else 19
    header = {"code": code, "flag": 1, "opaque": queue, "extFields": {"nextBeginOffset": str(next_offset)}}
    head = json.dumps(header).encode()
    return struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 300))
def test_pull_answers_in_any_pieces(sizes: list[int], cut: int) -> None:
    intake = RocketmqIntake(Reception(1, "rocketmq", "Topic", 2, ""))
    wire, expected, number = b"", [], 0
    for turn, size in enumerate(sizes):
        records = []
        for _ in range(size):
            number += 1
            records.append(record(number, 5_000_000 + number, 6_000 + number, number * 3))
            expected.append((number, 5_000_000 + number, (6_000 + number) * 1000, 42))
        wire += answer(turn % 2, records, 100 + turn)
    parts, asked = [], b""
    for at in range(0, len(wire), cut):
        rows, more = intake.feed(wire[at : at + cut], 42)
        parts += rows
        asked += more
    assert [tuple(row) for row in join(parts).rows.tolist()] == expected
    assert asked.count(b'"code":11') == len(sizes)
    assert b'"queueOffset":"%d"' % (100 + len(sizes) - 1) in asked


def arrivals(*rows: tuple[int, int, int, int]) -> Arrivals:
    return Arrivals(np.array(rows, np.int64).reshape(-1, 4))


def test_the_first_delivery_counts_and_the_others_are_repeats() -> None:
    verdict = arrivals((1, 1000, 2000, 3000), (2, 1000, 1000, 1500), (1, 1000, 9000, 9000)).judge()
    assert (verdict.delivered, verdict.early, verdict.repeated) == (2, 0, 1)
    assert verdict.broker_ms.tolist() == [0.0, 1.0]
    assert verdict.consumer_ms.tolist() == [0.5, 2.0]


def test_early_at_the_broker_or_at_the_consumer_is_early() -> None:
    verdict = arrivals((1, 1000, 999, 2000), (2, 1000, NO_STAMP, 999), (3, 1000, NO_STAMP, 1000)).judge()
    assert verdict.early == 2
    assert len(verdict.broker_ms) == 1


def test_nothing_received_is_nothing_measured() -> None:
    verdict = join([]).judge()
    assert (verdict.delivered, verdict.early, verdict.repeated, len(verdict.consumer_ms)) == (0, 0, 0, 0)


def test_only_what_is_due_in_a_span() -> None:
    chosen = arrivals((1, 999_999, 0, 0), (2, 1_000_000, 0, 0), (3, 2_000_000, 0, 0)).due_between(1_000, 2_000)
    assert chosen.numbers.tolist() == [2]


def test_what_comes_late_is_waited_for_and_what_never_comes_is_not() -> None:
    """A broker that was minutes behind was told to have lost what was still to come."""
    end = ReceptionEnd(9, until_ms=5_000, quiet_ms=2_000)
    assert not end.gives_up(5.0, came_s=1.0)
    assert end.gives_up(5.1, came_s=1.0), "nothing has come for long"
    assert not end.gives_up(500.0, came_s=498.5), "messages still come"
    assert end.gives_up(500.0, came_s=497.9)
    assert ReceptionEnd(9, until_ms=5_000).gives_up(5.1, came_s=5.0), "where late is too late"
