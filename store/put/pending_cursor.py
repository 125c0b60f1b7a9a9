"""Cursors as text: due time and offset of the message behind which a listing or a bulk change goes on.

>>> cursor_text((1_700_000_000_000, 0x4000000000000005)), cursor_text(None)
('1700000000000-4000000000000005', '')
>>> cursor_place("1700000000000-4000000000000005") == (1_700_000_000_000, 0x4000000000000005)
True
"""

from __future__ import annotations

from store.put.pending_api import PendingError

__all__ = ["Place", "cursor_place", "cursor_text"]

Place = tuple[int, int]
"""Due time (epoch ms) and offset."""
_CHARS_MAX = 40


def cursor_text(place: Place | None) -> str:
    """Write a place as text; empty for None, which stands for the end."""
    return "" if place is None else f"{max(0, place[0])}-{place[1]:x}"


def cursor_place(text: str) -> Place:
    """Read a place from its text. Raises PendingError for any other text."""
    due, _, offset = text.partition("-")
    # `int` alone would also take signs, blanks and underscores.
    if len(text) <= _CHARS_MAX and due.isascii() and due.isdecimal():
        try:
            return int(due), int(offset, 16)
        except ValueError:
            pass
    raise PendingError(f"{text!r:.80} is no cursor: pass on `next` of an earlier answer as it is")
