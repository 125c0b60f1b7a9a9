"""Reading the journal of pops at a start: what was handed out when the broker ended (`store.pop.journal` has the why).

The newest file that is whole by itself is read, then those that go on where it, and each other, ended. A frame that is
torn ends the reading: everything behind it is as if it had not happened. What is lost so only comes twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remoting.layout import FILE_HEADER_BYTES
from store.disk.errors import StoreFormatError
from store.pop.journal import file_name
from store.pop.order_block import OrderBlock
from store.pop.rows import (
    CLOSED,
    GONE,
    NEXT,
    TAKEN,
    WHOLE,
    BatchRow,
    BlockRow,
    PopFrame,
    QueueRow,
    Row,
    read_frame,
    read_header,
    read_rows,
    seed_of,
)

if TYPE_CHECKING:
    from store.disk.files import Files

__all__ = ["PopState", "SavedBatch", "SavedQueue", "read_journal"]


class SavedQueue:
    """A queue as the journal has it."""

    __slots__ = ("batches", "block", "group", "next", "queue_id", "topic")

    def __init__(self, row: QueueRow) -> None:
        self.group = row.group
        self.topic = row.topic
        self.queue_id = row.queue_id
        self.next = row.next
        self.block: OrderBlock | None = None
        self.batches: dict[int, SavedBatch] = {}

    def committed(self) -> int:
        """The first message that is not done with."""
        waiting = [] if self.block is None else self.block.waiting
        firsts = [b.start + (b.bits & -b.bits).bit_length() - 1 for b in self.batches.values() if b.bits]
        return min([self.next, *firsts, *waiting[:1]])


class SavedBatch:
    """A batch as the journal has it."""

    __slots__ = ("bits", "due_ms", "number", "pop_ms", "queue", "start")

    def __init__(self, queue: SavedQueue, row: BatchRow) -> None:
        self.queue = queue
        self.number = row.number
        self.start = row.start
        self.bits = 0
        self.pop_ms = row.pop_ms if row.pop_ms >= 0 else ~row.pop_ms  # of what waits for its copies to be durable
        self.due_ms = row.due_ms


class PopState:
    """The state that the files describe.

    ==================  ==================================================================================
    ``queues``          `SavedQueue` by its reference, with its batches
    ``log_position``    copies below this position of the CommitLog are accounted for
    ``closed``          the journal was ended on purpose
    ``numbers``         of the files that are there
    ``highest``         the highest name of a batch
    ``damage``          sentences: what could not be read, and what that means
    ==================  ==================================================================================
    """

    def __init__(self, numbers: list[int]) -> None:
        self.queues: dict[int, SavedQueue] = {}
        self.log_position = 0
        self.closed = False
        self.numbers = numbers
        self.highest = 0
        self.damage: list[str] = []
        self._batches: dict[int, SavedBatch] = {}

    def take(self, frame: PopFrame) -> None:
        """Do what a frame says."""
        self.log_position = frame.log_position
        self.closed = bool(frame.flags & CLOSED)
        for row in read_rows(frame.rows):
            self._apply(row)

    def _apply(self, row: Row) -> None:
        if isinstance(row, QueueRow):
            known = self.queues.get(row.ref)
            if known is None:
                self.queues[row.ref] = SavedQueue(row)
            else:
                known.next = row.next
        elif isinstance(row, BatchRow):
            self._add(row)
        elif isinstance(row, BlockRow):
            if row.ref in self.queues:  # else of one that the file before has: it comes again, with what it is then
                self.queues[row.ref].block = row.block
        elif row.kind == TAKEN:
            self._taken(row.name, row.value)
        elif row.name in self.queues:
            if row.kind == NEXT:
                self.queues[row.name].next = row.value
            elif row.kind == GONE:
                for number in self.queues.pop(row.name).batches:
                    del self._batches[number]

    def _add(self, row: BatchRow) -> None:
        self.highest = max(self.highest, row.number)
        queue = self.queues.get(row.ref)
        if queue is None:
            return
        if row.next >= 0:
            queue.next = row.next
        batch = self._batches.get(row.number)
        if batch is None:
            batch = self._batches[row.number] = queue.batches[row.number] = SavedBatch(queue, row)
        batch.bits |= row.bits

    def _taken(self, number: int, bits: int) -> None:
        batch = self._batches.get(number)
        if batch is not None:
            batch.bits &= ~bits
            if not batch.bits:
                del self._batches[number], batch.queue.batches[number]


def read_journal(files: Files, directory: Path, store_id: bytes) -> PopState:
    """Read all files of a directory. Raises StoreFormatError for a version that is not known, StoreError."""
    numbers = [int(name) for name in files.listdir(directory) if name.isdigit() and len(name) == len(file_name(0))]
    read = {number: _read(files, directory / file_name(number), store_id, number) for number in numbers}
    state = PopState(numbers)
    wholes = [number for number, file in read.items() if any(frame.flags & WHOLE for frame in file.frames)]
    if not wholes:
        if numbers:
            names = ", ".join(map(file_name, numbers))
            state.damage.append(f"{directory}: none of {names} can be read as a whole")
        return state
    number = max(wholes)
    while True:
        file, later = read[number], read.get(number + 1)
        goes_on = later is not None and later.frames and later.before[0] == number
        end = later.before[1] if later is not None and goes_on else file.end
        for frame in file.frames:
            if frame.end <= end:  # frames behind it are from a failed write, and were written again
                state.take(frame)
        if later is None or not goes_on or end > file.end:
            break
        number += 1
    if file.torn:
        state.damage.append(file.torn)
    if goes_on:
        state.damage.append(
            f"{directory / file_name(number + 1)} goes on at {end} of the file before it, which is torn"
        )
    return state


class _Read:
    """One file: the file before it, its frames, where they end, and what is wrong behind them."""

    def __init__(self) -> None:
        self.before = (-1, -1)
        self.frames: list[PopFrame] = []
        self.end = FILE_HEADER_BYTES
        self.torn = ""


def _read(files: Files, path: Path, store_id: bytes, number: int) -> _Read:
    data = files.read_file(path)
    found = _Read()
    try:
        header = read_header(data, store_id, number)
        if header is None:
            return found
        found.before = header
        seed = seed_of(store_id, number)
        while (frame := read_frame(data, found.end, seed)) is not None:
            list(read_rows(frame.rows))
            found.frames.append(frame)
            found.end = frame.end
    except StoreFormatError as error:
        raise StoreFormatError(f"{path} at {found.end}: {error}") from error
    if any(data[found.end :]):
        found.torn = f"{path} at {found.end}: what stands there is no whole frame"
    return found
