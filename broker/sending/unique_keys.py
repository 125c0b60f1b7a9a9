"""Unique keys for messages whose client made none (UNIQ_KEY), in the form that Java's clients make them."""

from __future__ import annotations

import secrets

from broker.net.clock import month_start_ms
from remoting.messages.message import encode_host

__all__ = ["UniqueKeys"]

_MONTH_MAX_MS = 31 * 86_400_000


class UniqueKeys:
    """Makes keys of 32 hex digits: IPv4 address, two numbers of this process, ms since the month began, a counter.

    Tools read the time back from a key, so it is the local month's.

    >>> UniqueKeys("192.0.2.7", pid=0x1234, seed=0xDEADBEEF).next(0)[:20]
    'C00002071234DEADBEEF'
    """

    __slots__ = ("_counter", "_month_ms", "_prefix")

    def __init__(self, host: str, pid: int, seed: int | None = None) -> None:
        address = encode_host(host, 0)[:-4]
        if len(address) != 4:
            # A key has four bytes for the address: none of IPv6 fits.
            address = encode_host("127.0.0.1", 0)[:4]
        number = secrets.randbits(32) if seed is None else seed
        self._prefix = f"{address.hex().upper()}{pid & 0xFFFF:04X}{number:08X}"
        self._month_ms = -_MONTH_MAX_MS * 2
        self._counter = 0

    def next(self, now_ms: int) -> str:
        """Make the next key."""
        passed = now_ms - self._month_ms
        # Below 0 if the clock was set back beyond the month's start.
        if not 0 <= passed < _MONTH_MAX_MS:
            self._month_ms = month_start_ms(now_ms)
            passed = now_ms - self._month_ms
        self._counter += 1
        return f"{self._prefix}{passed & 0xFFFFFFFF:08X}{self._counter & 0xFFFF:04X}"
