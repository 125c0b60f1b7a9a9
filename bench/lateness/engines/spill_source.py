"""The Spark data source ``rocketmq-timewheel-spill``: messages that a broker of ours has accepted and not finished.

It reads the delay store (``STORE/timewheel/delay``) with the store's own decoders. It changes nothing and takes no
lock, so a broker may run on the store. If the broker removes a file meanwhile, `SpillMovedError` is raised, and the
reading has to be planned again. Rows are those of `DELAY_SCHEMA`:

=============  ==================================================================================================
``stage``      4 waiting here; 5 accepted, but finished here or moved to another file; 3 cancelled (a frame says so)
``offset``     version of the record: only the highest of an id counts
``topic_id``,  only of waiting records that are due at or before the option ``asOfMs``; only the records of these are
requested_ms   read
=============  ==================================================================================================

Options: ``path`` (a store), ``asOfMs``, ``number``, ``storage``, as in `bench.lateness.engines.source`. ``plan``: the
files, as `spill_plan_to_text` writes them. Without it the files are listed when Spark asks, which may be much later.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.lateness.logs.schemas import DELAY_SCHEMA
from bench.lateness.logs.spill_files import SpillFile, SpillMovedError, plan_spill
from bench.lateness.logs.spill_rows import spill_rows
from bench.lateness.logs.storage import storage_for

__all__ = ["SpillMovedError", "SpillSource", "spill_plan_from_text", "spill_plan_to_text"]


def spill_plan_to_text(files: list[SpillFile]) -> str:
    """Write the files of a delay store for the option ``plan``."""
    return json.dumps([{name: _plain(value) for name, value in asdict(file).items()} for file in files])


def _plain(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def spill_plan_from_text(text: str) -> list[SpillFile]:
    """Read the files from the option ``plan``."""
    return [SpillFile(**{name: _bytes(value) for name, value in file.items()}) for file in json.loads(text)]


def _bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class _Settings:
    path: str
    as_of_ms: int
    number: int
    storage: str
    plan: str


class SpillSource(DataSource):
    """Reads journal and runs of the delay store, as a batch only."""

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return "rocketmq-timewheel-spill"

    def schema(self) -> str:
        """The columns."""
        return DELAY_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the present files. Raises ValueError without a path."""
        del schema
        values = {name.lower(): value for name, value in self.options.items()}
        if not values.get("path"):
            raise ValueError("rocketmq-timewheel-spill: no path; give one with .load(STORE)")
        return _Reader(
            _Settings(
                values["path"].rstrip("/"),
                int(values.get("asofms", 0)),
                int(values.get("number", 0)),
                values.get("storage", ""),
                values.get("plan", ""),
            )
        )


class _Part(InputPartition):
    def __init__(self, file: SpillFile | None) -> None:
        super().__init__(None)
        self.file = file


class _Reader(DataSourceReader):
    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """One for each file."""
        settings = self._settings
        if settings.plan:
            files = spill_plan_from_text(settings.plan)
        else:
            files = plan_spill(settings.path, storage_for(settings.path, settings.storage))
        parts: list[InputPartition] = [_Part(file) for file in files]
        return parts or [_Part(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        assert isinstance(partition, _Part)
        if partition.file is None:
            return
        settings = self._settings
        storage = storage_for(settings.path, settings.storage)
        yield from spill_rows(storage, partition.file, settings.number, settings.as_of_ms)
