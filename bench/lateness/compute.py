"""From rows to histograms, on Spark: one shuffle by id, one by group, and nothing but groups comes to the driver.

::

    rows (logs, delay stores) ── by (source, id) ──► messages: state, lateness ── by every grouping at once ──► sums
                                                                                     ├► topic, requested, ms_in_second
                                                                                     └► per second: due_in_second,
                                                                                        minute, after_hot

The second step adds up in each task before anything is sent (Spark's partial aggregation), so a second or a topic with
half of all messages costs what any other costs; the join that tells a second how many were due in it is a join of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from bench.lateness.delays import ACCEPTED, CANCELLED, DELIVERED, LIVE, SEEN
from bench.lateness.result import (
    AFTER_HOT,
    AFTER_HOT_MAX_S,
    DUE_IN_SECOND,
    MINUTE,
    MS_IN_SECOND,
    NOT_AFTER_HOT,
    REQUESTED,
    TOPIC,
)

__all__ = ["COUNT_ROWS", "HOT_ROWS", "NOTE_ROWS", "STATES", "Choice", "Sums", "messages", "results", "step_125", "sums"]

COUNT_ROWS, NOTE_ROWS, HOT_ROWS = "counts", "notes", "hot"
"""Beside the names of histograms: what a row of `results` may belong to."""

STATES = ("delivered", "pending", "overdue", "lost", "cancelled", "unknown", "undated", "outside")
HOT_TIMES_MEAN = 5
HOT_AT_LEAST = 100


@dataclass(frozen=True)
class Choice:
    """What of a reading counts: the moment that parts pending from overdue, and bounds of the due time (epoch ms)."""

    as_of_ms: int
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True)
class Sums:
    """Sums over messages, small enough to keep: ``fine`` has one row for each grouping's group and lateness."""

    fine: DataFrame

    def of(self, *columns: str) -> DataFrame:
        """The part of one grouping."""
        marks = {name: int(name not in columns) for name in _GROUPING_MARKS}
        wanted = f.lit(True)
        for name, mark in marks.items():
            wanted = wanted & (f.col(f"no_{name}") == mark)
        return self.fine.where(wanted)


_GROUPING_MARKS = ("topic_id", "requested_from_ms", "ms_in_second", "second", "state", "text")
_GROUPINGS = (
    ("source", "topic_id", "kind", "level", "lateness_ms", "censored"),
    ("source", "requested_from_ms", "lateness_ms", "censored"),
    ("source", "ms_in_second", "lateness_ms", "censored"),
    ("source", "second", "lateness_ms", "censored"),
    ("source", "state", "early"),
    ("source", "stage", "topic_id", "text"),
)


def step_125(value: Column) -> Column:
    """The lower bound of the class 0, 1, 2, 5, 10, 20, 50, … that a whole number belongs to."""
    decade = f.pow(f.lit(10.0), f.floor(f.log10(f.greatest(value, f.lit(1)).cast("double")))).cast("bigint")
    lead = f.floor(value / decade)
    step = f.when(lead >= 5, 5).when(lead >= 2, 2).otherwise(1)
    return f.when(value < 1, f.lit(0).cast("bigint")).otherwise(decade * step).cast("bigint")


def messages(rows: DataFrame, choice: Choice, given_back: Sequence[int] = ()) -> DataFrame:
    """One row for each message (and each note): its state, its lateness, and how often it was repeated.

    ``given_back`` are the numbers of sources in which a finished message may have left no trace.
    """
    stage = f.col("stage")
    delivery = stage == DELIVERED
    first = f.min_by("store_ms", f.when(delivery, f.col("offset")))
    grouped = rows.groupBy("source", "id_hi", "id_lo", "text").agg(
        f.max("stage").alias("stage"),
        f.sum(delivery.cast("int")).alias("deliveries"),
        f.max((stage == CANCELLED).cast("int")).alias("cancels"),
        f.max(stage.isin(ACCEPTED, LIVE).cast("int")).alias("waits"),
        f.max((stage.isin(SEEN)).cast("int")).alias("seen"),
        first.alias("store_ms"),
        f.min(f.when(delivery, f.col("offset"))).alias("offset"),
        f.min_by("due_ms", f.when(delivery, f.col("offset"))).alias("delivered_due_ms"),
        f.max_by("due_ms", f.when(stage == LIVE, f.col("offset"))).alias("live_due_ms"),
        f.min_by("due_ms", f.when(stage.isin(ACCEPTED, SEEN), f.col("offset"))).alias("accepted_due_ms"),
        f.max("kind").alias("kind"),
        f.max("level").alias("level"),
        f.max("topic_id").alias("topic_id"),
        f.max("requested_ms").alias("requested_ms"),
    )
    return _with_state(grouped, choice, given_back)


def _with_state(grouped: DataFrame, choice: Choice, given_back: Sequence[int]) -> DataFrame:
    due = f.coalesce("delivered_due_ms", "live_due_ms", "accepted_due_ms")
    came = f.col("deliveries") > 0
    late_now = f.col("due_ms") <= choice.as_of_ms
    state = (
        f.when(f.col("text").isNotNull(), f.lit(None))
        .when(f.col("due_ms").isNotNull() & ~_chosen(choice), "outside")
        .when(came & f.col("due_ms").isNull(), "undated")
        .when(came, "delivered")
        .when(f.col("cancels") > 0, "cancelled")
        .when((f.col("waits") > 0) & f.col("due_ms").isNull(), "undated")
        .when((f.col("waits") > 0) & late_now, "overdue")
        .when(f.col("waits") > 0, "pending")
        .when(f.col("source").isin(*given_back) & (f.col("id_hi") == 0), "unknown")
        .otherwise("lost")
    )
    dated = grouped.withColumn("due_ms", due).withColumn("state", state)
    lateness = f.when(f.col("state") == "delivered", f.col("store_ms") - f.col("due_ms")).when(
        f.col("state") == "overdue", f.lit(choice.as_of_ms) - f.col("due_ms")
    )
    # In a whole number of seconds and below zero, too: pmod and floor agree there.
    return dated.select(
        "source",
        "stage",
        "state",
        "id_hi",
        "id_lo",
        "offset",
        "store_ms",
        "due_ms",
        "kind",
        "level",
        "topic_id",
        "text",
        "requested_ms",
        lateness.alias("lateness_ms"),
        (f.col("state") == "overdue").alias("censored"),
        f.greatest(f.col("deliveries") - 1, f.lit(0)).alias("repeats"),
    )


def _chosen(choice: Choice) -> Column:
    chosen = f.lit(True)
    if choice.since_ms is not None:
        chosen = chosen & (f.col("due_ms") >= choice.since_ms)
    if choice.until_ms is not None:
        chosen = chosen & (f.col("due_ms") < choice.until_ms)
    return chosen


def sums(found: DataFrame) -> Sums:
    """Add up every grouping in one pass over the messages. ``found`` is what `messages` answers."""
    prepared = found.select(
        "source",
        "stage",
        "state",
        "text",
        "topic_id",
        "kind",
        "level",
        step_125(f.col("requested_ms")).alias("requested_from_ms"),
        f.pmod("due_ms", f.lit(1000)).cast("int").alias("ms_in_second"),
        f.floor(f.col("due_ms") / 1000).cast("bigint").alias("second"),
        "lateness_ms",
        "censored",
        (f.col("lateness_ms") < 0).alias("early"),
        "repeats",
    )
    names = list(dict.fromkeys(name for grouping in _GROUPINGS for name in grouping))
    columns = [[f.col(name) for name in grouping] for grouping in _GROUPINGS]
    fine = prepared.groupingSets(columns, *[f.col(name) for name in names]).agg(
        f.count(f.lit(1)).alias("count"),
        f.sum("repeats").alias("repeated"),
        *[f.grouping(name).cast("int").alias(f"no_{name}") for name in _GROUPING_MARKS],
    )
    return Sums(fine)


def results(all_sums: Sums) -> DataFrame:
    """Every histogram, the counts by state, the notes and the limits of hot seconds in one table, so in one pass.

    `bench.lateness.tables` takes it apart: ``table`` says what a row belongs to, ``key`` and ``text`` are its group.
    """
    fine = all_sums.fine
    seconds = all_sums.of("second").where(f.col("lateness_ms").isNotNull())
    dues = seconds.groupBy("source", "second").agg(f.sum("count").alias("dues"))
    limits = dues.groupBy("source").agg(_hot_from().alias("hot_from"))
    marked = _marked_seconds(fine, dues, limits)
    parts = [
        ("topic_id", TOPIC, f.lit(None)),
        ("requested_from_ms", REQUESTED, f.col("requested_from_ms")),
        ("ms_in_second", MS_IN_SECOND, f.col("ms_in_second")),
        ("state", COUNT_ROWS, f.col("early").cast("int")),
        ("text", NOTE_ROWS, f.col("stage")),  # the last: notes are grouped by topic, too
    ]
    entries = f.array(*[_entry(name, key) for name, key in _OF_SECOND])
    for column, name, key in parts:
        entries = f.when(f.col(f"no_{column}") == 0, f.array(_entry(name, key))).otherwise(entries)
    wanted = f.col("lateness_ms").isNotNull() | f.col("state").isNotNull() | f.col("text").isNotNull()
    text = f.coalesce("state", "text").alias("text")
    rows = marked.where(wanted).select("source", f.explode(entries).alias("entry"), *_CARRIED, text, *_SUMMED)
    keys = ("source", "entry.table", "entry.key", *_CARRIED, "text")
    added = rows.groupBy(*keys).agg(f.sum("count").alias("count"), f.sum("repeated").alias("repeated"))
    hot = limits.select("source", f.lit(HOT_ROWS).alias("table"), f.col("hot_from").alias("key"))
    return added.unionByName(hot, allowMissingColumns=True)


_CARRIED = ("topic_id", "kind", "level", "lateness_ms", "censored")
_SUMMED = ("count", "repeated")
_OF_SECOND = (
    (MINUTE, f"cast(floor(second / 60) as bigint) * {60_000}"),
    (DUE_IN_SECOND, "due_in_second_from"),
    (AFTER_HOT, "after_hot_s"),
)


def _entry(table: str, key: Column | str) -> Column:
    value = f.expr(key) if isinstance(key, str) else key
    return f.struct(f.lit(table).alias("table"), value.cast("bigint").alias("key"))


def _hot_from() -> Column:
    mean = f.sum("dues") / f.count(f.lit(1))
    return f.greatest(f.ceil(mean * HOT_TIMES_MEAN), f.lit(HOT_AT_LEAST)).cast("bigint")


def _marked_seconds(fine: DataFrame, dues: DataFrame, limits: DataFrame) -> DataFrame:
    """Sums, those by second each with the class of its second and the time since the last hot one."""
    hot = dues.join(limits, "source").where(f.col("dues") >= f.col("hot_from"))
    after = hot.select("source", "second", f.explode(f.sequence(f.lit(0), f.lit(AFTER_HOT_MAX_S))).alias("after_hot_s"))
    nearest = (
        after.withColumn("second", f.col("second") + f.col("after_hot_s"))
        .groupBy("source", "second")
        .agg(f.min("after_hot_s").alias("after_hot_s"))
    )
    return (
        fine.join(dues, ["source", "second"], "left")
        .join(nearest, ["source", "second"], "left")
        .withColumn("due_in_second_from", step_125(f.col("dues")))
        .withColumn("after_hot_s", f.coalesce("after_hot_s", f.lit(NOT_AFTER_HOT)).cast("int"))
    )
