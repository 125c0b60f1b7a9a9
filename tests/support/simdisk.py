"""A disk in memory that can be broken: power cuts that keep any part of what was not synced, failures, full disks.

What a file holds is kept twice: as the process sees it, and as the medium has it. A write changes the first and is
remembered; a sync carries to the medium what was remembered when it was called; `SimDisk.power_cut` carries a random
part of it and forgets the rest: each sector stands as after any of the writes that touched it, whatever became of the
others, so writes are lost, kept, torn and reordered. Names work the same way, per directory and in order.

A *failed* sync does what Linux does: some of the remembered writes may have got through, the others are forgotten, so a
second sync proves nothing about them. A new directory is a name like any other: durable when its parent was synced.

``disk.fault(operation, path)`` is called before each state-changing operation and may raise; of a write that fails
so, a random part gets through (see `SimDisk.fail_at`). `SimDisk.crashed` makes a second disk, as it would be found if
the machine or the process died at this moment; the first one goes on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from store.disk.errors import StoreError, StoreFullError, StoreLockedError, SyncFailedError
from store.disk.file import File
from store.disk.files import Files

__all__ = ["PowerCut", "SimDisk", "SimInode"]

SECTOR = 512


class PowerCut(BaseException):
    """The machine goes off at this very operation. Call `SimDisk.power_cut` when it has come through."""


class SimInode:
    """A file of a `SimDisk`: as the process sees it, as the medium has it, and the steps between the two."""

    __slots__ = ("medium", "pending", "seen", "taken")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.medium = bytearray()
        self.pending: list[tuple[int, bytes] | int] = []  # writes (offset, data), or a new size
        self.taken = 0  # steps that were pending once and are not any more

    def copy(self) -> SimInode:
        """The same file on another disk."""
        other = SimInode()
        other.seen = self.seen[:]
        other.medium = self.medium[:]
        other.pending = self.pending[:]
        return other

    @property
    def stamp(self) -> int:
        """What a sync that begins now will cover."""
        return self.taken + len(self.pending)

    def write(self, data: bytes, offset: int) -> None:
        if not data:
            return
        if len(self.seen) < offset:
            self.seen.extend(bytes(offset - len(self.seen)))
        self.seen[offset : offset + len(data)] = data
        self.pending.append((offset, data))

    def resize(self, n: int) -> None:
        _resize(self.seen, n)
        self.pending.append(n)

    def sync(self, stamp: int) -> None:
        """Carry to the medium what was pending at ``stamp``; what a failed sync has forgotten stays lost."""
        count = max(0, stamp - self.taken)
        for step in self.pending[:count]:
            if isinstance(step, int):
                _resize(self.medium, step)
                continue
            offset, data = step
            if len(self.medium) < offset:
                self.medium.extend(bytes(offset - len(self.medium)))
            self.medium[offset : offset + len(data)] = data
        del self.pending[:count]
        self.taken += count

    def forget_pending(self, stamp: int, rng: random.Random) -> None:
        """What a failed sync leaves: sizes are metadata and survive, of the data any part, or none."""
        count = max(0, stamp - self.taken)
        keep = rng.choice((0.0, 0.0, 0.5, 0.9))
        if keep:
            self._carry(self.pending[:count], rng, keep, 0.0)
        kept = [step for step in self.pending[:count] if isinstance(step, int)]
        self.taken += count - len(kept)
        self.pending[:count] = kept

    def power_cut(self, rng: random.Random, keep: float) -> None:
        self._carry(self.pending, rng, keep, 0.9)
        self.taken += len(self.pending)
        self.pending.clear()
        self.seen = bytearray(self.medium)

    def _carry(self, steps: list[tuple[int, bytes] | int], rng: random.Random, keep: float, sizes: float) -> None:
        """Carry a random part of some steps to the medium."""
        lost: set[int] = set()  # sectors that stay as an earlier write has left them
        for step in steps:
            if isinstance(step, int):
                if rng.random() < sizes:
                    _resize(self.medium, step)
                continue
            offset, data = step
            whole = rng.random() < keep
            at = 0
            while at < len(data):
                sector = (offset + at) // SECTOR
                n = min(SECTOR - (offset + at) % SECTOR, len(data) - at)
                if sector not in lost and (whole or rng.random() < keep):
                    if len(self.medium) < offset + at:
                        self.medium.extend(bytes(offset + at - len(self.medium)))
                    self.medium[offset + at : offset + at + n] = data[at : at + n]
                else:
                    lost.add(sector)
                at += n


def _resize(data: bytearray, n: int) -> None:
    if n < len(data):
        del data[n:]
    else:
        data.extend(bytes(n - len(data)))


class SimFile(File):
    """An open file of a `SimDisk`."""

    __slots__ = ("disk", "inode")

    def __init__(self, disk: SimDisk, path: Path, inode: SimInode) -> None:
        super().__init__(path, -1)
        self.disk = disk
        self.inode = inode

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write, whole or in part."""
        off = self.disk.off
        try:
            self.disk.before("pwrite", self.path, (self.inode, data, offset))
        except (StoreError, PowerCut):
            if off:
                raise
            part = bytes(data)[: self.disk.rng.randint(0, len(data))]
            if part:
                self.inode.write(part, offset)
            raise
        self.inode.write(bytes(data), offset)
        if self.disk.watch is not None:
            self.disk.watch(self.path, offset, len(data))

    def pwritev(self, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """Write the joined buffers."""
        self.pwrite(b"".join(buffers), offset)

    def pread(self, n: int, offset: int) -> bytes:
        """Read what the process sees."""
        self.disk.reads += 1
        if self.disk.read_fault is not None:
            self.disk.read_fault(self.path)
        return bytes(self.inode.seen[offset : offset + n])

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer."""
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def pread_hot(self, n: int, offset: int) -> bytes | None:
        """Read, or say that it is cold."""
        return None if self.disk.cold else self.pread(n, offset)

    def pread_hot_into(self, buffer: memoryview, offset: int) -> bool:
        """Fill a buffer, or say that it is cold, or not there."""
        return not self.disk.cold and self.pread_into(buffer, offset) == len(buffer)

    def gather_hot(self, spans: Sequence[tuple[int, int]]) -> bytes | None:
        """Read many into one, or say that they are cold, or not there."""
        parts = [self.pread_hot(n, offset) or b"" for offset, n in spans]
        data = b"".join(parts)
        return data if len(data) == sum(n for _, n in spans) else None

    def sync(self) -> None:
        """Carry to the medium what was written before the call."""
        stamp = self.inode.stamp
        try:
            self.disk.before("sync", self.path)
        except SyncFailedError:
            self.inode.forget_pending(stamp, self.disk.rng)
            raise
        self.inode.sync(stamp)

    def size(self) -> int:
        """Size as seen."""
        return len(self.inode.seen)

    def truncate(self, n: int) -> None:
        """Set the size."""
        self.disk.before("truncate", self.path)
        self.inode.resize(n)

    def zero(self, offset: int, n: int) -> None:
        """Write zeros."""
        self.pwrite(bytes(n), offset)

    def punch(self, offset: int, n: int) -> bool:
        """Write zeros within the size, if this disk can."""
        if not self.disk.can_punch:
            return False
        n = min(n, len(self.inode.seen) - offset)
        if n > 0:
            self.disk.before("punch", self.path)
            self.inode.write(bytes(n), offset)
        return True

    def blocks(self, offset: int, n: int) -> Iterator[tuple[int, int]]:
        """All of it: a disk that knows no holes."""
        n = min(n, len(self.inode.seen) - offset)
        if n > 0:
            yield offset, n

    def allocate(self, offset: int, n: int) -> bool:  # noqa: ARG002
        """Reserve nothing."""
        return True

    def close(self) -> None:
        """Nothing to give back."""


class SimDisk(Files):
    """Files in memory. ``rng`` decides what a power cut keeps and how far a failing write gets."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.fault: Callable[[str, Path], None] | None = None
        self.read_fault: Callable[[Path], None] | None = None
        """Asked before each read of a file's content; may raise."""
        self.watch: Callable[[Path, int, int], None] | None = None
        """Told of each write that came through: file, offset, bytes."""
        self.doing: tuple[SimInode, bytes | bytearray | memoryview, int] | None = None
        """The write that ``fault`` is being asked about."""
        self.off = False
        """The power has failed, and `power_cut` (or `kill`) was not called yet: nothing has any effect."""
        self.can_punch = True
        self.cold = False
        self.free = 1 << 40
        self.total = 1 << 41
        self.reads = 0
        self.counts: Counter[str] = Counter()
        self._seen: dict[Path, SimInode | None] = {}  # None: a directory
        self._medium: dict[Path, SimInode | None] = {}
        self._pending: dict[Path, list[tuple[str, Path, SimInode | None]]] = {}
        self._locks: set[Path] = set()
        self._mtimes: dict[Path, int] = {}
        self.now_ms = 0

    # -------------------------------------------------------------------------------------- breaking it

    def before(
        self,
        operation: str,
        path: Path,
        doing: tuple[SimInode, bytes | bytearray | memoryview, int] | None = None,
    ) -> None:
        """Count a state-changing operation, and let the fault of the day happen."""
        if self.off:
            raise PowerCut
        self.counts[operation] += 1
        self.counts["all"] += 1
        if self.fault is not None:
            self.doing = doing
            try:
                self.fault(operation, path)
            except PowerCut:
                self.off = True  # whoever cleans up on the way out finds no disk any more
                raise

    def fail_at(self, operation: str, numbers: set[int], error: BaseException, match: str = "") -> None:
        """Fail the n-th calls (from 1, counted from now) of an operation ("all": of any)."""
        count = 0

        def fault(name: str, path: Path) -> None:
            nonlocal count
            if operation in ("all", name) and match in str(path):
                count += 1
                if count in numbers:
                    raise error

        self.fault = fault

    def power_cut(self, keep: float = 0.5) -> None:
        """Go off and on again: what was not synced survives in pieces, with probability ``keep`` each."""
        self.fault = None
        self.off = False
        self._locks.clear()
        self._durable.clear()  # what a process knows
        for pending in self._pending.values():
            for verb, path, inode in pending[: self.rng.randint(0, len(pending))]:
                _apply(self._medium, verb, path, inode)
        self._pending.clear()
        self._medium = {path: inode for path, inode in self._medium.items() if self._reachable(path)}
        for found in {id(i): i for i in self._medium.values() if i is not None}.values():
            found.power_cut(self.rng, keep)
        self._seen = dict(self._medium)

    def _reachable(self, path: Path) -> bool:
        return all(parent in self._medium or parent == Path(parent.anchor) for parent in path.parents)

    def copy(self) -> SimDisk:
        """A second disk with the same content, seen and on the medium, without locks and faults."""
        other = SimDisk(0)
        twins: dict[int, SimInode] = {}

        def twin(inode: SimInode | None) -> SimInode | None:
            if inode is None:
                return None
            found = twins.get(id(inode))
            if found is None:
                found = twins[id(inode)] = inode.copy()
            return found

        other._seen = {path: twin(inode) for path, inode in self._seen.items()}
        other._medium = {path: twin(inode) for path, inode in self._medium.items()}
        other._pending = {
            parent: [(verb, path, twin(inode)) for verb, path, inode in steps]
            for parent, steps in self._pending.items()
            if steps
        }
        other._mtimes = dict(self._mtimes)
        other.can_punch, other.free, other.total, other.now_ms = self.can_punch, self.free, self.total, self.now_ms
        return other

    def crashed(self, rng: random.Random, keep: float | None, doing: bool = False) -> SimDisk:
        """The disk as it is found if everything ends now; this one is not changed.

        ``keep``: the power fails, as in `power_cut`; None: only the process dies. ``doing``: it happens in the
        middle of the operation that ``fault`` is being asked about: of a write some part gets through.
        """
        half: tuple[SimInode, bytes, int] | None = None
        if doing and self.doing is not None:
            inode, data, offset = self.doing
            part = bytes(data)[: rng.randint(0, len(data))]
            if part:
                half = (inode, part, offset)
        if half is None:
            other = self.copy()
        else:
            inode, part, offset = half
            before = (inode.seen[:], len(inode.pending))
            inode.write(part, offset)
            other = self.copy()
            inode.seen = before[0]
            del inode.pending[before[1] :]
        other.rng = rng
        if keep is None:
            other.kill()
        else:
            other.power_cut(keep)
        return other

    def lose(self, paths: Sequence[Path]) -> None:
        """Take files, and directories with all that is in them, away for good, as somebody may between two starts."""
        for names in (self._seen, self._medium):
            for name in [name for name in names if any(name == path or path in name.parents for path in paths)]:
                del names[name]
        for path in paths:
            self._pending = {
                parent: [step for step in steps if step[1] != path and path not in step[1].parents]
                for parent, steps in self._pending.items()
            }

    def kill(self) -> None:
        """Kill the process only: the page cache survives, the locks do not."""
        self.fault = None
        self.off = False
        self._locks.clear()
        self._durable.clear()

    # -------------------------------------------------------------------------------------- Files

    def _name(self, verb: str, path: Path, inode: SimInode | None) -> None:
        _apply(self._seen, verb, path, inode)
        self._pending.setdefault(path.parent, []).append((verb, path, inode))

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> File:
        """Open."""
        inode = self._seen.get(path)
        if path in self._seen and inode is None:
            raise StoreError(f"cannot open {path}: is a directory")
        if inode is None:
            if not create:
                raise StoreError(f"cannot open {path}: No such file or directory")
            if not self.is_dir(path.parent):
                raise StoreError(f"cannot open {path}: no such directory")
            self.before("create", path)
            inode = SimInode()
            self._name("put", path, inode)
            self._mtimes[path] = self.now_ms
        file = SimFile(self, path, inode)
        if size is not None and file.size() < size:
            file.truncate(size)
        return file

    def open_to_read(self, path: Path) -> File:
        """The same."""
        return self.open(path)

    def open_to_others(self, path: Path) -> int:
        """There are no others."""
        del path
        return 0

    def listdir(self, path: Path) -> list[str]:
        """List."""
        if self._seen.get(path) is not None or self._behind_a_file(path):
            raise StoreError(f"cannot list {path}: Not a directory")
        start = f"{path}/"
        skip = len(start)
        names = (name[skip:] for name in map(str, self._seen) if name.startswith(start))
        return sorted(name for name in names if "/" not in name)

    def exists(self, path: Path) -> bool:
        """Whether there is such a name."""
        return path in self._seen

    def is_dir(self, path: Path) -> bool:
        """Whether it is a directory."""
        return path.parent == path or (path in self._seen and self._seen[path] is None)

    def mkdir(self, path: Path) -> None:
        """Make one; `makedirs` is the real one's."""
        if self._seen.get(path) is not None or self._behind_a_file(path):
            raise StoreError(f"cannot make directory {path}: File exists")
        if path not in self._seen:
            self.before("mkdir", path)
            self._name("put", path, None)

    def remove(self, path: Path) -> None:
        """Remove."""
        if self._behind_a_file(path):
            raise StoreError(f"cannot remove {path}: Not a directory")
        if path in self._seen:
            if self._seen[path] is None and self.listdir(path):
                raise StoreError(f"cannot remove {path}: Directory not empty")
            self.before("remove", path)
            self._name("drop", path, None)

    def rename(self, source: Path, target: Path) -> None:
        """Rename."""
        if source not in self._seen:
            raise StoreError(f"cannot rename {source}: No such file or directory")
        inode = self._seen[source]
        if inode is None:
            raise NotImplementedError(f"{source} is a directory: nobody has needed that yet")
        if not self.is_dir(target.parent) or self.is_dir(target):
            raise StoreError(f"cannot rename to {target}: no such directory, or one stands there")
        self.before("rename", source)
        if source == target:
            return
        _apply(self._seen, "put", target, inode)
        _apply(self._seen, "drop", source, None)
        if source.parent == target.parent:
            # One step, as a journalling file system makes it: never both names, never none.
            self._pending.setdefault(target.parent, []).append((f"move {source}", target, inode))
        else:
            self._pending.setdefault(target.parent, []).append(("put", target, inode))
            self._pending.setdefault(source.parent, []).append(("drop", source, None))

    def sync_dir(self, path: Path) -> None:
        """Make names durable."""
        if not self.is_dir(path):
            raise StoreError(f"cannot open directory {path}: No such file or directory")
        self.before("sync_dir", path)
        for verb, name, inode in self._pending.pop(path, []):
            _apply(self._medium, verb, name, inode)

    def lock(self, path: Path) -> Callable[[], None]:
        """Lock."""
        if path in self._locks:
            raise StoreLockedError(f"{path} is locked: the store is already open in this process")
        self._locks.add(path)
        self.open(path, create=True)
        return lambda: self._locks.discard(path)

    def free_bytes(self, path: Path) -> tuple[int, int]:  # noqa: ARG002
        """Free and total, as the test says."""
        return self.free, self.total

    def mtime_ms(self, path: Path) -> int:
        """Time of birth, or what was set."""
        if path not in self._seen:
            raise StoreError(f"cannot stat {path}: No such file or directory")
        return self._mtimes.get(path, 0)

    def file_size(self, path: Path) -> int:
        """Size."""
        inode = self._seen.get(path)
        if inode is None:
            raise StoreError(f"cannot stat {path}: No such file or directory")
        return len(inode.seen)

    def _behind_a_file(self, path: Path) -> bool:
        return any(self._seen.get(parent) is not None for parent in path.parents)

    def full(self) -> StoreFullError:
        """The error of a full disk."""
        return StoreFullError("cannot write: No space left on device (errno 28)")


def _apply(names: dict[Path, SimInode | None], verb: str, path: Path, inode: SimInode | None) -> None:
    if verb == "put":
        names[path] = inode
    elif verb.startswith("move "):
        source = Path(verb[5:])
        if names.get(source) is inode:
            names[path] = names.pop(source)
    else:
        names.pop(path, None)
