"""One text names a pending message; whatever else is written there gets an answer that says what to write."""

from __future__ import annotations

import pytest

from broker.pending.names import name_text, read_name
from broker.turns.recall_handle import RecallHandle
from remoting.hosts import encode_host, message_id
from store.disk.delay_id import delay_id
from store.put.pending_api import PendingError, PendingName

OFFSET = delay_id(3, 7)


@pytest.mark.parametrize(
    "text",
    [str(OFFSET), hex(OFFSET), name_text(OFFSET, encode_host("127.0.0.1", 10911)), name_text(OFFSET, bytes(20))],
)
def test_an_offset_is_read_from_every_form(text: str) -> None:
    assert read_name(text) == PendingName(offset=OFFSET)
    assert read_name(text, "T") == PendingName(offset=OFFSET, topic="T")


def test_a_recall_handle_brings_topic_and_unique_key() -> None:
    text = RecallHandle("Orders", "broker-a", 1_700_000_000_000, "AC11", OFFSET).encode()
    assert read_name(text) == PendingName(offset=OFFSET, topic="Orders", unique_key="AC11")
    with pytest.raises(PendingError, match="not of 'Other'"):
        read_name(text, "Other")


def test_a_key_needs_its_topic() -> None:
    assert read_name("key:a:b", "T") == PendingName(topic="T", key="a:b")
    for text, topic in (("key:a", ""), ("key:", "T")):
        with pytest.raises(PendingError, match="needs its topic"):
            read_name(text, topic)


@pytest.mark.parametrize(
    "text",
    ["", "9" * 5000, "0x" + "f" * 5000, "x" * 10_240, "17", "0x10", "-1", "٣" * 19, "0x_1", "AC" * 16, "AC" * 28, "\0"],
)
def test_garbage_is_refused_with_words(text: str) -> None:
    with pytest.raises(PendingError):
        read_name(text)


def test_an_id_of_another_broker_is_refused_with_its_address() -> None:
    """The same offset may be another message here."""
    here, there = encode_host("127.0.0.1", 10911), encode_host("127.0.0.1", 10921)
    assert read_name(message_id(here, OFFSET), "T", here) == PendingName(offset=OFFSET, topic="T")
    assert read_name(hex(OFFSET), "T", here) == PendingName(offset=OFFSET, topic="T")
    with pytest.raises(PendingError, match=r"127\.0\.0\.1:10921: ask there.*its offset 0x4"):
        read_name(message_id(there, OFFSET), "T", here)


@pytest.mark.parametrize("offset", [0, 1, 1 << 61, 1 << 63, 10**1000])
def test_a_recall_handle_of_no_message_is_refused(offset: int) -> None:
    with pytest.raises(PendingError, match="no send has returned"):
        read_name(RecallHandle("T", "broker-a", 5, "AC11", offset).encode())
