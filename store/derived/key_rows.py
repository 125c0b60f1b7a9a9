"""The rows that the key index gathers in memory: the hash of a key, the position of its record, its store time.

Each put makes its own rows, for one key or ten thousand. So the index has one entrance only: `KeyIndex.append`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from remoting.layout import KEY_COLUMNS
from remoting.messages.checksum import crc32

__all__ = ["ROW", "ROWS", "Column", "delay_id_hashes", "key_base", "key_hash", "key_rows", "rows_of", "rows_of_columns"]

Column = npt.NDArray[Any]
ROW = KEY_COLUMNS.struct(order="<")
ROWS = np.dtype(KEY_COLUMNS.columns("<"))
"""In the machine's own order."""

_TOPICS_MAX = 10_000
_crc32: Final = crc32
"""Once more, as `Final`: compiled, a name that never changes is not looked up."""
_pack_row: Final = ROW.pack
_pack_2, _pack_3 = (Struct("<" + KEY_COLUMNS.codes() * count).pack for count in (2, 3))
_bases: Final[dict[str, int]] = {}  # topic to the CRC-32 of "topic#"
_NO_TOPIC: Final = crc32(b"#")
_DELAY_ID = crc32(b"\0", _NO_TOPIC)
"""The CRC-32 that hashes of delay ids start from, see `store.derived.dispatch.delivered_key`."""


def key_hash(topic: str, key: str) -> int:
    """The hash of a key: of ``topic#key``. A key that begins with NUL belongs to no topic."""
    return _hash(key, key_base(topic))


def key_base(topic: str) -> int:
    """The CRC-32 that hashes of this topic's keys start from: a hash is ``crc32(key, base)``."""
    base = _bases.get(topic)
    if base is None:
        if len(_bases) >= _TOPICS_MAX:
            _bases.clear()
        base = _bases[topic] = crc32(f"{topic}#".encode())
    return base


def key_rows(topic: str, keys: tuple[str, ...], position: int, store_ms: int) -> bytes:
    """The rows of one message."""
    # Looked up here, not by `key_base`: this runs for each message, and a hit saves the call.
    base = _bases.get(topic)
    if base is None:
        base = key_base(topic)
    if len(keys) == 1:
        return _pack_row(_hash(keys[0], base), position, store_ms)
    # One `pack` for all rows. Usual are: a unique key, a key, and the delay id of a delivered message.
    if len(keys) == 3:
        one, two, three = keys
        hash_3 = _hash(three, base)
        return _pack_3(
            _hash(one, base), position, store_ms, _hash(two, base), position, store_ms, hash_3, position, store_ms
        )
    if len(keys) == 2:
        one, two = keys
        return _pack_2(_hash(one, base), position, store_ms, _hash(two, base), position, store_ms)
    return b"".join([_pack_row(_hash(key, base), position, store_ms) for key in keys])


def _hash(key: str, base: int) -> int:
    return _crc32(key.encode(), _NO_TOPIC if key.startswith("\0") else base)


def rows_of(topic: str, keys: list[bytes], positions: Iterable[int], store_ms: int) -> bytes:
    """The rows of many messages of a topic, a key and a position for each; no key begins with NUL."""
    hashes = map(crc32, keys, repeat(key_base(topic)))
    return b"".join(map(_pack_row, hashes, positions, repeat(store_ms)))


def rows_of_columns(hashes: Column, positions: Column, store_ms: int) -> bytes:
    """The rows of keys by their hashes, a position for each."""
    rows = np.empty(len(hashes), ROWS)
    rows["hash"], rows["position"], rows["store_ms"] = hashes, positions, store_ms
    return rows.tobytes()


def delay_id_hashes(ids: list[bytes]) -> list[int]:
    """The hashes of the keys by which delivered messages are found."""
    return list(map(crc32, ids, repeat(_DELAY_ID)))
