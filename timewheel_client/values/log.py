"""The client's logger. It passes every text of peers (remarks, ids, topics) through `printable`."""

from __future__ import annotations

import logging

from remoting.printable import printable

__all__ = ["log"]

_FORMATTER = logging.Formatter()


class _Printable(logging.Filter):
    """Writes each message as one line without control characters; tracebacks keep their lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Make the text of a record printable. Always True: no record is dropped."""
        record.msg, record.args = printable(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = printable(_FORMATTER.formatException(record.exc_info), lines=True)
        return True


log = logging.getLogger("timewheel_client")
log.addFilter(_Printable())
