"""The numbers of the protocol, and who answers which, against Apache's own jar and processes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from remoting.codes import RequestCode
from tests.support.apache import VERSION, ApacheBroker, ApacheNameServer, apache_jars
from tests.support.codes_table import read_table
from tests.support.need import need
from tests.support.wire import Wire, WireError

pytestmark = [pytest.mark.interop, pytest.mark.apache]

NOT_SUPPORTED = 3
OURS = range(370_001, 370_007)
"""Requests about pending messages: Apache's broker knows none of them, and uses no such number for anything else."""
SPOILS_THE_BROKER = {905, 1008}
"""Requests of a controller: an empty one would change the role of the broker that is asked. Asked last."""


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of Apache's broker and name server."""
    need(apache_jars)
    folder = tmp_path_factory.mktemp("apache")
    names = ApacheNameServer(folder / "namesrv")
    broker = ApacheBroker(folder / "broker", names.address)
    try:
        broker.start()
        yield {"broker": broker.address, "name server": names.address}
    finally:
        broker.kill()
        names.stop()


def test_numbers_are_those_of_the_jar() -> None:
    jar = need(apache_jars) / f"rocketmq-remoting-{VERSION}.jar"
    name = "org.apache.rocketmq.remoting.protocol.RequestCode"
    text = subprocess.run(["javap", "-constants", "-cp", jar, name], capture_output=True, text=True, check=True).stdout
    theirs = {name: int(number) for name, number in re.findall(r"(?:int|short) (\w+) = (\d+);", text)}
    assert theirs == {code.name: int(code) for code in RequestCode if code not in OURS}
    assert not set(theirs.values()) & set(OURS)


def _answers(address: str, code: int) -> bool:
    """Whether a process knows a code, whatever it says to an empty request."""
    with Wire(address) as wire:
        try:
            wire.ask(code, {})
        except WireError as error:
            return error.code != NOT_SUPPORTED
        return True


def test_table_says_who_answers(apache: dict[str, str]) -> None:
    rows = sorted(read_table(), key=lambda row: row.code in SPOILS_THE_BROKER)
    wrong = {}
    for row in rows:
        found = [by for by, address in apache.items() if _answers(address, row.code)]
        if found != ([row.by] if row.by in apache and row.code not in OURS else []):
            wrong[row.name] = (row.by, found)
    assert not wrong
