"""Progress of a shard, as records of a topic: which entries are done, and how far each target queue is accounted for.

A *chain* is a complete picture (a snapshot) followed by changes. One generation writes it, and each record is
acknowledged before the next is sent. Everything in a chain is a fact that stays true:

==============  ==================================================================================================
``done``        these entries were delivered (acknowledged by their target), rolled, cancelled or rejected
``tails``       target queue to offset: every delivery of this generation below this offset is among the done entries. A
                queue is listed here, durably, *before* anything is sent to it. So the next owner finds all deliveries
                that are not yet among the done ones: it reads these queues from these offsets on
``doubts``      the tails of earlier generations that this one has not yet read
``takeovers``   in a snapshot: the offsets in the entry queue from which each generation counted, from ``since`` on
``cancelled``   which of the done entries were cancelled: the last 65,536; below ``forgot`` others may have been
``read``        the owner has read the entry queue up to here, and the record accounts for all of that: so the next one
                reads on from here before it delivers (`service.core.backfill`). -1: it reads from ``low``, as it does
                if there is no such field (earlier programs) or no sense in it
``moves``       moved entries that wait, and their due times: in a snapshot all, in a change the new ones
``owner``       the name in the takeover record
==============  ==================================================================================================

Format: the body is one line of JSON, followed by the done entries, compressed by zlib: in a snapshot the bitmap, in a
change 8 bytes for each offset.

A reader uses the records of the highest generation. Records that a fenced owner wrote later have a lower one. The next
owner's snapshot, written before its first delivery, accounts for them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from struct import error as struct_error
from struct import pack, unpack

from service.core.done_entries import DoneEntries, inflated

__all__ = ["Doubt", "Picture", "ProgressRecord", "TargetQueue", "queue_text", "read_record"]

FORMAT = 1
TargetQueue = tuple[str, str, int]
"""Topic, broker name, queue id."""


def queue_text(queue: TargetQueue) -> str:
    """A queue in words, for logs and errors.

    >>> queue_text(("orders", "broker-a", 3))
    'queue 3 of orders at broker-a'
    """
    topic, broker, number = queue
    return f"queue {number} of {topic} at {broker}"


@dataclass(slots=True)
class Doubt:
    """Deliveries of earlier generations that may be in target queues and are not yet among the done entries.

    ``limit``: only entries below this offset; ``due_ms``: only those due until then (no earlier owner delivered
    what is due later, even with a clock that was a minute ahead); ``tails``: where to look.
    """

    limit: int
    due_ms: int
    tails: dict[TargetQueue, int]

    def concerns(self, offset: int, due_ms: int, topics: Collection[str]) -> bool:
        """True if an entry for one of these topics may have been delivered already."""
        return offset < self.limit and due_ms <= self.due_ms and any(queue[0] in topics for queue in self.tails)


@dataclass(slots=True)
class ProgressRecord:
    """One record of a chain. A snapshot has all entries that are ``done``, a change those ``added`` since."""

    shard: str
    generation: int
    sequence: int
    low: int
    low_generation: int
    tails: dict[TargetQueue, int]
    doubts: list[Doubt] = field(default_factory=list)
    done: DoneEntries | None = None
    added: Sequence[int] = ()
    cancelled: Sequence[int] = ()
    forgot: int = 0
    since: int = 0
    takeovers: dict[int, int] = field(default_factory=dict)
    read: int = -1
    moves: dict[int, int] = field(default_factory=dict)
    owner: str = ""

    @property
    def is_snapshot(self) -> bool:
        """True if the record is a snapshot, which needs no record before it."""
        return self.done is not None

    def encode(self) -> bytes:
        """The record as bytes, which `read_record` reads."""
        head = {
            "v": FORMAT,
            "shard": self.shard,
            "generation": self.generation,
            "sequence": self.sequence,
            "low": self.low,
            "lowGeneration": self.low_generation,
            "tails": _tails_out(self.tails),
            "doubts": [[doubt.limit, doubt.due_ms, _tails_out(doubt.tails)] for doubt in self.doubts],
            "snapshot": self.is_snapshot,
            "cancelled": list(self.cancelled),
            "forgot": self.forgot,
            "read": self.read,
            "moves": sorted(self.moves.items()),
            "owner": self.owner,
        }
        if self.is_snapshot:
            head["since"], head["takeovers"] = self.since, sorted(self.takeovers.items())
        packed = zlib.compress(pack(f">{len(self.added)}q", *self.added), 1) if self.done is None else self.done.pack()
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + packed


def _tails_out(tails: dict[TargetQueue, int]) -> list[list[str | int]]:
    return [[*queue, at] for queue, at in sorted(tails.items())]


def _tails_in(rows: Iterable[Sequence[object]]) -> dict[TargetQueue, int]:
    return {(str(topic), str(broker), int(str(queue))): int(str(at)) for topic, broker, queue, at in rows}


def _resumption_in(head: dict[str, object]) -> tuple[int, dict[int, int], str]:
    """``read``, ``moves`` and ``owner``; as if there were none if one of them makes no sense."""
    read, owner, rows = head.get("read"), head.get("owner"), head.get("moves")
    if not (_is_number(read) and isinstance(owner, str) and isinstance(rows, list)):
        return -1, {}, ""
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and all(map(_is_number, row))):
            return -1, {}, ""
    return int(str(read)), dict(rows), owner


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def read_record(body: bytes) -> ProgressRecord:
    """Read a record. Raises ValueError, with what is wrong, for bytes that are no record."""
    line, _, packed = body.partition(b"\n")
    try:
        head = json.loads(line)
        if head["v"] != FORMAT:
            raise ValueError(f"progress of format {head['v']!r}, this program knows {FORMAT}")
        low = int(head["low"])
        done, added = None, ()
        if head["snapshot"]:
            done = DoneEntries.unpack(low, packed)
        else:
            raw = inflated(packed)
            added = unpack(f">{len(raw) // 8}q", raw)
        doubts = [Doubt(int(limit), int(due), _tails_in(tails)) for limit, due, tails in head["doubts"]]
        return ProgressRecord(
            str(head["shard"]),
            int(head["generation"]),
            int(head["sequence"]),
            low,
            int(head["lowGeneration"]),
            _tails_in(head["tails"]),
            doubts,
            done,
            added,
            [int(offset) for offset in head.get("cancelled", ())],
            int(head.get("forgot", 0)),
            int(head.get("since", 0)),
            {int(at): int(generation) for at, generation in head.get("takeovers", ())},
            *_resumption_in(head),
        )
    except (KeyError, TypeError, IndexError, AttributeError, struct_error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a progress record: {type(error).__name__}: {error}") from None


@dataclass(slots=True)
class Picture:
    """The contents of a chain that was read to its end; empty for a shard without progress."""

    generation: int = -1
    low: int = 0
    low_generation: int = -1
    done: DoneEntries = field(default_factory=DoneEntries)
    tails: dict[TargetQueue, int] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    forgot: int = 0
    since: int = 0
    takeovers: dict[int, int] = field(default_factory=dict)
    is_torn: bool = False
    read: int = -1
    moves: dict[int, int] = field(default_factory=dict)
    owner: str = ""

    def resumed_at(self) -> int:
        """The offset from which the next owner reads before it delivers; -1: from the oldest entry that is not done.

        The takeovers before it must be known: rolls of the older part count by them.
        """
        knows = self.since <= min(self.low, self.generation) and self.takeovers.get(self.generation) == self.generation
        is_possible = max(self.low, self.generation + 1) <= self.read
        return self.read if knows and is_possible and not self.is_torn else -1

    def history(self) -> tuple[int, dict[int, int]]:
        """Return the first generation from which on the list is complete, and the offset of each; see `Takeovers`."""
        if not self.takeovers:  # of an earlier program
            return self.generation, {self.generation: self.generation}
        return self.since, self.takeovers

    def targets(self) -> set[TargetQueue]:
        """Target queues that this generation or earlier ones may have delivered to."""
        return {*self.tails, *(queue for doubt in self.doubts for queue in doubt.tails)}

    @classmethod
    def of(cls, records: Iterable[ProgressRecord]) -> Picture:
        """Read a chain from records of any generations, in the order of their queue.

        A record that got no answer is sent again. So it may stand twice in the queue, the second time behind later
        ones of its chain; there it says nothing new, and a snapshot would take away what those have said.
        """
        rows = list(records)
        newest = max((row.generation for row in rows), default=-1)
        picture, sequence = cls(), -1
        for row in (row for row in rows if row.generation == newest):
            if row.sequence <= sequence:
                continue
            if row.done is None and row.sequence != sequence + 1:
                picture = cls()  # what began was a late copy: its chain begins further ahead
            sequence = row.sequence
            if row.done is not None:
                picture.done = row.done.copy()
                picture.cancelled = []
                picture.since, picture.takeovers = row.since, row.takeovers
                picture.read, picture.moves = row.read, {}
            elif picture.generation < 0:
                continue  # its snapshot is not among them, and reading must begin with one
            picture.generation = newest
            picture.done.merge(row.low, row.added)
            picture.low_generation = row.low_generation
            picture.tails, picture.doubts = dict(row.tails), row.doubts
            picture.cancelled += row.cancelled
            picture.forgot = row.forgot
            # Without one of them, or its moves, the later ones do not say everything; their snapshot will.
            picture.read = row.read if row.read >= picture.read >= 0 else -1
            picture.moves |= row.moves
            picture.owner = row.owner
        picture.low = picture.done.low
        return picture
