"""``--state``: closed segments are counted once, and every result is that of one run over everything."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from bench.lateness.counting.counted import FinishedIds
from bench.lateness.counting.tables import take_apart
from bench.lateness.engines.job import look_at_logs
from bench.lateness.engines.local_engine import LocalEngine
from bench.lateness.pipeline import Job, find_sources, run_job
from bench.lateness.state import folder as folders
from bench.lateness.state.folder import StateError
from bench.lateness.state.ids import fresh_hashes
from bench.lateness.state.record import Kept
from bench.lateness.state.state import StateFolder
from bench.log_maker import FIRST_DUE_MS, make_log, spread_lateness
from remoting.messages.message import Message
from tests.support.lateness_world import LEVELS, START_MS, Log, make_world, write_world

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

AS_OF_MS = START_MS + 40_000
SEGMENT = 1 << 13


def run(store: Path | str, out: Path, state: Path | str | None, engine: Any = None, **values: Any) -> dict[str, Any]:
    """Run the pipeline once, with a state or without."""
    values.setdefault("as_of_ms", AS_OF_MS)
    storage = values.pop("storage", "")
    sources = find_sources([str(store)], ["store"], levels=LEVELS, storage=storage)
    job = Job(sources, out, **values)
    if state is None:
        return run_job(engine or LocalEngine(1), job, lambda _: None)
    with StateFolder(str(state), storage, sources) as kept:
        return run_job(engine or LocalEngine(1), job, lambda _: None, kept)


def assert_same(out: Path, beside: Path) -> None:
    """The tables are the same to the byte, and the summaries but for when and how they were made."""
    names = sorted(path.name for path in (out / "histograms").iterdir())
    assert names == sorted(path.name for path in (beside / "histograms").iterdir())
    assert summary_of(out) == summary_of(beside)
    for name in names:
        assert (out / "histograms" / name).read_bytes() == (beside / "histograms" / name).read_bytes(), name


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text()) | {"made_ms": 0, "run": 0}
    for source in summary["sources"]:
        source["paths"] = None
    return summary


def prefix(full: Path, store: Path, segments: int, bytes_of_last: int) -> None:
    """Make ``store`` what ``full`` was when its log had so many segments."""
    shutil.rmtree(store, ignore_errors=True)
    (store / "commitlog").mkdir(parents=True)
    if (full / "timewheel").exists():
        (store / "timewheel").mkdir()
    names = sorted((full / "commitlog").iterdir())[:segments]
    for path in names:
        data = path.read_bytes()
        if path == names[-1]:
            data = data[:bytes_of_last].ljust(len(data), b"\0")
        (store / "commitlog" / path.name).write_bytes(data)


def ends_in(log: Any, segment: int) -> list[int]:
    """Where records of a segment end, in its file."""
    return [place + size - segment * SEGMENT for place, size in log.places if place // SEGMENT == segment]


@pytest.mark.parametrize("seed", range(2))
def test_day_by_day_is_what_one_run_over_everything_finds(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = make_world(rng, 300)
    world.ours = seed % 2 == 0
    log = write_world(world, tmp_path / "full", rng, SEGMENT)
    count = len(list(log.folder.iterdir()))
    assert count > 5
    done = 0
    while done < count:
        done = min(count, done + rng.randint(1, 3))
        prefix(tmp_path / "full", tmp_path / "store", done, rng.choice(ends_in(log, done - 1)))
        as_of_ms = START_MS + 60_000 * done // count
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)
        run(tmp_path / "store", tmp_path / "beside", None, as_of_ms=as_of_ms)
        assert_same(tmp_path / "out", tmp_path / "beside")
    shutil.rmtree(tmp_path / "store")
    run(tmp_path / "full", tmp_path / "out", tmp_path / "state")
    run(tmp_path / "full", tmp_path / "beside", None)
    assert_same(tmp_path / "out", tmp_path / "beside")


def test_spark_keeps_what_the_local_engine_keeps(spark: Any, tmp_path: Path) -> None:
    from bench.lateness.engines.spark_engine import SparkEngine

    rng = random.Random(11)
    world = make_world(rng, 200)
    log = write_world(world, tmp_path / "full", rng, SEGMENT)
    for segments in (3, len(list(log.folder.iterdir()))):
        prefix(tmp_path / "full", tmp_path / "store", segments, SEGMENT)
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state", SparkEngine(spark))
        run(tmp_path / "store", tmp_path / "beside", tmp_path / "other")
        assert_same(tmp_path / "out", tmp_path / "beside")
    run(tmp_path / "full", tmp_path / "beside", None)
    assert_same(tmp_path / "out", tmp_path / "beside")


def days(folder: Path, number: int, each: int = 1_000) -> Path:
    """A log of so many segments with ``each`` records, and some deliveries that come days late."""
    late = spread_lateness(number * each, seed=5)
    late[:: each // 3] = 3 * each // 500 * 1_000
    late[1 :: each // 3] += 20_000
    make_log(folder, late, record_bytes=300, segment_bytes=each * 300 + 8, per_second=500)
    return folder


def test_thirty_days_are_read_a_day_at_a_time(tmp_path: Path) -> None:
    full = days(tmp_path / "full", 30)
    as_of_ms = FIRST_DUE_MS + 10_000_000
    read = []
    for day in range(1, 31):
        prefix(full, tmp_path / "store", day, 300 * 1_000 - 300 * 400 if day < 30 else 1 << 30)
        summary = run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)
        read.append(summary["run"]["state"]["records_read"])
    assert read[0] == 600
    assert set(read[1:-1]) == {1_600}, "the day that has ended, and what the next one has so far"
    run(full, tmp_path / "beside", None, as_of_ms=as_of_ms)
    assert_same(tmp_path / "out", tmp_path / "beside")
    assert len(list((tmp_path / "state").glob("*-sums.parquet"))) < 8
    again = run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)
    assert again["run"]["state"]["records_read"] == 1_000
    assert_same(tmp_path / "out", tmp_path / "beside")


def hours(folder: Path) -> tuple[Path, int]:
    """A log of twelve segments, each of a thousand seconds with a message; some come thousands of seconds late."""
    late = spread_lateness(12_000, seed=6)
    late[::700] = 2_500_000
    late[1::900] += 9_000
    make_log(folder, late, record_bytes=300, segment_bytes=300 * 1_000 + 8, per_second=1)
    return folder, FIRST_DUE_MS + 100_000_000


def test_days_that_nothing_touches_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.lateness.state.state.DAY_S", 1_000)
    full, as_of_ms = hours(tmp_path / "full")
    read: list[int] = []
    load = StateFolder._day

    def noted(state: StateFolder, day: int) -> pa.Table:
        read.append(day)
        return load(state, day)

    monkeypatch.setattr(StateFolder, "_day", noted)
    for segments in range(1, 13):
        read.clear()
        prefix(full, tmp_path / "store", segments, 200_000 if segments < 12 else 1 << 30)
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)
        run(tmp_path / "store", tmp_path / "beside", None, as_of_ms=as_of_ms)
        assert_same(tmp_path / "out", tmp_path / "beside")
    assert len(list((tmp_path / "state").glob("*-day[0-9]*.parquet"))) - len(set(read)) > 2


def as_version_1(state: Path) -> None:
    """Make of a state what this command kept before: sums with the pairs of all days among them."""
    from zlib import crc32

    import pyarrow.parquet as pq

    value = json.loads((state / "state.json").read_text().splitlines()[1])
    value.pop("days")
    assert not value.pop("hashes")
    names = [one["name"] for one in value["sums"]] + [name for _, name, *_ in value.pop("pairs")]
    pq.write_table(pa.concat_tables([pq.read_table(state / name) for name in names]), state / names[0])
    data = (state / names[0]).read_bytes()
    value |= {"version": 1, "sums": [{"name": names[0], "size": len(data), "crc": crc32(data)}]}
    text = json.dumps(value)
    (state / "state.json").write_text(f"{crc32(text.encode()):08x}\n{text}\n")


@pytest.mark.parametrize("more", [False, True])
def test_a_state_of_version_1_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bool) -> None:
    monkeypatch.setattr("bench.lateness.state.state.DAY_S", 1_000)
    full, as_of_ms = hours(tmp_path / "full")
    prefix(full, tmp_path / "store", 10, 200_000)
    run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)
    as_version_1(tmp_path / "state")
    if more:
        prefix(full, tmp_path / "store", 11, 200_000)
    for _ in range(2):
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)
        run(tmp_path / "store", tmp_path / "beside", None, as_of_ms=as_of_ms)
        assert_same(tmp_path / "out", tmp_path / "beside")
    record = json.loads((tmp_path / "state" / "state.json").read_text().splitlines()[1])
    assert record["version"] == (3 if more else 1)


def as_version_2(state: Path) -> None:
    """Make of a state what this command kept before: hashes of finished ids among the ranges, by their bytes."""
    from zlib import crc32

    import pyarrow.parquet as pq

    value = json.loads((state / "state.json").read_text().splitlines()[1])
    names = [one["name"] for one in value.pop("hashes")]
    place = state / value["finished"]["name"]
    columns = pa.concat_tables([pq.read_table(path) for path in (place, *(state / name for name in names))]).to_pylist()
    columns.sort(key=lambda row: (row["source"], row["id_hi"], row["begin"] % 2**64, row["end"] % 2**64))
    assert any(row["id_hi"] < 0 for row in columns)
    pq.write_table(pa.Table.from_pylist(columns, schema=pq.read_schema(place)), place)
    data = place.read_bytes()
    value |= {"version": 2, "finished": {"name": place.name, "size": len(data), "crc": crc32(data)}}
    text = json.dumps(value)
    (state / "state.json").write_text(f"{crc32(text.encode()):08x}\n{text}\n")
    for name in names:
        (state / name).unlink()


@pytest.mark.parametrize("more", [False, True])
def test_a_state_of_version_2_is_taken_over(tmp_path: Path, more: bool) -> None:
    """Of Apache's log, whose hashes it kept in another place; deliveries come again after it, too."""
    count = apaches(tmp_path / "full")
    half = count // 2
    prefix(tmp_path / "full", tmp_path / "store", half, 1 << 30)
    run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
    as_version_2(tmp_path / "state")
    for segments in (half + 1, half + 3, count) if more else (half, half):
        prefix(tmp_path / "full", tmp_path / "store", segments, 1 << 30)
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
        run(tmp_path / "store", tmp_path / "beside", None)
        assert_same(tmp_path / "out", tmp_path / "beside")
    record = json.loads((tmp_path / "state" / "state.json").read_text().splitlines()[1])
    assert (record["version"], bool(record.get("hashes"))) == ((3, True) if more else (2, False))


def apaches(folder: Path) -> int:
    """A log of Apache's with timers and levels; answers how many segments it has."""
    rng = random.Random(5)
    world = make_world(rng, 300)
    world.ours = False
    return len(list(write_world(world, folder, rng, SEGMENT).folder.iterdir()))


def test_hashes_are_written_again_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each night a file; it goes into the one before it where that is less than twice as large."""
    rng = np.random.default_rng(3)
    sources = find_sources([str(days(tmp_path / "store", 1, 3))], ["store"], levels=LEVELS)
    wrote: list[int] = []
    known = FinishedIds()
    with StateFolder(str(tmp_path / "state"), "", sources) as state:
        write = state._write

        def noted(name: str, data: bytes) -> Kept:
            wrote.append(len(data))
            return write(name, data)

        monkeypatch.setattr(state, "_write", noted)
        for night in range(32):
            more = known.plus(-rng.integers(1, 1 << 62, 2_000), rng.integers(-(1 << 62), 1 << 62, 2_000))
            state._record.hashes = state._hashes(fresh_hashes([more], [known]), f"{night:010d}")
            (known,) = state._finished()
            assert known.holds(*more.hashed[-1]).all()
            assert len(known.hashed) < 8
    assert sum(len(high) for high, _ in known.loaded().hashed) == 64_000
    assert sum(wrote) < 64_000 * 16 * 6, "once a night all of them would be 16 times as much as they are"


def test_levels_that_the_broker_has_lost_since_are_told(tmp_path: Path) -> None:
    """Messages that a night has kept as waiting, and that the progress of their queue is past in the next one."""
    rng = random.Random(4)
    world = make_world(rng, 300)
    world.ours = True
    count = len(list(write_world(world, tmp_path / "full", rng, SEGMENT).folder.iterdir()))
    for segments, progress in (
        (count // 2, {"1": 2}),
        (count, {"1": 9, "2": 1_000}),
        (count, {"1": 1_000, "2": 1_000}),
    ):
        prefix(tmp_path / "full", tmp_path / "store", segments, 1 << 30)
        (tmp_path / "store" / "config").mkdir()
        (tmp_path / "store" / "config" / "delayOffset.json").write_text(json.dumps({"offsetTable": progress}))
        found = run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
        run(tmp_path / "store", tmp_path / "beside", None)
        assert_same(tmp_path / "out", tmp_path / "beside")
    assert found["total"]["lost"] > 0


def test_a_key_that_is_sent_again_says_nothing_of_the_message_before(tmp_path: Path) -> None:
    """Timers of Apache's: the second message has another delay, and comes when the first one has been counted."""
    log = Log(tmp_path / "full", 1 << 10)
    for turn, delay_ms in enumerate((1_000, 20_000)):
        stored = START_MS + turn * 10_000
        text = f"UNIQ_KEY\x01A\x02TIMER_DELIVER_MS\x01{stored + delay_ms}\x02TIMER_OUT_MS\x01{stored}\x02"
        text += "REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02"
        log.append(Message("rmq_sys_wheel_timer", 0, born_ms=stored, properties=text), stored)
        log.append(Message("Orders", 0, born_ms=stored, properties=text), stored + delay_ms)
        for _ in range(10):
            log.append(Message("Orders", 1, body=bytes(100), properties="A\x01b\x02"), stored + delay_ms)
    log.close()
    count = len(list(log.folder.iterdir()))
    assert log.places[12][0] > SEGMENT // 8, "another segment"
    for segments in (2, count, count):
        prefix(tmp_path / "full", tmp_path / "store", segments, 1 << 30)
        found = run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
        run(tmp_path / "store", tmp_path / "beside", None)
        assert_same(tmp_path / "out", tmp_path / "beside")
    assert (found["total"]["sent"], found["total"]["repeated"]) == (1, 1)


def test_what_retention_deletes_stays_counted(tmp_path: Path) -> None:
    rng = random.Random(3)
    world = make_world(rng, 300)
    log = write_world(world, tmp_path / "store", rng, SEGMENT)
    run(tmp_path / "store", tmp_path / "whole", None)
    run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
    for path in sorted(log.folder.iterdir())[:-2]:
        path.unlink()
    for _ in range(2):
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
        assert_same(tmp_path / "out", tmp_path / "whole")


def test_segments_that_go_before_they_were_counted_are_a_gap(tmp_path: Path) -> None:
    full = days(tmp_path / "full", 6)
    prefix(full, tmp_path / "store", 2, 1 << 30)
    run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
    prefix(full, tmp_path / "store", 6, 1 << 30)
    names = sorted((tmp_path / "store" / "commitlog").iterdir())
    for path in names[:4]:
        path.unlink()
    for _ in range(2):
        summary = run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
        (gap,) = summary["sources"][0]["damaged"]
        assert (Path(gap["file"]).name, gap["bytes"]) == (names[1].name, 3 * (1_000 * 300 + 8))
        assert summary["sources"][0]["records"] == 3_000


@pytest.mark.parametrize(
    ("hurt", "words"),
    [("first", "begins with another record"), ("last", "has another last record"), ("size", "bytes, and had"),
     ("cut", "was counted up to")],
)  # fmt: skip
def test_a_store_that_was_cut_or_repaired_is_noticed(tmp_path: Path, hurt: str, words: str) -> None:
    full = days(tmp_path / "full", 4)
    prefix(full, tmp_path / "store", 4, 1 << 30)
    run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
    before = (tmp_path / "state" / "state.json").read_bytes()
    names = sorted((tmp_path / "store" / "commitlog").iterdir())
    data = bytearray(names[1].read_bytes())
    if hurt == "cut":
        for path in names[2:]:
            path.unlink()
    elif hurt == "size":
        names[1].write_bytes(data + b"\0")
    else:
        data[100 if hurt == "first" else len(data) - 50] ^= 1
        names[1].write_bytes(data)
    with pytest.raises(StateError, match=words) as found:
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
    assert "cut or repaired" in str(found.value)
    assert "\n" not in str(found.value)
    assert (tmp_path / "state" / "state.json").read_bytes() == before


class BrokenError(OSError):
    """What an injected failure raises."""


class Remembering(LocalEngine):
    """An engine that has to read for the same state once only."""

    def __init__(self) -> None:
        super().__init__(1)
        self._found: dict[int, Any] = {}

    def pieces(self, job: Job) -> Any:
        """As it was the first time."""
        (end,) = job.counted_to
        if end not in self._found:
            self._found[end] = super().pieces(job)
        return self._found[end]


def count(
    store: Path, out: Path, state: Path | str, engine: LocalEngine, folder: folders.Folder | None = None
) -> dict[str, pa.Table]:
    """Everything but the result folder; answers the result in one order."""
    job = Job(find_sources([str(store)], ["store"], levels=LEVELS), out, as_of_ms=AS_OF_MS)
    with StateFolder(str(state), "", job.sources, folder) as kept:
        job.counted_to = [kept.end_of(0)]
        look_at_logs(job)
        kept.narrow(job)
        tables = take_apart(kept.count(engine, job), ["store"]).tables
    columns = {name: [(column, "ascending") for column in table.column_names] for name, table in tables.items()}
    return {name: table.sort_by(columns[name]) for name, table in tables.items()}


class Faulty:
    """`os`, but for one call that fails, before or after it has worked, a write in its middle.

    Nothing is synced: no power is cut here, and hundreds of runs would wait for the disk.
    """

    COUNTED = ("open", "write", "fsync", "close")

    def __init__(self, at: int, after: bool) -> None:
        self.calls = 0
        self.at, self._after = at, after

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self.counted(name, real) if name in self.COUNTED else real

    def counted(self, name: str, real: Any) -> Any:
        """A call that counts, and fails when it is its turn."""

        def call(*values: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls != self.at:
                return None if name == "fsync" else real(*values, **more)
            if name == "write":
                real(values[0], values[1][: len(values[1]) // 2])
            elif self._after or name == "close":
                real(*values, **more)
            raise BrokenError(5, f"call {self.calls}: {name}")

        return call


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_at_any_file_operation_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, ours: bool
) -> None:
    full = tmp_path / "full"
    begun = 3
    if ours:
        days(full, 5, 60)
    else:
        begun = apaches(full) - 2
    prefix(full, tmp_path / "store", begun, 1 << 30)
    run(tmp_path / "store", tmp_path / "out", tmp_path / "state")
    engine = Remembering()
    expected = count(full, tmp_path / "out", tmp_path / "none", engine)
    at, failed = 0, True
    while failed:
        at += 1
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        shutil.copytree(tmp_path / "state", tmp_path / "again")
        faulty = Faulty(at, after)
        with monkeypatch.context() as patch:
            patch.setattr(folders, "os", faulty)
            for name in ("replace", "unlink"):
                patch.setattr(Path, name, faulty.counted(name, getattr(Path, name)))
            try:
                count(full, tmp_path / "out", tmp_path / "again", engine)
                failed = faulty.calls >= at
            except (BrokenError, StateError):
                pass
            faulty.at = 0
            assert count(full, tmp_path / "out", tmp_path / "again", engine) == expected
        names = {path.name for path in (tmp_path / "again").iterdir()} - {"lock", "state.json"}
        record = json.loads((tmp_path / "again" / "state.json").read_text().splitlines()[1])
        listed = [
            *record["sums"],
            *record["hashes"],
            record["open"],
            record["finished"],
            record["small"],
            record["days"],
        ]
        assert names == {one["name"] for one in listed} | {name for _, name, *_ in record["pairs"]}
        assert bool(record["hashes"]) is not ours
    assert at > 20


@contextmanager
def changed_state(state: Path, change: Any) -> Iterator[None]:
    """A state whose record says something else, with a right checksum."""
    from zlib import crc32

    kept = (state / "state.json").read_bytes()
    value = json.loads(kept.splitlines()[1])
    change(value)
    text = json.dumps(value)
    (state / "state.json").write_text(f"{crc32(text.encode()):08x}\n{text}\n")
    yield
    (state / "state.json").write_bytes(kept)


def test_a_state_that_cannot_be_used_is_said_in_a_line(tmp_path: Path) -> None:
    from bench.lateness.command import lateness_command

    full = days(tmp_path / "full", 3, 60)
    state = tmp_path / "state"

    def said(where: Path, *more: str, code: int = 1) -> str:
        words = [str(full), "--out", str(tmp_path / "out"), "--state", str(where), "--levels", LEVELS, *more]
        found = CliRunner().invoke(lateness_command, words)
        assert found.exit_code == code, found.output
        return found.output.splitlines()[-1]

    run(full, tmp_path / "out", state)
    assert "state is of store (timewheel), not of full (timewheel)" in said(state)
    assert "was counted with --levels '1s 5s 10s 30s'" in said(state, "--name", "store", "--levels", "1s")
    assert "needs every message, and --state keeps sums" in said(state, "--since", "2026-01-01", code=2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert "other is no state of this command: it holds 'notes.txt'" in said(tmp_path / "other")
    assert "is no folder" in said(tmp_path / "full" / "commitlog" / f"{0:020d}", code=2)
    with StateFolder(str(state), "", find_sources([str(full)], ["store"], levels=LEVELS)):
        assert "another run is at work on it" in said(state, "--name", "store")
    with changed_state(state, lambda value: value.update(version=9)):
        assert "has version 9; this software reads 1 to 3" in said(state, "--name", "store")
    record = (state / "state.json").read_bytes()
    (state / "state.json").write_bytes(record.replace(b'"generation":1', b'"generation":2'))
    assert "state.json is damaged" in said(state, "--name", "store")
    (state / "state.json").write_bytes(record)
    (sums,) = state.glob("*-sums.parquet")
    kept = sums.read_bytes()
    sums.write_bytes(kept[:-1] + b"?")
    assert "sums.parquet is damaged" in said(state, "--name", "store")
    sums.unlink()
    assert "sums.parquet is missing" in said(state, "--name", "store")
    sums.write_bytes(kept)
    shutil.rmtree(full)
    make_log(full, np.zeros(180, np.int64), record_bytes=310, segment_bytes=60 * 310 + 8)
    assert "or is another one" in said(state, "--name", "store")


def test_following_counts_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.lateness import command
    from bench.lateness.command import lateness_command

    monkeypatch.setattr(command, "_draw", lambda *_: None)
    full = days(tmp_path / "full", 4)
    words = [str(full), "--out", str(tmp_path / "out"), "--state", str(tmp_path / "state"), "--levels", LEVELS]
    more = ["--follow", "--rounds", "2", "--refresh", "0.1", "--name", "store", "--as-of", str(AS_OF_MS)]
    found = CliRunner().invoke(lateness_command, words + more)
    assert found.exit_code == 0, found.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    state = summary["run"]["state"]
    assert (state["records_read"], state["records_counted"]) == (1_000, 3_000)
    run(full, tmp_path / "beside", None)
    assert_same(tmp_path / "out", tmp_path / "beside")


def test_finished_ids_against_a_set() -> None:
    rng = np.random.default_rng(1)
    ids, known = FinishedIds(), set()
    for _ in range(30):
        high = rng.integers(-2, 3, 20)
        low = rng.integers(-50, 50, 20)
        ids = FinishedIds.of(ids.plus(high, low).rows())
        known |= set(zip(high.tolist(), low.tolist(), strict=True))
        every = [(h, n) for h in range(-2, 3) for n in range(-60, 60)]
        highs, lows = (np.array(column) for column in zip(*every, strict=True))
        assert ids.holds(highs, lows).tolist() == [one in known for one in every]
        for begins, ends in ids.ranges.values():
            assert (begins[1:] > ends[:-1]).all()
        every_hash = [one for highs, lows in ids.hashed for one in zip(highs.tolist(), lows.tolist(), strict=True)]
        assert sorted(every_hash) == sorted(one for one in known if one[0] < 0), "each once"
