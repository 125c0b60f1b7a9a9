"""An imitation of WebHDFS over a folder, whose answers a test can replace; on a free port of 127.0.0.1."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

__all__ = ["BLOCK_HOST", "HALF", "Answer", "WebHdfs"]

Answer = tuple[int, dict[str, Any] | bytes] | None
"""Status and JSON, or bytes; None: the connection stays open, and nothing comes."""
HALF = "half"
"""Given for an answer: the first half of its bytes, as if it were all."""
BLOCK_HOST = "worker-1"
"""It holds each file as one block."""
_NODE = "/node"
_OF_NODE = {"OPEN": "READ", "CREATE": "EMPTY", "APPEND": "WRITE"}
"""Operations that the name node redirects, and what the data node does."""
_MISSING = {"exception": "FileNotFoundException", "message": "no"}


class WebHdfs:
    """``with WebHdfs(folder) as server``; ``server.uri("/a")`` is the folder's ``a``.

    ``instead(operation, path)`` may give other answers; ``READ`` is the data node's part of ``OPEN``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.instead: Callable[[str, str], Answer | str] = lambda *_: "as usual"
        self._ends = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            def log_message(self, format: str, *words: object) -> None:  # noqa: A002 - the name in the library
                """Say nothing."""

            def do_GET(self) -> None:
                """Answer it."""
                server._answer(self)

            do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the names in the library

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def uri(self, path: str, login: str = "") -> str:
        """The URI of a path."""
        return f"webhdfs://{login}127.0.0.1:{self._server.server_address[1]}{path}"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        place, _, query = handler.path.partition("?")
        values = dict(parse_qsl(query))
        data = handler.rfile.read(int(handler.headers["Content-Length"] or 0))
        operation = _OF_NODE[values["op"]] if place.startswith(_NODE) else values["op"]
        path = unquote(place.removeprefix(_NODE).removeprefix("/webhdfs/v1"))
        other = self.instead(operation, path)
        if other is None:
            self._ends.wait()
        elif not isinstance(other, str):
            _send(handler, other[0], other[1] if isinstance(other[1], bytes) else json.dumps(other[1]).encode())
        elif operation in _OF_NODE:
            _send(handler, 307, b"", f"http://{handler.headers['Host']}{_NODE}{handler.path}")
        else:
            done = _changed(operation, self.folder, path, values, data)
            status, data = (200, done) if done is not None else self._found(operation, self.folder / path[1:], values)
            _send(handler, status, data[: len(data) // 2] if other == HALF else data)

    def _found(self, operation: str, path: Path, values: dict[str, str]) -> tuple[int, bytes]:
        if not path.exists():
            return 404, json.dumps({"RemoteException": _MISSING}).encode()
        if operation == "READ":
            begin = int(values["offset"])
            return 200, path.read_bytes()[begin : begin + int(values["length"])]
        if operation == "LISTSTATUS":
            return 200, json.dumps({"FileStatuses": {"FileStatus": [_status(one) for one in path.iterdir()]}}).encode()
        if operation == "GETFILEBLOCKLOCATIONS":
            block = {"offset": 0, "length": path.stat().st_size, "hosts": [BLOCK_HOST]}
            return 200, json.dumps({"BlockLocations": {"BlockLocation": [block]}}).encode()
        assert operation == "GETFILESTATUS", operation
        return 200, json.dumps({"FileStatus": _status(path)}).encode()


def _changed(operation: str, folder: Path, name: str, values: dict[str, str], data: bytes) -> bytes | None:
    """The answer to an operation that changes files; None for another one. As in HDFS, a rename replaces no file."""
    path, done = folder / name[1:], True
    if operation == "EMPTY":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    elif operation == "WRITE":
        with path.open("ab") as file:
            file.write(data)
    elif operation == "RENAME":
        target = folder / values["destination"][1:]
        done = values.get("renameoptions") == "OVERWRITE" or not target.exists()
        if done:
            path.replace(target)
    elif operation == "DELETE":
        path.unlink(missing_ok=True)
    else:
        return None
    return json.dumps({"boolean": done}).encode()


def _status(path: Path) -> dict[str, Any]:
    kind, size = ("DIRECTORY", 0) if path.is_dir() else ("FILE", path.stat().st_size)
    return {"pathSuffix": path.name, "type": kind, "length": size}


def _send(handler: BaseHTTPRequestHandler, status: int, data: bytes, location: str = "") -> None:
    handler.send_response(status)
    if location:
        handler.send_header("Location", location)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
