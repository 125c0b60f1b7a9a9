"""One open file of a store: reads, writes and syncs by position."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from store.disk.errors import StoreError, StoreFullError, SyncFailedError
from store.disk.system_calls import PREADV2, fallocate, gather_hot, hot_buffer, read_hot_into

__all__ = ["HOT_BYTES_MAX", "File", "disk_error"]

HOT_BYTES_MAX = 1 << 20
"""Larger reads of `File.pread_hot` are plain reads."""
_FALLOC_KEEP_SIZE = 1
_FALLOC_PUNCH_HOLE = 2
# The kernel takes no more buffers in one call.
_IOV_MAX = 1024
_ZERO_CHUNK = bytes(1 << 20)
_FULL = {
    errno.ENOSPC: "make room on this disk",
    errno.EDQUOT: "make room, or raise the owner's quota",
    errno.EFBIG: "raise the limit of the size of files (LimitFSIZE of the service, or ulimit -f)",
}
"""Errors that mean that there is no room, and what to do about each."""
_UNSUPPORTED = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))


def disk_error(doing: str, path: Path, cause: OSError) -> StoreError:
    """The error for a call that failed: what was done, to which file, why, and what to do if there is no room."""
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
        self._tells_hot = PREADV2 is not None

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data`` at ``offset``; short writes are continued. Raises StoreError."""
        try:
            written = os.pwrite(self._fd, data, offset)
            if written == len(data):
                return
            view = memoryview(data)
            while written < len(view):
                written += os.pwrite(self._fd, view[written:], offset + written)
        except OSError as cause:
            raise disk_error(f"cannot write {len(data)} bytes at {offset} of", self.path, cause) from cause

    def pwritev(self, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """Write the buffers one behind the other from ``offset`` on, without joining them first. Raises StoreError."""
        for start in range(0, len(buffers), _IOV_MAX):
            part = buffers[start : start + _IOV_MAX]
            size = sum(map(len, part))
            try:
                written = os.pwritev(self._fd, part, offset)
            except OSError as cause:
                raise disk_error(f"cannot write {size} bytes at {offset} of", self.path, cause) from cause
            if written != size:
                self.pwrite(memoryview(b"".join(part))[written:], offset + written)
            offset += size

    def pread(self, n: int, offset: int) -> bytes:
        """Read up to ``n`` bytes; fewer only at the end of the file. May wait for the disk. Raises StoreError."""
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
            raise disk_error(f"cannot read {n} bytes at {offset} of", self.path, cause) from cause
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer. Returns the bytes read, fewer only at the end of the file. Raises StoreError."""
        got = 0
        try:
            while got < len(buffer):
                count = os.preadv(self._fd, [buffer[got:]], offset + got)
                if not count:
                    break
                got += count
        except OSError as cause:
            raise disk_error(f"cannot read {len(buffer)} bytes at {offset} of", self.path, cause) from cause
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

    def pread_hot_into(self, buffer: memoryview, offset: int) -> bool:
        """Fill a buffer as `pread_hot` reads; False unless all of it is in the file and in memory. Raises StoreError.

        After False the buffer may contain anything.
        """
        if self._tells_hot:
            failed = read_hot_into(self._fd, buffer, offset)
            if self._hot_is_known(failed, len(buffer), offset):
                return not failed
        return self.pread_into(buffer, offset) == len(buffer)

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
        failed = gather_hot(self._fd, spans, total)
        if not failed:
            return hot_buffer.bytes(total)
        self._hot_is_known(failed, total, spans[0][0])
        return None

    def _hot_is_known(self, failed: int, n: int, offset: int) -> bool:
        """True if the system has told what is in memory, by an errno or 0. Raises StoreError for other failures."""
        if failed in _UNSUPPORTED:
            self._tells_hot = False
        elif failed not in (0, errno.EAGAIN):
            cause = OSError(failed, os.strerror(failed))
            raise disk_error(f"cannot read {n} bytes at {offset} of", self.path, cause)
        return self._tells_hot

    def sync(self) -> None:
        """Make the content durable (fdatasync). After a failure the unsynced bytes must be written again.

        Raises SyncFailedError.
        """
        try:
            # Unlike fsync it leaves out times; a changed size it writes.
            os.fdatasync(self._fd)
        except OSError as cause:
            raise SyncFailedError(
                f"cannot sync {self.path}: {cause.strerror or cause} (errno {cause.errno})"
            ) from cause

    def size(self) -> int:
        """Size in bytes. Raises StoreError."""
        try:
            return os.fstat(self._fd).st_size
        except OSError as cause:
            raise disk_error("cannot stat", self.path, cause) from cause

    def truncate(self, n: int) -> None:
        """Set the size to ``n`` bytes; added bytes are a hole that reads as zeros. Raises StoreError."""
        try:
            os.ftruncate(self._fd, n)
        except OSError as cause:
            raise disk_error(f"cannot set size {n} of", self.path, cause) from cause

    def zero(self, offset: int, n: int) -> None:
        """Write ``n`` real zeros at ``offset``: blocks are allocated, later writes there need no metadata."""
        end = offset + n
        while offset < end:
            size = min(len(_ZERO_CHUNK), end - offset)
            self.pwrite(_ZERO_CHUNK if size == len(_ZERO_CHUNK) else bytes(size), offset)
            offset += size

    def punch(self, offset: int, n: int) -> bool:
        """Make ``n`` bytes at ``offset`` a hole that reads as zeros, size kept; False where unsupported.

        Raises StoreError.
        """
        if n <= 0:
            return True
        failed = fallocate(self._fd, _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE, offset, n)
        if failed == 0:
            return True
        if failed in _UNSUPPORTED:
            return False
        cause = OSError(failed, os.strerror(failed))
        raise disk_error(f"cannot punch {n} bytes at {offset} of", self.path, cause) from cause

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
        """Reserve disk space for ``n`` bytes at ``offset``, size kept; False where that is unsupported.

        Raises StoreError.
        """
        failed = fallocate(self._fd, _FALLOC_KEEP_SIZE, offset, n)
        if failed == 0:
            return True
        if failed in _UNSUPPORTED:
            return False
        cause = OSError(failed, os.strerror(failed))
        raise disk_error(f"cannot reserve {n} bytes at {offset} of", self.path, cause) from cause

    def close(self) -> None:
        """Close the descriptor; a second call does nothing. Does not sync."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"File({str(self.path)!r})"
