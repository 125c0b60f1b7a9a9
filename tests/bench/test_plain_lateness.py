"""The plain scan, which checks the pipeline: what is a mark, and what it does at a damaged record."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.plain_lateness import delivered, measure
from remoting.messages.message import Message
from tests.support.lateness_world import HOST, HOST_V6, START_MS, Log, make_world, write_world

MARKS = "__TW_ID\x01{:x}\x02__TW_DUE\x01{}\x02"


def marked(number: int, body: bytes = b"b", host: bytes = HOST, topic: str = "Orders") -> Message:
    message = Message(topic, 0, body=body, properties="TAGS\x01a\x02" + MARKS.format(number, START_MS + number))
    message.born_host = host
    return message


def log_of(store: Path, messages: list[Message]) -> Log:
    log = Log(store, 1 << 10)
    for number, message in enumerate(messages):
        log.append(message, START_MS + number + 3, HOST_V6 if number % 2 else HOST)
    log.close()
    return log


def found(store: Path) -> list[tuple[str, int, int]]:
    return list(delivered(store / "commitlog"))


def one(number: int) -> tuple[str, int, int]:
    return f"{number:x}", START_MS + number, START_MS + number + 3


def test_records_between_hosts_of_both_kinds(tmp_path: Path) -> None:
    topics = ["Orders", "T" * 200]
    log_of(tmp_path, [marked(n, host=HOST_V6 if n % 3 else HOST, topic=topics[n % 2]) for n in range(12)])
    assert found(tmp_path) == [one(number) for number in range(12)]


@pytest.mark.parametrize(
    "message",
    [
        Message("Orders", 0, body=MARKS.format(7, START_MS).encode(), properties="TAGS\x01a\x02"),
        Message("Orders", 0, body=b"__TW_DUE\x01", properties="TAGS\x01a\x02"),
        Message("Orders", 0, properties=f"MY__TW_ID\x017\x02MY__TW_DUE\x01{START_MS}\x02"),
        Message("__TW_DUE\x01", 0, body=b"b"),
    ],
)
def test_what_only_looks_like_a_mark(tmp_path: Path, message: Message) -> None:
    """A body is the sender's, whatever bytes it has; so is the name of another property."""
    log_of(tmp_path, [marked(0), message, marked(2)])
    assert found(tmp_path) == [one(0), one(2)]


def test_a_body_with_marks_of_another_message(tmp_path: Path) -> None:
    log_of(tmp_path, [marked(0, body=MARKS.format(9, 9).encode())])
    assert found(tmp_path) == [one(0)]


@pytest.mark.parametrize(("at", "value"), [(0, 0x7F), (3, 1), (4, 0), (87, 0xFF), (30, 9)])
def test_a_damaged_record_is_counted_and_passed_over(tmp_path: Path, at: int, value: int) -> None:
    """The others of its segment, and of the next ones, are not lost with it."""
    log = log_of(tmp_path, [marked(number) for number in range(20)])
    place, _ = log.places[2]
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[place + at] ^= value or 0xFF
    path.write_bytes(data)
    result = measure(tmp_path / "commitlog")
    assert found(tmp_path) == [one(number) for number in range(20) if number != 2]
    assert (result.delivered, result.damaged) == (19, 1)


def test_a_segment_that_is_cut_off_in_the_middle_of_the_log(tmp_path: Path) -> None:
    log = log_of(tmp_path, [marked(number) for number in range(20)])
    first = [place for place, _ in log.places if place < 1 << 10]
    path = tmp_path / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[: first[-1]].ljust(1 << 10, b"\0"))
    result = measure(tmp_path / "commitlog")
    assert (result.delivered, result.damaged) == (19, 1)


def test_the_end_of_a_log_is_no_damage(tmp_path: Path) -> None:
    log_of(tmp_path, [marked(0)])
    (tmp_path / "commitlog" / f"{1 << 10:020d}").write_bytes(bytes(1 << 10))
    (tmp_path / "commitlog" / f"{1 << 11:020d}").write_bytes(b"")
    assert measure(tmp_path / "commitlog").damaged == 0
    assert measure(tmp_path / "commitlog").delivered == 1


@pytest.mark.parametrize("seed", range(5))
def test_any_world_of_ours(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = make_world(rng, 200)
    world.ours = True
    write_world(world, tmp_path, rng)
    timed = [times for kind, *_, times in world.messages if kind == "timed" and times]
    result = measure(tmp_path / "commitlog")
    assert (result.delivered, result.damaged) == (len(timed), 0)
    assert result.repeated == sum(len(times) - 1 for times in timed)
