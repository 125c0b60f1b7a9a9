"""`GateAside`: the messages that the gate holds of a large batch. Checked in several turns, journalled in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from broker_plugin.pending.keyed_turn import KeyedShare
from broker_plugin.pending.limits import LimitedShare
from remoting.layout import FRAME_ROW_BYTES
from store.spill.rows.format import encode_rows

if TYPE_CHECKING:
    from broker_plugin.figures.tally import Accepted
    from broker_plugin.pending.keyed_turn import KeyedTurn
    from broker_plugin.pending.limits import PendingLimits
    from store.spill.rows.block import Block

__all__ = ["AsideFrame", "GateAside", "parts_of"]

Entry = tuple[int, int, bytes]
"""Due time, delay id, record."""


def parts_of(entries: list[Entry], frame_bytes: int) -> Iterator[tuple[list[Entry], int]]:
    """Cut entries into parts that fit into a frame; yields each part with the bytes that it takes there."""
    first = size = 0
    for at, entry in enumerate(entries):
        needs = len(entry[2]) + FRAME_ROW_BYTES
        if size + needs > frame_bytes:
            yield entries[first:at], size
            first, size = at, 0
        size += needs
    yield entries[first:], size


class AsideFrame:
    """Held messages for one frame of the journal, as columns; ``rows`` are their encoded rows."""

    __slots__ = ("dues", "ids", "records", "rows", "size")

    def __init__(self) -> None:
        self.dues: list[int] = []
        self.ids: list[int] = []
        self.records: list[bytes] = []
        self.rows = bytearray()
        self.size = 0  # as `SpillStore.append_bytes_max` counts it

    def __len__(self) -> int:
        return len(self.ids)

    def entries(self) -> list[Entry]:
        """The messages, one by one."""
        return [*zip(self.dues, self.ids, self.records, strict=True)]

    def add(self, entries: Sequence[tuple[int, int, bytes]], size: int) -> None:
        """Add messages (due time, delay id, record) that take ``size`` bytes in the frame."""
        dues, ids, records = zip(*entries, strict=True)
        # Encoded with each slice, so that the turn that journals the batch has less to do.
        self.rows += encode_rows(dues, ids, (0,) * len(ids), records)
        self.dues += dues
        self.ids += ids
        self.records += records
        self.size += size


class Gated(Protocol):
    """The part of the gate (`broker_plugin.hook.Gate`) that an aside uses."""

    asides: list[GateAside]
    entries: list[Entry]
    frame_bytes: int
    keyed: KeyedTurn | None
    limits: PendingLimits | None
    tally: Accepted | None

    def take_out(self, blocks: list[Block]) -> None:
        """Cancel messages that were journalled already."""
        ...


class GateAside:
    """See `store.put.plugin_abilities.Aside`."""

    __slots__ = ("_gate", "_joined", "_mark", "blocks", "frames", "keyed", "limited")

    def __init__(self, gate: Gated) -> None:
        self._gate = gate
        self._mark = 0
        self._joined = False
        self.keyed = None if gate.keyed is None else KeyedShare()
        """Its messages with a delay key; None if nobody keeps them, or once its turn has failed."""
        self.limited = None if gate.limits is None else LimitedShare()
        """Its share of the limited counts; None if there are no limits, or once its turn has failed."""
        self.frames: list[AsideFrame] = []
        self.blocks: list[Block] = []  # of the turn that journalled it

    def __len__(self) -> int:
        return sum(map(len, self.frames))

    def begin(self) -> None:
        """Begin a slice: remember what the present turn holds."""
        gate = self._gate
        self._mark = len(gate.entries)
        if gate.keyed is not None and self.keyed is not None:
            gate.keyed.mark(self.keyed)
        if gate.limits is not None and self.limited is not None:
            gate.limits.mark(self.limited)

    def take(self) -> None:
        """End a slice: take everything that the gate has held since `begin` out of the present turn."""
        gate, frames = self._gate, self.frames
        if gate.keyed is not None and self.keyed is not None:
            gate.keyed.cut(self.keyed)
        if gate.limits is not None and self.limited is not None:
            gate.limits.cut(self.limited)
        entries = gate.entries[self._mark :]
        if not entries:
            return
        del gate.entries[self._mark :]
        for part, size in parts_of(entries, gate.frame_bytes):
            if not frames or frames[-1].size + size > gate.frame_bytes:
                frames.append(AsideFrame())
            frames[-1].add(part, size)

    def put_back(self) -> None:
        """Make all held messages a part of the present turn."""
        gate = self._gate
        gate.asides.append(self)
        self._joined = True
        if gate.keyed is not None and self.keyed is not None:
            gate.keyed.join(self.keyed)
        if gate.limits is not None and self.limited is not None:
            gate.limits.join(self.limited)

    def take_back(self) -> None:
        """Forget the batch, also after its turn was journalled."""
        gate = self._gate
        waits = self in gate.asides
        if waits:
            gate.asides.remove(self)
        if gate.limits is not None and self.limited is not None:
            gate.limits.forget(self.limited, self._joined, self._joined and not waits)
        if gate.keyed is not None and self.keyed is not None:
            gate.keyed.forget(self.keyed)
        if gate.tally is not None and self.blocks:
            for delay_id in (delay_id for frame in self.frames for delay_id in frame.ids):
                gate.tally.withdrawn(delay_id)
        gate.take_out(self.blocks)
