"""What consumers recorded, as an Arrow table: JSON lines of ``timewheel consume --record``, or Parquet of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["RECEIVED_ROWS", "read_lines", "without_receipts", "write_lines"]

RECEIVED_ROWS = "received.parquet"
_SCHEMA = pa.schema([
    ("offset_message_id", pa.string()),
    ("store_ms", pa.int64()),
    ("received_ms", pa.int64()),
])  # fmt: skip


def read_lines(paths: Sequence[str]) -> pa.Table:
    """Read the files one after the other; lines that are no receipts (a torn last one, say) are passed over.

    Raises ValueError for Parquet of something else, or for a file that cannot be read.
    """
    import pyarrow.parquet as pq

    parts = [_SCHEMA.empty_table()]
    for path in paths:
        if path.rstrip("/").endswith(".parquet"):
            try:
                table = pq.read_table(path).select(_SCHEMA.names).cast(_SCHEMA)
            except (KeyError, ValueError) as error:
                raise ValueError(f"--received {path}: no receipts of `consume --record`: {error}") from error
            parts.append(table.filter(pc.is_valid(table["received_ms"])))
        else:
            parts.append(pa.Table.from_pylist(list(_receipts(path)), _SCHEMA))
    return pa.concat_tables(parts)


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
    """Those of the files in which there is no receipt at all; ValueError as for `read_lines`."""
    tables = [path for path in paths if path.rstrip("/").endswith(".parquet")]
    texts = [path for path in paths if path not in tables and "://" not in path]
    found = [path for path in tables if "://" not in path and not len(read_lines([path]))]
    return found + [path for path in texts if next(_receipts(path), None) is None]


def write_lines(lines: pa.Table, place: Path) -> None:
    """Write them as a folder of Parquet, as Spark does."""
    import pyarrow.parquet as pq

    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    pq.write_table(lines, place / "part-00000.parquet")
