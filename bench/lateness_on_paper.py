"""Estimates the cost of a lateness report over very many records, from constants that a test measures.

::

    python -m bench.lateness_on_paper --records 100000000000 --executors 100

No log of 10^11 records was measured. But small logs show what matters: bytes of a row, memory of a row while it is
settled, processor time of a record before and after the shuffle. `tests/bench/test_lateness_scale.py` measures these,
and fails if one of them exceeds its constant here. The rates of disk and network are assumptions.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from bench.lateness.engines.job import split_bytes_for
from bench.lateness.logs.packing import ROW_BYTES, SETTLE_BYTES_A_ROW, parts_for

__all__ = ["READ_US", "SETTLE_US", "Cluster", "Estimate", "estimate", "main", "table"]

READ_US = 2.0
"""Processor time of reading, decoding and packing a record, in microseconds, Python's start not included."""
SETTLE_US = 1.0
"""The same of settling and adding up."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that does the work. Its rates (bytes a second of one executor) are assumptions, not measured."""

    executors: int = 100
    cores: int = 4
    task_bytes: int = 4 * _GIB
    log_rate: int = 200_000_000
    shuffle_rate: int = 100_000_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of one run; times in seconds."""

    records: int
    log_bytes: int
    splits: int
    parts: int
    shuffle_bytes: int
    piece_bytes: int
    """What one task sends to one part."""
    task_rows: int
    task_bytes: int
    read_s: float
    shuffle_s: float
    settle_s: float

    @property
    def total_s(self) -> float:
        """The time of all steps, one after the other."""
        return self.read_s + self.shuffle_s + self.settle_s


def estimate(records: int, record_bytes: int = 300, cluster: Cluster | None = None) -> Estimate:
    """Estimate a run in which every record belongs to a delayed message: the worst case.

    >>> found = estimate(10**11)
    >>> found.parts, found.splits, found.shuffle_bytes
    (38199, 27940, 6600000000000)
    """
    where = cluster or Cluster()
    log_bytes = records * record_bytes
    parts = parts_for(log_bytes, where.task_bytes)
    split = split_bytes_for(log_bytes)
    splits = -(-log_bytes // split)
    shuffle = records * ROW_BYTES
    rows = -(-records // parts)
    tasks = where.executors * where.cores
    reading = max(log_bytes / where.log_rate / where.executors, records * READ_US / 1e6 / tasks)
    return Estimate(
        records,
        log_bytes,
        splits,
        parts,
        shuffle,
        shuffle // (splits * parts),
        rows,
        rows * SETTLE_BYTES_A_ROW,
        reading,
        2 * shuffle / where.shuffle_rate / where.executors,
        records * SETTLE_US / 1e6 / tasks,
    )


def table(sizes: list[int], cluster: Cluster) -> str:
    """The figures as a table of Markdown, a column for each number of records."""
    found = [estimate(size, cluster=cluster) for size in sizes]
    lines = [
        ("records", [f"{one.records:,}" for one in found]),
        ("log", [f"{one.log_bytes / 1e12:,.2f} TB" for one in found]),
        ("tasks that read", [f"{one.splits:,}" for one in found]),
        ("parts", [f"{one.parts:,}" for one in found]),
        ("bytes through the shuffle", [f"{one.shuffle_bytes / 1e12:,.3f} TB" for one in found]),
        ("of one task for one part", [f"{one.piece_bytes / 1e3:,.1f} kB" for one in found]),
        ("rows of a part", [f"{one.task_rows:,}" for one in found]),
        ("memory of a task", [f"{one.task_bytes / _GIB:,.2f} GiB" for one in found]),
        ("reading", [f"{one.read_s:,.0f} s" for one in found]),
        ("shuffle, written and read", [f"{one.shuffle_s:,.0f} s" for one in found]),
        ("settling and adding up", [f"{one.settle_s:,.0f} s" for one in found]),
        ("together", [f"{one.total_s / 60:,.0f} min" for one in found]),
    ]
    head, *rest = [f"| {name} | {' | '.join(values)} |" for name, values in lines]
    return "\n".join([head, "|---" * (len(sizes) + 1) + "|", *rest])


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.lateness_on_paper", description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[10**9, 10**10, 10**11])
    parser.add_argument("--executors", type=int, default=100)
    parser.add_argument("--cores", type=int, default=4)
    parser.add_argument("--task-gib", type=float, default=4)
    options = parser.parse_args(arguments)
    cluster = Cluster(options.executors, options.cores, int(options.task_gib * _GIB))
    print(table(options.records, cluster))
    return 0


if __name__ == "__main__":
    sys.exit(main())
