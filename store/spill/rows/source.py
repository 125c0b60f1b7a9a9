"""The common base of a journal segment and a run: records found by key, by id and by ordinal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from store.disk.file import File
from store.spill.rows.done_set import DoneSet
from store.spill.rows.model import Key
from store.spill.rows.page_cache import RunPageCache

__all__ = ["Fetch", "Longs", "Places", "Source", "SourceBatch"]

Longs = NDArray[np.int64]
Places = tuple[list[int], list[int], list[int]]
"""File positions, sizes and CRCs."""


class SourceBatch:
    """Live records of one source in key order; ``more``: there may be others behind the last one."""

    __slots__ = ("dues", "ids", "more", "refs")

    def __init__(self, dues: Longs, ids: Longs, refs: Longs, more: bool) -> None:
        self.dues = dues
        self.ids = ids
        self.refs = refs
        self.more = more

    def __len__(self) -> int:
        return len(self.refs)


Fetch = Callable[[Key, int, int], SourceBatch | None]
"""``fetch(after, until_ms, want)``: live records with key > after and due < until, at most ``want``."""


class Source(ABC):
    """A file of records. The caller holds the delivery lock, or owns a twin.

    ``data`` is the file with the records; that of an index is not ``file``. ``saved`` is the done-set of the last
    durable checkpoint. ``count`` is how many ordinals there are, owned or not, ``data_bytes`` the bytes of all these
    records; ``live`` counts the records that live here and are not done.

    A source *owns* an ordinal while the record lives there: records that were relocated are no longer owned.
    """

    __slots__ = ("count", "data", "data_bytes", "done", "file", "live", "no", "saved")

    def __init__(self, no: int, file: File, done: DoneSet, count: int = 0, data_bytes: int = 0) -> None:
        self.no = no
        self.file = self.data = file
        self.count = count
        self.data_bytes = data_bytes
        self.done = done
        self.live = 0
        self.saved: bytes | None = None

    # ------------------------------------------------------------------------------------------------ what it is

    @property
    def live_bytes(self) -> int:
        """Bytes of its live records, estimated from the file's average record."""
        return self.data_bytes * self.live // self.count if self.live and self.count else 0

    @property
    @abstractmethod
    def settled(self) -> bool:
        """True if nothing changes any more except which records are done and which ones it owns."""

    @property
    @abstractmethod
    def is_scattered(self) -> bool:
        """True if a higher ordinal may stand at a lower file position."""

    @property
    @abstractmethod
    def writes_ahead(self) -> int:
        """Number of writes that a live record has before it: 1 (CommitLog), or 2 (a run before that)."""

    @property
    @abstractmethod
    def journal_end(self) -> int:
        """Journal position up to which the journal must be durable before records of this source may be copied."""

    @property
    @abstractmethod
    def unsorted_bytes(self) -> int:
        """Leading bytes of ``data`` that hold the records, if these are not in key order; 0 if they are."""

    # ------------------------------------------------------------------------------------------------ finding records

    @abstractmethod
    def fetchers(self) -> list[Fetch]:
        """One `Fetch` for each part of the source that has an order of its own."""

    @abstractmethod
    def fetch_sorted(self, after: Key, until_ms: int, want: int) -> SourceBatch | None:
        """`Fetch` over all of a settled source."""

    @abstractmethod
    def lookup(self, id_: int) -> list[tuple[int, int, int]]:
        """Every owned record of an id: (ordinal, due, version)."""

    @abstractmethod
    def lookup_many(self, ids: Longs) -> tuple[Longs, Longs, Longs]:
        """For sorted, unique ids: every owned record of them as (ordinals, index of the id, versions)."""

    @abstractmethod
    def identities(self, ordinals: Longs) -> tuple[Longs, Longs]:
        """Delay ids and versions of records, owned or not; ``ordinals`` ascend."""

    @abstractmethod
    def places(self, ordinals: Longs) -> Places:
        """File positions, sizes and CRCs of records; ``ordinals`` ascend."""

    # ------------------------------------------------------------------------------------------------ owned and done

    @abstractmethod
    def owns(self, ordinal: int) -> bool:
        """True if the record lives here."""

    @abstractmethod
    def owns_all(self, ordinals: Longs) -> bool:
        """True if all of these records live here."""

    @abstractmethod
    def owned_mask(self, ordinals: Longs) -> NDArray[np.bool_]:
        """For each ordinal, whether the record lives here."""

    def live_mask(self, ordinals: Longs) -> NDArray[np.bool_]:
        """For each ordinal, whether the record lives here and is not done."""
        mask: NDArray[np.bool_] = self.owned_mask(ordinals) & ~self.done.mask(ordinals)
        return mask

    @abstractmethod
    def done_elsewhere(self) -> Longs:
        """Ordinals of done records that live in another source by now."""

    def mark(self, ordinal: int) -> bool:
        """Mark an owned ordinal done; False if it was done already."""
        if self.done.add(ordinal):
            self.live -= 1
            return True
        return False

    def mark_many(self, ordinals: Longs) -> int:
        """Mark owned ordinals done; returns how many of them were not done before."""
        fresh = self.done.add_many(ordinals)
        self.live -= fresh
        return fresh

    def restore(self, done: DoneSet) -> None:
        """Take the done-set of the durable checkpoint; `recount` afterwards."""
        self.done = done
        self.saved = done.encode()

    @abstractmethod
    def recount(self) -> None:
        """Count the live records again (after recovery, or when it owns others)."""

    @abstractmethod
    def twin(self, cache: RunPageCache) -> Source:
        """The same records with the done-set of the last durable checkpoint, for a reader without the lock.

        ``cache`` is the reader's own. ``live`` may be left to `recount`, which takes milliseconds and needs no lock.
        """
