"""Apache's own proxy in front of a broker, and RocketMQ 5's Java client, each in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.apache import OPENS
from tests.support.cache import cached, fetch_maven, need_tools, run_tool
from tests.support.certificates import make_certificate
from tests.support.ports import free_port, wait_open
from tests.support.processes import Child

__all__ = ["Proxy", "client_command", "proxy_jars"]

SOURCES = Path(__file__).parent.parent / "interop" / "clients" / "proxy"
PROXY, CLIENT = "5.5.0", "5.0.7"
START_SECONDS = 180


def _jars(artifact: str, version: str, work: Path) -> None:
    fetch_maven(SOURCES / "pom.xml", work / "lib", f"-Dartifact={artifact}", f"-Dartifact.version={version}")


def proxy_jars() -> Path:
    """Return the folder with the proxy's jars, fetching them first if need be (MissingToolError, FetchError)."""
    need_tools("java", "mvn")
    inputs = [SOURCES / "pom.xml", PROXY]
    return cached(f"proxy-{PROXY}", inputs, lambda work: _jars("rocketmq-proxy", PROXY, work)) / "lib"


def client_command(home: Path) -> list[str]:
    """Build the driver of the Java client if need be, and return the command that starts it."""
    need_tools("java", "javac", "mvn")
    source = SOURCES / "ProxyClient.java"

    def make(work: Path) -> None:
        _jars("rocketmq-client-java", CLIENT, work)
        shutil.copy(source, work)
        run_tool(["javac", "-encoding", "UTF-8", "-cp", f"{work}/lib/*", "-d", work / "classes", source], cwd=work)

    folder = cached(f"client-java5-{CLIENT}", [SOURCES / "pom.xml", CLIENT, source], make)
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", f"-Duser.home={home}", *options, "-cp", f"{folder}/classes:{folder}/lib/*", "ProxyClient"]


class Proxy:
    """The proxy in cluster mode, with its files below a folder; started by the constructor.

    It gets a certificate for each of its two servers. Otherwise it makes itself two, with RSA keys: seconds of
    processor time. Its clients take any.
    """

    def __init__(self, folder: Path, namesrv: str) -> None:
        folder.mkdir(parents=True)
        port = free_port()
        made = make_certificate(folder / "tls")
        settings: dict[str, object] = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": namesrv,
            "proxyMode": "cluster",
            "grpcServerPort": port,
            "remotingListenPort": free_port(),
            "localServeAddr": "127.0.0.1",
            "tlsTestModeEnable": False,
            "tlsCertPath": str(made.certificate),
            "tlsKeyPath": str(made.key),
        }
        served = {"test.mode.enable": "false", "server.certPath": made.certificate, "server.keyPath": made.key}
        tls = [f"-Dtls.{name}={value}" for name, value in served.items()]
        (folder / "rmq-proxy.json").write_text(json.dumps(settings))
        command = ["java", f"-Duser.home={folder}", "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", *OPENS]
        command += [*tls, "-cp", f"{proxy_jars()}/*", "org.apache.rocketmq.proxy.ProxyStartup"]
        command += ["-pm", "cluster", "-n", namesrv, "-pc", str(folder / "rmq-proxy.json")]
        self.endpoints = f"127.0.0.1:{port}"
        self._child = Child(command, folder, folder / "proxy.log", {"ROCKETMQ_HOME": str(folder)})
        until = time.monotonic() + START_SECONDS
        while not wait_open(port, 0.5):
            if not self._child.running() or time.monotonic() > until:
                self._child.kill()
                raise AssertionError(f"the proxy did not start:\n{self._child.tail(50)}")

    def run(self, home: Path, jobs: Sequence[str], seconds: int, all_dead: Path) -> str:
        """Have the Java client do all jobs at once; what it printed. AssertionError if it failed.

        Jobs with dead letters go on until the file ``all_dead`` is there.
        """
        command = [*client_command(home), self.endpoints, str(seconds), str(all_dead), *jobs]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
        assert done.returncode == 0, f"{done.stdout[-500:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def kill(self) -> None:
        """End it."""
        self._child.kill()
