"""docs/compatibility.md says of every request code what is done with it; here it is held against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.naming.namesrv import NameServer
from remoting.codes import RequestCode, ResponseCode
from tests.broker.core_rig import Rig
from tests.support.codes_table import BY, DOCUMENT, Row, read_table

ROOT = Path(__file__).resolve().parents[2]
TABLE = read_table()


def _named_in_broker(name: str) -> bool:
    """Whether the broker's source makes requests of this code."""
    return any(f"RequestCode.{name}" in path.read_text("utf-8") for path in (ROOT / "broker").rglob("*.py"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[int]]:
    """The codes that have a handler: {"broker": ..., "name server": ...}."""
    rig = Rig(tmp_path_factory.mktemp("broker"))
    try:
        return {"broker": rig.core.dispatcher.codes(), "name server": set(map(int, NameServer().handlers()))}
    finally:
        rig.close()


def test_every_code_has_one_line() -> None:
    assert [(row.code, row.name) for row in TABLE] == sorted((int(code), code.name) for code in RequestCode)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_line_says_what_the_code_does(row: Row, served: dict[str, set[int]]) -> None:
    assert row.by in BY
    assert row.here in ("yes", "no")
    registered = [by for by, codes in served.items() if row.code in codes]
    if row.by == "client":
        assert not registered, "a client answers this, and nobody asks the broker for it"
        assert (row.here == "yes") == _named_in_broker(row.name)
    else:
        assert registered == ([row.by] if row.here == "yes" else [])
    assert row.note or row.here == "yes", "what is not served needs a reason"


def test_codes_of_earlier_releases_have_their_lines_and_are_not_served(served: dict[str, set[int]]) -> None:
    section = DOCUMENT.read_text(encoding="utf-8").split("Numbers of earlier releases", 1)[1].split("\n## ", 1)[0]
    numbers = [
        int(number) for number in re.findall(r"^\| (\d+) \| [A-Z_]+ \| 5\.3 \| no: .+ \|$", section, re.MULTILINE)
    ]
    assert numbers == [50, 51, 52, 53, 54]
    assert not set(numbers) & {*map(int, RequestCode), *served["broker"], *served["name server"]}


@pytest.mark.parametrize("row", [row for row in TABLE if row.here == "no"], ids=lambda row: row.name)
def test_what_is_not_served_is_refused_by_its_number(row: Row, tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    try:
        client = rig.client()
        reply = client.ask(row.code)
        assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert reply.remark == f" request type {row.code} not supported"
        assert client.ask(RequestCode.GET_BROKER_CONFIG).code == ResponseCode.SUCCESS
    finally:
        rig.close()
