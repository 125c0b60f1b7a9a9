"""`remoting.layout` against ``docs/disk-format.md``: the same offsets, sizes and names, row by row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from remoting.hosts import encode_host
from remoting.layout import (
    BODY_AT,
    BODY_AT_MAX,
    BODY_BYTES_BACK,
    HOST_MORE_V6,
    PREPARED_BACK,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_ENTRY,
    RECORD_BYTES_MIN,
    RECORDS,
    STORE_MS_AT_V6,
    SYS_FLAG_AT,
    SYS_FLAG_LOW_AT,
    TABLES,
    TOPIC_LENGTH_BYTES,
    TOPIC_LENGTH_BYTES_V2,
)
from remoting.layout.table import Table
from remoting.messages.message import Message, encode_record, store_ms_at
from remoting.messages.record import body_bounds

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/disk-format.md"
MARK = re.compile(r"<!-- layout(?P<at> at)?: (?P<names>[^>]+) -->")


def rows_behind(lines: list[str]) -> Iterator[list[str]]:
    """The rows of the Markdown table that these lines begin with, without its two head lines."""
    for line in lines[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip().strip("`") for cell in line.strip("|").split("|")]


def marked() -> Iterator[tuple[bool, list[str], list[list[str]]]]:
    """Each marked table of the document: whether it shows offsets of several tables, their names, its rows."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if found := MARK.fullmatch(line):
            yield found["at"] is not None, found["names"].split("; "), list(rows_behind(lines[number + 1 :]))


def test_each_table_is_in_the_document_as_it_is_in_the_code() -> None:
    shown = {names[0]: rows for several, names, rows in marked() if not several}
    for name, rows in shown.items():
        fields = [[str(field.at), str(field.size), field.name] for field in TABLES[name].fields]
        assert [row[:3] for row in rows] == fields, name
    together = {name for several, names, _ in marked() if several for name in names}
    assert shown.keys() | together == TABLES.keys()
    assert len(shown) == len(TABLES) - 3  # a record with IPv6 hosts, which the next test has


def test_what_follows_the_body_is_in_the_document_as_it_is_in_the_code() -> None:
    text = (
        f"the size of the topic ({TOPIC_LENGTH_BYTES} byte, or {TOPIC_LENGTH_BYTES_V2} with the second magic), the "
        f"topic, the size of the properties ({PROPERTIES_LENGTH_BYTES}) and the properties"
    )
    assert text in " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    assert RECORD_BYTES_MIN == BODY_AT + TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES
    for topic, length in (("T" * 127, TOPIC_LENGTH_BYTES), ("T" * 128, TOPIC_LENGTH_BYTES_V2)):
        record = encode_record(Message(topic, properties="a\x01b\x02"), bytes(8))
        tail = record[BODY_AT:]
        assert tail == len(topic).to_bytes(length) + topic.encode() + (4).to_bytes(PROPERTIES_LENGTH_BYTES) + tail[-4:]


def test_what_moves_with_ipv6_hosts_is_in_the_document_as_it_is_in_the_code() -> None:
    ((_, names, rows),) = [found for found in marked() if found[0]]
    tables = [TABLES[name] for name in names]
    assert tables == list(RECORDS.values())
    moved = [field.name for field in tables[0].fields if {t.at(field.name) for t in tables} != {field.at}]
    assert [row[0] for row in rows] == [*moved, "the body"]
    for name, *places in rows[:-1]:
        assert places == [str(table.at(name)) for table in tables]
    assert rows[-1][1:] == [str(table.size) for table in tables]


@pytest.mark.parametrize("name", TABLES)
def test_structs_and_dtypes_have_the_same_offsets(name: str) -> None:
    table = TABLES[name]
    assert table.struct().size == table.size
    for field in table.fields:
        behind = table.picked(field.name)
        assert behind.size == field.at + field.size
    if all("x" not in field.code for field in table.fields):
        dtype = np.dtype(table.columns())
        assert dtype.itemsize == table.size
        assert dtype.fields is not None
        assert {name: kind[1] for name, kind in dtype.fields.items()} == {f.name: f.at for f in table.fields}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([("a", 0, "i"), ("b", 5, "i")], "b stands at 5, the field before it ends at 4"),
        ([("a", 0, "i"), ("b", 3, "i")], "b stands at 3, the field before it ends at 4"),
        ([("a", 0, "i"), ("b", 4, "i"), ("c", 8, "q")], "the fields end at 16, the whole has 8 bytes"),
    ],
)
def test_a_table_with_a_gap_is_refused(fields: list[tuple[str, int, str]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Table(">", 8, *fields)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(KeyError, match="colour"):
        QUEUE_ENTRY.at("colour")
    with pytest.raises(KeyError, match="colour"):
        QUEUE_ENTRY.struct("colour")


@pytest.mark.parametrize("born", ["10.0.0.1", "::1"])
@pytest.mark.parametrize("store", ["10.0.0.2", "::2"])
def test_a_record_has_the_layout_of_its_hosts(born: str, store: str) -> None:
    message = Message("T", 3, 7, born_ms=11, born_host=encode_host(born, 1), reconsume_times=5, body=b"body")
    record = encode_record(message, encode_host(store, 2))
    bits = (0x10 if ":" in born else 0) | (0x20 if ":" in store else 0)
    table = RECORDS[bits]
    values = dict(zip([f.name for f in table.fields], table.struct().unpack_from(record), strict=True))
    assert (values["size"], values["queue_id"], values["flag"], values["born_ms"]) == (len(record), 3, 7, 11)
    assert (values["reconsume_times"], values["body_bytes"], values["sys_flag"]) == (5, 4, bits)
    assert (values["born_host"], values["store_host"]) == (encode_host(born, 1), encode_host(store, 2))
    assert store_ms_at(record) == table.at("store_ms")
    assert body_bounds(record) == (table.size, table.size + 4)
    assert record[SYS_FLAG_LOW_AT] == bits


def test_the_numbers_beside_the_tables_agree_with_them() -> None:
    both = RECORDS[0x30]
    assert (both.size, both.at("store_ms")) == (BODY_AT_MAX, STORE_MS_AT_V6)
    assert BODY_AT + 2 * HOST_MORE_V6 == BODY_AT_MAX
    assert SYS_FLAG_LOW_AT == SYS_FLAG_AT + 3
    for table in RECORDS.values():
        assert table.size - PREPARED_BACK == table.at("prepared_offset")
        assert table.size - BODY_BYTES_BACK == table.at("body_bytes")
    assert len(encode_record(Message("T"), bytes(8))) - 1 == RECORD_BYTES_MIN
