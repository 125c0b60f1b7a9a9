"""NATS, Redis, beanstalkd and the naive yardstick as systems to measure: one process each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.fetching.cache import FetchError, MissingToolError, cached, need_tools, run_tool
from bench.generator.nats import make_stream
from bench.peers.ports import free_port, wait_open
from bench.peers.processes import Child
from bench.peers.system import Setup, System

__all__ = ["BEANSTALKD", "NAIVE", "NATS", "NATS_VERSION", "REDIS"]

NATS_VERSION = "v2.15.2"
START_SECONDS = 60
STOP_SECONDS = 180
ROOT = Path(__file__).parent.parent.parent


class _Process:
    """A server that is one process with one port and one folder; ``command`` writes its command line."""

    def __init__(
        self,
        folder: Path,
        configuration: dict[str, str],
        command: Callable[[int, Path], list[str]],
        prepare: Callable[[int, str], None] = lambda _port, _topic: None,
    ) -> None:
        self.configuration = configuration
        self.port = free_port()
        self.store = folder / "store"
        self.store.mkdir()
        self._log = folder / "log"
        self._command = command
        self._prepare = prepare
        self._child: Child | None = None

    def start(self) -> None:
        """Start the server and wait until its port is open. Raises AssertionError after a minute."""
        self.spawn()
        assert self._child is not None
        if not wait_open(self.port, START_SECONDS):
            raise AssertionError(f"it did not start:\n{self._child.tail()}")

    def spawn(self) -> None:
        """Start the server and do not wait for it."""
        self._child = Child(self._command(self.port, self.store), ROOT, self._log)

    def prepare(self, topic: str, queues: int) -> None:
        """Do what the system needs before the first message of a topic; it knows no queues."""
        del queues
        self._prepare(self.port, topic)

    def stop(self) -> None:
        """End the server by SIGTERM and wait for it."""
        if self._child is not None:
            self._child.terminate(STOP_SECONDS)

    def kill(self) -> None:
        """End the server by SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def pids(self) -> list[int]:
        """Process ids of the server: one, or none before the start."""
        return [self._child.process.pid] if self._child is not None else []

    def close(self) -> None:
        """Nothing is left."""


# ------------------------------------------------------------------------------------------ NATS


def _nats_program() -> Path:
    """Build nats-server of the pinned version into the cache, once."""
    need_tools("go")

    def build(work: Path) -> None:
        target = f"github.com/nats-io/nats-server/v2@{NATS_VERSION}"
        run_tool(["go", "install", target], work, {"GOBIN": str(work), "GOFLAGS": "-buildvcs=false"})

    return cached(f"nats-server-{NATS_VERSION}", [NATS_VERSION], build) / "nats-server"


def _nats(folder: Path, setup: Setup) -> _Process:
    sync = "always" if setup.flush == "SYNC_FLUSH" else "2m"

    def command(port: int, store: Path) -> list[str]:
        text = f'listen: "127.0.0.1:{port}"\nping_interval: "10m"\nmax_pending: 256MB\n'
        text += f'jetstream {{ store_dir: "{store}", sync_interval: {sync} }}\n'
        (folder / "nats.conf").write_text(text)
        return [str(_nats_program()), "-c", str(folder / "nats.conf")]

    return _Process(folder, {"sync_interval": sync}, command, make_stream)


NATS = System(
    name="nats",
    title="NATS JetStream schedules",
    version=lambda: NATS_VERSION.removeprefix("v"),
    protocol="nats",
    make=_nats,
    need=_nats_program,
    kinds=("normal", "timed"),
)


# ------------------------------------------------------------------------------------------ Debian's


def _debian(program: str, package: str) -> Callable[[], str]:
    def need() -> str:
        path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/sbin")
        if path is None:
            raise MissingToolError(f"{program} not found: apt install {package}")
        return path

    return need


def _version(need: Callable[[], str], option: str) -> Callable[[], str]:
    def ask() -> str:
        done = subprocess.run([need(), option], capture_output=True, text=True, check=False)
        found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
        if found is None:
            raise FetchError(f"{need()} {option} names no version: {done.stdout[:100]!r}")
        return found[0]

    return ask


_redis_program = _debian("redis-server", "redis-server")
_beanstalkd_program = _debian("beanstalkd", "beanstalkd")


def _redis(folder: Path, setup: Setup) -> _Process:
    fsync = "always" if setup.flush == "SYNC_FLUSH" else "everysec"
    settings = {"appendonly": "yes", "appendfsync": fsync, "save": "", "bind": "127.0.0.1", "protected-mode": "no"}

    def command(port: int, store: Path) -> list[str]:
        options = [word for key, value in settings.items() for word in (f"--{key}", value)]
        return [_redis_program(), "--port", str(port), "--dir", str(store), *options]

    return _Process(folder, {"appendonly": "yes", "appendfsync": fsync, "poll": "every 10 ms"}, command)


REDIS = System(
    name="redis",
    title="Redis sorted set and poller",
    version=_version(_redis_program, "--version"),
    protocol="redis",
    make=_redis,
    need=_redis_program,
    kinds=("normal", "timed"),
    keeps_delivered=False,
)


def _beanstalkd(folder: Path, setup: Setup) -> _Process:
    sync_ms = "0" if setup.flush == "SYNC_FLUSH" else "50"

    def command(port: int, store: Path) -> list[str]:
        return [_beanstalkd_program(), "-l", "127.0.0.1", "-p", str(port), "-b", str(store), "-f", sync_ms]

    return _Process(folder, {"-f": f"{sync_ms} ms", "delays": "whole seconds"}, command)


BEANSTALKD = System(
    name="beanstalkd",
    title="beanstalkd",
    version=_version(_beanstalkd_program, "-v"),
    protocol="beanstalkd",
    make=_beanstalkd,
    need=_beanstalkd_program,
    kinds=("normal", "timed"),
    keeps_delivered=False,
)


# ------------------------------------------------------------------------------------------ the yardstick


def _naive(folder: Path, setup: Setup) -> _Process:
    del setup

    def command(port: int, store: Path) -> list[str]:
        return [sys.executable, "-m", "bench.peers.naive", str(port), str(store)]

    return _Process(folder, {"sweep": "each second", "flush": "none"}, command)


NAIVE = System(
    name="naive",
    title="A file for each second",
    version=lambda: "1",
    protocol="naive",
    make=_naive,
    kinds=("timed",),
    flushes=("ASYNC_FLUSH",),
    keeps_delivered=False,
)
