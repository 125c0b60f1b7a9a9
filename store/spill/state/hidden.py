"""Hidden rows: pending records of a run that no scan finds, because their column page can be neither read nor rebuilt.

They are pending all the same, so whoever goes over all messages of a range must say that it has not seen these. What
they are (topic, tag) cannot be told. Their ids and due times can: the id pages of the run have them, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from store.disk.errors import StoreError
from store.spill.rows.model import Key
from store.spill.rows.page_cache import RunPageCache
from store.spill.runs.run import Run

if TYPE_CHECKING:
    from store.spill.state.spill_state import SpillState

__all__ = ["HiddenRows", "frozen_run", "hidden_keys", "hidden_rows"]

_CACHE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenRows:
    """Pending records of a run in unreadable pages; ``file`` is the name of the run's file.

    ``keys`` are theirs, in order. ``unknown`` more are on id pages that are damaged as well: of those not even the keys
    are known.
    """

    file: str
    keys: list[Key]
    unknown: int


def hidden_rows(state: SpillState, from_ms: int, to_ms: int) -> list[HiddenRows]:
    """The hidden rows that scans have met so far, of each run with some and with records due from ... to ``to_ms``.

    Any thread. Reads all id pages of these runs, 24 bytes for each of their records.
    """
    runs = [run for run in state.runs if run.shape.due_min <= to_ms and run.shape.due_max >= from_ms]
    return [rows for run in runs if run.hides for rows in _of_run(state, run)]


def frozen_run(run: Run) -> Run:
    """A twin with the done-set and the damage as they are now."""
    twin = run.twin(RunPageCache(_CACHE_BYTES))
    twin.done, twin.live, twin.damage = run.done.copy(), run.live, dict(run.damage)
    return twin


def hidden_keys(run: Run, pages: list[int]) -> tuple[list[Key], int]:
    """The keys of what is pending on these column pages, in order, and how many more there are without a known key."""
    hidden = np.zeros(run.shape.count, np.bool_)
    for number in pages:
        hidden[number * run.rows_per_page : (number + 1) * run.rows_per_page] = True
    ordinals = np.flatnonzero(hidden)
    hidden[ordinals] = run.live_mask(ordinals)
    count = int(np.count_nonzero(hidden))
    keys = sorted(_keys(run, hidden)) if count else []
    return keys, count - len(keys)


def _of_run(state: SpillState, run: Run) -> list[HiddenRows]:
    with state.lock:
        twin = frozen_run(run)
    keys, unknown = hidden_keys(twin, [number for number in twin.damage if number >= 0])
    return [HiddenRows(file=run.path.name, keys=keys, unknown=unknown)] if keys or unknown else []


def _keys(run: Run, hidden: NDArray[np.bool_]) -> Iterator[Key]:
    for number in range(run.shape.id_pages):
        # ValueError: the file was closed meanwhile.
        with suppress(StoreError, ValueError, OSError):
            rows = run.id_rows(number)
            wanted = rows[hidden[rows["ordinal"]]]
            yield from zip(wanted["due"].tolist(), wanted["id"].tolist(), strict=True)
