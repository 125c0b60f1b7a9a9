"""Records that were relocated to another file while somebody may still use their old ref."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.spill.rows.source import Longs

__all__ = ["Ghosts"]


class Ghosts:
    """Old refs of relocated records, with the id and version that find each of them: 24 bytes a record."""

    __slots__ = ("ids", "refs", "versions")

    def __init__(self, refs: Longs, ids: Longs, versions: Longs) -> None:
        order = np.argsort(refs)
        self.refs = refs[order]
        self.ids = ids[order]
        self.versions = versions[order]

    def get(self, ref: int) -> tuple[int, int] | None:
        """Delay id and version of the record that an old ref led to; None for any other ref."""
        at = int(self.refs.searchsorted(ref))
        if at < len(self.refs) and self.refs.item(at) == ref:
            return self.ids.item(at), self.versions.item(at)
        return None

    def keep(self, mask: NDArray[np.bool_]) -> Ghosts:
        """Only the ghosts for which ``mask`` (one element for each) is set."""
        return Ghosts(self.refs[mask], self.ids[mask], self.versions[mask])
