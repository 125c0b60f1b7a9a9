"""Sorts the rows of a table as a result has them: by all columns except the count."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["in_order"]


def in_order(table: pa.Table) -> pa.Table:
    """The table in ascending order. A table that is in order, as sums of one source nearly always are, is not sorted.

    The check costs a tenth of a sort, and an outage has millions of rows.
    """
    names = [name for name in table.column_names if name != "count"]
    if _is_in_order(table, names):
        return table
    return table.sort_by([(name, "ascending") for name in names])


def _is_in_order(table: pa.Table, names: list[str]) -> bool:
    if len(table) < 2:
        return True
    same: Any = True
    for name in names:
        column = table[name].combine_chunks()
        if column.null_count:
            return False  # a sort puts them last
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        before, after = column[:-1], column[1:]
        if pc.any(pc.and_(same, pc.less(after, before))).as_py():
            return False
        same = pc.and_(same, pc.equal(after, before))
    return True
