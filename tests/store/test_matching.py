"""Pulls by properties against the plain way: read everything, keep what is wanted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.filters.sql_filter import PropertyFilter, compile_sql92
from remoting.layout import BODY_AT_MAX
from remoting.messages.message import Message, encode_host, encode_record, record_fields
from remoting.messages.properties import format_properties, get_property
from remoting.messages.record import body_bounds
from store.disk.files import Files
from store.matching import ENTRIES_MAX, pull_matching
from store.message_store import MessageStore, PullStatus
from store.put.plugin_api import put_record

HOST = encode_host("192.0.2.1", 10911)


wants = PropertyFilter(lambda text: get_property(text, "color") == "red", 1)


def fill(store, colors, body=b"body"):
    for color in colors:
        text = format_properties({"color": color}) if color else ""
        message = Message("T", 0, 0, 0, 1, HOST, 0, 0, body, text)
        store.put_batch([put_record(message, HOST)])


@pytest.fixture
def store(tmp_path):
    made = MessageStore.open(Files(), tmp_path / "store", now_ms=lambda: 5)
    yield made
    made.close()


def look(store, offset, count=32, size=100_000, read=None):
    return pull_matching(store, "T", 0, offset, count, size, wants, read or store.read_hot)


def colors_of(store, result):
    return [get_property(record_fields(store.read(*place))[2], "color") for place in result.positions]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["red", "blue", ""]), max_size=40),
    st.integers(1, 5),
    st.sampled_from([1, 300, 100_000]),
    st.sampled_from([b"", b"b", bytes(20_000)]),
)
def test_all_that_is_wanted_and_nothing_else_in_order(tmp_path_factory, colors, count, size, body):
    store = MessageStore.open(Files(), tmp_path_factory.mktemp("matching"), now_ms=lambda: 5)
    try:
        fill(store, colors, body)
        found, at = 0, 0
        while at < len(colors):
            result = look(store, at, count, size)
            assert result.next_offset > at and len(result.positions) <= count
            assert (result.status is PullStatus.FOUND) is bool(result.positions)
            expected = [color for color in colors[at : result.next_offset] if color == "red"]
            assert colors_of(store, result) == expected
            assert len(result.positions) < 2 or sum(length for _, length in result.positions) <= size
            found, at = found + len(expected), result.next_offset
        assert found == colors.count("red")
        assert look(store, at).status is store.pull("T", 0, at, 1, 1, None).status
    finally:
        store.close()


def test_a_look_ends_when_the_filter_has_cost_enough(store):
    """A filter of 1,000 words over properties of 32 KiB takes milliseconds for each message."""
    text = format_properties({"color": "blue", "x": "y" * 20_000})
    store.put_batch([put_record(Message("T", 0, 0, 0, 1, HOST, 0, 0, b"b", text), HOST) for _ in range(20)])
    costly = compile_sql92(" OR ".join(["a = 1"] * 200))
    result = pull_matching(store, "T", 0, 0, 32, 100_000, costly, store.read_hot)
    assert 0 < result.next_offset < 5 and result.status is PullStatus.NO_MATCHED_MESSAGE
    assert pull_matching(store, "T", 0, 0, 32, 100_000, wants, store.read_hot).next_offset == 20


def test_a_look_ends_after_so_many_entries(store):
    fill(store, ["blue"] * (ENTRIES_MAX + 5) + ["red"])
    first = look(store, 0)
    assert (first.status, first.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, ENTRIES_MAX)
    second = look(store, first.next_offset)
    assert (second.status, second.next_offset) == (PullStatus.FOUND, ENTRIES_MAX + 6)


def test_outside_the_queue_it_answers_as_a_pull_does(store):
    assert look(store, 0).status is PullStatus.NO_MATCHED_LOGIC_QUEUE
    fill(store, ["red"])
    assert look(store, -1).status is PullStatus.OFFSET_TOO_SMALL
    assert look(store, 1).status is PullStatus.OFFSET_OVERFLOW_ONE
    assert look(store, 2).status is PullStatus.OFFSET_OVERFLOW_BADLY


def test_what_is_not_in_memory_ends_the_look(store):
    fill(store, ["red", "blue", "red", "red"])
    cold = store.entry("T", 0, 2)[0]

    def read(offset, size):
        return None if offset >= cold else store.read_hot(offset, size)

    result = look(store, 0, read=read)
    assert (result.status, result.next_offset, len(result.positions)) == (PullStatus.FOUND, 2, 1)
    result = look(store, 1, read=read)
    assert (result.status, result.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 2)
    assert look(store, 2, read=read) is None


@pytest.mark.parametrize("born", ["192.0.2.7", "2001:db8::7"])
@pytest.mark.parametrize("stored", ["192.0.2.1", "2001:db8::1"])
def test_bounds_of_a_body(born, stored):
    flag = (16 if ":" in born else 0) | (32 if ":" in stored else 0)
    message = Message("T", 0, 0, flag, 1, encode_host(born, 1), 0, 0, b"x" * 77, "a\x01b\x02")
    record = bytes(encode_record(message, encode_host(stored, 2)))
    begin, end = body_bounds(record[:BODY_AT_MAX])
    assert record[begin:end] == b"x" * 77
