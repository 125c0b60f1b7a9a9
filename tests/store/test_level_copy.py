"""The copy of a level message fits its record, however full the message's properties are."""

from __future__ import annotations

import pytest

from remoting.layout import QUEUE_OFFSET_AT
from remoting.layout.table import LONG
from remoting.messages.message import MAX_PROPERTIES_BYTES, Message, encode_record, record_fields
from remoting.messages.properties import TW_LEVEL, get_property
from store.derived.dispatch import SCHEDULE_TOPIC
from store.levels.level_copy import copy_of


@pytest.mark.parametrize("number", [0, 10**9, 10**13])
@pytest.mark.parametrize("left", [0, 1, 20])
def test_a_copy_whose_properties_are_full_tells_where_it_comes_from(number: int, left: int) -> None:
    """The mark of a level's thousand millionth message is longer than the shortest topic whose place it takes."""
    text = "DELAY\x0118\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02k\x01"
    text += "v" * (MAX_PROPERTIES_BYTES - left - len(text) - 1) + "\x02"
    record = bytearray(encode_record(Message(SCHEDULE_TOPIC, 17, body=b"b", properties=text), bytes(8)))
    LONG.pack_into(record, QUEUE_OFFSET_AT, number)
    copy = copy_of(bytes(record), 18, number, 5)
    assert copy.topic == "T"
    assert get_property(record_fields(bytes(copy.record))[2], TW_LEVEL) == f"18:{number}"
