"""Bad input on our broker and name server and on Apache's: the same response codes, and a connection that goes on."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.interop.bad_input import (
    BROKER,
    DIFFERENCES,
    FRAMES,
    GROUP,
    NAME_SERVER,
    NO_VALUE,
    TOPIC,
    Case,
    Difference,
    cases,
)
from tests.support.apache import ApacheBroker, ApacheNameServer, apache_jars
from tests.support.codes_table import read_table
from tests.support.commitlog import read_commit_log
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.parallel import run_all
from tests.support.wire import Wire
from tests.support.wire_admin import create_group

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]

SERVED = {
    by: [row.code for row in read_table() if row.by == by and row.here == "yes"] for by in ("broker", "name server")
}
ALL = [("broker", case) for case in cases(SERVED["broker"], BROKER)]
ALL += [("name server", case) for case in cases(SERVED["name server"], NAME_SERVER)]
HARMLESS = {"broker": (31, {"topic": TOPIC, "queueId": "0"}), "name server": (106, {})}
JSON, BINARY = 0, 1
CLOSED = "closed"
NOT_SUPPORTED = 3


def frame(code: int, fields: dict[str, str], body: bytes, opaque: int, kind: int) -> bytes:
    """Write a request in one of the two forms of the header."""
    if kind == JSON:
        document = {"code": code, "language": "OTHER", "version": 409, "opaque": opaque, "flag": 0, "extFields": fields}
        header = json.dumps(document).encode()
    else:
        pairs = b"".join(
            struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(value)) + value.encode()
            for name, value in fields.items()
        )
        header = struct.pack(">hBhiii", code, 7, 409, opaque, 0, 0) + struct.pack(">i", len(pairs)) + pairs
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


@dataclass
class Answers:
    """What one side answered: code and remark of each case, and what its store holds in the end."""

    found: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    malformed: dict[tuple[str, str], str] = field(default_factory=dict)
    stored: int = 0
    check: tuple[int, str] = (0, "")


class Peer:
    """One connection that carries all cases."""

    def __init__(self, address: str) -> None:
        self._wire = Wire(address, 20)
        self._opaque = 0

    def ask(self, code: int, fields: dict[str, str], body: bytes, kind: int) -> tuple[int, str]:
        """Make a request and answer with the code and remark of the response to it."""
        self._opaque += 1
        self._wire.socket.sendall(frame(code, fields, body, self._opaque, kind))
        while True:
            header = _receive(self._wire)
            if header["opaque"] == self._opaque and header["flag"] & 1:
                return header["code"], header["remark"] or ""

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()


def _receive(wire: Wire) -> dict[str, Any]:
    """Read a frame with either form of the header."""
    (total,) = struct.unpack(">i", wire._read(4))
    data = wire._read(total)
    kind, length = data[0], int.from_bytes(data[1:4], "big")
    header = data[4 : 4 + length]
    if kind == JSON:
        return {"remark": None, **json.loads(header)}
    code, _, _, opaque, flag, size = struct.unpack_from(">hBhiii", header)
    return {"code": code, "opaque": opaque, "flag": flag, "remark": header[17 : 17 + size].decode()}


def _run(broker: OurBroker | ApacheBroker, answers: Answers) -> None:
    addresses = {"broker": broker.address, "name server": broker.namesrv}
    with Wire(broker.address) as wire:
        wire.create_topic(TOPIC)
        create_group(wire, GROUP)
    with Wire(broker.namesrv) as wire:
        wire.wait_route(TOPIC, 30)
    for by, address in addresses.items():
        peer = Peer(address)
        code, fields = HARMLESS[by]
        for number, (_, case) in enumerate(one for one in ALL if one[0] == by):
            # The larger codes do not fit into the binary header.
            kind = BINARY if number % 2 and case.code < 2**15 else JSON
            try:
                answers.found[by, case.name] = peer.ask(case.code, case.fields, case.body, kind)
                if peer.ask(code, fields, b"", JSON)[0] != 0:
                    answers.unusable.append(case.name)
            except OSError as error:
                answers.unusable.append(f"{case.name}: {error!r}")
                peer = Peer(address)
        peer.close()
        for name, data in FRAMES.items():
            answers.malformed[by, name] = _send_frame(address, data)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Answers, Answers]]:
    """All cases on our broker and on Apache's."""
    need(apache_jars)
    folder = tmp_path_factory.mktemp("bad")
    names = ApacheNameServer(folder / "namesrv")
    ours, apache = OurBroker(folder / "ours"), ApacheBroker(folder / "apache", names.address)
    found = Answers(), Answers()
    try:
        run_all([ours.start, apache.start])
        run_all([lambda: _run(ours, found[0]), lambda: _run(apache, found[1])])
        assert ours.stop() == 0
        found[0].stored = _stored(ours.store)
        done = subprocess.run(
            [sys.executable, "-m", "broker.cli", "check", str(ours.store)], capture_output=True, text=True, check=False
        )
        found[0].check = done.returncode, done.stderr
        yield found
    finally:
        ours.kill()
        apache.kill()
        names.stop()


def _stored(folder: Path) -> int:
    return sum(record.topic == TOPIC for record in read_commit_log(folder))


def _send_frame(address: str, data: bytes) -> str:
    """Send bytes over a new connection: the code of the answer, or that the connection was closed."""
    with Wire(address, 60) as wire:
        wire.socket.sendall(data)
        try:
            return str(_receive(wire)["code"])
        except ConnectionError:
            return CLOSED


@pytest.mark.parametrize(("by", "case"), ALL, ids=[f"{by} {case.name}" for by, case in ALL])
def test_same_code_as_apaches(sides: tuple[Answers, Answers], by: str, case: Case) -> None:
    ours, apache = (side.found[by, case.name] for side in sides)
    if ours[0] != apache[0]:
        assert _rows(case, ours[0], apache[0]), f"ours {ours}, Apache's {apache}"
    refused = ours[0] not in (0, 22)
    if refused and not any(re.fullmatch(pattern, case.name) for pattern in NO_VALUE):
        assert case.value.lower() in ours[1].lower()


def _rows(case: Case, ours: int, apache: int) -> list[Difference]:
    return [
        row for row in DIFFERENCES if re.fullmatch(row.cases, case.name) and (row.ours, row.apache) == (ours, apache)
    ]


def test_every_difference_is_needed(sides: tuple[Answers, Answers]) -> None:
    used: set[Difference] = set()
    for by, case in ALL:
        ours, apache = (side.found[by, case.name][0] for side in sides)
        if ours != apache:
            used.update(_rows(case, ours, apache))
    assert used == set(DIFFERENCES)


def test_the_connection_stays_usable(sides: tuple[Answers, Answers]) -> None:
    assert sides[0].unusable == []


def test_nothing_half_written_stays(sides: tuple[Answers, Answers]) -> None:
    """What was accepted is stored whole, what was refused not at all, and a check finds nothing."""
    ours = sides[0]
    accepted = 0
    for by, case in ALL:
        if by == "broker" and case.code in (10, 310, 320) and ours.found[by, case.name][0] == 0:
            topic = case.fields.get("topic", case.fields.get("b"))
            accepted += (2 if case.code == 320 else 1) * (topic == TOPIC)
    assert accepted > 0
    assert ours.stored == accepted
    assert ours.check == (0, "")


@pytest.mark.parametrize("by", ["broker", "name server"])
@pytest.mark.parametrize("name", FRAMES)
def test_malformed_frames_are_answered_as_by_apaches(sides: tuple[Answers, Answers], name: str, by: str) -> None:
    """What is no frame ends the connection, as on Apache's; what is one is answered, however odd."""
    assert sides[0].malformed[by, name] == sides[1].malformed[by, name]


def test_whole_frames_are_answered(sides: tuple[Answers, Answers]) -> None:
    """So that the test above compares more than closed connections."""
    answered = {name for (_, name), what in sides[0].malformed.items() if what == str(NOT_SUPPORTED)}
    assert answered >= {"JSON header", "binary header", "JSON extFields has an object"}
