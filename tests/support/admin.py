"""Apache's own command line for administrators (mqadmin), run against any name server, many commands in one JVM."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.apache import OPENS, VERSION, apache_jars
from tests.support.cache import cached, need_tools, run_tool
from tests.support.processes import Child

__all__ = ["MqAdmin", "admin_classes"]

SOURCE = Path(__file__).parent.parent / "interop" / "clients" / "admin" / "Admin.java"
COMMAND_SECONDS = 60


def admin_classes() -> Path:
    """Return the folder with the compiled driver, building it first if need be (MissingToolError, FetchError)."""
    need_tools("javac")
    jars = apache_jars()

    def make(work: Path) -> None:
        run_tool(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", work / "classes", SOURCE], cwd=work)

    return cached("admin", [SOURCE, VERSION], make) / "classes"


class MqAdmin:
    """A process that runs mqadmin commands one after another."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["java", f"-Duser.home={folder}", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *OPENS]
        classpath = f"{admin_classes()}:{apache_jars()}/*"
        self._child = Child([*command, "-cp", classpath, "Admin", namesrv], folder, folder / "admin.log", pipes=True)

    def __call__(self, *words: str) -> str:
        """Run one command and return what it printed; AssertionError if it shows an exception."""
        text = self.run(*words)
        assert "Exception" not in text, f"mqadmin {' '.join(words)}:\n{text}"
        return text

    def run(self, *words: str) -> str:
        """Run one command and return what it printed, exceptions too; AssertionError if it ends the process."""
        stdin, stdout = self._child.process.stdin, self._child.process.stdout
        assert stdin is not None and stdout is not None
        watchdog = threading.Timer(COMMAND_SECONDS, self._child.kill)
        watchdog.start()
        try:
            stdin.write("\t".join(words).encode() + b"\n")
            stdin.flush()
            lines: list[str] = []
            for line in stdout:
                if line == b".\n":
                    break
                lines.append(line.decode())
            else:
                raise AssertionError(f"mqadmin {' '.join(words)} ended the process:\n{''.join(lines)}")
        finally:
            watchdog.cancel()
        return "".join(lines)

    def stop(self) -> None:
        """End it."""
        self._child.kill()
        for stream in (self._child.process.stdin, self._child.process.stdout):
            if stream is not None:
                stream.close()
