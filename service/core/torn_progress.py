"""A chain of progress of which records are missing: what is left of it, and what has to be looked for.

All that a record says is done stays done, so what is left counts. What the missing ones had said was delivered stands
in target queues; it is found there if they are read from where they stood *before* the gap. So tails do not rise any
more behind one, and all other queues that any record names are read from their begin. What was rolled or cancelled is
read again in the entry queue. A later snapshot says everything, and mends the chain.

==========================================  ==========================================================================
missing                                     what is left
==========================================  ==========================================================================
a change                                    the chain before it, and what later changes say
the snapshot that began a generation        the chain of the generation before it, and the changes
the last record of a generation             the chain; a queue that only it has named is not known, unless a later
                                            snapshot says what was delivered there
every snapshot                              nothing: `TornProgressError`
==========================================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

from service.core.progress import Picture, ProgressRecord

__all__ = ["TornProgressError", "picture_of"]


class TornProgressError(Exception):
    """Nothing can be said of what was delivered."""


def picture_of(rows: Sequence[ProgressRecord | None]) -> Picture:
    """What a progress queue says that was read from its begin; None stands for a record that cannot be read.

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
    """Take a change, behind a gap perhaps."""
    picture.done.merge(row.low, row.added)
    picture.low = picture.done.low
    picture.low_generation = row.low_generation
    picture.cancelled += row.cancelled
    picture.forgot = row.forgot
    if not picture.is_torn:
        picture.tails, picture.doubts = dict(row.tails), row.doubts
        return
    picture.tails = {queue: picture.tails.get(queue, 0) for queue in {*picture.tails, *row.tails}}
    picture.doubts = picture.doubts + [doubt for doubt in row.doubts if doubt not in picture.doubts]
    if row.generation != picture.generation:
        picture.generation, picture.takeovers = row.generation, {}
