"""The owners of a shard, by offsets of its queue. All readers must agree on them, even if a takeover record rots.

A record of a generation counts only after the takeover of that generation and before the next takeover. So if one
reader could read a takeover record and a later reader cannot, they would disagree about other records. A takeover is
known from:

==================  ==================================================================================================
the record itself   as long as it can be read
the progress        an owner's snapshot lists all takeovers that it counted, with their offsets. Up to its own record
                    exactly these count for every later reader, whatever the queue then contains
a later record      whose generation is the offset of an unreadable record: its writer had read that record as its own
                    takeover
==================  ==================================================================================================

A record that cannot be read (damaged, or missing in the broker's answer) may have been a takeover that somebody else
read when it was whole. So an owner that finds one ends as if it had been a takeover. And no release counts if there is
an unreadable record between its takeover and the end of the queue: then the next owner waits. Both cost seconds, and no
message.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from service.core.done_entries import DoneEntries
from service.core.lines import Line, LineKind
from service.core.progress import Picture

__all__ = ["TAKEOVERS_MAX", "Takeovers"]

TAKEOVERS_MAX = 4096
"""Most takeovers that a snapshot names: the last ones."""
DARK_MAX = 65_536
"""Most places that are remembered as unreadable: the first ones."""
_OWNERS = frozenset({LineKind.RELEASE, LineKind.ROLL, LineKind.VERDICT})


class Takeovers:
    """The takeovers of one shard, up to the offset to which its queue was read.

    >>> takeovers = Takeovers(); takeovers.begins_at(Line(5, LineKind.TAKEOVER))
    5
    >>> takeovers.saw(5, 5, "me"); takeovers.unreadable(7, 8)
    >>> [takeovers.begins_at(Line(9, LineKind.ROLL, generation=generation)) for generation in (5, 7, 8)]
    [-1, 7, -1]
    """

    def __init__(self) -> None:
        self.generation = -1
        """Generation of the last takeover; -1: none was read."""
        self.owner = ""
        """Owner that took over last; "" if its record cannot be read."""
        self.is_released = False
        """True if the last owner has certainly given the shard up: a new owner need not wait."""
        self._rows: list[tuple[int, int]] = []  # where in the queue each counts from, ascending, and its generation
        self._begin = 0  # where the reading began
        self._known: dict[int, int] = {}  # the same as rows, by progress
        self._spans: list[tuple[int, int]] = []  # first and last offsets for which the progress knows them all
        self._is_clear = False  # all since the last takeover could be read
        self._dark: list[tuple[int, int]] = []  # what could not be read: from where to where, ascending

    def load(self, picture: Picture, begin: int) -> None:
        """Take over the takeovers from the progress. The queue is read from ``begin`` on."""
        self._begin = begin
        self._adopt(picture, begin)
        low = picture.low_generation
        before = [row for row in sorted(self._known.items()) if row[0] < begin] or [(low, low)] * (low >= 0)
        self._rows = before[-1:]
        self.generation = before[-1][1] if before else -1

    def resume(self, picture: Picture, read: int) -> None:
        """After `load`: the queue is read from ``read`` on only. The owner of the progress could read all before it."""
        self._rows += self.known_in(self._begin, read)
        self.generation, self.owner = picture.generation, picture.owner
        self._is_clear = True

    def learn(self, picture: Picture, read_to: int) -> bool:
        """Add those of newer progress; False if its owner counted other takeovers in the part already read here."""
        since, known = picture.history()
        earlier = next((known[at] for at in sorted(known, reverse=True) if at < since), -1)
        if picture.takeovers and self._begin <= since <= read_to and self.before(since) != earlier:
            return False
        read = range(max(since, self._begin), min(picture.generation + 1, read_to))
        if {row for row in self._rows if row[0] in read} != {row for row in known.items() if row[0] in read}:
            return False
        self._adopt(picture, read_to)
        return True

    def _adopt(self, picture: Picture, read_to: int) -> None:
        since, known = picture.history()
        span = (since, picture.generation)
        if picture.generation < 0 or span in self._spans:
            return
        self._spans = [old for old in self._spans if old[1] >= read_to] + [span]
        self._known = {at: number for at, number in self._known.items() if at < since or at > picture.generation}
        self._known |= known

    def begins_at(self, line: Line) -> int:
        """The generation that counts from this record on, if it is a takeover or proves one; -1 otherwise."""
        for first, last in self._spans:
            if first <= line.offset <= last:
                return self._known.get(line.offset, -1)
        if line.kind is LineKind.TAKEOVER:
            return line.offset
        shows = line.kind in _OWNERS and self.generation < line.generation < line.offset
        return line.generation if shows and self._is_dark(line.generation) else -1

    def _is_dark(self, offset: int) -> bool:
        at = bisect_right(self._dark, (offset, 1 << 62)) - 1
        return at >= 0 and self._dark[at][0] <= offset < self._dark[at][1]

    def known_in(self, begin: int, until: int) -> list[tuple[int, int]]:
        """The offsets in this range from which a generation counts, according to the progress."""
        return sorted((at, number) for at, number in self._known.items() if begin <= at < until)

    def saw(self, at: int, generation: int, owner: str) -> None:
        """Note that a takeover counts from here on."""
        self._rows.append((at, generation))
        self.generation, self.owner = generation, owner
        self.is_released = False
        self._is_clear = at == generation

    def unreadable(self, begin: int, until: int) -> None:
        """Note that records cannot be read. They may have been takeovers."""
        self.is_released = self._is_clear = False
        # Joined with the part before, because only `DARK_MAX` parts are remembered.
        if self._dark and self._dark[-1][1] == begin:
            begin = self._dark.pop()[0]
        if len(self._dark) < DARK_MAX:
            self._dark.append((begin, until))

    def was_unreadable(self, begin: int, until: int) -> bool:
        """True if a record in this range could not be read."""
        return any(first < until and begin < end for first, end in self._dark)

    def hide_any(self, done: DoneEntries) -> bool:
        """True if a record could not be read, and it is not known what became of it."""
        return any(done.next_pending(first, end) < end for first, end in self._dark)

    def released(self) -> None:
        """Note that the owner of the last generation has released the shard."""
        self.is_released = self._is_clear

    def before(self, offset: int) -> int:
        """The last generation that counts before an offset."""
        at = bisect_left(self._rows, (offset, -1)) - 1
        return self._rows[at][1] if at >= 0 else -1

    def rows_from(self, begin: int) -> tuple[int, dict[int, int]]:
        """For a snapshot: the offset from which on all takeovers are listed, and their rows, with the last one before.

        Earlier ones are let go.
        """
        first = next((number for number, (at, _) in enumerate(self._rows) if at >= begin), len(self._rows))
        del self._rows[: max(0, first - 1)]
        rows = self._rows[-TAKEOVERS_MAX - 1 :]
        return (begin if len(rows) == len(self._rows) else rows[1][0]), dict(rows)
