"""One run: sources in, a result folder out.

The order of the looks matters for a live broker: first the delay store, then the CommitLog. What is delivered between
the two is then seen in both, which is a delivery, and never in neither, which would be a loss.
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
from bench.lateness.planning import LogPlan, log_folder, plan_log, plan_to_json
from bench.lateness.progress import queue_progress
from bench.lateness.received import Received, read_received, write_received
from bench.lateness.result import HISTOGRAMS, RECEIVED, SUMMARY
from bench.lateness.schemas import GAP, STATISTICS
from bench.lateness.settle import Choice
from bench.lateness.source import APACHE_LEVELS
from bench.lateness.spill_files import SpillFile, plan_spill
from bench.lateness.spill_source import spill_plan_to_text
from bench.lateness.storage import storage_for
from bench.lateness.summary import Seen, make_summary
from bench.lateness.tables import take_apart

__all__ = ["Job", "Source", "find_sources", "look_at_delay_stores", "run_job", "write_result"]

SPLIT_BYTES = 32 << 20
RECEIVED_ROWS = "received.parquet"
_LOG_PER_ROWS = 16
"""So many bytes of log are a byte of the Parquet that ``--follow`` makes of them: 300 and 20 a record."""
_READING_MS_MAX = 600_000
"""Of what falls due while a reading is planned, the topics have to be known."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Source:
    """One broker's store, as given on the command line."""

    name: str
    path: str
    kind: str
    levels: str = APACHE_LEVELS
    storage: str = ""


@dataclass(slots=True)
class Job:
    """Everything that one run is asked to do; times are epoch ms, ``as_of_ms`` None: the moment of the reading."""

    sources: Sequence[Source]
    out: Path
    received: Sequence[str] = ()
    tables: Sequence[str] = ()
    expectations: Sequence[Expectation] = ()
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


def find_sources(
    paths: Sequence[str], names: Sequence[str] = (), levels: str = APACHE_LEVELS, storage: str = ""
) -> list[Source]:
    """Look what each path is; NoStoreError for one that is no store, ValueError for names that do not fit."""
    if names and len(names) != len(paths):
        raise ValueError(f"{len(names)} names for {len(paths)} sources: give --name once for each, or not at all")
    short = list(names) or _short_names(paths)
    if len(set(short)) != len(short):
        raise ValueError(f"two sources have the same name: {', '.join(short)}")
    found = []
    for path, name in zip(paths, short, strict=True):
        files = storage_for(path, storage)
        root = log_folder(files, path).rpartition("/")[0]
        ours = files.is_folder(f"{root}/timewheel")
        found.append(Source(name, path.rstrip("/"), "timewheel" if ours else "apache", levels, storage))
    return found


def _short_names(paths: Sequence[str]) -> list[str]:
    """The shortest tails of the paths that tell them apart."""
    parts = [[part for part in path.split("/") if part] or [path] for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        tails = ["/".join(part[-count:]) for part in parts]
        if len(set(tails)) == len(tails):
            return tails
    return list(paths)


def run_job(spark: SparkSession, job: Job, say: Say) -> dict[str, Any]:
    """Do it; answers the summary, which also stands in the result folder."""
    if job.delay_stores is None:
        look_at_delay_stores(job)
    job.plans = [plan_log(source.path, source.storage) for source in job.sources]
    size = sum(segment.end for plan in job.plans for segment in plan.segments)
    count = parts_for(max(size, job.rows_bytes * _LOG_PER_ROWS))
    rows = _all_rows(spark, job, count)
    as_of_ms = job.as_of_ms if job.as_of_ms is not None else time.time_ns() // 1_000_000
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
    )
    received: Received | None = None
    if found is not None:
        say("joining what consumers saw")
        received = read_received(spark, job.received, found, len(job.sources))
        more = take_apart(_results(sums_of_messages(received.matched)), names, job.tables, parts.topics).tables
        tables |= {name + RECEIVED: table for name, table in more.items()}
        write_received(spark, job.received, str(job.out / RECEIVED_ROWS))
    summary = make_summary(job, as_of_ms, seen, tables, received)
    write_result(job.out, summary, tables)
    return summary


def _results(fine: DataFrame) -> Any:
    """Everything that is added up over messages, as one Arrow table."""
    return results(fine.localCheckpoint()).toArrow()


def look_at_delay_stores(job: Job) -> None:
    """Fix what there is to read of the delay stores: always before the end of any log is looked for."""
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
    parts: list[DataFrame] = []
    plain: list[DataFrame] = []
    now_ms = job.as_of_ms if job.as_of_ms is not None else time.time_ns() // 1_000_000
    due_soon_ms = now_ms + _READING_MS_MAX
    for number, (source, files) in enumerate(zip(job.sources, job.delay_stores, strict=True)):
        if files:
            spill = spark.read.format("rocketmq-timewheel-spill").options(
                number=str(number), storage=source.storage, asOfMs=str(due_soon_ms), plan=spill_plan_to_text(files)
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
    for name, table in tables.items():
        keys = [(column, "ascending") for column in table.column_names if column != "count"]
        pq.write_table(table.sort_by(keys), fresh / f"{name}.parquet")
    shutil.rmtree(out / HISTOGRAMS, ignore_errors=True)
    fresh.rename(out / HISTOGRAMS)
    place = out / f".{SUMMARY}.new"
    place.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    place.rename(out / SUMMARY)
