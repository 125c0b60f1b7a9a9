"""The two systems with RocketMQ's protocol: ours and Apache's."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from bench.peers.apache import VERSION, ApacheBroker, ApacheNameServer, apache_jars
from bench.peers.ours import ROOT, OurBroker
from bench.peers.system import Setup, System
from bench.peers.wire import Wire

__all__ = ["APACHE", "APACHE_POP_VARIANTS", "APACHE_VARIANTS", "OURS", "OURS_NAMED", "OURS_PURE", "ours_with"]

_PACKAGES = ("broker", "broker_plugin", "remoting", "store", "timewheel", "timewheel_client")
STOP_SECONDS = 180  # with millions pending Apache's broker takes long


class _Ours:
    """`timewheel broker` as a process, or as a supervisor and its shards, with its embedded name server."""

    def __init__(
        self, folder: Path, setup: Setup, shards: int = 0, pure: bool = False, module: str = "broker.cli"
    ) -> None:
        self.configuration = {"flushDiskType": setup.flush}
        sources = _pure_copy(folder / "sources") if pure else None
        self._broker = OurBroker(folder, self.configuration, shards=shards, sources=sources, module=module)
        self.port, self.store = self._broker.port, self._broker.store

    def start(self) -> None:
        """Start the broker and wait until it answers; its port is known from then on."""
        self._broker.start()
        self.port = self._broker.port

    def spawn(self) -> None:
        """Start the broker and do not wait for it."""
        self._broker.spawn()

    def prepare(self, topic: str, queues: int) -> None:
        """Create a topic with so many queues."""
        with Wire(self._broker.address) as wire:
            wire.create_topic(topic, queues)

    def stop(self) -> None:
        """End the broker by SIGTERM and wait for it."""
        self._broker.stop()

    def kill(self) -> None:
        """End the broker, and its shards if it has any, by SIGKILL."""
        if self._broker.shards:
            for pid in self.pids()[1:]:  # they are not in its process group
                os.kill(pid, signal.SIGKILL)
        self._broker.kill()

    def pids(self) -> list[int]:
        """Process ids of the broker, or of the supervisor and then its shards."""
        pid = self._broker.child.process.pid
        try:
            shards = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            shards = []
        return [pid, *map(int, shards)]

    def close(self) -> None:
        """Nothing is left."""


class _Apache:
    """Apache's broker and name server as processes; the name server runs on while the broker is restarted."""

    def __init__(self, folder: Path, setup: Setup, settings: dict[str, str]) -> None:
        self.configuration = {"flushDiskType": setup.flush, **settings}
        self._folder = folder
        self._setup = setup
        self._names: ApacheNameServer | None = None
        self._broker: ApacheBroker | None = None
        self.port, self.store = 0, folder / "broker" / "store"

    def start(self) -> None:
        """Start the name server, once, and the broker, and wait until both answer."""
        if self._names is None:
            self._names = ApacheNameServer(self._folder / "namesrv")
        if self._broker is None:
            heap = "1g" if self._setup.quick else "4g"
            self.configuration["heap"] = f"{heap}, G1"
            settings = {key: value for key, value in self.configuration.items() if key != "heap"}
            self._broker = ApacheBroker(self._folder / "broker", self._names.address, settings, heap, "G1")
        self._broker.start(self.port or None)
        self.port = self._broker.port

    def spawn(self) -> None:
        """Start the broker again at its port and do not wait for it."""
        if self._broker is not None:
            self._broker.spawn(self.port)

    def prepare(self, topic: str, queues: int) -> None:
        """Create a topic with so many queues."""
        with Wire(f"127.0.0.1:{self.port}") as wire:
            wire.create_topic(topic, queues)

    def stop(self) -> None:
        """End the broker by SIGTERM and wait for it; the name server goes on."""
        if self._broker is not None:
            self._broker.stop(STOP_SECONDS)

    def kill(self) -> None:
        """End the broker by SIGKILL; the name server goes on."""
        if self._broker is not None:
            self._broker.kill()

    def pids(self) -> list[int]:
        """Process ids of the broker: one, or none before the start."""
        return [self._broker.child.process.pid] if self._broker is not None else []

    def close(self) -> None:
        """End the name server too."""
        if self._names is not None:
            self._names.stop()


JAVA_WARM_UP_SECONDS = 60.0  # what Java's compiler needs at least


def _apache(name: str, title: str, settings: dict[str, str]) -> System:
    return System(
        name=name,
        title=title,
        version=lambda: VERSION,
        protocol="rocketmq",
        make=lambda folder, setup: _Apache(folder, setup, dict(settings)),
        need=apache_jars,
        warm_up_seconds=JAVA_WARM_UP_SECONDS,
    )


def _our_version() -> str:
    """The version as users see it: it says also whether native modules run."""
    command = [sys.executable, "-m", "broker.cli", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip().rpartition("version ")[2]


OURS = System(
    name="timewheel",
    title="Timewheel",
    version=_our_version,
    protocol="rocketmq",
    make=_Ours,
    timed_batches=True,
)


def ours_with(shards: int) -> System:
    """Our broker with this number of shards."""
    return dataclasses.replace(
        OURS,
        name=f"timewheel-{shards}-shards",
        title=f"Timewheel, {shards} shards",
        make=lambda folder, setup: _Ours(folder, setup, shards),
        shards=shards,
    )


def _pure_copy(place: Path) -> Path:
    """Copy our packages without their native modules, so that a compiled build can be measured beside the pure one."""
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return place


OURS_PURE = dataclasses.replace(
    OURS,
    name="timewheel-pure",
    title="Timewheel, pure Python",
    version=lambda: _our_version().replace("compiled", "pure Python"),
    make=lambda folder, setup: _Ours(folder, setup, pure=True),
)
# Whose threads can be told apart from outside.
OURS_NAMED = dataclasses.replace(
    OURS,
    make=lambda folder, setup: _Ours(folder, setup, module="bench.running.named"),
    title="Timewheel, threads named",
)
APACHE = _apache("apache", "Apache RocketMQ", {})
# Where lateness is measured: its finest precision, and its timer that keeps messages in RocksDB.
APACHE_VARIANTS = (
    _apache("apache-100ms", "Apache, timerPrecisionMs=100", {"timerPrecisionMs": "100"}),
    _apache("apache-rocksdb", "Apache, RocksDB timer", {"timerRocksDBEnable": "true"}),
)
# Where popping is measured: its store of pops in RocksDB, which is off unless it is switched on (by both: without the
# first there is no such store, and every pop of the second ends in a NullPointerException).
APACHE_POP_VARIANTS = (
    _apache(
        "apache-pop-kv",
        "Apache, pops in RocksDB",
        {"popConsumerKVServiceInit": "true", "popConsumerKVServiceEnable": "true"},
    ),
)
