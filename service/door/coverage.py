"""Which shards an answer of an instance is of, which not, and who owns those.

============  ==========================================================================================
``owned``     this instance delivers it, and has read its queue to its end within the last 2 s
``followed``  another instance owns it, and this one follows: it knows all entries, and learns within some 6 s
              which of them were delivered
``stale``     this instance owned it a moment ago, and has not read its queue to its end since, or gives it up:
              what it knows may lack entries
``missing``   nothing is known of it here, or not all yet. ``owner`` says whom to ask
============  ==========================================================================================

An answer is ``whole`` if every shard is owned or followed, before it was read and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from store.put.pending_topics import TopicControl

__all__ = ["ShardSight", "Sighting", "coverage_document", "covered", "known_shard", "seen_again"]


class Sighting(Enum):
    """How much an instance knows of a shard."""

    OWNED = "owned"
    FOLLOWED = "followed"
    STALE = "stale"
    MISSING = "missing"


_SURE = (Sighting.OWNED, Sighting.FOLLOWED)


@dataclass(frozen=True, slots=True)
class ShardSight:
    """A shard as an instance sees it.

    ``name`` is ``BROKER/QUEUE``; ``owner`` the member that owns it, as far as it is known; ``control`` what its pending
    messages can be asked, if anything is known of them; ``first`` the offset that they know entry 0 by.
    """

    name: str
    sighting: Sighting
    owner: str = ""
    detail: str = ""
    control: TopicControl | None = None
    first: int = 0

    def without(self, why: str) -> ShardSight:
        """The same shard, of which nothing could be learned."""
        return replace(self, sighting=Sighting.MISSING, detail=why, control=None)


def covered(sights: Iterable[ShardSight]) -> list[ShardSight]:
    """Those of which something is known."""
    return [sight for sight in sights if sight.control is not None and sight.sighting is not Sighting.MISSING]


def known_shard(sights: Sequence[ShardSight], name: str) -> ShardSight | None:
    """The shard of a name."""
    return next((sight for sight in sights if sight.name == name), None)


def coverage_document(sights: Iterable[ShardSight]) -> dict[str, Any]:
    """What an answer says of the shards that it is of.

    >>> found = coverage_document([ShardSight("b/0", Sighting.OWNED, "m1"), ShardSight("b/1", Sighting.MISSING, "m2")])
    >>> found["whole"], [row["shard"] for row in found["shards"]]
    (False, ['b/0', 'b/1'])
    """
    rows = sorted(sights, key=lambda sight: sight.name)
    return {
        "whole": all(sight.sighting in _SURE for sight in rows),
        "shards": [
            {
                "shard": sight.name,
                "state": sight.sighting.value,
                "owner": sight.owner or None,
                "detail": sight.detail,
            }
            for sight in rows
        ],
    }


def seen_again(document: Mapping[str, Any], sights: Iterable[ShardSight]) -> dict[str, Any]:
    """An answer, and what is known of its shards now that it is read: one that was lost meanwhile is ``stale`` in it.

    >>> found = coverage_document([ShardSight("b/0", Sighting.OWNED, "m1")])
    >>> seen_again(found, [])["shards"][0]["state"]
    'stale'
    """
    good = [state.value for state in _SURE]
    still = {sight.name for sight in sights if sight.sighting in _SURE}
    rows = [
        row
        if row["shard"] in still or row["state"] not in good
        else {**row, "state": Sighting.STALE.value, "detail": "it was given up, or fell behind, while it was asked"}
        for row in document["shards"]
    ]
    return {**document, "whole": all(row["state"] in good for row in rows), "shards": rows}
