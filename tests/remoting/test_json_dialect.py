"""Bodies as fastjson writes them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.errors import ProtocolError
from remoting.json_dialect import dump_queue_map, dumps, loads, queue_key, queue_map

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@given(values)
def test_standard_json_comes_back(value):
    assert loads(dumps(value)) == value


def test_compact():
    assert dumps({"a": [1, {"b": None}]}) == b'{"a":[1,{"b":null}]}'


def test_integer_keys_without_quotes():
    assert loads(b'{"offsetTable":{"T@G":{0:12,1:-9}}, x:{-1:true}}') == {
        "offsetTable": {"T@G": {"0": 12, "1": -9}},
        "x": {"-1": True},
    }


def test_object_keys():
    body = (
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:5,{"brokerName":"b","queueId":1,"topic":"t"}: 7 }}'
    )
    table = loads(body)["offsetTable"]
    assert list(table) == [queue_key("t", "b", 0), queue_key("t", "b", 1)]
    assert queue_map(table) == [(("t", "b", 0), 5), (("t", "b", 1), 7)]


def test_references_long_numbers_and_single_quotes():
    assert loads(b'{\'a\':{"$ref":"$.b"},"n":12L,"t":\'it\\\'s\',"f":1.5}') == {
        "a": {"$ref": "$.b"},
        "n": 12,
        "t": "it's",
        "f": 1.5,
    }


def test_a_map_keyed_by_queues():
    data = dump_queue_map("offsetTable", [(("t", "b", 0), {"m": 1}), (("t", "b", 1), 2)], {"tps": 0.5})
    assert data == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"m":1},'
        b'{"brokerName":"b","queueId":1,"topic":"t"}:2},"tps":0.5}'
    )
    assert queue_map(loads(data)["offsetTable"]) == [(("t", "b", 0), {"m": 1}), (("t", "b", 1), 2)]
    assert dump_queue_map("offsetTable", []) == b'{"offsetTable":{}}'


@given(st.lists(st.tuples(st.tuples(texts, texts, st.integers(0, 99)), values), max_size=3, unique_by=lambda p: p[0]))
def test_maps_keyed_by_queues_come_back(pairs):
    assert queue_map(loads(dump_queue_map("m", pairs, {"more": 1}))["m"]) == pairs


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[",
        b"{1}",
        b'{"a":}',
        b'{0:1,"a',
        b"{0:1}x",
        b"{0:'a}",
        b"{{}",
        b"{{'a':99999999999999999999}:1}",
        b"{0:" + b"[" * 100_000,
        b"\xff",
    ],
)
def test_what_is_neither_is_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        loads(data)


@given(st.text("{}[]:,\"'0aL-\\ .$", max_size=30).map(str.encode) | st.binary(max_size=30))
def test_garbage_gives_a_value_or_the_protocol_error(data):
    try:
        loads(data)
    except ProtocolError:
        pass


def test_a_text_with_half_a_character_does_not_pass_on():
    json.loads(dumps(loads(b'{0:"\\ud800x"}')))


def test_what_json_cannot_hold_is_a_protocol_error():
    with pytest.raises(ProtocolError):
        dumps(object())
    with pytest.raises(ProtocolError):
        queue_map({"{}": 1})
    with pytest.raises(ProtocolError):
        queue_map({"x": 1})
