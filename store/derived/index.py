"""`KeyIndex`: finds the CommitLog positions that may hold a message with a given key.

The problem
    Clients ask for messages by key, by unique key and by message id. Apache's IndexFile is a hash table of 420 MB with
    three random accesses for each key of each message. Every message has a key, so that is a price on every send.

The idea
    Sends only add a row (hash of the key, position, time) to a buffer. Later, off the hot path, the gathered rows are
    sorted by hash and written as an immutable *block*. A query bisects each block by hash. False hits are possible,
    misses are not; the caller compares the record itself. The index is derived: it knows up to which CommitLog position
    it is complete, and a start adds the keys behind that position again.

On disk, big-endian, in ``<store>/timewheel/keyindex/``
    ``<20 digits>.idx``: up to ``blocks_a_file`` blocks, back to back; named for the CommitLog position of the first.
    ``tail.idx``: one block with what was not yet a full block at a clean stop.

    ``docs/disk-format.md`` shows the bytes of a block; `remoting.layout` names them.

Cost: 0.4 µs a key when it is put; 0.1 µs a key later for sorting, in NumPy, which lets other threads run meanwhile.
(Rows of Python objects, hashed later, cost 1 µs and kept the interpreter lock from the network loop.) A query takes
about 34 ``pread`` calls for each block of 65,536 entries.

Threads: `append` and `covers` are called under the store's append lock; `step` takes it only to take over the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from remoting.layout import KEY_BLOCK_PROVEN_AT
from remoting.messages.checksum import crc32
from store.derived.key_blocks import KEY_BLOCK_HEAD, KEY_BLOCK_MAGIC, KeyBlock, KeyPart, rows_with
from store.derived.key_rows import ROW, ROWS, Column, key_hash, key_rows
from store.disk.errors import StoreCorruptError, StoreFormatError
from store.disk.file import File
from store.disk.files import Files

__all__ = ["KeyIndex"]

_TAIL = "tail.idx"
_FOLD_ENTRIES = 2_048


class KeyIndex:
    """Candidates for a key, newest first; see the module's text.

    Args:
        files: the one door to the disk.
        directory: ``<store>/timewheel/keyindex``; made when missing.
        lock: the lock under which `add` is called.
        block_entries: entries of a full block.
        blocks_a_file: full blocks of one file; a file is what retention removes.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        lock: AbstractContextManager[object],
        *,
        block_entries: int = 65_536,
        blocks_a_file: int = 64,
    ) -> None:
        self._files = files
        self._directory = directory
        self._lock = lock
        self._block_entries = block_entries
        self._blocks_a_file = blocks_a_file
        self._fold_at = min(_FOLD_ENTRIES, block_entries)
        self._pending = bytearray()  # rows, in the order of their positions
        self._pending_to = 0
        self._folding: Column = np.empty(0, ROWS)
        self._folding_to = 0
        self._parts: list[KeyPart] = []
        self._open: dict[str, tuple[File, list[KeyBlock]]] = {}
        self._tail_to = 0
        self.durable_to = 0

    def open(self, log_end: int) -> int:
        """Read the files; return the CommitLog position from which on messages must be added again.

        Torn blocks, and blocks with positions beyond ``log_end``, are cut off, because the index is derived data.
        Raises StoreFormatError for a block of a newer version.
        """
        self._files.makedirs(self._directory)
        names = [n for n in self._files.listdir(self._directory) if n.endswith(".idx") and n[:-4].isdigit()]
        for name in names:
            file = self._files.open(self._directory / name)
            blocks = self._read_blocks(file, log_end)
            if not blocks:
                file.close()
                self._files.remove(file.path)
                self._files.sync_dir(self._directory)
                continue
            self._open[name] = (file, blocks)
            self.durable_to = blocks[-1].to_offset
        if self._files.exists(self._directory / _TAIL):
            self._take_tail(log_end)
        self._pending_to = self._parts[-1].to_offset if self._parts else self.durable_to
        return self._pending_to

    def _read_blocks(self, file: File, log_end: int) -> list[KeyBlock]:
        blocks: list[KeyBlock] = []
        at, size = 0, file.size()
        while at < size:
            raw = file.pread(KEY_BLOCK_HEAD.size, at)
            head = KEY_BLOCK_HEAD.unpack(raw) if len(raw) == KEY_BLOCK_HEAD.size else (0,) * 8
            if head[0] != KEY_BLOCK_MAGIC and head[0] >> 8 == KEY_BLOCK_MAGIC >> 8:
                raise StoreFormatError(f"{file.path} at {at}: key index of another version (magic {head[0]:#x})")
            block = KeyBlock(file, at, head)
            # A block is synced before the next one is started, so only the last one can be torn.
            last = block.end >= size
            if (
                head[0] != KEY_BLOCK_MAGIC
                or block.to_offset > log_end
                or (last and not self._is_whole(block, size, head[2]))
            ):
                file.truncate(at)
                file.sync()  # synced, or a power cut would bring it back when the log has other messages there
                break
            blocks.append(block)
            at = block.end
        return blocks

    @staticmethod
    def _is_whole(block: KeyBlock, size: int, crc: int) -> bool:
        begin = block.at + KEY_BLOCK_PROVEN_AT
        return block.end == size and crc32(block.file.pread(size - begin, begin)) == crc

    def _take_tail(self, log_end: int) -> None:
        path = self._directory / _TAIL
        try:
            part = KeyPart.decode(self._files.read_file(path), str(path))
        except StoreCorruptError:
            return
        if part.to_offset > log_end:
            # The log was cut below it. If it stayed, it would count again after the next crash, when the log has grown
            # beyond it with other messages.
            self._files.remove(path)
            self._files.sync_dir(self._directory)
        elif part.from_offset == self.durable_to and len(part.hashes):
            self._parts.append(part)
            self._tail_to = part.to_offset

    def append(self, rows: bytes) -> None:
        """Add rows (see `store.derived.key_rows`), in the order of their positions (append lock)."""
        self._pending += rows

    def add(self, topic: str, keys: tuple[str, ...], offset: int, store_ms: int) -> None:
        """Add the keys of one message (append lock). A key that begins with NUL belongs to no topic."""
        self.append(key_rows(topic, keys, offset, store_ms))

    def covers(self, to_offset: int) -> None:
        """Note that everything below this CommitLog position has been added (append lock)."""
        self._pending_to = to_offset

    def step(self) -> bool:
        """Fold what has gathered, or write one full block; True if there is more to do. Not for the hot path."""
        if len(self._folding) or len(self._pending) >= self._fold_at * ROW.size:
            self._fold()
            return True
        if sum(len(part.hashes) for part in self._parts) >= self._block_entries:
            self._write_block()
            return True
        return False

    def _fold(self) -> None:
        """Sort a portion of the gathered rows."""
        if not len(self._folding):
            with self._lock:
                # Queries must always see the rows: add them to the new place before removing them from the old one.
                self._folding = np.frombuffer(bytes(self._pending), ROWS)
                self._pending = bytearray()
                self._folding_to = self._pending_to
        rows = self._folding
        cut = min(self._fold_at, len(rows))
        while 0 < cut < len(rows) and rows["position"][cut] == rows["position"][cut - 1]:
            cut += 1  # the keys of one message stay together
        portion, rest = rows[:cut], rows[cut:]
        to_offset = int(rest["position"][0]) if len(rest) else self._folding_to
        from_offset = self._parts[-1].to_offset if self._parts else self.durable_to
        part = KeyPart.of(portion["hash"], portion["position"], portion["store_ms"], from_offset, to_offset)
        # In this order, as above: a query sees a row twice rather than never.
        self._parts = [*self._parts, part]
        self._folding = rest

    def _joined(self) -> KeyPart:
        parts = self._parts
        return KeyPart.of(
            np.concatenate([p.hashes for p in parts]),
            np.concatenate([p.offsets for p in parts]),
            np.concatenate([p.times for p in parts]),
            parts[0].from_offset,
            parts[-1].to_offset,
        )

    def _write_block(self) -> None:
        part = self._joined()
        name = max(self._open, default="")
        if not name or len(self._open[name][1]) >= self._blocks_a_file:
            name = f"{part.from_offset:020d}.idx"
            self._open[name] = (self._files.open(self._directory / name, create=True), [])
        file, blocks = self._open[name]
        at = blocks[-1].end if blocks else 0
        data = part.encode()
        file.pwrite(data, at)
        file.sync()
        self._files.sync_dir(self._directory)
        # In this order: a query sees the rows twice rather than never.
        blocks.append(KeyBlock(file, at, KEY_BLOCK_HEAD.unpack_from(data)))
        self._parts = []
        self.durable_to = part.to_offset

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Find CommitLog positions that may hold this key, newest first; the caller compares the records.

        ``begin_ms`` and ``end_ms`` bound the store time, both inclusive. ``limit`` bounds the candidates.
        """
        wanted = key_hash(topic, key)
        found: dict[int, None] = {}
        for offset, ms in self._candidates(wanted, begin_ms, end_ms):
            if begin_ms <= ms <= end_ms:
                found[offset] = None
                if len(found) >= limit:
                    break
        return list(found)

    def _candidates(self, wanted: int, begin_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
        # Entries move from pending to folding to parts to blocks; reading in that order finds each at least once.
        # A copy: while an array looks at the bytearray itself, no append could make it longer.
        yield from rows_with(np.frombuffer(bytes(self._pending), ROWS), wanted)
        yield from rows_with(self._folding, wanted)
        for part in reversed(self._parts):
            yield from sorted(part.find(wanted), reverse=True)
        for name in sorted(self._open, reverse=True):
            for block in reversed(self._open.get(name, (None, []))[1]):
                if block.first_ms <= end_ms and block.last_ms >= begin_ms:
                    yield from sorted(block.find(wanted), reverse=True)

    def drop_before(self, offset: int) -> None:
        """Remove files whose entries all lie below a CommitLog position (retention)."""
        for name, (_, blocks) in list(self._open.items()):
            if blocks and len(blocks) >= self._blocks_a_file and blocks[-1].to_offset <= offset:
                self._drop(name)

    def _drop(self, name: str) -> None:
        file, _ = self._open.pop(name)
        self._files.remove(file.path)  # closed when the last reference goes: a query may still be reading

    def check(self) -> list[str]:
        """Return a sentence for each fault: gaps between blocks, hashes out of order, damaged blocks."""
        wrong: list[str] = []
        at: int | None = None
        for name in sorted(self._open):
            for block in self._open[name][1]:
                where = f"{block.file.path} at {block.at}"
                if at is not None and block.from_offset != at:
                    wrong.append(
                        f"{where}: begins at CommitLog position {block.from_offset}, the one before ends at {at}"
                    )
                try:
                    part = KeyPart.decode(block.file.pread(block.end - block.at, block.at), where)
                except StoreCorruptError as damage:
                    wrong.append(str(damage))
                else:
                    if np.any(part.hashes[1:] < part.hashes[:-1]):
                        wrong.append(f"{where}: hashes out of order")
                at = block.to_offset
        return wrong

    @property
    def saved_to(self) -> int:
        """CommitLog position up to which a restart finds every key on disk."""
        return max(self.durable_to, self._tail_to)

    def save_tail(self) -> None:
        """Write the rows that do not fill a block yet, so that a restart need not derive them (not on the hot path)."""
        while self._pending or len(self._folding):
            self._fold()
        if self._parts:
            joined = self._joined()
            self._files.replace_file(self._directory / _TAIL, joined.encode())
            self._parts = [joined]
            self._tail_to = joined.to_offset

    def skip_to(self, offset: int) -> None:
        """Set, before the first `add`, the CommitLog position below which nothing will be added."""
        self.reset()
        self.durable_to = self._pending_to = offset

    def reset(self) -> None:
        """Remove all entries, on disk too."""
        for name in list(self._open):
            self._drop(name)
        self._files.remove(self._directory / _TAIL)
        self._pending, self._folding, self._parts = bytearray(), np.empty(0, ROWS), []
        self.durable_to = self._pending_to = self._tail_to = 0

    def close(self) -> None:
        """Write the rows that do not fill a block yet, for a quick start, and close the files."""
        self.save_tail()
        for file, _ in self._open.values():
            file.close()
        self._open = {}
