"""Our own broker as a real process, as a user starts it, on ports of ours."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.peers.ports import IN_USE, free_port, free_ports_around, wait_open
from bench.peers.processes import Child
from bench.peers.wire import Wire

__all__ = ["ROOT", "OurBroker"]

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 30
PORTS_APART = 10
"""Between the ports of two shards."""
PATIENCE = {"waitTimeMillsInSendQueue": "30000"}
"""As Apache's broker has it here: on a busy test machine it would otherwise turn senders away after 200 ms."""
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""With it, each start would compile every module again. An installed package is compiled already."""


class OurBroker:
    """`timewheel broker` in a process of its own; with its embedded name server unless ``namesrv`` names others.

    ``settings`` go to ``--set``. The store is ``folder/store`` unless ``store`` says another place. With ``shards``
    it is a supervisor and so many brokers, ten ports apart (``addresses``). ``sources``: another place of the packages;
    ``module``: what is run instead of the command.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, str] | None = None,
        namesrv: str | None = None,
        store: Path | None = None,
        port: int | None = None,
        shards: int = 0,
        sources: Path | None = None,
        module: str = "broker.cli",
    ) -> None:
        self.shards = shards
        self._sources = sources
        self._module = module
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.store = store or folder / "store"
        self.port, self.address, self.namesrv = 0, "", ""
        self.embedded = namesrv is None
        self.settings = settings or {}
        self.log = folder / "broker.log"
        self._child: Child | None = None
        self._pick = port is None  # until it has served once, its ports may be picked anew
        self._pick_ports()
        self.namesrv = namesrv or self.namesrv
        if port is not None:
            self.port, self.address = port, f"127.0.0.1:{port}"

    def command(self) -> list[str]:
        """Return the command line that starts it."""
        names = ["--namesrv-listen" if self.embedded else "--namesrv-addr", self.namesrv]
        settings = {**PATIENCE, **self.settings}
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        base = [sys.executable, "-m", self._module, "broker", "--store", str(self.store)]
        many = ["--shards", str(self.shards)] if self.shards else []
        return [*base, "--listen", self.address, *names, *sets, *many]

    @property
    def addresses(self) -> list[str]:
        """The address of each shard, or of the broker."""
        return [f"127.0.0.1:{self.port + PORTS_APART * index}" for index in range(self.shards or 1)]

    def spawn(self) -> Child:
        """Start the process without waiting for it."""
        place = {} if self._sources is None else {"PYTHONPATH": str(self._sources)}
        self._child = Child(self.command(), self._sources or ROOT, self.log, BYTECODE | place)
        return self._child

    def start(self) -> OurBroker:
        """Start it, and wait until it serves and its name server knows it; AssertionError with its log if not."""
        while True:
            child = self.spawn()
            until = time.monotonic() + START_SECONDS
            while child.running() and time.monotonic() < until and not wait_open(self.port, 0.5):
                pass
            if child.running() and wait_open(self.port, 1):
                break
            child.kill()
            if IN_USE not in child.tail() or not self._pick:
                raise AssertionError(f"our broker did not start:\n{child.tail()}")
            self._pick_ports()
        self._pick = False
        if self.shards:  # the name server opens when all of them serve
            assert wait_open(int(self.namesrv.rpartition(":")[2]), START_SECONDS), self.child.tail()
        with Wire(self.namesrv) as names:
            names.wait_route("TBW102", START_SECONDS)
        for address in self.addresses[1:]:
            assert wait_open(int(address.rpartition(":")[2]), START_SECONDS), self.child.tail()
        return self

    def _pick_ports(self) -> None:
        self.log.unlink(missing_ok=True)
        self.port = free_ports_around(
            *(PORTS_APART * index + more for index in range(self.shards or 1) for more in (-2, 0))
        )
        self.address = f"127.0.0.1:{self.port}"
        if self.embedded:
            self.namesrv = f"127.0.0.1:{free_port()}"

    @property
    def child(self) -> Child:
        """The process."""
        assert self._child is not None
        return self._child

    def stop(self) -> int:
        """SIGTERM, and wait: the exit status."""
        return self.child.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        if self._child is not None:
            self._child.kill()
