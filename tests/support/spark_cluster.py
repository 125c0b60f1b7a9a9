"""A standalone Spark cluster: a master and workers as processes of this machine, whose Python has no package of ours.

The executors find NumPy, pyarrow and PySpark in a folder of links, and nothing else: what they need of this project the
command has to bring.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.lateness.engines.session import need_java
from tests.support.wait import wait_until

__all__ = ["Cluster"]

LIBRARIES = ("numpy", "pyarrow", "pyspark", "py4j")
STARTS_WITHIN_S = 120.0


class Cluster:
    """``with Cluster(folder) as cluster``: `master` is the URL for ``--master``. Ports are free ones.

    There is a worker for each of ``hosts``, names of loopback; its Python finds ``libraries``.
    """

    def __init__(
        self, folder: Path, hosts: Sequence[str] = ("127.0.0.1",) * 2, libraries: Sequence[str] = LIBRARIES
    ) -> None:
        need_java()
        self.folder = folder
        self._hosts = hosts
        self._libraries = libraries
        self._processes: list[subprocess.Popen[bytes]] = []
        self.python = self._thin_python()

    def _thin_python(self) -> Path:
        """A Python that sees the standard library and a few libraries, whatever is installed beside them."""
        thin = self.folder / "thin"
        thin.mkdir(parents=True)
        for name in self._libraries:
            found = importlib.util.find_spec(name)
            assert found is not None
            assert found.origin is not None
            package = Path(found.origin).parent
            for path in (package, package.with_name(f"{name}.libs")):
                if path.exists():
                    (thin / path.name).symlink_to(path)
        python = self.folder / "python"
        python.write_text(
            f'#!/bin/sh\nPYTHONPATH="{thin}:$PYTHONPATH" exec "{os.path.realpath(sys.executable)}" -S "$@"\n'
        )
        python.chmod(0o755)
        return python

    def knows(self, module: str) -> bool:
        """Whether the Python of the executors can import a module."""
        done = subprocess.run([self.python, "-c", f"import {module}"], cwd="/", capture_output=True, check=False)
        return not done.returncode

    def __enter__(self) -> Self:
        try:
            log = self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
            wait_until(lambda: re.search(r"spark://127\.0\.0\.1:\d+", log.read_text()), STARTS_WITHIN_S, "the master")
            found = re.search(r"spark://127\.0\.0\.1:\d+", log.read_text())
            assert found is not None
            self.master = found[0]
            words = ("--port", "0", "--cores", "1", "--memory", "900m")
            for number, host in enumerate(self._hosts):
                work = str(self.folder / f"work{number}")
                self._start(
                    f"worker{number}", "org.apache.spark.deploy.worker.Worker", "--host", host, *words,
                    "--work-dir", work, self.master,
                )  # fmt: skip
            wait_until(
                lambda: log.read_text().count("Registering worker") >= len(self._hosts), STARTS_WITHIN_S, "workers"
            )
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self, name: str, main: str, *words: str) -> Path:
        import pyspark

        home = Path(pyspark.__file__).parent
        scratch = self.folder / "local"
        scratch.mkdir(exist_ok=True)
        log = self.folder / f"{name}.log"
        # As Spark's own scripts start them; the scripts look for a build beside themselves, which PySpark has not.
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{home}/jars/*", main, "--webui-port", "0", *words]
        away = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON")
        environment = {key: value for key, value in os.environ.items() if key not in away}
        environment |= {
            "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(scratch), "SPARK_WORKER_OPTS": "", "PYSPARK_PYTHON": str(self.python),
        }  # fmt: skip
        with open(log, "wb") as file:
            self._processes.append(
                subprocess.Popen(command, stdout=file, stderr=file, cwd=self.folder, env=environment)
            )
        return log

    def shuffle_files(self) -> list[Path]:
        """What the executors have written for each other so far."""
        return list((self.folder / "local").glob("**/shuffle_*.data"))

    def handed_over(self) -> dict[tuple[str, str], int]:
        """What executors have got from the driver for their Python: the size, by executor and name."""
        found = {}
        for folder, _, names in os.walk(self.folder / "local"):
            for path in (Path(folder) / name for name in names if re.fullmatch(r"broadcast_\d+_python", name)):
                with suppress(FileNotFoundError):
                    found[path.parts[-3], path.name] = path.stat().st_size
        return found

    def kill_an_executor(self) -> int:
        """``kill -9`` for one executor; answers its process id."""
        for worker in self._processes[1:]:
            for child in _children(worker.pid):
                if b"ExecutorBackend" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(child, signal.SIGKILL)
                    return child
        raise AssertionError("no executor is at work")

    def said(self, text: str) -> bool:
        """Whether master or a worker has written this."""
        return any(text in path.read_text(errors="replace") for path in self.folder.glob("*.log"))

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()


def _children(pid: int) -> list[int]:
    text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(number) for number in text.split()]
