"""Receipts of consumers as an Arrow table: JSON lines of ``timewheel consume --record``, or Parquet of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from bench.lateness.logs.storage import local_path

__all__ = ["RECEIVED_ROWS", "read_lines", "without_receipts", "write_lines"]

RECEIVED_ROWS = "received.parquet"
_SCHEMA = pa.schema([
    ("offset_message_id", pa.string()),
    ("store_ms", pa.int64()),
    ("received_ms", pa.int64()),
])  # fmt: skip


def read_lines(paths: Sequence[str]) -> pa.Table:
    """Read the files one after the other; lines that are no receipts, such as a torn last one, are ignored.

    Raises ValueError for Parquet without the columns of receipts, or for a file that cannot be read.
    """
    parts = [_SCHEMA.empty_table()]
    for path in paths:
        if _is_table(path):
            parts.append(_rows(path))
        else:
            parts.append(pa.Table.from_pylist(list(_receipts(path)), _SCHEMA))
    return pa.concat_tables(parts)


def _is_table(path: str) -> bool:
    return path.rstrip("/").endswith(".parquet")


def _rows(path: str, most: int | None = None) -> pa.Table:
    """The receipts in Parquet: all, or the first ``most``."""
    import pyarrow.dataset as ds

    try:
        rows = ds.dataset(path, format="parquet").scanner(
            columns=_SCHEMA.names, filter=pc.is_valid(pc.field("received_ms"))
        )
        return (rows.to_table() if most is None else rows.head(most)).cast(_SCHEMA)
    except (KeyError, ValueError) as error:
        raise ValueError(f"--received {path}: no receipts of `consume --record`: {error}") from error


def _receipts(path: str) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in _lines_of(path, file):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            found = {name: value.get(name) if isinstance(value, dict) else None for name in _SCHEMA.names}
            times = (found["store_ms"], found["received_ms"])
            if isinstance(found["offset_message_id"], str) and all(
                isinstance(time_ms, int) and abs(time_ms) < 1 << 63 for time_ms in times
            ):
                yield found


def _lines_of(path: str, file: TextIO) -> Iterator[str]:
    try:
        yield from file
    except OSError as error:
        raise ValueError(f"--received {path}: it cannot be read ({error.strerror})") from None


def without_receipts(paths: Sequence[str]) -> list[str]:
    """The files of this machine without a single receipt. Raises ValueError like `read_lines`.

    A file is read up to its first receipt only, because the whole file may not fit into memory.
    """
    own = [path for path in paths if local_path(path) is not None]
    return [path for path in own if not (len(_rows(path, 1)) if _is_table(path) else next(_receipts(path), None))]


def write_lines(lines: pa.Table, place: Path) -> None:
    """Write receipts as a folder of Parquet, as Spark does. Raises OSError."""
    import pyarrow.parquet as pq

    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    pq.write_table(lines, place / "part-00000.parquet")
