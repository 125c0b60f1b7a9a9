"""From rows to histograms, on Spark: rows meet by id in one task, sums by group, and only groups come to the driver.

::

    logs, delay stores ── packed by id ──► parts: state, lateness, sums ── by group ──► sums of all
                          (one shuffle)                                  (another)     ├► topic, requested, ms_in_second
                                                                                       └► per second: due_in_second,
                                                                                          minute, after_hot

Parts are made by a hash of the id, and each adds up before anything leaves it, so a second or a topic with half of all
messages costs what any other costs; the join that tells a second how many were due in it is a join of sums.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from bench.lateness.packing import pack
from bench.lateness.result import AFTER_HOT, AFTER_HOT_MAX_S, DUE_IN_SECOND, MINUTE, NOT_AFTER_HOT
from bench.lateness.schemas import FINE_SCHEMA, MESSAGE_SCHEMA, PACKED_SCHEMA
from bench.lateness.settle import SECOND_ROWS, Choice, add_up, settle, settle_and_add_up
from bench.lateness.sums import HOT_AT_LEAST, HOT_ROWS, HOT_TIMES_MEAN, KEYS

__all__ = ["messages", "packed", "results", "step_125", "sums", "sums_of_messages"]


def step_125(value: Column) -> Column:
    """The lower bound of the class 0, 1, 2, 5, 10, 20, 50, … that a whole number belongs to."""
    decade = f.pow(f.lit(10.0), f.floor(f.log10(f.greatest(value, f.lit(1)).cast("double")))).cast("bigint")
    lead = f.floor(value / decade)
    step = f.when(lead >= 5, 5).when(lead >= 2, 2).otherwise(1)
    return f.when(value < 1, f.lit(0).cast("bigint")).otherwise(decade * step).cast("bigint")


def packed(rows: DataFrame, parts: int) -> DataFrame:
    """Pack rows that are there as rows; a log is read in this form right away (``rows=packed``)."""
    return rows.mapInArrow(partial(pack, parts=parts), PACKED_SCHEMA)


def messages(rows: DataFrame, choice: Choice, parts: int) -> DataFrame:
    """One row for each message (and each note): its state, its lateness, and how often it was repeated."""
    return rows.repartitionById(parts, "part").mapInArrow(partial(settle, choice=choice), MESSAGE_SCHEMA)


def sums(rows: DataFrame, choice: Choice, parts: int) -> DataFrame:
    """Add up every grouping of all messages; ``rows`` are packed ones."""
    return _added(
        rows.repartitionById(parts, "part").mapInArrow(partial(settle_and_add_up, choice=choice), FINE_SCHEMA)
    )


def sums_of_messages(found: DataFrame) -> DataFrame:
    """The same, of what `messages` answers."""
    return _added(found.mapInArrow(add_up, FINE_SCHEMA))


def _added(parts: DataFrame) -> DataFrame:
    return parts.groupBy(*KEYS).agg(f.sum("count").alias("count"), f.sum("repeated").alias("repeated"))


_SUMMED = ("count", "repeated")
_OF_SECOND = (
    (MINUTE, f"cast(floor(key / 60) as bigint) * {60_000}"),
    (DUE_IN_SECOND, "due_in_second_from"),
    (AFTER_HOT, "after_hot_s"),
)


def results(fine: DataFrame) -> DataFrame:
    """Every histogram, the counts by state, the notes and the limits of hot seconds in one table, so in one pass.

    `bench.lateness.tables` takes it apart: ``table`` says what a row belongs to, ``key`` and ``text`` are its group.
    """
    seconds = fine.where(f.col("table") == SECOND_ROWS)
    dues = seconds.groupBy("source", "key").agg(f.sum("count").alias("dues"))
    limits = dues.groupBy("source").agg(_hot_from().alias("hot_from"))
    entries = f.array(*[_entry(name, key) for name, key in _OF_SECOND])
    kept = [name for name in KEYS if name not in ("table", "key")]
    spread = _marked_seconds(seconds, dues, limits).select(f.explode(entries).alias("entry"), *kept, *_SUMMED)
    by_second = _added(spread.select("entry.table", "entry.key", *kept, *_SUMMED))
    hot = limits.select("source", f.lit(HOT_ROWS).alias("table"), f.col("hot_from").alias("key"))
    others = fine.where(f.col("table") != SECOND_ROWS)
    return others.unionByName(by_second).unionByName(hot, allowMissingColumns=True)


def _entry(table: str, key: str) -> Column:
    return f.struct(f.lit(table).alias("table"), f.expr(key).cast("bigint").alias("key"))


def _hot_from() -> Column:
    mean = f.sum("dues") / f.count(f.lit(1))
    return f.greatest(f.ceil(mean * HOT_TIMES_MEAN), f.lit(HOT_AT_LEAST)).cast("bigint")


def _marked_seconds(seconds: DataFrame, dues: DataFrame, limits: DataFrame) -> DataFrame:
    """Sums by second, each with the class of its second and the time since the last hot one."""
    hot = dues.join(limits, "source").where(f.col("dues") >= f.col("hot_from"))
    after = hot.select("source", "key", f.explode(f.sequence(f.lit(0), f.lit(AFTER_HOT_MAX_S))).alias("after_hot_s"))
    nearest = (
        after.withColumn("key", f.col("key") + f.col("after_hot_s"))
        .groupBy("source", "key")
        .agg(f.min("after_hot_s").alias("after_hot_s"))
    )
    return (
        seconds.join(dues, ["source", "key"], "left")
        .join(nearest, ["source", "key"], "left")
        .withColumn("due_in_second_from", step_125(f.col("dues")))
        .withColumn("after_hot_s", f.coalesce("after_hot_s", f.lit(NOT_AFTER_HOT)).cast("int"))
    )
