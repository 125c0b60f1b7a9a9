"""The engine for logs of any size: Spark's tasks read and settle, only groups come to the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.lateness.compute import messages, packed, results, sums, sums_of_messages
from bench.lateness.job import Job, Receipts, reading_options, root_of
from bench.lateness.received import RECEIVED_ROWS, read_received, write_received
from bench.lateness.spill_source import spill_plan_to_text

__all__ = ["SparkEngine"]


class SparkEngine:
    """Runs jobs on a session, one after the other."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._found: DataFrame | None = None

    def sums(self, job: Job) -> Any:
        """See `bench.lateness.job.Engine`. Errors of the reading come out wrapped in Spark's."""
        rows = self._all_rows(job)
        if not job.received:
            return _results(sums(rows, job.choice, job.parts))
        self._found = messages(rows, job.choice, job.parts).localCheckpoint()
        return _results(sums_of_messages(self._found))

    def receipts(self, job: Job, hosts: Mapping[int, Iterable[str]]) -> Receipts:
        """See `bench.lateness.job.Engine`; writes the receipts as Parquet into the result folder, too."""
        assert self._found is not None
        received = read_received(self._spark, job.received, self._found, hosts)
        added = _results(sums_of_messages(received.matched))
        write_received(self._spark, job.received, str(job.out / RECEIVED_ROWS))
        return Receipts(added, received.repeated, received.unmatched)

    def _all_rows(self, job: Job) -> DataFrame:
        """The rows of every source, packed for the job's parts."""
        assert job.delay_stores is not None
        parts: list[DataFrame] = []
        plain: list[DataFrame] = []
        for number, (source, files) in enumerate(zip(job.sources, job.delay_stores, strict=True)):
            if files:
                spill = self._spark.read.format("rocketmq-timewheel-spill").options(
                    number=str(number), storage=source.storage, asOfMs=str(job.as_of_ms), plan=spill_plan_to_text(files)
                )
                plain.append(spill.load(root_of(source)))
            if job.rows is None:
                reader = self._spark.read.format("rocketmq-commitlog").options(**reading_options(job, number))
                parts.append(reader.load(source.path))
        if job.rows is not None:
            plain.append(job.rows)
        if plain:
            parts.append(packed(_union(plain), job.parts))
        return _union(parts)


def _results(fine: DataFrame) -> Any:
    """Everything that is added up over messages, as one Arrow table."""
    return results(fine.localCheckpoint()).toArrow()


def _union(parts: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, parts)
