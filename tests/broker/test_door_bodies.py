"""What comes to the HTTP door in no order: bodies that break off or never come, bytes that are no text, odd keys."""

from __future__ import annotations

import gzip
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import aiohttp.http_parser
import pytest

from broker.door import protocol
from tests.broker.core_rig import START_MS
from tests.broker.test_door import TOKEN, World
from tests.support.plain_pending import row

HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "store") as made:
        yield made


def _said(world: World, *parts: bytes, ends: bool = False) -> bytes:
    """Send these bytes; answers what comes back until the door closes, or the whole head of an answer."""
    with socket.create_connection(("127.0.0.1", world.door.http_port), 30) as peer:
        for part in parts:
            peer.sendall(part)
        if ends:
            peer.shutdown(socket.SHUT_WR)
        found = b""
        while b"\r\n\r\n" not in found and (more := peer.recv(1 << 16)):
            found += more
        return found


def _post(world: World, more: bytes, body: bytes) -> bytes:
    return b"POST /api/v1/pending/" + world.id(5).encode() + b"/cancel HTTP/1.1\r\n" + HEAD + more + b"\r\n" + body


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


@pytest.mark.parametrize("more", [b"Content-Length: 100\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_sender_that_goes_away_within_its_body_fills_no_log(
    world: World, caplog: pytest.LogCaptureFixture, more: bytes
) -> None:
    body = b"{}" if b"Length" in more else b"64\r\n{}"
    assert _said(world, _post(world, more, body), ends=True) == b""
    assert world.get("/healthz").status == 200
    assert _errors(caplog) == []
    assert world.list.orders == []


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"br", b"nonsense"])
def test_a_packed_body_is_never_unpacked(world: World, caplog: pytest.LogCaptureFixture, coding: bytes) -> None:
    """200 KB may unpack to 200 MB: a second of the door's loop, also for who has no token, or asks for health alone."""
    pack = {b"gzip": gzip.compress, b"deflate": zlib.compress}.get(coding, bytes)
    for body in (pack(b"{}"), b'{"a": {}}'):
        more = b"Content-Encoding: %b\r\nContent-Length: %d\r\n" % (coding, len(body))
        answer = _said(world, _post(world, more, body))
        assert answer.split(b"\r\n")[0].endswith(b"415 Unsupported Media Type"), answer
    assert world.get("/healthz").status == 200
    assert _errors(caplog) == []
    assert world.list.orders == []


def test_what_nobody_reads_is_not_unpacked_either(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[int] = []
    whole = aiohttp.http_parser.ZLibDecompressor  # type: ignore[attr-defined]
    monkeypatch.setattr(aiohttp.http_parser, "ZLibDecompressor", lambda *g, **m: unpacked.append(1) or whole(*g, **m))
    body = gzip.compress(b" " * 1000)
    more = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(body)
    assert b" 405 " in _said(world, b"POST /healthz HTTP/1.1\r\n" + HEAD + more + b"\r\n" + body)
    assert unpacked == []


def test_a_body_that_does_not_come_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_S", 0.1)
    answer = _said(world, _post(world, b"Content-Length: 100\r\n", b"{"))
    assert answer.split(b"\r\n")[0].endswith(b"408 Request Timeout"), answer
    assert world.list.orders == []


@pytest.mark.parametrize("given", [b"Bearer \xff\xfe", b"Bearer t\xf6ken", b"Basic \xff\xfe", b"\xff"])
def test_a_token_of_bytes_that_are_no_text_is_a_wrong_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: bytes
) -> None:
    with World(tmp_path / "token", httpToken=TOKEN) as world:
        request = b"GET /api/v1/pending/count HTTP/1.1\r\n" + HEAD + b"Authorization: " + given + b"\r\n\r\n"
        assert _said(world, request).split(b"\r\n")[0].endswith(b"401 Unauthorized")
        assert _errors(caplog) == []


def test_a_whole_body_is_read_however_it_comes(world: World) -> None:
    chunked = _post(world, b"Transfer-Encoding: chunked\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n")
    assert b"200 OK" in _said(world, chunked[:-5], chunked[-5:])
    assert len(world.list.orders) == 1


KEYS = [
    "{}",
    "{3F2504E0-4F89}",
    "a{b",
    "/",
    "a/b",
    "..",
    "%",
    "%2F",
    "a+b",
    "a b",
    "?#&=;",
    "key:",
    "\n",
    "\0",
    "ключ",
    "<>",
]


@pytest.mark.parametrize("key", KEYS)
def test_every_delay_key_can_be_named(world: World, key: str) -> None:
    world.list.rows.append(row(77, START_MS + 77_000, "T", key=key))
    path = f"/api/v1/pending/key:{quote(key, safe='')}"
    found = world.get(f"{path}?topic=T")
    assert (found.status, found.json.get("key")) == (200, key)
    assert world.get(f"/api/v1/pending?topic=T&key_prefix={quote(key, safe='')}").json["messages"][0]["key"] == key
    assert world.post(f"{path}/cancel?topic=T").json["verdict"] == "done"
    assert world.list.orders[-1].name.key == key
