"""`GateAside`: what the gate takes of a large batch, over several turns of the loop, journalled by one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from store.spill.rows.format import encode_rows

if TYPE_CHECKING:
    from store.spill.rows.model import Block

__all__ = ["ROW_BYTES", "AsideFrame", "GateAside", "parts_of"]

ROW_BYTES = 28
"""What a record costs in a journal frame beside its own bytes (`SpillStore.append_bytes_max`)."""
Entry = tuple[int, int, bytes]
"""Due time, delay id, record."""


def parts_of(entries: list[Entry], frame_bytes: int) -> Iterator[tuple[list[Entry], int]]:
    """Cut entries into such as fit into a frame, with the bytes that they take there."""
    first = size = 0
    for at, entry in enumerate(entries):
        needs = len(entry[2]) + ROW_BYTES
        if size + needs > frame_bytes:
            yield entries[first:at], size
            first, size = at, 0
        size += needs
    yield entries[first:], size


class AsideFrame:
    """Held messages that make one frame of the journal, as columns; ``rows`` are encoded already."""

    __slots__ = ("dues", "ids", "records", "rows", "size")

    def __init__(self) -> None:
        self.dues: list[int] = []
        self.ids: list[int] = []
        self.records: list[bytes] = []
        self.rows = bytearray()
        self.size = 0  # as `SpillStore.append_bytes_max` counts it

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, entries: Sequence[tuple[int, int, bytes]], size: int) -> None:
        """Take in more messages: due time, delay id, record."""
        dues, ids, records = zip(*entries, strict=True)
        self.rows += encode_rows(dues, ids, (0,) * len(ids), records)
        self.dues += dues
        self.ids += ids
        self.records += records
        self.size += size


class Cutter(Protocol):
    """What an aside needs of the gate (`broker_plugin.hook.Gate`)."""

    asides: list[GateAside]
    """Asides that the present turn journals."""

    def mark(self) -> int:
        """Where the present turn's held messages end."""

    def cut(self, mark: int, frames: list[AsideFrame]) -> None:
        """Move what is held behind a mark out of the turn, into frames."""

    def forget(self, aside: GateAside) -> None:
        """Take an aside out of its turn, journalled or not."""


class GateAside:
    """See `store.put.plugin_api.Aside`."""

    __slots__ = ("_gate", "_mark", "blocks", "frames")

    def __init__(self, gate: Cutter) -> None:
        self._gate = gate
        self._mark = 0
        self.frames: list[AsideFrame] = []
        self.blocks: list[Block] = []  # of the turn that journalled it

    def __len__(self) -> int:
        return sum(map(len, self.frames))

    def begin(self) -> None:
        """A slice begins."""
        self._mark = self._gate.mark()

    def take(self) -> None:
        """The slice is over: what it had the gate hold is no part of the present turn."""
        self._gate.cut(self._mark, self.frames)

    def put_back(self) -> None:
        """Make all of it a part of the present turn."""
        self._gate.asides.append(self)

    def take_back(self) -> None:
        """Forget it, if need be also after its turn was journalled."""
        self._gate.forget(self)
