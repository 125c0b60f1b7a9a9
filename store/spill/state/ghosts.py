"""Records that have been moved to another file while somebody may still use their old ref."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.spill.rows.source import Longs

__all__ = ["Ghosts"]


class Ghosts:
    """Refs of records that somebody may know and that are elsewhere now: (ref, id, version), 24 bytes each."""

    __slots__ = ("ids", "refs", "versions")

    def __init__(self, refs: Longs, ids: Longs, versions: Longs) -> None:
        order = np.argsort(refs)
        self.refs = refs[order]
        self.ids = ids[order]
        self.versions = versions[order]

    def get(self, ref: int) -> tuple[int, int] | None:
        """Delay id and version behind a ref."""
        at = int(self.refs.searchsorted(ref))
        if at < len(self.refs) and self.refs.item(at) == ref:
            return self.ids.item(at), self.versions.item(at)
        return None

    def keep(self, mask: NDArray[np.bool_]) -> Ghosts:
        """Those for which ``mask`` is set."""
        return Ghosts(self.refs[mask], self.ids[mask], self.versions[mask])
