"""Heartbeats and headers that would hold the network loop: bounded, and linear within the bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.net.channel import MemoryChannel
from broker.net.clients import ClientInfo, Clients
from remoting.codes import REQUEST_HEADER_MAX_BYTES, RequestCode, ResponseCode
from remoting.command import decode_json
from remoting.connection import FrameDecoder
from remoting.errors import ProtocolError
from remoting.filters import sql_filter
from remoting.filters.sql_filter import Sql92Error, compile_sql92
from remoting.filters.sql_tokens import WORDS_MAX
from remoting.filters.subscription import TAGS_CHARS_MAX, split_expression
from remoting.json_dialect import BODY_BYTES_MAX, DIALECT_BYTES_MAX, dumps, loads, loads_apart, loads_body
from remoting.odd_fields import NESTED_HEADER_MAX_BYTES, NUMBERS_HEADER_MAX_BYTES
from tests.broker.core_rig import Client, Rig

HEAD = b'{"code":34,"language":"JAVA","opaque":1,"flag":0,"version":1,"extFields":'


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def cpu_ms(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return 1000 * (time.thread_time() - begin)


def beat(client: Client, producers: list[str], consumers: list[dict[str, Any]]) -> Any:
    document = {
        "clientID": "c",
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": consumers,
    }
    return client.ask(RequestCode.HEART_BEAT, {}, dumps(document))


def test_a_client_of_many_groups_leaves_in_linear_time() -> None:
    """Two clients with the same 20,000 producer groups: 28 s when each group was looked for in all others."""
    clients = Clients()
    first, second = MemoryChannel(), MemoryChannel()
    names = [f"g{n}" for n in range(20_000)]
    for channel, client_id in ((first, "a"), (second, "b")):
        for name in names:
            clients.register_producer(name, ClientInfo(channel, client_id, "JAVA", 1, 0))
    assert cpu_ms(lambda: clients.channel_closed(first)) < 1_000
    assert clients.find_producer("a") is None
    found = clients.find_producer("b")
    assert found is not None
    assert found.channel is second
    assert len(clients.producers) == 20_000
    clients.channel_closed(second)
    assert not clients.producers
    assert not clients._producers_of


def test_a_producer_is_found_until_it_has_left_its_last_group() -> None:
    clients, channel = Clients(), MemoryChannel()
    for name in ("a", "b"):
        clients.register_producer(name, ClientInfo(channel, "c", "JAVA", 1, 0))
    clients.unregister_producer("a", channel)
    assert clients.find_producer("c") is not None
    clients.unregister_producer("b", channel)
    assert clients.find_producer("c") is None


def test_groups_of_a_heartbeat_are_bounded(rig: Rig) -> None:
    client = rig.client()
    assert beat(client, [f"g{n}" for n in range(256)], []).code == ResponseCode.SUCCESS
    refused = beat(client, [f"h{n}" for n in range(257)], [])
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "heartbeat with 257 groups, at most 256 are taken" in str(refused.remark)
    assert "h0" not in rig.core.clients.producers


def test_new_groups_of_a_heartbeat_take_one_write_of_each_table(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 new groups took 14 s: two whole tables were written and synced for each."""
    written: list[str] = []
    replace_file = rig.core.files.replace_file

    def counted(path: Path, data: bytes) -> None:
        written.append(path.name)
        replace_file(path, data)

    monkeypatch.setattr(rig.core.files, "replace_file", counted)
    consumers = [{"groupName": f"g{n}", "subscriptionDataSet": []} for n in range(200)]
    assert beat(rig.client(), [], consumers).code == ResponseCode.SUCCESS
    assert sorted(written) == ["subscriptionGroup.json", "topics.json"]
    assert all(rig.core.topics.get(f"%RETRY%g{n}") for n in range(200))
    assert len(rig.core.clients.consumers) == 200


@pytest.mark.parametrize(
    ("subscriptions", "words"),
    [
        ([{"topic": f"T{n}", "subString": "*"} for n in range(1_025)], "1025 subscriptions"),
        ([{"topic": "T", "subString": "x" * 65_537}], "65537 characters"),
        ([{"topic": "T", "subString": "a", "tagsSet": ["x" * 40_000, "y" * 40_000]}], "80001 characters"),
    ],
)
def test_subscriptions_of_a_heartbeat_are_bounded(rig: Rig, subscriptions: list[Any], words: str) -> None:
    refused = beat(rig.client(), [], [{"groupName": "g", "subscriptionDataSet": subscriptions}])
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert words in str(refused.remark)
    assert not rig.core.clients.consumers


def test_sql_of_a_heartbeat_is_not_compiled_before_it_is_asked_for(rig: Rig) -> None:
    """20 texts of 64 KiB took 6.6 s and 290 MiB, with the filter switched off."""
    sql_filter._short.cache_clear()
    sql_filter._long.cache_clear()
    entries = [{"topic": f"T{n}", "subString": f"a = {n}", "expressionType": "SQL92"} for n in range(20)]
    assert beat(rig.client(), [], [{"groupName": "g", "subscriptionDataSet": entries}]).code == 0
    assert sql_filter._short.cache_info().misses == 0
    subscription = rig.core.clients.subscription("g", "T7")
    assert subscription is not None
    assert subscription.wants is not None
    assert subscription.wants.matches("a\x017\x02")


def test_words_of_an_expression_are_bounded() -> None:
    most = (WORDS_MAX - 1) // 2  # parts with a word between them
    compile_sql92(" OR ".join(["a"] * most))
    with pytest.raises(Sql92Error, match=f"more than {WORDS_MAX} words"):
        compile_sql92(" OR ".join(["a"] * (most + 2)))


def test_characters_of_tags_are_bounded() -> None:
    assert split_expression("x" * TAGS_CHARS_MAX)
    with pytest.raises(ProtocolError, match=f"at most {TAGS_CHARS_MAX} are taken"):
        split_expression("x" * (TAGS_CHARS_MAX + 1))


@pytest.mark.parametrize(("value", "most"), [(b"[1,{}]", NESTED_HEADER_MAX_BYTES), (b"1", NUMBERS_HEADER_MAX_BYTES)])
def test_a_long_header_with_other_than_texts_is_refused(value: bytes, most: int) -> None:
    """13 MiB of lists took 9.8 s, before the signature was looked at."""

    def header(size: int) -> bytes:
        begin = HEAD + b'{"a":' + value + b',"b":"'
        return begin + b"x" * (size - len(begin) - 3) + b'"}}'

    assert decode_json(header(most), b"").ext["a"] == value.decode()
    with pytest.raises(ProtocolError, match=f"header of {most + 1} bytes with .* at most {most} are read"):
        decode_json(header(most + 1), b"")


def test_lists_outside_of_the_fields_count_too() -> None:
    header = HEAD.replace(b"{", b'{"x":[' + b"1," * NESTED_HEADER_MAX_BYTES + b"1],", 1) + b'{"a":1}}'
    with pytest.raises(ProtocolError, match="lists or objects"):
        decode_json(header, b"")


def test_a_server_reads_no_header_beyond_its_bound() -> None:
    """It is refused by its length, before it is there."""
    decoder = FrameDecoder(max_header_bytes=REQUEST_HEADER_MAX_BYTES)
    size = REQUEST_HEADER_MAX_BYTES + 1
    with pytest.raises(ProtocolError, match=f"header of {size} bytes, at most {size - 1} are allowed"):
        decoder.feed((size + 4).to_bytes(4, "big") + size.to_bytes(4, "big"))


def test_json_of_a_body_is_bounded() -> None:
    standard = b'["' + b"x" * (BODY_BYTES_MAX - 4) + b'"]'
    assert loads_body(standard) == loads_apart(standard) == loads(standard)
    with pytest.raises(ProtocolError, match=f"at most {BODY_BYTES_MAX} are taken"):
        loads_body(standard + b" ")
    assert loads_apart(standard + b" ") == loads(standard)


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, b"{" + b"1:1," * 10_000 + b"1:1}", "at most 16384 bytes"),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b"{" + b"1:1," * 10_000 + b"1:1}", "at most 16384 bytes"),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, b"{" + b"1:1," * 10_000 + b"1:1}", "at most 16384"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, b"[" + b"1," * 600_000 + b"1]", "at most 1048576 are taken"),
        (RequestCode.LOCK_BATCH_MQ, b"[" + b"[]," * 80_000 + b"1]", "at most 131072 are taken"),
        (
            RequestCode.UPDATE_BROKER_CONFIG,
            b"a=b\n" * 10_000,
            "the settings have 40000 bytes, at most 32768 are accepted",
        ),
    ],
)
def test_bodies_that_would_take_long_are_refused(rig: Rig, code: int, body: bytes, words: str) -> None:
    reply = rig.client().ask(code, {}, body)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert words in str(reply.remark)


def test_the_dialect_of_a_body_is_bounded() -> None:
    """2 MiB took 2.6 s."""
    dialect = b"{0:'" + b"x" * (DIALECT_BYTES_MAX - 6) + b"'}"
    assert loads_body(dialect) == loads_apart(dialect) == loads(dialect)
    with pytest.raises(ProtocolError, match=f"at most {DIALECT_BYTES_MAX} bytes are taken"):
        loads_body(dialect + b" ")
    assert loads_apart(dialect + b" ") == loads(dialect)
