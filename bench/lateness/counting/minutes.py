"""The table by minute, its old cells made longer (`bench.lateness.counting.cells`), so that it does not grow for ever.

It is done with sums, when a result or a state is made of them, and to rows that were made coarser before, too. A late
delivery adds to the cell in which its minute lies.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.lateness.counting.cells import MINUTE_S, cell_widths, last_minute
from bench.lateness.counting.grouping import Longs
from bench.lateness.counting.merging import grouped
from bench.lateness.counting.sums import SUM_COLUMNS, decode, sum_rows
from bench.lateness.logs.schemas import FINE_SCHEMA, arrow_schema
from bench.lateness.results.result import MINUTE

__all__ = ["coarser", "last_minute_of"]

_FINE = arrow_schema(FINE_SCHEMA)


def _minutes(table: pa.Table) -> dict[int, list[dict[str, Longs]]]:
    """The sums by minute of each source."""
    found: dict[int, list[dict[str, Longs]]] = {}
    rows = table.filter(pc.equal(table["table"], MINUTE))
    for source, packed in zip(rows["source"].to_pylist(), rows["packed"].to_pylist(), strict=True):
        found.setdefault(source, []).append(decode(packed))
    return found


def last_minute_of(table: pa.Table, as_of_ms: int) -> int | None:
    """`last_minute` of all sources of a table of `FINE_SCHEMA`."""
    lasts = [last_minute(one["key"], as_of_ms) for some in _minutes(table).values() for one in some]
    return max((last for last in lasts if last is not None), default=None)


def coarser(table: pa.Table, last_ms: int | None) -> pa.Table:
    """A table of `FINE_SCHEMA` with its sums by minute in the cells that they have where it ends with ``last_ms``."""
    found = {source: _joined(some) for source, some in _minutes(table).items()}
    widths = {source: cell_widths(sums["key"], last_ms) for source, sums in found.items()}
    if not any((some > MINUTE_S * 1_000).any() for some in widths.values()):
        return table
    rows = [sum_rows(source, MINUTE, _coarser(sums, widths[source])) for source, sums in sorted(found.items())]
    others = table.filter(pc.invert(pc.equal(table["table"], MINUTE)))
    return pa.concat_tables([others, pa.Table.from_batches(rows, _FINE)])


def _joined(parts: list[dict[str, Longs]]) -> dict[str, Longs]:
    return {name: np.concatenate([part[name] for part in parts]) for name in SUM_COLUMNS}


def _coarser(sums: dict[str, Longs], widths: NDArray[np.int64]) -> dict[str, Longs]:
    """Only old rows are grouped anew: the others have cells of their own, behind these."""
    old = widths > MINUTE_S * 1_000
    if not old.any():
        return sums
    mine = {name: column[old] for name, column in sums.items()}
    found = grouped([mine | {"key": mine["key"] // widths[old] * widths[old]}])
    return {name: np.concatenate([found[name], column[~old]]) for name, column in sums.items()}
