"""The rows of a table in the order in which a result has them: by all columns but the count."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["in_order"]


def in_order(table: pa.Table) -> pa.Table:
    """The table in ascending order; as it is where that is its order, which sums of one source nearly always have.

    Looking costs a tenth of sorting, and an outage has millions of rows.
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
