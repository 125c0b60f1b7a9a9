"""The store's only access to the disk: no other file of this package opens, syncs, renames, removes or locks.

Everything that changes state is a method of `Files` or `File`, so a test or a simulation replaces both, and
sees (and breaks) every write, sync and rename in the order in which the store asked for them.

What the disk promises, and what not (the rest of the store is built on exactly this):

- ``pwrite`` is visible to readers at once and durable after ``sync`` of the same file; before that a power
  cut may keep any part of it, in any order.
- After a *failed* sync the kernel has dropped the dirty pages: the bytes must be written again before a sync
  that returns well means anything.
- A new name, a rename and a removal are durable after ``sync_dir`` of the directory that holds the name.
- A write past the end of the free space fails as a whole or in part (`StoreFullError`); what got through is
  unknown, so callers write again at the same position.

No memory maps: a full disk under a map is SIGBUS, under pwrite it is an error with a name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from stat import S_IMODE

from store.disk.errors import StoreError, StoreFullError, StoreLockedError, SyncFailedError

__all__ = ["HOT_BYTES_MAX", "File", "Files"]

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
"""Mode of new files, readable by the owner only: they contain messages, and settings with passwords."""
HOT_BYTES_MAX = 1 << 20
"""Larger reads of `File.pread_hot` are plain reads."""
_FALLOC_KEEP_SIZE = 1
_FALLOC_PUNCH_HOLE = 2
_IOV_MAX = 1024
_ZERO_CHUNK = bytes(1 << 20)
_FULL = {
    errno.ENOSPC: "make room on this disk",
    errno.EDQUOT: "make room, or raise the owner's quota",
    errno.EFBIG: "raise the limit of the size of files (LimitFSIZE of the service, or ulimit -f)",
}
"""Errors that mean that there is no room, and what to do about each."""
_UNSUPPORTED = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
_LOCK_TEXT = b"lock"


def _error(doing: str, path: Path, cause: OSError) -> StoreError:
    text = f"{doing} {path}: {cause.strerror or cause} (errno {cause.errno})"
    advice = _FULL.get(cause.errno or 0)
    return StoreError(text) if advice is None else StoreFullError(f"{text}; {advice}")


class File:
    """One open file, addressed by position; safe to use from several threads at once.

    Writes are complete or raise: `StoreFullError` when there is no room, `StoreError` for everything else.
    After an error any part of the data may have been written. ``close`` may only be called when no other thread is
    reading. If other threads may be reading, drop the reference instead: the last one closes the file.
    """

    __slots__ = ("_fd", "_tells_hot", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._tells_hot = _PREADV2 is not None

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data`` at ``offset``; short writes are continued."""
        try:
            written = os.pwrite(self._fd, data, offset)
            if written == len(data):
                return
            view = memoryview(data)
            while written < len(view):
                written += os.pwrite(self._fd, view[written:], offset + written)
        except OSError as cause:
            raise _error(f"cannot write {len(data)} bytes at {offset} of", self.path, cause) from cause

    def pwritev(self, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """Write the buffers one behind the other from ``offset`` on, without joining them first."""
        for start in range(0, len(buffers), _IOV_MAX):
            part = buffers[start : start + _IOV_MAX]
            size = sum(map(len, part))
            try:
                written = os.pwritev(self._fd, part, offset)
            except OSError as cause:
                raise _error(f"cannot write {size} bytes at {offset} of", self.path, cause) from cause
            if written != size:
                self.pwrite(memoryview(b"".join(part))[written:], offset + written)
            offset += size

    def pread(self, n: int, offset: int) -> bytes:
        """Read up to ``n`` bytes; fewer only at the end of the file. May wait for the disk."""
        try:
            data = os.pread(self._fd, n, offset)
            if len(data) == n or not data:
                return data
            parts = [data]
            got = len(data)
            while got < n:
                data = os.pread(self._fd, n - got, offset + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
        except OSError as cause:
            raise _error(f"cannot read {n} bytes at {offset} of", self.path, cause) from cause
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer; answers how many bytes there were (fewer only at the end of the file)."""
        got = 0
        try:
            while got < len(buffer):
                count = os.preadv(self._fd, [buffer[got:]], offset + got)
                if not count:
                    break
                got += count
        except OSError as cause:
            raise _error(f"cannot read {len(buffer)} bytes at {offset} of", self.path, cause) from cause
        return got

    def pread_hot(self, n: int, offset: int) -> bytes | None:
        """Read ``n`` bytes if all of them are in the page cache; None if that would wait for the disk.

        The trick: `ctypes.PyDLL` calls preadv2 without releasing the interpreter lock. A copy from the page cache takes
        a microsecond; getting the lock back from a busy thread takes up to a switch interval, which a batch of
        scattered records would pay for each of them. On a file system without RWF_NOWAIT this is a plain read.
        """
        if n > HOT_BYTES_MAX or not self._tells_hot:
            return self.pread(n, offset)
        data = self._hot(((offset, n),), n)
        if data is not None:
            return data
        if self._tells_hot and offset + n <= self.size():
            return None
        return self.pread(n, offset)  # the file ends within these bytes, or its file system has no RWF_NOWAIT

    def gather_hot(self, spans: Sequence[tuple[int, int]]) -> bytes | None:
        """Read many (offset, size) pairs into one buffer, as `pread_hot` does; None unless all are in memory.

        It takes a microsecond for each read of a kilobyte, half the cost of single calls.
        """
        total = sum([n for _, n in spans])
        if total <= HOT_BYTES_MAX and self._tells_hot:
            data = self._hot(spans, total)
            if data is not None or self._tells_hot:
                return data
        data = b"".join([self.pread(n, offset) for offset, n in spans])
        return data if len(data) == total else None

    def _hot(self, spans: Sequence[tuple[int, int]], total: int) -> bytes | None:
        failed = _gather_hot(self._fd, spans, total)
        if not failed:
            return _hot.bytes(total)
        if failed in _UNSUPPORTED:
            self._tells_hot = False
        elif failed != errno.EAGAIN:
            cause = OSError(failed, os.strerror(failed))
            raise _error(f"cannot read {total} bytes at {spans[0][0]} of", self.path, cause)
        return None

    def sync(self) -> None:
        """Make the content durable (fdatasync). After a failure the unsynced bytes must be written again."""
        try:
            os.fdatasync(self._fd)
        except OSError as cause:
            raise SyncFailedError(
                f"cannot sync {self.path}: {cause.strerror or cause} (errno {cause.errno})"
            ) from cause

    def size(self) -> int:
        """Size in bytes."""
        try:
            return os.fstat(self._fd).st_size
        except OSError as cause:
            raise _error("cannot stat", self.path, cause) from cause

    def truncate(self, n: int) -> None:
        """Set the size to ``n`` bytes; added bytes are a hole that reads as zeros."""
        try:
            os.ftruncate(self._fd, n)
        except OSError as cause:
            raise _error(f"cannot set size {n} of", self.path, cause) from cause

    def zero(self, offset: int, n: int) -> None:
        """Write ``n`` real zeros at ``offset``: blocks are allocated, later writes there need no metadata."""
        end = offset + n
        while offset < end:
            size = min(len(_ZERO_CHUNK), end - offset)
            self.pwrite(_ZERO_CHUNK if size == len(_ZERO_CHUNK) else bytes(size), offset)
            offset += size

    def punch(self, offset: int, n: int) -> bool:
        """Make ``n`` bytes at ``offset`` a hole that reads as zeros, size kept; False where unsupported."""
        if n <= 0:
            return True
        failed = _fallocate(self._fd, _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE, offset, n)
        if failed == 0:
            return True
        if failed in _UNSUPPORTED:
            return False
        cause = OSError(failed, os.strerror(failed))
        raise _error(f"cannot punch {n} bytes at {offset} of", self.path, cause) from cause

    def clear(self, offset: int, n: int, unsure: int = 0) -> None:
        """Make ``n`` bytes at ``offset`` read as zeros: by a hole or, where that is unsupported, by writing zeros over
        non-zero bytes.

        The first ``unsure`` bytes may differ between page cache and disk: zeros of an earlier try whose sync failed are
        in the page cache only. There zeros are always written.
        """
        if self.punch(offset, n):
            return
        end = offset + n
        sure = min(end, offset + unsure)
        for at, size in self.blocks(offset, sure - offset):
            self.zero(at, size)
        offset = sure
        while offset < end:
            data = self.pread(min(len(_ZERO_CHUNK), end - offset), offset)
            if not data:
                break
            if data.count(0) != len(data):
                self.zero(offset, len(data))
            offset += len(data)

    def blocks(self, offset: int, n: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, size) of ranges that may contain data; the rest is holes, which use no disk space."""
        end = min(offset + n, self.size())
        while offset < end:
            try:
                offset = os.lseek(self._fd, offset, os.SEEK_DATA)
                stop = min(os.lseek(self._fd, offset, os.SEEK_HOLE), end)
            except OSError as cause:
                if cause.errno == errno.ENXIO:
                    return  # no data behind the offset
                stop = end  # a file system without SEEK_DATA
            if offset < stop:
                yield offset, stop - offset
            offset = stop

    def allocate(self, offset: int, n: int) -> bool:
        """Reserve disk space for ``n`` bytes at ``offset``, size kept; False where that is unsupported."""
        failed = _fallocate(self._fd, _FALLOC_KEEP_SIZE, offset, n)
        if failed == 0:
            return True
        if failed in _UNSUPPORTED:
            return False
        cause = OSError(failed, os.strerror(failed))
        raise _error(f"cannot reserve {n} bytes at {offset} of", self.path, cause) from cause

    def close(self) -> None:
        """Close the descriptor; a second call does nothing. Does not sync."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"File({str(self.path)!r})"


class Files:
    """The file system as the store sees it; errors are `StoreError` with the path and the cause."""

    def __init__(self) -> None:
        self._durable: set[Path] = set()  # directories whose names `makedirs` has synced, or found durable

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> File:
        """Open to read and write; ``create`` makes it if missing, ``size`` grows it (sparse) if smaller.

        A new name is durable only after `sync_dir` of its directory.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), FILE_MODE)
        except OSError as cause:
            raise _error("cannot open", path, cause) from cause
        file = File(path, fd)
        try:
            if size is not None and file.size() < size:
                file.truncate(size)
        except BaseException:
            file.close()
            raise
        return file

    def open_to_read(self, path: Path) -> File:
        """Open an existing file read-only."""
        try:
            return File(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as cause:
            raise _error("cannot open", path, cause) from cause

    def open_to_others(self, path: Path) -> int:
        """The permission bits of group and others; 0 if the name does not exist."""
        try:
            return path.stat().st_mode & 0o077
        except FileNotFoundError:
            return 0
        except OSError as cause:
            raise _error("cannot stat", path, cause) from cause

    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as cause:
            raise _error("cannot list", path, cause) from cause

    def exists(self, path: Path) -> bool:
        """Whether the name exists, as a file or a directory."""
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        """Whether the name is a directory."""
        return path.is_dir()

    def makedirs(self, path: Path) -> None:
        """Create a directory and its parents; their names are durable on return, also those that existed already.

        An earlier process may have been killed between creating a directory and syncing its parent. A power cut would
        take that directory, with everything that this process puts into it. Directories are created one by one, so only
        the deepest existing one can be in that state.
        """
        missing: list[Path] = []
        step = path
        while not self.is_dir(step):
            missing.append(step)
            if step.parent == step:
                break
            step = step.parent
        if step not in self._durable:
            try:
                self.sync_dir(step.parent)
            except SyncFailedError:
                raise
            except StoreError:
                pass  # a parent that cannot be opened to sync it: no process of ours can have created a directory in it
            self._durable.add(step)
        for directory in reversed(missing):
            self._durable.discard(directory)  # a directory that was removed since
            self.mkdir(directory)
            self.sync_dir(directory.parent)
            self._durable.add(directory)

    def mkdir(self, path: Path) -> None:
        """Create one directory unless it exists; its name is durable after `sync_dir` of its parent."""
        try:
            path.mkdir(DIRECTORY_MODE, exist_ok=True)
        except OSError as cause:
            raise _error("cannot make directory", path, cause) from cause

    def remove(self, path: Path) -> None:
        """Remove a file, or an empty directory; nothing happens when it is missing."""
        try:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        except OSError as cause:
            raise _error("cannot remove", path, cause) from cause

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing ``target``; durable after `sync_dir`."""
        try:
            source.replace(target)
        except OSError as cause:
            raise _error(f"cannot rename to {target}", source, cause) from cause

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as cause:
            raise _error("cannot open directory", path, cause) from cause
        try:
            os.fsync(fd)
        except OSError as cause:
            raise SyncFailedError(f"cannot sync directory {path}: {cause.strerror} (errno {cause.errno})") from cause
        finally:
            os.close(fd)

    def read_file(self, path: Path) -> bytes:
        """Read a whole file, also one that may not be written."""
        file = self.open_to_read(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def replace_file(self, path: Path, data: bytes) -> None:
        """Write a whole file so that after any crash the old or the new content is there, never a mixture."""
        temporary = path.with_name(path.name + ".tmp")
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_dir(path.parent)

    def replace_kept(self, path: Path, data: bytes) -> None:
        """Like `replace_file`, for a file outside the store: follows symbolic links, keeps mode and owner."""
        path = path.resolve()
        temporary = path.with_name(path.name + ".tmp")
        try:
            before = path.stat()
            temporary.unlink(missing_ok=True)
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as cause:
            raise _error("cannot replace", path, cause) from cause
        file = File(temporary, fd)
        try:
            made = os.fstat(fd)
            if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                os.fchown(fd, before.st_uid, before.st_gid)
            os.fchmod(fd, S_IMODE(before.st_mode))
            file.pwrite(data, 0)
            file.sync()
        except OSError as cause:
            self.remove(temporary)
            raise _error("cannot keep owner and mode of", path, cause) from cause
        except StoreError:
            self.remove(temporary)
            raise
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_dir(path.parent)

    def read_replaced(self, path: Path) -> bytes:
        """Read a file that `replace_file` writes; the version read is durable on return.

        The process that wrote it may have been killed between the rename and the sync of the name. Without a sync here,
        a power cut could take this version away and keep data that rely on it.
        """
        data = self.read_file(path)
        self.sync_dir(path.parent)
        return data

    def free_name(self, path: Path) -> Path:
        """The path if nothing is there, else the first free ``NAME.number``."""
        number = 0
        target = path
        while self.exists(target):
            number += 1
            target = path.with_name(f"{path.name}.{number}")
        return target

    def move_aside(self, path: Path) -> Path:
        """Rename an unknown file to a free ``NAME.aside[.number]``; returns that path."""
        target = self.free_name(path.with_name(f"{path.name}.aside"))
        self.rename(path, target)
        self.sync_dir(path.parent)
        return target

    def lock(self, path: Path) -> Callable[[], None]:
        """Take the exclusive lock of a store directory, or raise `StoreLockedError`; returns a function that unlocks.

        It is a POSIX record lock on byte 0 of ``path``, like Apache RocketMQ's, so that its broker and ours exclude
        each other. Such a lock does not exclude the same process, so a registry does that.
        """
        return _lock(path)

    def free_bytes(self, path: Path) -> tuple[int, int]:
        """(bytes free for us, all bytes except those reserved for root) of the file system of ``path``.

        So 1 - free / all is the used share as `df` and Apache's broker compute it.
        """
        try:
            stat = os.statvfs(path)
        except OSError as cause:
            raise _error("cannot stat file system of", path, cause) from cause
        kept_blocks = stat.f_bfree - stat.f_bavail
        return stat.f_bavail * stat.f_frsize, (stat.f_blocks - kept_blocks) * stat.f_frsize

    def mtime_ms(self, path: Path) -> int:
        """Time of the last change, epoch milliseconds."""
        try:
            return path.stat().st_mtime_ns // 1_000_000
        except OSError as cause:
            raise _error("cannot stat", path, cause) from cause

    def set_mtime_ms(self, path: Path, time_ms: int) -> None:
        """Set the time of the last change, epoch milliseconds."""
        try:
            os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))
        except OSError as cause:
            raise _error("cannot set time of", path, cause) from cause

    def file_size(self, path: Path) -> int:
        """Size in bytes."""
        try:
            return path.stat().st_size
        except OSError as cause:
            raise _error("cannot stat", path, cause) from cause


_LIBC = ctypes.CDLL(None, use_errno=True)
# PyDLL, unlike CDLL, keeps the interpreter lock during the call: see `File.pread_hot`.
_PREADV2 = getattr(ctypes.PyDLL(None, use_errno=True), "preadv2", None)
if _PREADV2 is not None:
    _PREADV2.restype = ctypes.c_int
_ONE = ctypes.c_int(1)
_RWF_NOWAIT = ctypes.c_int(8)


class _HotBuffer(threading.local):
    """A thread's own buffer and arguments of preadv2(2) for `_gather_hot`: creating them costs more than the call."""

    def __init__(self) -> None:
        self.fd = ctypes.c_int()
        self.offset = ctypes.c_int64()
        self.iovec = (ctypes.c_uint64 * 2)()  # a struct iovec
        self.iovec_address = ctypes.c_void_p(ctypes.addressof(self.iovec))
        self.size = 0
        self.grow(64 << 10)

    def grow(self, size: int) -> None:
        """Make room for a number of bytes."""
        if size > self.size:
            self.size = size
            self._memory = ctypes.create_string_buffer(size)
            self.address = ctypes.addressof(self._memory)

    def bytes(self, size: int) -> bytes:
        """The first bytes of it."""
        return ctypes.string_at(self.address, size)


_hot = _HotBuffer()


def _gather_hot(fd: int, spans: Sequence[tuple[int, int]], total: int) -> int:
    """Read (offset, size) pairs, ``total`` bytes, one after the other into the thread's buffer; return 0 or the errno.

    EAGAIN: some bytes are not in memory, or not in the file.
    """
    call = _PREADV2
    assert call is not None
    hot = _hot
    hot.grow(total)
    hot.fd.value = fd
    own_fd, iovec, iovec_address, own_offset = hot.fd, hot.iovec, hot.iovec_address, hot.offset
    at = hot.address
    for offset, n in spans:
        iovec[0] = at
        iovec[1] = n
        own_offset.value = offset
        while (got := call(own_fd, iovec_address, _ONE, own_offset, _RWF_NOWAIT)) != n:
            failed = ctypes.get_errno() if got < 0 else errno.EAGAIN
            if failed != errno.EINTR:
                return failed
        at += n
    return 0


def _fallocate(fd: int, mode: int, offset: int, n: int) -> int:
    """Call fallocate(2): 0, or the errno."""
    call = getattr(_LIBC, "fallocate64", None) or getattr(_LIBC, "fallocate", None)
    if call is None:
        return errno.ENOSYS
    while True:
        if call(ctypes.c_int(fd), ctypes.c_int(mode), ctypes.c_int64(offset), ctypes.c_int64(n)) == 0:
            return 0
        failed = ctypes.get_errno()
        if failed != errno.EINTR:
            return failed


_held_lock = threading.Lock()
_held: set[tuple[int, int]] = set()  # (device, inode) of the lock files that this process holds


def _lock(path: Path) -> Callable[[], None]:
    with _held_lock:
        try:
            if path.exists():
                stat = path.stat()
                if (stat.st_dev, stat.st_ino) in _held:
                    # Not opened: closing any descriptor of it would drop the lock that this process holds.
                    raise StoreLockedError(f"{path} is locked: the store is already open in this process")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as cause:
            raise _error("cannot open lock file", path, cause) from cause
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            if os.fstat(fd).st_size == 0:
                os.pwrite(fd, _LOCK_TEXT, 0)
        except OSError as cause:
            os.close(fd)
            if cause.errno in (errno.EACCES, errno.EAGAIN):
                raise StoreLockedError(f"{path} is locked: another process has this store open") from cause
            raise _error("cannot lock", path, cause) from cause
        stat = os.fstat(fd)
        key = (stat.st_dev, stat.st_ino)
        _held.add(key)

    def release() -> None:
        with _held_lock:
            if key in _held:
                _held.discard(key)
                with contextlib.suppress(OSError):
                    os.close(fd)

    return release
