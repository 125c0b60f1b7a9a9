"""A broker with its HTTP door, and a plain client of it."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from broker.config.broker_config import BrokerConfig
from broker.door.door import Door
from store.put.plugin_api import Plugin
from tests.broker.core_rig import Rig

__all__ = ["Answer", "DoorRig", "ask"]


@dataclass(slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


def ask(
    port: int, path: str, method: str = "GET", document: object = None, seconds: float = 30, **headers: str
) -> Answer:
    """Ask once; names of headers are written with _ for -."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        body = document if isinstance(document, bytes | None) else json.dumps(document).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named.setdefault("Content-Type", "application/json")
        connection.request(method, path, body, named)
        reply = connection.getresponse()
        return Answer(reply.status, dict(reply.getheaders()), reply.read())
    finally:
        connection.close()


class DoorRig:
    """A broker without its own sockets (`tests.broker.core_rig`), and a door on 127.0.0.1 that is open."""

    def __init__(self, root: Path, *plugins: Plugin, **values: Any) -> None:
        settings = {"httpListen": "127.0.0.1:0", **values}
        self.rig = Rig(root, *plugins, **settings)
        self.failure: BaseException | None = None
        texts = {name: str(value) for name, value in settings.items()}
        self.door = Door(BrokerConfig(root, texts), lambda: self.failure)
        self.door.bind()
        self.door.start()
        self.door.attach(self.rig.core)
        self.door.serve()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.door.stop()
        self.rig.close()

    def get(self, path: str, **headers: str) -> Answer:
        """GET."""
        return ask(self.door.http_port, path, **headers)

    def post(self, path: str, document: object = b"{}", **headers: str) -> Answer:
        """POST."""
        return ask(self.door.http_port, path, "POST", document, **headers)
