"""The stock clients: how each is fetched and built, and a process that speaks the drivers' line protocol.

The drivers stand in tests/interop/clients, with the protocol in the README there. A client is fetched by its
own package client (Maven, npm, Go) at a pinned version, and built into the cache.
"""

from __future__ import annotations

import json
import queue
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.support.cache import cached, fetch_maven, need_tools, run_tool
from tests.support.class_archives import END_SECONDS, JAR, archives, compile_java, from_archive, recording
from tests.support.ours import OurBroker
from tests.support.processes import Child

__all__ = ["CLIENTS", "SEND_TIMEOUT_MS", "Client", "Event", "command_of", "was_out_of_time"]

SOURCES = Path(__file__).parent.parent / "interop" / "clients"
Event = dict[str, Any]
SEND_TIMEOUT_MS = 10_000
"""What the Java drivers give a send, with all its retries (`setSendMsgTimeout`)."""
_LAST_WAIT = re.compile(r"wait response on the channel <[^>]*> timeout, (\d+)\(ms\)")

# Small, quick to start, and quiet: many of them share two cores with the broker under test. What Java itself has to
# say, of memory or threads, goes to the log: standard output is for events.
JVM = [
    "-XX:+DisplayVMOutputToStderr",
    "-Xlog:disable",
    "-Xlog:all=warning:stderr",
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Drocketmq.client.logLevel=WARN",
    "-Drocketmq.log.level=WARN",
    "-Dons.client.logLevel=WARN",
]


def _java(version: str) -> Path:
    need_tools("java", "javac", "mvn")
    sources = sorted((SOURCES / "java").glob("*.java"))
    pom = SOURCES / "java" / "pom.xml"

    def make(work: Path) -> None:
        fetch_maven(pom, work / "lib", f"-Drocketmq.version={version}")
        compile_java(work, sources)

    return cached(f"client-java-{version}", [pom, version, JAR, *sources], make)


def _ons() -> Path:
    need_tools("java", "javac", "mvn")
    sources = [SOURCES / "java" / "Driver.java", *sorted((SOURCES / "ons").glob("*.java"))]
    pom = SOURCES / "ons" / "pom.xml"

    def make(work: Path) -> None:
        fetch_maven(pom, work / "lib")
        compile_java(work, sources)

    return cached("client-ons", [pom, JAR, *sources], make)


def _node() -> Path:
    need_tools("node", "npm")
    inputs = [SOURCES / "node" / name for name in ("package.json", "package-lock.json", ".npmrc", "client.js")]

    def make(work: Path) -> None:
        for path in inputs:
            shutil.copy(path, work)
        run_tool(["npm", "ci", "--no-audit", "--no-fund"], cwd=work)

    return cached("client-node", inputs, make)


def _go() -> Path:
    need_tools("go")
    inputs = [SOURCES / "go" / name for name in ("go.mod", "go.sum", "client.go")]

    def make(work: Path) -> None:
        for path in inputs:
            shutil.copy(path, work)
        run_tool(["go", "build", "-mod=readonly", "-o", "client", "."], work, {"GOTOOLCHAIN": "local"})

    return cached("client-go", inputs, make)


def _jvm(folder: Path, home: Path, main: str, options: Sequence[str]) -> list[str]:
    return ["java", f"-Duser.home={home}", *JVM, *options, "-cp", f"{folder}/{JAR}:{folder}/lib/*", main]


@dataclass(frozen=True)
class _Kind:
    """How one client is had and started; `command` takes its folder, a home, and more options of Java."""

    build: Callable[[], Path]
    command: Callable[[Path, Path, Sequence[str]], list[str]]
    java: bool = False


def _in_java(build: Callable[[], Path], main: str) -> _Kind:
    return _Kind(build, lambda folder, home, options: _jvm(folder, home, main, options), True)


CLIENTS = {
    "java-5.5.0": _in_java(lambda: _java("5.5.0"), "RocketClient"),
    "java-4.9.8": _in_java(lambda: _java("4.9.8"), "RocketClient"),
    "ons-1.8.8.8": _in_java(_ons, "OnsClient"),
    "node-ali-ons": _Kind(_node, lambda folder, *_: ["node", f"{folder}/client.js"]),
    "go-v2": _Kind(_go, lambda folder, *_: [f"{folder}/client"]),
}
"""The stock clients by the names that the tests use."""


def command_of(name: str, home: Path) -> list[str]:
    """Build a client if need be, and return the command that starts its driver (MissingToolError, FetchError)."""
    kind = CLIENTS[name]
    return kind.command(kind.build(), home, from_archive(_archive(name), name) if kind.java else [])


@cache
def _archive(name: str) -> Path:
    return archives(f"client-{name}", CLIENTS[name].build(), partial(_record, name))


def _record(name: str, into: Path) -> None:
    """Have a client send a message and receive it."""
    with tempfile.TemporaryDirectory() as folder:
        broker = OurBroker(Path(folder) / "broker").start()
        try:
            kind = CLIENTS[name]
            command = kind.command(kind.build(), Path(folder), recording(into, name))
            client = Client(name, broker.namesrv, Path(folder) / "client", command)
            message = {"n": 0, "topic": "archived", "body": "YQ==", "tag": "a", "keys": ["k"], "properties": {"a": "b"}}
            client.produce("p", "producers", [message])
            client.consume("c", "consumers", {"archived": "*"})
            client.quit(END_SECONDS)
        finally:
            broker.kill()


def was_out_of_time(error: str) -> bool:
    """Whether a Java client gave a send up because its tries before the last one had used its time.

    It says so itself (``call timeout``, or ``call the addr`` where the rest of the time went by before its last try was
    written), or its last wait was for the rest of the time. Whoever waits for an answer as long as a send may take got
    none from a broker that could be reached: that is no lack of time.
    """
    if "CODE: " in error:  # an answer, and it says no
        return False
    if "call timeout" in error or "invokeSync call the addr" in error:
        return True
    rest = _LAST_WAIT.search(error)
    return rest is not None and int(rest[1]) < SEND_TIMEOUT_MS * 9 // 10


@dataclass
class _Waiter:
    events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)


class Client:
    """One stock client in a process of its own.

    Events that name a command id go to that command's queue; `received` ones are kept by consumer id as well.
    """

    def __init__(
        self,
        name: str,
        namesrv: str,
        folder: Path,
        command: Sequence[str] = (),
        take: Callable[[Event], bool] = lambda _: False,
    ) -> None:
        """``command``: what starts the driver, where it is not that of `command_of`. ``take`` gets each event first, in
        a thread of its own; those for which it answers True are not kept."""
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.folder = folder
        command = [*(command or command_of(name, folder)), namesrv]
        env = {"HOME": str(folder), "ROCKETMQ_GO_LOG_LEVEL": "warn"}
        self._child = Child(command, folder, folder / "client.log", env, pipes=True)
        self._lock = threading.Condition()
        self._events: dict[str, list[Event]] = {}
        self._ended = False
        self._writing = threading.Lock()
        self._take = take
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        stdout = self._child.process.stdout
        assert stdout is not None
        for line in stdout:
            if not line.endswith(b"\n"):
                break  # it was killed while it wrote
            event = json.loads(line)
            if self._take(event):
                continue
            with self._lock:
                self._events.setdefault(event["id"], []).append(event)
                self._lock.notify_all()
        with self._lock:
            self._ended = True
            self._lock.notify_all()

    def command(self, op: str, **arguments: Any) -> None:
        """Write one command line."""
        stdin = self._child.process.stdin
        assert stdin is not None
        with self._writing:
            stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            stdin.flush()

    def events(self, job: str, *names: str) -> list[Event]:
        """Return what has come so far for a command, of the kinds named (all without names)."""
        with self._lock:
            return [event for event in self._events.get(job, ()) if not names or event["event"] in names]

    def wait(self, job: str, event: str, seconds: float, count: int = 1) -> list[Event]:
        """Wait for a number of events of one kind; AssertionError if they do not come or the command fails."""
        until = time.monotonic() + seconds
        with self._lock:
            while True:
                have = self._events.get(job, [])
                found = [one for one in have if one["event"] == event]
                if len(found) >= count:
                    return found
                failed = [one for one in have if one["event"] == "failed"]
                left = until - time.monotonic()
                if failed or self._ended or left <= 0:
                    why = failed[0]["error"] if failed else "process ended" if self._ended else "time is up"
                    raise AssertionError(
                        f"{self.name}: {len(found)} of {count} {event!r} events for {job!r}: {why}\n"
                        f"{self._child.tail()}"
                    )
                self._lock.wait(left)

    def consume(self, job: str, group: str, topics: dict[str, str], **options: Any) -> None:
        """Start a push consumer and wait until it has started."""
        self.command("consume", id=job, group=group, topics=topics, **options)
        self.wait(job, "consuming", 60)

    def close_consumer(self, job: str) -> None:
        """Shut a push consumer down and wait for it."""
        self.command("close", id=job)
        self.wait(job, "closed", 60)

    def produce(self, job: str, group: str, messages: list[Event], seconds: float = 60, **options: Any) -> list[Event]:
        """Send messages and return the `sent` events; AssertionError if any send failed."""
        self.command("produce", id=job, group=group, messages=messages, **options)
        self.wait(job, "produced", seconds)
        failed = self.events(job, "send_failed")
        assert not failed, f"{self.name}: {len(failed)} sends failed, the first: {failed[0]['error']}"
        return self.events(job, "sent")

    def received(self, job: str) -> list[Event]:
        """Return what a consumer has received so far."""
        return self.events(job, "received")

    def wait_received(self, job: str, count: int, seconds: float) -> list[Event]:
        """Wait until a consumer has received that many."""
        return self.wait(job, "received", seconds, count)

    def look_up(self, job: str, seconds: float = 30, **what: str) -> list[Event]:
        """Find messages by ``topic`` and ``msg_id`` or ``key``; ``job`` is the command's id."""
        self.command("look_up", id=job, **what)
        found: list[Event] = self.wait(job, "looked_up", seconds)[0]["messages"]
        return found

    def stop(self) -> None:
        """Ask it to end (consumers say good-bye), and kill it if it does not."""
        try:
            self.quit(15)
        except Exception:  # it may be gone or stuck; the kill below is what counts
            pass
        self.kill()

    def quit(self, seconds: float) -> None:
        """Ask it to end, and wait for it; subprocess.TimeoutExpired, OSError."""
        self.command("quit")
        self._child.process.wait(seconds)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._child.kill()
        self._listener.join(60)  # what it had written before its end has been told, too
        for stream in (self._child.process.stdin, self._child.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
