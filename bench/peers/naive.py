"""The naive solution as a yardstick: a file for each second, swept once a second.

``python -m bench.peers.naive PORT FOLDER``. A message is a length, a letter for its topic, and a body that begins with
its due time in µs; it is appended to the file of its second and acknowledged. When a second is over, its file is read,
pushed to the topic's consumer (a connection that has sent length 0) and removed. A crash in the middle of a sweep
repeats it.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path

__all__ = ["Naive"]

_LENGTH = struct.Struct(">I")
_DUE = struct.Struct(">q")
_STAMPED = struct.Struct(">Iq")


class Naive:
    """The server: connections, and the folder with a file for each second."""

    def __init__(self, port: int, folder: Path) -> None:
        self._folder = folder
        self._listener = socket.create_server(("127.0.0.1", port))
        self._rests: dict[socket.socket, bytes] = {}
        self._consumers: dict[int, socket.socket] = {}

    def accept(self, sock: socket.socket, data: bytes) -> None:
        """Write what came into the files of its seconds, then acknowledge it."""
        data = self._rests[sock] + data
        at, count, seconds = 0, 0, dict[int, list[bytes]]()
        while at + 5 <= len(data) and at + 5 + (size := _LENGTH.unpack_from(data, at)[0]) <= len(data):
            if size == 0:
                self._consumers[data[at + 4]] = sock
            else:
                # The sweep of a second begins when it is over, so that nothing is early.
                second = _DUE.unpack_from(data, at + 5)[0] // 1_000_000 + 1
                seconds.setdefault(max(second, int(time.time()) + 1), []).append(data[at : at + 5 + size])
                count += 1
            at += 5 + size
        self._rests[sock] = data[at:]
        for second, frames in seconds.items():
            with open(self._folder / str(second), "ab") as file:
                file.write(b"".join(frames))
        if count:
            sock.sendall(b"+\r\n" * count)

    def sweep(self, now: float) -> None:
        """Push the files of all seconds that are over, in order."""
        due = sorted(int(path.name) for path in self._folder.iterdir() if int(path.name) <= now)
        for second in due if self._consumers else []:
            data, at = (self._folder / str(second)).read_bytes(), 0
            while at < len(data):
                (size,) = _LENGTH.unpack_from(data, at)
                consumer = self._consumers.get(data[at + 4])
                if consumer is not None:
                    consumer.sendall(_STAMPED.pack(size, time.time_ns() // 1000) + data[at + 5 : at + 5 + size])
                at += 5 + size
            (self._folder / str(second)).unlink()

    def serve(self) -> None:
        """Serve until a signal ends the process."""
        next_sweep = time.time()
        while True:
            timeout = max(0.0, next_sweep - time.time())
            for sock in select.select([self._listener, *self._rests], [], [], timeout)[0]:
                self._read(sock)
            if time.time() >= next_sweep:
                self.sweep(time.time())
                next_sweep = int(time.time()) + 1.0

    def _read(self, sock: socket.socket) -> None:
        if sock is self._listener:
            self._rests[sock.accept()[0]] = b""
            return
        data = b""
        with contextlib.suppress(ConnectionError):
            data = sock.recv(1 << 18)
        if data:
            self.accept(sock, data)
            return
        del self._rests[sock]
        self._consumers = {letter: other for letter, other in self._consumers.items() if other is not sock}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    place = Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    Naive(int(sys.argv[1]), place).serve()
