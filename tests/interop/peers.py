"""One broker to compare on, ours or Apache's, for tests that say the same of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.apache import ApacheBroker, ApacheNameServer, apache_jars
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.wire import Wire

__all__ = ["Peer", "start_peer"]


@dataclass
class Peer:
    """A broker that runs, with its name server."""

    ours: bool
    address: str
    namesrv: str
    store: Path
    folder: Path

    def prepare(self, *topics: str) -> None:
        """Make topics with four queues and wait until they can be found."""
        with Wire(self.address) as wire:
            for topic in topics:
                wire.create_topic(topic)
        with Wire(self.namesrv) as wire:
            for topic in topics:
                wire.wait_route(topic, 30)


@contextmanager
def start_peer(kind: str, folder: Path, settings: dict[str, str], *, tls: bool = False) -> Iterator[Peer]:
    """Run a broker, ``ours`` or ``apache``, with settings that both know. Apache's speaks TLS only with ``tls``."""
    if kind == "ours":
        ours = OurBroker(folder, settings)
        try:
            ours.start()
            yield Peer(True, ours.address, ours.namesrv, ours.store, folder)
        finally:
            ours.kill()
        return
    need(apache_jars)
    names = ApacheNameServer(folder / "namesrv", tls=tls)
    broker = ApacheBroker(folder / "broker", names.address, settings, tls=tls)
    try:
        broker.start()
        yield Peer(False, broker.address, names.address, broker.store, folder / "broker")
    finally:
        broker.kill()
        names.stop()
