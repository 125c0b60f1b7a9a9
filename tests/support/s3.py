"""An imitation of S3 in this process (moto), and a folder's files put into a bucket of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["KEY", "Bucket"]

KEY = {"key": "reader", "secret": "reads"}


class Bucket:
    """A bucket on a server of its own, on a free port of loopback; ``with Bucket("logs") as bucket``."""

    def __init__(self, name: str) -> None:
        from moto.server import ThreadedMotoServer

        self.name = name
        self._server: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def __enter__(self) -> Self:
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        with self._client() as client:
            client.create_bucket(Bucket=self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    @property
    def storage(self) -> str:
        """What `timewheel lateness --storage` takes to read it."""
        client = {"endpoint_url": self.endpoint, "region_name": "us-east-1"}
        return json.dumps({**KEY, "client_kwargs": client})

    @contextmanager
    def _client(self) -> Iterator[Any]:
        from boto3.session import Session

        client = Session(KEY["key"], KEY["secret"]).client("s3", endpoint_url=self.endpoint, region_name="us-east-1")
        try:
            yield client
        finally:
            client.close()

    def put(self, folder: Path, prefix: str) -> list[str]:
        """Put a folder's files there; answers their keys."""
        keys = []
        with self._client() as client:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                keys.append(f"{prefix}/{path.relative_to(folder).as_posix()}")
                client.put_object(Bucket=self.name, Key=keys[-1], Body=path.read_bytes())
        return keys
