"""Finding records: split anywhere, damage anywhere, torn and growing ends, against the list of what was written."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.lateness.logs.planning import NoStoreError, plan_from_json, plan_log, plan_to_json, whole_end
from bench.lateness.logs.reading import Settings, batch_tasks, read_task
from bench.lateness.logs.records import LogSegment, SplitReader
from bench.lateness.logs.storage import LogMovedError, storage_for
from remoting.messages.message import Message
from tests.support.examples import examples
from tests.support.lateness_world import HOST_V6, Log, make_world, write_world


def small_log(folder: Path, seed: int, count: int = 60) -> Log:
    rng = random.Random(seed)
    return write_world(make_world(rng, count), folder, rng)


def read_all(
    folder: Path, split_bytes: int, chunk_bytes: int, check_crc: bool = False, lean_bytes: int = 0
) -> tuple[list[int], list[tuple[int, int, bool]]]:
    """Positions of all records that the splits yield, and all gaps as (position, size, torn)."""
    starts: list[int] = []
    gaps: list[tuple[int, int, bool]] = []
    plan = plan_log(str(folder))
    for split in plan.splits(split_bytes):
        data = Path(split.segment.path).read_bytes()
        reader = SplitReader(
            lambda at, n, data=data: data[at : at + n],  # type: ignore[misc]
            split.segment,
            split.begin,
            split.stop,
            check_crc=check_crc,
            chunk_bytes=chunk_bytes,
            lean_bytes=lean_bytes,
        )
        for _, heads in reader.chunks():
            starts += [split.segment.base + int(place) for place in heads.places]
        gaps += [(split.segment.base + gap.offset, gap.size, gap.torn) for gap in reader.gaps]
    return starts, gaps


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 10_000), st.integers(150, 9_000), st.sampled_from([91, 400, 5_000, 1 << 20]))
def test_every_record_is_read_once_however_it_is_split(
    tmp_path_factory: pytest.TempPathFactory, seed: int, split_bytes: int, chunk_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = small_log(folder, seed)
    starts, gaps = read_all(folder, split_bytes, chunk_bytes, check_crc=True)
    assert starts == [place for place, _ in log.places]
    assert gaps == []


def test_the_blank_behind_a_damaged_last_record_is_no_part_of_the_gap(tmp_path: Path) -> None:
    log = small_log(tmp_path, 175)
    last = next(index for index, (place, _) in enumerate(log.places) if place >= 2 * log.segment_bytes) - 1
    place, size = log.places[last]
    path = log.folder / f"{log.segment_bytes:020d}"
    content = bytearray(path.read_bytes())
    content[place - log.segment_bytes : place - log.segment_bytes + 8] = b"\x5a" * 8
    path.write_bytes(content)
    assert place + size < 2 * log.segment_bytes
    assert log.places[last + 1][0] == 2 * log.segment_bytes
    for split_bytes in (150, 9_000):
        _, gaps = read_all(tmp_path, split_bytes, 700, check_crc=True)
        assert gaps == [(place, size, False)]


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 10_000), st.integers(150, 9_000), st.data())
def test_damage_hides_what_it_hits_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, seed: int, split_bytes: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = small_log(folder, seed)
    if len(log.places) < 3:
        return
    hit = sorted(data.draw(st.sets(st.integers(1, len(log.places) - 2), max_size=4)))
    for index in hit:
        place, size = log.places[index]
        base = place - place % log.segment_bytes
        path = log.folder / f"{base:020d}"
        content = bytearray(path.read_bytes())
        at = place - base + data.draw(st.sampled_from([0, 4, 28]))
        length = min(data.draw(st.integers(8, 40)), size - (at - place + base))
        content[at : at + length] = bytes(0x5A ^ byte for byte in content[at : at + length])
        path.write_bytes(content)
    starts, gaps = read_all(folder, split_bytes, 700, check_crc=True)
    assert starts == [place for index, (place, _) in enumerate(log.places) if index not in hit]
    covered = {place for index, (place, _) in enumerate(log.places) if index in hit}
    assert all(any(begin <= place < begin + size for begin, size, _ in gaps) for place in covered)
    assert not any(torn for _, _, torn in gaps)
    assert sum(size for _, size, _ in gaps) == sum(log.places[index][1] for index in hit)


def _all_rows(folder: Path, rows: str, split_bytes: int) -> list[dict[str, Any]]:
    settings = Settings.of({"path": str(folder), "rows": rows, "splitBytes": str(split_bytes)})
    return [row for task in batch_tasks(settings) for batch in read_task(settings, task) for row in batch.to_pylist()]


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 10_000), st.integers(150, 9_000), st.sampled_from([91, 400, 5_000]), st.data())
def test_without_bodies_the_same_is_read(
    tmp_path_factory: pytest.TempPathFactory, seed: int, split_bytes: int, chunk_bytes: int, data: st.DataObject
) -> None:
    """Whole or damaged anywhere: records, gaps, and every column of the rows."""
    folder = tmp_path_factory.mktemp("log")
    log = small_log(folder, seed)
    for _ in range(data.draw(st.integers(0, 4)) if log.places else 0):
        place, size = data.draw(st.sampled_from(log.places))
        base = place - place % log.segment_bytes
        path = log.folder / f"{base:020d}"
        content = bytearray(path.read_bytes())
        at = place - base + data.draw(st.integers(0, size - 1))
        wrong = data.draw(st.binary(min_size=1, max_size=40))[: size - (at - place + base)]
        content[at : at + len(wrong)] = wrong
        path.write_bytes(content)
    assert read_all(folder, split_bytes, chunk_bytes, lean_bytes=1) == read_all(folder, split_bytes, chunk_bytes)
    for rows in ("records", "delays"):
        found = []
        for lean_bytes in (1, 1 << 40):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("bench.lateness.logs.reading.LEAN_BODY_BYTES", lean_bytes)
                found.append(_all_rows(folder, rows, split_bytes))
        assert found[0] == found[1]


def test_large_bodies_are_passed_over(tmp_path: Path) -> None:
    """But for those of the first chunk, by which the reader learns that they are large."""
    log = Log(tmp_path, 64 << 20)
    for number in range(500):
        log.append(Message("Orders", 0, body=bytes(64 << 10), properties="TAGS\x01a\x02"), 1_000 + number, HOST_V6)
    log.close()
    (split,) = plan_log(str(tmp_path)).splits(1 << 30)
    content = Path(split.segment.path).read_bytes()
    for lean_bytes, most in ((16 << 10, 2_300_000), (0, 40_000_000), (65 << 10, 40_000_000)):
        reads: list[int] = []

        def read(at: int, count: int, reads: list[int] = reads) -> bytes:
            reads.append(count)
            return content[at : at + count]

        reader = SplitReader(read, split.segment, split.begin, split.stop, lean_bytes=lean_bytes)
        places = [int(place) for _, heads in reader.chunks() for place in heads.places]
        assert places == [place for place, _ in log.places]
        assert most // 2 < sum(reads) <= most


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 10_000), st.integers(150, 9_000), st.data())
def test_the_torn_end_of_a_live_log(
    tmp_path_factory: pytest.TempPathFactory, seed: int, split_bytes: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = small_log(folder, seed)
    if not log.places:
        return
    place, size = log.places[-1]
    kept = data.draw(st.integers(0, size - 1))
    path = log.folder / f"{place - place % log.segment_bytes:020d}"
    at = place % log.segment_bytes + kept
    before = path.read_bytes()
    content = before[:at]
    path.write_bytes(content.ljust(log.segment_bytes, b"\0"))
    starts, gaps = read_all(folder, split_bytes, 700, lean_bytes=data.draw(st.sampled_from([0, 1])))
    # Zeros at the end of a record may be cut off without taking anything away.
    kept_whole = content.ljust(log.segment_bytes, b"\0") == before
    assert starts == [start for start, _ in log.places[: None if kept_whole else -1]]
    assert all(torn for _, _, torn in gaps)


@pytest.mark.parametrize(
    ("topic", "text", "stage"),
    [
        ("Orders", "__TW_ID\x01ffffffffffffffff\x02__TW_DUE\x011700000000000\x02", "ordinary"),
        ("Orders", "__TW_ID\x017fffffffffffffff\x02__TW_DUE\x011700000000000\x02", "ordinary"),
        ("Orders", "REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02DELAY\x0199999999999\x02", "ordinary"),
        ("SCHEDULE_TOPIC_XXXX", "REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02DELAY\x0199999999999\x02", "ordinary"),
        ("rmq_sys_wheel_timer", f"REAL_TOPIC\x01Orders\x02TIMER_DELAY_SEC\x01{'9' * 18}\x02", "accepted"),
    ],
)
def test_numbers_that_no_broker_gives_are_no_numbers(tmp_path: Path, topic: str, text: str, stage: str) -> None:
    """A sender to Apache's broker names properties as it likes: one message must not end the reading."""
    log = Log(tmp_path)
    log.append(Message(topic, 0, properties=text), 1_000)
    log.close()
    settings = Settings.of({"path": str(tmp_path), "rows": "records"})
    rows = [row for task in batch_tasks(settings) for batch in read_task(settings, task) for row in batch.to_pylist()]
    assert [(row["stage"], row["due_ms"], row["damage"]) for row in rows] == [(stage, None, None)]


def test_an_empty_log_a_missing_segment_and_no_store(tmp_path: Path) -> None:
    Log(tmp_path / "empty").close()
    assert read_all(tmp_path / "empty", 1000, 1000) == ([], [])
    with pytest.raises(NoStoreError, match="there is no such folder"):
        plan_log(str(tmp_path / "nowhere"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(NoStoreError, match="neither a folder commitlog in it, nor segments"):
        plan_log(str(tmp_path / "other"))
    log = small_log(tmp_path / "gap", 3, 200)
    names = sorted(path.name for path in log.folder.iterdir())
    assert len(names) > 2
    (log.folder / names[1]).unlink()
    plan = plan_log(str(tmp_path / "gap"))
    assert [(path.rpartition("/")[2], size) for path, size in plan.missing] == [(names[1], log.segment_bytes)]
    assert plan_from_json(plan_to_json(plan)) == plan


def test_a_log_that_grows_is_read_up_to_where_it_was(tmp_path: Path) -> None:
    log = Log(tmp_path, 1 << 14)
    for number in range(20):
        log.append(Message("Orders", 0, body=bytes(number), properties="TAGS\x01a\x02"), 1_000 + number, HOST_V6)
    log.close()
    plan = plan_log(str(tmp_path))
    for number in range(20):
        log.append(Message("Orders", 0, body=b"later", properties="TAGS\x01a\x02"), 2_000 + number)
    log.close()
    storage = storage_for(str(tmp_path))
    found = []
    for split in plan.splits(700):
        file = storage.open(split.segment.path)
        reader = SplitReader(file.read, split.segment, split.begin, split.stop)
        found += [int(place) for _, heads in reader.chunks() for place in heads.places]
        file.close()
        assert reader.gaps == []
    assert found == [place for place, _ in log.places[:20]]


def test_the_whole_end_of_a_log_lies_behind_its_last_record(tmp_path: Path) -> None:
    log = small_log(tmp_path, 11, 200)
    plan = plan_log(str(tmp_path))
    storage = storage_for(str(tmp_path))
    for segment in plan.segments:
        inside = [
            (place, size)
            for place, size in log.places
            if place // log.segment_bytes * log.segment_bytes == segment.base
        ]
        file = storage.open(segment.path)
        assert whole_end(file, segment, 0) == inside[-1][0] + inside[-1][1] - segment.base
        cut = LogSegment(segment.path, segment.base, segment.size, inside[-1][0] - segment.base + 50, segment.last)
        assert whole_end(file, cut, 0) in (inside[-1][0] - segment.base, inside[-1][0] + inside[-1][1] - segment.base)
        file.close()


@pytest.mark.parametrize("lean_bytes", [0, 1])
@pytest.mark.parametrize("kept", [0, 4, 5_000, 50_000, 150_000, 299_999])
def test_a_segment_that_becomes_shorter_ends_the_reading(tmp_path: Path, lean_bytes: int, kept: int) -> None:
    """A repair or a copy cuts it: neither does the reading go on for ever, nor does it answer what is left."""
    log = Log(tmp_path, 1 << 20)
    for number in range(10):
        log.append(Message("Orders", 0, body=bytes(30_000), properties="TAGS\x01a\x02"), 1_000 + number, HOST_V6)
    log.close()
    (split,) = plan_log(str(tmp_path)).splits(1 << 30)
    file = storage_for(str(tmp_path)).open(split.segment.path)
    reads: list[int] = []

    def read(at: int, count: int) -> bytes:
        reads.append(at)
        if len(reads) == 2:
            os.truncate(split.segment.path, kept)
        assert len(reads) < 1_000, "the reading does not end"
        return file.read(at, count)

    reader = SplitReader(read, split.segment, 0, split.stop, chunk_bytes=60_000, lean_bytes=lean_bytes)
    with pytest.raises(LogMovedError, match=r"it had 1048576 bytes, and now ends at \d+"):
        list(reader.chunks())
    file.close()


def test_a_segment_that_is_gone_is_told_apart_from_one_that_cannot_be_read(tmp_path: Path) -> None:
    small_log(tmp_path, 3)
    settings = Settings.of({"path": str(tmp_path)})
    (task, *_) = batch_tasks(settings)
    assert task.split is not None
    Path(task.split.segment.path).unlink()
    with pytest.raises(LogMovedError, match="No such file or directory"):
        list(read_task(settings, task))
