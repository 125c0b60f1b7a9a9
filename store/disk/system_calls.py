"""Linux calls that Python's ``os`` does not have, or has only without the interpreter lock."""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Sequence

__all__ = ["PREADV2", "fallocate", "gather_hot", "hot_buffer", "read_hot_into"]

_LIBC = ctypes.CDLL(None, use_errno=True)
# PyDLL, unlike CDLL, keeps the interpreter lock during the call: see `File.pread_hot`.
PREADV2 = getattr(ctypes.PyDLL(None, use_errno=True), "preadv2", None)
if PREADV2 is not None:
    PREADV2.restype = ctypes.c_int
_ONE = ctypes.c_int(1)
_RWF_NOWAIT = ctypes.c_int(8)


class _HotBuffer(threading.local):
    """A thread's own buffer and arguments of preadv2(2) for `gather_hot`: creating them costs more than the call."""

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


hot_buffer = _HotBuffer()


def gather_hot(fd: int, spans: Sequence[tuple[int, int]], total: int) -> int:
    """Read (offset, size) pairs, ``total`` bytes, one after the other into the thread's buffer; return 0 or the errno.

    EAGAIN: some bytes are not in memory, or not in the file.
    """
    hot_buffer.grow(total)
    return _read_hot(fd, spans, hot_buffer.address)


def _read_hot(fd: int, spans: Sequence[tuple[int, int]], at: int) -> int:
    """Read (offset, size) pairs to an address; return 0 or the errno."""
    call, hot = PREADV2, hot_buffer
    assert call is not None
    hot.fd.value = fd
    own_fd, iovec, iovec_address, own_offset = hot.fd, hot.iovec, hot.iovec_address, hot.offset
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


def read_hot_into(fd: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer as `gather_hot` does, without a copy of what was read; return 0 or the errno."""
    # The name keeps the object alive, and with it the address.
    target = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    return _read_hot(fd, ((offset, len(buffer)),), ctypes.addressof(target))


def fallocate(fd: int, mode: int, offset: int, n: int) -> int:
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
