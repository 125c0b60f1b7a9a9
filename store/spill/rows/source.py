"""What a journal segment and a run have in common: records found by key, by id and by ordinal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from store.disk.files import File
from store.spill.rows.done_set import DoneSet
from store.spill.rows.model import Key

__all__ = ["Batch", "Fetch", "Longs", "Places", "Source"]

Longs = NDArray[np.int64]
Places = tuple[list[int], list[int], list[int]]
"""File positions, sizes and CRCs."""


class Batch:
    """Live records of one source in key order; ``more``: there may be others behind the last one."""

    __slots__ = ("dues", "ids", "more", "refs")

    def __init__(self, dues: Longs, ids: Longs, refs: Longs, more: bool) -> None:
        self.dues = dues
        self.ids = ids
        self.refs = refs
        self.more = more

    def __len__(self) -> int:
        return len(self.refs)


Fetch = Callable[[Key, int, int], Batch | None]
"""``fetch(after, until_ms, want)``: live records with key > after and due < until, at most ``want``."""


class Source(Protocol):
    """A file of records. The caller holds the delivery lock, or owns a twin.

    ``data`` is the file with the records, of an index another than ``file``.
    A source *owns* an ordinal while the record lives there: records that were relocated are no longer owned.
    """

    no: int
    file: File
    data: File
    done: DoneSet
    saved: bytes | None
    live: int

    def fetchers(self) -> list[Fetch]:
        """The parts that a scan asks, each in key order."""
        ...

    def owns(self, ordinal: int) -> bool:
        """Whether the record lives here."""
        ...

    def owns_all(self, ordinals: Longs) -> bool:
        """Whether all of these records live here."""
        ...

    def mark(self, ordinal: int) -> bool:
        """Mark an owned ordinal done; False if it was."""
        ...

    def mark_many(self, ordinals: Longs) -> int:
        """Mark owned ordinals done; answers how many were not."""
        ...

    def lookup(self, id_: int) -> list[tuple[int, int, int]]:
        """Every owned record of an id: (ordinal, due, version)."""
        ...

    def lookup_many(self, ids: Longs) -> tuple[Longs, Longs, Longs]:
        """For sorted, unique ids: every owned record of them as (ordinals, index of the id, versions)."""
        ...

    def identities(self, ordinals: Longs) -> tuple[Longs, Longs]:
        """Delay ids and versions of records, owned or not."""
        ...

    def places(self, ordinals: Longs) -> Places:
        """File positions, sizes and CRCs of records."""
        ...
