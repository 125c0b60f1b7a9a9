"""Logs in an object store: which bytes of them are asked for."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench.lateness.logs import reading, storage
from bench.lateness.logs.reading import Settings, batch_tasks, read_task
from bench.lateness.logs.records import CHUNK_BYTES, LogSegment, SplitReader
from bench.log_maker import make_log

pytestmark = pytest.mark.spark  # it needs numpy, and starts nothing


class Store:
    """An object store with one object; a request for what is behind its end is an error, as in S3."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        """Bytes of the object."""
        assert path == "log"
        if start >= len(self.data):
            raise OSError("416 Range Not Satisfiable")
        self.asked.append((start, min(end, len(self.data))))
        return self.data[start:end]

    @property
    def bytes(self) -> int:
        """How many have crossed the network."""
        return sum(end - start for start, end in self.asked)


@pytest.mark.parametrize("body", [100, 64 << 10, 1 << 20, 4 << 20])
def test_no_byte_of_a_log_is_asked_for_twice(tmp_path: Path, body: int) -> None:
    """A record of 4 MiB is a little more than half of what is read ahead."""
    records = max(3, (40 << 20) // (body + 300))
    size = body + 300
    make_log(tmp_path, np.zeros(records, np.int64), record_bytes=size, segment_bytes=records * size + 8)
    (path,) = (tmp_path / "commitlog").iterdir()
    store = Store(path.read_bytes())
    file = storage._RemoteFile(store, "log")
    segment = LogSegment("log", 0, len(store.data), records * size, True)
    reader = SplitReader(file.read, segment, 0, segment.end)
    assert sum(len(heads) for _, heads in reader.chunks()) == records
    assert reader.gaps == []
    assert store.bytes <= len(store.data) + len(store.asked)
    assert len(store.asked) <= len(store.data) // storage.AHEAD_BYTES + 2


def test_what_belongs_to_the_next_task_is_not_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tasks of 16 MB: what each of them asks for behind its end is a chunk, not all that is read ahead."""
    records = (48 << 20) // 1_000
    make_log(tmp_path, np.zeros(records, np.int64), record_bytes=1_000, segment_bytes=48 << 20)
    settings = Settings.of({"path": str(tmp_path), "rows": "delays", "splitBytes": str(16 << 20)})
    tasks = batch_tasks(settings)
    assert len(tasks) == 3
    store = Store(next((tmp_path / "commitlog").iterdir()).read_bytes())
    there = SimpleNamespace(open=lambda _, until: storage._RemoteFile(store, "log", until))
    monkeypatch.setattr(reading, "storage_for", lambda *_: there)
    rows = sum(len(batch) for task in tasks for batch in read_task(settings, task) if batch["text"].null_count)
    assert rows == records
    assert store.bytes <= len(store.data) + 2 * CHUNK_BYTES + len(store.asked)
    assert len(store.asked) <= 3 * (2 + 1)


@pytest.mark.parametrize("seed", range(20))
def test_reads_in_any_order_give_what_is_there(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(storage, "AHEAD_BYTES", rng.choice([1, 16, 100]))
    store = Store(rng.randbytes(rng.choice([1, 300])))
    monkeypatch.setattr(storage, "_LEAST_BYTES", rng.choice([1, 20]))
    file = storage._RemoteFile(store, "log", rng.choice([None, 0, 150, 300]))
    place = 0
    for _ in range(200):
        place = place if rng.random() < 0.8 and place < len(store.data) else rng.randrange(len(store.data))
        count = rng.choice([1, 5, 40, 400])
        assert file.read(place, count) == store.data[place : place + count]
        place += rng.randint(0, count)
