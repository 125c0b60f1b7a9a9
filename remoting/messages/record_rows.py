"""Many finished records of one queue at once, for batches: their common part is packed once.

`RecordRows` makes the same bytes as `remoting.messages.record.encode_record` for each message. It keeps the parts of
the records and joins them when their position is known, so each byte of a body is copied only once on its way from the
request into the buffer that is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, count, repeat
from struct import error as struct_error
from typing import Final

from remoting.errors import MessageError
from remoting.layout import (
    BORN_HOST_V6,
    HOST_BYTES,
    HOST_BYTES_V6,
    HOSTS_V6,
    PREPARED_BACK,
    RECORD,
    STORE_HOST_V6,
    SYS_FLAG_AT,
    batch_head,
)
from remoting.layout.table import INT, LONG, SHORT
from remoting.messages.checksum import crc32
from remoting.messages.proof import PLAIN
from remoting.messages.record import MAX_PROPERTIES_BYTES, Message, topic_part

__all__ = ["RecordRows"]

_BORN = RECORD.struct("sys_flag", "born_ms")
_PROOF: Final = LONG.pack(PLAIN)[: INT.size]
"""The upper half of every record's prepared offset; the checksum is the lower half."""
_FIXED_BYTES: Final = SYS_FLAG_AT + LONG.size + PREPARED_BACK - len(_PROOF) + SHORT.size
"""All but what differs from batch to batch: up to sysflag, the store time, from the checksum on, two lengths."""
_HOST_BYTES = {HOST_BYTES: 0, HOST_BYTES_V6: 1}
_head = lru_cache(maxsize=4)(batch_head)


class RecordRows:
    """The records of messages that differ only in flag, body and properties. ``sizes`` are their sizes in bytes.

    None of them belongs to a transaction: ``prepared_offset`` is ignored.

    Raises MessageError as `encode_record` does.
    """

    __slots__ = (
        "_after",
        "_before",
        "_betweens",
        "_bodies",
        "_body_sizes",
        "_crcs",
        "_flags",
        "_magic",
        "_queue_id",
        "_sums",
        "_texts",
        "sizes",
    )

    def __init__(
        self, message: Message, store_host: bytes, flags: list[int], bodies: list[bytes], texts: list[bytes]
    ) -> None:
        born_host = message.born_host
        if len(born_host) not in _HOST_BYTES or len(store_host) not in _HOST_BYTES:
            raise MessageError(f"hosts must have 8 or 20 bytes: {born_host!r:.100}, {store_host!r:.100}")
        sys_flag = message.sys_flag & ~HOSTS_V6
        sys_flag |= BORN_HOST_V6 * _HOST_BYTES[len(born_host)] | STORE_HOST_V6 * _HOST_BYTES[len(store_host)]
        self._magic, topic = topic_part(message.topic)
        self._queue_id = message.queue_id
        text_sizes = list(map(len, texts))
        if max(text_sizes, default=0) > MAX_PROPERTIES_BYTES:
            raise MessageError(f"properties of {max(text_sizes)} bytes, at most {MAX_PROPERTIES_BYTES} are possible")
        try:
            self._before = _BORN.pack(sys_flag, message.born_ms) + born_host
            self._after = store_host + INT.pack(message.reconsume_times) + _PROOF
            # Raises unless the queue id has 32 bits: the struct that packs it is only used when the records are joined.
            LONG.pack(message.queue_id << 32)
        except struct_error as error:
            raise MessageError(f"a number of the batch is out of range: {message!r:.200}") from error
        fixed = _FIXED_BYTES + len(self._before) + len(self._after) + len(topic)
        # Topic and length of the properties stand side by side, and there are few lengths: their bytes are made, and
        # checksummed, once for each length. The CRC of a text then goes on from there. `map` with C functions only, so
        # that no line of Python runs for a single message, compiled or not.
        between = {size: topic + SHORT.pack(size) for size in set(text_sizes)}
        sums = {size: crc32(text) for size, text in between.items()}
        self._betweens = list(map(between.__getitem__, text_sizes))
        self._sums = list(map(crc32, texts, map(sums.__getitem__, text_sizes)))
        self._flags = flags
        self._bodies = bodies
        self._texts = texts
        body_sizes = list(map(len, bodies))
        self._body_sizes = body_sizes
        self._crcs = [crc & 0x7FFFFFFF for crc in map(crc32, bodies)]
        self.sizes = [fixed + body_sizes[row] + text_size for row, text_size in enumerate(text_sizes)]

    def __len__(self) -> int:
        return len(self.sizes)

    def joined(self, queue_offset: int, position: int, store_ms: int) -> bytearray:
        """The records one behind the other, numbered from ``queue_offset`` on, standing from ``position`` on."""
        positions = accumulate(self.sizes, initial=position)
        heads = self._heads(count(queue_offset), positions, store_ms)
        parts = zip(heads, self._bodies, self._betweens, self._texts, strict=True)
        return bytearray().join(chain.from_iterable(parts))

    def records(self, store_ms: int = 0) -> list[bytes]:
        """Each record by itself, with queue offset and position left open."""
        heads = self._heads(repeat(0), repeat(0), store_ms)
        return list(map(b"".join, zip(heads, self._bodies, self._betweens, self._texts, strict=True)))

    def _heads(self, numbers: Iterable[int], positions: Iterable[int], store_ms: int) -> Sequence[bytes]:
        """Everything in front of the bodies."""
        middle = self._before + LONG.pack(store_ms) + self._after
        # The trick: `map` calls the struct's C method with one argument from each column, so that no line of Python
        # runs for a single message. What is the same for all of them (`middle`) is one `bytes` field of the struct.
        return list(
            map(
                _head(len(middle)).pack,
                self.sizes,
                repeat(self._magic),
                self._crcs,
                repeat(self._queue_id),
                self._flags,
                numbers,
                positions,
                repeat(middle),
                self._sums,
                self._body_sizes,
            )
        )
