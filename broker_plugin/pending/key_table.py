"""The messages of all delay keys: 64-bit hashes of topic and key to delay ids, 24 bytes each, in memory.

A thousand small sorted arrays instead of one dict: an insert moves some hundred entries, and no more than a thousandth
of the table grows at once. So no caller ever waits while a large table is copied.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

__all__ = ["KeyTable"]

_SHARDS = 1024
_NEVER = 1 << 62


class KeyTable:
    """Hash to (delay id, due ms). The caller holds a lock.

    >>> table = KeyTable()
    >>> table.put(77, 5, 1000)
    >>> table.get(77), table.get(78), len(table)
    ((5, 1000), None, 1)
    """

    __slots__ = ("_count", "_dues", "_hashes", "_ids", "_place", "_soonest")

    def __init__(self) -> None:
        self._hashes = [array("Q") for _ in range(_SHARDS)]
        self._ids = [array("Q") for _ in range(_SHARDS)]
        self._dues = [array("q") for _ in range(_SHARDS)]
        self._soonest = [_NEVER] * _SHARDS
        """For each shard, a time before which nothing in it is due: `due_before` skips most shards by it."""
        self._count = 0
        self._place = 0, 0  # shard and index at which the next `due_before` begins

    def __len__(self) -> int:
        return self._count

    def get(self, key_hash: int) -> tuple[int, int] | None:
        """Delay id and due time (epoch ms) of the message that has the key; None if there is none."""
        shard = key_hash % _SHARDS
        hashes = self._hashes[shard]
        at = bisect_left(hashes, key_hash)
        if at < len(hashes) and hashes[at] == key_hash:
            return self._ids[shard][at], self._dues[shard][at]
        return None

    def put(self, key_hash: int, delay_id: int, due_ms: int) -> None:
        """Give the key to this message; a message that had it before has it no longer."""
        shard = key_hash % _SHARDS
        hashes = self._hashes[shard]
        self._soonest[shard] = min(self._soonest[shard], due_ms)
        at = bisect_left(hashes, key_hash)
        if at < len(hashes) and hashes[at] == key_hash:
            self._ids[shard][at], self._dues[shard][at] = delay_id, due_ms
            return
        hashes.insert(at, key_hash)
        self._ids[shard].insert(at, delay_id)
        self._dues[shard].insert(at, due_ms)
        self._count += 1

    def remove(self, key_hash: int, delay_id: int) -> None:
        """Free the key if this message has it."""
        shard = key_hash % _SHARDS
        at = bisect_left(self._hashes[shard], key_hash)
        if at < len(self._hashes[shard]) and self._hashes[shard][at] == key_hash and self._ids[shard][at] == delay_id:
            for column in (self._hashes[shard], self._ids[shard], self._dues[shard]):
                del column[at]
            self._count -= 1

    def due_before(self, due_ms: int, most: int) -> list[tuple[int, int]]:
        """At most ``most`` (hash, delay id) of messages that were due before ``due_ms``.

        Each call goes on where the last one ended, so that entries which must stay do not hide those behind them.
        """
        found: list[tuple[int, int]] = []
        begin, first = self._place
        for number in range(_SHARDS + 1):
            shard = (begin + number) % _SHARDS
            if self._soonest[shard] < due_ms:
                dues = self._dues[shard]
                self._soonest[shard] = min(dues, default=_NEVER)
                last = min(first, len(dues)) if number == _SHARDS else len(dues)
                for at in range(first if number == 0 else 0, last):
                    if dues[at] < due_ms:
                        if len(found) == most:
                            self._place = shard, at
                            return found
                        found.append((self._hashes[shard][at], self._ids[shard][at]))
        self._place = 0, 0
        return found
