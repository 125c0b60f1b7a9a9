"""A chain of progress with missing records: what is still known, and what has to be searched for.

An entry that a record calls done stays done, so the remaining records count. Deliveries that only a missing record
named are in target queues. They are found there if each queue is read from its tail *before* the gap. So tails do not
rise after a gap, and all other queues that any record names are read from their begin. Rolls and cancels are read again
in the entry queue. A later snapshot contains everything, and repairs the chain.

==========================================  ==========================================================================
missing                                     what is known
==========================================  ==========================================================================
a change                                    the chain before it, and what later changes say
the snapshot that began a generation        the chain of the generation before it, and the changes
the last record of a generation             the chain; a queue that only it has named is not known, unless a later
                                            snapshot says what was delivered there
every snapshot                              nothing: `TornProgressError`
==========================================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from service.core.progress import Doubt, Picture, ProgressRecord

__all__ = ["TornProgressError", "picture_of"]


class TornProgressError(Exception):
    """Nothing is known about what was delivered."""


def picture_of(rows: Sequence[ProgressRecord | None]) -> Picture:
    """Build the picture from a progress queue read from its begin. None stands for a record that cannot be read.

    Raises TornProgressError.
    """
    records = [row for row in rows if row is not None]
    newest = max((row.generation for row in records), default=-1)
    picture = Picture.of(records)
    if newest < 0 and len(records) < len(rows):
        raise TornProgressError("none of its records can be read")
    if picture.generation != newest:
        picture = _left_of(records)
    if picture.generation != newest:
        raise TornProgressError(f"no snapshot can be read of generation {newest}, nor of one before it")
    last = max((at for at, row in enumerate(rows) if row is not None and row.generation == newest), default=-1)
    picture.is_torn |= None in rows[last + 1 :]
    if picture.is_torn:
        picture.read = -1
        # Where else may a missing record have sent something? A queue that an owner uses was mostly used before.
        named = {
            queue for row in records for tails in (row.tails, *(doubt.tails for doubt in row.doubts)) for queue in tails
        }
        picture.tails |= dict.fromkeys(named - picture.tails.keys(), 0)
        picture.forgot = max(picture.forgot, picture.generation)  # what is done may have been cancelled
    return picture


def _left_of(records: Sequence[ProgressRecord]) -> Picture:
    picture, sequence = Picture(), -1
    for row in records:
        is_later = row.generation > picture.generation
        if row.generation < picture.generation or (not is_later and row.sequence <= sequence):
            continue
        if row.is_snapshot:
            picture = Picture.of([row])
        elif picture.generation < 0:
            continue
        else:
            picture.is_torn |= is_later or row.sequence != sequence + 1
            _add(picture, row)
        sequence = row.sequence
    return picture


def _add(picture: Picture, row: ProgressRecord) -> None:
    """Add a change, which may come after a gap."""
    picture.done.merge(row.low, row.added)
    picture.low = picture.done.low
    picture.low_generation = row.low_generation
    picture.cancelled += row.cancelled
    picture.forgot = row.forgot
    if not picture.is_torn:
        picture.tails, picture.doubts = dict(row.tails), row.doubts
        return
    picture.tails = {queue: picture.tails.get(queue, 0) for queue in {*picture.tails, *row.tails}}
    picture.doubts = _merged([*picture.doubts, *row.doubts])
    if row.generation != picture.generation:
        picture.generation, picture.takeovers = row.generation, {}


def _merged(doubts: Iterable[Doubt]) -> list[Doubt]:
    """One doubt for each of the same deliveries, with the lowest tails: a search raises them about once a second."""
    found: dict[tuple[int, int], Doubt] = {}
    for doubt in doubts:
        known = found.setdefault((doubt.limit, doubt.due_ms), Doubt(doubt.limit, doubt.due_ms, {}))
        for queue, at in doubt.tails.items():
            known.tails[queue] = min(at, known.tails.get(queue, at))
    return list(found.values())
