"""The whole pipeline on Spark against a plain count: random small worlds, known distributions, what a store may be."""

from __future__ import annotations

import errno
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench.log_maker import FIRST_DUE_MS, make_log, spread_lateness
from tests.support.lateness_world import LEVELS, START_MS, World, count_world, make_world, write_world

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

AS_OF_MS = START_MS + 40_000
COUNTS = ("sent", "delivered", "pending", "overdue", "repeated", "early", "lost", "cancelled", "unknown")


def run(
    spark: Any, out: Path, paths: list[Path], large: bool = False, **values: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the pipeline on both engines; answers the summary and the histograms as lists of rows.

    ``large``: on Spark once more, added up in tasks as for a log that is too large for the driver.
    """
    from bench.lateness.engines.local_engine import LocalEngine
    from bench.lateness.engines.spark_engine import SparkEngine
    from bench.lateness.pipeline import Job, find_sources, run_job
    from bench.lateness.results.result import read_result

    values.setdefault("as_of_ms", AS_OF_MS)
    sources = find_sources([str(path) for path in paths], levels=LEVELS)
    run_job(SparkEngine(spark), Job(sources, out, **values), lambda _: None)
    beside = out.with_name(f"{out.name}-local")
    run_job(LocalEngine(1), Job(sources, beside, **values), lambda _: None)
    assert_same(out, beside)
    if large:
        run_job(SparkEngine(spark, alone_bytes_max=-1), Job(sources, beside, **values), lambda _: None)
        assert_same(out, beside)
    result = read_result(out)
    return result.summary, {name: table.to_pylist() for name, table in result.histograms.items()}


def assert_same(out: Path, beside: Path) -> None:
    """Whatever the engine, the tables are the same to the byte, and the summaries but for when they were made."""
    names = sorted(path.name for path in (out / "histograms").iterdir())
    assert names == sorted(path.name for path in (beside / "histograms").iterdir())
    for name in names:
        assert (out / "histograms" / name).read_bytes() == (beside / "histograms" / name).read_bytes(), name
    one, other = (json.loads((folder / "summary.json").read_text()) | {"made_ms": 0} for folder in (out, beside))
    assert one == other


@pytest.mark.parametrize("seed", [1, 2])
def test_random_worlds_against_a_plain_count(spark: Any, tmp_path: Path, seed: int) -> None:
    worlds: dict[str, World] = {}
    for number in range(10):
        rng = random.Random(seed * 1_000 + number)
        world = worlds[f"w{number}"] = make_world(rng, rng.choice([0, 1, 5, 60]))
        write_world(world, tmp_path / f"w{number}", rng)
    paths = [tmp_path / name for name in worlds]
    summary, tables = run(spark, tmp_path / "out", paths, large=True, split_bytes=3_000, check_crc=True)
    for source in summary["sources"]:
        expected = count_world(worlds[source["name"]], AS_OF_MS)
        assert {name: source[name] for name in COUNTS} == {name: expected["counts"][name] for name in COUNTS}  # type: ignore[index]
        assert source["damaged"] == []
        assert source["torn_tail"] is None
        own = [row for row in tables["topic"] if row["source"] == source["name"]]
        keys = ("topic", "kind", "level", "lateness_ms", "censored")
        assert Counter({tuple(row[k] for k in keys): row["count"] for row in own}) == expected["topic"]
        own = [row for row in tables["ms_in_second"] if row["source"] == source["name"]]
        keys = ("ms_in_second", "lateness_ms", "censored")
        assert Counter({tuple(row[k] for k in keys): row["count"] for row in own}) == expected["ms_in_second"]
    for name, rows in tables.items():
        measured = sum(s["delivered"] + s["overdue"] for s in summary["sources"])
        assert sum(row["count"] for row in rows) == measured, name


def test_a_known_distribution_gives_exactly_its_figures(spark: Any, tmp_path: Path) -> None:
    late = spread_lateness(30_000, seed=3)
    late[7] = -4
    late[100:103] = 60_000
    make_log(tmp_path / "log", late, record_bytes=300, segment_bytes=4 << 20, per_second=500)
    summary, tables = run(spark, tmp_path / "out", [tmp_path / "log"], split_bytes=1 << 20)
    total = summary["total"]
    assert (total["sent"], total["delivered"], total["early"], total["repeated"]) == (30_000, 30_000, 1, 0)
    ordered = np.sort(late)
    for name, rank in (("p50", 15_000), ("p90", 27_000), ("p99", 29_700), ("p99.9", 29_970), ("p99.99", 29_997)):
        assert total["percentiles"][name] == ordered[rank - 1]
    assert total["percentiles"]["max"] == 60_000
    assert total["within"] == {str(limit): int((late <= limit).sum()) / 30_000 for limit in (1, 10, 100, 1000)}
    source = summary["sources"][0]
    assert (source["records"], source["bytes"], source["clock_steps_back"]) == (30_000, 9_000_000, 0)
    assert source["first_store_ms"] == (FIRST_DUE_MS + np.arange(30_000) * 2 + late).min()
    assert {row["due_in_second_from"] for row in tables["due_in_second"]} == {500}
    assert source["hot_from"] == 2_500
    assert {row["minute_ms"] for row in tables["minute"]} == {
        (FIRST_DUE_MS + 2 * n) // 60_000 * 60_000 for n in range(30_000)
    }


@pytest.mark.parametrize(("per_second", "cell_ms", "cells"), [(40, 1_000, 25), (1, 10_000, 100)])
def test_cells_are_as_short_as_the_run(spark: Any, tmp_path: Path, per_second: int, cell_ms: int, cells: int) -> None:
    late = np.arange(1_000, dtype=np.int64) % 7
    make_log(tmp_path / "log", late, record_bytes=300, segment_bytes=1 << 20, per_second=per_second)
    summary, tables = run(spark, tmp_path / "out", [tmp_path / "log"])
    assert summary["cell_ms"] == cell_ms
    expected = Counter((FIRST_DUE_MS + n * 1_000 // per_second) // cell_ms * cell_ms for n in range(1_000))
    found: Counter[int] = Counter()
    for row in tables["cell"]:
        found[row["cell_ms"]] += row["count"]
    assert found == expected
    assert abs(len(found) - cells) <= 1


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    from bench.lateness.engines.local_engine import LocalEngine
    from bench.lateness.pipeline import Job, find_sources, run_job
    from bench.lateness.reading_progress import ReadingProgress

    make_log(tmp_path / "log", spread_lateness(20_000, seed=3), record_bytes=300, segment_bytes=4 << 20)
    sources = find_sources([str(tmp_path / "log")])
    progress = ReadingProgress(lambda _: None)
    for name, engine in (("one", LocalEngine(1)), ("two", LocalEngine(2, progress.counting, alone_bytes_max=0))):
        run_job(engine, Job(sources, tmp_path / name, as_of_ms=AS_OF_MS, split_bytes=1 << 20), lambda _: None)
    assert_same(tmp_path / "one", tmp_path / "two")
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["histograms", "summary.json"]
    assert progress.done_bytes - 20_000 * 300 in range(0, 17, 8)  # a blank ends a segment


def test_no_room_for_the_rows_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is larger than memory has its rows in the result folder, whose disk may be full."""
    from bench.lateness.command import lateness_command
    from bench.lateness.engines import local_engine

    make_log(tmp_path / "log", spread_lateness(2_000, seed=3), record_bytes=300, segment_bytes=4 << 20)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_engine, "_settle", full)
    found = CliRunner().invoke(
        lateness_command, [str(tmp_path / "log"), "--out", str(tmp_path / "out"), "--engine", "local"]
    )
    assert (found.exit_code, found.output.splitlines()[-1]) == (
        1,
        f"Error: {tmp_path / 'out'}: No space left on device; the rows of a log take 66 bytes a record there while it "
        "is counted",
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_damage_a_torn_end_an_empty_log_and_bounds(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(5)
    world = make_world(rng, 200)
    log = write_world(world, tmp_path / "hurt", rng)
    place, size = log.places[10]
    first = log.folder / f"{0:020d}"
    content = bytearray(first.read_bytes())
    content[place : place + 8] = b"\x5a" * 8
    first.write_bytes(content)
    end, _ = log.places[-1]
    last = log.folder / f"{end - end % log.segment_bytes:020d}"
    last.write_bytes(last.read_bytes()[: end % log.segment_bytes + 60].ljust(log.segment_bytes, b"\0"))
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    summary, _ = run(spark, tmp_path / "out", [tmp_path / "hurt", tmp_path / "empty"], split_bytes=2_000)
    hurt, empty = summary["sources"]
    assert [(d["offset"], d["bytes"], Path(d["file"]).name) for d in hurt["damaged"]] == [(place, size, f"{0:020d}")]
    assert hurt["torn_tail"]["offset"] == end % log.segment_bytes
    assert hurt["records"] == len(log.places) - 2
    assert (empty["sent"], empty["records"], empty["percentiles"]["p50"]) == (0, 0, None)
    since, until = START_MS + 5_000, START_MS + 20_000
    chosen, _ = run(spark, tmp_path / "some", [tmp_path / "hurt"], since_ms=since, until_ms=until)
    assert 0 < chosen["total"]["sent"] < hurt["sent"]
    assert chosen["since_ms"] == since
    with pytest.raises(Exception, match="DamagedLogError"):
        run(spark, tmp_path / "no", [tmp_path / "hurt"], fail_on_damage=True)
    from bench.lateness.command import lateness_command

    words = [str(tmp_path / "hurt"), "--out", str(tmp_path / "no"), "--fail-on-damage", "--engine", "local"]
    found = CliRunner().invoke(lateness_command, words)
    assert (found.exit_code, found.output.splitlines()[-1]) == (
        1,
        f"Error: {first} at {place}: {size} bytes: bytes that are no record",
    )


def test_what_consumers_saw(spark: Any, tmp_path: Path) -> None:
    late = np.zeros(50, np.int64)
    make_log(tmp_path / "log", late, record_bytes=300, segment_bytes=1 << 20, per_second=500)
    lines = []
    for number in range(40):
        due = FIRST_DUE_MS + number * 2
        value = {"offset_message_id": f"7F00000100002A9F{number * 300:016X}", "store_ms": due, "received_ms": due + 3}
        lines.append(json.dumps(value))
    lines.append(lines[0])
    lines.append(json.dumps({"offset_message_id": f"7F00000100002A9F{7:016X}", "store_ms": 5, "received_ms": 9}))
    (tmp_path / "seen.jsonl").write_text("\n".join(lines) + "\n")
    summary, tables = run(
        spark, tmp_path / "out", [tmp_path / "log"], large=True, received=[str(tmp_path / "seen.jsonl")]
    )
    found = summary["total"]["end_to_end"]
    assert (found["received"], found["repeated"], found["early"], found["unmatched"]) == (40, 1, 0, 1)
    assert found["percentiles"]["p99"] == 3
    assert sum(row["count"] for row in tables["topic_received"]) == 40
    # The run has made Parquet of the lines, which is as good as they are.
    kept = str(tmp_path / "out" / "received.parquet")
    assert spark.read.parquet(kept).count() == len(lines)
    again, more = run(spark, tmp_path / "again", [tmp_path / "log"], received=[kept])
    assert again["total"]["end_to_end"] == found
    assert more == tables


def test_a_receipt_counts_for_its_own_broker_only(spark: Any, tmp_path: Path) -> None:
    """Two logs with the same offsets and times of storage; a third one is a copy of the first."""
    late = np.zeros(50, np.int64)
    first, second, copy = tmp_path / "first", tmp_path / "second", tmp_path / "copy"
    for path in (first, second, copy):
        make_log(path, late, record_bytes=300, segment_bytes=1 << 20, per_second=500)
    segment = next(second.rglob("0" * 20))
    segment.write_bytes(
        segment.read_bytes().replace(bytes.fromhex("7F00000100002A9F"), bytes.fromhex("7F00000200002A9F"))
    )
    lines = [
        json.dumps({
            "offset_message_id": f"7F0000{host:02X}00002A9F{number * 300:016X}",
            "store_ms": FIRST_DUE_MS + number * 2,
            "received_ms": FIRST_DUE_MS + number * 2 + host,
        })
        for number, host in [(0, 1), (1, 1), (1, 2), (2, 2), (3, 3)]
    ]  # fmt: skip
    (tmp_path / "seen.jsonl").write_text("\n".join(lines) + "\n")
    seen = [str(tmp_path / "seen.jsonl")]
    summary, _ = run(spark, tmp_path / "out", [first, second], received=seen)
    ends = [source["end_to_end"] for source in summary["sources"]]
    assert [(end["received"], end["percentiles"]["max"]) for end in ends] == [(2, 1), (2, 2)]
    end = summary["total"]["end_to_end"]
    assert (end["unmatched"], end["ambiguous"]) == (1, 0)
    lines += lines[:1]
    (tmp_path / "seen.jsonl").write_text("\n".join(lines) + "\n")
    summary, _ = run(spark, tmp_path / "again", [first, copy], received=seen)
    end = summary["total"]["end_to_end"]
    assert (end["received"], end["unmatched"], end["ambiguous"]) == (0, 6, 3)


def test_every_record_is_a_row_of_the_public_source(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(9)
    world = make_world(rng, 80)
    log = write_world(world, tmp_path / "store", rng)
    reader = spark.read.format("rocketmq-commitlog").option("splitBytes", "2000").option("levels", LEVELS)
    rows = reader.load(str(tmp_path / "store")).orderBy("offset").collect()
    assert [(row["offset"], row["size"]) for row in rows] == log.places
    assert sum(row["stage"] == "ordinary" for row in rows) == world.ordinary
    assert {row["topic"] for row in rows if row["stage"] == "delivered"} == {m[2] for m in world.messages if m[5]}


def test_many_shares_reach_java_in_few_calls(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of 30 TB has 30,000 of them, and a call takes a fraction of a millisecond. Each keeps its hosts."""
    from bench.lateness.engines.placed import rows_of
    from bench.lateness.engines.shares import RowsShare, Share

    count = 2_000
    shares: list[Share] = [RowsShare([], 1, number) for number in range(count)]
    hosts = [[f"host{number}", "second", "third"][: number % 4] for number in range(count)]
    client = spark.sparkContext._gateway._gateway_client
    send = client.send_command
    sent: list[str] = []

    def counted(command: str, *more: Any, **named: Any) -> Any:
        sent.append(command)
        return send(command, *more, **named)

    monkeypatch.setattr(client, "send_command", counted)
    rdd = rows_of(spark, shares, hosts)._jdf.queryExecution().toRdd()
    assert len(sent) < count / 2
    assert rdd.getNumPartitions() == count
    context = spark.sparkContext._jsc.sc()
    found = [context.getPreferredLocs(rdd, at).mkString(" ") for at in (0, 499, 500, 1_000, 1_500, 1_999)]
    assert found == ["host3 second third", "host1999 second third", "host2 second", "host1", "", ""]
