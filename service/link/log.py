"""The log of an instance: each event is one line on standard output, with time (ms) and level.

::

    2026-11-25 10:39:05,729 INFO service.shard: broker-a/3: owning after 3431 ms: …

Text of peers cannot break or forge lines (`remoting.printable`).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from textwrap import indent

from remoting.printable import printable
from service.link.clock import mono_ms

__all__ = ["Teller", "start_logging"]

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SAY_AGAIN_MS = 30_000
TOLD_MAX = 1000
LINES_MAX = 100
"""Most different warnings in `SAY_AGAIN_MS`: a sender can name any number of topics that do not exist."""
OWN_LINES = 20
"""Of these, lines that are kept for warnings of which senders cannot cause any number."""
_VARY = ("(errno ", "no room for", "flow control")
_NUMBER = re.compile(r"[0-9]+")


class _Printable(logging.Formatter):
    """Formats lines so that text of peers cannot break or forge them. Lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        record.message = printable(record.getMessage())
        record.asctime = self.formatTime(record)
        text = self.formatMessage(record)
        if record.exc_info:
            text += "\n" + indent(printable(self.formatException(record.exc_info), lines=True), "    ")
        return text


def start_logging() -> Callable[[], None]:
    """Write the log from now on; returns a function that ends it."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Printable(LINE))
    root = logging.getLogger()
    level_before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)

    def stop() -> None:
        root.removeHandler(handler)
        root.setLevel(level_before)

    return stop


class Teller:
    """Logs events of one object. The same text is logged once in `SAY_AGAIN_MS`.

    A broker that is away is asked twice a second, with the same error each time. Errors of the disk are the same if
    they differ only in numbers: each try to write may have another file, length and offset. So are those of a busy
    broker, which says how long each request has waited. Beyond `LINES_MAX` warnings in that time the others are only
    counted; those of which there may be ``many``, one for each topic or entry, leave `OWN_LINES` to the others. Any
    thread may call it.
    """

    def __init__(self, log: logging.Logger, name: str) -> None:
        self._log = log
        self._name = name
        self._told: dict[str, int] = {}
        self._since_ms = -SAY_AGAIN_MS
        self._lines = self._left_out = 0

    def info(self, text: str) -> None:
        """Log an ordinary event."""
        self._tell(logging.INFO, text)

    def warning(self, text: str, *, always: bool = False, many: bool = False) -> None:
        """Log something that is wrong; ``always``: however much else is; ``many``: senders can cause many such."""
        self._tell(logging.WARNING, text, always, many)

    def _tell(self, level: int, text: str, always: bool = True, many: bool = False) -> None:
        now_ms = mono_ms()
        about = _NUMBER.sub("0", text) if any(mark in text for mark in _VARY) else text
        if now_ms - self._told.get(about, -SAY_AGAIN_MS) < SAY_AGAIN_MS:
            return
        if not always and not self._has_room(now_ms, LINES_MAX - OWN_LINES if many else LINES_MAX):
            return
        if len(self._told) > TOLD_MAX:
            self._told.clear()
        self._told[about] = now_ms
        self._log.log(level, "%s: %s", self._name, text)

    def _has_room(self, now_ms: int, most: int) -> bool:
        """True if one more warning may be logged now: ``most`` are, those before it included."""
        if now_ms - self._since_ms >= SAY_AGAIN_MS:
            left_out, self._since_ms, self._lines, self._left_out = self._left_out, now_ms, 0, 0
            if left_out:
                self._log.warning("%s: %d more warnings were not logged", self._name, left_out)
        has_room = self._lines < most
        self._lines += has_room
        self._left_out += not has_room
        return has_room
