"""Joins receipts of consumers (the JSON lines of ``timewheel consume --record``) with the deliveries in the logs.

A receipt names the broker, the message's place in that broker's log (``offset_message_id``: address and port, then 16
digits of CommitLog offset), and its time of storage. These three identify the delivery, and so source, due time and
groups. Offsets alone are not enough: the logs of two brokers have the same ones. The addresses of a source are the
store hosts in its records.

A receipt without a delivery (another broker, a log that was cut) is counted as unmatched and is in no histogram. The
same holds for a receipt that matches several sources, such as copies of one log; it is also counted as ambiguous. Files
whose name ends in ``.parquet`` have the same columns as the lines; each run makes one from its receipts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.lateness.logs.receipt_lines import RECEIVED_ROWS

__all__ = ["RECEIVED_ROWS", "Received", "read_received", "write_received"]

_SCHEMA = "offset_message_id string, store_ms bigint, received_ms bigint"
_COLUMNS = ("offset_message_id", "store_ms", "received_ms")
_HEX_DIGITS = 16


@dataclass(frozen=True)
class Received:
    """``matched``: one row for each received message, as in `bench.lateness.engines.compute.messages`, but with the
    end-to-end lateness; ``repeated`` by source number; ``unmatched``: the number of receipts without a delivery;
    ``ambiguous``: those of them that match several sources."""

    matched: DataFrame
    repeated: dict[int, int]
    unmatched: int
    ambiguous: int


def read_received(
    spark: SparkSession, paths: Sequence[str], found: DataFrame, hosts: Mapping[int, Iterable[str]]
) -> Received:
    """Read the files and join them with the messages ``found``; each message's first receipt counts.

    ``hosts``: the addresses in the records of each source, by number, in the hexadecimal digits of message ids.
    """
    lines = _lines(spark, paths).where(f.col("received_ms").isNotNull())
    digits = f.length("offset_message_id") - _HEX_DIGITS
    place = f.conv(f.substring("offset_message_id", -_HEX_DIGITS, _HEX_DIGITS), 16, 10).cast("bigint")
    host = f.upper(f.col("offset_message_id").substr(f.lit(1), digits))
    receipts = (
        lines.select(host.alias("host"), place.alias("offset"), "store_ms", "received_ms")
        .groupBy("host", "offset", "store_ms")
        .agg(f.min("received_ms").alias("received_ms"), f.count(f.lit(1)).alias("times"))
    )
    pairs = [(host, number) for number, some in hosts.items() for host in sorted(some)]
    known = spark.createDataFrame(pairs, "host string, source int")
    delivered = found.where(f.col("state") == "delivered")
    joined = receipts.join(known, "host").join(delivered, ["source", "offset", "store_ms"])
    key = ["host", "offset", "store_ms"]
    ways = joined.groupBy(*key).agg(f.count(f.lit(1)).alias("sources"), f.first("times").alias("all")).persist()
    matched = joined.join(ways.where(f.col("sources") == 1).drop("all"), key).persist()
    more = matched.groupBy("source").agg(f.sum(f.col("times") - 1).alias("more"), f.sum("times").alias("all")).collect()
    repeated = dict.fromkeys(hosts, 0) | {row["source"]: int(row["more"]) for row in more}
    unmatched = lines.count() - sum(int(row["all"]) for row in more)
    several = ways.where(f.col("sources") > 1).agg(f.coalesce(f.sum("all"), f.lit(0)).alias("all")).collect()
    ambiguous = sum(int(row["all"]) for row in several)
    late = matched.withColumn("lateness_ms", f.col("received_ms") - f.col("due_ms"))
    return Received(late.drop("received_ms", "times", "host", "sources"), repeated, unmatched, ambiguous)


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
    """Write the receipts as a folder of Parquet, which is smaller and faster to read than the lines."""
    _lines(spark, paths).where(f.col("received_ms").isNotNull()).write.mode("overwrite").parquet(place)
