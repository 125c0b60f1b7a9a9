"""The layout of a CommitLog record, and of the blank that ends a segment; see `remoting.layout`."""

from __future__ import annotations

from struct import Struct
from typing import Final

from remoting.layout.table import Table

# fmt: off
__all__ = [
    "BLANK", "BLANK_BYTES", "BODY_AT", "BODY_AT_MAX", "BODY_BYTES_AT", "BODY_BYTES_BACK", "BORN_HOST_AT",
    "BORN_HOST_V6", "FLAG_AT", "HOSTS_V6", "HOST_BYTES", "HOST_BYTES_V6", "HOST_MORE_V6", "MAGIC_AT", "MAGIC_BLANK",
    "MAGIC_V1", "MAGIC_V2", "OFFSET_AT", "PREPARED_BACK", "PREPARED_OFFSET_AT", "PROPERTIES_LENGTH_BYTES",
    "QUEUE_ID_AT", "QUEUE_OFFSET_AT", "RECORD", "RECORDS", "RECORD_BORN_V6", "RECORD_BOTH_V6", "RECORD_BYTES_MIN",
    "RECORD_STORE_V6", "SIZE_AT", "STORE_HOST_AT", "STORE_HOST_V6", "STORE_MS_AT", "STORE_MS_AT_V6", "SYS_FLAG_AT",
    "SYS_FLAG_LOW_AT", "TOPIC_LENGTH_BYTES", "TOPIC_LENGTH_BYTES_V2", "batch_head",
]
# fmt: on

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""Of a record with a topic of more than 127 bytes: two bytes say how many."""
MAGIC_BLANK: Final = 0xCBD43194
"""Ends a segment: i32 bytes left in it, then this."""

SIZE_AT: Final = 0
MAGIC_AT: Final = 4
_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
OFFSET_AT: Final = 28
"""The record's own position in the CommitLog (PHYSICALOFFSET)."""
SYS_FLAG_AT: Final = 36
SYS_FLAG_LOW_AT: Final = 39
"""The lowest byte of sysflag: all its bits that anybody uses."""
_BORN_MS_AT: Final = 40
BORN_HOST_AT: Final = 48

# From here on where both hosts are IPv4; each IPv6 host moves what stands behind it.
STORE_MS_AT: Final = 56
STORE_MS_AT_V6: Final = 68
"""Behind an IPv6 born host."""
STORE_HOST_AT: Final = 64
_RECONSUME_TIMES_AT: Final = 72
PREPARED_OFFSET_AT: Final = 76
BODY_BYTES_AT: Final = 84
BODY_AT: Final = 88

BODY_AT_MAX: Final = 112
"""Position of the body in a record whose hosts are both IPv6, the largest possible one."""
PREPARED_BACK: Final = 12
"""Bytes from the prepared offset to the body. The same for IPv4 and IPv6 hosts, as is `BODY_BYTES_BACK`."""
BODY_BYTES_BACK: Final = 4
TOPIC_LENGTH_BYTES: Final = 1
"""Behind the body: the bytes that say how long the topic's name is. The name follows."""
TOPIC_LENGTH_BYTES_V2: Final = 2
PROPERTIES_LENGTH_BYTES: Final = 2
"""Behind the topic's name: the bytes that say how long the properties are. These are the rest of the record."""
RECORD_BYTES_MIN: Final = 91
"""A V1 record without body, properties and topic name, between IPv4 hosts."""

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOSTS_V6: Final = 0x30
"""Bits of sysflag: the host is IPv6."""
HOST_BYTES: Final = 8
"""An IPv4 address and the port as i32."""
HOST_BYTES_V6: Final = 20
HOST_MORE_V6: Final = 12


def _record(born_host: int, store_host: int) -> Table:
    born, both = born_host - HOST_BYTES, born_host + store_host - 2 * HOST_BYTES
    return Table(
        ">",
        BODY_AT + both,
        ("size", SIZE_AT, "i"),
        ("magic", MAGIC_AT, "I"),
        ("crc", _CRC_AT, "I"),
        ("queue_id", QUEUE_ID_AT, "i"),
        ("flag", FLAG_AT, "i"),
        ("queue_offset", QUEUE_OFFSET_AT, "q"),
        ("position", OFFSET_AT, "q"),
        ("sys_flag", SYS_FLAG_AT, "i"),
        ("born_ms", _BORN_MS_AT, "q"),
        ("born_host", BORN_HOST_AT, f"{born_host}s"),
        ("store_ms", STORE_MS_AT + born, "q"),
        ("store_host", STORE_HOST_AT + born, f"{store_host}s"),
        ("reconsume_times", _RECONSUME_TIMES_AT + both, "i"),
        ("prepared_offset", PREPARED_OFFSET_AT + both, "q"),
        ("body_bytes", BODY_BYTES_AT + both, "i"),
    )


RECORD: Final = _record(HOST_BYTES, HOST_BYTES)
RECORD_BORN_V6: Final = _record(HOST_BYTES_V6, HOST_BYTES)
RECORD_STORE_V6: Final = _record(HOST_BYTES, HOST_BYTES_V6)
RECORD_BOTH_V6: Final = _record(HOST_BYTES_V6, HOST_BYTES_V6)
RECORDS: Final = {
    0: RECORD,
    BORN_HOST_V6: RECORD_BORN_V6,
    STORE_HOST_V6: RECORD_STORE_V6,
    HOSTS_V6: RECORD_BOTH_V6,
}
"""A record up to its body, by the bits of sysflag that say which hosts are IPv6."""


def batch_head(middle_bytes: int) -> Struct:
    """A record up to its body for a batch: size to position, all that the batch has in common as one field, the rest.

    The common field ends with the upper half of the prepared offset; the lower half is the record's own.

    >>> batch_head(48).format
    '>iIIiiqq48sIi'
    """
    return Struct(f">{RECORD.codes('size', 'position')}{middle_bytes}sI{RECORD.codes('body_bytes')}")


BLANK_BYTES: Final = 8
BLANK: Final = Table(">", BLANK_BYTES, ("bytes_left", 0, "i"), ("magic", 4, "I"))
