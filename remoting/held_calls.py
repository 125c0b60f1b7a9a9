"""recv and send on non-blocking sockets that keep the interpreter's lock.

A socket's own methods release the interpreter's lock around their system call, which takes 1-20 µs. If another thread
runs Python meanwhile (the sweeper with a few thousand due messages), the loop gets the lock back only after the switch
interval, half a millisecond. A turn over 17 connections releases it 34 times and then lasts 14 ms instead of 1.
The calls here do not release it: `ctypes.PyDLL` is documented to keep it. They never block, so no thread waits for a
peer.

`HeldCalls` does so only where it pays. A call through ctypes costs 0.6 µs more than the socket's method, so it is used
for 64 turns after a read that took 0.2 ms, which no read does by itself. And it does not keep the lock for long: after
0.3 ms the next call is the socket's own, so other threads get their part of each long turn. Compiled code has no other
place where they could get it. Decision 49 has the figures. (While deliveries are late it is 3 ms: the loop's turns are
short then, and it rests between them; decision 86.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol

__all__ = ["CONTENDED_S", "CONTENDED_TURNS", "HOLD_S", "SEND_MAX_BYTES", "HeldCalls"]

HOLD_S = 0.0003
CONTENDED_S = 0.0002
CONTENDED_TURNS = 64
SEND_MAX_BYTES = 64 << 10  # to copy more takes the kernel as long as a thread may wait

_MSG_DONTWAIT = 0x40  # as Linux defines them: only the files that open sockets import their module
_MSG_NOSIGNAL = 0x4000

_LIBC = ctypes.PyDLL(None)
_RECV = _LIBC.recv
_RECV.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_RECV.restype = ctypes.c_ssize_t
_SEND = _LIBC.send
_SEND.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
_SEND.restype = ctypes.c_ssize_t


class _Socket(Protocol):
    """The methods of a non-blocking socket that are used."""

    def recv_into(self, buffer: bytearray, /) -> int:
        """Read into a buffer."""

    def send(self, data: bytes, /) -> int:
        """Send what it takes."""


class HeldCalls:
    """Reads into one buffer, and sends; keeps the interpreter's lock over calls while other threads want it.

    >>> import socket, time
    >>> one, other = socket.socketpair()
    >>> buffer = bytearray(100)
    >>> calls = HeldCalls(time.monotonic, buffer)
    >>> calls.begin()
    >>> calls.send(one, one.fileno(), b"hello"), calls.recv(other, other.fileno()), bytes(buffer[:5])
    (5, 5, b'hello')
    >>> one.close(), other.close()
    (None, None)
    """

    __slots__ = ("_address", "_buffer", "_bytes", "_clock", "_size", "_turns", "_until_s", "held_count")

    def __init__(self, clock: Callable[[], float], buffer: bytearray) -> None:
        """``clock`` returns seconds, from any start. The buffer is for all reads; its size can no longer change."""
        self._clock = clock
        self._buffer = buffer
        self._size = len(buffer)
        self._bytes = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        self._address = ctypes.addressof(self._bytes)
        self._turns = 0  # that still keep the lock
        self._until_s = 0.0  # the lock is kept until then; 0.0: it is not kept
        self.held_count = 0
        """Calls that kept the lock."""

    def begin(self, hold_s: float = 0.0) -> None:
        """Note that a turn begins. With ``hold_s``, the lock is kept for so many seconds, whoever wants it."""
        if self._turns:
            self._turns -= 1
            self._until_s = self._clock() + max(HOLD_S, hold_s)
        else:
            self._until_s = self._clock() + hold_s if hold_s else 0.0

    def recv(self, sock: _Socket, fd: int) -> int:
        """Read once from a socket, whose file is ``fd``; return how many bytes, 0 at the end of the stream.

        Raises OSError; BlockingIOError if nothing is there.
        """
        before = self._clock()
        if before < self._until_s:
            count: int = _RECV(fd, self._address, self._size, _MSG_DONTWAIT)
            if count >= 0:
                self.held_count += 1
                return count
        # After an error, too: the socket's method raises it.
        count = sock.recv_into(self._buffer)
        now = self._clock()
        if now - before > CONTENDED_S:
            self._turns = CONTENDED_TURNS
        # This call has released the lock, so other threads had their chance: a new hold may begin.
        if self._turns:
            self._until_s = now + HOLD_S
        return count

    def send(self, sock: _Socket, fd: int, data: bytes) -> int:
        """Send what a socket takes; return how many bytes.

        Raises OSError; BlockingIOError if it takes nothing.
        """
        if self._until_s and len(data) <= SEND_MAX_BYTES and self._clock() < self._until_s:
            count: int = _SEND(fd, data, len(data), _MSG_DONTWAIT | _MSG_NOSIGNAL)
            if count >= 0:
                self.held_count += 1
                return count
        count = sock.send(data)
        if self._turns:
            self._until_s = max(self._until_s, self._clock() + HOLD_S)
        return count
