"""Follows live logs: structured streaming reads new records, and each refresh counts all records so far.

::

    log ── stream, offsets in DIR/follow/N/checkpoint ──► DIR/follow/N/rows (Parquet, each row once) ──► result

A round has three steps, in the order that `bench.lateness.engines.job` explains: list the delay stores, read the new
records of the logs (by a stream that ends at the end it finds at its start), add up. Between two rounds nothing runs.

The stream's offsets are CommitLog positions behind whole records, and Spark's file sink writes each step once. So a run
that was interrupted continues where it was. A refresh reads all rows of some 20 bytes each, which takes a few seconds
for millions. Nothing is forgotten: a message that is repeated after a day is found. The folder grows, by 20 bytes a row
and some files a round, and so does the time of a refresh. Memory does not, because more rows go into more parts. The
state of the stream itself is one position.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.lateness.engines.job import Job, look_at_delay_stores, split_bytes_for
from bench.lateness.engines.spark_engine import SparkEngine
from bench.lateness.logs.schemas import DELAY_SCHEMA
from bench.lateness.logs.sources import LogSource
from bench.lateness.pipeline import run_job

__all__ = ["follow"]

FOLDER = "follow"
_LOOK_S = 0.2


def follow(
    spark: SparkSession,
    make_job: Callable[[], Job],
    refresh_s: float,
    rounds: int | None,
    told: Callable[[dict[str, Any]], None],
    stop: threading.Event,
    tries: Callable[[Exception], int] = lambda _: 0,
) -> dict[str, Any] | None:
    """Make results until ``stop`` is set or there are ``rounds``; return the last summary, None without any.

    ``tries`` says how many times in a row a round may fail with this error: a round that failed is repeated, and the
    stream plans its batch again. 0: the error is none that the command knows; once ``stop`` is set it may follow from
    the signal, and ends the run as ``stop`` does. Passes on other errors.
    """
    summary: dict[str, Any] | None = None
    done = failed = 0
    while not stop.is_set():
        began = time.monotonic()
        job = make_job()
        look_at_delay_stores(job)
        places = [job.out / FOLDER / str(number) for number in range(len(job.sources))]
        try:
            for number, (source, place) in enumerate(zip(job.sources, places, strict=True)):
                if not _take(spark, job, number, source, place, stop):
                    return summary
            job.rows = _rows(spark, places)
            job.rows_bytes = sum(path.stat().st_size for place in places for path in (place / "rows").glob("*.parquet"))
            summary = run_job(SparkEngine(spark), job, lambda _: None)
        except Exception as error:
            limit = tries(error)
            if not limit and stop.is_set():
                break
            failed += 1
            if failed >= limit:
                raise
            continue
        failed = 0
        told(summary)
        done += 1
        if done == rounds:
            break
        stop.wait(max(0.0, refresh_s - (time.monotonic() - began)))
    return summary


def _take(spark: SparkSession, job: Job, number: int, source: LogSource, place: Path, stop: threading.Event) -> bool:
    """Read the new records of one log; False if ``stop`` came first (then the next run reads them)."""
    (place / "rows").mkdir(parents=True, exist_ok=True)
    stream = spark.readStream.format("rocketmq-commitlog").options(
        rows="delays",
        number=str(number),
        levels=source.levels,
        storage=source.storage,
        splitBytes=str(job.split_bytes or split_bytes_for(0)),
        checkCrc=str(job.check_crc).lower(),
        ownLevels=str(source.kind == "timewheel").lower(),
    )
    query = (
        stream.load(source.path)
        .writeStream.format("parquet")
        .option("path", str(place / "rows"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        while not query.awaitTermination(_LOOK_S):
            if stop.is_set():
                return False
    finally:
        query.stop()
    return True


def _rows(spark: SparkSession, places: list[Path]) -> DataFrame:
    parts = [spark.read.schema(DELAY_SCHEMA).parquet(str(place / "rows")) for place in places]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part)
    return rows
