"""Proof that a committed message is whole: the record behind it, or the half message that it was made of.

The committed message of a transaction names its half message where other records have their checksum. It is written
by one write together with the op message, which says that the half message is decided. So the flag of the op message
is its checksum (`remoting.messages.proof`). At a record that names a half message, a walk through the log checks what
is behind it:

==================================================  ==========================================================
a whole record that vouches for it                  it counts if the sum is right
another whole record, or a blank                    it counts: an Apache broker wrote it, or an older version
                                                    of ours; what we write always has its op message behind it
nothing, and we were the last who wrote this log    the op message was torn off. It counts if its half message
                                                    proves it, see below; else it does not, nobody was told
                                                    that it was stored
nothing, and it is Apache's log                     it counts, as for Apache
nothing, and it is a delivery of the delay plug-in  it counts: its journal has it, nothing vouches for it
==================================================  ==========================================================

Topic and properties of a committed message follow from its half message. The topic is that of REAL_TOPIC, or the
discard topic. The properties are the same without those of the half message alone, perhaps with the number of checks.
Keep this in step with `broker.transactions.transaction_messages`. A message that it does not know is only cut off
sooner.
"""

from __future__ import annotations

from collections.abc import Callable

from remoting.messages.message import RecordError, record_fields
from remoting.messages.proof import is_voucher, sum_before, text_sum
from remoting.messages.properties import (
    REAL_QID,
    REAL_TOPIC,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    TW_ID,
    get_property,
    has_property,
)

__all__ = ["has_zeros", "is_delivery", "is_half", "is_made_of", "is_proven"]

_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
_OF_THE_HALF_ONE = (TRAN_MSG, REAL_TOPIC, REAL_QID, TRANSACTION_CHECK_TIMES)


def is_proven(record: bytes, behind: bytes | None, at_end: Callable[[bytes], bool] | None) -> bool:
    """True if a record counts that names a half message.

    ``behind`` is the whole record behind it, empty for a blank, None if there is neither; ``at_end`` decides then.
    """
    if behind is None:
        return at_end is None or at_end(record)
    return not behind or not is_voucher(behind) or sum_before(behind) == text_sum(record)


def is_made_of(record: bytes, half: bytes) -> bool:
    """True if a record has the topic and the properties that follow from its half message."""
    try:
        topic, _, text = record_fields(record)
        _, _, half_text = record_fields(half)
    except RecordError:
        return False
    if topic not in (get_property(half_text, REAL_TOPIC), _DISCARD_TOPIC):
        return False
    # Zeros of a missing sector may stand in pairs that are not compared.
    return _own_pairs(text) == _own_pairs(half_text) and ("\0" not in text or "\0" in half_text)


def is_delivery(record: bytes) -> bool:
    """True if the delay plug-in delivered a record: nothing vouches for that, its own journal has it whole."""
    try:
        return has_property(record_fields(record)[2], TW_ID)
    except RecordError:
        return False


def is_half(record: bytes) -> bool:
    """True if a whole record is a transaction's half message."""
    return record_fields(record)[0] == _HALF_TOPIC


def has_zeros(record: bytes) -> bool:
    """True if there is a NUL in topic or properties. Without one no sector of them is missing."""
    try:
        topic, _, text = record_fields(record)
    except RecordError:
        return True
    return "\0" in topic or "\0" in text


def _own_pairs(text: str) -> list[str]:
    """The properties that half message and committed message have in common."""
    return sorted(pair for pair in text.split("\x02") if pair and pair.partition("\x01")[0] not in _OF_THE_HALF_ONE)
