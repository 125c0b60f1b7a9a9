"""Scattered reads of a log by way of shared chunks: what they return is what single reads return, or nothing."""

from __future__ import annotations

import errno
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.disk.files import Files
from store.disk.segments import Segment, segment_name
from store.log.chunks import CHUNK_BYTES, Chunks
from tests.support.simdisk import SimDisk

Spans = list[tuple[int, int]]
SIZE = 5 * CHUNK_BYTES // 2
"""Of a segment: the last chunk of each is half of one."""
NEAR = [(at * 8_000, 1_100) for at in range(32)]
"""As the messages of one of eight queues stand."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Segment], bytes]:
    folder = tmp_path_factory.mktemp("log")
    content = os.urandom(3 * SIZE)
    segments = []
    for number in range(3):
        (folder / segment_name(number * SIZE)).write_bytes(content[number * SIZE :][:SIZE])
        segments.append(Segment(Files(), folder, number * SIZE, SIZE))
    return segments, content


def right(content: bytes, segment: Segment, spans: Spans) -> bytes:
    return b"".join(content[segment.start + at : segment.start + at + n] for at, n in spans)


def moved(spans: Spans, by: int) -> Spans:
    return [(at + by, n) for at, n in spans]


def test_a_stretch_is_read_whole_when_it_is_asked_for_again(world: tuple[list[Segment], bytes]) -> None:
    (segment, *_), content = world
    chunks = Chunks()
    assert chunks.gather(segment, SIZE, NEAR) is None
    other = moved(NEAR, 1_100)
    assert chunks.gather(segment, SIZE, other) == right(content, segment, other)
    assert chunks.gather(segment, SIZE, NEAR) == right(content, segment, NEAR)


def test_many_reads_together_are_worth_whole_chunks_at_once(world: tuple[list[Segment], bytes]) -> None:
    (segment, *_), content = world
    many = [(at * 12_000, 900) for at in range(128)]
    assert Chunks().gather(segment, SIZE, many) == right(content, segment, many), "64 in each of two chunks"
    assert Chunks().gather(segment, SIZE, many[:-1]) is None


def test_few_or_far_reads_are_single_ones(world: tuple[list[Segment], bytes]) -> None:
    (segment, *_), _ = world
    chunks = Chunks()
    for spans in (NEAR[:7], [(at * 16_000, 1_100) for at in range(32)]):
        for _ in range(4):
            assert chunks.gather(segment, SIZE, spans) is None


def test_one_read_of_more_chunks_than_are_kept_gets_its_own_bytes(tmp_path: Path) -> None:
    """The fifth chunk was read into the memory of the first one, whose bytes were not joined yet."""
    size = 5 * CHUNK_BYTES
    content = os.urandom(size)
    (tmp_path / segment_name(0)).write_bytes(content)
    segment = Segment(Files(), tmp_path, 0, size)
    for count in range(8, 27):
        chunks, spans = Chunks(), [(at * 200_000, 40_000) for at in range(count)]
        for _ in range(12):
            assert chunks.gather(segment, size, spans) in (None, right(content, segment, spans)), count


def test_what_is_still_being_written_is_left_alone(world: tuple[list[Segment], bytes]) -> None:
    (segment, *_), content = world
    chunks = Chunks()
    for _ in range(4):
        assert chunks.gather(segment, CHUNK_BYTES - 1, NEAR) is None
    tail = moved(NEAR, 2 * CHUNK_BYTES)
    found = [chunks.gather(segment, SIZE, tail) for _ in range(2)]
    assert found == [None, right(content, segment, tail)], "the last chunk of a segment is a short one"


def test_what_is_not_in_memory_is_not_waited_for() -> None:
    disk = SimDisk(1)
    folder = Path("/log")
    disk.makedirs(folder)
    file = disk.open(folder / segment_name(0), create=True, size=SIZE)
    file.pwrite(b"x" * SIZE, 0)
    segment = Segment(disk, folder, 0, SIZE)
    chunks = Chunks()
    disk.cold = True
    for _ in range(4):
        assert chunks.gather(segment, SIZE, NEAR) is None
    disk.cold = False
    assert [chunks.gather(segment, SIZE, NEAR) for _ in range(2)] == [None, b"x" * 32 * 1_100]


def test_nobody_waits_for_another_thread() -> None:
    """Where the system does not tell what is in memory, the network loop waited for the disk in a thread's place."""
    disk = SimDisk(1)
    folder = Path("/log")
    disk.makedirs(folder)
    disk.open(folder / segment_name(0), create=True, size=SIZE).pwrite(b"x" * SIZE, 0)
    segment = Segment(disk, folder, 0, SIZE)
    chunks = Chunks()
    assert chunks.gather(segment, SIZE, NEAR) is None
    reads, goes_on = threading.Event(), threading.Event()

    def slow(_path: Path) -> None:
        reads.set()
        assert goes_on.wait(60)

    disk.read_fault = slow
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(chunks.gather, segment, SIZE, NEAR)
        assert reads.wait(60)
        try:
            assert pool.submit(chunks.gather, segment, SIZE, NEAR).result(10) is None
        finally:
            goes_on.set()
        assert first.result(60) == b"x" * 32 * 1_100


def test_nothing_of_a_failed_read_is_kept(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).write_bytes(bytes(SIZE))
    segment = Segment(Files(), tmp_path, 0, SIZE)
    chunks = Chunks()
    segment.file.close()
    assert [chunks.gather(segment, SIZE, NEAR) for _ in range(2)] == [None, None], "single reads say what is wrong"
    segment.release()
    found = [chunks.gather(segment, SIZE, NEAR) for _ in range(2)]
    assert found == [None, bytes(32 * 1_100)]


@st.composite
def gathers(draw: st.DrawFn) -> list[tuple[int, int, Spans]]:
    """Segments, ends of the log, and spans: near each other or not, in order or not, over borders of chunks."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        limit = draw(st.sampled_from([SIZE, SIZE, CHUNK_BYTES, 2 * CHUNK_BYTES, 700_000]))
        step = draw(st.integers(1, 9_000))
        most = draw(st.sampled_from([1, 200, 1_100, 40_000]))
        begin = draw(st.one_of(st.integers(0, limit - 1), st.just(max(0, min(limit, CHUNK_BYTES) - 20_000))))
        spans = []
        for number in range(draw(st.integers(0, 40) | st.integers(64, 200))):
            at = begin + number * step
            n = min(draw(st.integers(1, most)), limit - at)
            if n > 0:
                spans.append((at, n))
        if draw(st.booleans()):
            spans = draw(st.permutations(spans))
        found.append((draw(st.integers(0, 2)), limit, spans))
    return found


@settings(deadline=None)
@given(gathers())
def test_nothing_else_is_ever_returned(world: tuple[list[Segment], bytes], story: list[tuple[int, int, Spans]]) -> None:
    segments, content = world
    chunks = Chunks()
    for number, limit, spans in [*story, *story]:
        found = chunks.gather(segments[number], limit, spans)
        assert found is None or found == right(content, segments[number], spans)


def test_threads_do_not_mix(world: tuple[list[Segment], bytes]) -> None:
    segments, content = world
    chunks = Chunks()

    def work(seed: int) -> int:
        rng, served = random.Random(seed), 0
        for _ in range(300):
            segment = rng.choice(segments)
            spans = moved(NEAR, rng.choice([0, CHUNK_BYTES, 1_500_000]))
            found = chunks.gather(segment, SIZE, spans)
            served += found is not None
            assert found is None or found == right(content, segment, spans)
        return served

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4)))


def test_a_bad_sector_is_of_no_concern_to_who_reads_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not tell what is in memory, each second read of its chunk failed."""
    content = os.urandom(SIZE)
    (tmp_path / segment_name(0)).write_bytes(content)
    segment = Segment(Files(), tmp_path, 0, SIZE)
    segment.file._tells_hot = False
    bad, preadv = 900_000, os.preadv

    def reads(fd: int, buffers: list[memoryview], offset: int) -> int:
        if offset <= bad < offset + len(buffers[0]):
            raise OSError(errno.EIO, "Input/output error")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", reads)
    chunks = Chunks()
    assert [chunks.gather(segment, SIZE, NEAR) for _ in range(4)] == [None] * 4
    far = moved(NEAR, CHUNK_BYTES)
    assert [chunks.gather(segment, SIZE, far) for _ in range(2)] == [None, right(content, segment, far)]
