"""What consumers saw: the JSON lines of ``timewheel consume --record``, joined with the deliveries in the logs.

A received message names its place in the log (the last 16 digits of ``offset_message_id``) and its time of storage;
both together lead to the delivery, and with it to source, due time and groups. What leads nowhere (another broker, a
log that was cut) is counted as unmatched and stands in no histogram. Files whose name ends in ``.parquet`` have the
columns of the lines; a run makes one from the lines that it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

__all__ = ["Received", "read_received", "write_received"]

_SCHEMA = "offset_message_id string, store_ms bigint, received_ms bigint"
_COLUMNS = ("offset_message_id", "store_ms", "received_ms")
_HEX_DIGITS = 16


@dataclass(frozen=True)
class Received:
    """``matched``: one row for each message that was received, as `bench.lateness.compute.messages` has them, with the
    end-to-end lateness; ``repeated`` by source number; ``unmatched``: receipts that lead to no delivery."""

    matched: DataFrame
    repeated: dict[int, int]
    unmatched: int


def read_received(spark: SparkSession, paths: Sequence[str], found: DataFrame, sources: int) -> Received:
    """Read the files and join them with the messages ``found``; each message's first receipt counts."""
    lines = _lines(spark, paths)
    place = f.conv(f.substring("offset_message_id", -_HEX_DIGITS, _HEX_DIGITS), 16, 10).cast("bigint")
    receipts = (
        lines.where(f.col("received_ms").isNotNull())
        .select(place.alias("offset"), "store_ms", "received_ms")
        .groupBy("offset", "store_ms")
        .agg(f.min("received_ms").alias("received_ms"), f.count(f.lit(1)).alias("times"))
    )
    delivered = found.where(f.col("state") == "delivered")
    joined = receipts.join(delivered, ["offset", "store_ms"], "left").localCheckpoint()
    matched = joined.where(f.col("source").isNotNull())
    more = matched.groupBy("source").agg(f.sum(f.col("times") - 1).alias("more")).collect()
    repeated = dict.fromkeys(range(sources), 0) | {row["source"]: int(row["more"]) for row in more}
    unmatched = joined.where(f.col("source").isNull()).agg(f.sum("times")).collect()[0][0]
    late = matched.withColumn("lateness_ms", f.col("received_ms") - f.col("due_ms")).drop("received_ms", "times")
    return Received(late, repeated, int(unmatched or 0))


def _lines(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    tables = [path for path in paths if path.rstrip("/").endswith(".parquet")]
    texts = [path for path in paths if path not in tables]
    parts = [spark.read.schema(_SCHEMA).json(texts)] if texts else []
    parts += [spark.read.parquet(path).select(*_COLUMNS) for path in tables]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part)
    return rows


def write_received(spark: SparkSession, paths: Sequence[str], place: str) -> None:
    """Write what the files have as a folder of Parquet: smaller and faster to read than the lines."""
    _lines(spark, paths).where(f.col("received_ms").isNotNull()).write.mode("overwrite").parquet(place)
