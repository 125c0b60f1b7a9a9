"""The checksum of a record's topic and properties: it distinguishes a whole record from a torn one.

Apache's format has a checksum of the body only. Our records carry a CRC-32 of all bytes behind the body (topic length,
topic, properties length, properties) in the field PREPAREDTRANSACTIONOFFSET, which is used only in the committed
message of a transaction. In all other records of Apache's the field is 0, and neither its broker nor its clients read
it there. The upper half marks the number as ours, the lower half is the checksum:

=================  ==================================================================================
``0``              no proof: Apache's record, or one of an older version of ours
``D7435243 sum``   a record of ours
``D7435256 sum``   the same, and it vouches for the record before it: its FLAG is that one's sum
above 0            the offset of a half message; the record behind it in the same write vouches for it
``0``, committed   the same: the half message is the first record of the log
=================  ==================================================================================

An offset is never negative, so offset and checksum cannot be confused. The checksum covers no byte that changes when a
record is appended or delivered, so it is computed once.

>>> from remoting.messages.proof import PLAIN, VOUCHER, is_proof
>>> [is_proof(number) for number in (0, 4711, PLAIN + 5, VOUCHER + 0xFFFFFFFF, -1)]
[False, False, True, True, False]
"""

from __future__ import annotations

from typing import Final

from remoting.layout import (
    BODY_AT,
    BODY_BYTES_BACK,
    FLAG_AT,
    HOST_MORE_V6,
    HOSTS_V6,
    PREPARED_OFFSET_AT,
    SYS_FLAG_LOW_AT,
)
from remoting.layout.table import INT, LONG
from remoting.messages.checksum import crc32

__all__ = [
    "OFFSET_0",
    "PLAIN",
    "PLAIN_LEAD",
    "VOUCHER",
    "VOUCHER_LEAD",
    "is_proof",
    "is_vouched_for",
    "is_voucher",
    "proof_field",
    "sum_before",
    "text_sum",
    "vouching_flag",
]

PLAIN: Final = (0xD7435243 - (1 << 32)) << 32
"""Upper half of a PREPAREDTRANSACTIONOFFSET that is a checksum; negative, because the field is signed."""
VOUCHER: Final = (0xD7435256 - (1 << 32)) << 32
PLAIN_LEAD: Final = b"\xd7CRC"
VOUCHER_LEAD: Final = b"\xd7CRV"
"""The upper halves as they stand in a record. Compiled code compares bytes faster than integers of 64 bits."""
OFFSET_0: Final = (0xD7435230 - (1 << 32)) << 32
"""`Message.prepared_offset` for a half message at offset 0, because 0 means that there is none. Never on the disk."""

_HIGH = -(1 << 32)
_TRANSACTION, _COMMITTED = 0x0C, 0x08


def is_proof(number: int) -> bool:
    """True if a PREPAREDTRANSACTIONOFFSET is a checksum, not an offset."""
    return number & _HIGH in (PLAIN, VOUCHER)


def proof_field(record: bytes | bytearray | memoryview, at: int = 0) -> int:
    """PREPAREDTRANSACTIONOFFSET of the record that starts at ``at``."""
    place = at + PREPARED_OFFSET_AT
    if hosts := record[at + SYS_FLAG_LOW_AT] & HOSTS_V6:
        place += HOST_MORE_V6 * hosts.bit_count()
    return int(LONG.unpack_from(record, place)[0])


def text_sum(record: bytes | bytearray) -> int:
    """Compute the checksum of the bytes behind the body of a whole record."""
    begin = BODY_AT + HOST_MORE_V6 * (record[SYS_FLAG_LOW_AT] & HOSTS_V6).bit_count()
    return crc32(record[begin + int(INT.unpack_from(record, begin - BODY_BYTES_BACK)[0]) :])


def is_vouched_for(record: bytes | bytearray | memoryview, at: int = 0) -> bool:
    """True if a record names a half message, so that its checksum, if any, is in the record behind it."""
    number = proof_field(record, at)
    return number > 0 or (number == 0 and record[at + SYS_FLAG_LOW_AT] & _TRANSACTION == _COMMITTED)


def is_voucher(record: bytes) -> bool:
    """True if a record says of itself that it vouches for the one before it."""
    return proof_field(record) & _HIGH == VOUCHER


def sum_before(record: bytes) -> int:
    """The sum of the record before, as the record that vouches for it has it."""
    return int(INT.unpack_from(record, FLAG_AT)[0]) & 0xFFFFFFFF


def vouching_flag(before: bytes | bytearray) -> int:
    """FLAG of a record that vouches: the sum of the record before it, signed."""
    found = text_sum(before)
    return found - (1 << 32) if found >> 31 else found
