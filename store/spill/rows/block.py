"""`Block`: what one append wrote to the journal.

It has a file of its own because one is made for every turn: in the compiled build it is a native class.
"""

from __future__ import annotations

from collections.abc import Sequence

from store.disk.ticket import Syncable, Ticket

__all__ = ["Block"]


class Block:
    """The frame that one append wrote to the journal; scans do not see it before it is published.

    ``ticket`` is done when the frame is durable. ``dues`` (epoch ms), ``ids`` and ``refs`` name its records, in accept
    order; ``columns`` are its rows as encoded.
    """

    __slots__ = ("at", "columns", "dues", "first_ordinal", "ids", "published", "refs", "segment_no", "ticket")

    def __init__(
        self,
        journal: Syncable,
        end: int,
        segment_no: int,
        first_ordinal: int,
        at: int,
        columns: bytes,
        dues: Sequence[int],
        ids: Sequence[int],
    ) -> None:
        self.ticket = Ticket((journal, end))
        self.segment_no = segment_no
        self.first_ordinal = first_ordinal
        self.at = at  # file position of the first record's bytes
        self.columns = columns
        self.dues = list(dues)
        self.ids = list(ids)
        first = segment_no << 32 | first_ordinal
        self.refs = list(range(first, first + len(self.dues)))
        self.published = False

    def __len__(self) -> int:
        return len(self.dues)
