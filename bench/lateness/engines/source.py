"""The Spark data source ``rocketmq-commitlog``: CommitLog segments, ours and Apache's, as rows.

::

    spark.dataSource.register(CommitLogSource)
    spark.read.format("rocketmq-commitlog").load("/var/lib/broker/store")

==================  ===========  ==============================================================================
option              default
==================  ===========  ==============================================================================
``path``                         a store, its ``commitlog`` folder, or a URI of either
``rows``            ``records``  ``records``: every record (`RECORD_SCHEMA`); ``delays``: `DELAY_SCHEMA`, see there
``splitBytes``      33554432     bytes of a segment for one task
``checkCrc``        false        also check every body's CRC-32; a wrong one is damage
``failOnDamage``    false        raise at the first damaged region instead of giving a row for it
``levels``          Apache's     delays of the fixed levels, as ``messageDelayLevel`` writes them
``storage``                      JSON of options for the file system behind a URI (fsspec)
==================  ===========  ==============================================================================

A damaged region is a row, too: ``damage``, file, offset and size are set, all other columns are null.

`SparkEngine` uses the source only to follow a log: a batch has shares of its own (`bench.lateness.engines.placed`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bench.lateness.logs.planning import Split, whole_end
from bench.lateness.logs.reading import (
    APACHE_LEVELS,
    SCHEMAS,
    DamagedLogError,
    Settings,
    Task,
    batch_tasks,
    parse_levels,
    read_task,
)
from bench.lateness.logs.records import LogSegment
from bench.lateness.logs.storage import storage_for

__all__ = ["APACHE_LEVELS", "CommitLogSource", "DamagedLogError", "parse_levels"]


class CommitLogSource(DataSource):
    """Reads the segments of a CommitLog; batch and streaming."""

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return "rocketmq-commitlog"

    def schema(self) -> str:
        """The columns, by the option ``rows``."""
        return SCHEMAS[Settings.of(self.options).rows]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the present log. Raises ValueError for wrong options."""
        del schema
        return _BatchReader(Settings.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader that follows the growing log. Raises ValueError for wrong options."""
        del schema
        return _StreamReader(Settings.of(self.options))


class _Part(InputPartition):
    """One task, in the form that Spark passes to an executor."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


class _BatchReader(DataSourceReader):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """One for each split, and one for the missing segments."""
        return [_Part(task) for task in batch_tasks(self._settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        assert isinstance(partition, _Part)
        yield from read_task(self._settings, partition.task)


class _StreamReader(DataSourceStreamReader):
    """Offsets are CommitLog positions behind whole records."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._end: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """The begin of the log."""
        return {"position": self._settings.log_plan().begin}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """The position behind the last whole record that is in the log now."""
        plan = self._settings.log_plan()
        storage = storage_for(plan.folder, self._settings.storage)
        for segment in reversed(plan.segments):
            begin = 0
            if self._end is not None and segment.base <= self._end < segment.base + segment.size:
                begin = self._end - segment.base
            file = storage.open(segment.path)
            try:
                end = segment.base + whole_end(file, segment, begin)
            finally:
                file.close()
            if end > segment.base or begin:
                self._end = end
                return {"position": end}
        self._end = plan.begin
        return {"position": plan.begin}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Splits of the log between two positions."""
        plan = self._settings.log_plan()
        reading = self._settings.reading(plan.folder)
        tasks: list[Task] = []
        for segment in plan.segments:
            first = max(0, start["position"] - segment.base)
            stop = min(segment.end, end["position"] - segment.base)
            for begin in range(first, stop, self._settings.split_bytes):
                limit = min(begin + self._settings.split_bytes, stop)
                seen = LogSegment(segment.path, segment.base, segment.size, stop, segment.last)
                tasks.append(Task(Split(seen, begin, limit), reading, aligned=begin == first))
        return [_Part(task) for task in tasks or [Task(None, reading)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        assert isinstance(partition, _Part)
        yield from read_task(self._settings, partition.task)
