"""Delay ids: the number of a delayed message from its acceptance on, and its text.

``2**62 | epoch << 40 | sequence``: each start has its own epoch (synced before the first accept), so an id is never
used twice, whatever a crash lost. It is the message's virtual offset: no CommitLog position is as large. The property
TW_ID carries its text: hex without the ``2**62``, followed by ``.version`` if the message was moved.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DELAY_ID_BASE", "EPOCH_MAX", "SEQUENCE_MAX", "delay_id", "id_text", "parse_id_text"]

DELAY_ID_BASE: Final = 1 << 62
"""The smallest delay id, and the smallest virtual offset."""
_SEQUENCE_BITS: Final = 40
EPOCH_MAX: Final = (1 << 22) - 1
SEQUENCE_MAX: Final = (1 << _SEQUENCE_BITS) - 1


def delay_id(epoch: int, sequence: int) -> int:
    """Make the delay id (virtual offset) of a message.

    >>> hex(delay_id(1, 5))
    '0x4000010000000005'
    """
    return DELAY_ID_BASE | epoch << _SEQUENCE_BITS | sequence


def id_text(delay_id: int, version: int = 0) -> str:
    """Text of a delay id as the property TW_ID carries it.

    >>> id_text(delay_id(1, 5)), id_text(delay_id(1, 5), 2)
    ('10000000005', '10000000005.2')
    """
    text = "%x" % (delay_id - DELAY_ID_BASE)
    return f"{text}.{version}" if version else text


def parse_id_text(text: str) -> tuple[int, int]:
    """Read ``(delay id, version)`` back from TW_ID; ValueError if it is not one."""
    number, dot, version = text.partition(".")
    value = -1 if number.strip("0123456789abcdef") else int(number or "-1", 16)
    if not 0 <= value < DELAY_ID_BASE or (dot and not version.isdecimal()):
        raise ValueError(f"not a delay id: {text!r}")
    return DELAY_ID_BASE | value, int(version) if dot else 0
