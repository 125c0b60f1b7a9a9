"""The broker's log: files with rotation, written by a thread of their own, and warnings on the terminal.

A log line costs the calling thread a queue entry, never a disk access: the network loop and the delivery threads must
not wait for a file. The queue is emptied before `stop` returns.

Errors of clients are logged, and a client can cause 10,000 a second. So `PlaceLimit` lets each place in the program log
a burst of 100 lines and then 10 a second, and says how many lines it has left out.

By default the log is ``logs/broker.log`` in the store directory, 64 MiB and ten older files
(``logDir``, ``logFileBytes``, ``logFileCount``, ``logLevel``).
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from textwrap import indent

from broker.config.broker_config import BrokerConfig
from broker.config.key import shown
from remoting.messages.build import build_name
from remoting.printable import printable
from store.disk.files import Files

__all__ = ["IN_FILE_ONLY", "PASSED", "PlaceLimit", "log_directory", "log_settings", "start_logging"]

FILE_NAME = "broker.log"
IN_FILE_ONLY = {"in_file_only": True}
"""``extra`` of a log call whose line must not go to the terminal, because the terminal shows it in another way."""
PASSED = -1
"""Line number of a record of another process, which has limited it already."""
BURST = 100
PER_SECOND = 10
LINE_CHARS_MAX = 8_000
"""Longest message; a peer may name a topic of 16 MiB."""
LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger("broker")


class PlaceLimit(logging.Filter):
    """Lets each place of the program log a burst of lines, then a number of lines a second; CRITICAL always passes.

    The next line that passes tells how many were left out before it. Time is taken from the records. If two threads log
    from one place at once, the count may be wrong by one, which does no harm.
    """

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND) -> None:
        super().__init__()
        self._burst = burst
        self._per_second = per_second
        self._places: dict[tuple[str, int], list[float]] = {}  # lines that may pass now, since when, lines left out

    def filter(self, record: logging.LogRecord) -> bool:
        """True if a record passes."""
        if record.levelno >= logging.CRITICAL or record.lineno == PASSED:
            return True
        place = self._places.setdefault((record.pathname, record.lineno), [self._burst, record.created, 0])
        free, then, left_out = place
        free = min(self._burst, free + max(0.0, record.created - then) * self._per_second)
        if free < 1:
            place[:] = free, record.created, left_out + 1
            return False
        place[:] = free - 1, record.created, 0
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out:.0f} lines like this one were left out before it)"
            record.args = None
        return True


class _Printable(logging.Formatter):
    """Writes a record as one line without control characters, so that peers' text cannot forge lines or control a
    terminal.

    Lines of a traceback stay lines, but are indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write one, without the traceback that another handler may have left in the record."""
        text = record.getMessage()
        if len(text) > LINE_CHARS_MAX:
            text = f"{text[:LINE_CHARS_MAX]}… (cut, {len(text)} characters)"
        text = printable(text)
        if record.exc_info:
            text += "\n" + indent(printable(self.formatException(record.exc_info), lines=True), "    ")
        return text


class _LogFiles(RotatingFileHandler):
    """Log files that drop lines while the disk is full, and continue when there is room.

    The remaining space is for messages, and the terminal still shows the warnings.
    """

    def _open(self) -> TextIOWrapper:
        """Create files that only their owner can read."""
        Files().open(Path(self.baseFilename), create=True).close()
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Ignore the error: a traceback for each lost line helps nobody."""

    def close(self) -> None:
        """Close, even if there is no room for the last lines."""
        with contextlib.suppress(OSError):
            super().close()


def log_directory(config: BrokerConfig) -> Path:
    """The directory of a configuration's log files."""
    configured = config.get_text("logDir")
    return Path(configured) if configured else config.store_dir / "logs"


def start_logging(config: BrokerConfig) -> Callable[[], None]:
    """Write all log lines from now on to the files, and warnings to standard error too; returns a function that ends
    it.

    Raises OSError if the directory or file cannot be created.
    """
    directory = log_directory(config)
    Files().makedirs(directory)
    files = _LogFiles(
        directory / FILE_NAME,
        maxBytes=config.get_int("logFileBytes"),
        backupCount=config.get_int("logFileCount"),
        encoding="utf-8",
    )
    files.setFormatter(logging.Formatter(LINE))
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel(logging.WARNING)
    terminal.addFilter(lambda record: not hasattr(record, "in_file_only"))
    terminal.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    entrance = QueueHandler(queue)
    entrance.setFormatter(_Printable())
    entrance.addFilter(PlaceLimit())
    listener = QueueListener(queue, files, terminal, respect_handler_level=True)
    root = logging.getLogger()
    level_before = root.level
    root.addHandler(entrance)
    root.setLevel(config.get_text("logLevel"))
    listener.start()

    def stop() -> None:
        root.removeHandler(entrance)
        root.setLevel(level_before)
        listener.stop()
        files.close()

    return stop


def log_settings(config: BrokerConfig) -> None:
    """Log the settings in effect, those of Apache's without effect here, and the unknown ones."""
    used = {
        key: value for key, value in sorted(config.values.items()) if key not in {*config.no_effect, *config.unknown}
    }
    log.info("this build: %s", build_name())
    log.info("settings: %s", ", ".join(shown(key, value) for key, value in used.items()))
    if config.no_effect:
        log.info("settings of Apache's broker that have no effect here: %s", ", ".join(config.no_effect))
    if config.unknown:
        log.warning("unknown settings (typing mistakes?): %s", ", ".join(config.unknown))
    for text in config.warnings:
        log.warning("%s", text)
