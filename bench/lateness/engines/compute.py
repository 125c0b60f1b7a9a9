"""From rows to histograms, on Spark: one task gets all rows of an id, and only sums by group come to the driver.

::

    logs, delay stores ── packed by id ──► parts: state, lateness, sums ── by bucket ──► sums of all ──► driver
                          (one shuffle)                  │               (another)
                                                         └─ pairs of second and lateness, read once more
                                                            when the driver knows how many were due in each second

Parts are chosen by a hash of the id, and each part adds up its rows before it passes them on. So a second or a topic
with half of all messages costs no more than others. Sums travel as bytes (`bench.lateness.counting.sums`), a bucket of
a table in one row: Spark moves few rows, and NumPy adds them up. The driver adds up the sums of a small log, without a
second shuffle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.lateness.counting.closing import Shared, close_part, known_rows
from bench.lateness.counting.merging import Marks, merge, spread
from bench.lateness.counting.settle import PAIR_ROWS, Choice, add_up, settle, settle_and_add_up
from bench.lateness.logs.packing import pack
from bench.lateness.logs.schemas import FINE_SCHEMA, MESSAGE_SCHEMA, PACKED_SCHEMA

__all__ = ["by_second", "closed", "known", "merged", "messages", "packed", "sums", "sums_of_messages"]


def packed(rows: DataFrame, parts: int) -> DataFrame:
    """Pack rows of `DELAY_SCHEMA`. Those of a log are packed where it is read (`bench.lateness.engines.shares`)."""
    return rows.mapInArrow(partial(pack, parts=parts), PACKED_SCHEMA)


def messages(rows: DataFrame, choice: Choice, parts: int) -> DataFrame:
    """One row for each message (and each note): its state, its lateness, and how often it was repeated."""
    return rows.repartitionById(parts, "part").mapInArrow(partial(settle, choice=choice), MESSAGE_SCHEMA)


def sums(rows: DataFrame, choice: Choice, parts: int, buckets: int) -> DataFrame:
    """Add up the messages of each part by every grouping; ``rows`` are packed."""
    work = partial(settle_and_add_up, choice=choice, buckets=buckets)
    return rows.repartitionById(parts, "part").mapInArrow(work, FINE_SCHEMA)


def known(spark: SparkSession, share: Shared, parts: int) -> DataFrame:
    """The hashes of one of `Counted.shares`, packed for the parts: one task, and only its executor gets the share."""
    return spark.range(0, 1, 1, 1).mapInArrow(partial(known_rows, share=share, parts=parts), PACKED_SCHEMA)


def closed(rows: DataFrame, choice: Choice, counted: Shared, parts: int) -> DataFrame:
    """As `sums`, but messages that earlier runs have counted are not counted again; `known` hashes are among the rows.

    ``counted`` has no hashes."""
    work = partial(close_part, choice=choice, counted=counted)
    return rows.repartitionById(parts, "part").mapInArrow(work, FINE_SCHEMA)


def sums_of_messages(found: DataFrame, buckets: int) -> DataFrame:
    """As `sums`, from the rows that `messages` returns."""
    return found.mapInArrow(partial(add_up, buckets=buckets), FINE_SCHEMA)


def merged(fine: DataFrame, buckets: int) -> DataFrame:
    """The sums of all parts, except the pairs of second and lateness."""
    rows = fine.where(f.col("table") != PAIR_ROWS).withColumn("bucket", f.coalesce("bucket", f.lit(0)))
    return rows.repartitionById(buckets, "bucket").mapInArrow(merge, FINE_SCHEMA)


def by_second(fine: DataFrame, marks: Mapping[int, Marks], buckets: int) -> DataFrame:
    """The sums of all parts by the class of their second (`Marks`)."""
    pairs = fine.where(f.col("table") == PAIR_ROWS)
    return merged(pairs.mapInArrow(partial(spread, marks=marks, buckets=buckets), FINE_SCHEMA), buckets)
