"""A real HDFS: name node and data node of Apache Hadoop, as processes of this machine, on free ports of 127.0.0.1.

The jars come from Maven into the cache. Everything a run writes stays below the folder it is given.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.cache import cached, fetch_maven, need_tools
from tests.support.ports import IN_USE, free_port
from tests.support.processes import Child
from tests.support.wait import happens

__all__ = ["BLOCK_BYTES", "HOST", "VERSION", "Hdfs", "hadoop_jars"]

VERSION = "3.4.2"
POM = Path(__file__).parent / "hadoop-pom.xml"
HOST = "127.0.0.1"
"""The data node's name, as the blocks' places have it."""
BLOCK_BYTES = 1 << 20
"""The least that Hadoop allows: a small file has several blocks."""
USER = "loader"
STARTS_WITHIN_S = 180.0
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_LOGGING = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%p %c: %m%n
"""


def hadoop_jars() -> Path:
    """The folder with Hadoop's jars; they are fetched first if need be (MissingToolError, FetchError)."""
    need_tools("java", "mvn")
    options = f"-Dhadoop.version={VERSION}"
    return cached(f"hadoop-{VERSION}", [POM, VERSION], lambda work: fetch_maven(POM, work / "lib", options)) / "lib"


class Hdfs:
    """``with Hdfs(folder) as hdfs``: an empty file system of one data node, which keeps each block once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._jars = hadoop_jars()
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        while True:
            self.port = free_port()
            self._configure(free_port())
            try:
                self._start()
                return self
            except BaseException as error:
                said = "".join(path.read_text(errors="replace") for path in self._folder.glob("*.log"))
                self._stop()
                if not isinstance(error, AssertionError) or IN_USE not in said:
                    raise
                for path in self._folder.glob("*.log"):
                    path.unlink()

    def _configure(self, own_port: int) -> None:
        values = {
            "fs.defaultFS": f"hdfs://{HOST}:{own_port}",
            "dfs.namenode.http-address": f"{HOST}:{self.port}",
            "dfs.namenode.name.dir": f"file://{self._folder}/name",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.datanode.data.dir": f"file://{self._folder}/data",
            "dfs.datanode.address": f"{HOST}:0",
            "dfs.datanode.http.address": f"{HOST}:0",
            "dfs.datanode.ipc.address": f"{HOST}:0",
            "dfs.datanode.hostname": HOST,
            "dfs.blocksize": str(BLOCK_BYTES),
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
            "hadoop.tmp.dir": str(self._folder / "tmp"),
        }
        conf = self._folder / "conf"
        conf.mkdir(exist_ok=True)
        lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items()]
        for name in ("core-site.xml", "hdfs-site.xml"):
            (conf / name).write_text(f"<configuration>{''.join(lines)}</configuration>\n")
        (conf / "log4j.properties").write_text(_LOGGING)
        for page in ("hdfs", "datanode", "static"):  # the jars have no pages, and their servers want the folders
            (conf / "webapps" / page).mkdir(parents=True, exist_ok=True)

    def _start(self) -> None:
        made = self._spawn("format", _NAME_NODE, "-format", "-force", "-nonInteractive")
        assert happens(lambda: not made.running(), STARTS_WITHIN_S) and not made.process.returncode, made.tail()
        self._children = [self._spawn("namenode", _NAME_NODE), self._spawn("datanode", _DATA_NODE)]
        happens(lambda: self._serves() or not all(child.running() for child in self._children), STARTS_WITHIN_S)
        assert all(child.running() for child in self._children), "".join(child.tail() for child in self._children)

    def _spawn(self, name: str, main: str, *words: str) -> Child:
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        java.append("--add-opens=java.base/java.lang=ALL-UNNAMED")  # for the JAXB that WebHDFS has
        command = [*java, "-cp", f"{self._folder / 'conf'}:{self._jars}/*", main, *words]
        return Child(command, self._folder, self._folder / f"{name}.log")

    def _serves(self) -> bool:
        """Whether a file can be written: both nodes are up and know each other."""
        try:
            self.system.pipe_file("/probe", b"x")
        except Exception:
            return False
        return True

    @property
    def system(self) -> Any:
        """It, as a file system of fsspec."""
        from fsspec.implementations.webhdfs import WebHDFS

        return WebHDFS(HOST, self.port, user=USER, skip_instance_cache=True)

    def put(self, folder: Path, place: str) -> str:
        """Copy the files of a folder to a path; answers its URI."""
        system = self.system
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            system.pipe_file(f"{place}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"webhdfs://{HOST}:{self.port}{place}"

    def _stop(self) -> None:
        for child in self._children:
            child.kill()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
