"""The processes of shards: how each is started, and its log lines, which come through a pipe into the one log.

A shard writes each log record as a line of JSON to its standard output (`pipe_logging`). The supervisor reads them in
a thread for each shard and logs them under the shard's name. A line that is no such record (a traceback
of the interpreter, say) is logged as it is. So there is one log, rotated by one process, in the order of arrival.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from broker.config.logs import PASSED, PlaceLimit

__all__ = ["ShardProcess", "pipe_logging", "start_shard"]

_TAIL = 5


class ShardProcess:
    """A running shard. Its output is read until it ends."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name = name
        self._process = process
        self.last_lines: list[str] = []
        """Its last errors, for the message that it did not start."""
        assert process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(process.stdout,), name=f"log {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        status = self._process.poll()
        if status is not None:
            self._reader.join(1.0)
        return status

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def hang_up(self) -> None:
        """Ask it to read its files again (SIGHUP)."""
        self._process.send_signal(1)

    def _read(self, output: IO[str]) -> None:
        for line in output:
            record = _record(self._name, line.rstrip("\n"))
            if record.levelno >= logging.ERROR:
                self.last_lines = [*self.last_lines, record.getMessage()][-_TAIL:]
            logger = logging.getLogger("broker")
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)


def start_shard(name: str, spec: Mapping[str, Any], fd: int) -> ShardProcess:
    """Start a shard's process, which inherits the link ``fd``; closes it here. Raises OSError.

    ``spec`` is what `broker.cli.shard` reads.
    """
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "broker.cli.shard", json.dumps({**spec, "fd": fd})],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[fd],
            process_group=0,  # Ctrl-C reaches the supervisor alone
            env={**os.environ, "PYTHONPATH": path},
            encoding="utf-8",
            errors="replace",
        )
    finally:
        os.close(fd)
    return ShardProcess(name, process)


def _record(name: str, line: str) -> logging.LogRecord:
    """Make a log record of a line of a shard."""
    try:
        values = json.loads(line)
        level, logger, text, created = values["l"], values["n"], values["m"], values["t"]
        record = logging.LogRecord(f"{name} {logger}", int(level), "", PASSED, "%s", (text,), None)
        record.created = float(created)
        record.msecs = record.created % 1 * 1000
    except (KeyError, TypeError, ValueError):
        return logging.LogRecord(name, logging.ERROR, "", PASSED, "%s", (line,), None)
    return record


class _Lines(logging.Handler):
    """Writes each record as a line of JSON."""

    def __init__(self, output: IO[str]) -> None:
        super().__init__()
        self._output = output
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; a supervisor that is gone reads nothing."""
        values = {"l": record.levelno, "m": self.format(record), "n": record.name, "t": record.created}
        try:
            self._output.write(json.dumps(values) + "\n")
            self._output.flush()
        except (OSError, ValueError):
            pass


def pipe_logging(level: str, output: IO[str]) -> Callable[[], None]:
    """Write all log records from now on as lines for the supervisor; returns a function that ends it."""
    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    entrance = QueueHandler(queue)
    entrance.addFilter(PlaceLimit())
    listener = QueueListener(queue, _Lines(output))
    root = logging.getLogger()
    root.addHandler(entrance)
    root.setLevel(level)
    listener.start()

    def stop() -> None:
        root.removeHandler(entrance)
        listener.stop()

    return stop
