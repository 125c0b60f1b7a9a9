"""A real Apache RocketMQ (name server and broker) on 127.0.0.1, on ports of ours, to compare with.

The jars come from Maven into the cache. Everything a run writes stays below the folder it is given: Java's
``user.home`` and ROCKETMQ_HOME point there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.fetching.cache import cached, fetch_maven, need_tools
from bench.peers.ports import IN_USE, free_port, free_ports_around, wait_open
from bench.peers.processes import Child
from bench.peers.wire import Wire

__all__ = ["OPENS", "VERSION", "ApacheBroker", "ApacheNameServer", "apache_jars"]

VERSION = "5.5.0"
POM = Path(__file__).parent / "apache-pom.xml"
START_SECONDS = 180
"""A minute is too short for a JVM on a machine whose load is 17."""
# What RocketMQ's own start script opens to its code on Java 9 and later.
OPENS = [
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
]


def apache_jars(version: str = VERSION) -> Path:
    """Return the folder with Apache's jars, fetching them first if need be (MissingToolError, FetchError)."""
    need_tools("java", "mvn")
    return (
        cached(
            f"apache-{version}",
            [POM, version],
            lambda work: fetch_maven(POM, work / "lib", f"-Drocketmq.version={version}"),
        )
        / "lib"
    )


def _java(
    home: Path,
    heap: str,
    main: str,
    *arguments: str,
    collector: str = "Serial",
    version: str = VERSION,
    options: Sequence[str] = (),
) -> list[str]:
    return [
        "java",
        f"-Duser.home={home}",
        f"-Xms{heap}",
        f"-Xmx{heap}",
        f"-XX:+Use{collector}GC",
        *OPENS,
        *options,
        "-cp",
        f"{apache_jars(version)}/*",
        main,
        *arguments,
    ]


def _make_logging(home: Path, version: str, process: str) -> None:
    """Write the settings of its logging, without which 4.x does not start."""
    if version.startswith("4."):
        (home / "conf").mkdir(exist_ok=True)
        (home / "conf" / f"logback_{process}.xml").write_text("<configuration/>\n")


class ApacheNameServer:
    """Apache's name server in a process of its own; started by the constructor. ``version`` is Apache's.

    ``options`` go to Java.
    """

    def __init__(self, folder: Path, version: str = VERSION, options: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._version = version
        self._options = options
        self.port, self._child = _start(free_port, self._spawn)
        self.address = f"127.0.0.1:{self.port}"

    def _spawn(self, port: int) -> Child:
        (self._folder / "namesrv.conf").write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n")
        _make_logging(self._folder, self._version, "namesrv")
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        command = _java(self._folder, "256m", main, "-c", "namesrv.conf", version=self._version, options=self._options)
        return Child(command, self._folder, self._folder / "namesrv.log", {"ROCKETMQ_HOME": str(self._folder)})

    def stop(self) -> None:
        """End it."""
        self._child.kill()

    def start_again(self) -> None:
        """Start it once more at its address."""
        _, self._child = _start(lambda: self.port, self._spawn)


def _start(pick: Callable[[], int], spawn: Callable[[int], Child]) -> tuple[int, Child]:
    """Start a process and wait until it listens; again with another port if somebody else took the first."""
    while True:
        port = pick()
        child = spawn(port)
        until = time.monotonic() + START_SECONDS
        while child.running() and time.monotonic() < until:
            if wait_open(port, 0.5) and child.running():
                return port, child
        child.kill()
        text = child.tail(100)
        if IN_USE not in text and "BindException" not in text:
            raise AssertionError(f"Apache's process did not start:\n{text}")
        child.log.unlink()


class ApacheBroker:
    """Apache's broker in a process of its own, with its store below the folder; started by `start`.

    ``settings`` are broker.conf keys on top of the plain ones; ``heap`` and ``collector`` are Java's; ``version`` is
    Apache's. Port and address are known once it has started.
    """

    def __init__(
        self,
        folder: Path,
        namesrv: str,
        settings: dict[str, str] | None = None,
        heap: str = "1g",
        collector: str = "Serial",
        version: str = VERSION,
        options: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.store = folder / "store"
        self.namesrv = namesrv
        self.port = 0
        self._settings = settings or {}
        self._java = (heap, collector, version, options)
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        """The process."""
        assert self._child is not None
        return self._child

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def _spawn(self, port: int) -> Child:
        values = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": str(port),
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.store),
            "autoCreateTopicEnable": "true",
            "enablePropertyFilter": "true",
            # Patience: on a busy test machine it would otherwise turn senders away after 200 ms in its queue.
            "waitTimeMillsInSendQueue": "30000",
            "waitTimeMillsInPullQueue": "30000",
            "waitTimeMillsInHeartbeatQueue": "60000",
            "osPageCacheBusyTimeOutMills": "30000",
            **self._settings,
        }
        (self.folder / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        heap, collector, version, options = self._java
        _make_logging(self.folder, version, "broker")
        main = "org.apache.rocketmq.broker.BrokerStartup"
        command = _java(
            self.folder, heap, main, "-c", "broker.conf", collector=collector, version=version, options=options
        )
        return Child(command, self.folder, self.folder / "broker.log", {"ROCKETMQ_HOME": str(self.folder)})

    def spawn(self, port: int) -> Child:
        """Start it on a port without waiting for it."""
        self.port, self._child = port, self._spawn(port)
        return self._child

    def start(self, port: int | None = None) -> ApacheBroker:
        """Start it (on ``port``, else on a free one), and wait until it serves and its name server knows it."""

        def pick() -> int:
            return port or free_ports_around(-2, 1)

        self.port, self._child = _start(pick, self._spawn)
        with Wire(self.namesrv) as names:
            names.wait_route("TBW102", START_SECONDS)
        return self

    def stop(self, seconds: float = 30) -> None:
        """SIGTERM, and wait: the store is written out cleanly."""
        if self._child is not None:
            self._child.terminate(seconds)

    def kill(self) -> None:
        """SIGKILL."""
        if self._child is not None:
            self._child.kill()
