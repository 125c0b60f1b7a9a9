"""The shards that an answer of an instance covers, those that it does not cover, and their owners.

============  ==========================================================================================
``owned``     this instance delivers it, and has read its queue to its end within the last 2 s
``followed``  another instance owns it, and this one follows: it knows all entries, and learns of a delivery within
              about 6 s
``stale``     this instance owned it a moment ago, and has not read its queue to its end since, or is giving it up;
              or it has taken it over, and is still reading what waited before. Entries may be missing
``missing``   this instance knows nothing about it, or not everything yet. ``owner`` is the member to ask
============  ==========================================================================================

An answer is ``whole`` if every shard is owned or followed, both before and after it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from store.put.pending_topics import TopicControl

__all__ = ["ShardSight", "Sighting", "coverage_document", "covered", "known_shard", "seen_again"]


class Sighting(Enum):
    """Knowledge of an instance about a shard; see the table at the top."""

    OWNED = "owned"
    FOLLOWED = "followed"
    STALE = "stale"
    MISSING = "missing"


_SURE = (Sighting.OWNED, Sighting.FOLLOWED)


@dataclass(frozen=True, slots=True)
class ShardSight:
    """The state of a shard as this instance knows it.

    ``name`` is ``BROKER/QUEUE``; ``owner`` the member that owns it, if known; ``control`` answers queries on its
    pending messages, None if nothing is known about them; ``first`` the delay id that stands for entry offset 0.
    """

    name: str
    sighting: Sighting
    owner: str = ""
    detail: str = ""
    control: TopicControl | None = None
    first: int = 0

    def without(self, why: str) -> ShardSight:
        """The same shard as one of which nothing could be read."""
        return replace(self, sighting=Sighting.MISSING, detail=why, control=None)


def covered(sights: Iterable[ShardSight]) -> list[ShardSight]:
    """The shards that an answer can cover."""
    return [sight for sight in sights if sight.control is not None and sight.sighting is not Sighting.MISSING]


def known_shard(sights: Sequence[ShardSight], name: str) -> ShardSight | None:
    """The shard with this name."""
    return next((sight for sight in sights if sight.name == name), None)


def coverage_document(sights: Iterable[ShardSight]) -> dict[str, Any]:
    """The part of an answer about the shards that it covers.

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
    """Correct the coverage of an answer after reading it: a shard that was lost meanwhile is ``stale``.

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
