"""``--state`` for Apache's logs: hashes go to the tasks that need them, and what has ended is kept no longer."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from bench.lateness.counting import counted
from bench.lateness.counting.closing import ENDED_MS, _without_known, known_rows
from bench.lateness.counting.counted import Counted, FinishedIds, in_hash_order
from bench.lateness.counting.stored import StoredHashes
from bench.lateness.engines import local_engine
from bench.lateness.engines.job import Job
from bench.lateness.engines.local_engine import LocalEngine
from bench.lateness.logs.packing import COLUMNS, _part_of, first_hash
from bench.lateness.logs.storage import StorageError
from bench.lateness.state import ids
from bench.lateness.state import state as state_module
from bench.lateness.state.folder import folder_for
from bench.lateness.state.state import StateFolder
from remoting.messages.message import Message
from tests.bench.test_lateness_state import AS_OF_MS, SEGMENT, apaches, assert_same, prefix, run
from tests.support.lateness_world import START_MS, Log

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

LEAST = -(1 << 63)


def hashes(count: int, seed: int = 1) -> FinishedIds:
    """Ids as those of Apache's messages, in three portions."""
    rng = np.random.default_rng(seed)
    portions = [rng.integers([LEAST, LEAST], [0, -LEAST - 1], (count // 3, 2)).T for _ in range(3)]
    return FinishedIds({}, tuple(in_hash_order(high, low) for high, low in portions))


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 2_000, 168_000])
def test_a_part_has_a_range_of_hashes(parts: int) -> None:
    ends = [first_hash(number, parts) for number in range(min(parts, 50) + 1)]
    edges = [high + step for high in ends for step in (-1, 0, 1) if LEAST <= high + step < 0]
    high = np.unique(np.concatenate([edges, np.random.default_rng(parts).integers(LEAST, 0, 1_000), [LEAST, -1]]))
    rows = {name: np.zeros(len(high), np.int64) for name in COLUMNS} | {"id_hi": high}
    part = _part_of(rows, parts)
    assert (part[1:] >= part[:-1]).all()
    assert part.max() < parts
    for number, mine in zip(part.tolist(), high.tolist(), strict=True):
        assert first_hash(number, parts) <= mine < first_hash(number + 1, parts)


@pytest.mark.parametrize("parts", [1, 2, 5, 40])
def test_shares_have_every_hash_once(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    monkeypatch.setattr(counted, "_SHARE_BYTES", 16 * 100)
    known = hashes(900)
    shares = list(Counted([0], [known]).shares(parts))
    assert len(shares) == min(parts, 10)
    for high, low in known.hashed:
        rows = {name: np.zeros(len(high), np.int64) for name in COLUMNS} | {"id_hi": high, "id_lo": low}
        part = _part_of(rows, parts).astype(np.int64)
        for number, share in enumerate(shares):
            held = share.finished[0].holds(high, low)
            assert held.tolist() == (part * len(shares) // parts == number).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_of_a_file_only_the_groups_that_are_needed_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Three sources in a file, one of which has no hash there; bounds as those of parts, and any others."""
    monkeypatch.setattr(ids, "_GROUP_ROWS", 50)
    (first,), (third,) = (hashes(count, seed).hashed[:1] for count in (900, 600))
    path = tmp_path / "hashes.parquet"
    path.write_bytes(ids.hashes_bytes({0: first, 2: third}))
    read: list[int] = []
    real = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda file, n: read.append(n) or real(file, n))
    found = ids.finished_from(None, [str(path)], 3)
    assert not read, "nothing is read before a task needs it"
    rng = np.random.default_rng(seed)
    bounds = [(LEAST, 0), (0, 0), (int(first[0][7]), int(first[0][8])), (LEAST, int(third[0][0]))]
    bounds += [tuple(sorted(rng.integers(LEAST, 0, 2).tolist())) for _ in range(20)]
    for low, high in bounds:
        for finished, (highs, lows) in zip(found, (first, (third[0][:0], third[1][:0]), third), strict=True):
            read.clear()
            (some,) = finished.between(low, high).loaded().hashed
            mine = (highs >= low) & (highs < high)
            assert (some[0].tolist(), some[1].tolist()) == (highs[mine].tolist(), lows[mine].tolist())
            assert len(read) <= mine.sum() // 50 + 2
            assert finished.holds(highs, lows).all()


@pytest.mark.parametrize("seed", range(3))
def test_shares_read_each_group_of_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Two sources in nine files, one of which has hashes of the second alone; shares smaller than a group."""
    monkeypatch.setattr(ids, "_GROUP_ROWS", 50)
    monkeypatch.setattr(counted, "_SHARE_BYTES", 16 * 20)
    read: list[int] = []
    real = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda file, n: read.append(n) or real(file, n))
    paths, groups = [], 0
    for number in range(9):
        mine = {source: hashes(300 + 270 * number, 100 * seed + number + 50 * source).hashed[0] for source in (0, 1)}
        if not number:
            del mine[0]
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(ids.hashes_bytes(mine))
        paths.append(str(path))
        groups += pq.read_metadata(path).num_row_groups
    known = Counted([0, 0], ids.finished_from(None, paths, 2))
    shares = list(known.shares(1_000))
    assert len(shares) > 400
    assert len(read) <= groups + 9, "a group with both sources is read for each"
    for number, share in enumerate(shares):
        first, end = (-(-n * 1_000 // len(shares)) for n in (number, number + 1))
        for found, expected in zip(share.finished, known.of_parts(first, end, 1_000).loaded().finished, strict=True):
            own = [(high.tolist(), low.tolist()) for high, low in expected.hashed if len(high)]
            assert [(high.tolist(), low.tolist()) for high, low in found.hashed] == own


@pytest.mark.parametrize("parts", [1, 2, 7, 40])
def test_packed_hashes_reach_their_part(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """Of two sources, in several shares; each part gets what `of_parts` gives it, and nothing else."""
    monkeypatch.setattr(counted, "_SHARE_BYTES", 16 * 250)
    known = Counted([0, 0], [hashes(900, seed) for seed in (1, 2)])
    none = [pa.RecordBatch.from_pydict({"id": [0]})]
    shares = [Handed(share) for share in known.shares(parts)]
    rows = [batch for share in shares for batch in known_rows(none, share, parts)]
    assert not any("_value" in vars(share) for share in shares), "PySpark would keep it"
    for part in range(parts):
        mine = [batch.filter(pc.equal(batch["part"], part)) for batch in rows]
        found: dict[int, list[counted.Hashes]] = {}
        rest = list(_without_known(mine, found))
        assert not sum(map(len, rest))
        expected = known.of_parts(part, part + 1, parts)
        for source, ids_of in enumerate(expected.finished):
            got = sorted(id_ for highs, lows in found.get(source, ()) for id_ in zip(highs, lows, strict=True))
            assert got == sorted(id_ for highs, lows in ids_of.hashed for id_ in zip(highs, lows, strict=True))


class Handed:
    """As PySpark's broadcast is."""

    def __init__(self, share: Counted) -> None:
        self._share = share

    @property
    def value(self) -> Counted:
        """What was handed over, read once."""
        self._value = self._share
        return self._value


def test_known_hashes_make_parts_like_a_log() -> None:
    """A state of years beside the small log of a night: a task holds the hashes of its part."""
    known = FinishedIds({}, (StoredHashes("none", 0, 10**9),))
    job = Job([], Path("out"), delay_stores=[], counted=Counted([0], [known]))
    assert 10**9 / job.parts * 16 * 5 <= job.task_bytes


@pytest.mark.parametrize("way", ["gone", "cut", "not Parquet"])
def test_a_file_of_hashes_that_fails_is_one_line(tmp_path: Path, way: str) -> None:
    """It was whole when the run began. Neither the result folder nor the options are to blame."""
    path = tmp_path / "hashes.parquet"
    data = ids.hashes_bytes({0: hashes(900).hashed[0]})
    path.write_bytes(data)
    known = Counted([0], ids.finished_from(None, [str(path)], 1))
    if way == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if way == "cut" else b"x" * len(data))
    for use in (known.loaded, lambda: list(known.shares(5))):
        with pytest.raises(StorageError, match="of the state cannot be read") as found:
            use()
        assert str(found.value).startswith(str(path))
        assert "\n" not in str(found.value)


def test_a_file_in_a_store_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with --follow uses it again and again."""
    memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
    asked: list[str] = []
    real = memory.get_file
    monkeypatch.setattr(memory, "get_file", lambda system, path, *more: asked.append(path) or real(system, path, *more))
    folder = folder_for("memory://state")
    for name in ("a", "b"):
        folder.write(name, name.encode())
    places = [Path(folder.here(name)) for name in ("a", "b", "a", "a")]
    assert [place.read_bytes() for place in places] == [b"a", b"b", b"a", b"a"]
    assert len(asked) == 2
    folder.remove("a")
    assert not places[0].exists()
    with pytest.raises(FileNotFoundError):
        folder.here("a")
    folder.close()
    assert not places[1].parent.exists()


@contextmanager
def pickling(sizes: list[int]) -> Iterator[Callable[..., Iterator[Any]]]:
    """Do work here, and hand over as to other processes what it needs."""

    def work(do: Callable[[Any], Any], given: Iterable[Any]) -> Iterator[Any]:
        for one in given:
            data = pickle.dumps((do, one))
            sizes.append(len(data))
            do_it, its = pickle.loads(data)
            yield do_it(its)

    yield work


def nights(tmp_path: Path, **values: Any) -> None:
    """Two nights with a state over Apache's log."""
    count = apaches(tmp_path / "full")
    for segments in (count // 2, count):
        prefix(tmp_path / "full", tmp_path / "store", segments, 1 << 30)
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state", **values)


def test_hashes_are_handed_over_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tasks there are."""
    more, sizes = hashes(60_000), []
    finished = StateFolder._finished

    def with_many(state: StateFolder) -> list[FinishedIds]:
        (own,) = finished(state)
        return [FinishedIds(own.ranges, (*more.hashed, *own.hashed))]

    monkeypatch.setattr(StateFolder, "_finished", with_many)
    monkeypatch.setattr(local_engine, "_pool", lambda _: pickling(sizes))
    monkeypatch.setattr(local_engine, "_ALONE_BYTES_MAX", 0)
    nights(tmp_path, task_bytes=1 << 14, engine=LocalEngine(4, alone_bytes_max=0))
    run(tmp_path / "full", tmp_path / "beside", None)
    assert_same(tmp_path / "out", tmp_path / "beside")
    assert sum(size > 20_000 for size in sizes) >= 8, "several tasks in each of two nights"
    assert sum(sizes) < 2 * 60_000 * 16 * 1.5


def test_a_night_of_many_ids_writes_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a bounded size, and of a range; the next night finds them, and older software reads them."""
    monkeypatch.setattr(state_module, "_HASHES_BYTES_MAX", 16 * 20)
    nights(tmp_path)
    run(tmp_path / "full", tmp_path / "beside", None)
    assert_same(tmp_path / "out", tmp_path / "beside")
    record = json.loads((tmp_path / "state" / "state.json").read_text().splitlines()[1])
    files = [pq.read_table(tmp_path / "state" / one["name"]) for one in record["hashes"]]
    assert len(files) > 4
    assert max(map(len, files)) == 20
    ids_of = [
        id_ for file in files for id_ in zip(*(file[name].to_pylist() for name in file.column_names), strict=True)
    ]
    assert len(set(ids_of)) == len(ids_of), "each once"
    first = [file for file, one in zip(files, record["hashes"], strict=True) if one["name"].startswith("0000000001")]
    highs = [high for file in first for high in file["id_hi"].to_pylist()]
    assert set(highs) == {-1}
    begins = [begin for file in first for begin in file["begin"].to_pylist()]
    assert begins == sorted(begins)


def test_spark_hands_over_shares(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.lateness.engines.spark_engine import SparkEngine

    monkeypatch.setattr(counted, "_SHARE_BYTES", 500)
    nights(tmp_path, task_bytes=1 << 14, engine=SparkEngine(spark))
    run(tmp_path / "full", tmp_path / "beside", None)
    assert_same(tmp_path / "out", tmp_path / "beside")


def test_more_ids_than_spark_gives_the_driver_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first night over a log of days has all of them at once."""
    from bench.lateness.engines import spark_engine

    def fails() -> None:
        text = "Total size of serialized results of 8 tasks (1.1 GiB) is bigger than spark.driver.maxResultSize"
        raise RuntimeError(f"Job aborted due to stage failure: {text} (1024.0 MiB)\n\tat org.apache.spark")

    handed = SimpleNamespace(destroy=lambda: None)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(broadcast=lambda _: handed))
    monkeypatch.setattr(spark_engine, "closed", lambda *_: SimpleNamespace(toArrow=fails))
    monkeypatch.setattr(spark_engine.SparkEngine, "_all_rows", lambda *_: None)
    job = Job([], tmp_path, as_of_ms=0, delay_stores=[], counted=Counted([0], [FinishedIds()]))
    with pytest.raises(StorageError, match=r"--spark spark\.driver\.maxResultSize=6g, or run more often") as found:
        spark_engine.SparkEngine(spark).pieces(job)
    assert "\n" not in str(found.value)


class Ended:
    """A log of Apache's timers: one is cancelled, one is lost, one waits, the others are delivered."""

    DAY_MS = 86_400_000

    def __init__(self, folder: Path) -> None:
        self.log = Log(folder, SEGMENT)
        self.accept("cancelled", 0, self.DAY_MS)
        text = "TIMER_DEL_UNIQKEY\x01Orders+cancelled\x02REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02"
        self.log.append(Message("rmq_sys_wheel_timer", 0, born_ms=START_MS, properties=text), START_MS)
        self.accept("lost", 0, self.DAY_MS)
        self.accept("waits", 0, 20 * self.DAY_MS)
        for number in range(200):
            self.accept(f"{number}", 1, 2)
            self.deliver(f"{number}", 2)

    def accept(self, key: str, after_ms: int, delay_ms: int) -> None:
        """A message that the timer takes."""
        self.log.append(
            Message("rmq_sys_wheel_timer", 0, born_ms=START_MS, properties=self.text(key, delay_ms)),
            START_MS + after_ms,
        )

    def deliver(self, key: str, delay_ms: int, late_ms: int = 0) -> None:
        """Its delivery."""
        self.log.append(
            Message("Orders", 0, born_ms=START_MS, properties=self.text(key, delay_ms)), START_MS + delay_ms + late_ms
        )

    def text(self, key: str, delay_ms: int) -> str:
        """The properties of a message."""
        due = f"TIMER_DELIVER_MS\x01{START_MS + delay_ms}\x02TIMER_OUT_MS\x01{START_MS}\x02"
        return f"UNIQ_KEY\x01{key}\x02{due}REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02"


def open_rows(state: Path) -> int:
    """How many rows wait in a state."""
    record = json.loads((state / "state.json").read_text().splitlines()[1])
    return int(pq.read_metadata(state / record["open"]["name"]).num_rows)


def test_what_was_cancelled_or_lost_is_kept_no_longer(tmp_path: Path) -> None:
    made = Ended(tmp_path / "full")
    log = made.log
    log.close()
    count = len(list(log.folder.iterdir()))
    assert count > 6
    names = ("delivered", "cancelled", "lost", "overdue", "pending", "repeated")

    def night(segments: int, as_of_ms: int, gone: int = 0) -> tuple[int, ...]:
        prefix(tmp_path / "full", tmp_path / "store", segments, 1 << 30)
        for path in sorted((tmp_path / "store" / "commitlog").iterdir())[:gone]:
            path.unlink()
        total = run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)["total"]
        return tuple(total[name] for name in names)

    assert night(count - 4, START_MS + 1_000)[1:] == (1, 0, 0, 2, 0)
    assert open_rows(tmp_path / "state") >= 4
    soon, later = START_MS + Ended.DAY_MS + ENDED_MS - 1, START_MS + Ended.DAY_MS + ENDED_MS
    # Retention has deleted the first segments. Just before three days are over nothing is given up.
    assert night(count - 3, soon, 1)[1:] == (1, 0, 1, 1, 0)
    assert night(count - 2, later, 1)[1:] == (1, 1, 0, 1, 0)
    before = open_rows(tmp_path / "state")
    assert night(count - 1, later, 1)[1:] == (1, 1, 0, 1, 0)
    assert open_rows(tmp_path / "state") <= 2 + 1, f"the one that waits, and what is at a border; before: {before}"
    assert night(count, START_MS + 30 * Ended.DAY_MS, 1) == (200, 1, 2, 0, 0, 0)


def test_a_message_that_is_still_in_the_log_is_not_lost(tmp_path: Path) -> None:
    """However long it is overdue; and a cancelled one is finished in both."""
    made = Ended(tmp_path / "full")
    made.log.close()
    count = len(list(made.log.folder.iterdir()))
    for segments in (count - 1, count):
        prefix(tmp_path / "full", tmp_path / "store", segments, 1 << 30)
        total = run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=START_MS + 30 * Ended.DAY_MS)
        run(tmp_path / "store", tmp_path / "beside", None, as_of_ms=START_MS + 30 * Ended.DAY_MS)
        assert_same(tmp_path / "out", tmp_path / "beside")
    assert (total["total"]["overdue"], total["total"]["cancelled"], total["total"]["lost"]) == (2, 1, 0)


def test_a_delivery_after_the_end_is_a_repeat(tmp_path: Path) -> None:
    made = Ended(tmp_path / "full")
    made.deliver("cancelled", Ended.DAY_MS, 10 * Ended.DAY_MS)
    for number in range(1_000, 1_060):
        made.accept(f"{number}", 1, 2)
        made.deliver(f"{number}", 2)
    made.log.close()
    count = len(list(made.log.folder.iterdir()))
    for segments in (3, count, count):
        prefix(tmp_path / "full", tmp_path / "store", segments, 1 << 30)
        as_of_ms = START_MS + 30 * Ended.DAY_MS
        total = run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)["total"]
    assert (total["delivered"], total["cancelled"], total["repeated"]) == (260, 1, 1)


def test_random_worlds_with_ends_are_what_one_run_finds(tmp_path: Path) -> None:
    """Years later everything of Apache's has ended; the counts are those of one run as long as the log is there."""
    count = apaches(tmp_path / "full")
    as_of_ms = AS_OF_MS + 400 * Ended.DAY_MS
    rng = random.Random(2)
    done = 0
    while done < count:
        done = min(count, done + rng.randint(1, 3))
        prefix(tmp_path / "full", tmp_path / "store", done, 1 << 30)
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)
        run(tmp_path / "store", tmp_path / "beside", None, as_of_ms=as_of_ms)
        assert_same(tmp_path / "out", tmp_path / "beside")
