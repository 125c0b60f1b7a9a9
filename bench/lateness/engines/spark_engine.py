"""The engine for logs of any size: Spark's tasks read and settle messages, only sums by group come to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.lateness.counting.merging import finish, hot_rows, marks_of
from bench.lateness.engines.compute import by_second, closed, known, merged, messages, packed, sums, sums_of_messages
from bench.lateness.engines.job import Job, Receipts
from bench.lateness.engines.placed import hosts_of, rows_of
from bench.lateness.engines.received import RECEIVED_ROWS, read_received, write_received
from bench.lateness.engines.shares import shares_of
from bench.lateness.logs.schemas import DELAY_SCHEMA
from bench.lateness.logs.storage import StorageError

__all__ = ["SparkEngine"]


_ALONE_BYTES_MAX = 2 << 30
"""Up to this size of log the driver adds up the sums of the parts. They are a tenth of the log at most."""


_LIMIT = "spark.driver.maxResultSize"


def _too_large() -> StorageError:
    return StorageError(
        "the ids of the messages that finished since the last run (16 bytes each), and the rows of those that wait (58 "
        f"bytes each), are larger than {_LIMIT}, which is 1g unless told otherwise: give more, such as "
        f"--memory 12g --spark {_LIMIT}=6g, or run more often"
    )


class SparkEngine:
    """Runs jobs on a session, one after the other.

    Executors keep the rows that are used twice. They can be made again from the log, so a run survives the loss of one.
    """

    def __init__(
        self,
        spark: SparkSession,
        alone_bytes_max: int = _ALONE_BYTES_MAX,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Use ``spark``; the driver adds up the sums of logs of at most ``alone_bytes_max``."""
        self._say = say
        self._spark = spark
        self._alone_bytes_max = alone_bytes_max
        self._found: DataFrame | None = None

    def sums(self, job: Job) -> Any:
        """See `bench.lateness.engines.job.Engine`. Errors of the reading are wrapped in Spark's."""
        rows, buckets = self._all_rows(job), self._buckets(job)
        if not job.received:
            return _results(sums(rows, job.choice, job.parts, buckets), buckets)
        self._found = messages(rows, job.choice, job.parts).persist()
        return _results(sums_of_messages(self._found, buckets), buckets)

    def pieces(self, job: Job) -> Any:
        """See `bench.lateness.engines.job.Engine`. Raises StorageError if the ids are too many for the driver."""
        assert job.counted is not None
        hand_over = self._spark.sparkContext.broadcast
        handed = [hand_over(job.counted.without_hashes())]
        try:
            handed += [hand_over(share) for share in job.counted.shares(job.parts)]
            hashes = [known(self._spark, share, job.parts) for share in handed[1:]]
            rows = _union([self._all_rows(job), *hashes])
            return closed(rows, job.choice, handed[0], job.parts).toArrow()
        except Exception as error:
            raise (_too_large() if _LIMIT in str(error) else error) from None
        finally:
            for share in handed:
                share.destroy()

    def receipts(self, job: Job, hosts: Mapping[int, Iterable[str]]) -> Receipts:
        """See `bench.lateness.engines.job.Engine`; writes the receipts as Parquet into the result folder, too."""
        assert self._found is not None
        received = read_received(self._spark, job.received, self._found, hosts)
        buckets = self._buckets(job)
        added = _results(sums_of_messages(received.matched, buckets), buckets)
        write_received(self._spark, job.received, str(job.out / RECEIVED_ROWS))
        return Receipts(added, received.repeated, received.unmatched, received.ambiguous)

    def _buckets(self, job: Job) -> int:
        """How many tasks add up the sums of the parts; 1: the driver does it."""
        return 1 if job.counted_bytes <= self._alone_bytes_max else job.parts

    def _all_rows(self, job: Job) -> DataFrame:
        """The rows of every source, packed for the job's parts."""
        shares = shares_of(job)
        parts = [rows_of(self._spark, shares, hosts_of(self._spark, shares, self._say))] if shares else []
        plain = [] if job.rows is None else [job.rows]
        if job.open_rows is not None and len(job.open_rows):
            plain.append(self._spark.createDataFrame(job.open_rows, DELAY_SCHEMA))
        if plain:
            parts.append(packed(_union(plain), job.parts))
        return _union(parts)


def _results(fine: DataFrame, buckets: int) -> Any:
    """All results, added up from the sums of the parts, as one Arrow table."""
    if buckets == 1:
        return finish(fine.toArrow())
    kept = fine.persist()
    try:
        added = merged(kept, buckets).toArrow()
        marks = marks_of(added)
        return pa.concat_tables([added, by_second(kept, marks, buckets).toArrow(), hot_rows(marks)])
    finally:
        kept.unpersist()


def _union(parts: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, parts)
