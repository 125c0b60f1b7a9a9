"""One run: sources in, a result folder out.

The order of the looks matters for a live broker: first the moment of the reading, then the delay store, then the
CommitLog. What is delivered between the two stores' looks is seen in both, which is a delivery, and never in neither,
which would be a loss. What comes due after the moment of the reading is pending, however long the looks take.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.lateness.compute import messages, packed, results, sums, sums_of_messages
from bench.lateness.expect import Expectation
from bench.lateness.packing import parts_for
from bench.lateness.planning import LogPlan, plan_log, plan_to_json
from bench.lateness.progress import queue_progress
from bench.lateness.received import Received, read_received, write_received
from bench.lateness.result import HISTOGRAMS, RECEIVED, SUMMARY
from bench.lateness.schemas import GAP, STATISTICS
from bench.lateness.settle import Choice
from bench.lateness.sources import Source, find_sources
from bench.lateness.spill_files import SpillFile, plan_spill
from bench.lateness.spill_source import spill_plan_to_text
from bench.lateness.storage import storage_for
from bench.lateness.summary import Seen, make_summary
from bench.lateness.tables import take_apart
from bench.lateness.target import DEFAULT_TARGET, Target

__all__ = ["Job", "Source", "find_sources", "look_at_delay_stores", "run_job", "write_result"]

SPLIT_BYTES = 32 << 20
RECEIVED_ROWS = "received.parquet"
_LOG_PER_ROWS = 16
"""So many bytes of log are a byte of the Parquet that ``--follow`` makes of them: 300 and 20 a record."""
Say = Callable[[str], None]


@dataclass(slots=True)
class Job:
    """Everything that one run is asked to do; times are epoch ms.

    ``as_of_ms`` parts pending from overdue. None: now, as `look_at_delay_stores` finds it before it looks.
    """

    sources: Sequence[Source]
    out: Path
    received: Sequence[str] = ()
    tables: Sequence[str] = ()
    expectations: Sequence[Expectation] = ()
    target: Target = DEFAULT_TARGET
    since_ms: int | None = None
    until_ms: int | None = None
    as_of_ms: int | None = None
    check_crc: bool = False
    fail_on_damage: bool = False
    split_bytes: int = SPLIT_BYTES
    rows: DataFrame | None = None
    """Rows of the logs that are there already (``--follow``), in place of reading them."""
    rows_bytes: int = 0
    """What these rows take on disk; they may be of more log than is still there."""
    plans: list[LogPlan] = field(default_factory=list)
    delay_stores: list[list[SpillFile]] | None = None
    """The files of each source's delay store, where they have been looked at already."""


def run_job(spark: SparkSession, job: Job, say: Say) -> dict[str, Any]:
    """Do it; answers the summary, which also stands in the result folder."""
    if job.delay_stores is None:
        look_at_delay_stores(job)
    job.plans = [plan_log(source.path, source.storage) for source in job.sources]
    size = sum(segment.end for plan in job.plans for segment in plan.segments)
    count = parts_for(max(size, job.rows_bytes * _LOG_PER_ROWS))
    rows = _all_rows(spark, job, count)
    assert job.as_of_ms is not None
    as_of_ms = job.as_of_ms
    say(f"reading {size / 1e6:,.0f} MB of {len(job.plans)} log{'s' if len(job.plans) != 1 else ''}")
    choice = Choice(as_of_ms, job.since_ms, job.until_ms, _given_back(job))
    names = [source.name for source in job.sources]
    found = messages(rows, choice, count).localCheckpoint() if job.received else None
    parts = take_apart(
        _results(sums(rows, choice, count) if found is None else sums_of_messages(found)), names, job.tables
    )
    tables = parts.tables
    seen = Seen(
        counts=parts.counts,
        notes=[row for row in parts.notes if row["stage"] in (STATISTICS, GAP)],
        hot=parts.hot,
        latest=parts.latest,
    )
    received: Received | None = None
    if found is not None:
        say("joining what consumers saw")
        received = read_received(spark, job.received, found, _hosts(seen.notes, len(names)))
        more = take_apart(_results(sums_of_messages(received.matched)), names, job.tables, parts.topics)
        tables |= {name + RECEIVED: table for name, table in more.tables.items()}
        seen.latest_received = more.latest
        write_received(spark, job.received, str(job.out / RECEIVED_ROWS))
    summary = make_summary(job, as_of_ms, seen, tables, received)
    write_result(job.out, summary, tables)
    return summary


def _results(fine: DataFrame) -> Any:
    """Everything that is added up over messages, as one Arrow table."""
    return results(fine.localCheckpoint()).toArrow()


def _hosts(notes: Sequence[dict[str, Any]], sources: int) -> dict[int, set[str]]:
    """The addresses that the records of each source name as their broker's."""
    hosts: dict[int, set[str]] = {number: set() for number in range(sources)}
    for row in notes:
        if row["stage"] == STATISTICS:
            hosts[row["source"]] |= set(json.loads(row["text"])["hosts"])
    return hosts


def look_at_delay_stores(job: Job) -> None:
    """Fix the moment of the reading, then what there is to read of the delay stores.

    Always before the end of any log is looked for: see the head of this file.
    """
    if job.as_of_ms is None:
        job.as_of_ms = time.time_ns() // 1_000_000
    job.delay_stores = [
        plan_spill(_root(source), storage_for(source.path, source.storage)) if source.kind == "timewheel" else []
        for source in job.sources
    ]


def _given_back(job: Job) -> list[int]:
    """The numbers of the sources in which a finished message may have left no trace."""
    assert job.delay_stores is not None
    return [
        number
        for number, (files, plan) in enumerate(zip(job.delay_stores, job.plans, strict=True))
        if plan.begin > 0 or min((file.base for file in files if file.shape is None), default=0) > 0
    ]


def _all_rows(spark: SparkSession, job: Job, count: int) -> DataFrame:
    """The rows of every source, packed for ``count`` parts."""
    assert job.delay_stores is not None
    assert job.as_of_ms is not None
    parts: list[DataFrame] = []
    plain: list[DataFrame] = []
    for number, (source, files) in enumerate(zip(job.sources, job.delay_stores, strict=True)):
        if files:
            spill = spark.read.format("rocketmq-timewheel-spill").options(
                number=str(number), storage=source.storage, asOfMs=str(job.as_of_ms), plan=spill_plan_to_text(files)
            )
            plain.append(spill.load(_root(source)))
        if job.rows is None:
            progress = queue_progress(_root(source), source.storage)
            parts.append(_log_rows(spark, job, number, source, progress, count))
    if job.rows is not None:
        plain.append(job.rows)
    if plain:
        parts.append(packed(_union(plain), count))
    return _union(parts)


def _union(parts: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, parts)


def _root(source: Source) -> str:
    """The store that a source belongs to, where its path is the CommitLog folder."""
    if storage_for(source.path, source.storage).is_folder(f"{source.path}/commitlog"):
        return source.path
    return source.path.rpartition("/")[0] or "."


def _log_rows(
    spark: SparkSession, job: Job, number: int, source: Source, progress: dict[int, int], count: int
) -> DataFrame:
    reader = spark.read.format("rocketmq-commitlog").options(
        rows="packed",
        parts=str(count),
        number=str(number),
        plan=plan_to_json(job.plans[number]),
        levels=source.levels,
        storage=source.storage,
        splitBytes=str(job.split_bytes),
        checkCrc=str(job.check_crc).lower(),
        failOnDamage=str(job.fail_on_damage).lower(),
        ownLevels=str(source.kind == "timewheel").lower(),
        progress=json.dumps(progress),
    )
    return reader.load(source.path)


def write_result(out: Path, summary: dict[str, Any], tables: dict[str, Any]) -> None:
    """Write the result folder: tables first, the summary last, each replaced as a whole."""
    import pyarrow.parquet as pq

    fresh = out / f".{HISTOGRAMS}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        for name, table in tables.items():
            keys = [(column, "ascending") for column in table.column_names if column != "count"]
            pq.write_table(table.sort_by(keys), fresh / f"{name}.parquet")
        shutil.rmtree(out / HISTOGRAMS, ignore_errors=True)
        fresh.rename(out / HISTOGRAMS)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    place = out / f".{SUMMARY}.new"
    place.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    place.rename(out / SUMMARY)
