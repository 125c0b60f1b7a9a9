"""The ids that producers give to messages (UNIQ_KEY): what users see, search for and compare.

32 hex digits in the form that RocketMQ's tools take apart (MessageClientIDSetter)::

    IPv4 address 4 bytes | process id 2 | random 4 | milliseconds since the month began 4 | counter 2

The tools read the sending host and time from it, so it is not simply random. Two ids of one maker differ as long as it
makes fewer than 65,536 in a millisecond; two makers differ by the random part, drawn at start.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from ipaddress import IPv4Address

__all__ = ["UniqueIds"]


class UniqueIds:
    """Makes ids for one producer; not for several threads at once."""

    __slots__ = ("_counter", "_month_ends_ms", "_month_ms", "_prefix")

    def __init__(self, address: str = "127.0.0.1") -> None:
        try:
            packed = IPv4Address(address).packed
        except ValueError:
            packed = b"\x7f\0\0\1"
        self._prefix = (packed + (os.getpid() & 0xFFFF).to_bytes(2, "big") + os.urandom(4)).hex().upper()
        self._counter = int.from_bytes(os.urandom(2), "big")
        self._month_ms = self._month_ends_ms = 0

    def make(self, now_ms: int | None = None) -> str:
        """Make the next id."""
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        if not self._month_ms <= now < self._month_ends_ms:
            self._turn_month(now)
        self._counter = self._counter + 1 & 0xFFFF
        return f"{self._prefix}{now - self._month_ms:08X}{self._counter:04X}"

    def _turn_month(self, now_ms: int) -> None:
        first = datetime.fromtimestamp(now_ms // 1000, UTC).replace(day=1, hour=0, minute=0, second=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_ms = int(first.timestamp()) * 1000
        self._month_ends_ms = int(following.timestamp()) * 1000
