"""Free TCP ports on 127.0.0.1, also several in a row (a broker takes its port, that - 2 and that + 1).

A port is free when it is picked, but perhaps not when it is used: other test runs pick ports, too. So if a process says
that its address is in use (`IN_USE`), start it again with other ports. Test runs side by side each pick from a part of
their own (``TIMEWHEEL_PORTS``, as ``FIRST-LAST``): not every process can be started again.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time

__all__ = ["IN_USE", "free_port", "free_ports_around", "wait_open"]

IN_USE = "Address already in use"
FIRST, LAST = 12_000, 31_999
_given: set[int] = set()
_lock = threading.Lock()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports_around(*offsets: int) -> int:
    """Find a port below the ephemeral range that is free together with its neighbours at these offsets.

    Raises OSError if there is none.
    """
    first, last = (os.environ.get("TIMEWHEEL_PORTS") or f"{FIRST}-{LAST}").split("-")
    with _lock:
        for _ in range(1000):
            port = random.randint(int(first) - min((0, *offsets)), int(last) - max((0, *offsets)))
            wanted = {port + offset for offset in (0, *offsets)}
            if not wanted & _given and all(map(_is_free, wanted)):
                _given.update(wanted)
                return port
    raise OSError("no free port found on 127.0.0.1")


def free_port() -> int:
    """Find one free port."""
    return free_ports_around()


def _open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def wait_open(port: int, seconds: float) -> bool:
    """Wait until something listens; False if nothing does in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if _open(port):
            return True
        time.sleep(0.05)
    return False
