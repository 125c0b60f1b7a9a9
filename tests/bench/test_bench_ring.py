"""Frames made ahead: what the ring writes into them is what a stock client would have sent, in every place."""

from __future__ import annotations

import datetime
import struct

import numpy as np
import pytest

from bench.generator import rocketmq
from bench.generator.load import Kind, Load
from bench.generator.ring import BODY_MARK, DELAY_MARK, ISO_MARK, Ring, Template, find_fields, opaque_of
from remoting.messages.batch import split_batch
from remoting.messages.properties import parse_properties
from tests.support.frames import decode_frame

NOW_MS = 1_763_000_000_123


def ring(load: Load, rows: int = 6, first_number: int = 0) -> Ring:
    made = rocketmq.templates(load)
    return Ring(made, rows, lambda: NOW_MS, load.due_from_ms, load.due_to_ms, load.due_at_ms, first_number)


def frames(data: memoryview) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        length = 4 + struct.unpack_from(">i", data, at)[0]
        found.append(bytes(data[at + 4 : at + length]))
        at += length
    return found


@pytest.mark.parametrize("kind", ["normal", "timed", "level"])
def test_each_frame_is_a_send_with_its_own_number(kind: Kind) -> None:
    load = Load(port=1, kind=kind, body_bytes=100, queues=4, due_from_ms=1000, due_to_ms=2000, level=3)
    for number, frame in enumerate(frames(ring(load, 6, 77).take(6))):
        command = decode_frame(frame)
        assert command.code == 310
        assert command.ext["e"] == str(number % 4)
        assert len(command.body) == 100
        due_us, own = struct.unpack(">qq", command.body[:16])
        assert own == 77 + number
        properties = parse_properties(command.ext["i"])
        assert int(properties["UNIQ_KEY"][16:], 16) == own
        if kind == "timed":
            assert due_us == int(properties["TIMER_DELIVER_MS"]) * 1000
            assert NOW_MS + 1000 <= due_us // 1000 < NOW_MS + 2000
        assert properties.get("DELAY") == ("3" if kind == "level" else None)


@pytest.mark.parametrize("body_bytes", [16, 64, 1024])
def test_each_message_of_a_batch_has_its_own_number_and_due_time(body_bytes: int) -> None:
    load = Load(port=1, batch=5, body_bytes=body_bytes, due_from_ms=0, due_to_ms=60_000)
    seen = []
    for frame in frames(ring(load, 3).take(3)):
        command = decode_frame(frame)
        assert (command.code, command.ext["m"], command.ext["i"]) == (320, "true", "")
        for _, body, text in split_batch(command.body):
            due_us, number = struct.unpack(">qq", body[:16])
            assert len(body) == body_bytes
            assert due_us == int(parse_properties(text)["TIMER_DELIVER_MS"]) * 1000
            seen.append((number, due_us))
    assert [number for number, _ in seen] == list(range(15))
    assert len({due_us for _, due_us in seen}) > 5


def test_a_lap_later_all_is_new_and_a_piece_never_crosses_the_end() -> None:
    frame_ring = ring(Load(port=1, body_bytes=16), 4)
    numbers = []
    for wanted, given in ((3, 3), (3, 1), (9, 4), (1, 1)):
        data = frame_ring.take(wanted)
        assert len(data) == given * frame_ring.size
        numbers += [struct.unpack(">qq", decode_frame(frame).body)[1] for frame in frames(data)]
    assert numbers == list(range(9))


def test_fresh_frames_are_due_from_now_or_from_a_given_moment() -> None:
    clock = [NOW_MS]
    load = Load(port=1, body_bytes=16, due_from_ms=10, due_to_ms=11)
    made = rocketmq.templates(load)
    for start, first_due in ((0, NOW_MS + 10), (5_000_000_000_000, 5_000_000_000_010)):
        clock[0] = NOW_MS
        frame_ring = Ring(made, 4, lambda: clock[0], 10, 11, start)
        (frame,) = frames(frame_ring.fresh(1))
        assert decode_frame(frame).body[:8] == struct.pack(">q", first_due * 1000)
        clock[0] += 500
        (frame,) = frames(frame_ring.fresh(1))
        assert decode_frame(frame).body[:8] == struct.pack(">q", (first_due + (0 if start else 500)) * 1000)


def test_other_ways_to_write_a_time() -> None:
    data = b"at " + ISO_MARK + b"."
    frame_ring = Ring([Template(data, find_fields(data))], 2, lambda: NOW_MS, 90_500, 90_501)
    due = datetime.datetime.fromtimestamp((NOW_MS + 90_500) / 1000, datetime.UTC)
    assert bytes(frame_ring.take(1)).decode() == f"at {due.isoformat(timespec='milliseconds')[:23]}Z."


def test_where_a_delay_is_in_whole_seconds_the_due_time_in_the_body_is_too() -> None:
    data = b"in " + DELAY_MARK + b": " + BODY_MARK
    frame_ring = Ring([Template(data, find_fields(data))], 2, lambda: NOW_MS, 90_500, 90_501)
    text = bytes(frame_ring.take(1))
    assert text[:15] == b"in 0000000090: "
    assert struct.unpack(">qq", text[15:]) == ((NOW_MS + 90_000) * 1000, 0)


def test_opaques_follow_the_numbers() -> None:
    load = Load(port=1, body_bytes=16)
    found = [decode_frame(frame).opaque for frame in frames(ring(load, 4, (1 << 32) + 5).take(4))]
    assert found == opaque_of(np.arange((1 << 32) + 5, (1 << 32) + 9)).tolist()
    assert len(set(found)) == 4


def test_templates_that_differ_in_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        Ring([Template(b"ab", []), Template(b"abc", [])], 2, lambda: 0, 0, 1)
